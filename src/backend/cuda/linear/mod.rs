//! Code shared by the stages with linear layers: their kernels and launches. A new way of multiplying is a
//! variant of [`Matmul`] and a function in `geometry.rs`; `layers.rs` multiplies layers on their own.
//!
//! Integer products on tensor cores take two launches: one that normalises and quantises the step's rows, one
//! block per row, and the products.

pub mod geometry;
pub mod layers;
pub mod matmul;
pub mod shared;

use super::alloc::Allocator;
use super::clamp;
use super::cx::{Cx, words};
use super::driver::{Address, Launch, Limits};
use super::hadamard;
pub use super::input::{Input, norm};
use super::kernel_name::KernelName;
use super::params::{
    BlockQuant, InputParams, LINEAR_THREADS, MANY_QUANT_BYTES, MMA_CODES_ROWS, MMA_ROWS, NextWeights,
    OCTET_MAX_ROWS, QUANT_BLOCKS, QUANT_BLOCKS_COLS, QUANT_NONE, QUANT_ROWS, QuantParams, RoundedParams,
    RowQuant,
};
use super::weight::{Mma, Products, QUANT_OCTETS, QUANT_OCTETS_MANY};
use crate::{BackendError, Macs};
use geometry::{Geometry, Problem, Work, tiles_of_ints, tiles_of_octets};
use matmul::Matmul;
use shared::norm_bytes_up_to;
use sterna_program::{ActQuant, Linear, Program, RowsOf, Stage};

/// The kind of product of layers with one input, if one kernel can compute them all, but for bounds of their
/// outputs.
pub fn together(p: &Program, linears: &[&Linear]) -> Option<Products> {
    let products = |linear: &Linear| Products::of(p.weight_decl(linear.w).ty, linear.act);
    let first = products(linears[0])?;
    let equal = |linear: &&Linear| {
        linear.prepared() == linears[0].prepared() && products(linear).is_some_and(|p| p == first)
    };
    Some(first).filter(|first| !first.floats && linears.iter().all(equal))
}

/// The kernels of a stage for one kind of product.
fn kernels(stage: &'static str, products: Products) -> impl Iterator<Item = KernelName> {
    let matmuls = Matmul::variants(products.mma).iter().copied().chain(Matmul::of_octets(products));
    let matmuls = matmuls.map(move |matmul| products.kernel(stage, matmul.kind()));
    let of_octets =
        products.octets().map(|octets| [Some(QUANT_OCTETS), octets.many.then_some(QUANT_OCTETS_MANY)]);
    matmuls.chain(products.quantize_kernel()).chain(of_octets.into_iter().flatten().flatten())
}

/// The kernels that prepare the input of layers.
fn prepares(p: &Program, linears: &[&Linear], input: &Input<'_>) -> Result<Vec<KernelName>, String> {
    let of = |linear: &&Linear| match clamp::kernel(linear, input)? {
        Some(kernel) => Ok(Some(kernel)),
        None => hadamard::kernel(p, linear, input.norm.is_some()),
    };
    Ok(linears.iter().map(of).collect::<Result<Vec<_>, String>>()?.into_iter().flatten().collect())
}

/// The kernels of a stage that computes all its layers [together].
///
/// # Errors
/// The missing feature, for a message.
pub fn fused_kernels(
    p: &Program,
    stage: &'static str,
    linears: &[&Linear],
    input: &Input<'_>,
) -> Result<Vec<KernelName>, String> {
    let products = together(p, linears).expect("it was lowered to one kernel");
    Ok(kernels(stage, products).chain(prepares(p, linears, input)?).collect())
}

/// Adds the multiply-adds of layers per row of a large batch, by the arithmetic that [`launches`] uses.
pub fn add_macs(p: &Program, linears: &[&Linear], all: &mut Macs) {
    for linear in linears {
        let w = p.weight_decl(linear.w);
        let macs = (w.rows * w.cols) as u64;
        match Products::of(w.ty, linear.act).and_then(|products| products.mma) {
            Some(Mma::Ints | Mma::IntBlocks) => all.int8 += macs,
            Some(Mma::Codes) => all.int8_blocks += macs,
            Some(Mma::Halves) => all.two_halves += macs,
            None => all.float += macs,
        }
    }
}

/// The launches of a linear stage; `params` builds the parameters of the last one.
///
/// # Panics
/// If a block needs more shared memory than the GPU has.
pub fn launches<T: bytemuck::Pod>(
    cx: &Cx<'_>,
    stage: &'static str,
    linear: &Linear,
    input: &Input<'_>,
    work: Work,
    params: impl FnOnce(InputParams) -> T,
) -> Vec<Launch> {
    launches_from(cx, stage, linear, (input, cx.buf(input.x)), work, params)
}

