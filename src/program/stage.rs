//! The stages. What each one means is defined here in prose; `tests/support/oracle` says it again in
//! plain f64 code, and every backend is held to that.
//!
//! `[r]` is one row of the step: one token of one sequence.

use std::sync::Arc;

use super::{Buf, Kv, RopeId, RowsOf, Weight};

/// One step of the forward pass. Backends match it without a `_` arm.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Token (and position) embedding.
    Embed(Embed),
    /// Norm, Q, K, V, rotary embedding, KV write.
    AttnIn(AttnIn),
    /// Causal attention over the cache.
    Attend(Attend),
    /// Projection added to the residual stream.
    ProjAdd(ProjAdd),
    /// Norm and the first half of the feed-forward network.
    FfnIn(FfnIn),
    /// A mixture of experts in place of the feed-forward network.
    Experts(Experts),
    /// Final norm and output head, for the rows that asked.
    Logits(Logits),
    /// Picks a token from each row of logits.
    Sample(Sample),
}

impl Stage {
    /// Its kind, as files and kernels are called.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::AttnIn(_) => "attn_in",
            Self::Attend(_) => "attend",
            Self::ProjAdd(_) => "proj_add",
            Self::FfnIn(_) => "ffn_in",
            Self::Experts(_) => "experts",
            Self::Logits(_) => "logits",
            Self::Sample(_) => "sample",
        }
    }

    /// The same linear layers as [`linears`](Self::linears), to be changed.
    pub fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let linears: Vec<&mut Linear> = match self {
            Self::AttnIn(s) => vec![&mut s.wq, &mut s.wk, &mut s.wv],
            Self::ProjAdd(s) => vec![&mut s.w],
            Self::FfnIn(s) => s.gate.iter_mut().chain([&mut s.up]).collect(),
            Self::Experts(s) => {
                let layers = s.experts.iter_mut().flat_map(|expert| {
                    let Expert { gate, up, down } = expert;
                    [gate, up, down]
                });
                layers.chain([&mut s.router]).collect()
            }
            Self::Logits(s) => vec![&mut s.w],
            Self::Embed(_) | Self::Attend(_) | Self::Sample(_) => Vec::new(),
        };
        linears.into_iter()
    }

    /// The buffers that the stage reads, and those that it writes, for one with both meanings in both.
    pub fn bufs(&self) -> (Vec<Buf>, Vec<Buf>) {
        match self {
            Self::Embed(s) => (vec![], vec![s.x]),
            Self::AttnIn(s) => (vec![s.x], vec![s.q]),
            Self::Attend(s) => (vec![s.q], vec![s.out]),
            Self::ProjAdd(s) => (vec![s.y, s.x], vec![s.x]),
            Self::FfnIn(s) => (vec![s.x], vec![s.h]),
            Self::Experts(s) => (vec![s.x], vec![s.x]),
            Self::Logits(s) => (vec![s.x], vec![s.logits]),
            Self::Sample(s) => (vec![s.logits], vec![]),
        }
    }

    /// The linear layers of the stage, and which rows they multiply.
    pub fn linears(&self) -> (RowsOf, impl Iterator<Item = &Linear>) {
        let experts: &[Expert] = if let Self::Experts(s) = self { &s.experts } else { &[] };
        let (rows, linears) = match self {
            Self::AttnIn(s) => (RowsOf::Step, [Some(&s.wq), Some(&s.wk), Some(&s.wv)]),
            Self::ProjAdd(s) => (RowsOf::Step, [Some(&s.w), None, None]),
            Self::FfnIn(s) => (RowsOf::Step, [Some(&s.up), s.gate.as_ref(), None]),
            Self::Experts(s) => (RowsOf::Step, [Some(&s.router), None, None]),
            Self::Logits(s) => (RowsOf::Outputs, [Some(&s.w), None, None]),
            Self::Embed(_) | Self::Attend(_) | Self::Sample(_) => (RowsOf::Step, [None; 3]),
        };
        let experts = experts.iter().flat_map(|expert| [&expert.gate, &expert.up, &expert.down]);
        (rows, linears.into_iter().flatten().chain(experts))
    }
}

/// `x[r] = scale * table[token[r]]`, plus `positions[pos[r]]` where there is such a table.
#[derive(Clone, Debug)]
pub struct Embed {
    /// `[n_vocab, dim]`.
    pub table: Weight,
    /// Factor on a token's row, 1 for most; Gemma's is `sqrt(dim)`.
    pub scale: f32,
    /// `[n_ctx, dim]`, GPT-2's learned positions.
    pub positions: Option<Weight>,
    /// Out: `[rows, dim]`.
    pub x: Buf,
}

