//! What the stages with linear layers share: their kernels, their input, and the geometry of their launches.

use super::driver::{Address, Launch};
use super::params::{
    InputParams, LINEAR_HEADER_BYTES, LINEAR_ROWS, LINEAR_THREADS, LinearParams, LogitsParams,
    MMA_HALVES_SHARED_BYTES, MMA_ROWS, NORM_LAYER, NORM_NONE, NORM_RMS, NORM_SHARED_COLS, NormParams,
};
use super::weight::{Mma, Products};
use super::{Cx, occupancy, words};
use crate::program::{ActQuant, Buf, Linear, Norm, NormKind, Program, RowsOf, Weight};

/// How layers of one input multiply, where one kernel has all of them.
pub fn together(p: &Program, linears: &[&Linear]) -> Option<Products> {
    let products = |linear: &Linear| Products::of(p.weight_decl(linear.w).ty, linear.act);
    let first = products(linears[0])?;
    let equal =
        |linear: &&Linear| linear.act == linears[0].act && products(linear).is_some_and(|p| p == first);
    Some(first).filter(|first| !first.floats && linears.iter().all(equal))
}

/// The kernels of a stage over layers that share one input: its own where one has all of them, else those of
/// each layer's products.
///
/// # Errors
/// What is missing, for people to read.
pub fn kernels(p: &Program, stage: &str, linears: &[&Linear]) -> Result<Vec<String>, String> {
    let names = |stage: &str, products: Products| {
        let mma = products.mma().map(|_| MMA);
        ["", ROWS].into_iter().chain(mma).map(|kind| products.kernel(stage, kind)).collect::<Vec<_>>()
    };
    if linears.iter().any(|linear| linear.act == ActQuant::I8PerBlock) {
        return Err(format!("{stage} of inputs that are rounded by block"));
    }
    if let Some(products) = together(p, linears) {
        return Ok(names(stage, products));
    }
    let of_layer = |linear: &&Linear| {
        let ty = p.weight_decl(linear.w).ty;
        let products = Products::of(ty, linear.act).ok_or_else(|| format!("{stage}__{}", ty.name()))?;
        Ok(names("logits", products))
    };
    let all: Vec<_> = linears.iter().map(of_layer).collect::<Result<_, String>>()?;
    Ok(all.concat())
}

/// Bytes of shared memory for `rows` rows of activations at a time.
pub fn shared_bytes(products: Products, cols: usize, rows: usize) -> usize {
    (LINEAR_HEADER_BYTES as usize + rows * products.act_bytes(cols)).next_multiple_of(16)
}

/// Bytes of shared memory for the norm's weights in a kernel for single rows.
fn norm_bytes(input: &Input<'_>, cols: usize, suffix: &str) -> usize {
    let shares = input.norm.is_some() && suffix.is_empty() && cols <= NORM_SHARED_COLS as usize;
    if shares { (LINEAR_HEADER_BYTES as usize + 4 * cols).next_multiple_of(16) } else { 0 }
}

/// The input of a stage's layers.
pub struct Input<'a> {
    /// Where it comes from.
    pub x: Buf,
    /// What is done to it.
    pub norm: Option<&'a Norm>,
    /// Which rows it has.
    pub rows: RowsOf,
}

/// How a stage's rows of weights are handed to warps.
#[derive(Clone, Copy)]
pub struct Work {
    /// Rows of weights, of all layers.
    pub rows: usize,
    /// Whether two of them must meet in one warp.
    pub paired: bool,
}

/// The launch of a linear stage; `params` makes its parameters.
pub fn launch<T: bytemuck::Pod>(
    cx: &Cx<'_>,
    stage: &str,
    linear: &Linear,
    input: &Input<'_>,
    work: Work,
    params: impl FnOnce(InputParams) -> T,
) -> Launch {
    let w = &cx.weights[linear.w.0 as usize];
    let products = Products::of(w.ty, linear.act).expect("it was uploaded");
    let rows = match input.rows {
        RowsOf::Step => cx.shape.rows,
        RowsOf::Outputs => cx.shape.outputs,
    };
    let room = cx.limits.shared_bytes as usize;
    let Kind { suffix, tile_rows, lanes_log2 } = kind(cx, products, w.cols, rows, work);
    let warps = LINEAR_THREADS as usize / 32;
    let slots = 32 >> lanes_log2;
    // On tensor cores a warp has two sets of rows at a time, and tiles of the step share the card.
    let (tiles, sets) = if suffix == MMA { (rows.div_ceil(tile_rows), 2) } else { (1, 1) };
    let shared = match products.mma() {
        Some(Mma::Halves) if suffix == MMA => MMA_HALVES_SHARED_BYTES as usize,
        _ => shared_bytes(products, w.cols, tile_rows).max(norm_bytes(input, w.cols, suffix)),
    };
    let units = work.rows.div_ceil(slots * sets);
    let multiprocessors = cx.limits.multiprocessors as usize;
    // Kernels have registers for two blocks a multiprocessor, shared memory may leave room for one.
    let resident = multiprocessors * occupancy::by_shared(cx.limits, shared as u32).clamp(1, 2) as usize;
    let blocks = if suffix == MMA {
        units.div_ceil(warps).clamp(1, resident.div_ceil(tiles))
    } else {
        // Units go to blocks in turn: one block a multiprocessor where its warps are enough for all of them.
        units.clamp(1, if units <= multiprocessors * warps { multiprocessors } else { resident })
    };
    assert!(shared <= room, "{stage}: {shared} bytes of shared memory, there are {room}");
    let params = params(InputParams {
        x: cx.memory.bufs[input.x.0 as usize],
        norm: norm(cx, input.norm),
        cols: w.cols as u32,
        int8: u32::from(linear.act == ActQuant::I8PerToken),
        of_outputs: u32::from(input.rows == RowsOf::Outputs),
        lanes_log2,
        tile_rows: tile_rows as u32,
        row_bytes: products.act_bytes(w.cols) as u32,
    });
    Launch {
        kernel: cx.kernel(&products.kernel(stage, suffix)),
        grid: [blocks as u32, tiles as u32, 1],
        threads: LINEAR_THREADS,
        shared_bytes: shared as u32,
        cooperative: false,
        params: words(&params),
    }
}

