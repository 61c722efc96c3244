//! The stages. Their semantics are defined here in prose; `tests/support/oracle` implements them in plain f64
//! code, and every backend is tested against it.
//!
//! `[r]` is one row of the step: one token of one sequence.

use std::sync::Arc;

use ggml_types::turboquant::hadamard;
pub use ggml_types::{Act, ActQuant, Xielu};

use super::{BasisId, Buf, Kv, PageTable, RopeId, Routing, Row, RowsOf, State, Weight};

/// One stage of the forward pass. Backends match it without a `_` arm.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Token (and position) embedding.
    Embed(Embed),
    /// Norm, Q, K, V, rotary embedding, KV write.
    AttnIn(AttnIn),
    /// Norm, queries and latent vectors of multi-head latent attention, KV write.
    LatentIn(LatentIn),
    /// Attention over the cache.
    Attend(Attend),
    /// Norm and the input projections of a recurrent layer.
    ProjIn(ProjIn),
    /// A convolution over the rows of a sequence.
    Conv(Conv),
    /// A projection of each head's vector by a matrix of its own.
    HeadProj(HeadProj),
    /// A gated delta net: convolution, recurrence, gated norm.
    Delta(Delta),
    /// A Mamba-2 recurrence, gated, with a norm.
    Mamba(Mamba),
    /// Projection added to the residual stream.
    ProjAdd(ProjAdd),
    /// A buffer, normalised, added to the residual stream.
    NormAdd(NormAdd),
    /// Predicts the residual streams of AltUp.
    AltUpPredict(AltUpPredict),
    /// Corrects the residual streams of AltUp.
    AltUpCorrect(AltUpCorrect),
    /// Buffers with the magnitude of another one.
    Rescale(Rescale),
    /// A vector added to the residual stream.
    AddVector(AddVector),
    /// Norm and the first half of the feed-forward network.
    FfnIn(FfnIn),
    /// A mixture of experts instead of the feed-forward network.
    Experts(Experts),
    /// Final norm and output head, for the rows that need logits.
    Logits(Logits),
    /// Samples a token from each row of logits.
    Sample(Sample),
}