/// `n = norm(x); q = rope(q_norm(Wq n)); kv[seq[r], pos[r]] = (rope(k_norm(Wk n)), Wv n)`.
#[derive(Clone, Debug)]
pub struct AttnIn {
    /// In: `[rows, dim]`.
    pub x: Buf,
    /// Norm before the projections.
    pub norm: Norm,
    /// `[n_heads * head_dim, dim]`.
    pub wq: Linear,
    /// `[n_kv_heads * head_dim, dim]`.
    pub wk: Linear,
    /// `[n_kv_heads * head_dim, dim]`.
    pub wv: Linear,
    /// Norm over each query head, weight `[head_dim]`.
    pub q_norm: Option<Norm>,
    /// Norm over each key head, weight `[head_dim]`.
    pub k_norm: Option<Norm>,
    /// Rotary embedding of queries and keys.
    pub rope: Option<RopeId>,
    /// Out: this layer's cache.
    pub kv: Kv,
    /// Out: `[rows, n_heads * head_dim]`.
    pub q: Buf,
}

/// `out[r] = softmax(scale * q[r] . K[first ..= pos[r]]) V`, each query head with KV head
/// `head / (n_heads / n_kv_heads)`, over the row's own sequence. `first` is 0, or what the window leaves. If
/// heads have sinks, the sum of each softmax has one more term, `exp(sink[head])`, which has no value.
#[derive(Clone, Debug)]
pub struct Attend {
    /// In: `[rows, n_heads * head_dim]`.
    pub q: Buf,
    /// In: this layer's cache, which already holds this step's rows.
    pub kv: Kv,
    /// Factor on every score, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// A sliding window: a row sees the last so many positions, its own included, at least 1.
    pub window: Option<u32>,
    /// `[n_heads]`, f32: a logit of each head for no position at all (GPT-OSS).
    pub sinks: Option<Weight>,
    /// Out: `[rows, n_heads * head_dim]`.
    pub out: Buf,
}

/// `x[r] += post(W norm(y[r]))`, either norm being left out where the model has none.
#[derive(Clone, Debug)]
pub struct ProjAdd {
    /// In: `[rows, cols of w]`.
    pub y: Buf,
    /// BitNet's sub-norm.
    pub norm: Option<Norm>,
    /// `[dim, cols]`.
    pub w: Linear,
    /// Gemma's norm of what is added.
    pub post: Option<Norm>,
    /// In and out: `[rows, dim]`.
    pub x: Buf,
}

/// `n = norm(x); h = act(Wg n) * (Wu n)`, or `act(Wu n)` without a gate.
#[derive(Clone, Debug)]
pub struct FfnIn {
    /// In: `[rows, dim]`.
    pub x: Buf,
    /// Norm before the projections.
    pub norm: Norm,
    /// `[ffn_dim, dim]`.
    pub gate: Option<Linear>,
    /// `[ffn_dim, dim]`.
    pub up: Linear,
    /// Activation function.
    pub act: Act,
    /// Out: `[rows, ffn_dim]`.
    pub h: Buf,
}

/// `n = norm(x[r]); x[r] += sum of p_e Down_e (act(Gate_e n) * Up_e n)` over the `n_used` experts `e` with
/// the largest `z = Router n`, the earlier of equal ones, where `p` is the softmax of their `z`.
#[derive(Clone, Debug)]
pub struct Experts {
    /// In and out: `[rows, dim]`.
    pub x: Buf,
    /// Norm before the router and the experts.
    pub norm: Norm,
    /// `[experts, dim]`.
    pub router: Linear,
    /// At least one, all of one shape.
    pub experts: Vec<Expert>,
    /// Experts that a row goes through, at least one.
    pub n_used: usize,
    /// Activation function.
    pub act: Act,
}

/// A feed-forward network that some rows go through.
#[derive(Clone, Debug)]
pub struct Expert {
    /// `[ffn_dim, dim]`.
    pub gate: Linear,
    /// `[ffn_dim, dim]`.
    pub up: Linear,
    /// `[dim, ffn_dim]`.
    pub down: Linear,
}

/// `logits[o] = cap(W norm(x[r]))` for the `o`-th row `r` that asked for logits, with
/// `cap(z) = c tanh(z / c)` where there is a soft cap `c`.
#[derive(Clone, Debug)]
pub struct Logits {
    /// In: `[rows, dim]`.
    pub x: Buf,
    /// Final norm.
    pub norm: Norm,
    /// `[n_vocab, dim]`.
    pub w: Linear,
    /// Gemma's bound on logits, above 0.
    pub soft_cap: Option<f32>,
    /// Out: `[outputs, n_vocab]`.
    pub logits: Buf,
}

