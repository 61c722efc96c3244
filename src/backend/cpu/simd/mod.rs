//! The arithmetic of the CPU backend, once for each instruction set: one file an instruction set, and the
//! kernels themselves in `ternary.rs`, `float.rs` and `vector.rs`, written once over [`lanes::Lanes`].
//!
//! `scalar.rs` is plain code and the definition of what every other set computes. Nothing here knows a
//! stage, a weight's name or a thread. Start at [`Kernels`].
//!
//! Every kernel keeps two promises. One output element depends on its weight row and its activation row
//! alone, to the bit, whatever other rows the same call works on. And integer sums are exact.

pub mod real;
mod scalar;

use super::pool::Tile;
use real::RealKernels;

/// The kernels of one instruction set.
///
/// Slices that do not fit each other are bugs of the caller and panic.
pub struct Kernels {
    /// The word for it: `scalar`, `avx2`, ...
    pub name: &'static str,
    /// Rounds one row to int8 as [`ActQuant::I8PerToken`](crate::program::ActQuant) says, and writes it in the
    /// order of [`arranged`]. `q` is `[padded(x.len())]`; its padding becomes 0.
    ///
    /// A row that holds a NaN, an infinity or a magnitude above [`MAX_ACT`] becomes all 0 with a scale of 0,
    /// and every product with it is NaN.
    pub quantise: fn(x: &[f32], q: &mut [i8]) -> RowQuant,
    /// Products with I2_S rows.
    pub i2_s: TernaryFn,
    /// Products with TQ2_0 rows.
    pub tq2_0: TernaryFn,
    /// Products with F32 rows (little-endian bytes).
    pub f32: FloatFn,
    /// Products with F16 rows.
    pub f16: FloatFn,
    /// Products with BF16 rows.
    pub bf16: FloatFn,
    /// Products with Q8_0 rows.
    pub q8_0: FloatFn,
    /// Products with Q6_K rows.
    pub q6_k: FloatFn,
    /// `sum(a b)`.
    pub dot: fn(a: &[f32], b: &[f32]) -> f32,
    /// `sum(a b)` with `b` f16 in little-endian bytes.
    pub dot_f16: fn(a: &[f32], b: &[u8]) -> f32,
    /// `y += a x`.
    pub axpy: fn(a: f32, x: &[f32], y: &mut [f32]),
    /// `y += a x` with `x` f16 in little-endian bytes.
    pub axpy_f16: fn(a: f32, x: &[u8], y: &mut [f32]),
    /// Norms, attention and activation functions.
    pub real: &'static RealKernels,
}

/// Multiplies ternary weight rows with int8 activation rows and finishes the tile.
pub type TernaryFn = fn(&Product<'_>, I8Rows<'_>, &mut Scratch, &mut Tile<'_, f32>);

/// Multiplies weight rows with f32 activation rows and finishes the tile.
pub type FloatFn = fn(&Product<'_>, F32Rows<'_>, &mut Scratch, &mut Tile<'_, f32>);

/// Largest magnitude of an activation that [`Kernels::quantise`] takes for a number: the quotient by the
/// scale stays far from the ends of f32's range up to here.
pub const MAX_ACT: f32 = 1e30;

/// Elements of which [`arranged`] makes one unit.
pub const UNIT: usize = 256;

/// What one weight tile is multiplied to.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The rows of the weight that the tile's columns stand for, `[tile.cols().len(), row_bytes]`.
    pub weights: &'a [u8],
    /// Bytes of one weight row.
    pub row_bytes: usize,
    /// Inputs: elements of one weight row.
    pub cols: usize,
    /// Scale that belongs to the whole weight, 1 for types without one.
    pub tensor_scale: f32,
    /// The layer's own factor.
    pub factor: f32,
    /// Bias of the tile's columns.
    pub bias: Option<&'a [f32]>,
    /// Whether the result is added to what the tile holds.
    pub add: bool,
}

impl Product<'_> {
    /// Finishes one element: `out` is the place, `col` its column within the tile, `value` the product.
    fn finish(&self, out: &mut f32, col: usize, value: f32) {
        let value = value * self.factor;
        let value = self.bias.map_or(value, |bias| value + bias[col]);
        *out = if self.add { *out + value } else { value };
    }
}

/// Memory that a thread works in.
#[derive(Default)]
pub struct Scratch {
    /// Unpacked weights.
    pub codes: Vec<u8>,
    /// Decoded weights, [`DECODED_ROWS`] rows.
    pub floats: Vec<f32>,
}

/// Weight rows that are decoded together.
pub const DECODED_ROWS: usize = 8;

impl Scratch {
    /// Makes room for weights of `cols` inputs.
    pub fn reserve(&mut self, cols: usize) {
        if self.floats.len() < DECODED_ROWS * cols {
            self.floats.resize(DECODED_ROWS * cols, 0.0);
        }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 4 * self.floats.len()
    }
}

/// How a row was rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowQuant {
    /// `s`: the rounded values are `x s`.
    pub scale: f32,
    /// Sum of the rounded values.
    pub sum: i32,
}

/// Rows of int8 activations in the order of [`arranged`], each with its [`RowQuant`].
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

/// Where element `k` of a row lies among its int8 values.
///
/// I2_S keeps 128 weights in 32 bytes: byte `b` has elements `b`, `32 + b`, `64 + b`, `96 + b`. So 64 bytes of
/// weights, shifted four times, are 64 codes each of two such blocks, and the activations lie in the order
/// in which these come: unit of 256, group of 32 within the block, block, element. TQ2_0 has the same groups.
pub const fn arranged(k: usize) -> usize {
    let (unit, block, group, i) = (k / UNIT, k / 128 % 2, k / 32 % 4, k % 32);
    unit * UNIT + group * 64 + block * 32 + i
}

/// Length of a row of `cols` int8 values, padding included.
pub const fn padded(cols: usize) -> usize {
    cols.next_multiple_of(UNIT)
}

/// The fastest kernels for this machine.
pub fn best() -> &'static Kernels {
    all().last().expect("scalar is always there")
}

/// All kernels that this machine can run, scalar first, the fastest last.
pub fn all() -> Vec<&'static Kernels> {
    vec![&scalar::KERNELS]
}
