//! Trellis codes: the value of an element depends on its own code and on the codes before it, so that a few
//! bits per element choose among many values. This is not in the paper.

/// A trellis code of `bits` bits per element. The value of element `i` is an entry of a table, whose index,
/// the window, consists of the last `window` bits of the codes up to `i`, code `i` in the low bits. Codes
/// before the first element are those at the end of the vector (tail-biting), so that nothing but the codes
/// is stored.
///
/// The tables were trained on vectors of Gaussian numbers: quantiles in an order in which the values of each
/// context are spread, then 30 rounds of encoding and averaging, as for a Lloyd-Max quantiser. The best of
/// eight starting orders was kept.
#[derive(Debug, PartialEq, Eq)]
pub struct Trellis {
    bits: u32,
    window: u32,
    values: &'static [i8],
}

/// 4 bits per element, windows of 8 bits: the mean square error on Gaussian numbers is 0.0058, where the best
/// quantiser of 4 bits has 0.0095.
pub static TRELLIS_4: Trellis = Trellis { bits: 4, window: 8, values: &VALUES_4 };

/// 3 bits per element, windows of 6 bits: an error of 0.0228, where the best quantiser has 0.0345.
pub static TRELLIS_3: Trellis = Trellis { bits: 3, window: 6, values: &VALUES_3 };

/// 2 bits per element, windows of 6 bits: an error of 0.0825, where the best quantiser has 0.1175.
pub static TRELLIS_2: Trellis = Trellis { bits: 2, window: 6, values: &VALUES_2 };

impl Trellis {
    /// Values are multiples of 1 / 32 of the deviation of the elements.
    pub const UNIT: i32 = 32;

    /// Elements to be encoded are multiples of 1 / 64 of their deviation.
    pub const STEPS: i32 = 64;

    /// Largest magnitude of an element to be encoded, 8 deviations. Larger ones are clamped, which changes
    /// no choice: the largest value has less than 4.
    pub const MOST: i16 = (8 * Self::STEPS - 1) as i16;

    /// Elements on each side of the seam of a vector, between its last and its first element, from which the
    /// context there is determined.
    pub const SEAM: usize = 16;

    /// Longest vector.
    pub const MAX_LEN: usize = 256;

    /// Maximum number of states.
    pub const MAX_STATES: usize = 16;

    /// Bits of a code.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Bits of a window.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// The value of each window, in units of `1 / UNIT`: `[1 << window]`.
    pub fn values(&self) -> &'static [i8] {
        self.values
    }

    /// Number of states. A state is the part of a window that the next one shares: all but its oldest code.
    pub fn states(&self) -> usize {
        1 << (self.window - self.bits)
    }

    /// State before the first element of a vector of these codes.
    fn start(&self, codes: impl ExactSizeIterator<Item = u8>) -> usize {
        let n = (self.window / self.bits) as usize;
        let skip = codes.len().saturating_sub(n);
        codes.skip(skip).fold(0, |state, code| self.next(state, code)) & (self.states() - 1)
    }

    /// The window of a code after a state.
    fn next(&self, state: usize, code: u8) -> usize {
        (state << self.bits | usize::from(code)) & ((1 << self.window) - 1)
    }

    /// The value of each element, in units of `1 / UNIT`.
    pub fn decode(&self, codes: impl ExactSizeIterator<Item = u8> + Clone) -> impl Iterator<Item = i8> {
        let mut window = self.start(codes.clone());
        codes.map(move |code| {
            window = self.next(window, code);
            self.values[window]
        })
    }

    /// The codes with the smallest squared error, for a vector `x` of elements in steps of `1 / STEPS`: their
    /// mean square is about 1, and magnitudes are at most [`MOST`](Self::MOST).
    ///
    /// This is the Viterbi algorithm, run twice: first over the [`SEAM`](Self::SEAM) elements before and
    /// after the seam, from any state to any state, which gives the state at the seam; then over the vector,
    /// from that state to that state. All numbers are integers, and of equal costs the one with the lowest
    /// oldest code is chosen, so that the codes are the same on every backend. The cost of a value `v` of an
    /// element `x` is `2 v^2 - 2 v x`: half of the squared error `(x - 2 v)^2`, less `x^2 / 2`.
    ///
    /// # Panics
    /// If the lengths differ, or are 0 or above [`MAX_LEN`](Self::MAX_LEN).
    pub fn search(&self, x: &[i16], codes: &mut [u8]) {
        let (n, side) = (x.len(), Self::SEAM.min(x.len() / 2));
        assert!(n == codes.len() && (2..=Self::MAX_LEN).contains(&n), "{n} elements");
        let mut windows = [0; Self::MAX_LEN];
        let around = x[n - side..].iter().chain(&x[..side]);
        self.path(around, None, &mut windows[..2 * side]);
        let seam = usize::from(windows[side - 1]) & (self.states() - 1);
        self.path(x, Some(seam), &mut windows[..n]);
        for (code, window) in codes.iter_mut().zip(windows) {
            *code = window & ((1 << self.bits) - 1);
        }
    }

    /// The windows of the path with the least cost. With a `bound`, the path begins and ends in that state.
    fn path<'x>(&self, x: impl IntoIterator<Item = &'x i16>, bound: Option<usize>, windows: &mut [u8]) {
        const FAR: i32 = 1 << 23;
        let (states, branches) = (self.states(), 1 << self.bits);
        let mut oldest = [[0_u8; Self::MAX_STATES]; Self::MAX_LEN];
        let mut costs = [0; Self::MAX_STATES];
        if let Some(bound) = bound {
            costs = [FAR; Self::MAX_STATES];
            costs[bound] = 0;
        }
        for (x, oldest) in x.into_iter().zip(&mut oldest) {
            let before = costs;
            for state in 0..states {
                let window = |branch: usize| branch * states + state;
                let cost = |branch: usize| {
                    let value = i32::from(self.values[window(branch)]);
                    before[window(branch) >> self.bits] + 2 * value * (value - i32::from(*x))
                };
                let best = (0..branches).min_by_key(|branch| cost(*branch)).expect("a branch");
                (costs[state], oldest[state]) = (cost(best), best as u8);
            }
        }
        let least = (0..states).min_by_key(|state| costs[*state]).expect("a state");
        let mut state = bound.unwrap_or(least);
        for (window, oldest) in windows.iter_mut().zip(&oldest).rev() {
            let whole = usize::from(oldest[state]) * states + state;
            (*window, state) = (whole as u8, whole >> self.bits);
        }
    }
}

