//! Products of quantised weights and per-block int8 activations.
//!
//! 16 weight rows at a time are unpacked to codes, with value = scale x code + offset in each group of 16 or
//! 32 weights. Byte products give the exact sums of a group; with `s` the scale of the activations,
//! `sum(w x) = s (scale sum(code q)) + offset (s sum(q))`.
//!
//! A lane is one output: it adds the groups of each [`BLOCK_PIECE`] inputs in order, and then these partial
//! sums, without mixing in other rows. Before that there are only exact integer sums, whose order does not
//! matter. So one or two activation rows give the same bits as many rows, although they are computed
//! differently: `gemv.rs` multiplies codes in block order and adds up lanes, while `gemm.rs` transposes them
//! so that 64 bytes are 4 inputs of each of the 16 rows, and keeps a piece of them in the cache while all
//! activation rows are multiplied with it.
//!
//! Only the code that reads blocks and scales is compiled per type. Products of unpacked codes depend only on
//! the group size and on the sign of codes, so types share them. Code without byte products is shared by sets
//! with the same registers ([`Type::of`]). The loops over tiles and pieces are compiled once.
#![allow(unsafe_code)]

pub mod codes;
pub mod few_bits;
mod gemm;
mod gemv;
pub mod look_up;

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::lanes::{Kernel, Lanes};
use super::{ActBlock, BLOCK_PIECE, BlockRows, Product, SUMMED_ROWS, Scratch, Tile, UNIT};
use codes::Coded;

