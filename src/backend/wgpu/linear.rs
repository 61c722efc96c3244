//! Code that the stages with linear layers share: the dispatch that norms and rounds their input, and those
//! that multiply.

use wgpu::Buffer;

pub use super::input::{ABSENT, Input, norm};
use super::shader::{Kernel, ROWS};
use super::weight::WeightFormat;
use super::{Cx, Dispatch, Grid, turn, upload};
use sterna_program::{ActQuant, Linear, Program, RowsOf};

/// Missing kernels of a stage's layers, as text.
pub fn missing(cx: &super::Device<'_>, p: &Program, stage: &str, linears: &[&Linear]) -> Vec<String> {
    /// Where a sum of products of int8 leaves what a float has exactly.
    const MOST_COLS: usize = (1 << 24) / (2 * 127);
    let mut missing = Vec::new();
    for linear in linears {
        let decl = p.weight_decl(linear.w);
        let ty = decl.ty.name();
        let Some(format) = WeightFormat::of(decl.ty) else {
            missing.push(format!("{stage}__{ty}"));
            continue;
        };
        missing.extend(turn::missing(p, linear.basis));
        if linear.act == ActQuant::I8PerBlock {
            missing.push(format!("{stage} of inputs that are rounded by block"));
        }
        if format.multiplies_ints(linear.act) && !cx.gpu.caps.packed && decl.cols > MOST_COLS {
            missing.push(format!("{stage}__{ty} of {} columns in floats", decl.cols));
        }
        missing.extend(upload::unsupported(cx.gpu, &decl.name, format, decl.cols));
    }
    missing
}

/// Rows of activations that there is room for: kernels read whole tiles.
pub fn padded_rows(rows: usize) -> usize {
    rows.next_multiple_of(ROWS[ROWS.len() - 1] as usize)
}

/// Words of a row of activations of a layer.
pub fn act_words(p: &Program, linear: &Linear) -> usize {
    let decl = p.weight_decl(linear.w);
    let ints = WeightFormat::of(decl.ty).is_some_and(|format| format.multiplies_ints(linear.act));
    // Chunks of every type are made of 8 elements or more.
    if ints { decl.cols.next_multiple_of(64) / 4 } else { decl.cols.next_multiple_of(8) }
}

/// One layer of a stage: its output is `[rows, out_cols]` from `out_at` on.
pub struct Layer<'a> {
    pub linear: &'a Linear,
    pub out: &'a Buffer,
    pub out_cols: usize,
    pub out_at: usize,
    /// The stage's own word.
    pub what: u32,
}

/// The dispatches of layers over one input, which is prepared and rounded anew where a layer wants it
/// otherwise than the one before.
pub fn dispatches<'a>(
    cx: &Cx<'a>,
    stage: &'static str,
    input: Input<'a>,
    layers: Vec<Layer<'a>>,
) -> Vec<Dispatch<'a>> {
    let mut all = Vec::new();
    let (mut there, mut prepared) = (None, None);
    for layer in layers {
        let linear = layer.linear;
        if linear.prepares_input(input.norm.is_some()) && prepared != Some(linear.basis) {
            let norm = input.norm.or(linear.norm.as_ref());
            all.push(turn::dispatch(cx, linear.basis, &Input { norm, ..input }));
            prepared = Some(linear.basis);
        }
        let wanted = (linear.prepared(), ints(cx, linear));
        if there != Some(wanted) {
            all.push(input_dispatch(cx, input, linear));
            there = Some(wanted);
        }
        all.extend(products(cx, stage, input.rows, &layer));
    }
    all
}

fn ints(cx: &Cx<'_>, linear: &Linear) -> bool {
    WeightFormat::of(cx.p.weight_decl(linear.w).ty).expect("the plan was made").multiplies_ints(linear.act)
}

/// True if two layers over one input want it rounded in one way.
pub fn is_same_input(cx: &Cx<'_>, a: &Linear, b: &Linear) -> bool {
    // Rows of activations may be as long as the chunks of a type.
    (a.act, ints(cx, a), act_words(cx.p, a)) == (b.act, ints(cx, b), act_words(cx.p, b))
}

/// The dispatch that norms and rounds the input of a layer, or rounds what has been prepared.
pub fn input_dispatch<'a>(cx: &Cx<'a>, input: Input<'a>, linear: &'a Linear) -> Dispatch<'a> {
    let memory = cx.memory;
    let (x, in_norm) = match (linear.prepares_input(input.norm.is_some()), linear.basis) {
        (true, Some(_)) => (&memory.prepared, None),
        (true, None) => (&memory.prepared, linear.norm.as_ref()),
        (false, _) => (&memory.bufs[input.x.0 as usize], input.norm.or(linear.norm.as_ref())),
    };
    let mut params = norm(cx, in_norm).to_vec();
    params.extend([
        cx.p.buf_decl(input.x).cols as u32,
        act_words(cx.p, linear) as u32,
        u32::from(linear.act == ActQuant::I8PerToken),
        u32::from(input.rows == RowsOf::Outputs),
    ]);
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::Input { ints: ints(cx, linear) })],
        params,
        buffers: vec![&memory.step.buffer, &memory.constants, x, &memory.acts, &memory.quants],
        grid: Grid::Rows { x: 1, rows: input.rows },
    }
}

fn products<'a>(
    cx: &Cx<'a>,
    stage: &'static str,
    rows: RowsOf,
    layer: &Layer<'a>,
) -> impl Iterator<Item = Dispatch<'a>> {
    let (linear, memory) = (layer.linear, cx.memory);
    // The others are the input's: `input_dispatch` has them.
    let Linear { w, norm: _, bias, act: _, scale, basis: _ } = *linear;
    let weight = &cx.weights[w.0 as usize];
    let (ty, ints) = (WeightFormat::of(weight.ty).expect("it was uploaded").kernels.name(), ints(cx, linear));
    let kernel = move |rows| Kernel::Linear { stage, ty, ints, rows, experts: false };
    let shared = [
        act_words(cx.p, linear) as u32 / 4,
        u32::from(rows == RowsOf::Outputs),
        scale.to_bits(),
        bias.map_or(ABSENT, |bias| cx.constant(bias)),
        layer.out_cols as u32,
        layer.out_at as u32,
        layer.what,
    ];
    let (out, most) = (layer.out, ROWS[ROWS.len() - 1]);
    weight.parts.iter().map(move |part| Dispatch {
        kernels: ROWS
            .iter()
            .map(|&rows| (if rows == most { usize::MAX } else { rows as usize }, kernel(rows)))
            .collect(),
        params: weight.params(part).into_iter().chain(shared).collect(),
        buffers: vec![
            &memory.step.buffer,
            &memory.constants,
            part.alone(),
            &memory.acts,
            &memory.quants,
            out,
        ],
        grid: Grid::Products { of_weight: part.rows.len() as u32, rows },
    })
}
