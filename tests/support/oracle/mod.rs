//! Reference of every stage, in plain f64 code that shares nothing with any backend. Weights are decoded by
//! their type's own `decode_row`, which is tested against golden blocks.
//!
//! Each value has a bound on the error of an f32 implementation that starts from the same inputs: every
//! operation adds its own roundings to the errors of its inputs, and gives the reason.

mod altup;
mod conv;
mod delta;
mod mamba;
mod value;

use std::collections::HashMap;
use std::ops::Range;

use delta::SlotState;
use ggml_types::HostTensor;
use sterna::program::{
    Act, ActQuant, AdapterScale, AddVector, Attend, AttnIn, BasisId, Buf, Embed, Expert, Experts, FfnIn,
    GateAct, Gating, HeadProj, KvDecl, LatentIn, Linear, Logits, Lora, Norm, NormAdd, NormKind, PAGE,
    Program, ProjAdd, ProjIn, QkNorm, QueryScale, Rope, RopeStyle, Routing, Sample, Stage, Step, Weight,
    Xielu,
};
pub use value::Near;
use value::{EPS, SUM};

/// Page and offset of a position.
type Place = (u32, usize);

/// Keys and values of one position, `[n_kv_heads * head_dim]` each.
type KeysValues = (Vec<Near>, Vec<Near>);

/// A program with its buffers and caches in f64.
pub struct Oracle<'a> {
    p: &'a Program,
    /// Decoded, `[rows, cols]`.
    weights: Vec<Vec<f64>>,
    /// `[max rows, cols]`.
    bufs: Vec<Vec<Near>>,
    kvs: Vec<HashMap<Place, KeysValues>>,
    states: Vec<HashMap<u32, SlotState>>,
}

impl<'a> Oracle<'a> {
    /// `weights[i]` is the tensor of `p.weights[i]`.
    pub fn new(p: &'a Program, weights: &[HostTensor]) -> Self {
        let decode = |w: &HostTensor| {
            let mut row = vec![0.0; w.cols];
            let mut values = Vec::with_capacity(w.rows * w.cols);
            for i in 0..w.rows {
                w.ty.decode_row(&w.bytes, w.rows, i, &mut row).expect("a valid tensor");
                values.extend(row.iter().map(|x| f64::from(*x)));
            }
            values
        };
        let nothing = |rows: usize, cols: usize| vec![Near::exact(f64::NAN); rows * cols];
        Self {
            weights: weights.iter().map(decode).collect(),
            bufs: p.bufs.iter().map(|buf| nothing(p.max_rows(buf.rows), buf.cols)).collect(),
            kvs: vec![HashMap::new(); p.kvs.len()],
            states: vec![HashMap::new(); p.states.len()],
            p,
        }
    }

    pub fn write(&mut self, b: Buf, first_row: usize, values: &[f32]) {
        let at = first_row * self.p.buf_decl(b).cols;
        let to = &mut self.bufs[b.0 as usize][at..][..values.len()];
        to.iter_mut().zip(values).for_each(|(to, x)| *to = Near::exact(f64::from(*x)));
    }

    /// First `n` rows of a buffer.
    pub fn read(&self, b: Buf, n: usize) -> &[Near] {
        &self.bufs[b.0 as usize][..n * self.p.buf_decl(b).cols]
    }

    pub fn run(&mut self, stages: Range<usize>, step: &Step<'_>) {
        for (_, stage) in &self.p.stages[stages] {
            match stage {
                Stage::Embed(s) => self.embed(s, step),
                Stage::AttnIn(s) => self.attn_in(s, step),
                Stage::LatentIn(s) => self.latent_in(s, step),
                Stage::Attend(s) => self.attend(s, step),
                Stage::ProjIn(s) => self.proj_in(s, step),
                Stage::Conv(s) => self.conv(s, step),
                Stage::HeadProj(s) => self.head_proj(s, step),
                Stage::Delta(s) => self.delta(s, step),
                Stage::Mamba(s) => self.mamba(s, step),
                Stage::ProjAdd(s) => self.proj_add(s, step),
                Stage::NormAdd(s) => self.norm_add(s, step),
                Stage::AltUpPredict(s) => self.altup_predict(s, step),
                Stage::AltUpCorrect(s) => self.altup_correct(s, step),
                Stage::Rescale(s) => self.rescale(s, step),
                Stage::AddVector(s) => self.add_vector(s, step),
                Stage::FfnIn(s) => self.ffn_in(s, step),
                Stage::Experts(s) => self.experts(s, step),
                Stage::Logits(s) => self.logits(s, step),
                // Defined by `sampling::pick`, which has its own tests.
                Stage::Sample(Sample { logits: _ }) => {}
            }
        }
    }

