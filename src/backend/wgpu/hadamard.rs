//! Rotated bases (Hadamard): one dispatch normalises rows and rotates them into a basis, before the dispatch
//! that quantises them; another rotates embedding rows back. A workgroup owns one or more blocks. For a layer
//! that normalises its input a second time, this dispatch applies the first norm, without a basis.

use wgpu::Buffer;

use super::input::{self, ABSENT, Input};
use super::shader::{Kernel, MAX_SPAN};
use super::{Cx, Dispatch, Grid};
use sterna_program::{BasisId, Buf, Program, RowsOf, Stage};

/// Smallest number of elements per workgroup, if the row has as many.
const LEAST_SPAN: usize = 1024;

/// Error text for a basis whose blocks are too large.
pub fn missing(p: &Program, basis: Option<BasisId>) -> Option<String> {
    let block = p.bases[basis?.0 as usize].block;
    (block > MAX_SPAN).then(|| format!("a rotated basis in runs of {block}"))
}

/// Bytes of prepared rows.
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

/// Signs of all bases, concatenated.
pub fn signs(p: &Program) -> impl Iterator<Item = f32> {
    p.bases.iter().flat_map(|basis| basis.signs.iter().copied())
}

/// Normalises an input, rotates it into a basis if there is one, and stores it where the products read it.
pub fn dispatch<'a>(cx: &Cx<'a>, basis: Option<BasisId>, input: &Input<'_>) -> Dispatch<'a> {
    let memory = cx.memory;
    rotate(cx, basis, input, false, [&memory.bufs[input.x.0 as usize], &memory.prepared])
}

/// Rotates prepared rows back out of a basis, into a buffer.
pub fn back<'a>(cx: &Cx<'a>, basis: BasisId, x: Buf) -> Dispatch<'a> {
    let memory = cx.memory;
    let input = Input { x, norm: None, rows: RowsOf::Step };
    rotate(cx, Some(basis), &input, true, [&memory.prepared, &memory.bufs[x.0 as usize]])
}

fn rotate<'a>(
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
        kernels: vec![(usize::MAX, Kernel::Hadamard)],
        params,
        buffers: vec![&memory.step.buffer, &memory.constants, &memory.signs, from, to],
        grid: Grid::Rows { x: cols.div_ceil(span) as u32, rows: input.rows },
    }
}
