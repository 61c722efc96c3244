//! Quantisation of activations to int8.

use ggml_types::ActQuant;

use super::lanes::{Kernel, Lanes};
use super::{ActBlock, MAX_ACT, RowQuant, interleaved, padded};

/// [`Kernels::quantise`](super::Kernels::quantise).
pub struct Quantise<'a> {
    x: &'a [f32],
    q: &'a mut [i8],
}

impl<'a> Quantise<'a> {
    /// # Panics
    /// If `q` is not `[padded(x.len())]`.
    pub fn new(x: &'a [f32], q: &'a mut [i8]) -> Self {
        assert_eq!(q.len(), padded(x.len()), "room for {} values", x.len());
        Self { x, q }
    }
}

impl Kernel for Quantise<'_> {
    type Out = RowQuant;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> RowQuant {
        let Self { x, q } = self;
        let (chunks, rest) = x.as_chunks::<16>();
        // The bits of magnitudes, as integers, have the same order, with NaN above everything.
        let mut largest = l.splat_int(0);
        for chunk in chunks {
            largest = l.max_magnitude(largest, l.load(chunk));
        }
        let largest = rest.iter().fold(l.largest(largest) as u32, |max, x| max.max(x.abs().to_bits()));
        if x.len() != q.len() || largest > MAX_ACT.to_bits() {
            q.fill(0);
        }
        if largest > MAX_ACT.to_bits() {
            return RowQuant { scale: 0.0, sum: 0 };
        }
        let scale = 127.0 / f32::from_bits(largest).max(1e-5);
        let mut sums = l.splat_int(0);
        for (i, chunk) in chunks.iter().enumerate() {
            let values = l.round(l.mul(l.load(chunk), l.splat(scale)));
            sums = l.add_ints(sums, values);
            let places = q[interleaved(16 * i)..].first_chunk_mut().expect("16 places next to each other");
            l.store_i8(places, values);
        }
        let mut sum = l.sum_ints(sums);
        for (k, x) in x.iter().enumerate().skip(16 * chunks.len()) {
            let value = (x * scale).round_ties_even() as i8;
            q[interleaved(k)] = value;
            sum += i32::from(value);
        }
        RowQuant { scale, sum }
    }
}

/// [`Kernels::quantise_blocks`](super::Kernels::quantise_blocks).
pub struct QuantiseBlocks<'a> {
    pub x: &'a [f32],
    pub q: &'a mut [i8],
    pub blocks: &'a mut [ActBlock],
}

impl Kernel for QuantiseBlocks<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        quantise_blocks_in_vectors(l, self.x, self.q, self.blocks);
    }
}

/// Quantises a row: `q` is `[x.len()]`, and `blocks` has one element per 32 inputs. See
/// [`ActQuant::I8PerBlock`](ggml_types::ActQuant::I8PerBlock).
#[inline(always)]
pub fn quantise_blocks(x: &[f32], q: &mut [i8], blocks: &mut [ActBlock]) {
    let parts = x.chunks(ActQuant::BLOCK).zip(q.chunks_mut(ActQuant::BLOCK));
    for ((x, q), block) in parts.zip(blocks) {
        let absmax = x.iter().fold(0.0_f32, |max, x| if x.abs() > max { x.abs() } else { max });
        let finite = x.iter().all(|x| x.is_finite());
        let (scale, inverse) = scale_of(if finite { absmax } else { f32::INFINITY });
        let mut sums = [0; 2];
        for (i, (x, q)) in x.iter().zip(q).enumerate() {
            *q = (x * inverse).round_ties_even() as i8;
            sums[i / 16] += i32::from(*q);
        }
        *block = of_block(scale, sums);
    }
}

/// Vector version of [`quantise_blocks`].
#[inline(always)]
fn quantise_blocks_in_vectors<L: Lanes>(l: L, x: &[f32], q: &mut [i8], blocks: &mut [ActBlock]) {
    let whole = x.len() / ActQuant::BLOCK;
    for i in 0..whole {
        let x = x[32 * i..][..32].as_chunks::<16>().0;
        let q = q[32 * i..][..32].as_chunks_mut::<16>().0;
        let mut halves = [l.load(&x[0]), l.load(&x[1])];
        // The bits of magnitudes, as integers, have the same order, with NaN above everything.
        let largest = l.max_magnitude(l.max_magnitude(l.splat_int(0), halves[0]), halves[1]);
        let (scale, inverse) = scale_of(f32::from_bits(l.largest(largest) as u32));
        if inverse == 0.0 {
            halves = [l.splat(0.0); 2];
        }
        let mut sums = [0; 2];
        for half in 0..2 {
            let values = l.round(l.mul(halves[half], l.splat(inverse)));
            l.store_i8(&mut q[half], values);
            sums[half] = l.sum_ints(values);
        }
        blocks[i] = of_block(scale, sums);
    }
    let at = whole * ActQuant::BLOCK;
    quantise_blocks(&x[at..], &mut q[at..], &mut blocks[whole..]);
}

/// Scale of a block with largest magnitude `absmax`, and its inverse; a NaN and 0 if `absmax` is not finite.
#[inline(always)]
fn scale_of(absmax: f32) -> (f32, f32) {
    match absmax {
        _ if !absmax.is_finite() => (f32::NAN, 0.0),
        ..ActQuant::NOTHING => (0.0, 0.0),
        _ => (absmax / 127.0, 127.0 / absmax),
    }
}

#[inline(always)]
fn of_block(scale: f32, [first, second]: [i32; 2]) -> ActBlock {
    let sums = [first, second, first + second];
    ActBlock { scale, sums: sums.map(|sum| scale * sum as f32), zeros: sums.map(|sum| -128 * sum), pad: 0 }
}
