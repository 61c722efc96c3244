//! Multi-token prediction (MTP): a block after the trunk that predicts the token after the next one.
//!
//! At position `p` it sees the token there and the trunk's normalised row of position `p - 1`, its own last
//! row while it drafts further tokens, and a zero row at position 0:
//!
//! ```text
//! u = eh_proj [enorm(embedding) ; hnorm(row before)]
//! r = shared_head_norm(layer(u)), logits = head r
//! ```

use super::draft::{DraftBlock, DraftForm};
use super::{Builder, Hyper, ModelError, deepseek2, glm4moe, qwen35};
use sterna_program::{Buf, Embed, Linear, Logits, ProjAdd, ProjIn, RowsOf, Sample};

/// Builds the block of a model with [`block`].
type BuildBlock = fn(&mut Builder<'_>) -> Result<(), ModelError>;

/// The architectures whose blocks are supported.
static BLOCKS: &[(&[&str], BuildBlock)] = &[
    (&["qwen35", "qwen35moe", "qwen3next"], qwen35::block),
    (&["glm4moe"], glm4moe::block),
    (&["deepseek2"], deepseek2::block),
];

/// Builds the program of the model's block if it is requested, supported, and in the file.
///
/// # Errors
/// As [`block`].
pub(super) fn build(m: &mut Builder<'_>) -> Result<(), ModelError> {
    let architecture = m.hyper().architecture.clone();
    let known = BLOCKS.iter().find(|(names, _)| names.contains(&architecture.as_str()));
    match known.filter(|_| m.wants_mtp()) {
        Some((_, build)) => build(m),
        None => Ok(()),
    }
}

/// Builds the program of a file that has only the block of a model with these hyperparameters.
///
/// # Errors
/// [`ModelError::Metadata`] for the block of another model, or of an architecture whose blocks are not
/// supported; as [`build`].
pub(super) fn of_file(mut m: Builder<'_>, of: &Hyper) -> Result<DraftBlock, ModelError> {
    let h = m.hyper().clone();
    let metadata = |key: &str, want: String, got: String| ModelError::Metadata { key: key.into(), want, got };
    if h.architecture != of.architecture {
        let want = format!("{}, as in the model", of.architecture);
        return Err(metadata("general.architecture", want, h.architecture));
    }
    let same = [
        ("embedding_length", h.dim, of.dim),
        ("attention.head_count", h.n_heads, of.n_heads),
        ("attention.head_count_kv", h.n_kv_heads, of.n_kv_heads),
        ("attention.key_length", h.head_dim, of.head_dim),
    ];
    if let Some((key, own, model)) = same.into_iter().find(|(_, own, model)| own != model) {
        return Err(m.wrong(key, format!("{model}, as in the model"), own));
    }
    m.trunk()?;
    build(&mut m)?;
    let Some(block) = m.take_mtp() else {
        let known: Vec<&str> = BLOCKS.iter().flat_map(|(names, _)| *names).copied().collect();
        let want = format!("one of {}, to draft with the block", known.join(", "));
        return Err(metadata("general.architecture", want, h.architecture));
    };
    // What the block has in their place is not used.
    m.leave_out(|name| ["token_embd.weight", "output.weight", "output_norm.weight"].contains(&name));
    m.finish()?;
    block.check()?;
    Ok(block)
}

/// Builds the program of block `layer` if the file has it and it is requested. `push` gets the residual
/// stream and pushes one decoder layer on it, whose first stage writes the cache.
///
/// # Errors
/// Any error of `push`; [`ModelError::Tensor`] if a tensor is missing, of another shape, or of a type whose
/// rows have no halves.
pub(super) fn block<'a>(
    m: &mut Builder<'a>,
    layer: usize,
    push: impl FnOnce(&mut Builder<'a>, Buf) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    match m.wants_mtp() && m.has(&format!("blk.{layer}.nextn.eh_proj.weight")) {
        true => m.mtp_block(|m| stages(m, layer, push)),
        false => Ok(()),
    }
}

/// Pushes the stages of block `layer`, with those of its decoder layer from `push`.
fn stages<'a>(
    m: &mut Builder<'a>,
    layer: usize,
    push: impl FnOnce(&mut Builder<'a>, Buf) -> Result<(), ModelError>,
) -> Result<DraftForm, ModelError> {
    let Hyper { dim, n_vocab, .. } = *m.hyper();
    let nextn = |name: &str| format!("blk.{layer}.nextn.{name}");
    if m.is_rotated() {
        let key = "nextn_predict_layers";
        return Err(m.wrong(key, "0 in a file with rotated weights, to draft with the block", "1"));
    }
    let own = |m: &Builder<'_>, name: &str, instead: &str| match m.has(&format!("{}.weight", nextn(name))) {
        true => nextn(name),
        false => instead.to_owned(),
    };
    let e = m.buf("e", RowsOf::Step, dim);
    let x = m.buf("x", RowsOf::Step, dim);
    let hidden = m.buf("hidden", RowsOf::Step, dim);
    let table = own(m, "embed_tokens", "token_embd");
    let table = m.table(&format!("{table}.weight"), n_vocab, dim)?;
    m.push(format!("{layer}.embed"), Embed::tokens(table, e));
    let [of_token, of_hidden] = m.of_two(&nextn("eh_proj"), dim, dim)?;
    let norm = m.rms_norm(&nextn("enorm"), dim)?;
    m.push(format!("{layer}.eh_proj_token"), ProjIn { x: e, norm, products: vec![(of_token, x)] });
    let norm = Some(m.rms_norm(&nextn("hnorm"), dim)?);
    let of_hidden = Linear { norm, ..of_hidden };
    m.push(format!("{layer}.eh_proj_hidden"), ProjAdd::plain(hidden, of_hidden, x));
    let n_fill = m.program().stages.len() + 1;

    push(m, x)?;
    let norm = own(m, "shared_head_norm", "output_norm");
    let norm = m.rms_norm(&norm, dim)?;
    let head = own(m, "shared_head_head", "output");
    let w = match m.has(&format!("{head}.weight")) {
        true => m.exact(&head, n_vocab, dim)?,
        false if m.program().weight_decl(table).name == "token_embd.weight" => Linear::of(table),
        false => Linear::of(m.table("token_embd.weight", n_vocab, dim)?),
    };
    let logits = m.buf("logits", RowsOf::Outputs, n_vocab);
    let next_norm = Some(norm.clone());
    m.push("logits", Logits { x, norm, w, soft_cap: None, logits });
    m.push("sample", Sample { logits });
    let (fusion, reads_model, ids, lent) = (None, false, None, None);
    Ok(DraftForm { hidden, next: x, next_norm, n_fill, fusion, reads_model, ids, lent })
}
