//! `sterna logits`: writes the logits of every position of token sequences.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;

use super::model_args::ModelArgs;
use super::npy::NpyWriter;
use super::out_file::{Partial, go_on};
use super::speculation_args::with_file;
use super::{CliError, input, report};
use crate::engine::{EngineOptions, Mtp, Session};

/// Positions whose logits are in memory at a time.
const OUTPUTS: usize = 64;

/// Writes the logits of every position of given token sequences.
///
/// FILE has one sequence of token ids per line, separated by blanks or commas. No token is added, and each
/// line starts with an empty context. OUT is a NumPy file, float32 [all positions, n_vocab]; it is created
/// only when complete.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna logits -m model.gguf --tokens prompts.txt -o logits.npy
  sterna logits -m model.gguf --tokens prompts.txt -o single.npy --each --kv-cache-type f32")]
pub struct LogitsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// File of token ids
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Output file
    #[arg(short, long, value_name = "OUT.npy")]
    output: PathBuf,
    /// Feed one token at a time
    #[arg(long)]
    each: bool,
    /// Write the logits of the model's block for multi-token prediction: those of position p come from the
    /// token there and the model's row of position p - 1
    #[arg(long, conflicts_with = "each")]
    mtp: bool,
    /// GGUF file of an MTP block, an EAGLE-3 head or an assistant that was made for the model, for --mtp
    /// (also -md). Logits of tokens that a head does not have are negative infinity
    #[arg(long, value_name = "FILE", requires = "mtp")]
    model_draft: Option<PathBuf>,
}

impl LogitsArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from reading, loading, running or writing.
    pub fn run(self) -> Result<(), CliError> {
        let sequences = read_sequences(&self.tokens)?;
        let n_positions = sequences.iter().map(Vec::len).sum();
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        let (mtp, drafts) = if self.mtp { (Mtp::Needed, 1) } else { (Mtp::Off, 0) };
        let options = self.model.options(Some(longest))?;
        let options = EngineOptions { outputs: OUTPUTS, mtp, drafts, ..options };
        let options = with_file(self.model_draft.as_deref(), options)?;
        let engine = self.model.load(&self.model.source()?, &options)?;
        let unwritable = |err| format!("{}: {err}", self.output.display());
        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;
        let partial = Partial::create(&self.output)?;
        let mut out =
            NpyWriter::new(partial.file()?, n_positions, engine.hyper().n_vocab).map_err(unwritable)?;
        let mut session = engine.session()?;
        for sequence in &sequences {
            session.cut_back(0);
            let write = |_, logits: &[f32]| -> Result<(), CliError> {
                go_on(&cancel)?;
                Ok(out.row(logits).map_err(unwritable)?)
            };
            match self.mtp {
                true => session.mtp_logits_each(sequence, write)?,
                false => feed(&mut session, sequence, self.each, write)?,
            }
        }
        out.finish().map_err(unwritable)?;
        partial.rename(&self.output, true)
    }
}

fn feed(
    session: &mut Session,
    tokens: &[u32],
    each: bool,
    mut write: impl FnMut(usize, &[f32]) -> Result<(), CliError>,
) -> Result<(), CliError> {
    if !each {
        return session.logits_each(tokens, write);
    }
    tokens.iter().enumerate().try_for_each(|(at, &token)| write(at, session.logits(&[token])?))
}

fn read_sequences(path: &Path) -> Result<Vec<Vec<u32>>, CliError> {
    let text = input::file(path)?;
    let mut sequences = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = line.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
        let tokens = words.map(|word| {
            let place = format!("{}, line {}", path.display(), index + 1);
            word.parse().map_err(|_| format!("{place}: want token ids, found `{word}`"))
        });
        let tokens: Vec<u32> = tokens.collect::<Result<_, _>>()?;
        if !tokens.is_empty() {
            sequences.push(tokens);
        }
    }
    match sequences.is_empty() {
        true => Err(format!("{}: contains no token ids", path.display()).into()),
        false => Ok(sequences),
    }
}