impl Stage {
    /// Name of its kind, as used in the names of files and kernels.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "embed",
            Self::AttnIn(_) => "attn_in",
            Self::LatentIn(_) => "latent_in",
            Self::Attend(_) => "attend",
            Self::ProjIn(_) => "proj_in",
            Self::Conv(_) => "conv",
            Self::HeadProj(_) => "head_proj",
            Self::Delta(_) => "delta",
            Self::Mamba(_) => "mamba",
            Self::ProjAdd(_) => "proj_add",
            Self::NormAdd(_) => "norm_add",
            Self::AltUpPredict(_) => "altup_predict",
            Self::AltUpCorrect(_) => "altup_correct",
            Self::Rescale(_) => "rescale",
            Self::AddVector(_) => "add_vector",
            Self::FfnIn(_) => "ffn_in",
            Self::Experts(_) => "experts",
            Self::Logits(_) => "logits",
            Self::Sample(_) => "sample",
        }
    }

    /// True if the input of one of its linear layers [needs a separate pass](Linear::prepares_input).
    pub fn prepares_input(&self, linear: &Linear) -> bool {
        linear.prepares_input(match self {
            Self::AttnIn(s) => s.norm.is_some(),
            Self::FfnIn(s) => s.norm.is_some(),
            Self::ProjAdd(_) => false,
            _ => true,
        })
    }

    /// True if the stage has pairs of adapters.
    pub fn has_adapters(&self) -> bool {
        self.pairs().next().is_some()
    }

    /// All pairs of adapters of the stage.
    pub fn pairs(&self) -> impl Iterator<Item = &Lora> {
        self.pair_lists().flatten()
    }

    /// The pairs of each linear layer, or of the table, that has some.
    pub fn pair_lists(&self) -> impl Iterator<Item = &[Lora]> {
        let of_table = if let Self::Embed(s) = self { s.lora.as_slice() } else { &[] };
        let of_layers = self.linears().1.map(|linear| linear.lora.as_slice());
        [of_table].into_iter().chain(of_layers).filter(|pairs| !pairs.is_empty())
    }

    /// The linear layers of the stage, mutable: the same as [`linears`](Self::linears).
    pub fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        let linears: Vec<&mut Linear> = match self {
            Self::AttnIn(s) => [&mut s.wq].into_iter().chain(&mut s.wk).chain(&mut s.wv).collect(),
            Self::ProjIn(s) => s.products.iter_mut().map(|(linear, _)| linear).collect(),
            Self::LatentIn(s) => {
                let latent = s.q_latent.iter_mut().map(|(linear, _)| linear);
                latent.chain([&mut s.wq, &mut s.wkv]).chain(&mut s.wk).collect()
            }
            Self::HeadProj(s) => s.w.iter_mut().collect(),
            Self::ProjAdd(s) => vec![&mut s.w],
            Self::FfnIn(s) => s.gate.iter_mut().chain([&mut s.up]).chain(&mut s.share).collect(),
            Self::Experts(s) => {
                let layers = s.experts.iter_mut().flat_map(|expert| {
                    let Expert { gate, up, down } = expert;
                    gate.iter_mut().chain([up, down])
                });
                layers.chain([&mut s.router]).collect()
            }
            Self::Logits(s) => vec![&mut s.w],
            Self::Conv(_) | Self::Mamba(_) | Self::NormAdd(_) | Self::AddVector(_) => Vec::new(),
            Self::AltUpPredict(_) | Self::AltUpCorrect(_) | Self::Rescale(_) => Vec::new(),
            Self::Embed(_) | Self::Attend(_) | Self::Delta(_) | Self::Sample(_) => Vec::new(),
        };
        linears.into_iter()
    }

    /// The buffers that the stage reads, and those that it writes; a buffer may be in both.
    pub fn bufs(&self) -> (Vec<Buf>, Vec<Buf>) {
        match self {
            Self::Embed(s) => (vec![], vec![s.x]),
            Self::AttnIn(s) => (vec![s.x], [s.q].into_iter().chain(s.gate).collect()),
            Self::LatentIn(s) => (vec![s.x], vec![s.q]),
            Self::Attend(s) => ([s.q].into_iter().chain(s.gate).collect(), vec![s.out]),
            Self::ProjIn(s) => (vec![s.x], s.products.iter().map(|(_, buf)| *buf).collect()),
            Self::Conv(s) => ([s.u].into_iter().chain(s.before).chain(s.after).collect(), vec![s.out]),
            Self::HeadProj(s) => (vec![s.x], vec![s.out]),
            Self::Delta(s) => (vec![s.u, s.z, s.a, s.b], vec![s.out]),
            Self::Mamba(s) => (vec![s.c, s.z, s.a], vec![s.out]),
            Self::ProjAdd(s) => (vec![s.y, s.x], vec![s.x]),
            Self::NormAdd(s) => (vec![s.y, s.x], vec![s.x]),
            Self::AltUpPredict(s) => {
                ([s.c].into_iter().chain(s.x).collect(), s.out.into_iter().chain([s.y]).collect())
            }
            Self::AltUpCorrect(s) => {
                let read = [s.c, s.y].into_iter().chain(s.predicted).collect();
                (read, s.x.into_iter().chain([s.scaled]).collect())
            }
            Self::Rescale(s) => {
                ([s.like].into_iter().chain(s.y).collect(), s.y.into_iter().chain(s.mean).collect())
            }
            Self::AddVector(s) => (vec![s.x], vec![s.x]),
            Self::FfnIn(s) => ([s.x].into_iter().chain(s.times).collect(), vec![s.h]),
            Self::Experts(s) => ([s.x].into_iter().chain(s.input).collect(), vec![s.out.unwrap_or(s.x)]),
            Self::Logits(s) => (vec![s.x], vec![s.logits]),
            Self::Sample(s) => (vec![s.logits], vec![]),
        }
    }

    /// The linear layers of the stage, and the rows that they multiply.
    pub fn linears(&self) -> (RowsOf, impl Iterator<Item = &Linear>) {
        let experts: &[Expert] = if let Self::Experts(s) = self { &s.experts } else { &[] };
        let products: &[(Linear, Buf)] = if let Self::ProjIn(s) = self { &s.products } else { &[] };
        let of_heads: &[Linear] = match self {
            Self::LatentIn(s) => &s.wk,
            Self::HeadProj(s) => &s.w,
            _ => &[],
        };
        let (rows, linears) = match self {
            Self::AttnIn(s) => (RowsOf::Step, [Some(&s.wq), s.wk.as_ref(), s.wv.as_ref(), None]),
            Self::LatentIn(s) => {
                let latent = s.q_latent.as_ref().map(|(linear, _)| linear);
                (RowsOf::Step, [latent, Some(&s.wq), Some(&s.wkv), None])
            }
            Self::HeadProj(_) => (RowsOf::Step, [None; 4]),
            Self::ProjAdd(s) => (RowsOf::Step, [Some(&s.w), None, None, None]),
            Self::FfnIn(s) => (RowsOf::Step, [Some(&s.up), s.gate.as_ref(), s.share.as_ref(), None]),
            Self::Experts(s) => (RowsOf::Step, [Some(&s.router), None, None, None]),
            Self::Logits(s) => (RowsOf::Outputs, [Some(&s.w), None, None, None]),
            Self::ProjIn(_) | Self::Conv(_) | Self::Mamba(_) => (RowsOf::Step, [None; 4]),
            Self::NormAdd(_) | Self::AddVector(_) => (RowsOf::Step, [None; 4]),
            Self::AltUpPredict(_) | Self::AltUpCorrect(_) | Self::Rescale(_) => (RowsOf::Step, [None; 4]),
            Self::Embed(_) | Self::Attend(_) | Self::Delta(_) | Self::Sample(_) => (RowsOf::Step, [None; 4]),
        };
        let experts = experts.iter().flat_map(Expert::layers);
        let products = products.iter().map(|(linear, _)| linear);
        (rows, linears.into_iter().flatten().chain(products).chain(of_heads).chain(experts))
    }
}

