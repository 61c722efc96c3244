//! `sterna kv-report`: the memory of each KV cache type, and its effect on the model's attention and next
//! token.
//!
//! [`eval`](crate::eval) measures, `table.rs` and `plot.rs` show the results.

mod plot;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use ggml_types::{KvCodec, kv};
use serde::Serialize;

use super::chunks::TextArgs;
use super::model_args::ModelArgs;
use super::names::with_flags;
use super::out_file::{Partial, go_on};
use super::source::Source;
use super::{CliError, report};
use crate::engine::{Engine, EngineOptions};
use crate::eval::needle::{self, AtDepth, Haystack};
use crate::eval::probe::Spread;
use crate::eval::score::Mean;
use crate::eval::{OUTPUTS, cache, perplexity};
use crate::program::{KvDecl, PAGE};

/// Compares KV cache types on a text.
///
/// The text is cut into chunks and scored as `sterna perplexity` does, with each cache type compared with the
/// one that --kv-cache-type names (f16 by default). Mean and maximum KL are the divergence of the next
/// token's distribution from that reference; `same top` is how often both have the same most likely token.
/// The attention KL is the divergence of the attention weights: the model's own queries against its own keys
/// as encoded by each cache type, averaged over layers, heads, and 16 rows of the second half of each chunk.
///
/// The second table describes keys and values layer by layer: the excess kurtosis of their elements (0 for a
/// normal distribution), the largest mean of a channel in standard deviations of that channel, and the length
/// of the first four vectors relative to the median.
///
/// The third table is a needle test: eight random tokens of the text are inserted at eleven depths. The first
/// four of one of these needles end the text, and the table shows how often each of the other four is the
/// most likely token, and the mean of ln p. The model need not be able to answer questions, but it must be
/// able to copy: otherwise it finds no needle with any cache.
///
/// Caches with a window (--kv-sinks, --kv-window) keep the first 64 positions and the latest 64 to 127 as
/// f16, so chunks should be much longer than that.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna kv-report -f text.txt -c 1024
  sterna kv-report -m model.gguf -f text.txt -c 4096 --chunks 4 --types turboquant,q8_0 --plot report.svg
  sterna kv-report -m model.gguf -f text.txt --kv-cache-type f32 --types f16 --json")]
pub struct KvReportArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Cache types to compare, comma-separated [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    types: Vec<&'static dyn KvCodec>,
    /// Chunks for the needle test; 0 skips it
    #[arg(long, value_name = "N", default_value_t = 4)]
    needles: usize,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
    /// Plot KL over bytes, and needles by depth, to this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// The report.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    /// Positions per chunk.
    n_ctx: usize,
    chunks: usize,
    /// Positions whose next token was scored.
    scored: u64,
    /// The first entry is the reference for the others.
    caches: Vec<Line>,
    layers: Vec<LayerLine>,
}

/// Results of one cache type.
#[derive(Debug, Serialize)]
struct Line {
    cache: String,
    /// Encoded bytes of the keys and values of all layers, per token.
    bytes_a_token: usize,
    /// Bytes of a sequence of `n_ctx` positions, including the exact pages of a window.
    bytes: u64,
    perplexity: Estimate,
    /// Distance from the reference; `None` for the reference itself.
    #[serde(flatten)]
    distance: Option<Distance>,
    /// One line per depth, if the needle test ran.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    needles: Vec<NeedleLine>,
}

#[derive(Debug, Serialize)]
struct Distance {
    attention_kl: Estimate,
    mean_kl: Estimate,
    max_kl: f64,
    /// Share of positions, 0 to 1.
    same_top: Estimate,
}

/// Needles at one depth.
#[derive(Debug, Serialize)]
struct NeedleLine {
    /// Depth in per cent of the text.
    depth: usize,
    /// Share of the needle tokens that were the most likely token, 0 to 1.
    retrieved: Estimate,
    /// Mean natural logarithm of the needle tokens' probability.
    log_prob: Estimate,
}

/// Statistics of one layer's vectors.
#[derive(Debug, Serialize)]
struct LayerLine {
    layer: usize,
    keys: SpreadLine,
    values: SpreadLine,
}

/// Means of a [`Spread`].
#[derive(Debug, Serialize)]
struct SpreadLine {
    kurtosis: f64,
    channel_mean: f64,
    sink_norm: f64,
}

impl NeedleLine {
    fn of((i, AtDepth { retrieved, log_prob }): (usize, &AtDepth)) -> Self {
        let (retrieved, log_prob) = (Estimate::of(retrieved), Estimate::of(log_prob));
        Self { depth: Haystack::depth(i), retrieved, log_prob }
    }
}

impl LayerLine {
    fn of((layer, (keys, values)): (usize, &(Spread, Spread))) -> Self {
        Self { layer, keys: SpreadLine::of(keys), values: SpreadLine::of(values) }
    }
}

impl SpreadLine {
    fn of(spread: &Spread) -> Self {
        let Spread { kurtosis, channel_mean, sink_norm } = spread;
        Self { kurtosis: kurtosis.mean(), channel_mean: channel_mean.mean(), sink_norm: sink_norm.mean() }
    }
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

    /// Estimate of `exp(mean)`.
    fn of_exp(mean: &Mean) -> Self {
        let value = mean.mean().exp();
        Self { value, std_error: value * mean.std_error() }
    }
}

