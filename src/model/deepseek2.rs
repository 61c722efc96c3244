//! DeepSeek-V2 and V3 and models of their form: GLM-4.7-Flash, DeepSeek-V2-Lite, Moonlight. Multi-head latent
//! attention, and after the first layers a mixture of experts with a shared expert.
//!
//! Attention runs in its absorbed form, which files are written for: a head's key matrix, `attn_k_b`, is
//! applied to its query, and its value matrix, `attn_v_b`, to the result. The cache has one vector per
//! position for all heads: the latent vector of `kv_lora_rank` elements, and the rotated ones.

use super::sparse::Sparse;
use super::{Architecture, Builder, ModelError};
use sterna_program::{
    Act, Attend, Buf, FfnIn, Gating, HeadProj, LatentIn, NormKind, ProjAdd, RopeId, RopeStyle, Routing,
};

/// DeepSeek-V2.
pub static ARCHITECTURE: Architecture = Architecture { names: &["deepseek2"], build, per_layer: false };

/// Vocabulary and blocks of GLM-4.7-Flash, whose early files do not say that its router is a sigmoid.
const GLM_FLASH: (usize, [usize; 2]) = (154_880, [47, 48]);

const Q_RANK: &str = "attention.q_lora_rank";
const RANK: &str = "attention.kv_lora_rank";
const KEY: &str = "attention.key_length_mla";
const VALUE: &str = "attention.value_length_mla";
const MAGNITUDE: &str = "rope.scaling.yarn_log_multiplier";

/// Maximum length of a head's key or value; larger ones are treated as a damaged file.
const MAX: usize = 1 << 16;

/// Attention of all layers.
struct Latent {
    /// Length of the latent vector of queries, if there is one.
    q_rank: Option<usize>,
    /// Length of the latent vector of keys and values.
    rank: usize,
    /// Elements of a query that are not rotated, and those that are.
    plain: usize,
    rotated: usize,
    /// Length of a head's value.
    value: usize,
    scale: f32,
    rope: RopeId,
}

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let (sparse, latent) = (mixtures(m)?, Latent::read(m)?);
    let x = m.embed(1.0)?;
    for at in 0..m.trunk()? {
        layer(m, &sparse, &latent, at, x)?;
    }
    let norm = m.rms_norm("output_norm", m.hyper().dim)?;
    m.end(x, norm, 1.0, None)
}

/// Builds the program of the MTP block, a layer with experts.
pub(super) fn block(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let (sparse, at) = (mixtures(m)?, m.trunk()?);
    super::mtp::block(m, at, NormKind::Rms, |m, x| {
        let latent = Latent::read(m)?;
        layer(m, &sparse, &latent, at, x)
    })
}

fn mixtures(m: &mut Builder<'_>) -> Result<Sparse, ModelError> {
    let routing = Routing { normalise: false, ..Routing::SOFTMAX };
    let mut sparse = Sparse::read(m, &routing)?;
    let (n_vocab, n_blocks) = (m.hyper().n_vocab, m.hyper().n_layers);
    if n_vocab == GLM_FLASH.0 && GLM_FLASH.1.contains(&n_blocks) {
        sparse.routing.gating = Gating::Sigmoid;
    }
    Ok(sparse)
}

/// Pushes the stages of a layer.
fn layer(
    m: &mut Builder<'_>,
    sparse: &Sparse,
    latent: &Latent,
    layer: usize,
    x: Buf,
) -> Result<(), ModelError> {
    let blk = |name: &str| format!("blk.{layer}.{name}");
    let (dim, ffn_dim) = (m.hyper().dim, m.hyper().ffn_dim);
    latent.push(m, layer, x)?;
    let norm = m.rms_norm(&blk("ffn_norm"), dim)?;
    if let Some(mixture) = m.mixture()?.filter(|_| sparse.is_at(layer)) {
        return sparse.push(m, mixture, layer, (x, norm, None), 1.0);
    }
    let h = m.buf_of_width("h", ffn_dim);
    let gate = m.projection(&blk("ffn_gate"), ffn_dim, dim)?;
    let up = m.projection(&blk("ffn_up"), ffn_dim, dim)?;
    m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate, up, Act::Silu, h));
    let w = m.projection(&blk("ffn_down"), dim, ffn_dim)?;
    m.push(format!("{layer}.ffn_out"), ProjAdd::plain(h, w, x));
    Ok(())
}

