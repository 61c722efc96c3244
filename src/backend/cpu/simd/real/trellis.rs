//! Codes of a [`Trellis`]: the search for the best codes of several vectors at once, and the values of a page
//! of codes.
//!
//! A value depends on the codes before it, so a page is expanded to bytes before it is multiplied, instead of
//! looking codes up during the multiplication as [`codes`](super::codes) does.
#![allow(unsafe_code)]

use ggml_types::turboquant::{SEARCHED, Trellis};

use super::{UNIT, UnitOf};
use crate::lanes::{Kernel, Lanes, array};

/// A matrix of codes whose values follow from a trellis, in units of 64 columns.
#[derive(Clone, Copy)]
pub struct TrellisMatrix<'a> {
    /// The trellis.
    pub trellis: &'static Trellis,
    /// Direction of the vectors.
    pub vectors: Along,
    /// The units, row after row: of [`UnitOf::Table4`] for codes of 4 bits, of [`UnitOf::Table2`] for codes
    /// of 2 bits. For codes of 3 bits, they are of [`UnitOf::Signed3`], with the third bit in the place of
    /// the sign.
    pub bytes: &'a [u8],
}

/// Direction of the vectors of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// A column of 64 is a vector.
    Columns,
    /// A row of this many units is a vector.
    Rows(usize),
}

impl TrellisMatrix<'_> {
    /// Format of the units.
    pub fn unit_of(trellis: &Trellis) -> UnitOf {
        match trellis.bits() {
            2 => UnitOf::Table2,
            3 => UnitOf::Signed3,
            _ => UnitOf::Table4,
        }
    }

    /// Units in a row.
    fn row_units(&self) -> usize {
        match self.vectors {
            Along::Columns => 1,
            Along::Rows(units) => units,
        }
    }

    /// Number of units before the first whose codes are its context, if its vector is as long as that.
    fn context(&self) -> usize {
        (self.trellis.window() / self.trellis.bits()) as usize - 1
    }

    /// # Panics
    /// If there are fewer codes than values, or if units are not whole.
    pub(super) fn check(&self, out: &[u8]) {
        let (n, unit_bytes) = (out.len() / UNIT, Self::unit_of(self.trellis).bytes());
        assert!(out.len().is_multiple_of(UNIT * self.row_units()) && self.bytes.len() >= n * unit_bytes);
        let whole = self.vectors != Along::Columns || n >= self.context();
        assert!(whole && self.trellis.values().len() == 1 << self.trellis.window());
    }
}