    fn embed(&mut self, s: &Embed, step: &Step<'_>) {
        let Embed { table, stride, first, basis, scale, positions, types, ref lora, x: to } = *s;
        for (r, row) in step.rows.iter().enumerate() {
            let mut x = self.weight_row(table, (stride * row.token + first) as usize);
            if let Some(basis) = basis {
                x = self.flip_signs(basis, &self.hadamard(basis, &x));
            }
            if scale != 1.0 {
                x = x.iter().map(|x| x.times(Near::exact(f64::from(scale)))).collect();
            }
            if let Some(positions) = positions {
                let position = self.weight_row(positions, row.pos as usize);
                x = x.iter().zip(position).map(|(a, b)| a.plus(b)).collect();
            }
            if let Some(types) = types {
                let of_type = self.weight_row(types, step.pages.token_type(row.seq, row.pos) as usize);
                x = x.iter().zip(of_type).map(|(a, b)| a.plus(b)).collect();
            }
            let first = |a: Weight| self.weight_row(a, row.token as usize);
            x = self.adapted(lora, x, step.pages.adapters(row.seq), first);
            self.set_row(to, r, &x);
        }
    }

    fn attn_in(&mut self, s: &AttnIn, step: &Step<'_>) {
        let AttnIn {
            x,
            ref norm,
            ref wq,
            ref wk,
            ref wv,
            ref q_norm,
            ref k_norm,
            qk_norm,
            ref v_norm,
            rope,
            q_scale,
            kv: cache,
            q: to,
            gate,
        } = *s;
        let kv = self.p.kv_decl(cache);
        for (r, row) in step.rows.iter().enumerate() {
            let uses = step.pages.adapters(row.seq);
            let n = self.normed(norm.as_ref(), self.row(x, r));
            let heads = |values: Vec<Near>, norm: &Option<Norm>| -> Vec<Near> {
                let norm = norm.as_ref();
                let (of_row, of_head, rotated) = match qk_norm {
                    QkNorm::Rows => (norm, None, None),
                    QkNorm::Heads => (None, norm, None),
                    QkNorm::Rotated => (None, None, norm),
                };
                let values = self.normed(of_row, &values);
                let norm_and_rope = |head: &[Near]| {
                    let head = self.normed(of_head, head);
                    let rope = rope.map(|rope| &self.p.ropes[rope.0 as usize]);
                    let head = rope
                        .map_or(head.clone(), |rope| apply_rope(rope, rope.place(row, step.pages), &head));
                    self.normed(rotated, &head)
                };
                values.chunks_exact(kv.head_dim).flat_map(norm_and_rope).collect()
            };
            let (mut q, mut gates) = (self.linear(wq, &n, uses), None);
            if let Some(gate) = gate {
                let heads = || q.chunks_exact(2 * kv.head_dim);
                gates =
                    Some((gate, heads().flat_map(|head| &head[kv.head_dim..]).copied().collect::<Vec<_>>()));
                q = heads().flat_map(|head| &head[..kv.head_dim]).copied().collect();
            }
            let mut q = heads(q, q_norm);
            if let Some(QueryScale { factor, period }) = q_scale {
                let by = 1.0 + f64::from(factor) * f64::from(1 + row.pos / period).ln();
                // The factor is computed in f64 and rounded once.
                q = q.iter().map(|q| q.times(Near { v: by, err: EPS * by.abs() })).collect();
            }
            if let Some(wk) = wk {
                let k = heads(self.linear(wk, &n, uses), k_norm);
                let v = self.linear(wv.as_ref().unwrap_or(wk), &n, uses);
                let v: Vec<Near> =
                    v.chunks_exact(kv.head_dim).flat_map(|head| self.normed(v_norm.as_ref(), head)).collect();
                let stored =
                    |values: Vec<Near>, codec: &str| values.iter().map(|x| x.stored_by(codec)).collect();
                let stored = (stored(k, kv.k.name()), stored(v, kv.v.name()));
                self.kvs[cache.0 as usize].insert(place(step, row.seq, row.pos as usize), stored);
            }
            self.set_row(to, r, &q);
            gates.into_iter().for_each(|(gate, values)| self.set_row(gate, r, &values));
        }
    }

    fn latent_in(&mut self, s: &LatentIn, step: &Step<'_>) {
        let LatentIn { x, ref norm, ref q_latent, ref wq, ref wk, ref wkv, ref kv_norm, rope, kv, q: to } =
            *s;
        let (head_dim, codec) = (self.p.kv_decl(kv).head_dim, self.p.kv_decl(kv).k.name());
        let rope = &self.p.ropes[rope.0 as usize];
        for (r, row) in step.rows.iter().enumerate() {
            let uses = step.pages.adapters(row.seq);
            let n = self.norm(norm, self.row(x, r));
            let a = q_latent.as_ref().map(|(linear, norm)| self.norm(norm, &self.linear(linear, &n, uses)));
            let parts = self.linear(wq, a.as_ref().unwrap_or(&n), uses);
            let mut q = Vec::new();
            for (linear, part) in wk.iter().zip(parts.chunks_exact(parts.len() / wk.len())) {
                let decl = self.p.weight_decl(linear.w);
                let (plain, rotated) = part.split_at(decl.cols);
                q.extend(self.linear(linear, plain, uses));
                q.extend(apply_rope(rope, rope.place(row, step.pages), rotated));
                assert_eq!(decl.rows + rotated.len(), head_dim);
            }
            let latent = self.linear(wkv, &n, uses);
            let (c, t) = latent.split_at(self.p.weight_decl(wk[0].w).rows);
            let key = [self.norm(kv_norm, c), apply_rope(rope, rope.place(row, step.pages), t)].concat();
            let key: Vec<Near> = key.iter().map(|x| x.stored_by(codec)).collect();
            let at = place(step, row.seq, row.pos as usize);
            self.kvs[kv.0 as usize].insert(at, (key.clone(), key));
            self.set_row(to, r, &q);
        }
    }

