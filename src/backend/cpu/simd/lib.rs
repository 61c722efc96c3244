//! The arithmetic of the CPU backend for every instruction set: one file per instruction set, and the kernels
//! themselves in `ternary/`, `by_block/`, `float/`, `q6_k.rs`, `quantise.rs` and `real/`, written once over
//! `lanes::Lanes`. `weights.rs` maps weight types to kernels.
//!
//! `scalar.rs` is plain code and the reference for every other set. Nothing here knows a stage, a weight's
//! name or a thread. Start at [`Kernels`].
//!
//! A value of an instruction set's type proves that the processor has it, so arithmetic on vectors is safe
//! code. Only reads and writes through pointers are `unsafe`.
//!
//! Every kernel guarantees two things. An output element depends, to the bit, only on its weight row and its
//! activation row, not on the other rows of the call. And integer sums are exact.
// Arrays of vectors are indexed, not iterated: see `lanes.rs`.
#![allow(clippy::needless_range_loop)]
#![deny(unsafe_code)]

mod aligned;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
mod by_block;
mod float;
mod lanes;
#[cfg(all(target_arch = "aarch64", target_endian = "little"))]
mod neon;
mod q6_k;
mod quantise;
pub mod real;
mod scalar;
mod ternary;
mod tile;
#[cfg(target_arch = "wasm32")]
mod wasm;
mod weights;

pub use aligned::{Aligned, Allocator, Heap};
pub use by_block::BlockFn;
use ggml_types::ActQuant;
use lanes::Lanes;
use quantise::{Quantise, QuantiseBlocks};
use real::RealKernels;
use ternary::Ternary;
pub use tile::Tile;
pub use weights::{Format, TypeKernels};

/// The kernels of one instruction set.
///
/// Kernels panic if their slices do not match, which is a bug of the caller.
pub struct Kernels {
    /// Name of the set: `scalar`, `avx2`, ...
    pub name: &'static str,
    /// Quantises one row to int8 as [`ActQuant::I8PerToken`](ggml_types::ActQuant) defines, and writes it in
    /// the order of [`interleaved`]. `q` is `[padded(x.len())]`; its padding becomes 0.
    ///
    /// A row that contains a NaN, an infinity or a magnitude above [`MAX_ACT`] becomes all 0 with a scale of
    /// 0, and every product with it is NaN.
    pub quantise: fn(x: &[f32], q: &mut [i8]) -> RowQuant,
    /// Products with weights, by [`Format`].
    types: &'static [TypeKernels; weights::N_TYPES],
    /// Quantises one row to int8 as [`ActQuant::I8PerBlock`] defines, without reordering: the values, and one
    /// [`ActBlock`] per 32 of them.
    pub quantise_blocks: fn(x: &[f32], q: &mut [i8], blocks: &mut [ActBlock]),
    /// Norms, attention and activation functions.
    pub real: &'static RealKernels,
}

impl Kernels {
    /// The kernels of a weight type.
    pub fn for_type(&self, format: Format) -> TypeKernels {
        format.0.map_or(TypeKernels::NONE, |row| self.types[row])
    }
}

