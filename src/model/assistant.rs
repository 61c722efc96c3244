//! Gemma 4's assistant: a few small layers that draft from the model's last row and its KV caches.
//!
//! ```text
//! u = pre_projection [sqrt(dim of the model) embedding of the model ; hidden row]
//! layers of Gemma's form, whose queries read the cache of the model's last layer of the same kind
//! r = output_norm(u), logits = token_embd r, next hidden row = post_projection r
//! ```
//!
//! The token of a draft is not in the caches yet. Its row runs at the last cached position, and its queries
//! are rotated to the next one. All rows of a draft have the same position.

use super::draft::DraftForm;
use super::{Builder, LayerHyper, Model, ModelError};
use sterna_program::{
    Act, Attend, AttnIn, Embed, FfnIn, HeadProj, Kv, Linear, Logits, ProjAdd, ProjIn, RopeStyle, RowsOf,
    Sample, Stage,
};

/// Names of the architecture in files.
pub(super) const NAMES: [&str; 2] = ["gemma4-assistant", "gemma4_assistant"];

/// Base of the frequencies of layers with a window, if a file does not specify it.
const LOCAL_BASE: f32 = 10000.0;

/// Declares the weights and pushes the stages of the assistant of a model.
///
/// # Errors
/// [`ModelError`] for an assistant of another model, and for tensors that are missing or of another shape.
pub(super) fn build(m: &mut Builder<'_>, model: &Model) -> Result<DraftForm, ModelError> {
    let h = m.hyper().clone();
    let (dim, model_dim, n_vocab) = (h.dim, model.hyper.dim, h.n_vocab);
    if model.hyper.architecture != "gemma4" {
        let want = "a Gemma 4 model to draft for".to_owned();
        let (key, got) = ("general.architecture".to_owned(), model.hyper.architecture.clone());
        return Err(ModelError::Metadata { key, want, got });
    }
    const WIDTH: &str = "embedding_length_out";
    let width = m.number(WIDTH)?;
    if width != model_dim {
        return Err(m.wrong(WIDTH, format!("{model_dim}, the width of the model"), width));
    }
    ["nextn_predict_layers", "attention.shared_kv_layers", "attention.value_length_swa"]
        .iter()
        .for_each(|key| m.overrules(key));
    let windows = m.windows(usize::MAX)?;
    let is_local = |layer: usize| windows.of(layer).is_some();
    let local_dim = m.number_or("attention.key_length_swa", h.head_dim)?;
    m.leave_out(|name| name.starts_with("masked_embd_"));

    let [e, hidden, next] = ["e", "hidden", "next"].map(|name| m.buf(name, RowsOf::Step, model_dim));
    let x = m.buf("x", RowsOf::Step, dim);
    let table = m.lent_table("token_embd.weight", n_vocab, model_dim)?;
    m.push("embed", Embed { scale: (model_dim as f32).sqrt(), ..Embed::tokens(table, e) });
    let [of_token, of_hidden] = m.of_two("nextn.pre_projection", dim, model_dim)?;
    m.push("pre_projection_token", HeadProj { x: e, w: vec![of_token], out: x });
    m.push("pre_projection_hidden", ProjAdd::plain(hidden, of_hidden, x));

    m.copy_caches(&model.program);
    let has = |local: bool| (0..h.n_layers).any(|layer| is_local(layer) == local);
    let global = has(false).then(|| m.rope(RopeStyle::Halves)).transpose()?;
    let local = has(true).then(|| m.rope_of_windows(RopeStyle::Halves, LOCAL_BASE)).transpose()?;
    m.program().ropes.iter_mut().for_each(|rope| rope.ahead = 1);
    for layer in 0..h.n_layers {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        let LayerHyper { ffn_dim, n_heads, .. } = h.layer(layer);
        let (head_dim, rope) = if is_local(layer) { (local_dim, local) } else { (h.head_dim, global) };
        let q_dim = n_heads * head_dim;
        let Some((kv, window)) = last_of_kind(model, is_local(layer)) else {
            let want = "layers of the kinds that the model has";
            return Err(m.wrong("attention.sliding_window_pattern", want, "another kind"));
        };
        let of_model = model.program.kv_decl(kv).head_dim;
        if of_model != head_dim {
            let key = if is_local(layer) { "attention.key_length_swa" } else { "attention.key_length" };
            return Err(m.wrong(key, format!("{of_model}, as in the model"), head_dim));
        }
        // The row's own position, which is not in the cache, is the newest one of the model's window.
        let window = match window {
            Some(1) => return Err(m.wrong("attention.sliding_window", "at least 2 in the model", 1)),
            window => window.map(|window| window - 1),
        };
        let [q, y] = ["q", "y"].map(|name| m.buf_of_width(name, q_dim));
        let norm = m.rms_norm(&blk("attn_norm"), dim)?;
        let wq = m.projection(&blk("attn_q"), q_dim, dim)?;
        let q_norm = Some(m.rms_norm(&blk("attn_q_norm"), head_dim)?);
        m.push(format!("{layer}.attn_in"), AttnIn { q_norm, rope, ..AttnIn::queries(x, norm, wq, kv, q) });
        m.push(format!("{layer}.attend"), Attend { window, ..Attend::causal(q, kv, 1.0, y) });
        let w = m.projection(&blk("attn_output"), dim, q_dim)?;
        let post = Some(m.rms_norm(&blk("post_attention_norm"), dim)?);
        m.push(format!("{layer}.attn_out"), ProjAdd { post, ..ProjAdd::plain(y, w, x) });

        let norm = m.rms_norm(&blk("ffn_norm"), dim)?;
        let gate = m.projection(&blk("ffn_gate"), ffn_dim, dim)?;
        let up = m.projection(&blk("ffn_up"), ffn_dim, dim)?;
        let ffn = m.buf_of_width("h", ffn_dim);
        m.push(format!("{layer}.ffn_in"), FfnIn::gated(x, norm, gate, up, Act::GeluTanh, ffn));
        let w = m.projection(&blk("ffn_down"), dim, ffn_dim)?;
        let post = Some(m.rms_norm(&blk("post_ffw_norm"), dim)?);
        let scale = blk("layer_output_scale.weight");
        let scale = if m.has(&scale) { m.scalar(&scale)? } else { 1.0 };
        m.push(format!("{layer}.ffn_out"), ProjAdd { post, scale, ..ProjAdd::plain(ffn, w, x) });
    }
    let norm = m.rms_norm("output_norm", dim)?;
    let post = m.projection("nextn.post_projection", model_dim, dim)?;
    m.push("post_projection", ProjIn { x, norm: norm.clone(), products: vec![(post, next)] });
    let head = m.own_table("token_embd.weight", n_vocab, dim, "of the assistant")?;
    let logits = m.buf("logits", RowsOf::Outputs, n_vocab);
    m.push("logits", Logits { x, norm, w: Linear::of(head), soft_cap: None, logits });
    m.push("sample", Sample { logits });
    let (next_norm, n_fill, fusion, ids, lent) = (None, 0, None, None, None);
    Ok(DraftForm { hidden, next, next_norm, n_fill, fusion, reads_model: true, ids, lent })
}

/// The cache of the model's last layer with or without a window, and that window.
fn last_of_kind(model: &Model, is_local: bool) -> Option<(Kv, Option<u32>)> {
    model.program.stages.iter().rev().find_map(|(_, stage)| match stage {
        Stage::Attend(s) if s.window.is_some() == is_local => Some((s.kv, s.window)),
        _ => None,
    })
}
