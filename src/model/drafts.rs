//! Builds the programs that draft: MTP blocks by architecture, and files that draft for a model.

use super::draft::{DraftBlock, DraftForm};
use super::{
    Builder, Hyper, Model, ModelError, Options, assistant, deepseek2, eagle3, glm4moe, nemotron_h, qwen35,
};
use sterna_gguf::Gguf;

/// Builds the block of a model with [`mtp::block`](super::mtp::block).
type BuildBlock = fn(&mut Builder<'_>) -> Result<(), ModelError>;

/// The architectures whose blocks are supported.
static BLOCKS: &[(&[&str], BuildBlock)] = &[
    (&["qwen35", "qwen35moe", "qwen3next"], qwen35::block),
    (&["glm4moe"], glm4moe::block),
    (&["deepseek2"], deepseek2::block),
    (&["nemotron_h_moe"], nemotron_h::block),
];

/// Builds the program of the model's block if it is requested, supported, and in the file.
///
/// # Errors
/// As [`mtp::block`](super::mtp::block).
pub(super) fn mtp_block(m: &mut Builder<'_>) -> Result<(), ModelError> {
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
/// supported; as [`mtp_block`].
fn mtp_of_file(mut m: Builder<'_>, of: &Hyper) -> Result<DraftBlock, ModelError> {
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
    mtp_block(&mut m)?;
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

/// Kind of a file that drafts for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// The MTP block of the model, without the layers before it.
    MtpBlock,
    /// An EAGLE-3 head.
    Eagle3,
    /// Gemma 4's assistant.
    Gemma4Assistant,
}

impl DraftKind {
    /// The kind of a file; `None` for a model that runs on its own.
    pub fn of(gguf: &Gguf) -> Option<Self> {
        let architecture = gguf.metadata().str("general.architecture").ok().flatten()?;
        if architecture == eagle3::NAME {
            return Some(Self::Eagle3);
        }
        if assistant::NAMES.contains(&architecture) {
            return Some(Self::Gemma4Assistant);
        }
        let has = |end: &str| gguf.tensors().iter().any(|tensor| tensor.name.ends_with(end));
        let is_alone = has(".nextn.eh_proj.weight") && gguf.find("blk.0.attn_norm.weight").is_none();
        is_alone.then_some(Self::MtpBlock)
    }
}

/// Builds the program of a file that drafts for a model.
///
/// # Errors
/// [`ModelError`] for a file of another kind or for another model, and for the first tensor that is
/// missing or of another shape.
pub fn draft_block(
    gguf: &Gguf,
    model: &Model,
    model_gguf: &Gguf,
    options: &Options,
) -> Result<DraftBlock, ModelError> {
    let metadata = gguf.metadata();
    let architecture = metadata.require_str("general.architecture")?;
    let Some(kind) = DraftKind::of(gguf) else {
        let want = "an EAGLE-3 head, Gemma 4's assistant or an MTP block alone".to_owned();
        let key = "general.architecture".to_owned();
        return Err(ModelError::Metadata { key, want, got: format!("a whole `{architecture}` model") });
    };
    let hyper = Hyper::read(metadata, model.hyper.n_vocab)?;
    let options = Options { limits: model.program.limits, mtp: true, ..*options };
    let mut m = Builder::new(gguf, hyper, &options)?;
    m.borrow(model_gguf);
    let form = match kind {
        DraftKind::MtpBlock => return mtp_of_file(m, &model.hyper),
        DraftKind::Eagle3 => eagle3::build(&mut m, &model.hyper)?,
        DraftKind::Gemma4Assistant => assistant::build(&mut m, model)?,
    };
    let form = DraftForm { lent: Some(m.lent().to_vec()), ..form };
    let (program, weights, _) = m.finish()?;
    let block = DraftBlock { program, weights, form };
    block.check()?;
    Ok(block)
}