/// The same for rows at another address than those of the input's buffer.
pub fn launches_from<T: bytemuck::Pod>(
    cx: &Cx<'_>,
    stage: &'static str,
    linear: &Linear,
    (input, x): (&Input<'_>, Address),
    work: Work,
    params: impl FnOnce(InputParams) -> T,
) -> Vec<Launch> {
    let w = &cx.weights[linear.w.0 as usize];
    let products = Products::of(w.ty, linear.act).expect("it was uploaded");
    let rows = match input.rows {
        RowsOf::Step => cx.shape.rows,
        RowsOf::Outputs => cx.shape.outputs,
    };
    let first_norm = input.norm.or(linear.norm.as_ref());
    let normed = Input { norm: first_norm, ..*input };
    let prepare = match linear.clamp {
        Some(bounds) => Some(clamp::of_input(cx, bounds.input, &normed)),
        None => {
            linear.prepares_input(input.norm.is_some()).then(|| hadamard::launch(cx, linear.basis, &normed))
        }
    };
    let is_done = linear.basis.is_some() || linear.clamp.is_some();
    let (x, in_norm) = match &prepare {
        Some(_) if is_done => (cx.memory.bases.prepared, None),
        Some(_) => (cx.memory.bases.prepared, linear.norm.as_ref()),
        None => (x, first_norm),
    };
    // Products of a layer with an adapter are computed one by one, and their sums would have another order.
    let in_octets = work.in_octets && cx.p.adapters.is_empty();
    let matmul = Matmul::choose(products, cx.limits, w.cols, rows, in_octets);
    let problem =
        Problem { products, limits: cx.limits, cols: w.cols, rows, work, is_normed: in_norm.is_some() };
    let Geometry { blocks, tiles, warps, shared_bytes, lanes_log2, part_chunks } = problem.geometry(matmul);
    let room = cx.limits.shared_bytes as usize;
    assert!(shared_bytes <= room, "{stage}: {shared_bytes} bytes of shared memory, but the GPU has {room}");
    let in_ = InputParams {
        x,
        norm: norm(cx, in_norm),
        cols: w.cols as u32,
        rounding: rounding(linear.act),
        of_outputs: u32::from(input.rows == RowsOf::Outputs),
        rounded: cx.memory.rounded,
        lanes_log2,
        row_bytes: products.rounded_bytes(w.cols) as u32,
        part_chunks: part_chunks as u32,
    };
    let quantize = products.quantize_kernel().filter(|_| matmul.is_on_tensor_cores()).map(|kernel| {
        let kernel = match matmul {
            Matmul::Octets(_) => QUANT_OCTETS,
            Matmul::OctetsMany => QUANT_OCTETS_MANY,
            _ => kernel,
        };
        // Meanwhile the weights of the products are prefetched into the GPU's cache.
        let bytes = w.ty.row_bytes(w.cols).expect("it was uploaded") * w.rows;
        let next = NextWeights { data: w.data, bytes: (bytes as u64).min(cx.limits.prefetch_bytes) };
        let (step, chunks) = (cx.memory.step.tables(next), products.chunks(w.cols) as u32);
        let shared_bytes = match products.mma {
            Some(Mma::Codes) => norm_bytes_up_to(in_norm.map_or(0, |_| QUANT_BLOCKS_COLS), w.cols),
            _ => problem.single_bytes(),
        };
        Launch {
            kernel: cx.kernel(kernel),
            grid: [rows as u32, 1, 1],
            threads: LINEAR_THREADS,
            shared_bytes: shared_bytes as u32,
            params: words(&QuantParams { step, in_, chunks, reserved: 0 }),
        }
    });
    let products = Launch {
        kernel: cx.kernel(products.kernel(stage, matmul.kind())),
        grid: [blocks as u32, tiles as u32, 1],
        threads: 32 * warps as u32,
        shared_bytes: shared_bytes as u32,
        params: words(&params(in_)),
    };
    prepare.into_iter().chain(quantize).chain([products]).collect()
}

/// Buffers between the launches of integer products on tensor cores, for the largest step of a program.
pub fn rounded<A: Allocator + ?Sized>(
    on: &mut A,
    p: &Program,
    limits: Limits,
) -> Result<RoundedParams, BackendError> {
    // Whole tiles of rows are copied to shared memory.
    let rows = p.limits.rows.next_multiple_of(MMA_CODES_ROWS.max(MMA_ROWS) as usize);
    let (mut row_bytes, mut row_blocks, mut tiles, mut of_octets) = (0, 0, 0, 0);
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
                Mma::Codes => {
                    row_blocks = row_blocks.max(bytes / ActQuant::BLOCK);
                    if products.octets().is_some() && limits.streams_octets {
                        // One counter per tile for each pass over the batch rows.
                        of_octets = of_octets.max(2 * tiles_of_octets(of_weights));
                    }
                }
                _ => tiles = tiles.max(tiles_of_ints(of_weights, p.limits.rows)),
            }
        }
    }
    let any = usize::from(tiles > 0);
    // A block leaves the sums of at most two tiles, 4 bytes each.
    let tile_bytes = |rows: u32| 4 * (16 * LINEAR_THREADS / 32 * rows) as usize;
    let multiprocessors = limits.multiprocessors as usize;
    let of_ints = any * 2 * multiprocessors * 2 * tile_bytes(MMA_ROWS);
    let sums = usize::from(of_octets > 0) * multiprocessors * 2 * tile_bytes(OCTET_MAX_ROWS);
    let mut alloc = |bytes: usize| on.buffer("quantised layer inputs", bytes as u64);
    // Together, because products of many rows in octets have them in another order.
    let codes_bytes = rows * row_bytes;
    let of_block = if limits.streams_prompts { MANY_QUANT_BYTES as usize } else { size_of::<BlockQuant>() };
    let codes = alloc(codes_bytes + rows * row_blocks * of_block)?;
    Ok(RoundedParams {
        rows: codes,
        quants: alloc(any * rows * size_of::<RowQuant>())?,
        blocks: codes + codes_bytes as u64,
        sums: alloc(sums.max(of_ints))?,
        arrived: alloc(4 * tiles.max(of_octets))?,
    })
}

/// The kernels' code for the quantisation of a layer's input.
pub fn rounding(act: ActQuant) -> u32 {
    match act {
        ActQuant::None => QUANT_NONE,
        ActQuant::I8PerToken => QUANT_ROWS,
        ActQuant::I8PerBlock => QUANT_BLOCKS,
    }
}
