//! Routing of rows to experts: its parameters, and its definition in f32 code for hosts.

use super::Weight;

/// The choice of a row's experts by their logits `z`, and the weights `w` of their outputs:
///
/// ```text
/// p = softmax(z), or 1 / (1 + exp(-z)) per expert
/// s = p + bias
/// chosen: the n_used experts with the largest s (ties: the earlier one)
/// w = p / max(sum of the chosen p, 1e-20) if normalised, else p; times scale
/// ```
///
/// With groups, experts are chosen only from the best groups of neighbouring ones: those with the largest
/// sums of their two largest `s` (ties: the earlier group).
#[derive(Clone, Debug)]
pub struct Routing {
    /// The function from `z` to `p`.
    pub gating: Gating,
    /// `[experts]`, f32: a bias that affects only the choice (DeepSeek V3).
    pub bias: Option<Weight>,
    /// Groups of experts.
    pub groups: Option<Groups>,
    /// True if the weights of the chosen experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights, usually 1.
    pub scale: f32,
}

/// The function from the router's logits to probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
}

/// Groups of equally many neighbouring experts, at least two each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups; divides the number of experts.
    pub n: usize,
    /// Number of groups from which experts are chosen.
    pub n_used: usize,
}

impl Routing {
    /// Minimum of the sum that normalised weights are divided by.
    pub const MIN_SUM: f32 = 1e-20;

    /// The largest logits, and the softmax over these: the softmax over all experts, normalised.
    pub const SOFTMAX: Self =
        Self { gating: Gating::Softmax, bias: None, groups: None, normalise: true, scale: 1.0 };

    /// True if the choice depends only on the order of the logits, and the weights are the softmax over those
    /// of the chosen.
    pub fn is_softmax_of_chosen(&self) -> bool {
        let Self { gating, bias, groups, normalise, scale } = *self;
        gating == Gating::Softmax && bias.is_none() && groups.is_none() && normalise && scale == 1.0
    }

    /// Routes a row with the logits `z`: the first `n_used` of `order` are the chosen experts, best first,
    /// and `z` contains their weights. `scores` is scratch memory.
    ///
    /// # Panics
    /// If there are fewer than `n_used` logits, or fewer biases than logits.
    pub fn choose(
        &self,
        z: &mut [f32],
        bias: Option<&[f32]>,
        n_used: usize,
        order: &mut Vec<usize>,
        scores: &mut Vec<f32>,
    ) {
        let of_chosen = self.is_softmax_of_chosen();
        scores.clear();
        if of_chosen {
            scores.extend_from_slice(z);
        } else {
            self.gating.apply(z);
            scores.extend((0..z.len()).map(|e| z[e] + bias.map_or(0.0, |bias| bias[e])));
            if let Some(groups) = self.groups {
                groups.limit(scores, order);
            }
        }
        rank(scores, order);
        let chosen = &order[..n_used];
        if of_chosen {
            let largest = z[chosen[0]];
            chosen.iter().for_each(|e| z[*e] = (z[*e] - largest).exp());
        }
        let sum = || chosen.iter().map(|e| z[*e]).sum::<f32>().max(Self::MIN_SUM);
        let total = if self.normalise { sum() } else { 1.0 };
        chosen.iter().for_each(|e| z[*e] = z[*e] / total * self.scale);
    }
}

impl Gating {
    /// Replaces logits by probabilities.
    fn apply(self, z: &mut [f32]) {
        match self {
            Self::Softmax => {
                let largest = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                z.iter_mut().for_each(|z| *z = (*z - largest).exp());
                let total: f32 = z.iter().sum();
                z.iter_mut().for_each(|z| *z /= total);
            }
            Self::Sigmoid => z.iter_mut().for_each(|z| *z = 1.0 / (1.0 + (-*z).exp())),
        }
    }
}