/// Multiplies weight rows with per-block int8 activation rows, and finishes the tile.
pub type BlockFn = fn(&Product<'_>, BlockRows<'_>, &mut Scratch, &mut Tile<'_, f32>);

/// Weight rows that are unpacked together.
pub const TOGETHER: usize = 16;

/// Maximum number of strips of 16 weight rows that are multiplied with several activation rows at a time.
pub const STRIPS: usize = 3;

/// Number of activation rows from which [`STRIPS`] strips are multiplied at a time. Fewer are bound by
/// memory, which is slower for 48 rows side by side than for 16: two rows of Q4_K took 1.7 times as long on
/// an EPYC (Zen 5).
const MANY: usize = 16;

/// Bytes of the heads of a piece of 16 rows.
const HEADS: usize = TOGETHER * BLOCK_PIECE / UNIT * 32;

/// Bytes per thread: the columns and heads of a piece of all strips, or the heads of 16 rows.
pub const CODES: usize = STRIPS * TOGETHER * BLOCK_PIECE + HEADS;

/// Number of scales of a piece of 16 rows.
const SCALES: usize = TOGETHER * BLOCK_PIECE / 16;

/// Number of scales and offsets per thread, for a piece of all strips.
pub const FLOATS: usize = 2 * STRIPS * SCALES;

/// A type over one instruction set: its sizes, and the kernels that the loops over tiles and pieces call.
pub struct Type {
    /// Weights and bytes of a block, and bytes of a unit's head: the constants of [`Coded`].
    block: usize,
    bytes: usize,
    head: usize,
    /// For one and for two activation rows.
    few: [gemv::Few; 2],
    /// Maximum number of activation rows that `few` is used for.
    n_few: usize,
    unpack: gemm::UnpackFn,
    scales: ScalesFn,
    finish: FinishFn,
    /// With one strip and with [`STRIPS`] strips.
    many: [gemm::RowsFn; 2],
    /// True if the set has enough registers for [`STRIPS`] strips.
    has_strips: bool,
}

impl Type {
    /// The type `F`. Byte products are compiled for `B`, and so is the unpacking to signed codes if the two
    /// sets differ in [`Lanes::ZERO`]; the rest is compiled for `L`.
    const fn of<L: Lanes, B: Lanes, F: Coded>() -> Self {
        const {
            assert!(BLOCK_PIECE.is_multiple_of(F::BLOCK) && F::BLOCK.is_multiple_of(32));
            assert!(F::GROUP == 16 || F::GROUP == 32);
            // Signed codes have no offset, all others have one.
            assert!(F::ZERO.is_none() || F::MINIMUMS || !matches!(F::ZERO, Some(0)));
            assert!(L::ZERO == 0 && (B::ZERO == 0 || B::ZERO == 128));
        }
        let is_signed = F::ZERO.is_none();
        let has_strips = matches!(B::FLOAT_BLOCK, (3, 8));
        let one = gemv::Few::of::<L, B, F, 1>();
        Self {
            block: F::BLOCK,
            bytes: F::BYTES,
            head: F::HEAD,
            few: [one, if has_strips { gemv::Few::of::<L, B, F, 2>() } else { one }],
            // On an EPYC (Zen 5), three rows were as fast either way, two 1.2 to 1.5 times as fast.
            n_few: if has_strips { 2 } else { 1 },
            unpack: if is_signed && B::ZERO != 0 { gemm::unpack::<B, F> } else { gemm::unpack::<L, F> },
            scales: scales::<L, F>,
            finish: finish::<L>,
            many: [
                gemm::rows::<B, 1>(F::GROUP, is_signed),
                if has_strips {
                    gemm::rows::<B, STRIPS>(F::GROUP, is_signed)
                } else {
                    gemm::rows::<B, 1>(F::GROUP, is_signed)
                },
            ],
            has_strips,
        }
    }

    /// Multiplies a tile.
    ///
    /// # Panics
    /// If the arguments do not match.
    fn multiply(
        &self,
        product: &Product<'_>,
        acts: BlockRows<'_>,
        scratch: &mut Scratch,
        tile: &mut Tile<'_, f32>,
    ) {
        let (cols, outputs) = (product.cols, tile.cols().len());
        assert!(
            cols.is_multiple_of(self.block) && cols == acts.cols,
            "{cols} inputs, {} activations",
            acts.cols
        );
        assert_eq!(product.row_bytes, self.bytes_of(cols), "bytes of {cols} weights");
        assert_eq!(product.weights.len(), outputs * product.row_bytes, "bytes of {outputs} rows");
        assert!(product.bias.is_none_or(|bias| bias.len() == outputs), "a bias for {outputs} outputs");
        assert!(tile.rows().end * BlockRows::stride(cols) <= acts.bytes.len());
        let all = tile.rows();
        let mut work = Work { ty: self, product, acts, scratch, tile };
        for row in all.clone().step_by(SUMMED_ROWS) {
            let rows = row..all.end.min(row + SUMMED_ROWS);
            let mut first = 0;
            while first < outputs {
                let left = (outputs - first).div_ceil(TOGETHER);
                let strips = if self.has_strips && rows.len() >= MANY && left >= STRIPS { STRIPS } else { 1 };
                if rows.len() <= self.n_few {
                    work.gemv(rows.clone(), first);
                } else {
                    work.gemm(rows.clone(), first, strips);
                }
                first += strips * TOGETHER;
            }
        }
    }

    /// Bytes of `inputs` weights, a multiple of a block.
    fn bytes_of(&self, inputs: usize) -> usize {
        inputs / self.block * self.bytes
    }
}

/// Multiplies a tile over one instruction set: see [`Type::of`].
pub fn multiply<L: Lanes, B: Lanes, F: Coded>(
    product: &Product<'_>,
    acts: BlockRows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    (const { &Type::of::<L, B, F>() }).multiply(product, acts, scratch, tile);
}

/// The multiplication of one tile.
struct Work<'a, 'b> {
    ty: &'a Type,
    product: &'a Product<'a>,
    acts: BlockRows<'a>,
    scratch: &'a mut Scratch,
    tile: &'a mut Tile<'b, f32>,
}

/// Function that computes scales and offsets from the heads of `n` units of 16 rows: `[groups, 16]` each.
type ScalesFn = unsafe fn(heads: *const [u8; 16], n: usize, scales: *mut f32, offsets: *mut f32);

/// The [`ScalesFn`] of a type.
///
/// # Safety
/// The heads are valid, and there is space for the scales and offsets.
unsafe fn scales<L: Lanes, F: Coded>(heads: *const [u8; 16], n: usize, scales: *mut f32, offsets: *mut f32) {
    L::vectorize(Scales::<F> { heads, n, scales, offsets, of: PhantomData });
}

/// The arguments of [`scales`].
struct Scales<F> {
    heads: *const [u8; 16],
    n: usize,
    scales: *mut f32,
    offsets: *mut f32,
    of: PhantomData<F>,
}

impl<F: Coded> Kernel for Scales<F> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let len = UNIT / F::GROUP * TOGETHER;
        for unit in 0..self.n {
            // SAFETY: the caller of `scales` ensures the heads and the space.
            let (heads, scales, offsets) = unsafe {
                (
                    from_raw_parts(self.heads.add(unit * F::HEAD), F::HEAD),
                    from_raw_parts_mut(self.scales.add(unit * len), len),
                    from_raw_parts_mut(self.offsets.add(unit * len), len),
                )
            };
            F::groups(l, heads, scales, offsets);
            if let (false, Some(zero)) = (F::MINIMUMS, F::ZERO) {
                let zero = l.splat(-f32::from(zero));
                let of = scales.as_chunks::<16>().0.iter().zip(offsets.as_chunks_mut::<16>().0);
                of.for_each(|(scale, offset)| l.store(offset, l.mul(l.load(scale), zero)));
            }
        }
    }
}