/// Multiplies ternary weight rows with int8 activation rows and finishes the tile.
pub type TernaryFn = fn(&Product<'_>, I8Rows<'_>, &mut Scratch, &mut Tile<'_, f32>);

/// Multiplies weight rows with f32 activation rows and finishes the tile.
pub type FloatFn = fn(&Product<'_>, F32Rows<'_>, &mut Scratch, &mut Tile<'_, f32>);

/// Largest magnitude that [`Kernels::quantise`] accepts: quotients by the scale stay far from f32's limits.
pub const MAX_ACT: f32 = 1e30;

/// Elements of a unit: [`interleaved`] reorders within it.
pub const UNIT: usize = 256;

/// The weights of one tile, and how their products are finished.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The weight rows of the tile's columns, `[tile.cols().len(), row_bytes]`.
    pub weights: &'a [u8],
    /// Bytes of one weight row.
    pub row_bytes: usize,
    /// Number of inputs: elements of one weight row.
    pub cols: usize,
    /// Scale of the whole weight, 1 for types without one.
    pub tensor_scale: f32,
    /// Scales of the tile's columns, used instead of `tensor_scale` by kernels that repack rows first.
    pub row_scales: Option<&'a [f32; STRIP]>,
    /// Factor of the layer.
    pub factor: f32,
    /// Bias of the tile's columns.
    pub bias: Option<&'a [f32]>,
    /// True if the result is added to the tile's values.
    pub add: bool,
}

impl Product<'_> {
    /// Weight bytes of output `output`; of the last output if there are fewer.
    #[inline(always)]
    fn row(&self, output: usize) -> &[u8] {
        let output = output.min(self.weights.len() / self.row_bytes - 1);
        &self.weights[output * self.row_bytes..][..self.row_bytes]
    }

    /// Pointers to the weights of `N` outputs, with the last one repeated if there are fewer. Results
    /// computed from the repetitions are not read.
    fn rows<const N: usize>(&self, first: usize) -> [*const u8; N] {
        let last = self.weights.len() / self.row_bytes - 1;
        std::array::from_fn(|i| self.weights[(first + i).min(last) * self.row_bytes..].as_ptr())
    }

    /// Checks that rows of `row_bytes` bytes, the activations and the tile match.
    ///
    /// # Panics
    /// If they do not match.
    fn check(&self, row_bytes: usize, acts: F32Rows<'_>, tile: &Tile<'_, f32>) {
        let (cols, outputs) = (self.cols, tile.cols().len());
        assert_eq!(cols, acts.cols, "inputs of the weight and of the layer");
        assert_eq!(self.row_bytes, row_bytes, "bytes of {cols} weights");
        assert_eq!(self.weights.len(), outputs * row_bytes, "bytes of {outputs} rows");
        assert!(self.bias.is_none_or(|bias| bias.len() == outputs), "a bias for {outputs} outputs");
        assert!(tile.rows().end * cols <= acts.x.len());
    }

    /// Finishes one element, `out`, where `col` is its column in the tile and `value` the product.
    #[inline(always)]
    fn finish(&self, out: &mut f32, col: usize, value: f32) {
        let value = value * self.factor;
        let value = self.bias.map_or(value, |bias| value + bias[col]);
        *out = if self.add { *out + value } else { value };
    }

    /// The same for 16 elements.
    #[inline(always)]
    fn finish_16<L: Lanes>(&self, l: L, out: &mut [f32; 16], col: usize, values: L::Floats) {
        let mut values = l.mul(values, l.splat(self.factor));
        if let Some(bias) = self.bias.and_then(|bias| bias.get(col..)?.first_chunk()) {
            values = l.add(values, l.load(bias));
        }
        if self.add {
            values = l.add(l.load(out), values);
        }
        l.store(out, values);
    }
}

/// Number of activation rows from which ternary weights are unpacked; one more for sets that multiply eight
/// rows without unpacking (`Lanes::FEW_ROWS`).
pub const MANY_ROWS: usize = 8;

/// Maximum number of weight rows that are unpacked or decoded together; a multiple of every set's number.
pub const STRIP: usize = 48;

/// Units of a strip's rows that are unpacked together: with 48 rows, half of a 48 KiB L1 cache.
const PIECE_UNITS: usize = 2;

/// Maximum number of activation rows multiplied with an unpacked piece; their sums are kept in memory.
const SUMMED_ROWS: usize = 512;

/// Inputs of 16 weight rows unpacked together for per-block int8: a sixth of a 48 KiB L1 cache.
const BLOCK_PIECE: usize = 512;

/// Maximum number of activation rows of a block of the int8 matrix product.
const MAX_BLOCK_ROWS: usize = 8;

/// Weight rows that are decoded to floats together if there are many activation rows.
const FLOAT_STRIP: usize = 6;

