//! LoRA adapters: after the product of a layer, two dispatches add those of its pairs, for the rows of the
//! step that use adapters. A stage with pairs has a second list of dispatches for steps with such rows, in
//! which its products are stored before any activation function.
//!
//! The matrices of a stage are in one buffer per type, so that a dispatch reads those of all adapters, and of
//! all experts.

use std::collections::BTreeSet;

use ggml_types::QuantType;
use wgpu::Buffer;

use super::device::Gpu;
use super::input;
use super::shader::Kernel;
use super::upload::{self, DeviceWeight};
use super::weight::{LORA_TYPES as TYPES, WeightFormat};
use super::{Cx, Device, Dispatch, Grid, mixture};
use crate::BackendError;
use crate::device::plan::{ADAPTERS_OF_HEADS, has_adapters_of_heads};
use sterna_program::{ActQuant, Linear, Lora, Program, RowsOf, Stage, Weight};

/// Words per matrix in the tables.
const ENTRY: usize = 4;

/// The matrices of a stage's pairs, once each.
fn matrices(stage: &Stage) -> Vec<Weight> {
    let all: BTreeSet<u32> = stage.pairs().flat_map(|pair| [pair.a.0, pair.b.0]).collect();
    all.into_iter().map(Weight).collect()
}

/// Reasons why the adapters of a stage cannot run.
pub fn missing(cx: &Device<'_>, p: &Program, stage: &Stage) -> Vec<String> {
    let mut missing = Vec::new();
    if has_adapters_of_heads(stage) {
        missing.push(ADAPTERS_OF_HEADS.to_owned());
    }
    let mut bytes = [0_u64; TYPES.len()];
    for w in matrices(stage) {
        let decl = p.weight_decl(w);
        let Some(ty) = TYPES.iter().position(|ty| ty.is(decl.ty)) else {
            missing.push(format!("adapters of {}", decl.ty.name()));
            continue;
        };
        let format = WeightFormat::of(decl.ty).expect("a type with kernels");
        let n_parts = upload::stretches(cx.gpu, format, decl.rows, decl.cols).count();
        bytes[ty] += format.packed_bytes(decl.rows, decl.cols).next_multiple_of(16);
        let most = cx.gpu.max_part_bytes;
        if bytes[ty] > most || n_parts > 1 {
            missing.push(format!("adapters of a stage in more than the {most} bytes of a buffer"));
        }
    }
    missing
}

/// Copies the matrices of each stage into one buffer per type.
pub fn join(
    gpu: &Gpu,
    p: &Program,
    all: &mut [DeviceWeight],
    id_of: impl Fn(Weight) -> usize,
) -> Result<(), BackendError> {
    for (_, stage) in &p.stages {
        for ty in TYPES {
            let of_type = matrices(stage).into_iter().filter(|w| p.weight_decl(*w).ty.is(ty));
            let ids: Vec<usize> = of_type.map(&id_of).collect();
            if !ids.is_empty() {
                upload::join(gpu, all, &ids)?;
            }
        }
    }
    Ok(())
}

/// Layers whose pairs share dispatches: those of all experts, or a single one. Each has the pairs of one of
/// them.
fn sets(stage: &Stage) -> Vec<Vec<&[Lora]>> {
    let pairs_of = |linear: &&'_ Linear| -> bool { !linear.lora.is_empty() };
    match stage {
        Stage::Embed(s) if !s.lora.is_empty() => vec![vec![&s.lora[..]]],
        Stage::Experts(s) => {
            let mut all = mixture::layers(s);
            all.push(vec![&s.router]);
            all.retain(|layers| layers.iter().any(pairs_of));
            all.into_iter()
                .map(|layers| layers.into_iter().map(|linear| &linear.lora[..]).collect())
                .collect()
        }
        _ => stage.linears().1.filter(pairs_of).map(|linear| vec![&linear.lora[..]]).collect(),
    }
}

/// Types of the first or second matrices of a set.
fn types_of(p: &Program, set: &[&[Lora]], half: Half) -> Vec<&'static dyn QuantType> {
    let all = || set.iter().copied().flatten().map(|pair| p.weight_decl(half.of(pair)).ty);
    TYPES.into_iter().filter(|ty| all().any(|other| other.is(*ty))).collect()
}

#[derive(Clone, Copy)]
enum Half {
    A,
    B,
}

impl Half {
    fn of(self, pair: &Lora) -> Weight {
        match self {
            Self::A => pair.a,
            Self::B => pair.b,
        }
    }
}

/// Sizes of the buffers that the adapters of all stages share, in bytes.
#[derive(Default)]
pub struct Sizes {
    /// Tables of all dispatches.
    pub tables: u64,
    /// Products of first matrices.
    pub first: u64,
    /// Inputs that are not quantised.
    pub inputs: u64,
    /// Products of `up`.
    pub up: u64,
}

