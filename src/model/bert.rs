//! BERT and its relatives: encoders, whose rows see the whole text. bge and all-MiniLM (`bert`) have learned
//! positions and biases; nomic-embed (`nomic-bert`) has RoPE, a gated feed-forward network and no biases.
//!
//! Norms come after the sums: `x = norm(x + attention(x))`, `x = norm(x + network(x))`. Here the residual
//! stream contains the sums before the norm, and every stage that reads one normalises it first.

use super::{Architecture, Builder, ModelError};
use sterna_program::{Act, Attend, AttnIn, FfnIn, ProjAdd, RopeStyle, RowsOf};

/// BERT.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["bert"], build: |m| encoder(m, false), per_layer: false };

/// nomic-embed.
pub static NOMIC: Architecture =
    Architecture { names: &["nomic-bert"], build: |m| encoder(m, true), per_layer: false };

fn encoder(m: &mut Builder<'_>, is_nomic: bool) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let (dim, ffn_dim) = (h.dim, h.ffn_dim);
    let (q_dim, kv_dim) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let scale = 1.0 / (h.head_dim as f32).sqrt();

    let x = m.embed(1.0)?;
    let q = m.buf("q", RowsOf::Step, q_dim);
    let y = m.buf("y", RowsOf::Step, q_dim);
    let hidden = m.buf("h", RowsOf::Step, ffn_dim);
    let rope = is_nomic.then(|| m.rope(RopeStyle::Halves)).transpose()?;

    let positions =
        if is_nomic { None } else { Some(m.table_f32("position_embd.weight", h.n_ctx_train, dim)?) };
    let types =
        m.rows_of("token_types.weight").map(|n| m.table_f32("token_types.weight", n, dim)).transpose()?;
    m.embed_also(positions, types);
    let mut norm = m.layer_norm("token_embd_norm", dim)?;
    for layer in 0..h.n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let kv = m.kv();

        let qkv = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
        let of_sum = norm.clone();
        m.push(format!("{layer}.attn_in"), AttnIn { rope, ..AttnIn::of(x, of_sum, qkv, kv, q) });
        m.push(format!("{layer}.attend"), Attend { ahead: Attend::ALL, ..Attend::causal(q, kv, scale, y) });
        let w = m.projection(&blk("attn_output"), dim, q_dim)?;
        m.push(format!("{layer}.attn_out"), ProjAdd { residual: Some(norm), ..ProjAdd::plain(y, w, x) });

        norm = m.layer_norm(&blk("attn_output_norm"), dim)?;
        let gate = is_nomic.then(|| m.projection(&blk("ffn_gate"), ffn_dim, dim)).transpose()?;
        let up = m.projection(&blk("ffn_up"), ffn_dim, dim)?;
        let act = if is_nomic { Act::Silu } else { Act::Gelu };
        let of_sum = norm.clone();
        m.push(format!("{layer}.ffn_in"), FfnIn { gate, ..FfnIn::plain(x, of_sum, up, act, hidden) });
        let w = m.projection(&blk("ffn_down"), dim, ffn_dim)?;
        m.push(format!("{layer}.ffn_out"), ProjAdd { residual: Some(norm), ..ProjAdd::plain(hidden, w, x) });

        norm = m.layer_norm(&blk("layer_output_norm"), dim)?;
    }
    m.ends_with(norm);
    Ok(())
}