/// Picks one token from each row of `logits`, as [`Step::sampling`](super::Step::sampling) says;
/// skipped where that is empty. The tokens are read with `Backend::tokens`.
#[derive(Clone, Debug)]
pub struct Sample {
    /// In: `[outputs, n_vocab]`; left as it is.
    pub logits: Buf,
}

/// `y = scale * (W q(x)) + bias`.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub w: Weight,
    /// `[outputs]`, f32.
    pub bias: Option<Weight>,
    /// Rounding of the input. A part of the model's numerics, not a backend's choice.
    pub act: ActQuant,
    /// Factor on the product, 1 for most; old BitNet files store one next to each tensor.
    pub scale: f32,
}

/// Rounding of a linear layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActQuant {
    /// None: the product is of real numbers, accumulated in f32 or better.
    None,
    /// BitNet's: `s = f32(127 / max(absmax, 1e-5))`, `q = clamp(round_half_even(x s), -128, 127)` for
    /// each row, and the product is `sum(w q) / s`. The sum over ternary codes is an exact integer.
    I8PerToken,
    /// For each [`BLOCK`](Self::BLOCK) inputs `q = round_half_even(x 127 / absmax)` and `s = absmax / 127`,
    /// both in f32, and 0 where `absmax` is below [`NOTHING`](Self::NOTHING): the product is of real numbers,
    /// with `q s` for `x`. This is near what llama.cpp does before it multiplies quantised weights.
    I8PerBlock,
}

impl ActQuant {
    /// Inputs that [`I8PerBlock`](Self::I8PerBlock) rounds together, or those that are left of a row.
    pub const BLOCK: usize = 32;
    /// Below this magnitude [`I8PerBlock`](Self::I8PerBlock) keeps nothing.
    pub const NOTHING: f32 = 1e-30;
}

/// A normalisation over the last dimension.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Which one.
    pub kind: NormKind,
    /// `[dim]`, f32.
    pub weight: Weight,
    /// `[dim]`, f32.
    pub bias: Option<Weight>,
    /// Added to the mean square (RMS) or the variance (LayerNorm).
    pub eps: f32,
}

/// Which normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * weight`.
    Rms,
    /// `(x - mean) / sqrt(var + eps) * weight + bias`.
    Layer,
}

impl Act {
    /// Bound of the clamp of [`ClampedSwiglu`](Self::ClampedSwiglu).
    pub const CLAMP: f32 = 7.0;
    /// See above.
    pub const ALPHA: f32 = 1.702;
}

/// Activation function of the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `max(x, 0)^2`.
    Relu2,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// GPT-2's tanh approximation of GELU.
    GeluTanh,
    /// GPT-OSS's, of a gate `g` and what it multiplies, `u`, which it changes too: with `m = min(g, 7)`,
    /// `m / (1 + exp(-1.702 m)) * (clamp(u, -7, 7) + 1)`. There is no such network without a gate.
    ClampedSwiglu,
}

/// A rotary position embedding: pair `i` of a head is rotated by `pos * inv_freq[i]`.
#[derive(Clone, Debug)]
pub struct Rope {
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// Radians a position, `[pairs]`. Whatever scaling a model uses is already in here. Elements
    /// beyond `2 * pairs` of a head are left as they are.
    pub inv_freq: Arc<[f64]>,
    /// Factor on the rotated pairs (YaRN's attention factor), 1 for most.
    pub magnitude: f32,
}

impl Attend {
    /// The first position that a row at `pos` sees.
    pub fn first(&self, pos: u32) -> u32 {
        self.window.map_or(0, |window| (pos + 1).saturating_sub(window))
    }
}

impl Rope {
    /// Cosines and sines of a position's angles, times the magnitude: `[pairs]` each, computed in f64.
    ///
    /// # Panics
    /// Where a slice is shorter than the pairs.
    pub fn cos_sin(&self, pos: u32, cos: &mut [f32], sin: &mut [f32]) {
        let magnitude = f64::from(self.magnitude);
        for (i, inv_freq) in self.inv_freq.iter().enumerate() {
            let (s, c) = (f64::from(pos) * inv_freq).sin_cos();
            (cos[i], sin[i]) = ((c * magnitude) as f32, (s * magnitude) as f32);
        }
    }
}

/// Which elements of a head a rotary embedding rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(i, i + pairs)`: NeoX, BitNet, and Hugging Face's Llama.
    Halves,
    /// `(2 i, 2 i + 1)`: llama.cpp's Llama files, whose rows are permuted for it.
    Adjacent,
}

macro_rules! from_struct {
    ($($name:ident),*) => {$(
        impl From<$name> for Stage {
            fn from(stage: $name) -> Self {
                Stage::$name(stage)
            }
        }
    )*};
}
from_struct!(Embed, AttnIn, Attend, ProjAdd, FfnIn, Experts, Logits, Sample);
