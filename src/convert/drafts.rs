//! Checkpoints of files that draft for another model: EAGLE-3 heads and Gemma 4's assistant.

use std::path::Path;

use bytes::Bytes;
use safetensors::Dtype;
use serde_json::Value as Json;

use super::ConvertError;
use super::checkpoint::{Checkpoint, Elem, Tensor};
use super::config::Config;
use sterna_gguf::{Array, TensorInfo, Value};

/// Kind of a checkpoint that drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// A layer over rows of three layers of the model.
    Eagle3,
    /// Layers that read the model's caches.
    Assistant,
}

/// Dimensions that depend on the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafts {
    /// Kind of the checkpoint.
    pub kind: DraftKind,
    /// Width of the model's residual stream.
    pub model_width: usize,
    /// Rows of the output head.
    pub n_head: usize,
}

/// Layers of the model whose inputs a head uses, in two forms of configurations.
const LAYERS: &str = "eagle_aux_hidden_state_layer_ids";

impl Drafts {
    /// Reads the dimensions, with `tensor` for a tensor by its name; the vocabulary has `vocab` tokens.
    ///
    /// # Errors
    /// [`ConvertError`] for a width that is missing, and for a head without its tensors.
    pub fn read<'a>(
        kind: DraftKind,
        config: &Config,
        tensor: impl Fn(&str) -> Option<&'a Tensor>,
        vocab: usize,
    ) -> Result<Self, ConvertError> {
        let n_head = tensor("lm_head.weight").and_then(|head| head.shape.first()).copied();
        let model_width = match kind {
            DraftKind::Assistant => config.require(&["backbone_hidden_size"])?,
            DraftKind::Eagle3 => match tensor("fc.weight").map(|fc| &fc.shape[..]) {
                Some([_, cols]) if *cols > 0 && cols.is_multiple_of(3) => cols / 3,
                Some(found) => {
                    let detail = format!("want the rows of three layers as columns, found {found:?}");
                    return Err(ConvertError::tensor("fc.weight", detail));
                }
                None => return Err(ConvertError::tensor("fc.weight", "is missing")),
            },
        };
        Ok(Self { kind, model_width, n_head: n_head.unwrap_or(vocab) })
    }

    /// Writes the keys with the architecture's prefix, for a file of `n_layers` layers.
    ///
    /// # Errors
    /// [`ConvertError::File`] for layers that are not three numbers.
    pub fn write(
        &self,
        config: &Config,
        n_layers: usize,
        notes: &mut Vec<String>,
        mut set: impl FnMut(&str, Value),
    ) -> Result<(), ConvertError> {
        let count = |n: usize| Value::U32(n as u32);
        if self.kind == DraftKind::Assistant {
            set("embedding_length_out", count(self.model_width));
            set("nextn_predict_layers", count(n_layers));
            return Ok(());
        }
        set("target_hidden_size", count(self.model_width));
        for key in ["norm_before_residual", "norm_before_fc"] {
            set(key, Value::Bool(config.bool(&[key]) == Some(true)));
        }
        let nested = config.get(&["eagle_config"]).and_then(|nested| nested.get(LAYERS));
        let found = nested.or_else(|| config.get(&[LAYERS])).filter(|found| !found.is_null());
        let Some(found) = found else {
            notes.push(
                "the configuration does not list the layers of the model whose rows are used: the usual \
                 three are, which depend on its number of layers"
                    .to_owned(),
            );
            return Ok(());
        };
        let layers: Option<Vec<i32>> = found.as_array().and_then(|list| {
            let number = |n: &Json| n.as_u64().and_then(|n| i32::try_from(n).ok());
            list.iter().map(number).collect()
        });
        match layers.filter(|layers| layers.len() == 3) {
            Some(layers) => set("target_layers", Array::from_i32s(layers).into()),
            None => return Err(config.wrong(LAYERS, "three layers", Some(found))),
        }
        Ok(())
    }
}

/// True if the folder of a checkpoint has a vocabulary. Draft checkpoints often have none.
pub fn has_vocabulary(folder: &Path) -> bool {
    ["tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"]
        .iter()
        .any(|file| folder.join(file).is_file())
}

/// Name of the tensor with the tokens of the head's rows.
pub const TOKENS: &str = "d2t";

/// The tokens of the head's rows as a tensor of the file, from the checkpoint's tensor with its name there:
/// it stores the distance between each row and its token.
///
/// # Errors
/// [`ConvertError::Tensor`] for another type or shape, and for numbers that are not tokens of the vocabulary.
pub fn tokens_of_rows(
    (name, tensor): (String, Tensor),
    checkpoint: &Checkpoint,
    n_head: usize,
    vocab: usize,
) -> Result<(TensorInfo, Bytes), ConvertError> {
    /// The type of integers of 64 bits.
    const I64: u32 = 27;
    let wrong = |detail: String| ConvertError::tensor(&name, detail);
    if tensor.elem != Elem::Other(Dtype::I64) || tensor.shape != [n_head] {
        let found = format!("{} {:?}", tensor.elem.name(), tensor.shape);
        return Err(wrong(format!("want I64 [{n_head}], a number per row of the head, found {found}")));
    }
    let bytes = checkpoint.bytes(&tensor).map_err(wrong)?;
    let mut seen = vec![false; vocab];
    let token = |(row, bytes): (usize, &[u8; 8])| {
        let token = i64::from_le_bytes(*bytes).checked_add(row as i64)?;
        let seen = seen.get_mut(usize::try_from(token).ok()?)?;
        (!std::mem::replace(seen, true)).then(|| token.to_le_bytes())
    };
    let tokens: Option<Vec<[u8; 8]>> = bytes.as_chunks().0.iter().enumerate().map(token).collect();
    let tokens = tokens.ok_or_else(|| wrong(format!("want different tokens of the {vocab}")))?.concat();
    let info = TensorInfo {
        name: TOKENS.to_owned(),
        dims: vec![n_head],
        type_id: I64,
        ty: None,
        type_name: "I64".to_owned(),
        part: 0,
        start: 0,
        n_bytes: tokens.len() as u64,
    };
    Ok((info, Bytes::from(tokens)))
}