impl Sizes {
    pub fn of(p: &Program) -> Self {
        let mut most = Self::default();
        let rank = rank(p);
        for (_, stage) in p.stages.iter().filter(|(_, stage)| stage.has_adapters()) {
            let (rows, linears) = stage.linears();
            let rows = match stage {
                Stage::Experts(s) => mixture::slots(p, s),
                Stage::Embed(_) => p.limits.rows,
                _ => p.max_rows(rows),
            };
            let first = rows.saturating_mul(p.adapters.len() * rank);
            most.first = most.first.max(4 * first as u64);
            for linear in linears.filter(|linear| !linear.lora.is_empty() && is_quantised(linear)) {
                let words = input::padded_rows(rows).saturating_mul(stride(p, linear));
                most.inputs = most.inputs.max(4 * words as u64);
            }
            let hidden = match stage {
                Stage::FfnIn(s) if s.gate.is_some() => p.buf_decl(s.h).cols,
                Stage::Experts(s) if s.experts[0].gate.is_some() => p.weight_decl(s.experts[0].up.w).rows,
                _ => 0,
            };
            most.up = most.up.max(4 * rows.saturating_mul(hidden) as u64);
            for set in sets(stage) {
                let n: usize = [Half::A, Half::B].map(|half| types_of(p, &set, half).len()).iter().sum();
                most.tables += (4 * ENTRY * n * set.len() * p.adapters.len()) as u64;
            }
        }
        most
    }
}

/// True if the input of a layer's adapters is not its own.
pub fn is_quantised(linear: &Linear) -> bool {
    linear.act != ActQuant::None
}

/// Floats per row of an adapter's input.
fn stride(p: &Program, linear: &Linear) -> usize {
    p.weight_decl(linear.w).cols.next_multiple_of(8)
}

/// Floats per product with a first matrix: the largest rank in whole chunks of every type.
fn rank(p: &Program) -> usize {
    let pairs = p.stages.iter().flat_map(|(_, stage)| stage.pairs());
    pairs.map(|pair| p.weight_decl(pair.b).cols).max().unwrap_or(0).next_multiple_of(16)
}

/// Rows that pairs are added to.
#[derive(Clone, Copy)]
pub enum Rows {
    /// In tiles.
    Tiles(RowsOf),
    /// Slots of experts, whose inputs may be rows of the step.
    Slots { n_used: usize, n_experts: usize, slots: usize, gathers: bool },
}

/// Output of a layer: `[rows, out_cols]`, starting at `out_at`.
#[derive(Clone, Copy)]
pub struct Out<'a> {
    pub buffer: &'a Buffer,
    pub cols: usize,
    pub at: usize,
}

/// Adds the products of the pairs of a set of layers to their outputs. All have inputs of the same length.
pub fn dispatches<'a>(
    cx: &Cx<'a>,
    layers: &[&'a Linear],
    x: &'a Buffer,
    rows: Rows,
    out: Out<'a>,
) -> Vec<Dispatch<'a>> {
    let set: Vec<&[Lora]> = layers.iter().map(|linear| &linear.lora[..]).collect();
    if set.iter().all(|pairs| pairs.is_empty()) {
        return Vec::new();
    }
    let x_stride = stride(cx.p, layers[0]) / 4;
    let factors = |pair: &Lora| pair.scale;
    let mut all = Vec::new();
    for ty in types_of(cx.p, &set, Half::A) {
        let (params, buffer) = params(cx, &set, Half::A, ty, (rows, x_stride, out), factors);
        let kernel = Kernel::LoraFirst { ty: ty.name(), experts: is_of_experts(rows) };
        let buffers = vec![buffer, &cx.memory.adapters.tables, x, &cx.memory.adapters.first];
        all.push(dispatch(cx, kernel, params, buffers, rank(cx.p), rows));
    }
    all.extend(second(cx, &set, rows, out));
    all
}

/// Adds the products of a token table's pairs to the embeddings.
pub fn of_tokens<'a>(cx: &Cx<'a>, pairs: &'a [Lora], out: Out<'a>) -> Vec<Dispatch<'a>> {
    if pairs.is_empty() {
        return Vec::new();
    }
    let (set, rows) = (vec![pairs], Rows::Tiles(RowsOf::Step));
    let mut all = Vec::new();
    for ty in types_of(cx.p, &set, Half::A) {
        let (params, buffer) = params(cx, &set, Half::A, ty, (rows, 0, out), |pair| pair.scale);
        let (kernel, memory) = (Kernel::LoraToken { ty: ty.name() }, cx.memory);
        let buffers = vec![buffer, &memory.adapters.tables, &memory.picks.newest, &memory.adapters.first];
        all.push(dispatch(cx, kernel, params, buffers, 1, rows));
    }
    all.extend(second(cx, &set, rows, out));
    all
}