/// `x[r] = scale * table[stride * token[r] + first]`, plus `positions[pos[r]]` and `types[type[r]]` if there
/// are such tables. If rows of the table are in a rotated basis, they are rotated back first. The type of a
/// row is given by its position: [`PageTable::token_type`](super::PageTable::token_type). Each [`Lora`] that
/// the row's sequence uses adds `s * scale * B A[token[r]]`.
#[derive(Clone, Debug)]
pub struct Embed {
    /// `[stride * n_vocab, dim]`.
    pub table: Weight,
    /// Rows of the table per token, usually 1. A table of all layers has one per layer (Gemma 4).
    pub stride: u32,
    /// The row among those of a token, below `stride`.
    pub first: u32,
    /// The basis of its rows.
    pub basis: Option<BasisId>,
    /// Factor on a token's row, usually 1; Gemma's is `sqrt(dim)`.
    pub scale: f32,
    /// `[n_ctx, dim]`, GPT-2's learned positions.
    pub positions: Option<Weight>,
    /// `[n_types, dim]`, BERT's token types.
    pub types: Option<Weight>,
    /// Pairs of adapters, at most one each: `a` is `[n_vocab, rank]`, `b` is `[dim, rank]`. Only with a
    /// stride of 1.
    pub lora: Vec<Lora>,
    /// Out: `[rows, dim]`.
    pub x: Buf,
}

/// `n = norm(x); q = t(pos[r]) rope(q_norm(Wq n)); kv[seq[r], pos[r]] = (rope(k_norm(Wk n)), v_norm(Wv n))`,
/// where `t` is 1 unless there is a [`QueryScale`]. [`QkNorm`] says what the norms of queries and keys cover.
/// With a gate, each head of `Wq n` is twice as long, and its second half is the head's part of the gate,
/// unchanged.
///
/// Without `Wv`, values are `v_norm(Wk n)`. Without `Wk`, the stage computes only queries and writes nothing
/// to the cache, which an earlier stage has written.
#[derive(Clone, Debug)]
pub struct AttnIn {
    /// In: `[rows, dim]`.
    pub x: Buf,
    /// Norm before the projections.
    pub norm: Option<Norm>,
    /// `[n_heads * head_dim, dim]`, or twice as many rows if there is a gate.
    pub wq: Linear,
    /// `[n_kv_heads * head_dim, dim]`.
    pub wk: Option<Linear>,
    /// `[n_kv_heads * head_dim, dim]`.
    pub wv: Option<Linear>,
    /// Norm of queries, weight `[head_dim]`, or `[n_heads * head_dim]` if it covers whole rows.
    pub q_norm: Option<Norm>,
    /// Norm of keys, weight `[head_dim]`, or `[n_kv_heads * head_dim]` if it covers whole rows.
    pub k_norm: Option<Norm>,
    /// Scope of these two norms.
    pub qk_norm: QkNorm,
    /// Norm over each value head, weight `[head_dim]` (Gemma 4).
    pub v_norm: Option<Norm>,
    /// Rotary embedding of queries and keys.
    pub rope: Option<RopeId>,
    /// Factor on queries that depends on the position (Ministral 3).
    pub q_scale: Option<QueryScale>,
    /// Out: this layer's cache.
    pub kv: Kv,
    /// Out: `[rows, n_heads * head_dim]`.
    pub q: Buf,
    /// Out: the gate of attention's output, `[rows, n_heads * head_dim]` (Qwen3.5).
    pub gate: Option<Buf>,
}

/// The inputs of multi-head latent attention (DeepSeek-V2) in its absorbed form: all heads share one KV head,
/// whose keys are also the values ([`KvDecl::values_are_keys`](super::KvDecl::values_are_keys)).
///
/// ```text
/// n = norm(x)
/// a = q_norm(Wa n), or n without a latent vector of queries
/// per head h: (p | t) = Wq a; q[h] = (Wk[h] p | rope(t))
/// (c | t) = Wkv n; kv[seq[r], pos[r]] = (kv_norm(c) | rope(t))
/// ```
///
/// `c` has `rank` elements, which are the rows of each `Wk[h]`; `t` has the other elements of a KV head, and
/// `p` as many as `Wk[h]` has columns.
#[derive(Clone, Debug)]
pub struct LatentIn {
    /// In: `[rows, dim]`.
    pub x: Buf,
    /// Norm before the projections.
    pub norm: Norm,
    /// `Wa`, `[q_rank, dim]`, and the norm of its product, weight `[q_rank]`.
    pub q_latent: Option<(Linear, Norm)>,
    /// The heads' parts `p` and `t`, `[n_heads * (cols of wk + head_dim - rank), q_rank or dim]`.
    pub wq: Linear,
    /// Per head `[rank, elements of p]`.
    pub wk: Vec<Linear>,
    /// `[head_dim, dim]`.
    pub wkv: Linear,
    /// Norm of the latent vector, weight `[rank]`.
    pub kv_norm: Norm,
    /// Rotary embedding of `t`.
    pub rope: RopeId,
    /// Out: this layer's cache, of one KV head.
    pub kv: Kv,
    /// Out: `[rows, n_heads * head_dim]`.
    pub q: Buf,
}

/// `out[r][h] = W[h] x[r][h]` for each head `h`, of which `W[h]` multiplies the first elements.
#[derive(Clone, Debug)]
pub struct HeadProj {
    /// In: `[rows, n_heads * head_dim]`.
    pub x: Buf,
    /// Per head `[outputs, at most head_dim]`, all of the same shape.
    pub w: Vec<Linear>,
    /// Out: `[rows, n_heads * outputs]`.
    pub out: Buf,
}

/// Scope of the norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head.
    Heads,
    /// All heads of a row together (OLMo 2).
    Rows,
    /// Each head, after RoPE instead of before it (Hunyuan); RMS norms.
    Rotated,
}

