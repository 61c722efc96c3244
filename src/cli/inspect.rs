//! `sterna inspect`: shows the content of a file, and which backends can run it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ggml_types::Dialect;
use serde_json::{Value as Json, json};

use super::hub_args::HubArgs;
use super::model_args::dialect;
use super::names::with_flags;
use super::source::Source;
use super::{CliError, report};
use crate::backend;
use crate::engine::{self, EngineOptions};
use crate::gguf::{Array, Gguf, OpenOptions, TensorInfo, Value, zero_matrices};
use crate::quantize;

/// Elements of an array and characters of a string that are shown without --full.
const SHOWN_ELEMS: usize = 6;
const SHOWN_CHARS: usize = 200;

/// Shows a file's metadata, its tensors, and which backends can run it.
///
/// Files with tensor types that this build does not know, and vocabulary-only files, are shown too.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna inspect model.gguf
  sterna inspect model.gguf --program
  sterna inspect https://example.com/model.gguf
  sterna inspect model-00001-of-00003.gguf --json | jq '.tensors[].type'")]
pub struct InspectArgs {
    /// GGUF file or its address, or any part of a split one [default: the built-in demo model]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The same, as a flag
    #[arg(short, long, value_name = "FILE", conflicts_with = "file")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubArgs,
    /// Write JSON
    #[arg(long)]
    json: bool,
    /// Print only the model's forward pass, stage by stage
    #[arg(long, conflicts_with = "json")]
    program: bool,
    /// Show arrays and strings in full
    #[arg(long)]
    full: bool,
    /// Origin of the file's type ids if ambiguous: ggml, bitnet
    #[arg(long, value_name = "NAME", value_parser = dialect)]
    dialect: Option<Dialect>,
}

impl InspectArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// A file that is not GGUF or is corrupt; with --program, one without a known model; stdout that cannot
    /// be written.
    pub fn run(self) -> Result<(), CliError> {
        let (name, gguf) = self.model()?;
        let mut out = io::stdout().lock();
        if self.program {
            write!(out, "{}", engine::program(&gguf, &EngineOptions::default())?)?;
        } else if self.json {
            serde_json::to_writer_pretty(&mut out, &self.as_json(&gguf, &name))?;
            writeln!(out)?;
        } else {
            self.as_text(&gguf, &name, &mut out)?;
        }
        Ok(out.flush()?)
    }

    /// Name of the model, and the model. For a remote model, only the header is read.
    fn model(&self) -> Result<(String, Gguf), CliError> {
        let options = OpenOptions { dialect: self.dialect, ..OpenOptions::default() };
        let file = self.file.as_deref().or(self.model.as_deref());
        if let Some((name, headers)) = self.hub.headers(file)? {
            return Ok((name, Gguf::from_headers(&headers, options)?));
        }
        let source = Source::choose(file, &self.hub, "FILE")?;
        let gguf = match source.open(options) {
            Err(error) if error.is_incomplete() => source.open_header(options)?,
            opened => opened?,
        };
        Ok((source.name(), gguf))
    }

    fn as_text(&self, gguf: &Gguf, name: &str, out: &mut impl Write) -> io::Result<()> {
        let parts: Vec<u64> = gguf.file_bytes().collect();
        let bytes: u64 = parts.iter().sum();
        writeln!(out, "file      {name}")?;
        writeln!(
            out,
            "format    GGUF version {}, {} bytes in {} file(s)",
            gguf.version(),
            bytes,
            parts.len()
        )?;
        writeln!(out, "dialect   {}", dialect_text(gguf))?;

        writeln!(out, "\nmetadata  {} keys", gguf.metadata().len())?;
        for (key, value) in gguf.metadata().iter() {
            let key = printable(key);
            writeln!(out, "  {key:<44} {}", self.value_text(value))?;
        }

        writeln!(out, "\ntensors   {}", gguf.tensors().len())?;
        for info in gguf.tensors() {
            let place = format!("{:#x}", info.start);
            let part = if parts.len() > 1 { format!(" in part {}", info.part + 1) } else { String::new() };
            writeln!(
                out,
                "  {:<34} {:<8} {:<16} {:>12} bytes at {place}{part}",
                printable(&info.name),
                info.type_name,
                format!("{:?}", info.dims),
                info.n_bytes,
            )?;
        }

        let zero = zeros(gguf);
        if !zero.is_empty() {
            out.flush()?;
            report::zeros(zero.iter().map(|(info, n)| (info.name.as_str(), *n)));
        }
        if let Some(mix) = quantize::mix_of(gguf).map(|mix| mix.name) {
            writeln!(out, "\nmix       {mix}")?;
        }
        writeln!(out, "\ntypes")?;
        for (name, total) in totals(gguf) {
            let note = if total.supported { "" } else { "  (no implementation in this build)" };
            writeln!(
                out,
                "  {name:<8} {:>5} tensors {:>14} elements {:>14} bytes{note}",
                total.n_tensors, total.n_elems, total.bytes
            )?;
        }

        writeln!(out, "\nruns on")?;
        for (name, answer) in backends(gguf) {
            match answer {
                Ok(plan) => writeln!(
                    out,
                    "  {name}: yes, with {} bytes of weights, {} of KV cache (f16) and {} of buffers",
                    plan.weights_bytes, plan.kv_bytes, plan.bufs_bytes
                )?,
                Err(why) => writeln!(out, "  {name}: no: {}", printable(&why))?,
            }
        }
        Ok(())
    }

    fn as_json(&self, gguf: &Gguf, name: &str) -> Json {
        let metadata: serde_json::Map<String, Json> =
            gguf.metadata().iter().map(|(key, value)| (key.to_owned(), self.value_json(value))).collect();
        let tensors: Vec<Json> = gguf.tensors().iter().map(tensor_json).collect();
        let types: serde_json::Map<String, Json> = totals(gguf)
            .into_iter()
            .map(|(name, total)| {
                let Total { n_tensors, n_elems, bytes, supported } = total;
                let json = json!({
                    "tensors": n_tensors, "elements": n_elems, "bytes": bytes, "supported": supported
                });
                (name, json)
            })
            .collect();
        let backends: serde_json::Map<String, Json> = backends(gguf)
            .into_iter()
            .map(|(name, answer)| {
                let json = match answer {
                    Ok(plan) => json!({
                        "runs": true,
                        "weights_bytes": plan.weights_bytes,
                        "kv_bytes": plan.kv_bytes,
                        "bufs_bytes": plan.bufs_bytes,
                    }),
                    Err(why) => json!({"runs": false, "reason": why}),
                };
                (name.to_owned(), json)
            })
            .collect();
        json!({
            "file": name,
            "version": gguf.version(),
            "file_bytes": gguf.file_bytes().collect::<Vec<_>>(),
            "dialect": gguf.dialect().ok().map(dialect_name),
            "metadata": metadata,
            "tensors": tensors,
            "mix": quantize::mix_of(gguf).map(|mix| mix.name),
            "zero_matrices": zeros(gguf)
                .iter()
                .map(|(info, n)| json!({"tensor": info.name, "matrices": n}))
                .collect::<Vec<_>>(),
            "types": types,
            "backends": backends,
        })
    }

    fn value_text(&self, value: &Value) -> String {
        match value {
            Value::Str(text) => self.str_text(text),
            Value::Array(array) => {
                let shown: Vec<String> = self.shown(array).map(|value| self.value_text(&value)).collect();
                let more = if shown.len() < array.len() { ", ..." } else { "" };
                format!("{} {}: [{}{more}]", array.len(), array.elem_type().name(), shown.join(", "))
            }
            Value::Bool(truth) => truth.to_string(),
            Value::F32(number) => number.to_string(),
            Value::F64(number) => number.to_string(),
            integer => integer.as_int().map_or_else(String::new, |number| number.to_string()),
        }
    }

    /// Quoted, so that control characters do not reach the terminal.
    fn str_text(&self, text: &str) -> String {
        match text.char_indices().nth(SHOWN_CHARS) {
            Some((end, _)) if !self.full => format!("{:?}... ({} bytes)", &text[..end], text.len()),
            _ => format!("{text:?}"),
        }
    }

    fn value_json(&self, value: &Value) -> Json {
        let ty = value.value_type().name();
        match value {
            Value::Str(text) => json!({"type": ty, "value": text}),
            Value::Array(array) => json!({
                "type": ty,
                "elem_type": array.elem_type().name(),
                "len": array.len(),
                "value": self.shown(array).map(|value| self.elem_json(&value)).collect::<Vec<_>>(),
                "complete": self.full || array.len() <= SHOWN_ELEMS,
            }),
            _ => json!({"type": ty, "value": self.elem_json(value)}),
        }
    }

    fn elem_json(&self, value: &Value) -> Json {
        match value {
            Value::U64(number) => json!(number),
            Value::Str(text) => json!(text),
            Value::Bool(truth) => json!(truth),
            Value::F32(number) => json!(number),
            Value::F64(number) => json!(number),
            Value::Array(_) => self.value_json(value),
            integer => json!(integer.as_int().and_then(|number| i64::try_from(number).ok())),
        }
    }

    fn shown(&self, array: &Array) -> impl Iterator<Item = Value> {
        array.values().take(if self.full { usize::MAX } else { SHOWN_ELEMS })
    }
}

