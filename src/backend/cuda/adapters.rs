//! LoRA adapters: two launches after the product of a layer add those of its pairs, for the rows of the step
//! that use adapters. A stage with pairs is lowered once more for steps with such rows: its products are then
//! stored before any activation function.
//!
//! Layers with one input share the launches, whatever the ranks and types of their pairs: kernels look up the
//! pairs of an adapter in the stage's table. In a mixture of experts, so do the layers of all experts.

use super::adapter_tables::{kind, rank};
use super::cx::{Cx, Place, words};
use super::driver::{Address, Launch, Limits};
use super::input::{self, Input};
use super::kernel_name::KernelName;
use super::mixture::LAYERS;
use super::op::{Op, Ops};
use super::params::{
    LINEAR_HEADER_BYTES, LORA_LAYERS, LORA_RANKS, LORA_ROWS, LORA_THREADS, LoraNormParams, LoraParams,
};
use crate::device::adapters::TILE;
use sterna_program::{Embed, Expert, Experts, Linear, Lora, Norm, Program, RowsOf};

const NORM: KernelName = KernelName::single("lora_norm");
const FIRST: KernelName = KernelName::single("lora_first");
const SECOND: KernelName = KernelName::single("lora_second");
const OF_TOKENS: KernelName = KernelName::single("lora_embed");

/// The kernels of adapters.
pub const KERNELS: [KernelName; 4] = [NORM, FIRST, SECOND, OF_TOKENS];

const _: () = assert!(TILE == LORA_ROWS as usize);

/// The kernels of pairs, and of the norms before them.
///
/// # Errors
/// The missing feature, for a message.
fn kernels<'l>(
    p: &Program,
    linears: impl IntoIterator<Item = &'l Linear>,
    norm: Option<&Norm>,
) -> Result<Vec<KernelName>, String> {
    let mut names = vec![FIRST, SECOND];
    for linear in linears.into_iter().filter(|linear| !linear.lora.is_empty()) {
        check_types(p, &linear.lora)?;
        names.extend((norm.is_some() || linear.norm.is_some()).then_some(NORM));
    }
    Ok(names)
}

fn check_types(p: &Program, pairs: &[Lora]) -> Result<(), String> {
    let mut types = pairs.iter().flat_map(|pair| [pair.a, pair.b]).map(|w| p.weight_decl(w).ty);
    match types.find(|ty| kind(*ty).is_none()) {
        Some(ty) => Err(format!("adapters of {}", ty.name())),
        None => Ok(()),
    }
}

/// Rows that pairs are added to.
#[derive(Clone, Copy)]
enum Rows {
    /// In tiles.
    Tiles(RowsOf),
    /// Slots of experts, whose inputs may be rows of the step. An expert's layers have as many pairs in the
    /// table.
    Slots { n_used: usize, of_step: bool, of_expert: usize },
}

/// A layer of a launch.
struct Layer {
    /// Its place among those of the stage.
    at: usize,
    outputs: usize,
    rank: usize,
    out: Address,
}

/// Most tiles of a step of `rows` rows: those of a list of adapters are full but one.
fn most_tiles(cx: &Cx<'_>, rows: usize) -> usize {
    rows.min(rows / TILE + cx.p.limits.seqs)
}