/// Inputs that are decoded together: with [`FLOAT_STRIP`] rows, a quarter of a 48 KiB L1 cache, so that the
/// activations and sums of a block fit as well.
const FLOAT_PIECE: usize = 512;

/// Maximum number of activation rows that are multiplied with a decoded piece; their sums are kept in memory.
const FLOAT_ROWS: usize = 64;

/// Inputs of [`STRIP`] weight rows that are decoded and transposed together: the same inputs of eight
/// activation rows take half of a 48 KiB L1 cache.
const TRANSPOSED_PIECE: usize = 768;

/// Maximum number of activation rows that are multiplied with transposed weights if these take several
/// pieces; their sums are kept in memory. A multiple of the number that any set processes together.
const TRANSPOSED_ROWS: usize = 144;

/// Maximum number of activation rows that the Q6_K kernel interleaves at a time.
const ARRANGED_ROWS: usize = 6;

/// Maximum number of weights in a block of any type.
const MAX_BLOCK: usize = 256;

/// Sizes of a [`Scratch`], in elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScratchSize {
    codes: usize,
    floats: usize,
    sums: usize,
    decoded: usize,
    unpacked: usize,
}

impl ScratchSize {
    /// Sizes for ternary weights of `cols` inputs.
    pub fn of_ternary(cols: usize) -> Self {
        // Scalar code unpacks whole rows.
        let codes = (STRIP * PIECE_UNITS * UNIT).max(padded(cols));
        let sums = STRIP * (SUMMED_ROWS + MAX_BLOCK_ROWS);
        Self { codes, floats: STRIP, sums, unpacked: STRIP * cols.div_ceil(UNIT) * 66, ..Self::default() }
    }

    /// Sizes for per-block int8 activations.
    pub fn of_blocks() -> Self {
        let floats = by_block::FLOATS;
        let sums = by_block::STRIPS * by_block::TOGETHER * SUMMED_ROWS;
        let codes = by_block::CODES;
        Self { codes, floats, sums, ..Self::default() }
    }

    /// Sizes for weights of `cols` inputs that are multiplied as floats.
    pub fn of_floats(cols: usize) -> Self {
        let transposed = STRIP * TRANSPOSED_PIECE + 16 * MAX_BLOCK;
        let floats = (FLOAT_STRIP * FLOAT_PIECE).max(transposed).max(ARRANGED_ROWS * cols);
        let sums = 16 * (FLOAT_STRIP * FLOAT_ROWS).max(STRIP * TRANSPOSED_ROWS);
        Self { floats, sums, ..Self::default() }
    }

    /// Sizes for weights of `cols` inputs that are decoded before the kernel is called.
    pub fn of_decoded(cols: usize) -> Self {
        Self { decoded: STRIP * cols, ..Self::of_floats(cols) }
    }

    /// Elementwise maximum.
    pub fn max(self, other: Self) -> Self {
        Self {
            codes: self.codes.max(other.codes),
            floats: self.floats.max(other.floats),
            sums: self.sums.max(other.sums),
            decoded: self.decoded.max(other.decoded),
            unpacked: self.unpacked.max(other.unpacked),
        }
    }
}

/// Scratch memory of a thread.
#[derive(Default)]
pub struct Scratch {
    /// Unpacked weights, [`PIECE_UNITS`] of [`STRIP`] rows.
    codes: Aligned<u8>,
    /// Decoded weights: [`FLOAT_PIECE`] of [`FLOAT_STRIP`] rows, or [`TRANSPOSED_PIECE`] of [`STRIP`] rows
    /// and a block of 16 rows; interleaved activations; scales.
    floats: Aligned<f32>,
    /// Sums of [`SUMMED_ROWS`] activation rows by [`STRIP`] weight rows, or 16 lanes for each of
    /// [`FLOAT_ROWS`] by [`FLOAT_STRIP`] or of [`TRANSPOSED_ROWS`] by [`STRIP`].
    sums: Aligned<f32>,
    /// Decoded weights, [`STRIP`] rows, for types that are decoded before the kernel is called.
    pub decoded: Aligned<f32>,
    /// Rows repacked as another ternary type, such as TQ1_0 as TQ2_0; [`STRIP`] of them.
    unpacked: Aligned<u8>,
}