/// The codes of a unit.
#[inline(always)]
fn codes_of(unit_of: UnitOf, unit: &[u8]) -> [u8; UNIT] {
    let mut codes = [0; UNIT];
    match unit_of {
        UnitOf::Table4 => {
            for b in 0..32 {
                (codes[b], codes[32 + b]) = (unit[b] & 15, unit[b] >> 4);
            }
        }
        UnitOf::Table2 | UnitOf::Signed3 => {
            for quarter in 0..4 {
                for b in 0..16 {
                    codes[16 * quarter + b] = unit[b] >> (2 * quarter) & 3;
                }
            }
            if unit_of == UnitOf::Signed3 {
                for (codes, bits) in codes.as_chunks_mut::<8>().0.iter_mut().zip(&unit[16..24]) {
                    // Byte `i` becomes 4 if bit `i` is set.
                    let each = (u64::from(*bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
                    let third = (each + 0x7f7f_7f7f_7f7f_7f7f) >> 5 & 0x0404_0404_0404_0404;
                    *codes = (u64::from_le_bytes(*codes) | third).to_le_bytes();
                }
            }
        }
        UnitOf::Sign | UnitOf::Int8 => unreachable!("no codes of a trellis"),
    }
    codes
}

/// Plain code that defines [`RealKernels::expand`](super::RealKernels::expand).
#[inline(always)]
pub(super) fn expand(matrix: &TrellisMatrix<'_>, out: &mut [u8]) {
    matrix.check(out);
    let (trellis, unit_of) = (matrix.trellis, TrellisMatrix::unit_of(matrix.trellis));
    let (bits, mask) = (trellis.bits(), (trellis.values().len() - 1) as u8);
    // One entry per byte, so that an index needs no check.
    let mut table = [0_u8; 256];
    table.iter_mut().zip(trellis.values()).for_each(|(entry, value)| *entry = value.cast_unsigned());
    let (context, unit_bytes) = (matrix.context(), unit_of.bytes());
    let codes = |unit: usize| codes_of(unit_of, &matrix.bytes[unit * unit_bytes..][..unit_bytes]);
    let look_up = |windows: &[u8; UNIT], out: &mut [u8; UNIT]| {
        for i in 0..UNIT {
            out[i] = table[usize::from(windows[i])];
        }
    };
    let units = out.as_chunks_mut::<UNIT>().0;
    match matrix.vectors {
        Along::Columns => {
            let mut windows = [0; UNIT];
            let advance = |windows: &mut [u8; UNIT], codes: [u8; UNIT]| {
                for i in 0..UNIT {
                    windows[i] = (windows[i] << bits | codes[i]) & mask;
                }
            };
            let n = units.len();
            (n - context..n).for_each(|unit| advance(&mut windows, codes(unit)));
            for (unit, out) in units.iter_mut().enumerate() {
                advance(&mut windows, codes(unit));
                look_up(&windows, out);
            }
        }
        Along::Rows(row_units) => {
            for (row, units) in units.chunks_exact_mut(row_units).enumerate() {
                let mut before = codes((row + 1) * row_units - 1);
                for (i, out) in units.iter_mut().enumerate() {
                    let codes = codes(row * row_units + i);
                    let mut both = [0; 2 * UNIT];
                    both[..UNIT].copy_from_slice(&before);
                    both[UNIT..].copy_from_slice(&codes);
                    let mut windows = codes;
                    for back in 1..=context {
                        let (shift, codes) = (bits * back as u32, &both[UNIT - back..][..UNIT]);
                        for i in 0..UNIT {
                            windows[i] |= codes[i] << shift;
                        }
                    }
                    look_up(&windows, out);
                    before = codes;
                }
            }
        }
    }
}

/// [`RealKernels::search`](super::RealKernels::search) with a vector per lane.
///
/// Costs are multiplied by the number of branches, and the branch is added, so that the least cost of a state
/// contains its branch. They are integers below 2^24, so that arithmetic with floats is exact: the least cost
/// of a path is not below `-sum(x^2) / 2`, or `-2^11` per element, which is `-2^23` for 256 elements and 16
/// branches, and the costs of other states differ from it by those of two elements at most.
pub(super) struct Search<'a> {
    pub trellis: &'a Trellis,
    pub len: usize,
    /// `[n, len]`, with `n` of at most 16.
    pub x: &'a [i16],
    pub codes: &'a mut [u8],
}

/// `[elements, 16]`.
type Elements = [[f32; SEARCHED]; Trellis::MAX_LEN];

/// The branch with the least cost: `[elements, states, 16]`.
type Branches = [[[i8; SEARCHED]; Trellis::MAX_STATES]; Trellis::MAX_LEN];

/// The costs of all states: `[states, 16]`.
type Costs = [[f32; SEARCHED]; Trellis::MAX_STATES];

/// States that are computed together.
const STATES: usize = 4;

impl Kernel for Search<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { trellis, len, x, codes } = self;
        let (n, side) = (x.len() / len, Trellis::SEAM.min(len / 2));
        assert!(n <= SEARCHED && (2..=Trellis::MAX_LEN).contains(&len) && codes.len() == n * len);
        assert!(trellis.values().len() == 1 << trellis.window() && trellis.states() <= Trellis::MAX_STATES);
        assert!(trellis.states().is_multiple_of(STATES) && trellis.bits() >= 2);
        let branches = 1 << trellis.bits();
        let mut terms = [[0.0; 2]; 256];
        for (window, (term, value)) in terms.iter_mut().zip(trellis.values()).enumerate() {
            let (value, branch) = (f32::from(*value), (window / trellis.states()) as f32);
            *term = [branches as f32 * 2.0 * value * value + branch, branches as f32 * -2.0 * value];
        }
        let mut elements: Elements = [[0.0; SEARCHED]; Trellis::MAX_LEN];
        for (lane, x) in x.chunks_exact(len).enumerate() {
            elements.iter_mut().zip(x).for_each(|(element, x)| element[lane] = f32::from(*x));
        }
        let mut chosen: Branches = [[[0; SEARCHED]; Trellis::MAX_STATES]; Trellis::MAX_LEN];

        let mut costs: Costs = [[0.0; SEARCHED]; Trellis::MAX_STATES];
        let (before, after) = chosen[..2 * side].split_at_mut(side);
        step(l, trellis, &terms, &elements[len - side..len], &mut costs, before);
        step(l, trellis, &terms, &elements[..side], &mut costs, after);
        let mut seams = [0; SEARCHED];
        for (lane, seam) in seams.iter_mut().enumerate().take(n) {
            let mut state = 0;
            for other in 1..trellis.states() {
                state = if costs[other][lane] < costs[state][lane] { other } else { state };
            }
            for chosen in after.iter().rev() {
                state = window(trellis, chosen, state, lane) >> trellis.bits();
            }
            *seam = state;
        }

        costs = [[(1 << 23) as f32; SEARCHED]; Trellis::MAX_STATES];
        seams.iter().enumerate().for_each(|(lane, seam)| costs[*seam][lane] = 0.0);
        step(l, trellis, &terms, &elements[..len], &mut costs, &mut chosen[..len]);
        for (lane, codes) in codes.chunks_exact_mut(len).enumerate() {
            let mut state = seams[lane];
            for (code, chosen) in codes.iter_mut().zip(&chosen).rev() {
                let window = window(trellis, chosen, state, lane);
                (*code, state) = ((window & (branches - 1)) as u8, window >> trellis.bits());
            }
        }
    }
}

