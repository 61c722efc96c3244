//! `sterna imatrix`: computes an importance matrix from a text.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;

use super::chunks::TextArgs;
use super::hub_args::HubArgs;
use super::model_args::FileArgs;
use super::out_file::{Partial, go_on, is_free};
use super::source::Source;
use super::units::{Threads, threads};
use super::{CliError, names, report};
use crate::engine::EngineOptions;
use crate::eval::as_fed;
use crate::eval::importance::Importance;
use crate::quantize::Imatrix;
use crate::tokenizer::{Tokenizer, TokenizerOptions};

/// Computes an importance matrix for sterna quantize --imatrix, as llama-imatrix does.
///
/// The text is cut into chunks of C tokens (--ctx-size). Each starts with an empty context, with BOS in place
/// of the first token if the model expects one. For each matrix in the blocks, the file has the sum of
/// squares of its inputs per column and the number of rows, in llama.cpp's GGUF layout, which llama-quantize
/// reads too. Each expert has its own sums. The output head has no entry. Runs on the CPU.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna imatrix -m model-f16.gguf -f calibration.txt -o imatrix.gguf
  sterna quantize --imatrix imatrix.gguf model-f16.gguf model-q3_k_m.gguf Q3_K_M")]
pub struct ImatrixArgs {
    /// GGUF file, or any part of a split one [default: the built-in demo model]
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Output file
    #[arg(short, long, value_name = "OUT.gguf", default_value = "imatrix.gguf", alias = "output-file")]
    output: PathBuf,
    /// Threads [default: physical cores]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    threads: Option<Threads>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    of_file: FileArgs,
}

impl ImatrixArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from reading, loading or running; a text that is too short; a file that already exists or
    /// cannot be written; [`Interrupted`](super::Interrupted) after ctrl-C. No partial output is left then.
    pub fn run(self) -> Result<(), CliError> {
        is_free(&self.output, self.force)?;
        let text = self.text.read()?;
        let source = Source::choose(self.model.as_deref(), &self.hub, "-m")?;
        let gguf = source.open(self.of_file.open_options())?;
        let pre = self.of_file.tokenizer_pre;
        let tokenizer = Tokenizer::from_gguf(&gguf, TokenizerOptions { pre })?;
        tokenizer.notices().iter().for_each(|notice| names::note("note", notice));
        let n_ctx = self.text.n_ctx();
        let text = self.text.cut(&text, &tokenizer, tokenizer.n_vocab(), 1)?;
        let options = EngineOptions { threads: self.threads.and_then(|n| n.0), ..EngineOptions::default() };
        let mut importance = Importance::new(&gguf, &options, n_ctx)?;

        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;
        let partial = Partial::create(&self.output)?;
        let n_chunks = text.n_chunks();
        for (index, chunk) in text.iter().enumerate() {
            go_on(&cancel)?;
            importance.add(&as_fed(&tokenizer, chunk))?;
            eprintln!("chunk {} of {n_chunks}", index + 1);
        }
        let mut imatrix = Imatrix::new(&self.text.name(), n_chunks as u32, n_ctx as u32);
        let rows = importance.n_rows() as f32;
        for (name, sums, counts) in importance.sums() {
            imatrix.add(name, &sums.iter().map(|sum| *sum as f32).collect::<Vec<_>>(), &counts)?;
        }
        let unwritable = |err: &dyn std::fmt::Display| format!("{}: {err}", self.output.display());
        let mut out = BufWriter::new(partial.file()?);
        imatrix.write(&mut out).map_err(|err| unwritable(&err))?;
        out.flush().map_err(|err| unwritable(&err))?;
        drop(out);
        go_on(&cancel)?;
        partial.rename(&self.output, self.force)?;
        eprintln!("{}: {} tensors, {rows} rows", self.output.display(), imatrix.len());
        Ok(())
    }
}
