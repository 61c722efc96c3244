//! What an instruction set must offer: 64 bytes, 16 integers or 16 floats at a time, in however many
//! registers that takes. The kernels are written once over this.
//!
//! Everything inlines into [`Lanes::vectorize`], where the instruction set is known. The standard library's
//! own functions need not: so kernels loop over arrays of vectors by index, never with `map` or an iterator.
#![allow(unsafe_code)]

/// Vectors of one instruction set.
///
/// # Safety
/// Every function here may be called only on a processor that has the instruction set, which
/// [`vectorize`](Self::vectorize) takes for granted; pointers must be good for what is read or written,
/// at any alignment. Implementations must do exactly what is said here.
pub unsafe trait Lanes: Copy + 'static {
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
    unsafe fn load_bytes(p: *const u8) -> Self::Bytes;
    /// 32 bytes, then 32 zeros.
    unsafe fn load_half(p: *const u8) -> Self::Bytes;
    /// Writes 64 bytes.
    unsafe fn store_bytes(p: *mut u8, bytes: Self::Bytes);
    /// 4 bytes, 16 times.
    unsafe fn splat4(p: *const i8) -> Self::Bytes;
    /// 64 bytes of 16 rows (32, then 32 zeros, where not `whole`) with rows and columns exchanged: vector `i`
    /// holds bytes `4 i ..` to `4 i + 4` of every row.
    #[inline(always)]
    unsafe fn columns(rows: &[*const u8; 16], whole: bool) -> [Self::Bytes; 16] {
        // SAFETY: as for this function.
        unsafe {
            let mut vectors = [Self::splat4([0; 4].as_ptr()); 16];
            for i in 0..if whole { 16 } else { 8 } {
                let mut column = [0_u32; 16];
                for (row, four) in rows.iter().zip(&mut column) {
                    *four = row.add(4 * i).cast::<u32>().read_unaligned();
                }
                vectors[i] = Self::load_bytes(column.as_ptr().cast());
            }
            vectors
        }
    }
    /// Rows and columns of 16 rows exchanged: vector `i` holds bytes `4 i ..` to `4 i + 4` of every row.
    unsafe fn turned(rows: [Self::Bytes; 16]) -> [Self::Bytes; 16];
    /// 16 bytes of 16 rows, rows and columns exchanged: vector `i` holds bytes `4 i ..` to `4 i + 4` of each.
    unsafe fn quads(rows: &[*const u8; 16]) -> [Self::Ints; 4];
    /// Of 32 bytes `byte >> low & mask`, then `byte >> high & mask` of the same. Bits that a shift brings
    /// from the next byte are not in the mask.
    unsafe fn fields(p: *const u8, low: u32, high: u32, mask: u8) -> Self::Bytes;
    /// 32 bytes, then 32 others.
    unsafe fn load_halves(p: *const u8, q: *const u8) -> Self::Bytes;
    /// The low halves of 16 bytes and the high ones, then those of 16 others.
    unsafe fn nibbles(p: *const u8, q: *const u8) -> Self::Bytes;
    /// 16 bytes of each of four places.
    unsafe fn load_quarters(p: [*const u8; 4]) -> Self::Bytes;
    /// Digits of base 3 of bytes that are fractions of 256: how many thirds are in `byte x power`, less what
    /// is whole in it. Neighbouring bytes have the same power.
    unsafe fn trits(bytes: Self::Bytes, powers: &[u8; 64]) -> Self::Bytes;
    /// Of 16 integers those at the indices, which are below 16.
    unsafe fn look_up(indices: Self::Bytes, table: &[i8; 16]) -> Self::Bytes;
    /// The bytes of 16 integers, low ones first.
    unsafe fn as_bytes(ints: Self::Ints) -> Self::Bytes;
    /// `a | b << SHIFT`, where that takes no bit into another byte.
    unsafe fn with_high<const SHIFT: u32>(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `codes | 16` where the bit is set, of 64.
    unsafe fn with_fifth(codes: Self::Bytes, bits: u64) -> Self::Bytes;
    /// `byte >> SHIFT & 3`.
    unsafe fn codes<const SHIFT: u32>(bytes: Self::Bytes) -> Self::Bytes;

    /// `acc[i] += codes[4 i ..][j] * acts[4 i ..][j]` over 4 `j`; codes are below 128, acts are signed.
    unsafe fn dot(acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints;
    /// What is added to signed bytes before [`dot_signed`](Self::dot_signed): 128 where the product of bytes
    /// takes codes without a sign, else 0.
    const ZERO: u8;
    /// The codes of signed bytes: [`ZERO`](Self::ZERO) more.
    unsafe fn signed_codes(bytes: Self::Bytes) -> Self::Bytes;
    /// As [`dot`](Self::dot) with codes of [`signed_codes`](Self::signed_codes); acts are above -128.
    unsafe fn dot_signed(acc: Self::Ints, codes: Self::Bytes, acts: Self::Bytes) -> Self::Ints;
    /// Four times [`dot`](Self::dot).
    #[inline(always)]
    unsafe fn dot4(acc: Self::Ints, codes: [Self::Bytes; 4], acts: [Self::Bytes; 4]) -> Self::Ints {
        let mut acc = acc;
        for i in 0..4 {
            // SAFETY: as for this function.
            acc = unsafe { Self::dot(acc, codes[i], acts[i]) };
        }
        acc
    }

    /// Makes ready for [`tile_sums`](Self::tile_sums) of so many rows, on this thread.
    #[inline(always)]
    unsafe fn tiles_begin(_rows: usize) {}
    /// The int8 matrix product of unpacked codes with the rows of activations that were announced, `stride`
    /// bytes apart, over `quads` times four inputs (a multiple of 16): `sums` is `[rows, 16 STRIP_VECTORS]`,
    /// and is added to where `go_on` says so. All begin at cache lines, for speed.
    #[inline(always)]
    unsafe fn tile_sums(
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
    #[inline(always)]
    unsafe fn tiles_awake() {}
    /// Gives back what [`tiles_begin`](Self::tiles_begin) took.
    #[inline(always)]
    unsafe fn tiles_end() {}

    /// No sums yet.
    unsafe fn no_sums() -> Self::Sums;
    /// Adds `codes * acts` for the four codes of each byte: `acts[i]` belongs to bits `2 i`.
    unsafe fn dot_packed(sums: Self::Sums, packed: Self::Bytes, acts: [Self::Bytes; 4]) -> Self::Sums;
    /// Sum of all that was added.
    unsafe fn total(sums: Self::Sums) -> i32;

    /// The same integer 16 times.
    unsafe fn splat_int(x: i32) -> Self::Ints;
    /// 16 integers.
    unsafe fn load_ints(p: *const i32) -> Self::Ints;
    /// Writes 16 integers.
    unsafe fn store_ints(p: *mut i32, ints: Self::Ints);
    /// `a + b`.
    unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// 16 bytes without a sign.
    unsafe fn load_u8(p: *const u8) -> Self::Ints;
    /// `ints >> n`, of integers that are not negative.
    unsafe fn shift_right(ints: Self::Ints, n: usize) -> Self::Ints;
    /// `ints << n`.
    unsafe fn shift_left(ints: Self::Ints, n: usize) -> Self::Ints;
    /// The bits that both have.
    unsafe fn and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// The bits that either has.
    unsafe fn or(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Sum of the 16.
    unsafe fn sum_ints(ints: Self::Ints) -> i32;
    /// Sum of each of 16 vectors.
    #[inline(always)]
    unsafe fn sum_ints_each(vectors: &[Self::Ints; 16]) -> Self::Ints {
        let mut sums = [0; 16];
        for i in 0..16 {
            // SAFETY: as for this function.
            sums[i] = unsafe { Self::sum_ints(vectors[i]) };
        }
        // SAFETY: as for this function.
        unsafe { Self::load_ints(sums.as_ptr()) }
    }
    /// Of 16 vectors the sums of the first and the last 8: each one lane of two vectors.
    unsafe fn sums_of_8(vectors: &[Self::Ints; 16]) -> [Self::Ints; 2];
    /// The same of 4 at a time.
    unsafe fn sums_of_4(vectors: &[Self::Ints; 16]) -> [Self::Ints; 4];
    /// The f16 in the low halves of 16 integers.
    unsafe fn halves_to_floats(ints: Self::Ints) -> Self::Floats;
    /// Nearest floats.
    unsafe fn to_floats(ints: Self::Ints) -> Self::Floats;
    /// `max(a, bits of |x|)`, signed, the bits without the sign.
    unsafe fn max_magnitude(a: Self::Ints, x: Self::Floats) -> Self::Ints;
    /// Largest of the 16, signed.
    unsafe fn largest(ints: Self::Ints) -> i32;
    /// Nearest integers, ties to even, of floats within i32.
    unsafe fn round(x: Self::Floats) -> Self::Ints;
    /// Writes integers within i8 as 16 bytes.
    unsafe fn store_i8(p: *mut i8, ints: Self::Ints);

    /// The same float 16 times.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// 16 floats.
    unsafe fn load(p: *const f32) -> Self::Floats;
    /// Writes 16 floats.
    unsafe fn store(p: *mut f32, x: Self::Floats);
    /// 16 f16 as floats.
    unsafe fn load_f16(p: *const u8) -> Self::Floats;
    /// 16 bf16 as floats.
    unsafe fn load_bf16(p: *const u8) -> Self::Floats;
    /// 16 i8 as floats.
    unsafe fn load_i8(p: *const i8) -> Self::Floats;
    /// `a + b`.
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b`.
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a b + c`, rounded once; in WebAssembly, which has no such instruction, the product is rounded before.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c - a b`, rounded likewise.
    unsafe fn fnma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `x / divisor`, correctly rounded, where nothing overflows: the reciprocal is that of the divisor. The
    /// quotient from it is mended twice by its exact remainder (Markstein). The divider takes 24 cycles for
    /// 16 quotients, this takes 3.
    #[inline(always)]
    unsafe fn divide(x: Self::Floats, divisor: Self::Floats, reciprocal: Self::Floats) -> Self::Floats {
        // SAFETY: as for this function.
        unsafe {
            let near = Self::mul(x, reciprocal);
            let nearer = Self::fma(Self::fnma(near, divisor, x), reciprocal, near);
            Self::fma(Self::fnma(nearer, divisor, x), reciprocal, nearer)
        }
    }
    /// [`fma`](Self::fma) of one element.
    #[inline(always)]
    fn fma_one(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    /// Sum of the 16: `i` and `i + 8`, then 4, 2 and 1 apart.
    unsafe fn sum(x: Self::Floats) -> f32;
    /// [`sum`](Self::sum) of each of 16 vectors, `[16, 16]` in memory.
    #[inline(always)]
    unsafe fn sum_each(vectors: *const f32) -> Self::Floats {
        let mut sums = [0.0; 16];
        for i in 0..16 {
            // SAFETY: as for this function.
            sums[i] = unsafe { Self::sum(Self::load(vectors.add(16 * i))) };
        }
        // SAFETY: as for this function.
        unsafe { Self::load(sums.as_ptr()) }
    }

    /// 16 floats for look-ups.
    unsafe fn table(p: *const f32) -> Self::Table;
    /// 16 of 64 columns, `part` below 4: of byte `b` of 16, the bits `2 part` and `2 part + 1` are an index
    /// below 4, and bit `16 part + b` of the 8 bytes at `signs` says that the value is negative. The table
    /// repeats after 4.
    unsafe fn signed(p: *const u8, signs: *const u8, part: usize, table: Self::Table) -> Self::Floats;
    /// Of 16 bytes, the low halves are indices where `part` is 0, the high ones where it is 1.
    unsafe fn table4(p: *const u8, part: usize, table: Self::Table) -> Self::Floats;
    /// 16 codes of 2 bits, low bits first, are indices; the table repeats after 4.
    unsafe fn table2(p: *const u8, table: Self::Table) -> Self::Floats;
    /// `x + y` where the bit is set, of 16 bits, low bits first; elsewhere `x`.
    unsafe fn add_where(bits: *const u8, x: Self::Floats, y: Self::Floats) -> Self::Floats;

    /// A f16 as f32.
    unsafe fn f16_to_f32(bits: u16) -> f32;
    /// 128 weights of Q6_K, four times their value, in order: 4 low bits from 64 bytes (first all low
    /// nibbles, then all high ones), 2 high bits from 32 bytes (bits 0, 2, 4 and 6 of each for a quarter),
    /// less 32.
    unsafe fn unpack_q6(low: *const u8, high: *const u8) -> [Self::Bytes; 2];
    /// Integer `4 g + e` has byte `16 g + 4 J + e` in its top bits and zeros below.
    unsafe fn top_bytes<const J: usize>(bytes: Self::Bytes) -> Self::Ints;
    /// Each of 4 floats four times.
    unsafe fn splat_each4(p: *const f32) -> Self::Floats;

    /// Asks for the cache line of an address, which need not be a good one.
    unsafe fn prefetch(p: *const u8);
    /// The same for what is wanted later: into the second cache.
    unsafe fn prefetch_far(p: *const u8);
}

/// A kernel with its arguments. `run` is always inlined, so that it is compiled for the instruction set of
/// whoever calls it.
pub trait Kernel {
    /// What it returns.
    type Out;

    /// Does the work.
    ///
    /// # Safety
    /// The processor has the instruction set of `L`.
    unsafe fn run<L: Lanes>(self) -> Self::Out;
}
