//! `sterna kv-report`: what each kind of KV cache takes, and what it does to the model's next token.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use ggml_types::kv;
use serde::Serialize;

use super::chunks::{TextArgs, as_fed};
use super::kl_base::KlText;
use super::model_args::ModelArgs;
use super::out_file::go_on;
use super::perplexity::Scores;
use super::source::Source;
use super::{CliError, report};
use crate::engine::score::{Mean, log_softmax};
use crate::engine::{Engine, EngineOptions, Session};

/// Rows whose logits are held at a time, of two engines.
const OUTPUTS: usize = 64;

/// Compares kinds of KV cache on a text.
///
/// The text is cut into chunks and scored as `sterna perplexity` does. Beside each cache runs the one that --kv-cache-type names, f16
/// unless it is told otherwise. The mean and the largest KL are the divergence of the next token's distribution from what that
/// one says; `same top` is how often both have the same first choice.
///
/// turboquant and turboquant-4 keep the first 64 positions and the newest 64 to 127 as f16: chunks should be much longer.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna kv-report -f text.txt -c 1024
  sterna kv-report -m model.gguf -f text.txt -c 4096 --chunks 4 --types turboquant,q8_0
  sterna kv-report -m model.gguf -f text.txt --kv-cache-type f32 --types f16 --json")]
pub struct KvReportArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Kinds of cache to compare, divided by commas [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    types: Vec<String>,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// What a report says.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    /// Positions of a chunk.
    n_ctx: usize,
    chunks: usize,
    /// Positions whose next token was looked at.
    scored: u64,
    caches: Vec<Line>,
}

/// One kind of cache.
#[derive(Debug, Serialize)]
struct Line {
    cache: String,
    /// Of keys and values of all layers, encoded.
    bytes_a_token: usize,
    /// What a sequence of `n_ctx` positions takes, exact pages of a window included.
    bytes: u64,
    perplexity: Estimate,
    /// How far it is from the first line; nothing there.
    #[serde(flatten)]
    distance: Option<Distance>,
}

#[derive(Debug, Serialize)]
struct Distance {
    mean_kl: Estimate,
    max_kl: f64,
    /// Share of positions, 0 to 1.
    same_top: Estimate,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Estimate {
    value: f64,
    std_error: f64,
}

impl Estimate {
    fn of(mean: &Mean) -> Self {
        Self { value: mean.mean(), std_error: mean.std_error() }
    }

    /// Of `exp(mean)`.
    fn of_exp(mean: &Mean) -> Self {
        let value = mean.mean().exp();
        Self { value, std_error: value * mean.std_error() }
    }
}

impl KvReportArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Whatever reading, loading or running returns; where the text is too short, or a cache that was named cannot be.
    pub fn run(self) -> Result<(), CliError> {
        let text = self.text.read()?;
        let options = EngineOptions { outputs: OUTPUTS, ..self.model.options(Some(self.text.n_ctx())) };
        let source = self.model.source()?;
        let base = self.model.load(&source, &options)?;
        let text = self.text.chunked(&text, &base)?;
        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;

        let mut base_scores = None;
        let mut lines = Vec::new();
        for name in self.names(&options) {
            let options =
                EngineOptions { cache_type_k: name.clone(), cache_type_v: name.clone(), ..options.clone() };
            let Some(engine) = self.open(&source, &options)? else { continue };
            eprintln!("{name} beside {}", base_name(&base));
            let scores = compare(&base, &engine, &text, &cancel)?;
            let distance = Distance {
                mean_kl: Estimate::of(&scores.kl),
                max_kl: scores.max_kl,
                same_top: Estimate::of(&scores.same_top),
            };
            lines.push(line(name, &engine, &scores.nll, Some(distance)));
            base_scores = Some(scores);
        }
        let Some(scores) = base_scores else { return Err("there is no cache to compare".into()) };
        lines.insert(0, line(base_name(&base), &base, &scores.base_nll, None));
        let (n_ctx, chunks) = (text.n_ctx, text.tokens.len() / text.n_ctx);
        let report = Report { model: source.name(), n_ctx, chunks, scored: scores.nll.n(), caches: lines };
        Ok(report.print(self.json)?)
    }

    /// The kinds that are compared with the one that the options name.
    fn names(&self, options: &EngineOptions) -> Vec<String> {
        if !self.types.is_empty() {
            return self.types.clone();
        }
        let base = (&*options.cache_type_k, &*options.cache_type_v);
        let names = kv::REGISTRY.iter().map(|codec| codec.name());
        names.filter(|name| (*name, *name) != base).map(str::to_owned).collect()
    }

