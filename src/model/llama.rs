//! Llama and models with its architecture name: Llama 2 and 3, Mistral, Mixtral, SmolLM2, TinyLlama, Falcon3;
//! and the ternary Falcon-E, Falcon3-1.58bit, Llama3-8B-1.58 and TriLM.
//!
//! In files the rows of queries and keys are permuted, so that RoPE rotates neighbouring elements. Weights of
//! type I2_S were trained with int8 activations; only the type indicates that. Files with experts (Mixtral)
//! have a mixture in each layer instead of the feed-forward network.

use super::build::times;
use super::sparse::Sparse;
use super::{Architecture, Builder, LayerHyper, ModelError, Windows};
use sterna_program::{
    Act, Attend, AttnIn, Axis, Buf, Clamp, FfnIn, GateAct, Linear, Norm, ProjAdd, ProjIn, QkNorm, QueryScale,
    RopeId, RopeStyle,
};

/// Llama.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["llama"], build: |m| decoder(m, &Variant::PLAIN), per_layer: true };

/// Differences between the architectures of this form.
pub(super) struct Variant<'a> {
    /// Elements of a head that RoPE rotates together.
    pub rope: RopeStyle,
    /// Axis of each pair that RoPE rotates, if images have positions on several axes; empty otherwise.
    pub axes: &'a [Axis],
    /// Returns true if queries and keys of a layer are rotated.
    pub rotates: &'a dyn Fn(usize) -> bool,
    /// True if queries, keys and values must have biases. Every layer may have them.
    pub qkv_bias: bool,
    /// Largest magnitude of elements of queries, keys and values, if they are bounded.
    pub qkv_bound: Option<f32>,
    /// Scope of the norms of queries and keys, if there are such norms.
    pub qk_norm: Option<QkNorm>,
    /// The function of `attn_gate`, a product of attention's input, by which its output is multiplied, if
    /// there is such a gate. With softplus, it may have an output per head.
    pub attn_gate: Option<GateAct>,
    /// Factor on queries that depends on the position.
    pub q_scale: Option<QueryScale>,
    /// Sliding windows, if the file specifies one.
    pub windows: Option<Windowed>,
    /// True if norms precede attention and the feed-forward network.
    pub pre_norms: bool,
    /// Set if the feed-forward network has the input of attention, and both outputs are added to the stream.
    pub parallel: Option<Parallel>,
    /// Kind of the norms before attention and the feed-forward network, and at the end: reads one by its name
    /// and width.
    pub norm: NormOf,
    /// Name of the norm before attention.
    pub attn_norm: &'static str,
    /// Name of the norm before the feed-forward network, if it has one of its own.
    pub ffn_norm: &'static str,
    /// Activation function of the feed-forward network.
    pub act: Act,
    /// Activation functions of the layers, if they differ; empty otherwise.
    pub acts: &'a [Act],
    /// True if the feed-forward network has a gate.
    pub gated: bool,
    /// True if norms follow the output of attention and of the feed-forward network.
    pub post_norms: bool,
    /// True if the rows of `ffn_up` are those of the gate, then those of the up projection.
    pub fused_gate: bool,
    /// True if files may have two tables of RoPE factors, for short and for long contexts.
    pub long_rope: bool,
    /// The mixtures of experts, if the file has experts.
    pub sparse: Sparse,
    /// Factor on the scores of attention; by default 1 over the square root of the head dimension.
    pub scale: Option<f32>,
    /// Factor on the embedding.
    pub embedding: f32,
    /// True if the embedding has an RMS norm without a weight.
    pub normed_embedding: bool,
    /// Epsilon of the norms after attention and the feed-forward network, if it is not the file's.
    pub post_eps: Option<f32>,
    /// Soft cap of the logits.
    pub soft_cap: Option<f32>,
    /// Factor on the output of attention and of the feed-forward network before it is added to the residual
    /// stream.
    pub residual: f32,
    /// Factor on the logits.
    pub logits: f32,
}

impl Variant<'_> {
    /// Llama itself.
    pub(super) const PLAIN: Self = Self {
        rope: RopeStyle::Adjacent,
        axes: &[],
        rotates: &|_| true,
        qkv_bias: false,
        qkv_bound: None,
        qk_norm: None,
        attn_gate: None,
        q_scale: None,
        windows: None,
        pre_norms: true,
        parallel: None,
        norm: |m, stem, dim| m.rms_norm(stem, dim),
        attn_norm: "attn_norm",
        ffn_norm: "ffn_norm",
        act: Act::Silu,
        acts: &[],
        gated: true,
        post_norms: false,
        fused_gate: false,
        long_rope: false,
        sparse: Sparse::PLAIN,
        scale: None,
        embedding: 1.0,
        normed_embedding: false,
        post_eps: None,
        soft_cap: None,
        residual: 1.0,
        logits: 1.0,
    };
}

