//! `sterna perplexity`: scores a text, and compares with saved logits.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;

use super::chunks::TextArgs;
use super::model_args::ModelArgs;
use super::out_file::{Partial, go_on};
use super::units::counted;
use super::{CliError, report};
use crate::engine::{EngineOptions, Session};
use crate::eval::log_probs::{LogProbsError, LogProbsReader, LogProbsWriter};
use crate::eval::perplexity::{Scores, score_chunk};
use crate::eval::score::Mean;
use crate::eval::{Chunks, OUTPUTS};

/// Computes the perplexity of a text as llama-perplexity does.
///
/// The text is tokenized as a whole, starting with BOS if the model expects one, and cut into chunks of C
/// tokens (--ctx-size); an incomplete last chunk is ignored. Each chunk starts with an empty context, and its
/// first token is replaced by BOS if the model expects one. Tokens C/2 + 1 to C - 1 of each chunk, counted
/// from 0, are scored, each by the logits of the token before it: 255 of 512. PPL is the exponential of the
/// mean of -ln p over all of them.
///
/// Special tokens that are spelled out in the text, such as `<|endoftext|>` between documents, are plain text
/// unless --special is given.
///
/// The text is scored unchanged; a byte order mark and CRLF are part of it, and a note is printed.
///
/// --save-logits saves the log-probabilities, and --kl-base compares with saved ones.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna perplexity -m model.gguf -f wiki.test.raw
  sterna perplexity -m model.gguf -f documents.txt --special -c 1024
  sterna perplexity -m f16-head.gguf -f text.txt --save-logits base.kl
  sterna perplexity -m q6k-head.gguf -f text.txt --kl-base base.kl")]
pub struct PerplexityArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Compare with these saved log-probabilities
    #[arg(long, value_name = "FILE", conflicts_with = "save_logits")]
    kl_base: Option<PathBuf>,
    /// Save log-probabilities to compare with
    #[arg(long, value_name = "FILE")]
    save_logits: Option<PathBuf>,
}

enum Saved {
    None,
    Write { writer: LogProbsWriter, partial: Partial, path: PathBuf },
    Compare(LogProbsReader),
}

impl PerplexityArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from reading, loading or running; a text that is too short; a base of another text or
    /// vocabulary.
    pub fn run(self) -> Result<(), CliError> {
        let text = self.text.read()?;
        let n_ctx = self.text.n_ctx();
        let options = EngineOptions { outputs: OUTPUTS, ..self.model.options(Some(n_ctx))? };
        let engine = self.model.load(&self.model.source()?, &options)?;
        let text = self.text.chunked(&text, &engine)?;
        let cancel = Arc::new(AtomicBool::new(false));
        if self.save_logits.is_some() {
            report::cancel_on_ctrl_c(&cancel)?;
        }
        let mut saved = self.saved(&text)?;

        let mut session = engine.session()?;
        let mut scores = Scores::default();
        let n_chunks = text.n_chunks();
        for (index, chunk) in text.iter().enumerate() {
            go_on(&cancel)?;
            score(&mut session, chunk, &mut saved, &mut scores)?;
            eprintln!("chunk {} of {n_chunks}: PPL {:.4}", index + 1, scores.nll.mean().exp());
        }
        if let Saved::Write { writer, partial, path } = saved {
            writer.finish().map_err(|err| format!("{}: {err}", path.display()))?;
            partial.rename(&path, true)?;
        }
        Ok(print(&scores, n_chunks, self.kl_base.is_some())?)
    }

    fn saved(&self, text: &Chunks) -> Result<Saved, CliError> {
        if let Some(path) = &self.kl_base {
            let reader = LogProbsReader::open(path, text);
            return Ok(Saved::Compare(
                reader.map_err(|err| format!("{}: {}", path.display(), as_flags(&err)))?,
            ));
        }
        let Some(path) = &self.save_logits else { return Ok(Saved::None) };
        let partial = Partial::create(path)?;
        let writer =
            LogProbsWriter::new(partial.file()?, text).map_err(|err| format!("{}: {err}", path.display()))?;
        Ok(Saved::Write { writer, partial, path: path.clone() })
    }
}

/// Formats an error of saved log-probabilities in terms of flags.
fn as_flags(err: &LogProbsError) -> String {
    match err {
        LogProbsError::Unknown => "not a file written by --save-logits".to_owned(),
        LogProbsError::Other { what: "n_ctx", got, want } => {
            format!("has --ctx-size {got}, but this run {want}")
        }
        err => err.to_string(),
    }
}

/// Scores a chunk, and saves or compares its log-probabilities.
fn score(
    session: &mut Session,
    chunk: &[u32],
    saved: &mut Saved,
    scores: &mut Scores,
) -> Result<(), CliError> {
    let mut base = vec![0.0; session.engine().hyper().n_vocab];
    score_chunk(session, chunk, |log_probs, next| -> Result<(), CliError> {
        scores.nll.add(-f64::from(log_probs[next]));
        match saved {
            Saved::None => {}
            Saved::Write { writer, path, .. } => {
                writer.row(log_probs).map_err(|err| format!("{}: {err}", path.display()))?;
            }
            Saved::Compare(reader) => {
                reader.row(&mut base)?;
                scores.compare(&base, log_probs, next);
            }
        }
        Ok(())
    })
}

fn print(scores: &Scores, n_chunks: usize, compared: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let perplexity = |nll: &Mean| (nll.mean().exp(), nll.mean().exp() * nll.std_error());
    let (ppl, error) = perplexity(&scores.nll);
    let scored = scores.nll.n();
    writeln!(out, "PPL = {ppl:.4} +/- {error:.5} ({}, {scored} tokens scored)", counted(n_chunks, "chunk"))?;
    if compared {
        let (ppl, error) = perplexity(&scores.base_nll);
        writeln!(out, "base PPL = {ppl:.4} +/- {error:.5}")?;
        let (kl, error) = (scores.kl.mean(), scores.kl.std_error());
        writeln!(out, "mean KL = {kl:.6} +/- {error:.6}, max KL = {:.6}", scores.max_kl)?;
        let (share, error) = (100.0 * scores.same_top.mean(), 100.0 * scores.same_top.std_error());
        writeln!(out, "same top = {share:.3} +/- {error:.3} %")?;
    }
    out.flush()
}
