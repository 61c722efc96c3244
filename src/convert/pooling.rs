//! Pooling of embeddings: sentence-transformers' `modules.json` of a checkpoint, and the modules that it
//! lists.

use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::ConvertError;
use super::checkpoint::Checkpoint;
use super::tokenizer::optional;

/// `{arch}.pooling_type` of the file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Mean of all rows.
    Mean = 1,
    /// First row.
    Cls = 2,
    /// Last row.
    Last = 3,
    /// A score by a classifier.
    Rank = 4,
}

/// Modes in `config.json` of a pooling module: flags of older versions, and the newer names.
const MODES: [(&str, &str, Pooling); 3] = [
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_cls_token", "cls", Pooling::Cls),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

/// A dense layer after the pooling, `2_Dense` or `3_Dense`.
#[derive(Debug)]
pub struct Dense {
    /// Name in GGUF: `dense_2`, `dense_3`.
    pub name: &'static str,
    /// Tensors of the module's folder.
    pub checkpoint: Checkpoint,
    /// Input width.
    pub n_in: usize,
    /// Output width.
    pub n_out: usize,
}

/// Pooling mode in the `modules.json` of a folder, if there is one.
///
/// # Errors
/// [`ConvertError::File`] for a module that is missing or corrupt, and for modes without a GGUF value.
pub fn read_folder(folder: &Path) -> Result<Option<Pooling>, ConvertError> {
    let Some(module) = modules(folder)?.into_iter().find(|module| module.kind == "Pooling") else {
        return Ok(None);
    };
    let path = module.folder.join("config.json");
    let json = super::read_json(&path)?;
    let flags: Vec<&str> = json
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Json::Bool(true))
        .map(|(key, _)| key.as_str())
        .collect();
    let named = json.get("pooling_mode").and_then(Json::as_str);
    let found = MODES.iter().find(|(flag, name, _)| match (&flags[..], named) {
        ([], Some(said)) => said == *name,
        (flags, _) => flags == [*flag],
    });
    match found {
        Some((_, _, pooling)) => Ok(Some(*pooling)),
        None => {
            let found = if flags.is_empty() { named.unwrap_or("none").to_owned() } else { flags.join(", ") };
            let detail = format!(
                "pooling: want mean, cls or lasttoken, the modes that GGUF has values for, found {}",
                found.escape_debug()
            );
            Err(ConvertError::file(&path, detail))
        }
    }
}

/// True if there are dense layers after the pooling.
///
/// # Errors
/// [`ConvertError::File`] for an invalid `modules.json`.
pub fn has_dense(folder: &Path) -> Result<bool, ConvertError> {
    Ok(modules(folder)?.iter().any(|module| module.kind == "Dense"))
}

/// The dense layers after the pooling, in order.
///
/// # Errors
/// [`ConvertError`] for layers that are missing or corrupt, and for properties that GGUF cannot express: more
/// than two layers, a bias, an activation function.
pub fn dense(folder: &Path) -> Result<Vec<Dense>, ConvertError> {
    const NAMES: [&str; 2] = ["dense_2", "dense_3"];
    let found: Vec<Module> = modules(folder)?.into_iter().filter(|module| module.kind == "Dense").collect();
    if found.len() > NAMES.len() {
        let detail = format!("want at most {} modules of type Dense, found {}", NAMES.len(), found.len());
        return Err(ConvertError::file(&folder.join(MODULES), detail));
    }
    let mut out = Vec::new();
    for (module, name) in found.into_iter().zip(NAMES) {
        let path = module.folder.join("config.json");
        let json = super::read_json(&path)?;
        let width = |key: &str| {
            let width = json.get(key).and_then(Json::as_u64).filter(|width| (1..1 << 30).contains(width));
            width.map(|width| width as usize).ok_or_else(|| {
                ConvertError::file(&path, format!("`{key}`: want a whole number from 1 to 2^30"))
            })
        };
        if json.get("bias").and_then(Json::as_bool) == Some(true) {
            return Err(ConvertError::file(&path, "`bias` is true, but GGUF has no bias for this module"));
        }
        let act = json.get("activation_function").and_then(Json::as_str);
        if let Some(act) = act.filter(|act| !act.ends_with(".Identity")) {
            let detail = format!("`activation_function`: want Identity, found {}", act.escape_debug());
            return Err(ConvertError::file(&path, detail));
        }
        let (n_in, n_out) = (width("in_features")?, width("out_features")?);
        out.push(Dense { name, checkpoint: Checkpoint::open(&module.folder)?, n_in, n_out });
    }
    Ok(out)
}

const MODULES: &str = "modules.json";

struct Module {
    /// Last part of the class name.
    kind: String,
    folder: PathBuf,
}

fn modules(folder: &Path) -> Result<Vec<Module>, ConvertError> {
    let path = folder.join(MODULES);
    let json = optional(&path)?;
    let mut out = Vec::new();
    for json in json.as_array().into_iter().flatten() {
        let text = |key: &str| json.get(key).and_then(Json::as_str);
        let (Some(kind), Some(name)) = (text("type"), text("path")) else {
            return Err(ConvertError::file(&path, "want a `type` and a `path` for each module"));
        };
        // Must be a folder within this one, on any system.
        if name.starts_with('/')
            || name.contains(['\\', ':', '\0'])
            || name.split('/').any(|part| part == "..")
        {
            let detail = format!("`path`: want a subfolder, found {}", name.escape_debug());
            return Err(ConvertError::file(&path, detail));
        }
        let kind = kind.rsplit('.').next().unwrap_or(kind).to_owned();
        out.push(Module { kind, folder: folder.join(name) });
    }
    Ok(out)
}
