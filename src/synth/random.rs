//! Pseudo-random numbers that are the same on every platform.

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter and a mixing function.
#[derive(Clone, Debug)]
pub(super) struct Random {
    counter: u64,
}

impl Random {
    /// The sequence for `name` and `seed`: independent of all other names, so the order of use does not
    /// matter.
    pub fn new(seed: u64, name: &str) -> Self {
        // FNV-1a, then mixed so that neighbouring seeds give unrelated sequences.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut random = Self { counter: seed ^ hash };
        Self { counter: random.next().wrapping_add(seed) }
    }

    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.counter = self.counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.counter ^ (self.counter >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number below `n`, which must be small compared with 2^32.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// A roughly normally distributed number with mean 0 and standard deviation 1, within 3.5: the sum of
    /// four uniformly distributed ones, in integers until the last step.
    pub fn bell(&mut self) -> f32 {
        let bits = self.next();
        let sum: i32 = (0..4).map(|part| i32::from((bits >> (16 * part)) as i16)).sum();
        // Each part has a variance of 2^32 / 12.
        sum as f32 * (1.732_050_8 / 65536.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // The published test vector for the initial state 1234567.
        let mut random = Random { counter: 1_234_567 };
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn bell_numbers_have_the_deviation_they_claim() {
        let mut random = Random::new(1, "bell");
        let values: Vec<f64> = (0..40_000).map(|_| f64::from(random.bell())).collect();
        let mean = values.iter().sum::<f64>() / 40_000.0;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 40_000.0;
        // Five standard errors of a mean of 40 thousand numbers are 0.025.
        assert!(mean.abs() < 0.025 && (variance - 1.0).abs() < 0.04, "mean {mean}, variance {variance}");
    }
}