/// Launches of some of the kernels over up to [`LORA_LAYERS`] layers with the same input.
fn launches(
    cx: &Cx<'_>,
    layers: &[Layer],
    (x, cols): (Address, usize),
    rows: Rows,
    kernels: &[KernelName],
) -> Vec<Launch> {
    let n_adapters = cx.p.adapters.len();
    let outputs = matches!(rows, Rows::Tiles(RowsOf::Outputs));
    let [n_tiles, tiles] = cx.memory.step.adapter_tiles(outputs);
    let (n_rows, choices, n_used, of_step, of_expert) = match rows {
        Rows::Tiles(RowsOf::Step) => (most_tiles(cx, cx.shape.rows), 0, 0, false, 0),
        Rows::Tiles(RowsOf::Outputs) => (most_tiles(cx, cx.shape.outputs), 0, 0, false, 0),
        Rows::Slots { n_used, of_step, of_expert } => {
            (cx.shape.rows * n_used, cx.memory.mixture.choices, n_used, of_step, of_expert)
        }
    };
    let rank = layers.iter().map(|layer| layer.rank).max().unwrap_or(0);
    let most = layers.iter().map(|layer| layer.outputs).max().unwrap_or(0);
    let mut params = LoraParams {
        step: cx.tables(),
        seqs: cx.memory.step.adapters(),
        n_tiles,
        tiles,
        choices,
        pairs: cx.memory.adapters.tables[cx.stage],
        picked: cx.memory.picks.newest(),
        x,
        first: cx.memory.adapters.first,
        out: [0; LORA_LAYERS as usize],
        pairs_at: [0; LORA_LAYERS as usize],
        outputs: [0; LORA_LAYERS as usize],
        cols: cols as u32,
        n_adapters: n_adapters as u32,
        rank: rank as u32,
        n_layers: layers.len() as u32,
        n_used: n_used as u32,
        of_expert: (of_expert * n_adapters) as u32,
        of_outputs: u32::from(outputs),
        of_step: u32::from(of_step),
    };
    for (i, layer) in layers.iter().enumerate() {
        (params.out[i], params.outputs[i]) = (layer.out, layer.outputs as u32);
        params.pairs_at[i] = (layer.at * n_adapters) as u32;
    }
    let launch = |name: &KernelName| {
        let shares =
            if *name == FIRST { rank / LORA_RANKS as usize } else { most.div_ceil(LORA_THREADS as usize) };
        Launch {
            kernel: cx.kernel(*name),
            grid: [n_rows as u32, shares as u32, layers.len() as u32],
            threads: LORA_THREADS,
            shared_bytes: 0,
            params: words(&params),
        }
    };
    kernels.iter().map(launch).collect()
}

/// Adds the products of the pairs of layers with one input to their outputs.
pub struct Adapters<'a> {
    /// The layers that have pairs, each with the location of its output.
    layers: Vec<(&'a Linear, Place)>,
    input: Input<'a>,
    /// Location of the rows that the input's norm reads, if not its buffer.
    from: Option<Place>,
}

/// The operation for those of some layers that have pairs, if there are any.
pub fn lower<'a>(layers: Vec<(&'a Linear, Place)>, input: Input<'a>) -> Ops<'a> {
    lower_from(layers, input, None)
}

/// The same for layers whose input is in another location than its buffer.
pub fn lower_from<'a>(layers: Vec<(&'a Linear, Place)>, input: Input<'a>, from: Option<Place>) -> Ops<'a> {
    let layers: Vec<_> = layers.into_iter().filter(|(linear, _)| !linear.lora.is_empty()).collect();
    if layers.is_empty() { Vec::new() } else { vec![Box::new(Adapters { layers, input, from })] }
}

/// Place of a layer among those of the stage.
fn place(cx: &Cx<'_>, linear: &Linear) -> usize {
    let mut all = cx.p.stages[cx.stage].1.linears().1;
    all.position(|other| std::ptr::eq(other, linear)).expect("a layer of this stage")
}

impl Op for Adapters<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        kernels(p, self.layers.iter().map(|(linear, _)| *linear), self.input.norm)
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { layers, input, from } = self;
        let own_norm = |linear: &Linear| linear.norm.as_ref().map(|norm| norm.weight);
        let (mut all, mut left) = (Vec::new(), layers.clone());
        while let Some((first, _)) = left.first().copied() {
            // Layers with the same norm, or without one, share an input.
            let of_input: Vec<_> =
                left.extract_if(.., |(linear, _)| own_norm(linear) == own_norm(first)).collect();
            let x = cx.address(from.unwrap_or(Place::Buf(input.x)));
            let (norms, x) = normalised(cx, x, input, first);
            all.extend(norms);
            for layers in of_input.chunks(LORA_LAYERS as usize) {
                let layer = |(linear, out): &(&Linear, Place)| Layer {
                    at: place(cx, linear),
                    outputs: cx.p.weight_decl(linear.w).rows,
                    rank: rank(cx.p, &linear.lora),
                    out: cx.address(*out),
                };
                let layers: Vec<Layer> = layers.iter().map(layer).collect();
                all.extend(launches(cx, &layers, x, Rows::Tiles(input.rows), &[FIRST, SECOND]));
            }
        }
        all
    }
}