/// The last window of the best path to a state.
#[inline(always)]
fn window(
    trellis: &Trellis,
    chosen: &[[i8; SEARCHED]; Trellis::MAX_STATES],
    state: usize,
    lane: usize,
) -> usize {
    usize::from(chosen[state][lane].cast_unsigned()) * trellis.states() + state
}

/// Advances the costs by some elements, and writes the branches that were chosen.
#[inline(always)]
fn step<L: Lanes>(
    l: L,
    trellis: &Trellis,
    terms: &[[f32; 2]; 256],
    elements: &[[f32; SEARCHED]],
    costs: &mut Costs,
    chosen: &mut [[[i8; SEARCHED]; Trellis::MAX_STATES]],
) {
    let (states, branches) = (trellis.states(), 1 << trellis.bits());
    let (one, mask) = (l.splat(1.0), l.splat_int(branches as i32 - 1));
    let mut other: Costs = [[0.0; SEARCHED]; Trellis::MAX_STATES];
    let (mut from, mut to) = (&mut *costs, &mut other);
    for (x, chosen) in elements.iter().zip(chosen) {
        let x = l.load(x);
        for first in (0..states).step_by(STATES) {
            let mut best = [l.splat(f32::MAX); STATES];
            for branch in 0..branches {
                let window = branch * states + first;
                // Windows of adjacent states have the same state before them.
                let before = l.load(&from[window >> trellis.bits()]);
                // SAFETY: there are 256 terms, at least as many as windows.
                let terms: &[[f32; 2]; STATES] = unsafe { array(terms.as_ptr().add(window).cast()) };
                for i in 0..STATES {
                    let [constant, factor] = terms[i];
                    let cost = l.fma(x, l.splat(factor), l.add(before, l.splat(constant)));
                    best[i] = l.min(best[i], cost);
                }
            }
            for i in 0..STATES {
                let branch = l.and(l.round(best[i]), mask);
                l.store_i8(&mut chosen[first + i], branch);
                l.store(&mut to[first + i], l.fnma(one, l.to_floats(branch), best[i]));
            }
        }
        std::mem::swap(&mut from, &mut to);
    }
    if !elements.len().is_multiple_of(2) {
        *costs = other;
    }
}

/// [`RealKernels::expand`](super::RealKernels::expand), after checks.
pub(super) struct Expand<'a> {
    pub matrix: &'a TrellisMatrix<'a>,
    pub out: &'a mut [u8],
}

impl Kernel for Expand<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        #[cfg(target_arch = "x86_64")]
        if L::IS_512 && std::arch::is_x86_feature_detected!("avx512vbmi") {
            // SAFETY: the processor has the instructions, and the sizes were checked.
            unsafe { vbmi::expand(self.matrix, self.out) };
            return;
        }
        expand(self.matrix, self.out);
    }
}

/// With look-ups of 64 bytes at a time in tables of 64 bytes.
#[cfg(target_arch = "x86_64")]
mod vbmi {
    use std::arch::x86_64::*;

    use super::{Along, TrellisMatrix, UNIT};