impl Groups {
    /// Sets the scores of all experts outside the best groups to -infinity. `order` is scratch memory.
    fn limit(self, scores: &mut [f32], order: &mut Vec<usize>) {
        let size = scores.len() / self.n;
        let of_group = |group: usize| {
            let two = scores[group * size..][..size]
                .iter()
                .fold([f32::NEG_INFINITY; 2], |[a, b], s| if *s > a { [*s, a] } else { [a, s.max(b)] });
            two[0] + two[1]
        };
        order.clear();
        order.extend(0..self.n);
        order.sort_unstable_by(|a, b| of_group(*b).total_cmp(&of_group(*a)).then(a.cmp(b)));
        for group in &order[self.n_used..] {
            scores[group * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
}

/// Sets `order` to the indices of the scores, by descending score; ties: the earlier one first.
fn rank(scores: &[f32], order: &mut Vec<usize>) {
    order.clear();
    order.extend(0..scores.len());
    order.sort_unstable_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(routing: &Routing, z: &[f32], bias: Option<&[f32]>, n_used: usize) -> Vec<(usize, f32)> {
        let (mut z, mut order, mut scores) = (z.to_vec(), Vec::new(), Vec::new());
        routing.choose(&mut z, bias, n_used, &mut order, &mut scores);
        order[..n_used].iter().map(|e| (*e, z[*e])).collect()
    }

    fn assert_near(got: &[(usize, f32)], want: &[(usize, f32)]) {
        let is_near = |((e, w), (of, v)): (&(usize, f32), &(usize, f32))| e == of && (w - v).abs() < 1e-6;
        assert!(got.len() == want.len() && got.iter().zip(want).all(is_near), "{got:?}, want {want:?}");
    }

    /// Logits ln(1), ln(2), .. have the probabilities 1/10, 2/10, ..
    #[test]
    fn softmax_over_the_chosen_and_over_all() {
        let z = [1.0_f32, 2.0, 4.0, 3.0].map(f32::ln);
        assert_near(&chosen(&Routing::SOFTMAX, &z, None, 2), &[(2, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        let plain = Routing { normalise: false, ..Routing::SOFTMAX };
        assert_near(&chosen(&plain, &z, None, 2), &[(2, 0.4), (3, 0.3)]);
        let scaled = Routing { scale: 7.0, ..Routing::SOFTMAX };
        assert_near(&chosen(&scaled, &z, None, 2), &[(2, 4.0), (3, 3.0)]);
        assert_near(&chosen(&Routing::SOFTMAX, &[1.0, 1.0, 1.0], None, 2), &[(0, 0.5), (1, 0.5)]);
    }

    /// The logit ln(p / (1 - p)) has the sigmoid p.
    #[test]
    fn a_bias_affects_only_the_choice() {
        let z = [0.5_f32, 0.25, 0.125, 0.75].map(|p| (p / (1.0 - p)).ln());
        let sigmoid = Routing { gating: Gating::Sigmoid, ..Routing::SOFTMAX };
        assert_near(&chosen(&sigmoid, &z, None, 2), &[(3, 0.6), (0, 0.4)]);
        let bias = Some(&[0.0, 0.0, 1.0, 0.0][..]);
        let biased = Routing { normalise: false, scale: 2.0, ..sigmoid };
        assert_near(&chosen(&biased, &z, bias, 2), &[(2, 0.25), (3, 1.5)]);
    }

    /// Groups of two: the first has the best expert, the other two the better pairs.
    #[test]
    fn experts_are_chosen_from_the_best_groups() {
        let z = [0.9_f32, 0.1, 0.6, 0.5, 0.7, 0.55].map(|p| (p / (1.0 - p)).ln());
        let groups = Some(Groups { n: 3, n_used: 2 });
        let routing = Routing { gating: Gating::Sigmoid, groups, normalise: false, ..Routing::SOFTMAX };
        assert_near(&chosen(&routing, &z, None, 3), &[(4, 0.7), (2, 0.6), (5, 0.55)]);
    }
}
