//! Rotated bases: rows are normed and rotated into one by a dispatch of its own, before the one that rounds
//! them, and those of an embedding out of one. A workgroup has a run, or several. For a layer that norms its
//! input once more this dispatch has the first norm, and no basis.

use wgpu::Buffer;

use super::input::{self, ABSENT, Input};
use super::shader::{Kernel, MOST_SPAN};
use super::{Cx, Dispatch, Grid};
use sterna_program::{BasisId, Buf, Program, RowsOf, Stage};

/// Elements that a workgroup has at least, if the row has them.
const LEAST_SPAN: usize = 1024;

/// A basis that is too large, as text.
pub fn missing(p: &Program, basis: Option<BasisId>) -> Option<String> {
    let block = p.bases[basis?.0 as usize].block;
    (block > MOST_SPAN).then(|| format!("a rotated basis in runs of {block}"))
}

/// Bytes of rows in a basis that wait for what takes them.
pub fn prepared_bytes(p: &Program) -> u64 {
    let of_stage = |(_, stage): &(String, Stage)| {
        let prepared = stage.linears().1.filter(|linear| stage.prepares_input(linear));
        let of_linears = prepared.map(|linear| p.weight_decl(linear.w).cols);
        let of_embed = if let Stage::Embed(s) = stage { s.basis } else { None };
        of_linears.chain(of_embed.map(|basis| p.bases[basis.0 as usize].signs.len())).max().unwrap_or(0)
    };
    let cols = p.stages.iter().map(of_stage).max().unwrap_or(0);
    4 * cols.saturating_mul(p.limits.rows) as u64
}

/// The signs of all bases, one behind the other.
pub fn signs(p: &Program) -> impl Iterator<Item = f32> {
    p.bases.iter().flat_map(|basis| basis.signs.iter().copied())
}

/// Brings an input into a basis, or merely norms it, to where the products take it.
pub fn dispatch<'a>(cx: &Cx<'a>, basis: Option<BasisId>, input: &Input<'_>) -> Dispatch<'a> {
    let memory = cx.memory;
    of(cx, basis, input, false, [&memory.bufs[input.x.0 as usize], &memory.prepared])
}

/// Brings rows that are there out of a basis, to a buffer.
pub fn back<'a>(cx: &Cx<'a>, basis: BasisId, x: Buf) -> Dispatch<'a> {
    let memory = cx.memory;
    let input = Input { x, norm: None, rows: RowsOf::Step };
    of(cx, Some(basis), &input, true, [&memory.prepared, &memory.bufs[x.0 as usize]])
}

fn of<'a>(
    cx: &Cx<'a>,
    basis: Option<BasisId>,
    input: &Input<'_>,
    back: bool,
    [from, to]: [&'a Buffer; 2],
) -> Dispatch<'a> {
    let cols = cx.p.buf_decl(input.x).cols;
    let signs = |basis: BasisId| &cx.p.bases[..basis.0 as usize];
    let at = |basis| signs(basis).iter().map(|basis| basis.signs.len() as u32).sum();
    let block = basis.map_or(1, |basis| cx.p.bases[basis.0 as usize].block);
    let span = block.max(LEAST_SPAN);
    let mut params = input::norm(cx, input.norm).to_vec();
    params.extend([cols, block, span].map(|n| n as u32));
    params.push(((1.0 / (block as f64).sqrt()) as f32).to_bits());
    params.extend([basis.map_or(ABSENT, at), u32::from(input.rows == RowsOf::Outputs), u32::from(back)]);
    let memory = cx.memory;
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::Turn)],
        params,
        buffers: vec![&memory.step.buffer, &memory.constants, &memory.signs, from, to],
        grid: Grid::Rows { x: cols.div_ceil(span) as u32, rows: input.rows },
    }
}
