//! Code shared by the stages with linear layers: their kernels, their input, and the geometry of their
//! launches. Integer products on tensor cores take two launches: one that normalises and quantises the step's
//! rows, one block per row, and the products.

pub mod geometry;

use super::alloc::Allocator;
use super::cx::{Cx, words};
use super::driver::{Address, Launch, Limits};
pub use super::input::{Input, norm};
use super::occupancy;
use super::params::{
    BlockQuant, InputParams, LINEAR_ROWS, LINEAR_THREADS, LinearParams, LogitsParams, MMA_CODES_ROWS,
    MMA_CODES_SHARED_BYTES, MMA_FEW_SHARED_BYTES, MMA_HALVES_SHARED_BYTES, MMA_INTS_COLS,
    MMA_INTS_SHARED_BYTES, MMA_ROWS, NextWeights, ROUND_BLOCKS, ROUND_BLOCKS_COLS, ROUND_NONE, ROUND_ROWS,
    RoundParams, RoundedParams, RowQuant,
};
use super::turn;
use super::weight::{self, FEW, Mma, NO_LINEAR, Products, layer_params};
use crate::{BackendError, Macs};
use geometry::{Work, lanes_log2, norm_bytes, norm_bytes_up_to, part, tiles_of_ints};
use sterna_program::{ActQuant, Linear, Program, RowsOf, Stage};

/// The kind of product of layers with one input, if one kernel can compute them all.
pub fn together(p: &Program, linears: &[&Linear]) -> Option<Products> {
    let products = |linear: &Linear| Products::of(p.weight_decl(linear.w).ty, linear.act);
    let first = products(linears[0])?;
    let equal = |linear: &&Linear| {
        linear.prepared() == linears[0].prepared() && products(linear).is_some_and(|p| p == first)
    };
    Some(first).filter(|first| !first.floats && linears.iter().all(equal))
}

/// The kernels of a stage over layers that share one input: its own if one kernel computes them all,
/// otherwise those of each layer's products.
///
/// # Errors
/// The missing kernel or feature, for a message.
pub fn kernels(p: &Program, stage: &str, linears: &[&Linear]) -> Result<Vec<String>, String> {
    let names = |stage: &str, products: Products| {
        let mma = products.mma;
        let rows = Some(ROWS).filter(|_| !matches!(mma, Some(Mma::Ints | Mma::Codes)));
        let on_tensor_cores = mma.iter().flat_map(|mma| mma.kinds()).copied();
        let kinds = [products.single()].into_iter().chain(rows).chain(on_tensor_cores);
        kinds.map(|kind| products.kernel(stage, kind)).chain(products.round()).collect::<Vec<_>>()
    };
    let prepares: Result<Vec<_>, _> = linears.iter().map(|linear| turn::kernel(p, linear)).collect();
    let prepares: Vec<String> = prepares?.into_iter().flatten().collect();
    if let Some(products) = together(p, linears) {
        return Ok([names(stage, products), prepares].concat());
    }
    let of_layer = |linear: &&Linear| {
        let ty = p.weight_decl(linear.w).ty;
        let products = Products::of(ty, linear.act).ok_or_else(|| format!("{stage}__{}", ty.name()))?;
        Ok(names("logits", products))
    };
    let all: Vec<_> = linears.iter().map(of_layer).collect::<Result<_, String>>()?;
    Ok([all.concat(), prepares].concat())
}