    fn head_proj(&mut self, s: &HeadProj, step: &Step<'_>) {
        let HeadProj { x, ref w, out } = *s;
        for (r, row) in step.rows.iter().enumerate() {
            let uses = step.pages.adapters(row.seq);
            let x = self.row(x, r);
            let heads = w.iter().zip(x.chunks_exact(x.len() / w.len()));
            let of_head = |(linear, x): (&Linear, &[Near])| {
                self.linear(linear, &x[..self.p.weight_decl(linear.w).cols], uses)
            };
            let y: Vec<Near> = heads.flat_map(of_head).collect();
            self.set_row(out, r, &y);
        }
    }

    fn attend(&mut self, s: &Attend, step: &Step<'_>) {
        let Attend { q, kv, scale, soft_cap, window, ahead, whole_images, sinks, gate, gate_act, out: to } =
            *s;
        // `attn_in` and `latent_in` use the codecs and store the values. The capacity and precision of a
        // cache do not change the meaning of attention.
        let KvDecl { n_kv_heads, head_dim, k: _, v: _, basis: _, window: _, sliding: _, values_are_keys: _ } =
            *self.p.kv_decl(kv);
        let q_cols = self.p.buf_decl(q).cols;
        let group = q_cols / head_dim / n_kv_heads;
        for (r, row) in step.rows.iter().enumerate() {
            let cache = &self.kvs[kv.0 as usize];
            let first = window.map_or(0, |window| (row.pos as usize + 1).saturating_sub(window as usize));
            let of_sequence = step.rows.iter().filter(|other| other.seq == row.seq);
            let end = of_sequence.map(|other| other.pos).max().expect("the row itself");
            let mut last = row.pos.saturating_add(ahead).min(end.max(row.pos));
            if let Some(image) = step.pages.image_at(row.seq, row.pos).filter(|_| whole_images) {
                last = image.start + image.grid[0] * image.grid[1] - 1;
            }
            let seen = first..=last as usize;
            let seen: Vec<_> = seen.map(|pos| &cache[&place(step, row.seq, pos)]).collect();
            let mut out = Vec::with_capacity(q_cols);
            for (head, q) in self.row(q, r).chunks_exact(head_dim).enumerate() {
                let at = head / group * head_dim..(head / group + 1) * head_dim;
                let keys: Vec<_> = seen.iter().map(|(k, _)| &k[at.clone()]).collect();
                let values: Vec<_> = seen.iter().map(|(_, v)| &v[at.clone()]).collect();
                let sink = sinks.map(|w| self.weights[w.0 as usize][head]);
                let cap = soft_cap.map(f64::from);
                out.extend(attention(q, &keys, &values, (f64::from(scale), cap), sink));
            }
            if let Some(gate) = gate {
                let gate = self.row(gate, r);
                let each = q_cols / gate.len();
                let by = |gate: Near| match gate_act {
                    GateAct::Sigmoid => sigmoid(gate),
                    // Its slope is at most 1; exp and ln are accurate to 3e-7.
                    GateAct::Softplus => {
                        let v = gate.v.exp().ln_1p();
                        Near { v, err: gate.err + v * (6e-7 + 3.0 * EPS) }
                    }
                };
                out = out.iter().enumerate().map(|(i, out)| out.times(by(gate[i / each]))).collect();
            }
            self.set_row(to, r, &out);
        }
    }

    fn proj_in(&mut self, s: &ProjIn, step: &Step<'_>) {
        let ProjIn { x, ref norm, ref products } = *s;
        for (r, row) in step.rows.iter().enumerate() {
            let uses = step.pages.adapters(row.seq);
            let n = self.norm(norm, self.row(x, r));
            for (linear, buf) in products {
                self.set_row(*buf, r, &self.linear(linear, &n, uses));
            }
        }
    }

    fn proj_add(&mut self, s: &ProjAdd, step: &Step<'_>) {
        let ProjAdd { y, ref w, ref post, ref residual, scale, x: to } = *s;
        for (r, row) in step.rows.iter().enumerate() {
            let uses = step.pages.adapters(row.seq);
            let product = self.linear(w, self.row(y, r), uses);
            let product = self.normed(post.as_ref(), &product);
            let x = self.normed(residual.as_ref(), self.row(to, r));
            let scale = Near::exact(f64::from(scale));
            let x: Vec<_> = x.into_iter().zip(product).map(|(x, y)| x.plus(y).times(scale)).collect();
            self.set_row(to, r, &x);
        }
    }

