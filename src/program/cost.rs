//! Bytes and operations per stage, so that every timing can be compared with the roofline.

use std::ops::{Add, AddAssign};

use ggml_types::KvCodec;

use super::{
    Attend, AttnIn, Delta, DeltaIn, Embed, Expert, Experts, FfnIn, Kv, KvDecl, Linear, Logits, PAGE, Program,
    ProjAdd, Row, Sample, Stage, Step, Weight,
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
        let n_rows = step.rows.len() as u64;
        let n_outputs = step.n_outputs() as u64;
        let linears = |linears: &[&Linear]| self.linears_cost(linears.iter().copied(), n_rows);
        match stage {
            Stage::Embed(s) => {
                let Embed { table, stride: _, first: _, basis: _, scale: _, positions, types, x: _ } = *s;
                let tables = [Some(table), positions, types].into_iter().flatten();
                Cost { weight_bytes: tables.map(|w| n_rows * self.row_bytes(w)).sum(), ..Cost::default() }
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
            Stage::Attend(s) => {
                // `first` and `last` take the window and `ahead` into account.
                let Attend { q, kv, scale: _, soft_cap: _, window: _, ahead: _, sinks: _, gate: _, out: _ } =
                    *s;
                let seen = |(row, end): (&Row, u32)| {
                    let last = s.last(row.pos, end);
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
            Stage::DeltaIn(s) => {
                let DeltaIn { x: _, norm: _, wu, wz, wa, wb, u: _, z: _, a: _, b: _ } = s;
                linears(&[wu, wz, wa, wb])
            }
            Stage::ProjAdd(s) => {
                let ProjAdd { y: _, w, post: _, residual: _, scale: _, x: _ } = s;
                linears(&[w])
            }
            Stage::FfnIn(s) => {
                let FfnIn { x: _, norm: _, gate, up, act: _, share, times: _, h: _ } = s;
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
            Stage::Experts(s) => {
                let Experts { x: _, norm: _, router, experts, n_used, act: _ } = s;
                let Expert { gate, up, down } = &experts[0];
                let of_expert = |rows| self.linears_cost([gate, up, down].into_iter(), rows);
                // Assumes that no two rows choose the same expert while there are unused ones.
                let n_passes = n_rows * *n_used as u64;
                let n_read = n_passes.min(experts.len() as u64);
                let (weight_bytes, macs) = (of_expert(1).weight_bytes, of_expert(n_passes).macs);
                let of_experts = Cost { weight_bytes: n_read * weight_bytes, macs, ..Cost::default() };
                linears(&[router]) + of_experts
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

    /// Bytes of one layer's cache at full size: pages in the codecs, and exact pages of f16, each followed by
    /// space for the mean of its keys as f32.
    fn cache_bytes(&self, kv: Kv) -> u64 {
        let decl = self.kv_decl(kv);
        // `sides` has the codecs, `pages` the sliding window, and `read_bytes` the exact window.
        let KvDecl { n_kv_heads, head_dim, k: _, v: _, window: _, sliding: _ } = *decl;
        let pages = decl.pages(&self.limits);
        let [pages, exact] = [pages, self.limits.exact_pages].map(|n| (n * PAGE) as u64);
        let side = |(codec_bytes, windowed, mean): (u64, bool, usize)| {
            let window = exact * F16_BYTES * head_dim as u64 + (self.limits.exact_pages * mean * 4) as u64;
            pages * codec_bytes + if windowed { window } else { 0 }
        };
        let [k, v] = self.sides(kv);
        n_kv_heads as u64 * (side((k.0, k.1, head_dim)) + side((v.0, v.1, 0)))
    }

    /// Per side (keys, values): the bytes of one encoded vector, and true if it is only encoded once it has
    /// left the window.
    fn sides(&self, kv: Kv) -> [(u64, bool); 2] {
        let decl = self.kv_decl(kv);
        let bytes = |codec: &dyn KvCodec| codec.vec_bytes(decl.head_dim).expect("checked program") as u64;
        [decl.k, decl.v].map(|codec| (bytes(codec), codec.windowed()))
    }

    /// Bytes of one layer's cache that a row reads, for the last `seen` positions up to `pos`.
    fn read_bytes(&self, kv: Kv, pos: u32, seen: u64) -> u64 {
        let decl = self.kv_decl(kv);
        let exact = seen.min(decl.window.exact_positions(pos as usize) as u64);
        let side = |(bytes, windowed): (u64, bool)| match windowed {
            true => exact * F16_BYTES * decl.head_dim as u64 + (seen - exact) * bytes,
            false => seen * bytes,
        };
        decl.n_kv_heads as u64 * self.sides(kv).map(side).iter().sum::<u64>()
    }

    /// Bytes of one layer's cache that a row writes, now and when it is encoded.
    fn written_bytes(&self, kv: Kv) -> u64 {
        let decl = self.kv_decl(kv);
        let exact = F16_BYTES * decl.head_dim as u64;
        let side = |(bytes, windowed): (u64, bool)| bytes + if windowed { exact } else { 0 };
        decl.n_kv_heads as u64 * self.sides(kv).map(side).iter().sum::<u64>()
    }

    fn linears_cost<'a>(&self, linears: impl Iterator<Item = &'a Linear>, n_rows: u64) -> Cost {
        linears.map(|linear| self.linear_cost(linear, n_rows)).sum()
    }

    fn linear_cost(&self, linear: &Linear, n_rows: u64) -> Cost {
        if n_rows == 0 {
            return Cost::default();
        }
        let Linear { w, norm: _, bias: _, act: _, scale: _, basis: _ } = *linear;
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

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Add::add)
    }
}