impl KvReportArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from reading, loading or running; a text that is too short; a cache type that was named but
    /// cannot be used.
    pub fn run(self) -> Result<(), CliError> {
        let text = self.text.read()?;
        let asked = EngineOptions { outputs: OUTPUTS, ..self.model.options(Some(self.text.n_ctx()))? };
        let options = asked.with_cache([asked.cache_type_k, asked.cache_type_v]);
        let source = self.model.source()?;
        let base = self.model.load(&source, &options)?;
        let text = self.text.chunked(&text, &base)?;
        let partial = self.plot.as_deref().map(Partial::create).transpose()?;
        let cancel = Arc::new(AtomicBool::new(false));
        report::cancel_on_ctrl_c(&cancel)?;
        let go_on = || go_on(&cancel);

        let haystacks = needle::haystacks(&text, base.tokenizer()?, self.needles);
        if haystacks.is_empty() && self.needles > 0 {
            let least = Haystack::MIN_CTX;
            eprintln!("no needles: they need chunks of at least {least} tokens (--ctx-size)");
        }
        let (mut base_nll, mut lines, mut codecs) = (None, Vec::new(), Vec::new());
        let mut bases = bases(&base);
        for codec in self.codecs(&options) {
            let Some(engine) = self.open(&source, &asked.with_cache([codec; 2]))? else { continue };
            eprintln!("{} compared with {}", codec.name(), base_name(&base));
            let scores = cache::compare(&base, &engine, &text, go_on)?;
            let distance = Distance {
                attention_kl: Estimate::of(&Mean::default()),
                mean_kl: Estimate::of(&scores.kl),
                max_kl: scores.max_kl,
                same_top: Estimate::of(&scores.same_top),
            };
            codecs.push(codec);
            if codec.form().has_basis() {
                bases = self::bases(&engine);
            }
            let needles = needle::search(&engine, &haystacks, go_on)?;
            lines.push(line(codec.name().to_owned(), &engine, &scores.nll, Some(distance), needles));
            base_nll = Some(scores.base_nll);
        }
        let base_nll = base_nll.map_or_else(|| perplexity::mean_nll(&base, &text, go_on), Ok)?;
        eprintln!("needles and attention of {}", base_name(&base));
        let needles = needle::search(&base, &haystacks, go_on)?;
        let attention = cache::attention(&base, &asked, &text, options.cache_type_k, codecs, &bases, go_on)?;
        let distances = lines.iter_mut().filter_map(|line| line.distance.as_mut());
        distances.zip(&attention.kl).for_each(|(distance, kl)| distance.attention_kl = Estimate::of(kl));
        lines.insert(0, line(base_name(&base), &base, &base_nll, None, needles));
        let (n_ctx, chunks) = (text.n_ctx, text.n_chunks());
        let layers = attention.layers.iter().enumerate().map(LayerLine::of).collect();
        let report =
            Report { model: source.name(), n_ctx, chunks, scored: base_nll.n(), caches: lines, layers };
        if let (Some(partial), Some(path)) = (partial, &self.plot) {
            let written = partial.file()?.write_all(report.svg().as_bytes());
            written.map_err(|err| format!("{}: {err}", path.display()))?;
            partial.rename(path, true)?;
        }
        Ok(report.print(self.json)?)
    }

    /// The cache types to compare, without the reference.
    fn codecs(&self, options: &EngineOptions) -> Vec<&'static dyn KvCodec> {
        let base = [options.cache_type_k, options.cache_type_v];
        let all = || kv::REGISTRY.iter().copied().filter(|codec| codec.is_compared()).collect();
        let codecs = if self.types.is_empty() { all() } else { self.types.clone() };
        codecs.into_iter().filter(|codec| [*codec; 2] != base).collect()
    }

    /// Loads the model with a cache type. `None`, with a note, if that fails for a type that was not named.
    fn open(&self, source: &Source, options: &EngineOptions) -> Result<Option<Engine>, CliError> {
        match self.model.load(source, options) {
            Err(err) if self.types.is_empty() => {
                eprintln!("{} is left out: {}", options.cache_type_k.name(), with_flags(&*err));
                Ok(None)
            }
            loaded => loaded.map(Some),
        }
    }
}

/// Bases of an engine's keys.
fn bases(engine: &Engine) -> cache::Bases {
    engine.program().kvs.iter().map(|kv| kv.basis.clone()).collect()
}

/// Name of a cache: the type of the keys, and of the values if it differs.
fn base_name(engine: &Engine) -> String {
    match engine.program().kvs.first() {
        Some(kv) if kv.k.form() == kv.v.form() => kv.k.name().to_owned(),
        Some(kv) => format!("{}, {}", kv.k.name(), kv.v.name()),
        None => "none".to_owned(),
    }
}

fn line(
    cache: String,
    engine: &Engine,
    nll: &Mean,
    distance: Option<Distance>,
    needles: Vec<AtDepth>,
) -> Line {
    let of_page = |kv: &KvDecl| {
        let bytes = kv.codecs().map(|(codec, side)| codec.page_bytes(side, kv.head_dim, PAGE));
        kv.n_kv_heads * bytes.sum::<Result<usize, _>>().expect("the engine has it")
    };
    let of_pages = engine.program().kvs.iter().map(of_page).sum::<usize>();
    let (bytes_a_token, bytes) = (of_pages.div_ceil(PAGE), engine.plan().kv_bytes);
    let needles = needles.iter().enumerate().map(NeedleLine::of).collect();
    Line { cache, bytes_a_token, bytes, perplexity: Estimate::of_exp(nll), distance, needles }
}

impl Report {
    fn print(&self, json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
        } else {
            self.tables(&mut out)?;
        }
        out.flush()
    }
}