    fn ffn_in(&mut self, s: &FfnIn, step: &Step<'_>) {
        let FfnIn { x, ref norm, ref gate, ref up, act, ref share, times, cutoff, h: to } = *s;
        for (r, row) in step.rows.iter().enumerate() {
            let uses = step.pages.adapters(row.seq);
            let n = self.normed(norm.as_ref(), self.row(x, r));
            let up = self.linear(up, &n, uses);
            let h: Vec<_> = match gate {
                Some(gate) => {
                    let gate = self.linear(gate, &n, uses);
                    let gate = cutoff.map_or(gate.clone(), |cutoff| altup::cut(&gate, cutoff));
                    gate.iter().zip(up).map(|(g, u)| gated(act, *g, u)).collect()
                }
                None => up.iter().map(|u| activated(act, *u)).collect(),
            };
            let share = share.as_ref().map(|share| sigmoid(self.linear(share, &n, uses)[0]));
            let mut h: Vec<_> = h.into_iter().map(|h| share.map_or(h, |share| h.times(share))).collect();
            if let Some(times) = times {
                h = h.into_iter().zip(self.row(times, r)).map(|(h, by)| h.times(*by)).collect();
            }
            self.set_row(to, r, &h);
        }
    }

    fn experts(&mut self, s: &Experts, step: &Step<'_>) {
        let Experts {
            x,
            ref norm,
            ref router_norm,
            ref router,
            ref routing,
            ref experts,
            n_used,
            act,
            input,
            out,
        } = *s;
        for (r, row) in step.rows.iter().enumerate() {
            let uses = step.pages.adapters(row.seq);
            let n = self.norm(norm, self.row(x, r));
            let z = match router_norm {
                Some(norm) => self.linear(router, &self.norm(norm, self.row(x, r)), uses),
                None => self.linear(router, &n, uses),
            };
            let n = input.map_or(n, |input| self.row(input, r).to_vec());
            let mut sum = vec![Near::exact(0.0); n.len()];
            for (e, weight) in self.route(routing, &z, n_used) {
                let Expert { gate, up, down } = &experts[e];
                let up = self.linear(up, &n, uses);
                let h: Vec<_> = match gate {
                    Some(gate) => {
                        self.linear(gate, &n, uses).iter().zip(up).map(|(g, u)| gated(act, *g, u)).collect()
                    }
                    None => up.into_iter().map(|u| activated(act, u)).collect(),
                };
                for (sum, y) in sum.iter_mut().zip(self.linear(down, &h, uses)) {
                    *sum = sum.plus(y.times(weight));
                }
            }
            if let Some(out) = out {
                self.set_row(out, r, &sum);
                continue;
            }
            let sums: Vec<_> = self.row(x, r).iter().zip(sum).map(|(x, y)| x.plus(y)).collect();
            self.set_row(x, r, &sums);
        }
    }

    fn add_vector(&mut self, s: &AddVector, step: &Step<'_>) {
        let AddVector { x, v } = *s;
        for r in 0..step.rows.len() {
            let v = self.weights[v.0 as usize].iter().map(|v| Near::exact(*v));
            let sums: Vec<_> = self.row(x, r).iter().zip(v).map(|(x, v)| x.plus(v)).collect();
            self.set_row(x, r, &sums);
        }
    }

    fn norm_add(&mut self, s: &NormAdd, step: &Step<'_>) {
        let NormAdd { y, ref norm, scale, x } = *s;
        for r in 0..step.rows.len() {
            let normed = self.norm(norm, self.row(y, r));
            let sums = self.row(x, r).iter().zip(normed);
            let sums: Vec<_> = sums.map(|(x, y)| x.plus(y).times(Near::exact(f64::from(scale)))).collect();
            self.set_row(x, r, &sums);
        }
    }