    /// The model with a cache; nothing where nobody asked for this one and it cannot be, which a line says.
    fn open(&self, source: &Source, options: &EngineOptions) -> Result<Option<Engine>, CliError> {
        match self.model.load(source, options) {
            Err(err) if self.types.is_empty() => {
                eprintln!("{} is left out: {err}", options.cache_type_k);
                Ok(None)
            }
            loaded => loaded.map(Some),
        }
    }
}

/// What a cache is called: of keys, and of values where that is another.
fn base_name(engine: &Engine) -> String {
    match engine.program().kvs.first() {
        Some(kv) if kv.k.name() == kv.v.name() => kv.k.name().to_owned(),
        Some(kv) => format!("{}, {}", kv.k.name(), kv.v.name()),
        None => "none".to_owned(),
    }
}

fn line(cache: String, engine: &Engine, nll: &Mean, distance: Option<Distance>) -> Line {
    let vec_bytes = |codec: &dyn ggml_types::KvCodec, dim| codec.vec_bytes(dim).expect("the engine has it");
    let kvs = engine.program().kvs.iter();
    let bytes = kvs.map(|kv| kv.n_kv_heads * (vec_bytes(kv.k, kv.head_dim) + vec_bytes(kv.v, kv.head_dim)));
    let (bytes_a_token, bytes) = (bytes.sum(), engine.plan().kv_bytes);
    Line { cache, bytes_a_token, bytes, perplexity: Estimate::of_exp(nll), distance }
}

/// Scores a text with two engines, side by side.
fn compare(base: &Engine, other: &Engine, text: &KlText, cancel: &AtomicBool) -> Result<Scores, CliError> {
    let n_vocab = base.hyper().n_vocab;
    let (mut expected, mut log_probs) = (vec![0.0; OUTPUTS * n_vocab], vec![0.0; n_vocab]);
    let mut sessions = [base.session()?, other.session()?];
    let mut scores = Scores::default();
    let first = text.n_ctx / 2;
    for chunk in text.tokens.chunks_exact(text.n_ctx) {
        let fed = as_fed(base.tokenizer()?, chunk);
        for session in &mut sessions {
            session.cut_back(0);
            session.feed_quietly(&fed[..first])?;
        }
        for start in (first..chunk.len() - 1).step_by(OUTPUTS) {
            go_on(cancel)?;
            let piece = &fed[start..(start + OUTPUTS).min(chunk.len() - 1)];
            let [base, other] = &mut sessions;
            feed(base, piece, |i, logits| log_softmax(logits, &mut expected[i * n_vocab..][..n_vocab]))?;
            feed(other, piece, |i, logits| {
                log_softmax(logits, &mut log_probs);
                let next = chunk[start + i + 1] as usize;
                scores.nll.add(-f64::from(log_probs[next]));
                scores.compare(&expected[i * n_vocab..][..n_vocab], &log_probs, next);
            })?;
        }
    }
    Ok(scores)
}

fn feed(session: &mut Session, tokens: &[u32], mut row: impl FnMut(usize, &[f32])) -> Result<(), CliError> {
    session.feed_each(tokens, |i, logits| {
        row(i, logits);
        Ok(())
    })
}

impl Report {
    fn print(&self, json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
            return out.flush();
        }
        writeln!(
            out,
            "{}, {} chunks of {} tokens, {} scored",
            self.model, self.chunks, self.n_ctx, self.scored
        )?;
        writeln!(out)?;
        writeln!(
            out,
            "| cache | bytes a token | bytes of {} positions | perplexity | mean KL | max KL | same top |",
            self.n_ctx
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|")?;
        for Line { cache, bytes_a_token, bytes, perplexity: ppl, distance } in &self.caches {
            write!(
                out,
                "| {cache} | {bytes_a_token} | {bytes} | {:.4} +/- {:.4} |",
                ppl.value, ppl.std_error
            )?;
            match distance {
                None => writeln!(out, " | | |")?,
                Some(Distance { mean_kl: kl, max_kl, same_top: top }) => writeln!(
                    out,
                    " {:.6} +/- {:.6} | {max_kl:.6} | {:.3} +/- {:.3} % |",
                    kl.value,
                    kl.std_error,
                    100.0 * top.value,
                    100.0 * top.std_error
                )?,
            }
        }
        out.flush()
    }
}