#[rustfmt::skip]
const VALUES_4: [i8; 256] = [
    -28, -35, -71, -47, 16, 21, -8, 28, 33, 56, 9, -5, -21, -14, 1, 39, 34, 28, 69, -16, 11, -32, 6, -10,
    -5, -47, 16, 21, 2, 44, -67, -22, 6, -13, -19, 32, 50, 26, -42, 66, 19, -32, 4, 12, -2, -26, -7, -61, 7,
    -26, 37, -33, -19, 12, 18, -13, 3, -40, -2, -61, 77, -7, 25, 48, 40, 10, -5, -11, -1, 49, -24, -41, 15,
    -18, 29, -53, -31, 21, 7, 84, 15, 61, 2, 23, -76, -21, -52, -3, -15, 18, 43, -34, -9, 30, -29, 6, 12,
    -39, 18, -85, -11, 34, 43, 5, -28, -2, 3, 25, -15, 56, -20, -51, -19, 21, 15, -26, 5, 9, -1, -11, 40,
    -6, -35, 31, 54, 107, -54, -42, 1, -19, 8, 35, -30, 71, 13, 19, 26, -10, -4, -42, -60, 47, -14, -23,
    -51, 14, -12, 8, 37, 19, -17, 56, 30, -78, -7, 25, -38, 1, -24, -30, -4, -9, 24, 43, -38, -23, -30, 12,
    7, 34, -15, 2, -108, 16, -47, 58, -26, -7, 7, 14, 1, -3, -13, 43, -68, 27, -19, -46, 63, -35, 34, 20,
    75, -46, -26, 3, 28, -13, 20, 9, -8, 13, -2, 38, 48, -19, -60, -35, -14, 6, -35, -3, -8, -66, 30, -21,
    48, 63, -27, 14, -46, 37, 2, 23, -9, -16, -4, -21, 42, 5, 25, 0, -39, 32, -29, 18, -53, -93, 56, 11, 10,
    51, 29, -25, 6, -11, -33, -18, 0, 23, 17, -55, 37, -42, 92, -6,
];

#[rustfmt::skip]
const VALUES_3: [i8; 64] = [
    37, -24, 56, 4, 17, -45, -76, -14, -5, -13, -34, 62, 34, -67, 20, 7, 22, 8, -17, -50, 53, -3, -30, 34,
    -20, -34, -6, 43, -48, 27, 10, 76, 5, 66, 38, 20, -61, -35, -18, -4, -43, -93, 2, -26, -12, 13, 29, 49,
    12, 45, 24, -7, -31, -18, -1, -58, 93, 33, 11, -13, -1, -26, -44, 21,
];

#[rustfmt::skip]
const VALUES_2: [i8; 64] = [
    18, 50, -33, -5, 19, -25, -3, 75, 9, -15, 45, -46, 27, -80, 3, -26, 55, -28, 0, 21, -16, 0, -51, 22, 31,
    79, -29, 5, -33, 19, -10, 55, 3, 29, -69, -26, 45, -48, 17, -11, -27, 7, -9, 35, -47, 45, 21, -5, -12,
    7, -31, 52, -48, 9, -17, 35, -58, 33, 10, -19, -10, 1, -43, 27,
];