    /// The experts that a row chooses by its logits, with their weights.
    fn route(&self, routing: &Routing, z: &[Near], n_used: usize) -> Vec<(usize, Near)> {
        let Routing { gating, bias, groups, normalise, scale } = *routing;
        let largest = z.iter().map(|z| z.v).fold(f64::NEG_INFINITY, f64::max);
        // Probabilities; those of a softmax before the division by their sum.
        let p: Vec<f64> = z
            .iter()
            .map(|z| match gating {
                Gating::Softmax => (z.v - largest).exp(),
                Gating::Sigmoid => sigmoid(*z).v,
            })
            .collect();
        let all: f64 = if gating == Gating::Softmax { p.iter().sum() } else { 1.0 };
        let bias = |e: usize| bias.map_or(0.0, |bias| self.weights[bias.0 as usize][e]);
        let score: Vec<f64> = p.iter().enumerate().map(|(e, p)| p / all + bias(e)).collect();
        let group_size = z.len() / groups.map_or(1, |groups| groups.n);
        let mut best: Vec<(f64, usize)> = score
            .chunks(group_size)
            .map(|scores| {
                let mut scores = scores.to_vec();
                scores.sort_by(|a, b| b.total_cmp(a));
                scores.iter().take(2).sum()
            })
            .zip(0..)
            .collect();
        best.sort_by(|a: &(f64, usize), b| b.0.total_cmp(&a.0));
        best.truncate(groups.map_or(1, |groups| groups.n_used));
        let mut chosen: Vec<usize> =
            best.iter().flat_map(|(_, group)| group * group_size..(group + 1) * group_size).collect();
        chosen.sort_by(|a, b| score[*b].total_cmp(&score[*a]));
        chosen.truncate(n_used);
        let total = if normalise { chosen.iter().map(|e| p[*e]).sum() } else { all };
        // As in attention, an error of z is a relative error of its exponential, and the error of a sum is at
        // most the largest of its terms. A sigmoid has the error of its own. The sum of a softmax over all is
        // rounded, and so is that of the chosen.
        let relative = |e: usize| match gating {
            Gating::Softmax => (z[e].err + EPS * z[e].v.abs()).exp_m1() + 3e-7,
            Gating::Sigmoid => sigmoid(z[e]).err / p[e],
        };
        let summed = if normalise { chosen.clone() } else { (0..z.len()).collect() };
        let of_sum = summed.into_iter().map(relative).fold(0.0, f64::max) + 3.0 * SUM;
        let weight = |e: usize| {
            let v = p[e] / total;
            Near { v, err: (relative(e) + of_sum) * v }.times(Near::exact(f64::from(scale)))
        };
        chosen.into_iter().map(|e| (e, weight(e))).collect()
    }

    fn logits(&mut self, s: &Logits, step: &Step<'_>) {
        let Logits { x, ref norm, ref w, soft_cap, logits: to } = *s;
        let asked = step.rows.iter().enumerate().filter(|(_, row)| row.logits);
        for (o, (r, row)) in asked.enumerate() {
            let uses = step.pages.adapters(row.seq);
            let n = self.norm(norm, self.row(x, r));
            let logits = self.linear(w, &n, uses);
            let capped = |z: &Near| soft_cap.map_or(*z, |cap| capped(f64::from(cap), *z));
            let logits: Vec<_> = logits.iter().map(capped).collect();
            self.set_row(to, o, &logits);
        }
    }

    /// A layer for a row whose sequence uses `uses`.
    fn linear(&self, linear: &Linear, x: &[Near], uses: &[AdapterScale]) -> Vec<Near> {
        let Linear { w, ref norm, bias, act, scale, basis, ref lora, clamp } = *linear;
        let decl = self.p.weight_decl(w);
        let rows = self.weights[w.0 as usize].chunks_exact(decl.cols);
        let normed = norm.as_ref().map(|norm| self.norm(norm, x));
        let plain = normed.as_deref().unwrap_or(x);
        let clamped = clamp.map(|clamp| plain.iter().map(|x| x.clamped(clamp.input)).collect::<Vec<_>>());
        let plain = clamped.as_deref().unwrap_or(plain);
        let rotated = basis.map(|basis| self.hadamard(basis, &self.flip_signs(basis, plain)));
        let x = rotated.as_deref().unwrap_or(plain);
        let products: Vec<Near> = match act {
            ActQuant::None => rows.map(|w| dot(w, x)).collect(),
            ActQuant::I8PerToken => {
                let (q, s) = rounded(x);
                let exact = decl.ty.name() == "i2_s";
                rows.map(|w| int8_dot(w, &q, s, exact)).collect()
            }
            ActQuant::I8PerBlock => {
                let x: Vec<Near> = x.chunks(ActQuant::BLOCK).flat_map(rounded_block).collect();
                rows.map(|w| dot(w, &x)).collect()
            }
        };
        let scaled = products.into_iter().map(|y| y.times(Near::exact(f64::from(scale))));
        let biased: Vec<Near> = match bias {
            Some(bias) => {
                let bias = &self.weights[bias.0 as usize];
                scaled.zip(bias).map(|(y, bias)| y.plus(Near::exact(*bias))).collect()
            }
            None => scaled.collect(),
        };
        let first = |a: Weight| self.rows(a).map(|a| dot(a, plain)).collect();
        let y = self.adapted(lora, biased, uses, first);
        match clamp {
            Some(clamp) => y.into_iter().map(|y| y.clamped(clamp.output)).collect(),
            None => y,
        }
    }

    /// `y` with the products of the pairs that a row uses; `first` multiplies by the first matrix.
    fn adapted(
        &self,
        pairs: &[Lora],
        mut y: Vec<Near>,
        uses: &[AdapterScale],
        first: impl Fn(Weight) -> Vec<Near>,
    ) -> Vec<Near> {
        for Lora { adapter, a, b, scale } in pairs {
            for used in uses.iter().filter(|used| used.adapter == *adapter) {
                let factor = Near::exact(f64::from(*scale)).times(Near::exact(f64::from(used.scale)));
                let first: Vec<Near> = first(*a).into_iter().map(|x| x.times(factor)).collect();
                y.iter_mut().zip(self.rows(*b)).for_each(|(y, b)| *y = y.plus(dot(b, &first)));
            }
        }
        y
    }