/// `1 + factor ln(1 + floor(pos / period))`, on queries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScale {
    /// Factor of the logarithm.
    pub factor: f32,
    /// Positions with the same factor; at least 1.
    pub period: u32,
}

impl QueryScale {
    /// The factor at a position, computed in f64.
    pub fn at(&self, pos: u32) -> f32 {
        (1.0 + f64::from(self.factor) * (1.0 + f64::from(pos / self.period)).ln()) as f32
    }
}

/// `out[r] = softmax(cap(scale * q[r] . K[first ..= last])) V`, with `cap(z) = c tanh(z / c)` if there is a
/// soft cap `c`, each query head with KV head `head / (n_heads / n_kv_heads)`, over the row's own sequence.
/// `first` is 0, or the start of the window; `last` is `pos[r]`, or up to `ahead` positions later if rows see
/// ahead, limited by the sequence's rows in the step; if images are seen whole, `last` of a row of an image
/// is the last position of that image. If heads have sinks, the sum of each softmax has one more term,
/// `exp(sink[head])`, without a value. If there is a gate, `out[r]` is multiplied by a [function](GateAct) of
/// `gate[r]`.
#[derive(Clone, Debug)]
pub struct Attend {
    /// In: `[rows, n_heads * head_dim]`.
    pub q: Buf,
    /// In: this layer's cache, which already contains this step's rows.
    pub kv: Kv,
    /// Factor on every score, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Gemma 2's soft cap of scores, above 0.
    pub soft_cap: Option<f32>,
    /// Sliding window: number of last positions that a row reads, including its own; at least 1.
    pub window: Option<u32>,
    /// Number of later positions that a row reads: 0 for causal attention, [`ALL`](Self::ALL) for an encoder.
    /// If it is above 0, all rows of a sequence run in one step.
    pub ahead: u32,
    /// True if a row of an [image](super::ImageSpan) also reads the later rows of that image (Gemma 3). All
    /// rows of an image that are not cached run in one step then.
    pub whole_images: bool,
    /// `[n_heads]`, f32: a sink logit per head (GPT-OSS).
    pub sinks: Option<Weight>,
    /// In: `[rows, n_heads * head_dim]`, or `[rows, n_heads]` if its function allows it.
    pub gate: Option<Buf>,
    /// Function of the gate.
    pub gate_act: GateAct,
    /// Out: `[rows, n_heads * head_dim]`.
    pub out: Buf,
}

/// Function of the gate of attention's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateAct {
    /// `1 / (1 + exp(-g))`, element by element.
    Sigmoid,
    /// `ln(1 + exp(g))`, element by element, or one per head (Laguna).
    Softplus,
}

/// `n = norm(x); y = W n` for each product, in a buffer of its own: the inputs of [`Conv`], [`Delta`] and
/// [`Mamba`].
#[derive(Clone, Debug)]
pub struct ProjIn {
    /// In: `[rows, dim]`.
    pub x: Buf,
    /// Norm before the projections.
    pub norm: Norm,
    /// Layers of `[outputs, dim]`, each with the buffer that it writes, `[rows, outputs]`: 1 to
    /// [`MAX_PRODUCTS`](Self::MAX_PRODUCTS).
    pub products: Vec<(Linear, Buf)>,
}

impl ProjIn {
    /// Maximum number of products.
    pub const MAX_PRODUCTS: usize = 4;
}

/// A convolution per channel over the rows of a sequence, with 0 before the first row:
///
/// ```text
/// v = before * u
/// c[r] = bias + sum over taps j of w[.., j] * v[r - (taps - 1) + j]
/// out = after * silu(c)
/// ```
///
/// The gates `before` and `after` (LFM2), the bias and SiLU may be absent.
#[derive(Clone, Debug)]
pub struct Conv {
    /// In: `[rows, channels]`.
    pub u: Buf,
    /// In: the gate of the input, `[rows, channels]`.
    pub before: Option<Buf>,
    /// In: the gate of the output, `[rows, channels]`.
    pub after: Option<Buf>,
    /// In and out: the last `taps - 1` rows of `v`; a state without matrices.
    pub state: State,
    /// `[channels * taps]`, f32: the taps per channel; the last one applies to the row itself.
    pub w: Weight,
    /// `[channels]`, f32.
    pub bias: Option<Weight>,
    /// True if SiLU follows the sum.
    pub silu: bool,
    /// Out: `[rows, channels]`.
    pub out: Buf,
}

