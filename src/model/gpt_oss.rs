//! GPT-OSS: a mixture of experts in every layer, biases everywhere, and a sink per attention head. Even
//! layers have a sliding window.

use super::build::Mixture;
use super::{Architecture, Builder, ModelError};
use sterna_program::{Act, Attend, AttnIn, Experts, Linear, ProjAdd, RopeStyle, RowsOf};

/// GPT-OSS.
pub static ARCHITECTURE: Architecture = Architecture { names: &["gpt-oss"], build, per_layer: false };

/// Distance between layers without a window, if a file does not specify it.
const PERIOD: usize = 2;

fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let Some(Mixture { n_experts, n_used, ffn_dim }) = m.mixture()? else {
        let (key, want) = ("gpt-oss.expert_count".to_owned(), "at least 1 expert".to_owned());
        return Err(ModelError::Metadata { key, want, got: "none".to_owned() });
    };
    let h = m.hyper().clone();
    let dim = h.dim;
    let (q_dim, kv_dim) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let scale = 1.0 / (h.head_dim as f32).sqrt();
    let windows = m.windows(PERIOD)?;

    let x = m.embed(1.0)?;
    let q = m.buf("q", RowsOf::Step, q_dim);
    let y = m.buf("y", RowsOf::Step, q_dim);
    let rope = Some(m.rope(RopeStyle::Halves)?);

    for layer in 0..h.n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let kv = m.kv();

        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let [wq, wk, wv] = m.qkv(&format!("blk.{layer}"), q_dim, kv_dim, dim)?;
        for (name, linear, outputs) in [("q", &wq, q_dim), ("k", &wk, kv_dim), ("v", &wv, kv_dim)] {
            want_bias(m, linear, &blk(&format!("attn_{name}")), outputs)?;
        }
        let sinks = Some(m.vector(&blk("attn_sinks.weight"), h.n_heads)?);
        let window = windows.of(layer);
        m.push(format!("{layer}.attn_in"), AttnIn { rope, ..AttnIn::of(x, norm, [wq, wk, wv], kv, q) });
        m.push(format!("{layer}.attend"), Attend { window, sinks, ..Attend::causal(q, kv, scale, y) });

        let w = m.projection(&blk("attn_output"), dim, q_dim)?;
        want_bias(m, &w, &blk("attn_output"), dim)?;
        m.push(format!("{layer}.attn_out"), ProjAdd::plain(y, w, x));

        // The norm before the experts, despite its name.
        let norm = m.rms_norm(&blk("post_attention_norm"), dim)?;
        let router = m.exact(&blk("ffn_gate_inp"), n_experts, dim)?;
        want_bias(m, &router, &blk("ffn_gate_inp"), n_experts)?;
        let experts = m.experts(&format!("blk.{layer}"), n_experts, ffn_dim, dim)?;
        let named = [("gate", ffn_dim), ("up", ffn_dim), ("down", dim)];
        for ((name, outputs), linear) in named.into_iter().zip(experts[0].layers()) {
            want_bias(m, linear, &blk(&format!("ffn_{name}_exps")), n_experts * outputs)?;
        }
        let act = Act::ClampedSwiglu;
        m.push(format!("{layer}.experts"), Experts::of(x, norm, router, experts, n_used, act));
    }
    let norm = m.rms_norm("output_norm", dim)?;
    m.end(x, norm, 1.0, None)
}

/// Checks that a layer has a bias; all layers except the head must have one.
fn want_bias(m: &Builder<'_>, linear: &Linear, stem: &str, outputs: usize) -> Result<(), ModelError> {
    match linear.bias {
        Some(_) => Ok(()),
        None => Err(m.lacks(&format!("{stem}.bias"), outputs)),
    }
}
