//! GPT-2: LayerNorm, learned positions instead of RoPE, one tensor for queries, keys and values, and a
//! feed-forward network without a gate.

use super::{Architecture, Builder, ModelError};
use sterna_program::{Act, Attend, AttnIn, FfnIn, ProjAdd, RowsOf};

/// GPT-2.
pub static ARCHITECTURE: Architecture = Architecture { names: &["gpt2"], build, per_layer: false };

pub(super) fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let (dim, ffn_dim) = (h.dim, h.ffn_dim);
    let (q_dim, kv_dim) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let scale = 1.0 / (h.head_dim as f32).sqrt();

    let x = m.embed(1.0)?;
    let positions = m.table("position_embd.weight", h.n_ctx_train, dim)?;
    m.embed_also(Some(positions), None);
    let q = m.buf("q", RowsOf::Step, q_dim);
    let y = m.buf("y", RowsOf::Step, q_dim);
    let hidden = m.buf("h", RowsOf::Step, ffn_dim);

    for layer in 0..h.n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let kv = m.kv();

        let norm = m.layer_norm(&blk("attn_norm"), dim)?;
        let qkv = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
        m.push(format!("{layer}.attn_in"), AttnIn::of(x, norm, qkv, kv, q));
        m.push(format!("{layer}.attend"), Attend::causal(q, kv, scale, y));

        let w = m.projection(&blk("attn_output"), dim, q_dim)?;
        m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));

        let norm = m.layer_norm(&blk("ffn_norm"), dim)?;
        let up = m.projection(&blk("ffn_up"), ffn_dim, dim)?;
        let act = Act::GeluTanh;
        m.push(format!("{layer}.ffn_in"), FfnIn::plain(x, norm, up, act, hidden));

        let w = m.projection(&blk("ffn_down"), dim, ffn_dim)?;
        m.push(format!("{layer}.ffn_out"), ProjAdd::plain(hidden, w, x));
    }
    let norm = m.layer_norm("output_norm", dim)?;
    m.end(x, norm, 1.0, None)
}
