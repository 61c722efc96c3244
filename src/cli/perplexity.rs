//! `sterna perplexity`: how well the model foretells a text, and how far it is from saved logits.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;

use super::chunks::{TextArgs, as_fed};
use super::kl_base::{KlReader, KlText, KlWriter};
use super::model_args::ModelArgs;
use super::out_file::{Partial, go_on};
use super::{CliError, report};
use crate::engine::score::{Mean, kl_divergence, log_softmax};
use crate::engine::{EngineOptions, Session};
use crate::program::sampling::argmax;
use crate::tokenizer::Tokenizer;

/// Rows whose logits are held at a time.
const OUTPUTS: usize = 64;

/// Computes the perplexity of a text as llama-perplexity does.
///
/// The text becomes tokens as a whole, with BOS in front where the model wants one, and is cut into chunks of C
/// tokens (--ctx-size); what is left at its end is not looked at. Each chunk starts with an empty context, and
/// its first token is replaced by BOS where the model wants one. Scored are the tokens C/2 + 1 to C - 1 of each
/// chunk, counted from 0, each from the logits of the one before it: 255 of 512. PPL is the exponential of the
/// mean of -ln p over all of them.
///
/// Special tokens that are spelled out in the text, `<|endoftext|>` between documents for example, are text as
/// any other, unless --special says otherwise.
///
/// --save-logits keeps the log-probabilities, and --kl-base compares with what was kept.
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

/// What is summed up over all scored positions.
#[derive(Debug, Default)]
pub(super) struct Scores {
    pub nll: Mean,
    pub base_nll: Mean,
    pub kl: Mean,
    pub same_top: Mean,
    pub max_kl: f64,
}

enum Saved {
    None,
    Write { writer: KlWriter, partial: Partial, path: PathBuf },
    Compare(KlReader),
}

impl PerplexityArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Whatever reading, loading or running returns; where the text is too short, or the base is of
    /// another text or vocabulary.
    pub fn run(self) -> Result<(), CliError> {
        let text = self.text.read()?;
        let n_ctx = self.text.n_ctx();
        let options = EngineOptions { outputs: OUTPUTS, ..self.model.options(Some(n_ctx)) };
        let engine = self.model.load(&self.model.source()?, &options)?;
        let (tokenizer, text) = (engine.tokenizer()?, self.text.chunked(&text, &engine)?);
        let cancel = Arc::new(AtomicBool::new(false));
        if self.save_logits.is_some() {
            report::cancel_on_ctrl_c(&cancel)?;
        }
        let mut saved = self.saved(&text)?;

        let mut session = engine.session()?;
        let mut scores = Scores::default();
        let n_chunks = text.tokens.len() / n_ctx;
        for (index, chunk) in text.tokens.chunks_exact(n_ctx).enumerate() {
            go_on(&cancel)?;
            score_chunk(&mut session, tokenizer, chunk, &mut saved, &mut scores)?;
            eprintln!("chunk {} of {n_chunks}: PPL {:.4}", index + 1, scores.nll.mean().exp());
        }
        if let Saved::Write { writer, partial, path } = saved {
            writer.finish().map_err(|err| format!("{}: {err}", path.display()))?;
            partial.rename(&path, true)?;
        }
        Ok(scores.print(n_chunks, self.kl_base.is_some())?)
    }

    fn saved(&self, text: &KlText) -> Result<Saved, CliError> {
        if let Some(path) = &self.kl_base {
            return Ok(Saved::Compare(KlReader::open(path, text)?));
        }
        let Some(path) = &self.save_logits else { return Ok(Saved::None) };
        let partial = Partial::create(path)?;
        let writer =
            KlWriter::new(partial.file()?, text).map_err(|err| format!("{}: {err}", path.display()))?;
        Ok(Saved::Write { writer, partial, path: path.clone() })
    }
}

fn score_chunk(
    session: &mut Session,
    tokenizer: &Tokenizer,
    chunk: &[u32],
    saved: &mut Saved,
    scores: &mut Scores,
) -> Result<(), CliError> {
    let fed = as_fed(tokenizer, chunk);
    let first = chunk.len() / 2;
    session.cut_back(0);
    session.prefill(&fed[..first])?;
    let n_vocab = session.engine().hyper().n_vocab;
    let (mut log_probs, mut base) = (vec![0.0; n_vocab], vec![0.0; n_vocab]);
    session.logits_each(&fed[first..chunk.len() - 1], |index, logits| -> Result<(), CliError> {
        let next = chunk[first + index + 1] as usize;
        log_softmax(logits, &mut log_probs);
        scores.nll.add(-f64::from(log_probs[next]));
        match saved {
            Saved::None => {}
            Saved::Write { writer, path, .. } => {
                writer.row(&log_probs).map_err(|err| format!("{}: {err}", path.display()))?;
            }
            Saved::Compare(reader) => {
                reader.row(&mut base)?;
                scores.compare(&base, &log_probs, next);
            }
        }
        Ok(())
    })
}

impl Scores {
    /// Takes a position: what the base and this model say of the next token, in logarithms, and which came.
    pub fn compare(&mut self, base: &[f32], log_probs: &[f32], next: usize) {
        let kl = kl_divergence(base, log_probs);
        self.kl.add(kl);
        self.max_kl = self.max_kl.max(kl);
        self.base_nll.add(-f64::from(base[next]));
        self.same_top.add(f64::from(argmax(base) == argmax(log_probs)));
    }

    fn print(&self, n_chunks: usize, compared: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let perplexity = |nll: &Mean| (nll.mean().exp(), nll.mean().exp() * nll.std_error());
        let (ppl, error) = perplexity(&self.nll);
        writeln!(out, "PPL = {ppl:.4} +/- {error:.5} ({n_chunks} chunks, {} tokens scored)", self.nll.n())?;
        if compared {
            let (ppl, error) = perplexity(&self.base_nll);
            writeln!(out, "base PPL = {ppl:.4} +/- {error:.5}")?;
            writeln!(
                out,
                "mean KL = {:.6} +/- {:.6}, max KL = {:.6}",
                self.kl.mean(),
                self.kl.std_error(),
                self.max_kl
            )?;
            let (share, error) = (100.0 * self.same_top.mean(), 100.0 * self.same_top.std_error());
            writeln!(out, "same top = {share:.3} +/- {error:.3} %")?;
        }
        out.flush()
    }
}