/// Function that finishes the outputs of some activation rows from their sums: see [`finish`].
type FinishFn = fn(&Product<'_>, &mut Tile<'_, f32>, rows: Range<usize>, first: usize, sums: &[f32]);

/// Finishes outputs from `first` on. `sums` is `[rows, strips, 16]`; the last strip may be partial.
fn finish<L: Lanes>(
    product: &Product<'_>,
    tile: &mut Tile<'_, f32>,
    rows: Range<usize>,
    first: usize,
    sums: &[f32],
) {
    L::vectorize(Finish { product, tile, rows, first, sums });
}

/// The arguments of [`finish`].
struct Finish<'a, 'b> {
    product: &'a Product<'a>,
    tile: &'a mut Tile<'b, f32>,
    rows: Range<usize>,
    first: usize,
    sums: &'a [f32],
}

impl Kernel for Finish<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { product, tile, rows, first, sums } = self;
        let of_row = sums.len() / rows.len();
        for (row, sums) in rows.zip(sums.chunks_exact(of_row)) {
            let outputs = &mut tile.row_mut(row)[first..];
            for (i, sums) in sums.as_chunks::<TOGETHER>().0.iter().enumerate() {
                let at = i * TOGETHER;
                match outputs.get_mut(at..).and_then(|outputs| outputs.first_chunk_mut()) {
                    Some(outputs) => product.finish_16(l, outputs, first + at, l.load(sums)),
                    None => {
                        for (j, (output, sum)) in outputs.iter_mut().skip(at).zip(sums).enumerate() {
                            product.finish(output, first + at + j, *sum);
                        }
                    }
                }
            }
        }
    }
}

/// Properties of a type that products and sums depend on.
trait Kind {
    /// Weights per scale: 16 or 32.
    const GROUP: usize;
    /// True if codes are signed bytes; all others have an offset.
    const SIGNED: bool;
}

/// All types with these groups.
struct Groups<const GROUP: usize, const SIGNED: bool>;

impl<const GROUP: usize, const SIGNED: bool> Kind for Groups<GROUP, SIGNED> {
    const GROUP: usize = GROUP;
    const SIGNED: bool = SIGNED;
}

/// One type.
struct Of<F>(PhantomData<F>);

impl<F: Coded> Kind for Of<F> {
    const GROUP: usize = F::GROUP;
    const SIGNED: bool = F::ZERO.is_none();
}

/// Initial sums of the group of inputs from `input` on: 0, or the correction for the offset of signed codes.
///
/// # Safety
/// `blocks` has the block of `input`.
#[inline(always)]
unsafe fn none<L: Lanes, K: Kind>(l: L, blocks: *const ActBlock, input: usize) -> L::Ints {
    if !K::SIGNED || L::ZERO == 0 {
        return l.splat_int(0);
    }
    // SAFETY: the caller ensures the block.
    l.splat_int(unsafe { (*blocks.add(input / 32)).zeros[which::<K>(input)] })
}

/// Adds the products of codes and activations to `acc`.
#[inline(always)]
fn dot<L: Lanes, K: Kind>(l: L, acc: L::Ints, codes: L::Bytes, acts: L::Bytes) -> L::Ints {
    if K::SIGNED { l.dot_signed(acc, codes, acts) } else { l.dot(acc, codes, acts) }
}

/// Adds a group to the sums of 16 outputs, scaled and with its offset. `input` is its first input, `blocks`
/// are those of the activation row.
///
/// # Safety
/// `blocks` has the block of `input`.
#[inline(always)]
unsafe fn add<L: Lanes, K: Kind>(
    l: L,
    sums: L::Floats,
    ints: L::Ints,
    scale: L::Floats,
    offset: L::Floats,
    blocks: *const ActBlock,
    input: usize,
) -> L::Floats {
    // SAFETY: the caller ensures the block.
    let block = unsafe { &*blocks.add(input / 32) };
    let sums = l.fma(l.mul(l.to_floats(ints), scale), l.splat(block.scale), sums);
    if K::SIGNED { sums } else { l.fma(offset, l.splat(block.sums[which::<K>(input)]), sums) }
}

/// Index of a group's sum in its block.
#[inline(always)]
fn which<K: Kind>(input: usize) -> usize {
    if K::GROUP == 32 { 2 } else { input % 32 / 16 }
}

/// Copies the head of the first `inputs` of a unit of a row.
///
/// # Safety
/// The blocks are valid, and there is space for the head.
#[inline(always)]
unsafe fn head<F: Coded>(row: *const u8, inputs: usize, head: *mut [u8; 16]) {
    // SAFETY: the caller ensures the blocks, and space for the head.
    unsafe {
        let blocks = from_raw_parts(row, inputs / F::BLOCK * F::BYTES);
        F::head(blocks, from_raw_parts_mut(head, F::HEAD - 15));
    }
}
