//! Products of bytes with signs by popcount: the identity by which a kernel without byte products multiplies
//! projected queries with the signs of residuals.

/// The bit planes of integers from -128 to 127: bit `i % 32` of word `i / 32` of plane `b` is bit `b` of
/// number `i` in two's complement.
#[derive(Clone, Debug)]
pub struct Planes {
    /// `[8, words]`.
    words: Vec<u32>,
    sum: i32,
}

impl Planes {
    /// Splits numbers into bit planes.
    pub fn new(numbers: &[i8]) -> Self {
        let n_words = numbers.len().div_ceil(32);
        let mut words = vec![0; 8 * n_words];
        for (i, number) in numbers.iter().enumerate() {
            for (b, plane) in words.chunks_exact_mut(n_words).enumerate() {
                plane[i / 32] |= (u32::from(number.cast_unsigned()) >> b & 1) << (i % 32);
            }
        }
        Self { words, sum: numbers.iter().map(|x| i32::from(*x)).sum() }
    }

    /// The sum of the numbers, each with the sign of its bit of `signs`, 32 per word, low bits first, 1 for
    /// plus: `sum_b w_b (2 popcount(Q_b & S) - popcount(Q_b))` with `w_b = 2^b`, except `w_7 = -128`. It is
    /// exact, because `sum_b w_b popcount(Q_b)` is the sum of the numbers.
    ///
    /// # Panics
    /// If `signs` does not have as many words as a plane.
    pub fn signed_sum(&self, signs: &[u32]) -> i32 {
        assert_eq!(signs.len() * 8, self.words.len(), "words of signs");
        let plane = |(b, plane): (usize, &[u32])| -> i32 {
            let ones = plane.iter().zip(signs).map(|(q, s)| (q & s).count_ones().cast_signed()).sum::<i32>();
            if b == 7 { -(ones << 7) } else { ones << b }
        };
        2 * self.words.chunks_exact(signs.len().max(1)).enumerate().map(plane).sum::<i32>() - self.sum
    }
}
