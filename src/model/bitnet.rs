//! BitNet b1.58: a Llama whose linear layers take int8 activations, with a sub-norm before each
//! output projection.
//!
//! Files of the first generation (`bitnet`: 3B, large) use SiLU; `bitnet-25` and `bitnet-b1.58` (2B-4T)
//! use squared ReLU. The head is `output.weight` where the file has one and the embedding otherwise;
//! bitnet.cpp always takes the embedding.

use super::{Architecture, Builder, ModelError};
use sterna_program::{
    Act, ActQuant, Attend, AttnIn, Embed, FfnIn, Linear, Logits, ProjAdd, RopeStyle, RowsOf, Sample,
};

/// BitNet b1.58 under each of its names.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["bitnet", "bitnet-25", "bitnet-b1.58"], build };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let (dim, ffn_dim, n_vocab) = (h.dim, h.ffn_dim, h.n_vocab);
    let (q_dim, kv_dim) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let act = if h.architecture == "bitnet" { Act::Silu } else { Act::Relu2 };
    let scale = 1.0 / (h.head_dim as f32).sqrt();
    let int8 = ActQuant::I8PerToken;

    let x = m.buf("x", RowsOf::Step, dim);
    let q = m.buf("q", RowsOf::Step, q_dim);
    let y = m.buf("y", RowsOf::Step, q_dim);
    let hidden = m.buf("h", RowsOf::Step, ffn_dim);
    let logits = m.buf("logits", RowsOf::Outputs, n_vocab);
    let rope = Some(m.rope(RopeStyle::Halves)?);

    let table = m.matrix("token_embd.weight", n_vocab, dim)?;
    let basis = m.table_basis(dim)?;
    m.push("embed", Embed { basis, ..Embed::tokens(table, x) });
    for layer in 0..h.n_layers {
        let blk = |name| format!("blk.{layer}.{name}");
        let kv = m.kv();

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let wq = m.linear(&blk("attn_q"), q_dim, dim, int8)?;
        let wk = m.linear(&blk("attn_k"), kv_dim, dim, int8)?;
        let wv = m.linear(&blk("attn_v"), kv_dim, dim, int8)?;
        m.push(format!("{layer}.attn_in"), AttnIn { rope, ..AttnIn::of(x, norm, [wq, wk, wv], kv, q) });
        m.push(format!("{layer}.attend"), Attend::causal(q, kv, scale, y));

        let norm = Some(m.rms_norm(&blk("attn_sub_norm"), q_dim)?);
        let w = Linear { norm, ..m.linear(&blk("attn_output"), dim, q_dim, int8)? };
        m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));

        let norm = m.rms_norm(&blk("ffn_norm"), dim)?;
        let gate = Some(m.linear(&blk("ffn_gate"), ffn_dim, dim, int8)?);
        let up = m.linear(&blk("ffn_up"), ffn_dim, dim, int8)?;
        m.push(format!("{layer}.ffn_in"), FfnIn { gate, ..FfnIn::plain(x, norm, up, act, hidden) });

        let norm = Some(m.rms_norm(&blk("ffn_sub_norm"), ffn_dim)?);
        let w = Linear { norm, ..m.linear(&blk("ffn_down"), dim, ffn_dim, int8)? };
        m.push(format!("{layer}.ffn_out"), ProjAdd::plain(hidden, w, x));
    }
    let norm = m.rms_norm("output_norm", dim)?;
    if m.has("output.weight") {
        m.note("the file has an output.weight, which is used as the head; bitnet.cpp ignores it");
    }
    let w = m.head("output", table, n_vocab, dim)?;
    m.push("logits", Logits { x, norm, w, soft_cap: None, logits });
    m.push("sample", Sample { logits });
    Ok(())
}