    /// The rows of a weight.
    fn rows(&self, w: Weight) -> impl Iterator<Item = &[f64]> {
        self.weights[w.0 as usize].chunks_exact(self.p.weight_decl(w).cols)
    }

    fn flip_signs(&self, basis: BasisId, x: &[Near]) -> Vec<Near> {
        let signs = self.p.bases[basis.0 as usize].signs.iter();
        x.iter().zip(signs).map(|(x, sign)| Near { v: x.v * f64::from(*sign), ..*x }).collect()
    }

    /// Multiplies runs with a Hadamard matrix.
    fn hadamard(&self, basis: BasisId, x: &[Near]) -> Vec<Near> {
        let block = self.p.bases[basis.0 as usize].block;
        let factor = 1.0 / (block as f64).sqrt();
        let row = |run: &[Near], r: usize| {
            let mut sum = Near::exact(0.0);
            for (c, x) in run.iter().enumerate() {
                sum.v += if (r & c).count_ones().is_multiple_of(2) { x.v } else { -x.v };
                sum.err += x.err + SUM * x.v.abs();
            }
            sum.times(Near::exact(factor))
        };
        x.chunks_exact(block).flat_map(|run| (0..block).map(move |r| row(run, r))).collect()
    }

    /// `x` after its norm, if it has one.
    fn normed(&self, norm: Option<&Norm>, x: &[Near]) -> Vec<Near> {
        norm.map_or(x.to_vec(), |norm| self.norm(norm, x))
    }

    fn norm(&self, norm: &Norm, x: &[Near]) -> Vec<Near> {
        self.norm_at(norm, x, 0)
    }

    /// Norm of a part of a row, with the weights from `first` on.
    fn norm_at(&self, norm: &Norm, x: &[Near], first: usize) -> Vec<Near> {
        let Norm { kind, weight, bias, eps } = *norm;
        let (len, eps) = (x.len() as f64, f64::from(eps));
        let mean = match kind {
            NormKind::Rms => Near::exact(0.0),
            NormKind::Layer => {
                let mean = x.iter().map(|x| x.v).sum::<f64>() / len;
                let err = x.iter().map(|x| x.err).sum::<f64>() / len;
                // The sum of up to a few thousand values, and its rounding.
                Near { v: mean, err: err + SUM * x.iter().map(|x| x.v.abs()).sum::<f64>() / len }
            }
        };
        let centred: Vec<Near> = x.iter().map(|x| x.plus(Near { v: -mean.v, ..mean })).collect();
        let mean_square = centred.iter().map(|x| x.v * x.v).sum::<f64>() / len + eps;
        // Derivative of 1 / sqrt, relative: half the relative error of the mean square, plus its own
        // roundings.
        let relative = centred.iter().map(|x| x.v.abs() * x.err).sum::<f64>() / len / mean_square + SUM;
        let factor = Near { v: mean_square.sqrt().recip(), err: relative / mean_square.sqrt() };
        let weight = &self.weights[weight.0 as usize][first..];
        let scaled = centred.iter().zip(weight).map(|(x, w)| x.times(factor).times(Near::exact(*w)));
        match bias {
            Some(bias) => {
                let bias = &self.weights[bias.0 as usize];
                scaled.zip(bias).map(|(y, bias)| y.plus(Near::exact(*bias))).collect()
            }
            None => scaled.collect(),
        }
    }

    fn weight_row(&self, w: Weight, row: usize) -> Vec<Near> {
        let cols = self.p.weight_decl(w).cols;
        self.weights[w.0 as usize][row * cols..][..cols].iter().map(|w| Near::exact(*w)).collect()
    }

    fn row(&self, b: Buf, row: usize) -> &[Near] {
        let cols = self.p.buf_decl(b).cols;
        &self.bufs[b.0 as usize][row * cols..][..cols]
    }

    fn set_row(&mut self, b: Buf, row: usize, values: &[Near]) {
        let cols = self.p.buf_decl(b).cols;
        self.bufs[b.0 as usize][row * cols..][..cols].copy_from_slice(values);
    }
}

fn place(step: &Step<'_>, seq: u32, pos: usize) -> Place {
    (step.pages.seq(seq)[pos / PAGE], pos % PAGE)
}

/// `sum(w x)`, accumulated in f32 or better in any order.
fn dot(w: &[f64], x: &[Near]) -> Near {
    let mut sum = Near::exact(0.0);
    for (w, x) in w.iter().zip(x) {
        sum.v += w * x.v;
        sum.err += w.abs() * x.err + SUM * (w * x.v).abs();
    }
    sum
}