/// A gated delta net (Qwen3.5): each head has a matrix `S`, `[head_dim, head_dim]`. A row decays it, corrects
/// its prediction error, and queries it. Rows of a sequence do so sequentially.
///
/// `c[r] = silu(sum over taps j of conv[.., j] * u[r - (taps - 1) + j])`, per channel, over the sequence's
/// rows, with 0 before the first. `c` contains `n_key_heads` queries, as many keys, and `n_heads` values;
/// head `h` uses the query and the key `h % n_key_heads`. With `l2(x) = x / sqrt(sum(x^2) + eps)`, per head:
///
/// ```text
/// q = l2(query) / sqrt(head_dim), k = l2(key), v = value
/// g = exp(decay * softplus(a + dt)), softplus(x) = ln(1 + exp(x)), w = 1 / (1 + exp(-b))
/// S = g S; S = S + w (v - S k) k^T; o = S q
/// out = norm(o) * silu(z)
/// ```
///
/// The norm is per head. Heads of `out` are in the same order, or, if they are grouped, sorted by their key:
/// head `h` at `h % n_key_heads * (n_heads / n_key_heads) + h / n_key_heads`.
#[derive(Clone, Debug)]
pub struct Delta {
    /// In: `[rows, channels]`.
    pub u: Buf,
    /// In: `[rows, n_heads * head_dim]`.
    pub z: Buf,
    /// In: `[rows, n_heads]`.
    pub a: Buf,
    /// In: `[rows, n_heads]`.
    pub b: Buf,
    /// In and out: `S` of each head, and the last `taps - 1` rows of `u`.
    pub state: State,
    /// `[channels * taps]`, f32: the taps per channel; the last one applies to the row itself.
    pub conv: Weight,
    /// `[n_heads]`, f32, below 0.
    pub decay: Weight,
    /// `[n_heads]`, f32.
    pub dt: Weight,
    /// Epsilon of `l2`.
    pub eps: f32,
    /// Norm over each head, weight `[head_dim]`.
    pub norm: Norm,
    /// True if heads of `out` are grouped by their keys.
    pub grouped: bool,
    /// Out: `[rows, n_heads * head_dim]`.
    pub out: Buf,
}

/// A Mamba-2 recurrence: each head has a matrix `S`, `[head_dim, key_dim]`. A row decays it, adds its own
/// product, and queries it. Rows of a sequence do so sequentially.
///
/// `c[r]` contains the values `x` of all heads, then `n_key_heads` keys `B`, then as many queries `C`;
/// neighbouring heads share them: head `h` uses those of group `h / (n_heads / n_key_heads)`. Per head:
///
/// ```text
/// d = softplus(a + dt), softplus(x) = ln(1 + exp(x))
/// S = exp(decay * d) S + d x B^T; y = S C + skip * x
/// out = norm(y * silu(z))
/// ```
///
/// The norm is over the heads of each group together; it may be absent.
#[derive(Clone, Debug)]
pub struct Mamba {
    /// In: `[rows, channels]`.
    pub c: Buf,
    /// In: `[rows, n_heads * head_dim]`.
    pub z: Buf,
    /// In: `[rows, n_heads]`.
    pub a: Buf,
    /// In and out: `S` of each head; a state without a convolution.
    pub state: State,
    /// `[n_heads]`, f32, below 0.
    pub decay: Weight,
    /// `[n_heads]`, f32.
    pub dt: Weight,
    /// `[n_heads]`, f32.
    pub skip: Weight,
    /// RMS norm over each group, weight `[n_heads * head_dim]`.
    pub norm: Option<Norm>,
    /// Out: `[rows, n_heads * head_dim]`.
    pub out: Buf,
}

/// `x[r] = scale * (residual(x[r]) + post(W y[r]))`; either norm may be absent.
#[derive(Clone, Debug)]
pub struct ProjAdd {
    /// In: `[rows, cols of w]`.
    pub y: Buf,
    /// `[dim, cols]`.
    pub w: Linear,
    /// Norm of the product (Gemma): `x[r] + post(W y[r])`.
    pub post: Option<Norm>,
    /// Norm of the residual stream before the product is added (BERT): `residual(x[r]) + W y[r]`. In a
    /// post-norm model `x` contains the sums before their norm, and every stage that reads `x` normalises it.
    pub residual: Option<Norm>,
    /// Factor on the sum, usually 1; Gemma 4 has one per layer.
    pub scale: f32,
    /// In and out: `[rows, dim]`.
    pub x: Buf,
}

/// `x[r] = scale * (x[r] + norm(y[r]))`: the output of a feed-forward network that several stages add up.
#[derive(Clone, Debug)]
pub struct NormAdd {
    /// In: `[rows, dim]`.
    pub y: Buf,
    /// Norm of `y`.
    pub norm: Norm,
    /// Factor on the sum, usually 1.
    pub scale: f32,
    /// In and out: `[rows, dim]`.
    pub x: Buf,
}

/// The beginning of a layer with alternating updates (AltUp, Gemma 3n), which has several residual streams
/// and computes one of them, the active one. The streams are predicted from all of them:
///
/// ```text
/// m = W tanh(c)
/// out[j] = x[j] + sum over streams i of m[STREAMS * j + i] * x[i]
/// y = out[active]
/// ```
#[derive(Clone, Debug)]
pub struct AltUpPredict {
    /// In: product of the router, `[rows, STREAMS]`.
    pub c: Buf,
    /// `W`, `[STREAMS * STREAMS * STREAMS]`, f32: the rows of a matrix of `STREAMS` columns.
    pub w: Weight,
    /// In: the streams, `[rows, dim]` each.
    pub x: [Buf; STREAMS],
    /// Number of the active stream.
    pub active: usize,
    /// Out: the predicted streams, `[rows, dim]` each.
    pub out: [Buf; STREAMS],
    /// Out: a copy of the active one, which the layer changes.
    pub y: Buf,
}

