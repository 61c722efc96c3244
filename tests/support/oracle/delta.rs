//! Gated delta net, row by row.

use sterna::program::{Act, Buf, Delta, StateDecl, Step, Weight};

use super::value::{EPS, SUM};
use super::{Near, Oracle, activated, sigmoid};

/// State of one layer in one slot.
#[derive(Clone)]
pub struct SlotState {
    /// `[n_heads, head_dim, key_dim]`.
    pub(super) s: Vec<f64>,
    /// Bound on the norm of the error of each row of `s`. The error decays with the row, and an update also
    /// removes the part of the error along the key.
    pub(super) err: Vec<f64>,
    /// The last `taps - 1` rows of the convolution's inputs, oldest first.
    tail: Vec<Vec<Near>>,
}

impl Oracle<'_> {
    pub(super) fn delta(&mut self, s: &Delta, step: &Step<'_>) {
        let decl = *self.p.state_decl(s.state);
        let at = s.state.0 as usize;
        self.each_run(at, step, |oracle, state, row| {
            let out = oracle.delta_row(s, &decl, row, state);
            oracle.set_row(s.out, row, &out);
        });
    }

    /// Calls `each` for the rows of each sequence in order, with its state; `at` is the index of the state.
    pub(super) fn each_run(
        &mut self,
        at: usize,
        step: &Step<'_>,
        mut each: impl FnMut(&mut Self, &mut SlotState, usize),
    ) {
        for run in step.runs() {
            let slots = step.pages.state(step.rows[run.start].seq).expect("a sequence has a state");
            let mut state = match slots.from {
                Some(from) => self.states[at][&from].clone(),
                None => SlotState::new(&self.p.states[at]),
            };
            let kept = step.pages.row_states(step.rows[run.start].seq);
            for (i, row) in run.enumerate() {
                each(self, &mut state, row);
                if let Some((_, slot)) = kept.iter().find(|(n_rows, _)| *n_rows == i + 1) {
                    self.states[at].insert(slot, state.clone());
                }
            }
            self.states[at].insert(slots.to, state);
        }
    }

    fn delta_row(&self, s: &Delta, decl: &StateDecl, row: usize, state: &mut SlotState) -> Vec<Near> {
        // `delta` also uses the state and the output, and `decay` the parameters of the decay.
        let Delta { u, z, a: _, b, state: _, conv, decay: _, dt: _, eps, ref norm, grouped, out: _ } = *s;
        let StateDecl { n_heads, n_key_heads, head_dim, key_dim: _, taps } = *decl;
        let vector = |w: Weight| &self.weights[w.0 as usize];
        let sums = state.convolve(self.row(u, row).to_vec(), vector(conv), taps);
        let c: Vec<Near> = sums.into_iter().map(|sum| activated(Act::Silu, sum)).collect();
        let (queries, rest) = c.split_at(n_key_heads * head_dim);
        let (keys, values) = rest.split_at(n_key_heads * head_dim);
        let (mut out, eps) = (Vec::new(), f64::from(eps));
        for head in 0..n_heads {
            let of_key = head % n_key_heads * head_dim..(head % n_key_heads + 1) * head_dim;
            let q = l2(&queries[of_key.clone()], eps, 1.0 / (head_dim as f64).sqrt());
            let k = l2(&keys[of_key], eps, 1.0);
            let size = self.softplus(s.a, s.dt, row, head);
            let decay = decay(size, self.weights[s.decay.0 as usize][head]);
            let strength = sigmoid(self.row(b, row)[head]);
            let (k_len, k_err) = (length(k.iter().map(|k| k.v)), length(k.iter().map(|k| k.err)));
            let (q_len, q_err) = (length(q.iter().map(|q| q.v)), length(q.iter().map(|q| q.err)));
            let mut o = Vec::with_capacity(head_dim);
            for (i, v) in values[head * head_dim..][..head_dim].iter().enumerate() {
                let at = head * head_dim + i;
                let (matrix_row, err) = (&mut state.s[at * head_dim..][..head_dim], &mut state.err[at]);
                matrix_row.iter_mut().for_each(|s| *s *= decay.v);
                let len = length(matrix_row.iter().copied());
                let seen: f64 = matrix_row.iter().zip(&k).map(|(s, k)| s * k.v).sum();
                let terms: f64 = matrix_row.iter().zip(&k).map(|(s, k)| (s * k.v).abs()).sum();
                // Errors, given the state: of the prediction, of the update, and of the row.
                let decay_err = if decay.v > 0.0 { decay.err / decay.v } else { 0.0 };
                let seen_err = len * (k_err + decay_err * k_len) + SUM * terms;
                let wrong = Near { v: v.v - seen, err: v.err + seen_err + EPS * (v.v - seen).abs() };
                let write = strength.times(wrong);
                for (s, k) in matrix_row.iter_mut().zip(&k) {
                    *s += write.v * k.v;
                }
                let new_len = length(matrix_row.iter().copied());
                let fresh = decay_err * len + write.err * k_len + write.v.abs() * k_err;
                *err = decay.v * *err + fresh + 3.0 * EPS * (len + write.v.abs() * k_len + new_len);
                let v: f64 = matrix_row.iter().zip(&q).map(|(s, q)| s * q.v).sum();
                let terms: f64 = matrix_row.iter().zip(&q).map(|(s, q)| (s * q.v).abs()).sum();
                o.push(Near { v, err: *err * q_len + new_len * q_err + SUM * terms });
            }
            let z = &self.row(z, row)[head * head_dim..][..head_dim];
            let normed = self.norm(norm, &o);
            let gated = normed.iter().zip(z).map(|(o, z)| o.times(activated(Act::Silu, *z)));
            out.push(gated.collect::<Vec<_>>());
        }
        if grouped {
            let rep = n_heads / n_key_heads;
            let at = |key: usize, i: usize| out[i * n_key_heads + key].clone();
            return (0..n_key_heads).flat_map(|key| (0..rep).flat_map(move |i| at(key, i))).collect();
        }
        out.concat()
    }

    /// `softplus(a + dt)`, of a few operations.
    pub(super) fn softplus(&self, a: Buf, dt: Weight, row: usize, head: usize) -> Near {
        let x = self.row(a, row)[head].plus(Near::exact(self.weights[dt.0 as usize][head]));
        let soft = Near { v: x.v.exp().ln_1p(), err: x.err };
        let soft = Near { v: if x.v > 700.0 { x.v } else { soft.v }, err: soft.err + 1e-6 * soft.v.min(1.0) };
        Near { err: soft.err + 4.0 * EPS * soft.v, ..soft }
    }
}