/// The launches of a linear stage; `params` builds the parameters of the last one.
pub fn launches<T: bytemuck::Pod>(
    cx: &Cx<'_>,
    stage: &str,
    linear: &Linear,
    input: &Input<'_>,
    work: Work,
    params: impl FnOnce(InputParams) -> T,
) -> Vec<Launch> {
    let w = &cx.weights[linear.w.0 as usize];
    let products = Products::of(w.ty, linear.act).expect("it was uploaded");
    let rows = match input.rows {
        RowsOf::Step => cx.shape.rows,
        RowsOf::Outputs => cx.shape.outputs,
    };
    let prepare = linear.prepares_input(input.norm.is_some()).then(|| {
        let norm = input.norm.or(linear.norm.as_ref());
        turn::launch(cx, linear.basis, &Input { norm, ..*input })
    });
    let (x, in_norm) = match (&prepare, linear.basis) {
        (Some(_), Some(_)) => (cx.memory.bases.prepared, None),
        (Some(_), None) => (cx.memory.bases.prepared, linear.norm.as_ref()),
        (None, _) => (cx.memory.bufs[input.x.0 as usize], input.norm.or(linear.norm.as_ref())),
    };
    let Kind { suffix, tile_rows, lanes_log2 } = kind(cx, products, w.cols, rows, work);
    let on_tensor_cores = products.mma.filter(|mma| mma.kinds().contains(&suffix));
    let part = |rows: usize| part(products, cx.limits, w.cols, rows).expect("the plan rejects it first");
    let single = || part(1).shared_bytes.max(in_norm.map_or(0, |_| norm_bytes(w.cols)));
    let of_block = part(if suffix == ROWS { tile_rows } else { 1 });
    let shared = match on_tensor_cores {
        Some(Mma::Codes) if suffix == FEW => MMA_FEW_SHARED_BYTES as usize,
        Some(Mma::Codes) => MMA_CODES_SHARED_BYTES as usize,
        Some(Mma::Halves) => MMA_HALVES_SHARED_BYTES as usize,
        Some(Mma::Ints | Mma::IntBlocks) => MMA_INTS_SHARED_BYTES as usize,
        None if suffix == ROWS => of_block.shared_bytes,
        None => single(),
    };
    let room = cx.limits.shared_bytes as usize;
    assert!(shared <= room, "{stage}: {shared} bytes of shared memory, but the GPU has {room}");
    let units = work.rows.div_ceil(32 >> lanes_log2);
    let multiprocessors = cx.limits.multiprocessors as usize;
    let mut warps = LINEAR_THREADS as usize / 32;
    if on_tensor_cores == Some(Mma::Codes) && suffix != FEW {
        // If tiles leave multiprocessors idle, each tile has only half as many rows of weights.
        let tiles = units.div_ceil(warps) * rows.div_ceil(tile_rows);
        warps /= if tiles < multiprocessors { 2 } else { 1 };
    }
    // Kernels have registers for two blocks per multiprocessor; shared memory may allow only one.
    let resident = multiprocessors * occupancy::by_shared(cx.limits, shared as u32).clamp(1, 2) as usize;
    let (blocks, tiles) = match on_tensor_cores {
        Some(Mma::Halves) => {
            // A warp has two sets of rows at a time, and tiles of the step share the GPU.
            let tiles = rows.div_ceil(tile_rows);
            (units.div_ceil(2 * warps).clamp(1, resident.div_ceil(tiles)), tiles)
        }
        Some(Mma::Codes) if suffix == FEW => (units.min(resident), 1),
        Some(Mma::Codes) => ((units.div_ceil(warps) * rows.div_ceil(tile_rows)).min(resident), 1),
        Some(mma @ (Mma::Ints | Mma::IntBlocks)) => {
            // Blocks have equal shares of all spans of columns, or of all tiles if these are not split.
            let tiles = tiles_of_ints(work.rows, rows);
            let spans = if mma == Mma::Ints { w.cols.div_ceil(MMA_INTS_COLS as usize) } else { 1 };
            let shares = tiles * spans;
            let full = if shares < resident { multiprocessors } else { resident };
            (shares.min(full), 1)
        }
        // Units are dealt to blocks round robin: one block per multiprocessor if its warps suffice for all
        // units. Several waves of blocks are only needed for the sums that each block keeps from part to
        // part.
        None => {
            let wave = if units <= multiprocessors * warps { multiprocessors } else { resident };
            let least = units.div_ceil(warps.saturating_mul(of_block.units));
            (units.clamp(1, least.max(1).next_multiple_of(wave)), 1)
        }
    };
    let input_params = InputParams {
        x,
        norm: norm(cx, in_norm),
        cols: w.cols as u32,
        rounding: rounding(linear.act),
        of_outputs: u32::from(input.rows == RowsOf::Outputs),
        rounded: cx.memory.rounded,
        lanes_log2,
        row_bytes: products.rounded_bytes(w.cols) as u32,
        part_chunks: of_block.chunks as u32,
    };
    let of = |kernel: String, grid: [usize; 2], threads: u32, shared: usize, params: Vec<u64>| Launch {
        kernel: cx.kernel(&kernel),
        grid: [grid[0] as u32, grid[1] as u32, 1],
        threads,
        shared_bytes: shared as u32,
        params,
    };
    let round = products.round().filter(|_| on_tensor_cores.is_some()).map(|kernel| {
        // Meanwhile the weights of the products are prefetched into the GPU's cache.
        let bytes = w.ty.row_bytes(w.cols).expect("it was uploaded") * w.rows;
        let next = NextWeights { data: w.data, bytes: (bytes as u64).min(cx.limits.prefetch_bytes) };
        let step = cx.memory.step.tables(next);
        let chunks = products.chunks(w.cols) as u32;
        let params = RoundParams { step, in_: input_params, chunks, reserved: 0 };
        let shared = match on_tensor_cores {
            Some(Mma::Codes) => norm_bytes_up_to(in_norm.map_or(0, |_| ROUND_BLOCKS_COLS), w.cols),
            _ => single(),
        };
        of(kernel, [rows, 1], LINEAR_THREADS, shared, words(&params))
    });
    let params = words(&params(input_params));
    let products = of(products.kernel(stage, suffix), [blocks, tiles], 32 * warps as u32, shared, params);
    prepare.into_iter().chain(round).chain([products]).collect()
}