/// The end of a layer with alternating updates: the predicted streams are corrected by what the layer has
/// changed in the active one.
///
/// ```text
/// m = W tanh(c)
/// x[j] = predicted[j] + (1 + m[j]) * (y - predicted[active])
/// scaled = factors * x[active]
/// ```
#[derive(Clone, Debug)]
pub struct AltUpCorrect {
    /// In: product of the router, `[rows, STREAMS]`.
    pub c: Buf,
    /// `W`, `[STREAMS * STREAMS]`, f32: the rows of a matrix of `STREAMS` columns.
    pub w: Weight,
    /// In: the layer's output, `[rows, dim]`.
    pub y: Buf,
    /// In: the predicted streams, `[rows, dim]` each.
    pub predicted: [Buf; STREAMS],
    /// Number of the active stream.
    pub active: usize,
    /// Out: the corrected streams, `[rows, dim]` each.
    pub x: [Buf; STREAMS],
    /// `[dim]`, f32.
    pub factors: Weight,
    /// Out: `[rows, dim]`.
    pub scaled: Buf,
}

/// Number of residual streams with alternating updates.
pub const STREAMS: usize = 4;

/// Gives rows of several buffers the magnitude of the same row of another one:
///
/// ```text
/// y[j] = y[j] * sqrt(mean(like^2)) / sqrt(max(mean(y[j]^2), floor))
/// mean = (like + sum of y[j]) / STREAMS
/// ```
#[derive(Clone, Debug)]
pub struct Rescale {
    /// In: `[rows, dim]`.
    pub like: Buf,
    /// In and out: `[rows, dim]` each.
    pub y: [Buf; STREAMS - 1],
    /// Least mean square that `y` is divided by.
    pub floor: f32,
    /// Out: `[rows, dim]`.
    pub mean: Option<Buf>,
}

/// `x[r] += v`: a control vector after a layer.
#[derive(Clone, Debug)]
pub struct AddVector {
    /// In and out: `[rows, dim]`.
    pub x: Buf,
    /// `[dim]`, f32.
    pub v: Weight,
}

/// `n = norm(x); h = act(Wg n) * (Wu n)`, or `act(Wu n)` without a gate. A shared expert next to a mixture of
/// experts may have a share, one number per row: `h` is multiplied by `1 / (1 + exp(-share n))`. If there are
/// factors (`times`), `h` is multiplied by them, element by element. With a cutoff, only the largest elements
/// of the gate remain: it is `max(g - (mean(g) + cutoff * std(g)), 0)` for `g = Wg n`, with the standard
/// deviation `sqrt(mean((g - mean(g))^2))`.
#[derive(Clone, Debug)]
pub struct FfnIn {
    /// In: `[rows, dim]`.
    pub x: Buf,
    /// Norm before the projections.
    pub norm: Option<Norm>,
    /// `[ffn_dim, dim]`.
    pub gate: Option<Linear>,
    /// `[ffn_dim, dim]`.
    pub up: Linear,
    /// Activation function.
    pub act: Act,
    /// `[1, dim]`.
    pub share: Option<Linear>,
    /// In: factors of `h`, `[rows, ffn_dim]`: the per-layer input of Gemma 4.
    pub times: Option<Buf>,
    /// Cutoff of the gate, in standard deviations (Gemma 3n). Only with a gate.
    pub cutoff: Option<f32>,
    /// Out: `[rows, ffn_dim]`.
    pub h: Buf,
}

/// `n = norm(x[r]); x[r] += sum of w_e Down_e (act(Gate_e n) * Up_e n)` over the `n_used` experts `e` that
/// the [`Routing`] chooses by `z = Router n`, with their weights `w`. Experts without a gate compute `Down_e
/// act(Up_e n)`. With `out`, the sum itself is written to that buffer, and `x` does not change. With `input`,
/// the experts have its rows in place of `n`, and `out` as many columns.
#[derive(Clone, Debug)]
pub struct Experts {
    /// In, and out unless there is another buffer: `[rows, dim]`.
    pub x: Buf,
    /// Norm before the experts, and before the router unless that has its own.
    pub norm: Norm,
    /// Norm before the router (Gemma 4).
    pub router_norm: Option<Norm>,
    /// `[experts, dim]`.
    pub router: Linear,
    /// Choice of a row's experts.
    pub routing: Routing,
    /// The experts, at least one, all of the same shape.
    pub experts: Vec<Expert>,
    /// Number of experts per row, at least one.
    pub n_used: usize,
    /// Activation function.
    pub act: Act,
    /// In: the experts' input, `[rows, width]`, usually `n` (Nemotron 3 Super). Only with `out`.
    pub input: Option<Buf>,
    /// Out: the sum, `[rows, dim]`, or `[rows, width]` if there is an input.
    pub out: Option<Buf>,
}

/// A feed-forward network that only some rows use.
#[derive(Clone, Debug)]
pub struct Expert {
    /// `[ffn_dim, dim]`, as the others with the width of the input if there is one. All experts of a mixture
    /// have one, or none has.
    pub gate: Option<Linear>,
    /// `[ffn_dim, dim]`.
    pub up: Linear,
    /// `[dim, ffn_dim]`.
    pub down: Linear,
}

/// `logits[o] = cap(W norm(x[r]))` for the `o`-th row `r` that needs logits, with `cap(z) = c tanh(z / c)` if
/// there is a soft cap `c`.
#[derive(Clone, Debug)]
pub struct Logits {
    /// In: `[rows, dim]`.
    pub x: Buf,
    /// Final norm.
    pub norm: Norm,
    /// `[n_vocab, dim]`.
    pub w: Linear,
    /// Gemma's soft cap of logits, above 0.
    pub soft_cap: Option<f32>,
    /// Out: `[outputs, n_vocab]`.
    pub logits: Buf,
}