    /// # Safety
    /// The processor has AVX-512 F, BW and VBMI, and [`TrellisMatrix::check`] has passed.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub unsafe fn expand(matrix: &TrellisMatrix<'_>, out: &mut [u8]) {
        let (bytes, n) = (matrix.bytes.as_ptr(), out.len() / UNIT);
        let (out, values) = (out.as_mut_ptr(), matrix.trellis.values().as_ptr().cast::<u8>());
        // SAFETY: units up to `n` exist on both sides, tables are as long as the trellis says, and context
        // is at the end of the matrix or of the row.
        unsafe {
            match (matrix.trellis.bits(), matrix.vectors) {
                (4, Along::Columns) => {
                    let table = [0, 1, 2, 3].map(|i| load(values.add(64 * i)));
                    let mut windows = codes_4(bytes.add(32 * (n - 1)));
                    for unit in 0..n {
                        windows = after::<4>(windows, codes_4(bytes.add(32 * unit)));
                        store(out.add(UNIT * unit), look_up_256(windows, table));
                    }
                }
                (2, Along::Columns) => {
                    let table = load(values);
                    let mut windows = codes_2(bytes.add(16 * (n - 2)));
                    windows = after::<2>(windows, codes_2(bytes.add(16 * (n - 1))));
                    for unit in 0..n {
                        windows = after::<2>(windows, codes_2(bytes.add(16 * unit)));
                        store(out.add(UNIT * unit), _mm512_permutexvar_epi8(windows, table));
                    }
                }
                (3, Along::Rows(row_units)) => {
                    let table = load(values);
                    for row in (0..n).step_by(row_units) {
                        let mut before = codes_3(bytes.add(24 * (row + row_units - 1)));
                        for unit in row..row + row_units {
                            let codes = codes_3(bytes.add(24 * unit));
                            // The byte before each: of the quarter before, or of the unit before.
                            let quarters = _mm512_alignr_epi64::<6>(codes, before);
                            let shifted = _mm512_alignr_epi8::<15>(codes, quarters);
                            let windows = after::<3>(shifted, codes);
                            store(out.add(UNIT * unit), _mm512_permutexvar_epi8(windows, table));
                            before = codes;
                        }
                    }
                }
                _ => super::expand(matrix, std::slice::from_raw_parts_mut(out, n * UNIT)),
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn load(p: *const u8) -> __m512i {
        // SAFETY: the caller ensures 64 bytes.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn store(p: *mut u8, bytes: __m512i) {
        // SAFETY: the caller ensures 64 bytes.
        unsafe { _mm512_storeu_si512(p.cast(), bytes) }
    }

    /// `window << BITS | code`; look-ups ignore the bits above windows.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn after<const BITS: u32>(windows: __m512i, codes: __m512i) -> __m512i {
        let high = _mm512_set1_epi8((0xff_u8 << BITS).cast_signed());
        // The bits that come from the byte below are replaced by those of the code: `a & b | c`.
        let shifted = _mm512_slli_epi16::<BITS>(windows);
        _mm512_ternarylogic_epi64::<0xea>(shifted, high, codes)
    }

    /// 64 look-ups of bytes in a table of 256.
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn look_up_256(windows: __m512i, table: [__m512i; 4]) -> __m512i {
        let (bit_7, bit_6) =
            (_mm512_movepi8_mask(windows), _mm512_movepi8_mask(_mm512_add_epi8(windows, windows)));
        let low = _mm512_permutexvar_epi8(windows, table[0]);
        let low = _mm512_mask_permutexvar_epi8(low, bit_6, windows, table[1]);
        let high = _mm512_permutexvar_epi8(windows, table[2]);
        let high = _mm512_mask_permutexvar_epi8(high, bit_6, windows, table[3]);
        _mm512_mask_blend_epi8(bit_7, low, high)
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn codes_4(unit: *const u8) -> __m512i {
        // SAFETY: the caller ensures a unit.
        let bytes = unsafe { _mm256_loadu_si256(unit.cast()) };
        let high = _mm256_srli_epi16::<4>(bytes);
        let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bytes), high);
        _mm512_and_si512(both, _mm512_set1_epi8(15))
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn codes_2(unit: *const u8) -> __m512i {
        // SAFETY: the caller ensures a unit.
        let bytes = unsafe { _mm_loadu_si128(unit.cast()) };
        let shifts = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
        let shifted = _mm512_srlv_epi32(_mm512_broadcast_i32x4(bytes), shifts);
        _mm512_and_si512(shifted, _mm512_set1_epi8(3))
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn codes_3(unit: *const u8) -> __m512i {
        // SAFETY: the caller ensures a unit.
        unsafe {
            let third = unit.add(16).cast::<u64>().read_unaligned();
            let third = _mm512_maskz_mov_epi8(third, _mm512_set1_epi8(4));
            _mm512_or_si512(codes_2(unit), third)
        }
    }
}