/// Multiply-adds per row of a large batch, by the arithmetic that [`launches`] and the experts use for them.
pub fn macs(p: &Program) -> Macs {
    let mut all = Macs::default();
    for (_, stage) in &p.stages {
        let (RowsOf::Step, linears) = stage.linears() else { continue };
        let is_ternary = |mma| matches!(mma, Mma::Ints | Mma::IntBlocks);
        for (i, linear) in linears.enumerate() {
            let w = p.weight_decl(linear.w);
            let of_expert = matches!(stage, Stage::Experts(_)) && i > 0;
            let share = match stage {
                Stage::Experts(s) if of_expert => s.n_used as f64 / s.experts.len() as f64,
                _ => 1.0,
            };
            let macs = ((w.rows * w.cols) as f64 * share) as u64;
            let mma = Products::of(w.ty, linear.act).and_then(|products| products.mma);
            // Tiles of experts multiply codes as halves, and ternary weights without tensor cores.
            match mma.filter(|mma| !(of_expert && is_ternary(*mma))) {
                Some(Mma::Ints | Mma::IntBlocks) => all.int8 += macs,
                Some(Mma::Codes) if !of_expert => all.int8_blocks += macs,
                Some(Mma::Codes | Mma::Halves) => all.two_halves += macs,
                None => all.float += macs,
            }
        }
    }
    all
}

/// Buffers between the launches of integer products on tensor cores, for the largest step of a program.
pub fn rounded<A: Allocator + ?Sized>(
    on: &mut A,
    p: &Program,
    limits: Limits,
) -> Result<RoundedParams, BackendError> {
    // Whole tiles of rows are copied to shared memory.
    let rows = p.limits.rows.next_multiple_of(MMA_CODES_ROWS.max(MMA_ROWS) as usize);
    let (mut row_bytes, mut row_blocks, mut tiles) = (0, 0, 0);
    for (_, stage) in &p.stages {
        let mut linears: Vec<_> = stage.linears().1.collect();
        if matches!(stage, Stage::Experts(_)) {
            // Only the router uses them.
            linears.truncate(1);
        }
        let of_weights: usize = linears.iter().map(|linear| p.weight_decl(linear.w).rows).sum();
        for linear in linears {
            let w = p.weight_decl(linear.w);
            let Some(products) = Products::of(w.ty, linear.act) else { continue };
            let Some(mma) = products.mma.filter(|mma| mma.rounds() && p.limits.rows > 1) else { continue };
            let bytes = products.rounded_bytes(w.cols);
            row_bytes = row_bytes.max(bytes);
            match mma {
                Mma::Codes => row_blocks = row_blocks.max(bytes / ActQuant::BLOCK),
                _ => tiles = tiles.max(tiles_of_ints(of_weights, p.limits.rows)),
            }
        }
    }
    let any = usize::from(tiles > 0);
    // A block leaves the sums of at most two tiles, 4 bytes each.
    let tile_bytes = 4 * (16 * LINEAR_THREADS / 32 * MMA_ROWS) as usize;
    let blocks = 2 * limits.multiprocessors as usize;
    let mut alloc = |bytes: usize| on.buffer("quantised layer inputs", bytes as u64);
    Ok(RoundedParams {
        rows: alloc(rows * row_bytes)?,
        quants: alloc(any * rows * size_of::<RowQuant>())?,
        blocks: alloc(rows * row_blocks * size_of::<BlockQuant>())?,
        sums: alloc(any * blocks * 2 * tile_bytes)?,
        arrived: alloc(4 * tiles)?,
    })
}