/// Reads a norm by its name and width.
pub(super) type NormOf = fn(&mut Builder<'_>, &str, usize) -> Result<Norm, ModelError>;

/// Norm of a feed-forward network next to attention.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parallel {
    /// The one of attention.
    SameNorm,
    /// Another one of the same input.
    OwnNorm,
}

/// Layers with a sliding window.
#[derive(Clone, Copy)]
pub(super) struct Windowed {
    /// Distance between layers without a window, if the file does not specify it.
    pub period: usize,
    /// RoPE of layers with a window.
    pub rope: WindowRope,
    /// True if a period begins with the layer without a window instead of ending with it.
    pub global_first: bool,
}

/// RoPE of layers with a window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WindowRope {
    /// The RoPE of the other layers without its scaling for long contexts.
    Unscaled,
    /// The model's RoPE, which the other layers do not have.
    Only,
}

/// Embedding, blocks of attention and a gated feed-forward network, head.
///
/// # Errors
/// [`ModelError`] for invalid metadata, and for the first tensor that is missing or of another shape.
pub(super) fn decoder(m: &mut Builder<'_>, form: &Variant<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let dim = h.dim;

    let x = if form.normed_embedding { m.normed_embedding()? } else { m.embed(form.embedding)? };
    let rope = |m: &mut Builder<'_>| match form.axes {
        [] if form.long_rope => m.long_rope(form.rope),
        [] => m.rope(form.rope),
        axes => m.rope_of_axes(form.rope, axes.iter().copied()),
    };
    let n_layers = m.trunk()?;
    let windows = form.windows.filter(|_| m.value("attention.sliding_window").is_some());
    let windows = windows.map(|windowed| m.windows(windowed.period)).transpose()?;
    let windows = match form.windows.is_some_and(|windowed| windowed.global_first) {
        true => windows.map(Windows::global_first),
        false => windows,
    };
    let window_of = |layer| windows.as_ref().and_then(|windows| windows.of(layer));
    let rotates = |slides: bool| {
        (0..n_layers).any(|layer| (form.rotates)(layer) && window_of(layer).is_some() == slides)
    };
    let of_windows = windows.as_ref().and(form.windows).map(|windowed| windowed.rope);
    let only = of_windows == Some(WindowRope::Only);
    let global = (rotates(false) && !only).then(|| rope(m)).transpose()?;
    let base = h.rope.freq_base as f32;
    let local = match of_windows.filter(|_| rotates(true)) {
        Some(WindowRope::Unscaled) => Some(m.rope_of_windows(form.rope, base)?),
        Some(WindowRope::Only) if m.value("rope.freq_base_swa").is_some() => {
            Some(m.rope_of_windows(form.rope, base)?)
        }
        Some(WindowRope::Only) => Some(rope(m)?),
        None => None,
    };
    let rope_of = |layer: usize| -> Option<RopeId> {
        let rope = if window_of(layer).is_some() { local } else { global };
        rope.filter(|_| (form.rotates)(layer))
    };

    for layer in 0..n_layers {
        self::layer(m, form, layer, x, (rope_of(layer), window_of(layer)))?;
    }
    let norm = (form.norm)(m, "output_norm", dim)?;
    m.end(x, norm, form.logits, form.soft_cap)
}

/// The norm after attention or the feed-forward network, if there is one.
fn post_norm(m: &mut Builder<'_>, form: &Variant<'_>, stem: &str) -> Result<Option<Norm>, ModelError> {
    if !form.post_norms {
        return Ok(None);
    }
    let norm = m.rms_norm(stem, m.hyper().dim)?;
    Ok(Some(Norm { eps: form.post_eps.unwrap_or(norm.eps), ..norm }))
}

