//! `sterna edit`: changes a model's metadata.

use std::path::PathBuf;

use clap::Args;
use ggml_types::kv;

use super::CliError;
use super::split::write_whole;
use crate::engine::{Engine, EngineOptions};
use crate::gguf::{Gguf, Metadata, Rewrite, Value, ValueType};

/// Changes a model's metadata, as gguf-new-metadata does: writes a new file with the same tensors.
///
/// --set KEY=VALUE keeps the type that the key has in the file; a new key needs its type before the value, as
/// in KEY=u32:17, unless it is a string. Types are u8, i8, u16, i16, u32, i32, u64, i64, f32, f64, bool and
/// string. Single elements of an array cannot be changed; --copy takes whole values from another file.
///
/// --remove is applied first, then --copy, then --set.
///
/// --key-bases runs a short text to measure the model's keys and queries, as is otherwise done each time that
/// the model is loaded with a KV cache of the type turboquant, and stores the result.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna edit in.gguf out.gguf --set tokenizer.ggml.pre=llama-bpe
  sterna edit in.gguf out.gguf --set tokenizer.ggml.add_bos_token=bool:true --remove general.url
  sterna edit in.gguf out.gguf --copy-from other.gguf --copy tokenizer.chat_template")]
pub struct EditArgs {
    /// Input model
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Output file
    #[arg(value_name = "OUT.gguf")]
    out: PathBuf,
    /// Set a key (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Remove a key (repeatable)
    #[arg(long, value_name = "KEY")]
    remove: Vec<String>,
    /// File that --copy copies from
    #[arg(long, value_name = "FILE", requires = "copy")]
    copy_from: Option<PathBuf>,
    /// Copy a key from the --copy-from file (repeatable)
    #[arg(long, value_name = "KEY", requires = "copy_from")]
    copy: Vec<String>,
    /// Store the bases of keys that the KV cache type turboquant measures
    #[arg(long)]
    key_bases: bool,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
}

impl EditArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Files that cannot be read, missing keys, values that do not fit their type; an output that already
    /// exists, does not fit on the disk, or cannot be written; [`Interrupted`](super::Interrupted) after
    /// ctrl-C.
    pub fn run(self) -> Result<(), CliError> {
        let gguf = Gguf::open(&self.input)?;
        let mut metadata = gguf.metadata().clone();
        for key in &self.remove {
            metadata.remove(key).ok_or_else(|| format!("no key {} in the file", key.escape_debug()))?;
            eprintln!("note: {} is removed", key.escape_debug());
        }
        if let Some(path) = &self.copy_from {
            let other = Gguf::open(path)?;
            for key in &self.copy {
                let value = other.metadata().get(key);
                let value =
                    value.ok_or_else(|| format!("no key {} in {}", key.escape_debug(), path.display()))?;
                set(&mut metadata, key, value.clone());
            }
        }
        for entry in &self.set {
            let (key, text) =
                entry.split_once('=').ok_or_else(|| format!("want KEY=VALUE, found {entry}"))?;
            let value = value(metadata.get(key), text).map_err(|detail| format!("--set {key}: {detail}"))?;
            set(&mut metadata, key, value);
        }
        if self.key_bases {
            let options =
                EngineOptions { device: "cpu".parse()?, n_ctx: Some(1), ..EngineOptions::default() };
            let engine = Engine::open(&self.input, &options.with_cache([kv::TURBOQUANT; 2]))?;
            for (key, value) in engine.key_bases().ok_or("the model has no keys")? {
                set(&mut metadata, key, value);
            }
        }
        let whole = Rewrite::whole(&gguf, &metadata)?;
        write_whole(&gguf, whole, &self.out, self.force)
    }
}

/// Sets a key, and prints its old and new value.
fn set(metadata: &mut Metadata, key: &str, value: Value) {
    let was = metadata.get(key).map_or("new".to_owned(), |old| format!("was {}", old.describe()));
    eprintln!("note: {} is now {}, {was}", key.escape_debug(), value.describe());
    metadata.set(key, value);
}

/// Parses a value: with the type before a colon, or the type of the existing key, or as a string.
fn value(old: Option<&Value>, text: &str) -> Result<Value, String> {
    let named = text.split_once(':').and_then(|(name, rest)| Some((scalar_named(name)?, rest)));
    let (ty, text) = match (named, old.map(Value::value_type)) {
        // A string value may itself begin with a type name: it is kept whole if the key is a string.
        (_, Some(ValueType::Str)) | (None, None) => {
            (ValueType::Str, text.strip_prefix("string:").unwrap_or(text))
        }
        (Some((ty, rest)), _) => (ty, rest),
        (None, Some(ValueType::Array)) => {
            return Err(
                "is an array, which --set cannot write; --copy-from and --copy take it from another file"
                    .to_owned(),
            );
        }
        (None, Some(ty)) => (ty, text),
    };
    parse(ty, text).ok_or_else(|| format!("want {}, found {text}", ty.name()))
}

fn scalar_named(name: &str) -> Option<ValueType> {
    let is_scalar = |ty: &&ValueType| **ty != ValueType::Array;
    ValueType::ALL
        .iter()
        .filter(is_scalar)
        .find(|ty| ty.name() == name || (name == "str" && **ty == ValueType::Str))
        .copied()
}

fn parse(ty: ValueType, text: &str) -> Option<Value> {
    Some(match ty {
        ValueType::U8 => Value::U8(text.parse().ok()?),
        ValueType::I8 => Value::I8(text.parse().ok()?),
        ValueType::U16 => Value::U16(text.parse().ok()?),
        ValueType::I16 => Value::I16(text.parse().ok()?),
        ValueType::U32 => Value::U32(text.parse().ok()?),
        ValueType::I32 => Value::I32(text.parse().ok()?),
        ValueType::U64 => Value::U64(text.parse().ok()?),
        ValueType::I64 => Value::I64(text.parse().ok()?),
        ValueType::F32 => Value::F32(text.parse().ok()?),
        ValueType::F64 => Value::F64(text.parse().ok()?),
        ValueType::Bool => Value::Bool(text.parse().ok()?),
        ValueType::Str => Value::Str(text.to_owned()),
        ValueType::Array => return None,
    })
}