impl Latent {
    fn read(m: &mut Builder<'_>) -> Result<Self, ModelError> {
        let hyper = m.hyper().clone();
        let (head_dim, rotated) = (hyper.head_dim, hyper.rope.dims);
        if m.value(KEY).is_none() {
            let want = "the length of a key: files from before April 2025 are to be converted again";
            return Err(m.wrong(KEY, want, "none"));
        }
        let (rank, key, value) = (m.number(RANK)?, m.number(KEY)?, m.number(VALUE)?);
        if head_dim != rank + rotated || hyper.n_kv_heads != 1 {
            let want = format!("{head_dim} - {rotated}, of one KV head");
            return Err(m.wrong(RANK, want, rank));
        }
        if !(rotated + 1..=MAX).contains(&key) {
            return Err(m.wrong(
                KEY,
                format!("{} to {MAX}, with {rotated} rotated elements", rotated + 1),
                key,
            ));
        }
        if !(1..=MAX).contains(&value) {
            return Err(m.wrong(VALUE, format!("1 to {MAX}"), value));
        }
        let q_rank = Some(m.number_or(Q_RANK, 0)?).filter(|rank| *rank > 0);
        // YaRN scales scores and not queries and keys.
        let log = if m.value(MAGNITUDE).is_some() { m.factor(MAGNITUDE, 1.0)? } else { 0.0 };
        let (rope, extension) = m.rope_without_magnitude(RopeStyle::Adjacent)?;
        let magnitude = 1.0 + log * extension.ln() as f32;
        let scale = magnitude * magnitude / (key as f32).sqrt();
        Ok(Self { q_rank, rank, plain: key - rotated, rotated, value, scale, rope })
    }

    /// Pushes the attention of a layer.
    fn push(&self, m: &mut Builder<'_>, layer: usize, x: Buf) -> Result<(), ModelError> {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let (dim, n_heads) = (m.hyper().dim, m.hyper().n_heads);
        let Self { q_rank, rank, plain, rotated, value, scale, rope } = *self;
        let head_dim = rank + rotated;
        let [q, out] = ["q", "o"].map(|name| m.buf_of_width(name, n_heads * head_dim));
        let y = m.buf_of_width("y", n_heads * value);
        let kv = m.latent_kv();

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let q_outputs = n_heads * (plain + rotated);
        let (q_latent, wq) = match q_rank {
            Some(q_rank) => {
                let wa = m.projection(&blk("attn_q_a"), q_rank, dim)?;
                let norm = m.rms_norm(&blk("attn_q_a_norm"), q_rank)?;
                (Some((wa, norm)), m.projection(&blk("attn_q_b"), q_outputs, q_rank)?)
            }
            None => (None, m.projection(&blk("attn_q"), q_outputs, dim)?),
        };
        let wk = m.heads(&blk("attn_k_b"), n_heads, rank, plain)?;
        let wkv = m.projection(&blk("attn_kv_a_mqa"), head_dim, dim)?;
        let kv_norm = m.rms_norm(&blk("attn_kv_a_norm"), rank)?;
        let latent_in = LatentIn { x, norm, q_latent, wq, wk, wkv, kv_norm, rope, kv, q };
        m.push(format!("{layer}.latent_in"), latent_in);
        m.push(format!("{layer}.attend"), Attend::causal(q, kv, scale, out));
        let w = m.heads(&blk("attn_v_b"), n_heads, value, rank)?;
        m.push(format!("{layer}.head_proj"), HeadProj { x: out, w, out: y });

        let w = m.projection(&blk("attn_output"), dim, n_heads * value)?;
        m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));
        Ok(())
    }
}
