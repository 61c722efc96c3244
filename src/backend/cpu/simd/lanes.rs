//! The operations of an instruction set on 64 bytes, 16 integers or 16 floats at a time, in as many registers
//! as that takes. The kernels are written once over this trait.
//!
//! Everything inlines into [`Lanes::vectorize`], where the instruction set is known. Functions of the
//! standard library may not inline, so kernels loop over arrays of vectors by index, never with `map` or an
//! iterator.
#![allow(unsafe_code)]

/// Vectors of one instruction set. A value proves that the processor has the set: every operation on vectors
/// takes one, and a kernel gets it from [`vectorize`](Self::vectorize). It has no size.
///
/// Implementations do exactly what these docs define.
pub trait Lanes: Copy + 'static {
    /// 64 bytes, signed or not.
    type Bytes: Copy;
    /// 16 i32.
    type Ints: Copy;
    /// 16 f32.
    type Floats: Copy;
    /// Sums that [`dot_packed`](Self::dot_packed) adds to.
    type Sums: Copy;
    /// Look-up table of 16 floats.
    type Table: Copy;

    /// The set used for few activation rows with ternary weights, if this one multiplies tiles otherwise.
    type Few: Lanes;

    /// Weight rows of a block of the int8 matrix product, in vectors of 16.
    const STRIP_VECTORS: usize;
    /// Activation rows of a block of the int8 matrix product.
    const ROWS: usize;
    /// Maximum number of activation rows that are multiplied at a time with packed weights: 4 or 8.
    const FEW_ROWS: usize = 4;
    /// Weight rows and activation rows of a block of the float matrix product.
    const FLOAT_BLOCK: (usize, usize);
    /// Columns of a block of four rows of a plain matrix product, in vectors.
    const GEMM_VECTORS: usize;
    /// True if the code is downloaded before it runs: kernels that gain little are then left out.
    const IS_FETCHED: bool = false;
    /// True if 64 bytes are one register.
    const IS_512: bool = false;
    /// Maximum number of activation rows of [`tile_sums`](Self::tile_sums); 0 without the instruction.
    const TILE_ROWS: usize = 0;

    /// Runs the kernel compiled for this instruction set.
    fn vectorize<K: Kernel>(kernel: K) -> K::Out;

    /// Loads 64 bytes.
    fn load_bytes(self, p: &[u8; 64]) -> Self::Bytes;
    /// Loads 32 bytes, followed by 32 zeros.
    fn load_half(self, p: &[u8; 32]) -> Self::Bytes;
    /// Writes 64 bytes.
    fn store_bytes(self, p: &mut [u8; 64], bytes: Self::Bytes);
    /// Repeats 4 bytes 16 times.
    fn splat4(self, p: &[i8; 4]) -> Self::Bytes;
    /// Transposes 64 bytes of 16 rows (32, followed by 32 zeros, if not `whole`): vector `i` holds bytes
    /// `4 i` to `4 i + 4` of every row.
    ///
    /// # Safety
    /// Every pointer is valid for reads of 64 bytes; 32 if not `whole`.
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
    /// Transposes 16 rows: vector `i` holds bytes `4 i` to `4 i + 4` of every row.
    fn transpose(self, rows: [Self::Bytes; 16]) -> [Self::Bytes; 16];
    /// Transposes 16 bytes of 16 rows: vector `i` holds bytes `4 i` to `4 i + 4` of every row. A row is
    /// stored in its [`slot`].
    fn quads(self, rows: &[[u8; 16]; 16]) -> [Self::Ints; 4];
    /// For 32 bytes, `byte >> low & mask`, then `byte >> high & mask` of the same bytes. The mask excludes
    /// the bits that a shift moves in from the next byte.
    fn fields(self, p: &[u8; 32], low: u32, high: u32, mask: u8) -> Self::Bytes;
    /// Loads 32 bytes, then 32 others.
    fn load_halves(self, p: &[u8; 32], q: &[u8; 32]) -> Self::Bytes;
    /// The low nibbles of 16 bytes, then the high ones; then those of 16 other bytes.
    fn nibbles(self, p: &[u8; 16], q: &[u8; 16]) -> Self::Bytes;
    /// Loads 16 bytes from each of four places.
    fn load_quarters(self, p: [&[u8; 16]; 4]) -> Self::Bytes;
    /// Base 3 digits of bytes that are fractions of 256: the number of thirds in `byte x power` modulo 256.
    /// Adjacent bytes have the same power.
    fn trits(self, bytes: Self::Bytes, powers: &[u8; 64]) -> Self::Bytes;
    /// Looks up 64 indices below 16 in a table of 16 integers.
    fn look_up(self, indices: Self::Bytes, table: &[i8; 16]) -> Self::Bytes;
    /// Reinterprets 16 integers as bytes, low ones first.
    fn as_bytes(self, ints: Self::Ints) -> Self::Bytes;
    /// Reinterprets 64 bytes as integers.
    fn as_ints(self, bytes: Self::Bytes) -> Self::Ints;
    /// `a | b << SHIFT`, where no bit is shifted into another byte.
    fn with_high<const SHIFT: u32>(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `codes | 16` for the codes whose bit is set, of 64 bits.
    fn with_fifth(self, codes: Self::Bytes, bits: u64) -> Self::Bytes;
    /// `byte >> SHIFT & 3`.
    fn codes<const SHIFT: u32>(self, bytes: Self::Bytes) -> Self::Bytes;

    /// `acc[i] += codes[4 i ..][j] * acts[4 i ..][j]` over 4 `j`; codes are below 128, acts are signed.
    fn dot(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints;
    /// Offset that is added to signed bytes before [`dot_signed`](Self::dot_signed): 128 if the byte product
    /// takes unsigned codes, else 0.
    const ZERO: u8;
    /// Converts signed bytes to codes by adding [`ZERO`](Self::ZERO).
    fn signed_codes(self, bytes: Self::Bytes) -> Self::Bytes;
    /// As [`dot`](Self::dot), with codes from [`signed_codes`](Self::signed_codes); acts are above -128.
    fn dot_signed(self, acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints;
    /// [`dot`](Self::dot) of four pairs of vectors.
    #[inline(always)]
    fn dot4(self, acc: Self::Ints, codes: [Self::Bytes; 4], acts: [Self::Bytes; 4]) -> Self::Ints {
        let mut acc = acc;
        for i in 0..4 {
            acc = self.dot(acc, codes[i], acts[i]);
        }
        acc
    }

    /// Configures this thread for [`tile_sums`](Self::tile_sums) of `rows` rows.
    ///
    /// # Safety
    /// `rows` is at most [`TILE_ROWS`](Self::TILE_ROWS).
    #[inline(always)]
    unsafe fn tiles_begin(self, _rows: usize) {}
    /// The int8 matrix product of unpacked codes with activation rows, as many as
    /// [`tiles_begin`](Self::tiles_begin) was told and `stride` bytes apart, over `quads` times four inputs
    /// (a multiple of 16). `sums` is `[rows, 16 STRIP_VECTORS]`, and is added to if `go_on`. For speed, all
    /// begin at cache lines.
    ///
    /// # Safety
    /// This thread is configured for the rows, and codes, activations and sums have these sizes.
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
    /// Keeps the tile unit awake between two products, on a thread that has called
    /// [`tiles_begin`](Self::tiles_begin).
    ///
    /// # Safety
    /// This thread has called [`tiles_begin`](Self::tiles_begin).
    #[inline(always)]
    unsafe fn tiles_awake(self) {}
    /// Releases the state that [`tiles_begin`](Self::tiles_begin) set up.
    #[inline(always)]
    fn tiles_end(self) {}

    /// Sums that are all 0.
    fn no_sums(self) -> Self::Sums;
    /// Adds `codes * acts` for the four codes in each byte: `acts[i]` is for bits `2 i` and `2 i + 1`.
    fn dot_packed(self, sums: Self::Sums, packed: Self::Bytes, acts: [Self::Bytes; 4]) -> Self::Sums;
    /// Total of the sums.
    fn total(self, sums: Self::Sums) -> i32;

    /// Repeats an integer 16 times.
    fn splat_int(self, x: i32) -> Self::Ints;
    /// Loads 16 integers.
    fn load_ints(self, p: &[i32; 16]) -> Self::Ints;
    /// Writes 16 integers.
    fn store_ints(self, p: &mut [i32; 16], ints: Self::Ints);
    /// `a + b`.
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Loads 16 unsigned bytes.
    fn load_u8(self, p: &[u8; 16]) -> Self::Ints;
    /// `ints >> n`, for integers that are not negative.
    fn shift_right(self, ints: Self::Ints, n: usize) -> Self::Ints;
    /// `ints << n`.
    fn shift_left(self, ints: Self::Ints, n: usize) -> Self::Ints;
    /// `a & b`.
    fn and(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// `a | b`.
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
    /// Sums of four adjacent lanes of four vectors: lane `4 k + r` is the sum of lanes `4 k` to `4 k + 4` of
    /// vector `r`.
    fn sums_of_4(self, vectors: &[Self::Ints; 4]) -> Self::Ints;
    /// Converts the f16 in the low halves of 16 integers to floats.
    fn halves_to_floats(self, ints: Self::Ints) -> Self::Floats;
    /// Converts integers to the nearest floats.
    fn to_floats(self, ints: Self::Ints) -> Self::Floats;
    /// `max(a, bits of |x|)` as signed integers.
    fn max_magnitude(self, a: Self::Ints, x: Self::Floats) -> Self::Ints;
    /// Largest of the 16 signed integers.
    fn largest(self, ints: Self::Ints) -> i32;
    /// Rounds floats in the range of i32 to the nearest integers, ties to even.
    fn round(self, x: Self::Floats) -> Self::Ints;
    /// Writes integers in the range of i8 as 16 bytes.
    fn store_i8(self, p: &mut [i8; 16], ints: Self::Ints);

    /// Repeats a float 16 times.
    fn splat(self, x: f32) -> Self::Floats;
    /// Loads 16 floats.
    fn load(self, p: &[f32; 16]) -> Self::Floats;
    /// Writes 16 floats.
    fn store(self, p: &mut [f32; 16], x: Self::Floats);
    /// Loads 16 floats from bytes.
    fn load_f32(self, p: &[u8; 64]) -> Self::Floats;
    /// Loads 16 f16 as floats.
    fn load_f16(self, p: &[u8; 32]) -> Self::Floats;
    /// Loads 16 bf16 as floats.
    fn load_bf16(self, p: &[u8; 32]) -> Self::Floats;
    /// Loads 16 i8 as floats.
    fn load_i8(self, p: &[i8; 16]) -> Self::Floats;
    /// `a + b`.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b`.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The lesser of each two numbers, of which none is NaN.
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b + c`, rounded once; in WebAssembly, which has no such instruction, the product is rounded first.
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c - a b`, rounded likewise.
    fn fnma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `x / divisor`, correctly rounded if nothing overflows; `reciprocal` is that of the divisor. The
    /// quotient from it is corrected twice with its exact remainder (Markstein). The divider takes 24 cycles
    /// for 16 quotients, this takes 3.
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
    /// Sum of the 16, in this order: lanes 8 apart are added, then 4, 2 and 1 apart.
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

    /// Makes a look-up table of 16 floats.
    fn table(self, p: &[f32; 16]) -> Self::Table;
    /// Looks up 16 of 64 columns; `part` is below 4. Bits `2 part` and `2 part + 1` of byte `b` of 16 are an
    /// index below 4, and bit `b` of `signs` is set if the value is negative. The table repeats after 4.
    fn signed(self, p: &[u8; 16], signs: &[u8; 2], part: usize, table: Self::Table) -> Self::Floats;
    /// Looks up 16 indices: the low halves of 16 bytes if `part` is 0, the high halves if it is 1.
    fn table4(self, p: &[u8; 16], part: usize, table: Self::Table) -> Self::Floats;
    /// Looks up 16 indices of 2 bits, low bits first; the table repeats after 4.
    fn table2(self, p: &[u8; 4], table: Self::Table) -> Self::Floats;
    /// `x + y` in lanes whose bit is set, of 16 bits, low bits first; `x` in the others.
    fn add_where(self, bits: &[u8; 2], x: Self::Floats, y: Self::Floats) -> Self::Floats;

    /// Converts an f16 to f32.
    fn f16_to_f32(self, bits: u16) -> f32;
    /// Unpacks 128 weights of Q6_K in order, multiplied by four: 4 low bits from 64 bytes (first all low
    /// nibbles, then all high ones), 2 high bits from 32 bytes (bits 0, 2, 4 and 6 of each byte for one
    /// quarter of the weights), minus 32.
    fn unpack_q6(self, low: &[u8; 64], high: &[u8; 32]) -> [Self::Bytes; 2];
    /// Integers whose top byte comes from `bytes` and whose other bits are 0: integer `4 g + e` gets byte
    /// `16 g + 4 J + e`.
    fn top_bytes<const J: usize>(self, bytes: Self::Bytes) -> Self::Ints;
    /// Repeats each of 4 floats four times.
    fn splat_each4(self, p: &[f32; 4]) -> Self::Floats;

    /// Prefetches the cache line of an address, which need not be valid.
    fn prefetch(self, p: *const u8);
    /// The same for data that is needed later: into L2.
    fn prefetch_far(self, p: *const u8);
}

/// A kernel with its arguments. `run` is always inlined, and so compiled for the caller's instruction set.
pub trait Kernel {
    /// Result of the kernel.
    type Out;

    /// Runs the kernel.
    fn run<L: Lanes>(self, l: L) -> Self::Out;
}

/// Returns the array at an address.
///
/// # Safety
/// The pointer is aligned and valid for `N` elements, which do not change while the reference is used.
#[inline(always)]
pub unsafe fn array<'a, T, const N: usize>(p: *const T) -> &'a [T; N] {
    // SAFETY: the caller ensures it.
    unsafe { &*p.cast() }
}

/// Returns the array at an address, for writing.
///
/// # Safety
/// The pointer is aligned and valid for `N` elements, which nothing else accesses meanwhile.
#[inline(always)]
pub unsafe fn array_mut<'a, T, const N: usize>(p: *mut T) -> &'a mut [T; N] {
    // SAFETY: the caller ensures it.
    unsafe { &mut *p.cast() }
}

/// Slot of one of 16 rows, chosen so that [`Lanes::quads`] finds the rows that it needs next to each other.
pub const fn slot(row: usize) -> usize {
    row % 4 * 4 + row / 4
}

/// `N` bytes from `at` on. The check is compiled away if the length is known, as that of a block is.
///
/// # Panics
/// If there are fewer.
#[inline(always)]
pub fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    bytes[at..].first_chunk().expect("bytes within a block")
}

/// `M` times `N` bytes from `at` on, for loops over them: indices below `M` need no check, while computed
/// offsets do, and a loop with checks is not unrolled.
///
/// # Panics
/// If there are fewer.
#[inline(always)]
pub fn parts<const N: usize, const M: usize>(bytes: &[u8], at: usize) -> &[[u8; N]; M] {
    bytes[at..].as_chunks().0.first_chunk().expect("bytes within a block")
}