/// Normalises the rows that use adapters, of `cols` elements each, and writes them to another address.
fn normalise(cx: &Cx<'_>, norm: &Norm, [x, to]: [Address; 2], cols: usize, rows: RowsOf) -> Launch {
    let of_outputs = rows == RowsOf::Outputs;
    let n_rows = if of_outputs { cx.shape.outputs } else { cx.shape.rows };
    let [n_tiles, tiles] = cx.memory.step.adapter_tiles(of_outputs);
    let params = LoraNormParams {
        step: cx.tables(),
        norm: input::norm(cx, Some(norm)),
        n_tiles,
        tiles,
        x,
        to,
        cols: cols as u32,
        of_outputs: u32::from(of_outputs),
    };
    Launch {
        kernel: cx.kernel(NORM),
        grid: [most_tiles(cx, n_rows) as u32, LORA_ROWS, 1],
        threads: LORA_THREADS,
        shared_bytes: LINEAR_HEADER_BYTES,
        params: words(&params),
    }
}

/// The launches that normalise the input of a layer, which is at `x`, and where it is then, with its number
/// of columns.
fn normalised(
    cx: &Cx<'_>,
    mut x: Address,
    input: &Input<'_>,
    linear: &Linear,
) -> (Vec<Launch>, (Address, usize)) {
    let cols = cx.p.weight_decl(linear.w).cols;
    let norms = input.norm.into_iter().chain(&linear.norm);
    let launch = |(norm, to): (&Norm, Address)| {
        let from = std::mem::replace(&mut x, to);
        normalise(cx, norm, [from, to], cols, input.rows)
    };
    let launches = norms.zip(cx.memory.adapters.inputs).map(launch).collect();
    (launches, (x, cols))
}

/// Adds the products of a token table's pairs to the embeddings.
pub struct OfTokens<'a>(pub &'a Embed);

impl Op for OfTokens<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        check_types(p, &self.0.lora)?;
        Ok(vec![OF_TOKENS])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let outputs = cx.p.buf_decl(self.0.x).cols;
        let layer = Layer { at: 0, outputs, rank: 0, out: cx.buf(self.0.x) };
        launches(cx, &[layer], (0, 0), Rows::Tiles(RowsOf::Step), &[OF_TOKENS])
    }
}

/// The kernels of the experts' pairs.
///
/// # Errors
/// The missing feature, for a message.
pub fn kernels_of_experts(p: &Program, s: &Experts) -> Result<Vec<KernelName>, String> {
    kernels(p, s.experts.iter().flat_map(Expert::layers), input_of(s).norm)
}

/// Adds the products of the pairs of some layers of all experts, numbered as in [`LAYERS`] and each with its
/// output, for the slots of the step: to `[places, outputs]`. `x` are rows of the step, or of places.
pub fn of_slots(
    cx: &Cx<'_>,
    s: &Experts,
    layers: &[(usize, Address)],
    x: Address,
    of_step: bool,
) -> Vec<Launch> {
    let of_first = |layer: usize| LAYERS[layer](&s.experts[0]);
    let layer = |&(layer, out): &(usize, Address)| Layer {
        at: place(cx, of_first(layer)),
        outputs: cx.p.weight_decl(of_first(layer).w).rows,
        rank: rank(cx.p, s.experts.iter().flat_map(|expert| &LAYERS[layer](expert).lora)),
        out,
    };
    let cols = cx.p.weight_decl(of_first(layers[0].0).w).cols;
    let rows = Rows::Slots { n_used: s.n_used, of_step, of_expert: s.experts[0].layers().count() };
    let layers: Vec<Layer> = layers.iter().map(layer).collect();
    launches(cx, &layers, (x, cols), rows, &[FIRST, SECOND])
}

/// The launches that normalise the experts' input for their pairs, and where it is then.
pub fn input_of_experts(cx: &Cx<'_>, s: &Experts) -> (Vec<Launch>, Address) {
    let input = input_of(s);
    let (launches, (x, _)) = normalised(cx, cx.buf(input.x), &input, &s.experts[0].up);
    (launches, x)
}

/// The experts' input, which is not normalised if it is a latent vector.
fn input_of(s: &Experts) -> Input<'_> {
    let norm = s.input.is_none().then_some(&s.norm);
    Input { x: s.input.unwrap_or(s.x), norm, rows: RowsOf::Step }
}