/// `exp(factor * x)`. An error of the exponent is a relative error of the result; exp is accurate to 3e-7.
pub(super) fn decay(x: Near, factor: f64) -> Near {
    let exponent = x.times(Near::exact(factor));
    let v = exponent.v.exp();
    Near { v, err: v * ((exponent.err + EPS * exponent.v.abs()).exp_m1() + 3e-7) }
}

impl SlotState {
    /// Adds a row, and returns the sum over the taps per channel.
    pub(super) fn convolve(&mut self, row: Vec<Near>, w: &[f64], taps: usize) -> Vec<Near> {
        self.tail.push(row);
        let sum_of = |channel: usize| {
            let terms = (0..taps).map(|j| (self.tail[j][channel], w[channel * taps + j]));
            let mut sum = Near::exact(0.0);
            for (u, tap) in terms {
                sum.v += u.v * tap;
                sum.err += u.err * tap.abs() + SUM * (u.v * tap).abs();
            }
            sum
        };
        let sums = (0..self.tail[0].len()).map(sum_of).collect();
        self.tail.remove(0);
        sums
    }

    pub(super) fn new(decl: &StateDecl) -> Self {
        Self {
            s: vec![0.0; decl.matrix_elems()],
            err: vec![0.0; decl.n_heads * decl.head_dim],
            tail: vec![vec![Near::exact(0.0); decl.channels()]; decl.taps - 1],
        }
    }
}

/// `x scale / sqrt(sum(x^2) + eps)`.
fn l2(x: &[Near], eps: f64, scale: f64) -> Vec<Near> {
    let squares = x.iter().map(|x| x.v * x.v).sum::<f64>() + eps;
    // As for the factor of a norm: half the relative error of the sum, plus its own roundings.
    let relative = x.iter().map(|x| x.v.abs() * x.err).sum::<f64>() / squares + SUM;
    let factor = scale / squares.sqrt();
    x.iter().map(|x| x.times(Near { v: factor, err: factor * relative })).collect()
}

pub(super) fn length(x: impl Iterator<Item = f64>) -> f64 {
    x.map(|x| x * x).sum::<f64>().sqrt()
}
