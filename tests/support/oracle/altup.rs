//! Alternating updates, and the cutoff of a gate.

use sterna::program::{AltUpCorrect, AltUpPredict, Rescale, STREAMS, Step, Weight};

use super::value::{EPS, SUM};
use super::{Near, Oracle};

impl Oracle<'_> {
    pub(super) fn altup_predict(&mut self, s: &AltUpPredict, step: &Step<'_>) {
        let AltUpPredict { c, w, x, active, out, y } = *s;
        for r in 0..step.rows.len() {
            let m = self.of_streams(w, self.row(c, r));
            let x = x.map(|x| self.row(x, r).to_vec());
            for j in 0..STREAMS {
                let at = |col: usize| {
                    let terms = (0..STREAMS).map(|i| m[STREAMS * j + i].times(x[i][col]));
                    terms.fold(x[j][col], Near::plus)
                };
                let predicted: Vec<Near> = (0..x[j].len()).map(at).collect();
                self.set_row(out[j], r, &predicted);
            }
            let copy = self.row(out[active], r).to_vec();
            self.set_row(y, r, &copy);
        }
    }

    pub(super) fn altup_correct(&mut self, s: &AltUpCorrect, step: &Step<'_>) {
        let AltUpCorrect { c, w, y, predicted, active, x, factors, scaled } = *s;
        for r in 0..step.rows.len() {
            let m = self.of_streams(w, self.row(c, r));
            let of_active = self.row(predicted[active], r);
            let less = |(y, p): (&Near, &Near)| y.plus(Near { v: -p.v, ..*p });
            let change: Vec<Near> = self.row(y, r).iter().zip(of_active).map(less).collect();
            for j in 0..STREAMS {
                let by = m[j].plus(Near::exact(1.0));
                let own = self.row(predicted[j], r);
                let sums: Vec<Near> =
                    own.iter().zip(&change).map(|(own, change)| own.plus(by.times(*change))).collect();
                self.set_row(x[j], r, &sums);
            }
            let factors = &self.weights[factors.0 as usize];
            let of_active = self.row(x[active], r).iter().zip(factors);
            let products: Vec<Near> = of_active.map(|(x, by)| x.times(Near::exact(*by))).collect();
            self.set_row(scaled, r, &products);
        }
    }

    /// `W tanh(c)`, with `W` of `STREAMS` columns.
    fn of_streams(&self, w: Weight, c: &[Near]) -> Vec<Near> {
        // Its slope is at most 1.
        let c: Vec<Near> = c.iter().map(|c| Near { v: c.v.tanh(), err: c.err + EPS }).collect();
        let rows = self.weights[w.0 as usize].chunks_exact(STREAMS);
        let product = |row: &[f64]| {
            let terms = row.iter().zip(&c).map(|(w, c)| c.times(Near::exact(*w)));
            terms.fold(Near::exact(0.0), Near::plus)
        };
        rows.map(product).collect()
    }

    pub(super) fn rescale(&mut self, s: &Rescale, step: &Step<'_>) {
        let Rescale { like, y, floor, mean } = *s;
        for r in 0..step.rows.len() {
            let want = magnitude(self.row(like, r), 0.0);
            let mut sum = self.row(like, r).to_vec();
            for y in y {
                let own = magnitude(self.row(y, r), f64::from(floor));
                let by = want.v / own.v;
                // Of a quotient, and both roundings of it.
                let by = Near { v: by, err: by * (want.err / want.v + own.err / own.v + 2.0 * EPS) };
                let scaled: Vec<Near> = self.row(y, r).iter().map(|y| y.times(by)).collect();
                sum.iter_mut().zip(&scaled).for_each(|(sum, y)| *sum = sum.plus(*y));
                self.set_row(y, r, &scaled);
            }
            if let Some(mean) = mean {
                let share = Near::exact(1.0 / STREAMS as f64);
                let shares: Vec<Near> = sum.iter().map(|sum| sum.times(share)).collect();
                self.set_row(mean, r, &shares);
            }
        }
    }
}

/// Square root of the mean square, which is at least `floor`.
fn magnitude(x: &[Near], floor: f64) -> Near {
    let mean_square = x.iter().map(|x| x.v * x.v).sum::<f64>() / x.len() as f64;
    let err = x.iter().map(|x| x.v.abs() * x.err).sum::<f64>() / x.len() as f64;
    let v = mean_square.max(floor).sqrt();
    // The derivative of the square root, and the rounding of the sum.
    Near { v, err: err / v + SUM * v }
}

/// The gate after a cutoff.
pub(super) fn cut(g: &[Near], cutoff: f32) -> Vec<Near> {
    let len = g.len() as f64;
    let mean = g.iter().map(|g| g.v).sum::<f64>() / len;
    let variance = g.iter().map(|g| (g.v - mean).powi(2)).sum::<f64>() / len;
    let cutoff = f64::from(cutoff);
    let bound = mean + cutoff * variance.sqrt();
    // The mean moves by at most the mean error, and so does the deviation by its root mean square.
    let of_mean = g.iter().map(|g| g.err).sum::<f64>() / len;
    let of_deviation = (g.iter().map(|g| g.err * g.err).sum::<f64>() / len).sqrt();
    let size = mean.abs() + cutoff.abs() * variance.sqrt();
    let err = of_mean + cutoff.abs() * of_deviation + SUM * size;
    let rest = |g: &Near| {
        let rest = g.plus(Near { v: -bound, err });
        Near { v: rest.v.max(0.0), ..rest }
    };
    g.iter().map(rest).collect()
}