/// Samples one token from each row of `logits`, with the parameters of
/// [`Step::sampling`](super::Step::sampling); skipped if they are empty. The tokens are read with
/// `Backend::tokens`.
#[derive(Clone, Debug)]
pub struct Sample {
    /// In: `[outputs, n_vocab]`; not modified.
    pub logits: Buf,
}

/// `y = scale * (W q(norm(x))) + bias`, with `norm(x)` rotated to the basis of the weights. Each [`Lora`]
/// that the row's sequence uses adds `s * scale * B (A norm(x))`, which takes the input before it is
/// quantised. With bounds, `norm(x)` and `y` are clamped to them.
#[derive(Clone, Debug)]
pub struct Linear {
    /// `[outputs, inputs]`.
    pub w: Weight,
    /// An additional norm of only this layer's input, after the norm of the whole stage: the sub-norms of
    /// BitNet and BitNet-embedding. Allowed for `wq`, `wk` and `wv` of [`AttnIn`], `w` of [`ProjAdd`] and of
    /// [`Logits`], and `gate` and `up` of [`FfnIn`]. Of those, only `w` of `ProjAdd` may also have a `basis`.
    pub norm: Option<Norm>,
    /// `[outputs]`, f32.
    pub bias: Option<Weight>,
    /// Quantisation of the input. Part of the model's numerics, not a backend's choice.
    pub act: ActQuant,
    /// Factor on the product, usually 1; old BitNet files store one next to each tensor.
    pub scale: f32,
    /// The basis of the weights' inputs, if they are rotated.
    pub basis: Option<BasisId>,
    /// Pairs of adapters, at most one each: `a` is `[rank, inputs]`, `b` is `[outputs, rank]`. Not with a
    /// basis.
    pub lora: Vec<Lora>,
    /// Bounds of the input and of `y`. Allowed where an own `norm` is; in [`ProjAdd`] only with a norm of the
    /// product.
    pub clamp: Option<Clamp>,
}

/// A pair of a LoRA adapter. It applies to the rows of sequences that use the adapter with a scale `s` other
/// than 0 ([`PageTable::adapters`](super::PageTable::adapters)).
#[derive(Clone, Debug)]
pub struct Lora {
    /// The adapter: index into [`Program::adapters`](super::Program::adapters).
    pub adapter: u32,
    /// The first matrix.
    pub a: Weight,
    /// The second matrix.
    pub b: Weight,
    /// Factor on the product, usually alpha / rank.
    pub scale: f32,
}

/// Bounds of a linear layer: lower and upper, which may be infinite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clamp {
    /// Bounds of the input, after norms.
    pub input: [f32; 2],
    /// Bounds of the output.
    pub output: [f32; 2],
}

impl Linear {
    /// Key of the input's preparation before the product: layers with equal keys share one input. A norm is
    /// identified by its weight.
    pub fn prepared(&self) -> (Option<Weight>, Option<BasisId>, ActQuant, Option<[f32; 2]>) {
        let norm = self.norm.as_ref().map(|norm| norm.weight);
        (norm, self.basis, self.act, self.clamp.map(|clamp| clamp.input))
    }

    /// True if the input is rotated, or normalised a second time, before it is quantised, which needs a
    /// separate pass.
    pub fn prepares_input(&self, is_normed: bool) -> bool {
        self.basis.is_some() || (is_normed && self.norm.is_some())
    }
}

/// A normalisation over the last dimension.
#[derive(Clone, Debug)]
pub struct Norm {
    /// Kind of normalisation.
    pub kind: NormKind,
    /// `[dim]`, f32.
    pub weight: Weight,
    /// `[dim]`, f32.
    pub bias: Option<Weight>,
    /// Added to the mean square (RMS) or the variance (LayerNorm).
    pub eps: f32,
}

/// Kind of normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * weight`.
    Rms,
    /// `(x - mean) / sqrt(var + eps) * weight + bias`.
    Layer,
}

/// A rotary position embedding: pair `i` of a head is rotated by `(pos + ahead) * inv_freq[i]`, or with axes
/// by `(place[axes[i]] + ahead) * inv_freq[i]`, where `place` is
/// [`PageTable::place`](super::PageTable::place) of the row.
#[derive(Clone, Debug)]
pub struct Rope {
    /// The elements that form a pair.
    pub style: RopeStyle,
    /// Radians per position, `[pairs]`, with the model's scaling already applied. Elements beyond `2 * pairs`
    /// of a head are not rotated.
    pub inv_freq: Arc<[f64]>,
    /// Factor on the rotated pairs (YaRN's attention factor), usually 1.
    pub magnitude: f32,
    /// The axis of each pair's position, `[pairs]`: M-RoPE of Qwen, 2-D RoPE of vision towers. `None` if all
    /// pairs are rotated by the position in the sequence.
    pub axes: Option<Arc<[Axis]>>,
    /// Added to the position, usually 0: queries of a token that is not in the cache yet are rotated to the
    /// position after the row's (drafts of Gemma 4's assistant).
    pub ahead: u32,
}

/// Axis of a rotary position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// The same for all rows of an image.
    Time,
    /// Row of the image's grid.
    Row,
    /// Column of the image's grid.
    Column,
}

