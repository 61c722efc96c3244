//! Llama and models with its architecture name: Llama 2 and 3, Mistral, Mixtral, SmolLM2, TinyLlama, Falcon3;
//! and the ternary Falcon-E, Falcon3-1.58bit, Llama3-8B-1.58 and TriLM.
//!
//! In files the rows of queries and keys are permuted, so that RoPE rotates neighbouring elements. Weights of
//! type I2_S were trained with int8 activations; only the type indicates that. Files with experts (Mixtral)
//! have a mixture in each layer instead of the feed-forward network.

use super::build::times;
use super::sparse::Sparse;
use super::{Architecture, Builder, LayerHyper, ModelError};
use sterna_program::{Act, Attend, AttnIn, FfnIn, Norm, ProjAdd, RopeStyle};

/// Llama.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["llama"], build: |m| decoder(m, &Variant::PLAIN), per_layer: true };

/// Differences between the architectures of this form.
pub(super) struct Variant<'a> {
    /// Elements of a head that RoPE rotates together.
    pub rope: RopeStyle,
    /// Returns true if queries and keys of a layer are rotated.
    pub rotates: &'a dyn Fn(usize) -> bool,
    /// True if queries, keys and values must have biases. Every layer may have them.
    pub qkv_bias: bool,
    /// True if queries and keys have a norm over each head, before RoPE.
    pub head_norms: bool,
    /// True if norms follow the output of attention and of the feed-forward network.
    pub post_norms: bool,
    /// True if the rows of `ffn_up` are those of the gate, then those of the up projection.
    pub fused_gate: bool,
    /// True if files may have two tables of RoPE factors, for short and for long contexts.
    pub long_rope: bool,
    /// Name of the norm before the feed-forward network.
    pub ffn_norm: &'static str,
    /// The mixtures of experts, if the file has experts.
    pub sparse: Sparse,
    /// Factor on the scores of attention; by default 1 over the square root of the head dimension.
    pub scale: Option<f32>,
    /// Factor on the embedding.
    pub embedding: f32,
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
        rotates: &|_| true,
        qkv_bias: false,
        head_norms: false,
        post_norms: false,
        fused_gate: false,
        long_rope: false,
        ffn_norm: "ffn_norm",
        sparse: Sparse::PLAIN,
        scale: None,
        embedding: 1.0,
        residual: 1.0,
        logits: 1.0,
    };
}

/// Embedding, blocks of attention and a gated feed-forward network, head.
pub(super) fn decoder(m: &mut Builder<'_>, form: &Variant<'_>) -> Result<(), ModelError> {
    let mixture = m.mixture()?;
    let h = m.hyper().clone();
    let dim = h.dim;
    let scale = form.scale.unwrap_or(1.0 / (h.head_dim as f32).sqrt());

    let x = m.embed(form.embedding)?;
    let rope = |m: &mut Builder<'_>| if form.long_rope { m.long_rope(form.rope) } else { m.rope(form.rope) };
    let n_layers = m.trunk()?;
    let rope = (0..n_layers).any(form.rotates).then(|| rope(m)).transpose()?;

    for layer in 0..n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let LayerHyper { ffn_dim, n_heads, n_kv_heads } = h.layer(layer);
        let (q_dim, kv_dim) = (n_heads * h.head_dim, n_kv_heads * h.head_dim);
        let (q, y) = (m.buf_of_width("q", q_dim), m.buf_of_width("y", q_dim));
        let kv = m.kv_of(n_kv_heads);

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let [wq, wk, wv] = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
        for (name, layer, outputs) in [("q", &wq, q_dim), ("k", &wk, kv_dim), ("v", &wv, kv_dim)] {
            if form.qkv_bias && layer.bias.is_none() {
                return Err(m.lacks(&blk(&format!("attn_{name}.bias")), outputs));
            }
        }
        let mut head_norm = |name: &str| -> Result<Option<Norm>, ModelError> {
            form.head_norms.then(|| m.rms_norm(&blk(name), h.head_dim)).transpose()
        };
        let (q_norm, k_norm) = (head_norm("attn_q_norm")?, head_norm("attn_k_norm")?);
        m.push(
            format!("{layer}.attn_in"),
            AttnIn {
                q_norm,
                k_norm,
                rope: rope.filter(|_| (form.rotates)(layer)),
                ..AttnIn::of(x, norm, [wq, wk, wv], kv, q)
            },
        );
        m.push(format!("{layer}.attend"), Attend::causal(q, kv, scale, y));

        let w = times(form.residual, m.projection(&blk("attn_output"), dim, q_dim)?)?;
        let post = form.post_norms.then(|| m.rms_norm(&blk("post_attention_norm"), dim)).transpose()?;
        m.push(format!("{layer}.attn_out"), ProjAdd { post, ..ProjAdd::plain(y, w, x) });

        let norm = m.rms_norm(&blk(form.ffn_norm), dim)?;
        if let Some(mixture) = mixture.filter(|_| layer >= form.sparse.n_dense) {
            form.sparse.push(m, mixture, layer, (x, norm), form.residual)?;
            continue;
        }
        let hidden = m.buf_of_width("h", ffn_dim);
        let [gate, up] = match form.fused_gate {
            true => m.gate_up(&format!("blk.{layer}"), ffn_dim, dim)?,
            false => {
                [m.projection(&blk("ffn_gate"), ffn_dim, dim)?, m.projection(&blk("ffn_up"), ffn_dim, dim)?]
            }
        };
        m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate, up, Act::Silu, hidden));

        let w = times(form.residual, m.projection(&blk("ffn_down"), dim, ffn_dim)?)?;
        let post = form.post_norms.then(|| m.rms_norm(&blk("post_ffw_norm"), dim)).transpose()?;
        m.push(format!("{layer}.ffn_out"), ProjAdd { post, ..ProjAdd::plain(hidden, w, x) });
    }
    let norm = m.rms_norm("output_norm", dim)?;
    m.end(x, norm, form.logits, None)
}
