//! GPT-2: LayerNorm, learned positions in place of RoPE, one tensor for queries, keys and values, and a
//! feed-forward network without a gate.

use super::{Architecture, Builder, ModelError};
use sterna_program::{Act, Attend, AttnIn, Embed, FfnIn, Logits, ProjAdd, RowsOf, Sample};

/// GPT-2.
pub static ARCHITECTURE: Architecture = Architecture { names: &["gpt2"], build };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let (dim, ffn_dim, n_vocab) = (h.dim, h.ffn_dim, h.n_vocab);
    let (q_dim, kv_dim) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let scale = 1.0 / (h.head_dim as f32).sqrt();

    let x = m.buf("x", RowsOf::Step, dim);
    let q = m.buf("q", RowsOf::Step, q_dim);
    let y = m.buf("y", RowsOf::Step, q_dim);
    let hidden = m.buf("h", RowsOf::Step, ffn_dim);
    let logits = m.buf("logits", RowsOf::Outputs, n_vocab);

    let table = m.matrix("token_embd.weight", n_vocab, dim)?;
    let positions = Some(m.matrix("position_embd.weight", h.n_ctx_train, dim)?);
    let basis = m.table_basis(dim)?;
    m.push("embed", Embed { basis, positions, ..Embed::tokens(table, x) });
    for layer in 0..h.n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let kv = m.kv();

        let norm = m.layer_norm(&blk("attn_norm"), dim)?;
        let [wq, wk, wv] = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
        m.push(format!("{layer}.attn_in"), AttnIn::of(x, norm, [wq, wk, wv], kv, q));
        m.push(format!("{layer}.attend"), Attend::causal(q, kv, scale, y));

        let w = m.layer(&blk("attn_output"), dim, q_dim)?;
        m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));

        let norm = m.layer_norm(&blk("ffn_norm"), dim)?;
        let up = m.ffn_layer(&blk("ffn_up"), ffn_dim, dim)?;
        let act = Act::GeluTanh;
        m.push(format!("{layer}.ffn_in"), FfnIn::plain(x, norm, up, act, hidden));

        let w = m.ffn_layer(&blk("ffn_down"), dim, ffn_dim)?;
        m.push(format!("{layer}.ffn_out"), ProjAdd::plain(hidden, w, x));
    }
    let norm = m.layer_norm("output_norm", dim)?;
    let w = m.head("output", table, n_vocab, dim)?;
    m.push("logits", Logits { x, norm, w, soft_cap: None, logits });
    m.push("sample", Sample { logits });
    Ok(())
}