impl Scratch {
    /// Allocates memory of this size.
    pub fn new(on: &mut impl Allocator, size: &ScratchSize) -> Self {
        Self {
            codes: on.aligned(size.codes),
            floats: on.aligned(size.floats),
            sums: on.aligned(size.sums),
            decoded: on.aligned(size.decoded),
            unpacked: on.aligned(size.unpacked),
        }
    }
}

/// Quantisation of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowQuant {
    /// `s`: the quantised values are `round(x s)`.
    pub scale: f32,
    /// Sum of the quantised values.
    pub sum: i32,
}

/// Rows of int8 activations in the order of [`interleaved`], each with its [`RowQuant`].
#[derive(Clone, Copy)]
pub struct I8Rows<'a> {
    /// `[rows, padded(cols)]`.
    pub q: &'a [i8],
    /// `[rows]`.
    pub quant: &'a [RowQuant],
    /// Elements of a row, padding excluded.
    pub cols: usize,
}

impl<'a> I8Rows<'a> {
    /// The row's values, padding included.
    pub fn row(&self, row: usize) -> &'a [i8] {
        let stride = padded(self.cols);
        &self.q[row * stride..][..stride]
    }
}

/// Scale and sums of 32 int8 activations. Of three elements, the first is for the first 16 activations, the
/// second for the other 16, the third for all 32.
#[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct ActBlock {
    /// Scale of the values.
    pub scale: f32,
    /// Sums of the values, times the scale.
    pub sums: [f32; 3],
    /// Sums of the values, times -128: corrects products with signed codes that are stored with 128 added.
    pub zeros: [i32; 3],
    /// Padding: two blocks fill a cache line.
    pub pad: u32,
}

/// Rows of per-block int8 activations, as [`Kernels::quantise_blocks`] writes them.
#[derive(Clone, Copy)]
pub struct BlockRows<'a> {
    /// `[rows, stride(cols)]`: values, then blocks from [`padded(cols)`](padded) on.
    pub bytes: &'a [i8],
    /// Elements of a row.
    pub cols: usize,
}

impl<'a> BlockRows<'a> {
    /// Bytes of a row.
    #[inline]
    pub const fn stride(cols: usize) -> usize {
        padded(cols) + cols.div_ceil(ActQuant::BLOCK) * size_of::<ActBlock>()
    }

    /// The row's values and blocks.
    #[inline(always)]
    pub fn row(&self, row: usize) -> (&'a [i8], &'a [ActBlock]) {
        let stride = Self::stride(self.cols);
        let (q, blocks) = self.bytes[row * stride..][..stride].split_at(padded(self.cols));
        (&q[..self.cols], bytemuck::cast_slice(blocks))
    }
}

/// Rows of f32 activations.
#[derive(Clone, Copy)]
pub struct F32Rows<'a> {
    /// `[rows, cols]`.
    pub x: &'a [f32],
    /// Elements of a row.
    pub cols: usize,
}

impl<'a> F32Rows<'a> {
    fn row(&self, row: usize) -> &'a [f32] {
        &self.x[row * self.cols..][..self.cols]
    }
}

/// Index of element `k` of a row among its int8 values.
///
/// I2_S stores 128 weights in 32 bytes: byte `b` has elements `b`, `32 + b`, `64 + b`, `96 + b`. So 64 bytes
/// of weights, shifted four times, yield 64 codes at a time of two such blocks, and the activations are
/// stored in the order of these codes: unit of 256, group of 32 within the block, block, element. TQ2_0 has
/// the same groups.
pub const fn interleaved(k: usize) -> usize {
    let (unit, block, group, i) = (k / UNIT, k / 128 % 2, k / 32 % 4, k % 32);
    unit * UNIT + group * 64 + block * 32 + i
}