impl Expert {
    /// The gate, if there is one, the up and the down projection.
    pub fn layers(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up, &self.down])
    }
}

impl Experts {
    /// Norm of the router's input.
    pub fn norm_of_router(&self) -> &Norm {
        self.router_norm.as_ref().unwrap_or(&self.norm)
    }
}

impl Attend {
    /// Value of [`ahead`](Self::ahead) for every position of the sequence.
    pub const ALL: u32 = u32::MAX;

    /// The last position that a row reads, in a sequence whose last row in the step is at `end`.
    pub fn last(&self, row: &Row, end: u32, pages: &PageTable) -> u32 {
        match self.whole_images.then(|| pages.image_at(row.seq, row.pos)).flatten() {
            Some(image) => image.end() - 1,
            None if self.ahead == 0 => row.pos,
            None => row.pos.saturating_add(self.ahead).min(end),
        }
    }

    /// The first position that a row at `pos` reads.
    pub fn first(&self, pos: u32) -> u32 {
        self.window.map_or(0, |window| (pos + 1).saturating_sub(window))
    }
}

/// A rotated basis of vectors (PrismML's Bonsai 2): `rotate(x) = H(s x)`: the signs `s` element by element,
/// then, per run of `block` elements, the Hadamard matrix `H[r][c] = (-1)^popcount(r & c) / sqrt(block)`.
#[derive(Clone, Debug)]
pub struct Basis {
    /// A power of two that divides the length of vectors.
    pub block: usize,
    /// `s`, 1 and -1: `[length]`.
    pub signs: Arc<[f32]>,
}

impl Basis {
    /// Rotates `x` into this basis.
    ///
    /// # Panics
    /// If the length differs.
    pub fn rotate(&self, x: &mut [f32]) {
        self.flip(x);
        self.mix(x);
    }

    /// Rotates `x` back.
    ///
    /// # Panics
    /// If the length differs.
    pub fn rotate_back(&self, x: &mut [f32]) {
        self.mix(x);
        self.flip(x);
    }

    fn flip(&self, x: &mut [f32]) {
        assert_eq!(x.len(), self.signs.len());
        x.iter_mut().zip(&*self.signs).for_each(|(x, sign)| *x *= sign);
    }

    fn mix(&self, x: &mut [f32]) {
        let factor = (1.0 / (self.block as f64).sqrt()) as f32;
        for run in x.chunks_exact_mut(self.block) {
            hadamard(run);
            run.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

impl Rope {
    /// Pairs of elements of a head of `head_dim`: those that `rope` rotates together, and then the others two
    /// by two: `[head_dim / 2]`.
    ///
    /// # Panics
    /// If the head is longer than `u16`, of an odd length, or shorter than the rotated pairs.
    pub fn pairs(rope: Option<&Self>, head_dim: usize) -> Vec<[u16; 2]> {
        let n = rope.map_or(0, |rope| rope.inv_freq.len());
        assert!(2 * n <= head_dim && head_dim.is_multiple_of(2), "{n} pairs in a head of {head_dim}");
        let rotated = |i: usize| match rope.map(|rope| rope.style) {
            Some(RopeStyle::Halves) if i < n => [i, i + n],
            _ => [2 * i, 2 * i + 1],
        };
        let element = |i: usize| u16::try_from(i).expect("a short head");
        (0..head_dim / 2).map(|i| rotated(i).map(element)).collect()
    }

    /// The rotary position of a row on each [`Axis`].
    pub fn place(&self, row: &Row, pages: &PageTable) -> [u32; 3] {
        let place = if self.axes.is_some() { pages.place(row.seq, row.pos) } else { [row.pos; 3] };
        place.map(|at| at + self.ahead)
    }

    /// Cosines and sines of a [place's](Self::place) angles, times the magnitude: `[pairs]` each, computed in
    /// f64.
    ///
    /// # Panics
    /// If a slice is shorter than the pairs.
    pub fn cos_sin(&self, place: [u32; 3], cos: &mut [f32], sin: &mut [f32]) {
        let magnitude = f64::from(self.magnitude);
        for (i, inv_freq) in self.inv_freq.iter().enumerate() {
            let axis = self.axes.as_ref().map_or(Axis::Time, |axes| axes[i]);
            let (s, c) = (f64::from(place[axis as usize]) * inv_freq).sin_cos();
            (cos[i], sin[i]) = ((c * magnitude) as f32, (s * magnitude) as f32);
        }
    }
}

/// Pairing of the elements of a head in a rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(i, i + pairs)`: NeoX, BitNet, and Hugging Face's Llama.
    Halves,
    /// `(2 i, 2 i + 1)`: llama.cpp's Llama files, whose rows are permuted for it.
    Adjacent,
}

macro_rules! from_struct {
    ($($name:ident),* $(,)?) => {$(
        impl From<$name> for Stage {
            fn from(stage: $name) -> Self {
                Stage::$name(stage)
            }
        }
    )*};
}
from_struct!(
    Embed,
    AttnIn,
    LatentIn,
    Attend,
    HeadProj,
    ProjIn,
    Conv,
    Delta,
    Mamba,
    ProjAdd,
    NormAdd,
    AddVector,
    AltUpPredict,
    AltUpCorrect,
    Rescale,
    FfnIn,
    Experts,
    Logits,
    Sample,
);
