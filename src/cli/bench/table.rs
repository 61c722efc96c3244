//! Output of `sterna bench` as Markdown, JSON or CSV.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

use super::measure::{Measured, Sampling};
use crate::engine::Engine;
use crate::gguf::file_type_name;

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// llama-bench's Markdown table
    Md,
    /// A list of objects with llama-bench's names
    Json,
    /// A header and one line per row
    Csv,
}

/// One result row with all its fields. Names are llama-bench's where it has one.
#[derive(Debug, Serialize)]
struct Row {
    test: String,
    model_filename: String,
    model_type: String,
    model_size: u64,
    model_n_params: u64,
    head_type: String,
    backend: String,
    device: String,
    n_batch: usize,
    n_threads: usize,
    type_k: String,
    type_v: String,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    sampling: Sampling,
    n_draft: usize,
    accepted: Option<f64>,
    avg_ts: f64,
    stddev_ts: f64,
    bytes_per_s: Option<f64>,
    samples_ts: Vec<f64>,
}

/// Writes result rows to stdout as they are measured.
#[derive(Debug)]
pub struct Table {
    format: Format,
    model: Model,
    n_rows: usize,
}

/// Model description as llama-bench writes it: architecture, size label if the file has one, and file type,
/// as in `gemma3 270M Q4_K - Medium`. Without a file type in the metadata, the type of the largest matrix is
/// used.
fn kind(engine: &Engine) -> String {
    let metadata = engine.gguf().metadata();
    let weights = engine.program().weights.iter();
    let body = weights.filter(|w| w.name.starts_with("blk.")).max_by_key(|w| w.rows * w.cols);
    let number = metadata.u32("general.file_type").ok().flatten();
    let named = body.and_then(|body| Some(file_type_name(number?, body.ty)?.to_owned()));
    let file_type = named.or(body.map(|body| body.ty.name().to_uppercase()));
    let size = metadata.str("general.size_label").ok().flatten().map(str::to_owned);
    let words = [Some(engine.hyper().architecture.to_owned()), size, file_type];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Values shared by all rows.
#[derive(Debug)]
struct Model {
    file: String,
    kind: String,
    size_bytes: u64,
    n_params: u64,
    head: &'static str,
    backend: &'static str,
    device: String,
    batch: usize,
    type_k: String,
    type_v: String,
}

impl Table {
    /// Starts the table for the model of `engine`, loaded from `file`.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn begin(format: Format, engine: &Engine, file: String) -> io::Result<Self> {
        let program = engine.program();
        let kv = program.kvs.first();
        let model = Model {
            file,
            kind: kind(engine),
            size_bytes: program.weights_bytes(),
            n_params: program.weights.iter().map(|w| w.rows as u64 * w.cols as u64).sum(),
            head: engine.head_type(),
            backend: engine.backend_name(),
            device: engine.device().to_owned(),
            batch: program.limits.rows,
            type_k: kv.map_or_else(String::new, |kv| kv.k.name().to_owned()),
            type_v: kv.map_or_else(String::new, |kv| kv.v.name().to_owned()),
        };
        let mut out = io::stdout().lock();
        match format {
            Format::Md => {
                writeln!(
                    out,
                    "| {:<24} | {:>10} | {:>8} | {:<5} | {:<7} | {:>7} | {:>16} | {:>18} | {:>8} |",
                    "model", "size", "params", "head", "backend", "threads", "test", "t/s", "GB/s"
                )?;
                writeln!(
                    out,
                    "| {0:-<24} | {0:->9}: | {0:->7}: | {0:-<5} | {0:-<7} | {0:->6}: | {0:->15}: | {0:->17}: \
                     | {0:->7}: |",
                    ""
                )?;
            }
            Format::Json => writeln!(out, "[")?,
            Format::Csv => {}
        }
        Ok(Self { format, model, n_rows: 0 })
    }

    /// Writes one row.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn row(&mut self, measured: &Measured) -> io::Result<()> {
        let row = self.whole(measured);
        let mut out = io::stdout().lock();
        match self.format {
            Format::Md => self.markdown(&mut out, &row)?,
            Format::Json => {
                let comma = if self.n_rows > 0 { ",\n" } else { "" };
                write!(out, "{comma}{}", serde_json::to_string_pretty(&row)?)?;
            }
            Format::Csv => csv(&mut out, &row, self.n_rows == 0)?,
        }
        self.n_rows += 1;
        out.flush()
    }

    /// Ends the table.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn end(self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.format == Format::Json {
            writeln!(out, "\n]")?;
        }
        out.flush()
    }

    fn whole(&self, measured: &Measured) -> Row {
        let (avg_ts, stddev_ts) = measured.rate();
        let (test, model) = (measured.test, &self.model);
        let bytes_per_s = measured.bandwidth();
        let n_tokens = (test.n_prompt + test.n_gen) as f64;
        Row {
            test: test.name(),
            model_filename: model.file.clone(),
            model_type: model.kind.clone(),
            model_size: model.size_bytes,
            model_n_params: model.n_params,
            head_type: model.head.to_owned(),
            backend: model.backend.to_owned(),
            device: model.device.clone(),
            n_batch: model.batch,
            n_threads: measured.threads,
            type_k: model.type_k.clone(),
            type_v: model.type_v.clone(),
            n_prompt: test.n_prompt,
            n_gen: test.n_gen,
            n_depth: test.n_depth,
            sampling: test.sampling,
            n_draft: test.n_draft,
            accepted: measured.accepted,
            avg_ts,
            stddev_ts,
            bytes_per_s,
            samples_ts: measured.seconds.iter().map(|seconds| n_tokens / seconds).collect(),
        }
    }

    fn markdown(&self, out: &mut impl Write, row: &Row) -> io::Result<()> {
        writeln!(
            out,
            "| {:<24} | {:>10} | {:>8} | {:<5} | {:<7} | {:>7} | {:>16} | {:>18} | {:>8} |",
            row.model_type,
            size(row.model_size),
            params(row.model_n_params),
            row.head_type,
            row.backend,
            row.n_threads,
            row.test,
            format!("{:.2} ± {:.2}", row.avg_ts, row.stddev_ts),
            row.bytes_per_s.map_or("-".to_owned(), |bytes| format!("{:.2}", bytes * 1e-9)),
        )
    }
}

/// Formats a size in bytes as llama-bench does.
fn size(bytes: u64) -> String {
    const MIB: f64 = 1048576.0;
    let mib = bytes as f64 / MIB;
    if mib >= 1024.0 { format!("{:.2} GiB", mib / 1024.0) } else { format!("{mib:.2} MiB") }
}

/// Formats a number of weights as llama-bench does.
fn params(n: u64) -> String {
    let millions = n as f64 / 1e6;
    if millions >= 1000.0 { format!("{:.2} B", millions / 1000.0) } else { format!("{millions:.2} M") }
}

/// Writes a line of comma-separated values in the order of [`Row`]'s fields, without the list of samples.
fn csv(out: &mut impl Write, row: &Row, with_header: bool) -> io::Result<()> {
    let serde_json::Value::Object(fields) = serde_json::to_value(row)? else {
        unreachable!("a struct is an object");
    };
    let fields: Vec<_> = fields.into_iter().filter(|(_, value)| !value.is_array()).collect();
    if with_header {
        let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        writeln!(out, "{}", names.join(","))?;
    }
    let values: Vec<String> = fields.iter().map(|(_, value)| quoted(value)).collect();
    writeln!(out, "{}", values.join(","))
}

/// Formats a value as in RFC 4180: text in quotes, with quotes doubled.
fn quoted(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    }
}