/// Length of a row of `cols` int8 values, padding included.
#[inline]
pub const fn padded(cols: usize) -> usize {
    cols.next_multiple_of(UNIT)
}

/// True if vector kernels include products with per-block int8 activations. WebAssembly modules leave them
/// out, because they are a tenth of the size; the float kernels multiply dequantised inputs instead.
pub const BLOCK_PRODUCTS: bool = cfg!(not(target_arch = "wasm32"));

/// The fastest kernels for this machine.
pub fn best() -> &'static Kernels {
    // WebAssembly modules leave out the scalar kernels, which nothing else uses, to keep the download small.
    #[cfg(target_arch = "wasm32")]
    return &SIMD128;
    #[cfg(not(target_arch = "wasm32"))]
    {
        let all = all();
        all[all.len() - 1]
    }
}

#[cfg(target_arch = "wasm32")]
static SIMD128: Kernels = table::<wasm::Simd128, wasm::Simd128, wasm::Simd128>(wasm::NAME);

/// All kernels that this machine can run, the scalar ones first, the fastest last.
pub fn all() -> Vec<&'static Kernels> {
    let mut all = vec![&scalar::KERNELS];
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        type Avx2 = avx2::Avx2<avx2::Madd>;
        type AvxVnni = avx2::Avx2<avx_vnni::Vnni>;
        type Avx512 = avx512::Avx512<avx512::Madd>;
        type Avx512Vnni = avx512::Avx512<avx512::Vnni>;
        static AVX2: Kernels = table::<Avx2, Avx2, Avx2>("avx2");
        static AVX_VNNI: Kernels = table::<Avx2, AvxVnni, AvxVnni>("avx-vnni");
        static AVX512: Kernels = table::<Avx512, Avx512, Avx512>("avx512");
        static AVX512_VNNI: Kernels = table::<Avx512, Avx512Vnni, Avx512Vnni>("avx512-vnni");
        let avx2 = has!("avx2") && has!("fma") && has!("f16c");
        let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq");
        all.extend(avx2.then_some(&AVX2));
        all.extend((avx2 && has!("avxvnni")).then_some(&AVX_VNNI));
        all.extend(avx512.then_some(&AVX512));
        all.extend((avx512 && has!("avx512vnni")).then_some(&AVX512_VNNI));
        #[cfg(target_os = "linux")]
        {
            static AMX: Kernels = table::<Avx512, avx512::Avx512<amx::Amx>, Avx512Vnni>("amx");
            all.extend((avx512 && has!("avx512vnni") && amx::available()).then_some(&AMX));
        }
    }
    #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
    {
        static NEON: Kernels = table::<neon::Neon, neon::Neon, neon::Neon>("neon-dotprod");
        let has = std::arch::is_aarch64_feature_detected!("dotprod");
        all.extend(has.then_some(&NEON));
    }
    #[cfg(target_arch = "wasm32")]
    all.push(&SIMD128);
    all
}

/// The kernels of one instruction set: float kernels over `L`, and byte products, which may use more
/// instructions, over `T` for ternary weights and over `B` for per-block int8 activations. Code that two
/// tables share is compiled once.
const fn table<L: Lanes, T: Lanes, B: Lanes>(name: &'static str) -> Kernels {
    Kernels {
        name,
        quantise: |x, q| L::vectorize(Quantise::new(x, q)),
        types: &const { weights::of::<L, T, B>() },
        quantise_blocks: |x, q, blocks| L::vectorize(QuantiseBlocks { x, q, blocks }),
        real: &const { real::table::<L>() },
    }
}

fn ternary<L: Lanes, F: ternary::Form>(
    product: &Product<'_>,
    acts: I8Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    L::vectorize(Ternary::<F>::new(product, acts, scratch, tile));
}
