//! Mamba-2, row by row.

use sterna::program::{Act, Mamba, StateDecl, Step, Weight};

use super::delta::{decay, length};
use super::value::{EPS, SUM};
use super::{Near, Oracle, activated};

impl Oracle<'_> {
    pub(super) fn mamba(&mut self, s: &Mamba, step: &Step<'_>) {
        let Mamba { c, z, a, state, decay: factors, dt, skip, ref norm, out } = *s;
        let StateDecl { n_heads, n_key_heads, head_dim, key_dim, taps: _ } = *self.p.state_decl(state);
        let group_len = n_heads * head_dim / n_key_heads;
        self.each_run(state.0 as usize, step, |oracle, state, row| {
            let weight = |w: Weight, head: usize| oracle.weights[w.0 as usize][head];
            let (values, rest) = oracle.row(c, row).split_at(n_heads * head_dim);
            let (keys, queries) = rest.split_at(n_key_heads * key_dim);
            let mut y = Vec::with_capacity(values.len());
            for (at, x) in values.iter().enumerate() {
                let head = at / head_dim;
                let group = head / (n_heads / n_key_heads);
                let of_group = group * key_dim..(group + 1) * key_dim;
                let (keys, queries) = (&keys[of_group.clone()], &queries[of_group]);
                let size = oracle.softplus(a, dt, row, head);
                let decay = decay(size, weight(factors, head));
                let write = size.times(*x);
                let (matrix_row, err) = (&mut state.s[at * key_dim..][..key_dim], &mut state.err[at]);
                let len = length(matrix_row.iter().copied());
                for (s, key) in matrix_row.iter_mut().zip(keys) {
                    *s = decay.v * *s + write.v * key.v;
                }
                let new_len = length(matrix_row.iter().copied());
                let [key_len, query_len] = [keys, queries].map(|x| length(x.iter().map(|x| x.v)));
                let [key_err, query_err] = [keys, queries].map(|x| length(x.iter().map(|x| x.err)));
                // The product with the key may be formed in another order.
                let fresh =
                    decay.err * len + (write.err + EPS * write.v.abs()) * key_len + write.v.abs() * key_err;
                *err =
                    decay.v * *err + fresh + 2.0 * EPS * (decay.v * len + write.v.abs() * key_len + new_len);
                let terms = matrix_row.iter().zip(queries).map(|(s, query)| s * query.v);
                let skipped = x.times(Near::exact(weight(skip, head)));
                let v = terms.clone().sum::<f64>() + skipped.v;
                let magnitudes = terms.map(f64::abs).sum::<f64>() + skipped.v.abs();
                let err = *err * query_len + new_len * query_err + skipped.err + SUM * magnitudes;
                y.push(Near { v, err });
            }
            let gated = y.into_iter().zip(oracle.row(z, row)).map(|(y, z)| y.times(activated(Act::Silu, *z)));
            let gated: Vec<Near> = gated.collect();
            let out_row = match norm {
                None => gated,
                Some(norm) => {
                    let groups = gated.chunks_exact(group_len).enumerate();
                    groups.flat_map(|(i, group)| oracle.norm_at(norm, group, i * group_len)).collect()
                }
            };
            oracle.set_row(out, row, &out_row);
        });
    }
}