/// The launch of one layer by itself, which writes rows of its outputs at `to`: what `logits` computes, of
/// the rows of the input.
pub fn product(cx: &Cx<'_>, layer: &Linear, input: &Input<'_>, to: Address) -> Launch {
    let w = linear(cx, layer);
    let work = Work { rows: w.rows as usize, paired: false };
    launch(cx, "logits", layer, input, work, |in_| LogitsParams { step: cx.tables(), in_, w, logits: to })
}

/// The kernels for several rows, and those on tensor cores.
const ROWS: &str = "__rows";
const MMA: &str = "__mma";

/// Rows from which these are worth it.
const MMA_LEAST: usize = 2 * LINEAR_ROWS as usize;

/// Which of a stage's kernels multiplies, and how.
struct Kind {
    suffix: &'static str,
    /// Rows that a block has in shared memory at a time.
    tile_rows: usize,
    lanes_log2: u32,
}

fn kind(cx: &Cx<'_>, products: Products, cols: usize, rows: usize, work: Work) -> Kind {
    let fits = |rows: usize| shared_bytes(products, cols, rows) <= cx.limits.shared_bytes as usize;
    let lanes_log2 = lanes_log2(cx, products.chunks(cols), work);
    let eight = LINEAR_ROWS as usize;
    let mma_rows = products.mma().and_then(|mma| match mma {
        Mma::Ints => (1..=MMA_ROWS as usize / eight).map(|n| n * eight).rev().find(|rows| fits(*rows)),
        Mma::Halves => Some(MMA_ROWS as usize),
    });
    match mma_rows {
        Some(tile_rows) if rows >= MMA_LEAST => Kind { suffix: MMA, tile_rows, lanes_log2: 1 },
        _ if rows > 1 && fits(eight) => Kind { suffix: ROWS, tile_rows: eight, lanes_log2 },
        _ => Kind { suffix: "", tile_rows: 1, lanes_log2 },
    }
}

/// Lanes that share a row: 8, which read one cache line of it at a time; more where rows are long, or so few
/// that there would be less than four warps a multiprocessor.
fn lanes_log2(cx: &Cx<'_>, chunks: usize, work: Work) -> u32 {
    let most = if work.paired { 4 } else { 5 };
    let enough = |lanes: usize| {
        let warps = work.rows * lanes / 32;
        chunks <= 8 * lanes && (warps >= 4 * cx.limits.multiprocessors as usize || chunks <= lanes)
    };
    (3..most).find(|log2| enough(1 << log2)).unwrap_or(most)
}

/// A layer's parameters.
pub fn linear(cx: &Cx<'_>, linear: &Linear) -> LinearParams {
    let bias = linear.bias.map(|bias| vector(cx, bias));
    let w = &cx.weights[linear.w.0 as usize];
    let floats = Products::of(w.ty, linear.act).expect("it was uploaded").floats;
    // Products of floats have no other place for it.
    w.params(if floats { linear.scale * w.tensor_scale } else { linear.scale }, bias)
}

fn vector(cx: &Cx<'_>, w: Weight) -> Address {
    cx.weights[w.0 as usize].data
}

/// A norm's parameters.
pub fn norm(cx: &Cx<'_>, norm: Option<&Norm>) -> NormParams {
    let Some(norm) = norm else { return NormParams { weight: 0, bias: 0, eps: 0.0, kind: NORM_NONE } };
    NormParams {
        weight: vector(cx, norm.weight),
        bias: norm.bias.map_or(0, |bias| vector(cx, bias)),
        eps: norm.eps,
        kind: match norm.kind {
            NormKind::Rms => NORM_RMS,
            NormKind::Layer => NORM_LAYER,
        },
    }
}
