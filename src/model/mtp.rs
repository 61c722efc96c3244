//! Multi-token prediction (MTP): a block after the trunk that predicts the token after the next one.
//!
//! At position `p` it sees the token there and the trunk's normalised row of position `p - 1`, its own last
//! row while it drafts further tokens, and a zero row at position 0:
//!
//! ```text
//! u = eh_proj [enorm(embedding) ; hnorm(row before)]
//! r = shared_head_norm(layer(u)), logits = head r
//! ```
//!
//! In Nemotron 3's block `shared_head_norm` is a LayerNorm, in the others an RMS norm.

use super::draft::DraftForm;
use super::{Builder, Hyper, ModelError};
use sterna_program::{Buf, Embed, Linear, Logits, Norm, NormKind, ProjAdd, ProjIn, RowsOf, Sample};

/// Builds the program of block `layer` if the file has it and it is requested. `push` gets the residual
/// stream and pushes one decoder layer on it, whose first stage writes the cache. `norm` is the kind of the
/// last norm.
///
/// # Errors
/// Any error of `push`; [`ModelError::Tensor`] if a tensor is missing, of another shape, or of a type whose
/// rows have no halves.
pub(super) fn block<'a>(
    m: &mut Builder<'a>,
    layer: usize,
    norm: NormKind,
    push: impl FnOnce(&mut Builder<'a>, Buf) -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    match m.wants_mtp() && m.has(&format!("blk.{layer}.nextn.eh_proj.weight")) {
        true => m.mtp_block(|m| stages(m, layer, norm, push)),
        false => Ok(()),
    }
}

/// Pushes the stages of block `layer`, with those of its decoder layer from `push`.
fn stages<'a>(
    m: &mut Builder<'a>,
    layer: usize,
    kind: NormKind,
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
    let norm = Norm { kind, ..m.rms_norm(&norm, dim)? };
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
