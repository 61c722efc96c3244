//! What an instruction set must offer: 64 bytes, 16 integers or 16 floats at a time, in however many
//! registers that takes. The kernels are written once over this.
//!
//! Everything inlines into [`Lanes::vectorize`], where the instruction set is known. The standard library's
//! own functions need not: so kernels loop over arrays of vectors by index, never with `map` or an iterator.
#![allow(unsafe_code)]

/// Vectors of one instruction set. A value is the proof that the processor has it: whatever is done with
/// vectors takes one, and a kernel gets it from [`vectorize`](Self::vectorize). It has no size.
///
/// Implementations do exactly what is said here.
pub trait Lanes: Copy + 'static {
    /// 64 bytes, signed or not.
    type Bytes: Copy;
    /// 16 i32.
    type Ints: Copy;
    /// 16 f32.
    type Floats: Copy;
    /// Sums that [`dot_packed`](Self::dot_packed) adds to.
    type Sums: Copy;
    /// 16 floats that are looked up.
    type Table: Copy;

    /// The set that multiplies few activation rows with ternary weights where this one multiplies tiles: they
    /// have the same instructions for these.
    type Few: Lanes;

    /// Weight rows of a block of the int8 matrix product, in vectors of 16.
    const STRIP_VECTORS: usize;
    /// Activation rows of a block of the int8 matrix product.
    const ROWS: usize;
    /// Activation rows that are multiplied with weights as they are, at a time: 4 or 8.
    const FEW_ROWS: usize = 4;
    /// Weight rows and activation rows of a block of the float matrix product.
    const FLOAT_BLOCK: (usize, usize);
    /// Columns of a block of four rows of a plain matrix product, in vectors.
    const GEMM_VECTORS: usize;
    /// Whether the code is fetched before it runs: what little a kernel of its own would gain is left out.
    const IS_FETCHED: bool = false;
    /// Activation rows that [`tile_sums`](Self::tile_sums) takes at most; 0 if there is no such
    /// instruction.
    const TILE_ROWS: usize = 0;

    /// Runs the kernel compiled for this instruction set.
    fn vectorize<K: Kernel>(kernel: K) -> K::Out;

    /// 64 bytes.
    fn load_bytes(self, p: &[u8; 64]) -> Self::Bytes;
    /// 32 bytes, then 32 zeros.
    fn load_half(self, p: &[u8; 32]) -> Self::Bytes;
    /// Writes 64 bytes.
    fn store_bytes(self, p: &mut [u8; 64], bytes: Self::Bytes);
    /// 4 bytes, 16 times.
    fn splat4(self, p: &[i8; 4]) -> Self::Bytes;
    /// 64 bytes of 16 rows (32, then 32 zeros, where not `whole`) with rows and columns exchanged: vector `i`
    /// holds bytes `4 i ..` to `4 i + 4` of every row.
    ///
    /// # Safety
    /// 64 bytes lie behind every pointer; 32 are enough where not `whole`.
    #[inline(always)]
    unsafe fn columns(self, rows: &[*const u8; 16], whole: bool) -> [Self::Bytes; 16] {
        let mut vectors = [self.splat4(&[0; 4]); 16];
        for i in 0..if whole { 16 } else { 8 } {
            let mut column = [0_u32; 16];
            for (row, four) in rows.iter().zip(&mut column) {
                // SAFETY: the caller's pointers are to 16 such words, or 8.
                *four = unsafe { row.add(4 * i).cast::<u32>().read_unaligned() };
            }
            // SAFETY: 16 words are 64 bytes.
            vectors[i] = self.load_bytes(unsafe { array(column.as_ptr().cast()) });
        }
        vectors
    }
    /// Rows and columns of 16 rows exchanged: vector `i` holds bytes `4 i ..` to `4 i + 4` of every row.
    fn turned(self, rows: [Self::Bytes; 16]) -> [Self::Bytes; 16];
    /// 16 bytes of 16 rows, rows and columns exchanged: vector `i` holds bytes `4 i ..` to `4 i + 4` of each.
    /// A row lies in its [`slot`].
    fn quads(self, rows: &[[u8; 16]; 16]) -> [Self::Ints; 4];
    /// Of 32 bytes `byte >> low & mask`, then `byte >> high & mask` of the same. Bits that a shift brings
    /// from the next byte are not in the mask.
    fn fields(self, p: &[u8; 32], low: u32, high: u32, mask: u8) -> Self::Bytes;
    /// 32 bytes, then 32 others.
    fn load_halves(self, p: &[u8; 32], q: &[u8; 32]) -> Self::Bytes;
    /// The low halves of 16 bytes and the high ones, then those of 16 others.
    fn nibbles(self, p: &[u8; 16], q: &[u8; 16]) -> Self::Bytes;
    /// 16 bytes of each of four places.
    fn load_quarters(self, p: [&[u8; 16]; 4]) -> Self::Bytes;
    /// Digits of base 3 of bytes that are fractions of 256: how many thirds are in `byte x power`, less what
    /// is whole in it. Neighbouring bytes have the same power.
    fn trits(self, bytes: Self::Bytes, powers: &[u8; 64]) -> Self::Bytes;
    /// Of 16 integers those at the indices, which are below 16.
    fn look_up(self, indices: Self::Bytes, table: &[i8; 16]) -> Self::Bytes;
    /// The bytes of 16 integers, low ones first.
    fn as_bytes(self, ints: Self::Ints) -> Self::Bytes;
    /// The integers of 64 bytes.
    fn as_ints(self, bytes: Self::Bytes) -> Self::Ints;
    /// `a | b << SHIFT`, where that takes no bit into another byte.
    fn with_high<const SHIFT: u32>(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `codes | 16` where the bit is set, of 64.
    fn with_fifth(self, codes: Self::Bytes, bits: u64) -> Self::Bytes;
    /// `byte >> SHIFT & 3`.
    fn codes<const SHIFT: u32>(self, bytes: Self::Bytes) -> Self::Bytes;

    /// `acc[i] += codes[4 i ..][j] * acts[4 i ..][j]` over 4 `j`; codes are below 128, acts are signed.
    fn dot(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints;
    /// What is added to signed bytes before [`dot_signed`](Self::dot_signed): 128 where the product of bytes
    /// takes codes without a sign, else 0.
    const ZERO: u8;
    /// The codes of signed bytes: [`ZERO`](Self::ZERO) more.
    fn signed_codes(self, bytes: Self::Bytes) -> Self::Bytes;
    /// As [`dot`](Self::dot) with codes of [`signed_codes`](Self::signed_codes); acts are above -128.
    fn dot_signed(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints;
    /// Four times [`dot`](Self::dot).
    #[inline(always)]
    fn dot4(self, acc: Self::Ints, codes: [Self::Bytes; 4], acts: [Self::Bytes; 4]) -> Self::Ints {
        let mut acc = acc;
        for i in 0..4 {
            acc = self.dot(acc, codes[i], acts[i]);
        }
        acc
    }

    /// Makes ready for [`tile_sums`](Self::tile_sums) of so many rows, on this thread.
    ///
    /// # Safety
    /// There are at most [`TILE_ROWS`](Self::TILE_ROWS).
    #[inline(always)]
    unsafe fn tiles_begin(self, _rows: usize) {}
    /// The int8 matrix product of unpacked codes with the rows of activations that were announced, `stride`
    /// bytes apart, over `quads` times four inputs (a multiple of 16): `sums` is `[rows, 16 STRIP_VECTORS]`,
    /// and is added to where `go_on` says so. All begin at cache lines, for speed.
    ///
    /// # Safety
    /// This thread is ready for the rows, and codes, activations and sums are there.
    #[inline(always)]
    unsafe fn tile_sums(
        self,
        _codes: *const u8,
        _acts: *const i8,
        _stride: usize,
        _quads: usize,
        _go_on: bool,
        _sums: *mut i32,
    ) {
        unreachable!("no tiles")
    }
    /// Keeps what multiplies tiles from falling asleep between two products, on a thread that has begun with
    /// them.
    ///
    /// # Safety
    /// This thread has begun with them.
    #[inline(always)]
    unsafe fn tiles_awake(self) {}
    /// Gives back what [`tiles_begin`](Self::tiles_begin) took.
    #[inline(always)]
    fn tiles_end(self) {}

    /// No sums yet.
    fn no_sums(self) -> Self::Sums;
    /// Adds `codes * acts` for the four codes of each byte: `acts[i]` belongs to bits `2 i`.
    fn dot_packed(self, sums: Self::Sums, packed: Self::Bytes, acts: [Self::Bytes; 4]) -> Self::Sums;
    /// Sum of all that was added.
    fn total(self, sums: Self::Sums) -> i32;

    /// The same integer 16 times.
    fn splat_int(self, x: i32) -> Self::Ints;
    /// 16 integers.
    fn load_ints(self, p: &[i32; 16]) -> Self::Ints;
    /// Writes 16 integers.
    fn store_ints(self, p: &mut [i32; 16], ints: Self::Ints);
    /// `a + b`.
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// 16 bytes without a sign.
    fn load_u8(self, p: &[u8; 16]) -> Self::Ints;
    /// `ints >> n`, of integers that are not negative.
    fn shift_right(self, ints: Self::Ints, n: usize) -> Self::Ints;
    /// `ints << n`.
    fn shift_left(self, ints: Self::Ints, n: usize) -> Self::Ints;
    /// The bits that both have.
    fn and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// The bits that either has.
    fn or(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Sum of the 16.
    fn sum_ints(self, ints: Self::Ints) -> i32;
    /// Sum of each of 16 vectors.
    #[inline(always)]
    fn sum_ints_each(self, vectors: &[Self::Ints; 16]) -> Self::Ints {
        let mut sums = [0; 16];
        for i in 0..16 {
            sums[i] = self.sum_ints(vectors[i]);
        }
        self.load_ints(&sums)
    }
    /// Sums of four neighbouring lanes of four vectors: lane `4 k + r` is that of vector `r` and lanes `4 k`
    /// to `4 k + 4`.
    fn sums_of_4(self, vectors: &[Self::Ints; 4]) -> Self::Ints;
    /// The f16 in the low halves of 16 integers.
    fn halves_to_floats(self, ints: Self::Ints) -> Self::Floats;
    /// Nearest floats.
    fn to_floats(self, ints: Self::Ints) -> Self::Floats;
    /// `max(a, bits of |x|)`, signed, the bits without the sign.
    fn max_magnitude(self, a: Self::Ints, x: Self::Floats) -> Self::Ints;
    /// Largest of the 16, signed.
    fn largest(self, ints: Self::Ints) -> i32;
    /// Nearest integers, ties to even, of floats within i32.
    fn round(self, x: Self::Floats) -> Self::Ints;
    /// Writes integers within i8 as 16 bytes.
    fn store_i8(self, p: &mut [i8; 16], ints: Self::Ints);

    /// The same float 16 times.
    fn splat(self, x: f32) -> Self::Floats;
    /// 16 floats.
    fn load(self, p: &[f32; 16]) -> Self::Floats;
    /// Writes 16 floats.
    fn store(self, p: &mut [f32; 16], x: Self::Floats);
    /// 16 floats in bytes.
    fn load_f32(self, p: &[u8; 64]) -> Self::Floats;
    /// 16 f16 as floats.
    fn load_f16(self, p: &[u8; 32]) -> Self::Floats;
    /// 16 bf16 as floats.
    fn load_bf16(self, p: &[u8; 32]) -> Self::Floats;
    /// 16 i8 as floats.
    fn load_i8(self, p: &[i8; 16]) -> Self::Floats;
    /// `a + b`.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b`.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b + c`, rounded once; in WebAssembly, which has no such instruction, the product is rounded before.
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c - a b`, rounded likewise.
    fn fnma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `x / divisor`, correctly rounded, where nothing overflows: the reciprocal is that of the divisor. The
    /// quotient from it is mended twice by its exact remainder (Markstein). The divider takes 24 cycles for
    /// 16 quotients, this takes 3.
    #[inline(always)]
    fn divide(self, x: Self::Floats, divisor: Self::Floats, reciprocal: Self::Floats) -> Self::Floats {
        let near = self.mul(x, reciprocal);
        let nearer = self.fma(self.fnma(near, divisor, x), reciprocal, near);
        self.fma(self.fnma(nearer, divisor, x), reciprocal, nearer)
    }
    /// [`fma`](Self::fma) of one element.
    #[inline(always)]
    fn fma_one(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    /// Sum of the 16: `i` and `i + 8`, then 4, 2 and 1 apart.
    fn sum(self, x: Self::Floats) -> f32;
    /// [`sum`](Self::sum) of each of 16 vectors, `[16, 16]` in memory.
    #[inline(always)]
    fn sum_each(self, vectors: &[f32; 256]) -> Self::Floats {
        let mut sums = [0.0; 16];
        for i in 0..16 {
            // SAFETY: `i` is below 16.
            sums[i] = self.sum(self.load(unsafe { array(vectors.as_ptr().add(16 * i)) }));
        }
        self.load(&sums)
    }

    /// 16 floats for look-ups.
    fn table(self, p: &[f32; 16]) -> Self::Table;
    /// 16 of 64 columns, `part` below 4: of byte `b` of 16, the bits `2 part` and `2 part + 1` are an index
    /// below 4, and bit `b` of `signs` says that the value is negative. The table repeats after 4.
    fn signed(self, p: &[u8; 16], signs: &[u8; 2], part: usize, table: Self::Table) -> Self::Floats;
    /// Of 16 bytes, the low halves are indices where `part` is 0, the high ones where it is 1.
    fn table4(self, p: &[u8; 16], part: usize, table: Self::Table) -> Self::Floats;
    /// 16 codes of 2 bits, low bits first, are indices; the table repeats after 4.
    fn table2(self, p: &[u8; 4], table: Self::Table) -> Self::Floats;
    /// `x + y` where the bit is set, of 16 bits, low bits first; elsewhere `x`.
    fn add_where(self, bits: &[u8; 2], x: Self::Floats, y: Self::Floats) -> Self::Floats;

    /// A f16 as f32.
    fn f16_to_f32(self, bits: u16) -> f32;
    /// 128 weights of Q6_K, four times their value, in order: 4 low bits from 64 bytes (first all low
    /// nibbles, then all high ones), 2 high bits from 32 bytes (bits 0, 2, 4 and 6 of each for a quarter),
    /// less 32.
    fn unpack_q6(self, low: &[u8; 64], high: &[u8; 32]) -> [Self::Bytes; 2];
    /// Integer `4 g + e` has byte `16 g + 4 J + e` in its top bits and zeros below.
    fn top_bytes<const J: usize>(self, bytes: Self::Bytes) -> Self::Ints;
    /// Each of 4 floats four times.
    fn splat_each4(self, p: &[f32; 4]) -> Self::Floats;

    /// Asks for the cache line of an address, which need not be a good one.
    fn prefetch(self, p: *const u8);
    /// The same for what is wanted later: into the second cache.
    fn prefetch_far(self, p: *const u8);
}

/// A kernel with its arguments. `run` is always inlined, so that it is compiled for the instruction set of
/// whoever calls it.
pub trait Kernel {
    /// What it returns.
    type Out;

    /// Does the work.
    fn run<L: Lanes>(self, l: L) -> Self::Out;
}

/// The array at an address.
///
/// # Safety
/// The elements are there, where `T` may lie, and stay as they are while the reference is used.
#[inline(always)]
pub unsafe fn array<'a, T, const N: usize>(p: *const T) -> &'a [T; N] {
    // SAFETY: the caller's promise.
    unsafe { &*p.cast() }
}

/// The array at an address, to be written.
///
/// # Safety
/// The elements are there, where `T` may lie, and are of this reference alone while it is used.
#[inline(always)]
pub unsafe fn array_mut<'a, T, const N: usize>(p: *mut T) -> &'a mut [T; N] {
    // SAFETY: the caller's promise.
    unsafe { &mut *p.cast() }
}

/// Where one of 16 rows lies, so that [`Lanes::quads`] finds the rows that it needs next to each other.
pub const fn slot(row: usize) -> usize {
    row % 4 * 4 + row / 4
}

/// `N` bytes from `at` on. Nothing is left of the check where the length is known, as that of a block is.
///
/// # Panics
/// Where there are fewer.
#[inline(always)]
pub fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("bytes within a block")
}

/// `M` times `N` bytes from `at` on, for loops over them: an index below `M` needs no check, but places that
/// are computed do, and a loop with checks is not unrolled.
///
/// # Panics
/// Where there are fewer.
#[inline(always)]
pub fn parts<const N: usize, const M: usize>(bytes: &[u8], at: usize) -> &[[u8; N]; M] {
    bytes[at..].as_chunks().0.first_chunk().expect("bytes within a block")
}