/// One or two layers of one input that share a launch, and the address of each layer's output.
type Layers<'a> = [(&'a Linear, Address)];

/// The launches of layers computed on their own, as the `logits` stage does, over the rows of the input and
/// optionally with a soft cap.
pub fn capped(cx: &Cx<'_>, layers: &Layers<'_>, input: &Input<'_>, soft_cap: Option<f32>) -> Vec<Launch> {
    let (layer, logits) = layers[0];
    let (w, other) = (linear(cx, layer), layers.get(1));
    let (other, other_logits) = other.map_or((NO_LINEAR, 0), |(other, to)| (linear(cx, other), *to));
    let work = Work { rows: (w.rows + other.rows) as usize, paired: false };
    let params = |in_| LogitsParams {
        step: cx.tables(),
        in_,
        w,
        other,
        logits,
        other_logits,
        soft_cap: soft_cap.unwrap_or(0.0),
        reserved: 0,
    };
    launches(cx, "logits", layer, input, work, params)
}

/// The same for one layer, without a soft cap.
pub fn product(cx: &Cx<'_>, layer: &Linear, input: &Input<'_>, to: Address) -> Vec<Launch> {
    capped(cx, &[(layer, to)], input, None)
}

/// The same for several layers of one input, which is prepared once and quantised by block once. Neighbours
/// with the same kind of product share a launch.
pub fn of_one_input(cx: &Cx<'_>, layers: &Layers<'_>, input: &Input<'_>) -> Vec<Launch> {
    let by_block = cx.driver.kernel(weight::ROUND_BLOCKS);
    let (mut all, mut prepared, mut rounded) = (Vec::new(), None, None);
    let mut left = layers;
    while let [(layer, _), ..] = left {
        let alike = |(other, _): &&(&Linear, Address)| together(cx.p, &[layer, other]).is_some();
        let (now, later) = left.split_at(1 + left[1..].iter().take(1).filter(alike).count());
        left = later;
        let mut of_layers = capped(cx, now, input, None);
        let products = of_layers.pop();
        let mut before = of_layers.into_iter();
        if layer.prepares_input(input.norm.is_some()) {
            let prepare = before.next();
            all.extend(prepare.filter(|_| prepared.replace(layer.basis) != Some(layer.basis)));
        }
        if let Some(round) = before.next() {
            let by = (round.kernel, layer.prepared());
            let is_there = rounded.replace(by) == Some(by) && by_block == Some(round.kernel);
            all.extend(Some(round).filter(|_| !is_there));
        }
        all.extend(products);
    }
    all
}

/// Suffix of the kernels for several rows.
pub const ROWS: &str = "__rows";

/// The kernels' code for the quantisation of a layer's input.
pub fn rounding(act: ActQuant) -> u32 {
    match act {
        ActQuant::None => ROUND_NONE,
        ActQuant::I8PerToken => ROUND_ROWS,
        ActQuant::I8PerBlock => ROUND_BLOCKS,
    }
}

/// The kernel of a stage that is used for the products, and its geometry.
struct Kind {
    suffix: &'static str,
    /// Rows that a block holds in shared memory at a time.
    tile_rows: usize,
    lanes_log2: u32,
}

fn kind(cx: &Cx<'_>, products: Products, cols: usize, rows: usize, work: Work) -> Kind {
    let lanes_log2 = lanes_log2(cx.limits, products.chunks(cols), work);
    let eight = LINEAR_ROWS as usize;
    match products.mma {
        Some(mma) if rows >= mma.least_rows() => {
            let (suffix, tile_rows) = mma.kind(rows);
            Kind { suffix, tile_rows, lanes_log2: 1 }
        }
        _ if rows > 1 && part(products, cx.limits, cols, eight).is_some() => {
            Kind { suffix: ROWS, tile_rows: eight, lanes_log2 }
        }
        _ => Kind { suffix: products.single(), tile_rows: 1, lanes_log2 },
    }
}

/// A layer's parameters.
pub fn linear(cx: &Cx<'_>, linear: &Linear) -> LinearParams {
    layer_params(cx.weights, linear)
}
