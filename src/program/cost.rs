//! Bytes and operations per stage, so that every timing can be compared with the roofline.

use std::ops::{Add, AddAssign};

use super::{
    AddVector, AltUpCorrect, AltUpPredict, Attend, AttnIn, Conv, Delta, Embed, Expert, Experts, FfnIn,
    HeadProj, Kv, KvDecl, LatentIn, Linear, Logits, Lora, Mamba, NormAdd, PAGE, Program, ProjAdd, ProjIn,
    Rescale, Routing, Row, Sample, Stage, Step, Weight,
};

const F16_BYTES: u64 = 2;

/// Bytes and operations of one stage in one step, independent of the backend: each weight is read once per
/// step, each cached vector once per row that reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of KV cache and of recurrent states read and written.
    pub kv_bytes: u64,
    /// Multiply-accumulates of linear layers and attention.
    pub macs: u64,
}

impl Cost {
    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.weight_bytes + self.kv_bytes
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            kv_bytes: self.kv_bytes + other.kv_bytes,
            macs: self.macs + other.macs,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Program {
    /// Cost of a whole step.
    ///
    /// # Panics
    /// If the program does not pass [`check`](Self::check).
    pub fn cost(&self, step: &Step<'_>) -> Cost {
        self.stages.iter().fold(Cost::default(), |sum, (_, stage)| sum + self.stage_cost(stage, step))
    }

    /// Cost of one stage of this program. Activations, norms and biases are small compared with weights and
    /// caches: they are not counted, and bound to `_` below.
    ///
    /// # Panics
    /// As [`cost`](Self::cost).
    pub fn stage_cost(&self, stage: &Stage, step: &Step<'_>) -> Cost {
        self.cost_without_adapters(stage, step) + self.lora_cost(stage, step)
    }

    /// Cost of the pairs of adapters. In a mixture of experts, all experts are assumed to be equal.
    fn lora_cost(&self, stage: &Stage, step: &Step<'_>) -> Cost {
        let pair_cost = |pair: &Lora, times: u64| {
            let Lora { adapter, a, b, scale: _ } = *pair;
            let used = step.rows.iter().filter(|row| step.scale(row, adapter) != 0.0).count() as u64;
            let of = |w| {
                let decl = self.weight_decl(w);
                (self.weight_bytes(w), (decl.rows * decl.cols) as u64)
            };
            let ((a_bytes, a_elems), (b_bytes, b_elems)) = (of(a), of(b));
            let weight_bytes = if used > 0 { times.min(used * times) * (a_bytes + b_bytes) } else { 0 };
            Cost { weight_bytes, macs: used * times * (a_elems + b_elems), ..Cost::default() }
        };
        match stage {
            Stage::Experts(s) => {
                let Expert { gate, up, down } = &s.experts[0];
                let of_experts = gate.iter().chain([up, down]).flat_map(|linear| &linear.lora);
                let of_experts = of_experts.map(|pair| pair_cost(pair, s.n_used as u64));
                of_experts.chain(s.router.lora.iter().map(|pair| pair_cost(pair, 1))).sum()
            }
            Stage::Embed(s) => {
                // Only the rows of tokens are read of the first matrix.
                let of = |pair: &Lora| Cost { weight_bytes: self.weight_bytes(pair.b), ..pair_cost(pair, 0) };
                let is_used = |pair: &&Lora| step.rows.iter().any(|row| step.scale(row, pair.adapter) != 0.0);
                s.lora.iter().filter(is_used).map(of).sum()
            }
            _ => stage.linears().1.flat_map(|linear| &linear.lora).map(|pair| pair_cost(pair, 1)).sum(),
        }
    }

    fn cost_without_adapters(&self, stage: &Stage, step: &Step<'_>) -> Cost {
        let n_rows = step.rows.len() as u64;
        let n_outputs = step.n_outputs() as u64;
        let linears = |linears: &[&Linear]| self.linears_cost(linears.iter().copied(), n_rows);
        match stage {
            Stage::Embed(s) => {
                let bytes = tables(s).map(|w| n_rows * self.row_bytes(w));
                Cost { weight_bytes: bytes.sum(), ..Cost::default() }
            }
            Stage::AttnIn(s) => {
                let AttnIn {
                    x: _,
                    norm: _,
                    wq,
                    wk,
                    wv,
                    q_norm: _,
                    k_norm: _,
                    qk_norm: _,
                    v_norm: _,
                    rope: _,
                    q_scale: _,
                    kv,
                    q: _,
                    gate: _,
                } = s;
                let written = if wk.is_some() { n_rows * self.written_bytes(*kv) } else { 0 };
                let layers = [wq].into_iter().chain(wk).chain(wv);
                self.linears_cost(layers, n_rows) + Cost { kv_bytes: written, ..Cost::default() }
            }
            Stage::LatentIn(s) => {
                let LatentIn { x: _, norm: _, q_latent, wq, wk, wkv, kv_norm: _, rope: _, kv, q: _ } = s;
                let latent = q_latent.iter().map(|(linear, _)| linear);
                let written = n_rows * self.written_bytes(*kv);
                self.linears_cost(latent.chain([wq, wkv]).chain(wk), n_rows)
                    + Cost { kv_bytes: written, ..Cost::default() }
            }
            Stage::HeadProj(s) => {
                let HeadProj { x: _, w, out: _ } = s;
                self.linears_cost(w.iter(), n_rows)
            }
            Stage::Attend(s) => {
                // `first` and `last` take the window and `ahead` into account.
                let Attend {
                    q,
                    kv,
                    scale: _,
                    soft_cap: _,
                    window: _,
                    ahead: _,
                    whole_images: _,
                    sinks: _,
                    gate: _,
                    gate_act: _,
                    out: _,
                } = *s;
                let seen = |(row, end): (&Row, u32)| {
                    let last = s.last(row, end, step.pages);
                    (last, u64::from(last + 1 - s.first(row.pos)))
                };
                let seen = || step.rows.iter().zip(step.ends()).map(seen);
                let positions: u64 = seen().map(|(_, n)| n).sum();
                let q_cols = self.buf_decl(q).cols as u64;
                Cost {
                    kv_bytes: seen().map(|(last, n)| self.read_bytes(kv, last, n)).sum(),
                    macs: 2 * positions * q_cols,
                    ..Cost::default()
                }
            }
            Stage::ProjIn(s) => {
                let ProjIn { x: _, norm: _, products } = s;
                self.linears_cost(products.iter().map(|(linear, _)| linear), n_rows)
            }
            Stage::Conv(s) => {
                let Conv { u: _, before: _, after: _, state, w, bias: _, silu: _, out: _ } = *s;
                let state = self.state_decl(state);
                Cost {
                    weight_bytes: self.weight_bytes(w),
                    kv_bytes: 2 * step.runs().count() as u64 * state.bytes() as u64,
                    macs: n_rows * (state.taps * state.channels()) as u64,
                }
            }
            Stage::ProjAdd(s) => {
                let ProjAdd { y: _, w, post: _, residual: _, scale: _, x: _ } = s;
                linears(&[w])
            }
            Stage::NormAdd(NormAdd { y: _, norm: _, scale: _, x: _ }) => Cost::default(),
            Stage::AltUpPredict(AltUpPredict { c: _, w: _, x: _, active: _, out: _, y: _ }) => {
                Cost::default()
            }
            Stage::AltUpCorrect(s) => {
                // Small vectors and activations.
                let AltUpCorrect { c: _, w: _, y: _, predicted: _, active: _, x: _, factors: _, scaled: _ } =
                    s;
                Cost::default()
            }
            Stage::Rescale(Rescale { like: _, y: _, floor: _, mean: _ }) => Cost::default(),
            Stage::AddVector(AddVector { x: _, v: _ }) => Cost::default(),
            Stage::FfnIn(s) => {
                let FfnIn { x: _, norm: _, gate, up, act: _, share, times: _, cutoff: _, h: _ } = s;
                self.linears_cost([up].into_iter().chain(gate).chain(share), n_rows)
            }
            Stage::Delta(s) => {
                let Delta {
                    state,
                    conv,
                    decay: _,
                    dt: _,
                    eps: _,
                    norm: _,
                    grouped: _,
                    u: _,
                    z: _,
                    a: _,
                    b: _,
                    out: _,
                } = *s;
                let state = self.state_decl(state);
                let n_seqs = step.runs().count() as u64;
                let of_row = 3 * state.matrix_elems() + state.taps * state.channels();
                Cost {
                    weight_bytes: self.weight_bytes(conv),
                    kv_bytes: 2 * n_seqs * state.bytes() as u64,
                    macs: n_rows * of_row as u64,
                }
            }
            Stage::Mamba(s) => {
                let Mamba { c: _, z: _, a: _, state, decay: _, dt: _, skip: _, norm: _, out: _ } = *s;
                let state = self.state_decl(state);
                Cost {
                    kv_bytes: 2 * step.runs().count() as u64 * state.bytes() as u64,
                    macs: 2 * n_rows * state.matrix_elems() as u64,
                    ..Cost::default()
                }
            }
            Stage::Experts(s) => {
                let Experts {
                    x: _,
                    norm: _,
                    router_norm: _,
                    router,
                    routing,
                    experts,
                    n_used,
                    act: _,
                    input: _,
                    out: _,
                } = s;
                let Routing { gating: _, bias, groups: _, normalise: _, scale: _ } = routing;
                let bias_bytes = bias.map_or(0, |bias| self.weight_bytes(bias));
                let Expert { gate, up, down } = &experts[0];
                let of_expert = |rows| self.linears_cost(gate.iter().chain([up, down]), rows);
                // Assumes that no two rows choose the same expert while there are unused ones.
                let n_passes = n_rows * *n_used as u64;
                let n_read = n_passes.min(experts.len() as u64);
                let (weight_bytes, macs) = (of_expert(1).weight_bytes, of_expert(n_passes).macs);
                let of_experts = Cost { weight_bytes: n_read * weight_bytes, macs, ..Cost::default() };
                linears(&[router]) + of_experts + Cost { weight_bytes: bias_bytes, ..Cost::default() }
            }
            Stage::Logits(s) => {
                let Logits { x: _, norm: _, w, soft_cap: _, logits: _ } = s;
                self.linear_cost(w, n_outputs)
            }
            Stage::Sample(Sample { logits: _ }) => Cost::default(),
        }
    }

    /// Bytes of all weights, each counted once.
    pub fn weights_bytes(&self) -> u64 {
        (0..self.weights.len() as u32).map(|i| self.weight_bytes(Weight(i))).sum()
    }

    /// Bytes of all KV caches at full size, and of all slots of recurrent states.
    pub fn kv_bytes(&self) -> u64 {
        let caches: u64 = (0..self.kvs.len() as u32).map(|i| self.cache_bytes(Kv(i))).sum();
        caches + self.limits.states as u64 * self.state_bytes()
    }

    /// Bytes of the recurrent states of one sequence.
    pub fn state_bytes(&self) -> u64 {
        self.states.iter().map(|state| state.bytes() as u64).sum()
    }

    /// Bytes of one layer's cache at full size: pages in the codecs, and exact pages of f16.
    fn cache_bytes(&self, kv: Kv) -> u64 {
        // `sides` has the codecs, `pages` the sliding window, and `read_bytes` the exact window.
        let decl = self.kv_decl(kv);
        let KvDecl { n_kv_heads, head_dim, k: _, v: _, basis: _, window: _, sliding: _, values_are_keys: _ } =
            *decl;
        let exact = (self.limits.exact_pages * PAGE * head_dim) as u64 * F16_BYTES;
        let pages = decl.pages(&self.limits) as u64;
        let side = |(page_bytes, windowed)| pages * page_bytes + if windowed { exact } else { 0 };
        n_kv_heads as u64 * self.sides(kv).map(side).iter().sum::<u64>()
    }

    /// Per side (keys, values): the bytes of a page of one head in its codec, and true if pages are only
    /// encoded once they are full. Values that are the keys have no bytes.
    fn sides(&self, kv: Kv) -> [(u64, bool); 2] {
        let decl = self.kv_decl(kv);
        let mut sides = decl.codecs().map(|(codec, side)| {
            let bytes = codec.page_bytes(side, decl.head_dim, PAGE).expect("checked program");
            (bytes as u64, codec.windowed())
        });
        std::array::from_fn(|_| sides.next().unwrap_or((0, false)))
    }

    /// Bytes of one layer's cache that a row reads, for the last `seen` positions up to `pos`.
    fn read_bytes(&self, kv: Kv, pos: u32, seen: u64) -> u64 {
        let decl = self.kv_decl(kv);
        let exact = seen.min(decl.window.exact_positions(pos as usize) as u64);
        let side = |(page_bytes, windowed): (u64, bool)| match windowed {
            true => exact * F16_BYTES * decl.head_dim as u64 + (seen - exact) * page_bytes / PAGE as u64,
            false => seen * page_bytes / PAGE as u64,
        };
        decl.n_kv_heads as u64 * self.sides(kv).map(side).iter().sum::<u64>()
    }

    /// Bytes of one layer's cache that a row writes, now and when its page is encoded.
    fn written_bytes(&self, kv: Kv) -> u64 {
        let decl = self.kv_decl(kv);
        let exact = F16_BYTES * decl.head_dim as u64;
        let side =
            |(page_bytes, windowed): (u64, bool)| page_bytes / PAGE as u64 + if windowed { exact } else { 0 };
        decl.n_kv_heads as u64 * self.sides(kv).map(side).iter().sum::<u64>()
    }

    fn linears_cost<'a>(&self, linears: impl Iterator<Item = &'a Linear>, n_rows: u64) -> Cost {
        linears.map(|linear| self.linear_cost(linear, n_rows)).sum()
    }

    fn linear_cost(&self, linear: &Linear, n_rows: u64) -> Cost {
        if n_rows == 0 {
            return Cost::default();
        }
        // `lora_cost` counts pairs.
        let Linear { w, norm: _, bias: _, act: _, scale: _, basis: _, lora: _, clamp: _ } = *linear;
        let decl = self.weight_decl(w);
        let macs = n_rows * decl.rows as u64 * decl.cols as u64;
        Cost { weight_bytes: self.weight_bytes(w), macs, ..Cost::default() }
    }

    fn weight_bytes(&self, w: Weight) -> u64 {
        let decl = self.weight_decl(w);
        decl.ty.byte_len(decl.rows, decl.cols).expect("checked program") as u64
    }

    fn row_bytes(&self, w: Weight) -> u64 {
        let decl = self.weight_decl(w);
        decl.ty.row_bytes(decl.cols).expect("checked program") as u64
    }
}

/// The tables of an embedding; `lora_cost` counts pairs.
fn tables(s: &Embed) -> impl Iterator<Item = Weight> {
    let Embed { table, stride: _, first: _, basis: _, scale: _, positions, types, lora: _, x: _ } = *s;
    [Some(table), positions, types].into_iter().flatten()
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Add::add)
    }
}