/// BitNet's int8 quantisation: values with an error of 0, or of 1 if either neighbour is correct, and `s`.
fn rounded(x: &[Near]) -> (Vec<Near>, Near) {
    if x.iter().any(|x| !x.v.is_finite()) {
        return (vec![Near::exact(f64::NAN); x.len()], Near::exact(1.0));
    }
    let largest = x.iter().fold(Near::exact(0.0), |max, x| if x.v.abs() > max.v.abs() { *x } else { max });
    let absmax = (largest.v.abs() as f32).max(1e-5);
    let s = f64::from(127.0 / absmax);
    let s = Near { v: s, err: s * (largest.err / f64::from(absmax) + EPS) };
    let round = |x: &Near| {
        // The product is computed in f32, as in BitNet itself; this decides ties.
        let scaled = f64::from(x.v as f32 * s.v as f32);
        let q = scaled.round_ties_even().clamp(-128.0, 127.0);
        // Exact inputs round exactly. Otherwise the result is ambiguous near a half.
        let margin = x.err * s.v + scaled.abs() * (s.err / s.v + EPS);
        let from_half = (scaled - scaled.floor() - 0.5).abs();
        let inputs_are_exact = x.err == 0.0 && largest.err == 0.0;
        Near { v: q, err: if !inputs_are_exact && from_half <= margin { 1.0 } else { 0.0 } }
    };
    (x.iter().map(round).collect(), s)
}

/// Dequantised values of inputs that are quantised together.
fn rounded_block(x: &[Near]) -> Vec<Near> {
    if x.iter().any(|x| !x.v.is_finite()) {
        return vec![Near::exact(f64::NAN); x.len()];
    }
    let largest = x.iter().fold(Near::exact(0.0), |max, x| if x.v.abs() > max.v.abs() { *x } else { max });
    let absmax = largest.v.abs() as f32;
    if absmax < ActQuant::NOTHING {
        return vec![Near::exact(0.0); x.len()];
    }
    let (s, inverse) = (f64::from(absmax / 127.0), f64::from(127.0 / absmax));
    let round = |x: &Near| {
        let scaled = f64::from(x.v as f32 * inverse as f32);
        let q = scaled.round_ties_even().clamp(-127.0, 127.0);
        // Exact inputs round exactly. Otherwise the result is ambiguous near a half.
        let margin = x.err * inverse + scaled.abs() * (largest.err / f64::from(absmax) + 2.0 * EPS);
        let from_half = (scaled - scaled.floor() - 0.5).abs();
        let inputs_are_exact = x.err == 0.0 && largest.err == 0.0;
        let flips = if !inputs_are_exact && from_half <= margin { s } else { 0.0 };
        Near { v: q * s, err: flips + (q * s).abs() * (largest.err / f64::from(absmax) + EPS) }
    };
    x.iter().map(round).collect()
}

/// `sum(w q) / s`. With one scale per tensor the integer sum is exact, and only the operations after it
/// round.
fn int8_dot(w: &[f64], q: &[Near], s: Near, exact_sum: bool) -> Near {
    let mut sum = Near::exact(0.0);
    for (w, q) in w.iter().zip(q) {
        sum.v += w * q.v;
        sum.err += w.abs() * q.err + if exact_sum { 0.0 } else { SUM * (w * q.v).abs() };
    }
    // Sums beyond 2^24 round once more when converted to float; two factors follow.
    let v = sum.v / s.v;
    Near { v, err: sum.err / s.v + v.abs() * (s.err / s.v + 2.0 * EPS) }
}

/// Applies RoPE to one head.
fn apply_rope(rope: &Rope, place: [u32; 3], head: &[Near]) -> Vec<Near> {
    let (pairs, magnitude) = (rope.inv_freq.len(), f64::from(rope.magnitude));
    let mut out = head.to_vec();
    for (i, inv_freq) in rope.inv_freq.iter().enumerate() {
        let (a, b) = match rope.style {
            RopeStyle::Halves => (i, i + pairs),
            RopeStyle::Adjacent => (2 * i, 2 * i + 1),
        };
        let axis = rope.axes.as_ref().map_or(0, |axes| axes[i] as usize);
        let angle = f64::from(place[axis]) * inv_freq;
        // Angles are computed in f64, so sine and cosine have the relative error of one rounding to f32; 1e-9
        // accounts for the error of a large angle in f64.
        let near = |x: f64| Near { v: x * magnitude, err: (x * magnitude).abs() * EPS + 1e-9 };
        let (sin, cos) = (near(angle.sin()), near(angle.cos()));
        let minus_sin = Near { v: -sin.v, ..sin };
        out[a] = head[a].times(cos).plus(head[b].times(minus_sin));
        out[b] = head[a].times(sin).plus(head[b].times(cos));
    }
    out
}