fn second<'a>(cx: &Cx<'a>, set: &[&[Lora]], rows: Rows, out: Out<'a>) -> Vec<Dispatch<'a>> {
    let of_type = |ty: &'static dyn QuantType| {
        let (params, buffer) = params(cx, set, Half::B, ty, (rows, 0, out), |_| 1.0);
        let kernel = Kernel::LoraSecond { ty: ty.name(), experts: is_of_experts(rows) };
        let outputs = set.iter().copied().flatten().map(|pair| cx.p.weight_decl(pair.b).rows).max();
        let buffers = vec![buffer, &cx.memory.adapters.tables, &cx.memory.adapters.first, out.buffer];
        dispatch(cx, kernel, params, buffers, outputs.expect("a pair"), rows)
    };
    types_of(cx.p, set, Half::B).into_iter().map(of_type).collect()
}

fn is_of_experts(rows: Rows) -> bool {
    matches!(rows, Rows::Slots { .. })
}

/// Parameters of a dispatch, whose table this appends to all tables, and the buffer of its matrices.
fn params<'a>(
    cx: &Cx<'a>,
    set: &[&[Lora]],
    half: Half,
    ty: &'static dyn QuantType,
    (rows, stride, out): (Rows, usize, Out<'_>),
    factor: impl Fn(&Lora) -> f32,
) -> (Vec<u32>, &'a Buffer) {
    let n_adapters = cx.p.adapters.len();
    let mut tables = cx.tables.borrow_mut();
    let at = tables.len() / ENTRY;
    tables.resize(ENTRY * (at + set.len() * n_adapters), 0);
    let mut buffer: Option<&Buffer> = None;
    for (expert, pairs) in set.iter().enumerate() {
        for pair in *pairs {
            // `factor` reads the scale.
            let Lora { adapter, a: _, b: _, scale: _ } = *pair;
            let w = &cx.weights[half.of(pair).0 as usize];
            if !w.ty.is(ty) {
                continue;
            }
            let [part] = &*w.parts else { unreachable!("the plan rejects it") };
            let [rows, _, chunks, _] = w.params(part);
            let entry = [(part.at / 16) as u32, rows, chunks, factor(pair).to_bits()];
            let to = ENTRY * (at + expert * n_adapters + adapter as usize);
            tables[to..to + ENTRY].copy_from_slice(&entry);
            assert!(buffer.is_none_or(|buffer| *buffer == part.buffer), "a stage's matrices are joined");
            buffer = Some(&part.buffer);
        }
    }
    let of_outputs = matches!(rows, Rows::Tiles(RowsOf::Outputs));
    let mut params: Vec<u32> =
        [n_adapters, at, rank(cx.p), usize::from(of_outputs), stride, out.cols, out.at, 0]
            .map(|n| n as u32)
            .to_vec();
    if let Rows::Slots { n_used, n_experts, slots, gathers } = rows {
        params.extend([n_experts, n_used, slots, usize::from(gathers)].map(|n| n as u32));
    }
    (params, buffer.expect("a matrix of this type"))
}

fn dispatch<'a>(
    cx: &Cx<'a>,
    kernel: Kernel,
    params: Vec<u32>,
    buffers: Vec<&'a Buffer>,
    x: usize,
    rows: Rows,
) -> Dispatch<'a> {
    let (routes, grid) = match rows {
        Rows::Tiles(rows) => (None, Grid::Adapted { x: x as u32, rows }),
        Rows::Slots { n_used, .. } => {
            (Some(&cx.memory.routes), Grid::Slots { x: x as u32, each: n_used as u32 })
        }
    };
    let buffers = [&cx.memory.step.buffer].into_iter().chain(buffers).chain(routes).collect();
    Dispatch { kernels: vec![(usize::MAX, kernel)], params, buffers, grid }
}

/// The last step of products, for [`activate`].
pub enum Finish<'a> {
    /// Applies an activation function, in a layer's parameters.
    Act(u32),
    /// Likewise, and multiplies by the products of `up`, with its epilogue.
    Gate { act: u32, up: &'a Buffer, times: u32 },
    /// Applies a soft cap.
    Cap(f32),
}

/// Finishes rows of products, `cols` elements each.
pub fn activate<'a>(
    cx: &Cx<'a>,
    h: &'a Buffer,
    (cols, rows): (usize, RowsOf),
    finish: Finish<'a>,
) -> Dispatch<'a> {
    let (kernel, up, [what, times]) = match finish {
        Finish::Act(act) => ("act", None, [act, 0]),
        Finish::Gate { act, up, times } => ("gate", Some(up), [act, times]),
        Finish::Cap(cap) => ("cap", None, [cap.to_bits(), 0]),
    };
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::Activate(kernel))],
        params: vec![cols as u32, what, times, 0],
        buffers: [&cx.memory.step.buffer].into_iter().chain(up).chain([h]).collect(),
        grid: Grid::Rows { x: cols as u32, rows },
    }
}
