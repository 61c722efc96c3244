//! BitNet b1.58: a Llama with int8 activations in its linear layers and a sub-norm before each output
//! projection.
//!
//! Files of the first generation (`bitnet`: 3B, large) use SiLU; `bitnet-25` and `bitnet-b1.58` (2B-4T) use
//! squared ReLU. The head is `output.weight` if the file has one, otherwise the embedding; bitnet.cpp always
//! uses the embedding.

use super::{Architecture, Builder, ModelError};
use sterna_program::{Act, Attend, AttnIn, FfnIn, Linear, ProjAdd, RopeStyle, RowsOf};

/// BitNet b1.58 under each of its names.
pub static ARCHITECTURE: Architecture =
    Architecture { names: &["bitnet", "bitnet-25", "bitnet-b1.58"], build, per_layer: false };

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let h = m.hyper().clone();
    let (dim, ffn_dim) = (h.dim, h.ffn_dim);
    let (q_dim, kv_dim) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let act = if h.architecture == "bitnet" { Act::Silu } else { Act::Relu2 };
    let scale = 1.0 / (h.head_dim as f32).sqrt();

    let x = m.embed(1.0)?;
    let q = m.buf("q", RowsOf::Step, q_dim);
    let y = m.buf("y", RowsOf::Step, q_dim);
    let hidden = m.buf("h", RowsOf::Step, ffn_dim);
    let rope = Some(m.rope(RopeStyle::Halves)?);

    for layer in 0..h.n_layers {
        let blk = |name| format!("blk.{layer}.{name}");
        let kv = m.kv();

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let wq = m.int8(&blk("attn_q"), q_dim, dim)?;
        let wk = m.int8(&blk("attn_k"), kv_dim, dim)?;
        let wv = m.int8(&blk("attn_v"), kv_dim, dim)?;
        m.push(format!("{layer}.attn_in"), AttnIn { rope, ..AttnIn::of(x, norm, [wq, wk, wv], kv, q) });
        m.push(format!("{layer}.attend"), Attend::causal(q, kv, scale, y));

        let norm = Some(m.rms_norm(&blk("attn_sub_norm"), q_dim)?);
        let w = Linear { norm, ..m.int8(&blk("attn_output"), dim, q_dim)? };
        m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));

        let norm = m.rms_norm(&blk("ffn_norm"), dim)?;
        let gate = m.int8(&blk("ffn_gate"), ffn_dim, dim)?;
        let up = m.int8(&blk("ffn_up"), ffn_dim, dim)?;
        m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate, up, act, hidden));

        let norm = Some(m.rms_norm(&blk("ffn_sub_norm"), ffn_dim)?);
        let w = Linear { norm, ..m.int8(&blk("ffn_down"), dim, ffn_dim)? };
        m.push(format!("{layer}.ffn_out"), ProjAdd::plain(hidden, w, x));
    }
    let norm = m.rms_norm("output_norm", dim)?;
    if m.has("output.weight") {
        m.note("the file has an output.weight, which is used as the head; bitnet.cpp ignores it");
    }
    m.end(x, norm, 1.0, None)
}