/// Attention of one query over all visible positions; a sink is one more score, which is exact and has no
/// value. `scale` is the factor on scores, and their cap.
fn attention(
    q: &[Near],
    keys: &[&[Near]],
    values: &[&[Near]],
    (scale, cap): (f64, Option<f64>),
    sink: Option<f64>,
) -> Vec<Near> {
    let score = |key: &&[Near]| {
        let mut sum = Near::exact(0.0);
        for (q, k) in q.iter().zip(*key) {
            sum.v += q.v * k.v;
            sum.err += q.v.abs() * k.err + q.err * k.v.abs() + q.err * k.err + SUM * (q.v * k.v).abs();
        }
        let score = Near { v: sum.v * scale, err: (sum.err + 2.0 * EPS * sum.v.abs()) * scale.abs() };
        cap.map_or(score, |cap| capped(cap, score))
    };
    let scores: Vec<Near> = keys.iter().map(score).collect();
    let max = scores.iter().fold(f64::NEG_INFINITY, |max, s| max.max(s.v));
    let weights: Vec<f64> = scores.iter().map(|s| (s.v - max).exp()).collect();
    let total: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    // A score's error is a relative error of its weight, to first order; the total has at most the same; the
    // difference to the largest score rounds to f32, and exp is accurate to 3e-7.
    let worst = scores.iter().fold(0.0, |worst: f64, s| worst.max(s.err.exp_m1() + EPS * (s.v - max).abs()));
    let relative = 2.0 * worst + 2.0 * 3e-7 + 2.0 * SUM;
    (0..q.len())
        .map(|i| {
            let terms = || weights.iter().zip(values).map(|(w, value)| (w / total, value[i]));
            let err = terms().map(|(w, x)| w * (x.err + relative * x.v.abs())).sum();
            Near { v: terms().map(|(w, x)| w * x.v).sum(), err }
        })
        .collect()
}

/// `cap tanh(z / cap)`: its slope is at most 1; tanh is computed from exp (3e-7) with a few roundings.
fn capped(cap: f64, z: Near) -> Near {
    let v = cap * (z.v / cap).tanh();
    Near { v, err: z.err + z.v.abs() * (3e-7 + 4.0 * EPS) }
}

/// `1 / (1 + exp(-x))`, whose slope is at most 1 / 4; exp is accurate to 3e-7.
fn sigmoid(x: Near) -> Near {
    let v = 1.0 / (1.0 + (-x.v).exp());
    Near { v, err: 0.25 * x.err + v * (3e-7 + 3.0 * EPS) }
}

/// Product of an activated gate and its up value.
fn gated(act: Act, gate: Near, up: Near) -> Near {
    if act != Act::ClampedSwiglu {
        return activated(act, gate).times(up);
    }
    // Clamping adds no error; the rest is SiLU of 1.702 times the gate, divided by 1.702.
    let gate = Near { v: gate.v.min(7.0), ..gate };
    let v = gate.v / (1.0 + (-f64::from(1.702_f32) * gate.v).exp());
    let gate = Near { v, err: 1.13 * gate.err + v.abs() * (3e-7 + 4.0 * EPS) };
    gate.times(Near { v: up.v.clamp(-7.0, 7.0), ..up }.plus(Near::exact(1.0)))
}

/// `1 - erf(z)` for `z >= 0`: a series, and a continued fraction from 2 on.
fn erfc(z: f64) -> f64 {
    let factor = (-z * z).exp() / std::f64::consts::PI.sqrt();
    if z > 2.0 {
        return factor / (1..=60).rev().fold(z, |tail, n| z + 0.5 * f64::from(n) / tail);
    }
    let (mut term, mut sum) = (z, z);
    for n in 1..60 {
        term *= z * z / (f64::from(n) + 0.5);
        sum += term;
    }
    1.0 - 2.0 * factor * sum
}

fn activated(act: Act, x: Near) -> Near {
    let Near { v, err } = x;
    match act {
        Act::Relu2 => {
            let positive = if v < 0.0 { 0.0 } else { v };
            Near { v: positive * positive, err: (2.0 * positive + err) * err + EPS * positive * positive }
        }
        // Both have a slope of at most 1.13, and are x times a factor below 1 computed from exp (3e-7), a sum
        // and a quotient. The argument of exp has a few roundings relative to it, which matter only where the
        // result is not negligible: |u exp(-u)| < 0.4.
        Act::Silu => Near { v: v / (1.0 + (-v).exp()), err: 1.13 * err + v.abs() * (3e-7 + 3.0 * EPS) },
        // Likewise, with an erf accurate to 3e-7.
        Act::Gelu => {
            let half = 0.5 * erfc(v.abs() / std::f64::consts::SQRT_2);
            let share = if v < 0.0 { half } else { 1.0 - half };
            Near { v: v * share, err: 1.13 * err + v.abs() * (5e-7 + 3.0 * EPS) }
        }
        Act::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
            Near { v: 0.5 * v * (1.0 + u.tanh()), err: 1.13 * err + v.abs() * (3e-7 + 5.0 * EPS) }
        }
        Act::ClampedSwiglu => unreachable!("the check requires a gate for it"),
        // The slope is at most that at `v`, and exp is accurate to 3e-7.
        Act::Xielu(Xielu { positive, negative, beta, eps }) => {
            let [positive, negative, beta, eps] = [positive, negative, beta, eps].map(f64::from);
            let (curve, slope, exp) = match v > 0.0 {
                true => (positive * v * v, 2.0 * positive * v + positive * err, 0.0),
                false => ((v.min(eps).exp_m1() - v) * negative, negative, 3e-7 * negative),
            };
            let size = curve.abs() + (beta * v).abs() + negative * v.abs();
            Near { v: curve + beta * v, err: (slope.abs() + beta.abs()) * err + exp.abs() + 4.0 * EPS * size }
        }
    }
}