/// Pushes the stages of a layer on the residual stream `x`, with its rotary embedding and its window.
///
/// # Errors
/// As [`decoder`].
pub(super) fn layer(
    m: &mut Builder<'_>,
    form: &Variant<'_>,
    layer: usize,
    x: Buf,
    (rope, window): (Option<RopeId>, Option<u32>),
) -> Result<(), ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let h = m.hyper().clone();
    let (dim, LayerHyper { ffn_dim, n_heads, n_kv_heads }) = (h.dim, h.layer(layer));
    let scale = form.scale.unwrap_or(1.0 / (h.head_dim as f32).sqrt());
    let (q_dim, kv_dim) = (n_heads * h.head_dim, n_kv_heads * h.head_dim);
    let (q, y) = (m.buf_of_width("q", q_dim), m.buf_of_width("y", q_dim));
    let kv = m.kv_of(n_kv_heads);

    let norm = form.pre_norms.then(|| (form.norm)(m, &blk(form.attn_norm), dim)).transpose()?;
    let of_attention = norm.clone();
    let bounds = form.qkv_bound.map(|bound| [-bound, bound]);
    let clamp = bounds.map(|output| Clamp { input: [f32::NEG_INFINITY, f32::INFINITY], output });
    let qkv = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
    let [wq, wk, wv] = qkv.map(|linear| Linear { clamp, ..linear });
    for (name, layer, outputs) in [("q", &wq, q_dim), ("k", &wk, kv_dim), ("v", &wv, kv_dim)] {
        if form.qkv_bias && layer.bias.is_none() {
            return Err(m.lacks(&blk(&format!("attn_{name}.bias")), outputs));
        }
    }
    let mut qk_norm = |name: &str, of_row: usize| -> Result<Option<Norm>, ModelError> {
        let cols = form.qk_norm.map(|of| if of == QkNorm::Rows { of_row } else { h.head_dim });
        cols.map(|cols| m.rms_norm(&blk(name), cols)).transpose()
    };
    let (q_norm, k_norm) = (qk_norm("attn_q_norm", q_dim)?, qk_norm("attn_k_norm", kv_dim)?);
    m.push(
        format!("{layer}.attn_in"),
        AttnIn {
            q_norm,
            k_norm,
            qk_norm: form.qk_norm.unwrap_or(QkNorm::Heads),
            q_scale: form.q_scale,
            rope,
            ..AttnIn::of(x, norm, [wq, wk, wv], kv, q)
        },
    );
    if let Some(parallel) = form.parallel {
        // Before attention changes the stream.
        let norm = match parallel {
            Parallel::SameNorm => of_attention.clone(),
            Parallel::OwnNorm => Some((form.norm)(m, &blk(form.ffn_norm), dim)?),
        };
        ffn_in(m, form, layer, x, norm, ffn_dim)?;
    }
    let gate = match of_attention.as_ref().zip(form.attn_gate) {
        None => None,
        Some((norm, act)) => {
            let of_heads = m.rows_of(&blk("attn_gate.weight")) == Some(n_heads);
            let cols = if act == GateAct::Softplus && of_heads { n_heads } else { q_dim };
            let (gate, norm) = (m.buf_of_width("gate", cols), norm.clone());
            let products = vec![(m.projection(&blk("attn_gate"), cols, dim)?, gate)];
            m.push(format!("{layer}.attn_gate"), ProjIn { x, norm, products });
            Some(gate)
        }
    };
    let gate_act = form.attn_gate.unwrap_or(GateAct::Sigmoid);
    let attend = Attend { window, gate, gate_act, ..Attend::causal(q, kv, scale, y) };
    m.push(format!("{layer}.attend"), attend);

    let w = times(form.residual, m.projection(&blk("attn_output"), dim, q_dim)?)?;
    let post = post_norm(m, form, &blk("post_attention_norm"))?;
    m.push(format!("{layer}.attn_out"), ProjAdd { post, ..ProjAdd::plain(y, w, x) });

    let norm = match form.parallel {
        Some(_) => of_attention,
        None => form.pre_norms.then(|| (form.norm)(m, &blk(form.ffn_norm), dim)).transpose()?,
    };
    if let Some(mixture) = m.mixture()?.filter(|_| form.sparse.is_at(layer)) {
        let Some(norm) = norm else {
            let want = "none in a model without norms before its layers";
            return Err(m.wrong("expert_count", want, mixture.n_experts));
        };
        let post = post_norm(m, form, &blk("post_ffw_norm"))?;
        return form.sparse.push(m, mixture, layer, (x, norm, post), form.residual);
    }
    if form.parallel.is_none() {
        ffn_in(m, form, layer, x, norm, ffn_dim)?;
    }
    let hidden = m.buf_of_width("h", ffn_dim);
    let w = times(form.residual, m.projection(&blk("ffn_down"), dim, ffn_dim)?)?;
    let post = post_norm(m, form, &blk("post_ffw_norm"))?;
    m.push(format!("{layer}.ffn_out"), ProjAdd { post, ..ProjAdd::plain(hidden, w, x) });
    Ok(())
}

/// The first half of the feed-forward network.
fn ffn_in(
    m: &mut Builder<'_>,
    form: &Variant<'_>,
    layer: usize,
    x: Buf,
    norm: Option<Norm>,
    ffn_dim: usize,
) -> Result<(), ModelError> {
    let (dim, blk) = (m.hyper().dim, |name: &str| format!("blk.{layer}.{name}"));
    let hidden = m.buf_of_width("h", ffn_dim);
    let act = form.acts.get(layer).copied().unwrap_or(form.act);
    let stage = match (form.gated, form.fused_gate) {
        (false, _) => FfnIn::plain(x, norm, m.projection(&blk("ffn_up"), ffn_dim, dim)?, act, hidden),
        (true, true) => {
            let [gate, up] = m.gate_up(&format!("blk.{layer}"), ffn_dim, dim)?;
            FfnIn::gated(x, norm, gate, up, act, hidden)
        }
        (true, false) => {
            let gate = m.projection(&blk("ffn_gate"), ffn_dim, dim)?;
            FfnIn::gated(x, norm, gate, m.projection(&blk("ffn_up"), ffn_dim, dim)?, act, hidden)
        }
    };
    m.push(format!("{layer}.ffn_in"), stage);
    Ok(())
}