/// All tensors of one type.
#[derive(Default)]
struct Total {
    n_tensors: usize,
    n_elems: u128,
    bytes: u128,
    supported: bool,
}

fn totals(gguf: &Gguf) -> BTreeMap<String, Total> {
    let mut totals = BTreeMap::<String, Total>::new();
    for info in gguf.tensors() {
        let total = totals.entry(info.type_name.clone()).or_default();
        total.n_tensors += 1;
        total.n_elems += info.n_elems() as u128;
        total.bytes += u128::from(info.n_bytes);
        total.supported = info.ty.is_some();
    }
    totals
}

/// All-zero matrices; empty for a model of which only the header was read.
fn zeros(gguf: &Gguf) -> Vec<(&TensorInfo, usize)> {
    if gguf.is_header() { Vec::new() } else { zero_matrices(gguf) }
}

fn tensor_json(info: &TensorInfo) -> Json {
    json!({
        "name": info.name,
        "type": info.type_name,
        "type_id": info.type_id,
        "shape": info.dims,
        "bytes": info.n_bytes,
        "part": info.part,
        "offset": info.start,
    })
}

/// Memory plan of the model on each backend of this build, or the reason why it cannot run there.
fn backends(gguf: &Gguf) -> Vec<(&'static str, Result<backend::Plan, String>)> {
    let answer = |name: &'static str| {
        // One thread: nothing is computed here.
        let backend = backend::open(name, 1).map_err(|err| with_flags(&err))?;
        engine::plan(gguf, &EngineOptions::default(), backend.as_ref()).map_err(|err| with_flags(&err))
    };
    backend::NAMES.iter().map(|name| (*name, answer(name))).collect()
}

/// Text from a file, with control characters escaped.
fn printable(text: &str) -> String {
    text.escape_debug().to_string()
}

fn dialect_text(gguf: &Gguf) -> String {
    gguf.dialect().map_or_else(|err| with_flags(&err), |dialect| dialect_name(dialect).to_owned())
}

fn dialect_name(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Ggml => "ggml",
        Dialect::BitNet => "bitnet",
    }
}
