//! `sterna batched-bench`: llama-batched-bench's table.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::CliError;
use super::model_args::ModelArgs;
use crate::engine::{
    AdapterScale, Batch, BatchOptions, Engine, EngineOptions, Error, Event, GenerateOptions, Request,
    SamplerOptions, SeqId,
};
use crate::program::sampling::uniform;

/// Measures prefill and decode of several sequences at a time, as llama-batched-bench does.
///
/// Each of B prompts of PP tokens is prefilled, then each sequence decodes TG tokens greedily. S_PP and S_TG
/// are tokens per second over all sequences, N_KV the positions in the KV cache at the end. LISTs are
/// comma-separated; every combination is measured.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna batched-bench -m model.gguf -npp 128,256 -ntg 128 -npl 1,2,4,8
  sterna batched-bench -m model.gguf -npp 1024 -ntg 64 -npl 16 -pps
  sterna batched-bench -m model.gguf -npp 64 -ntg 64 -npl 4 --arriving 2048
  sterna batched-bench -m model.gguf -npp 8 -ntg 64 -npl 8 --lora a.gguf,b.gguf --lora-each")]
pub struct BatchedBenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of each prompt (also -npp)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128")]
    #[arg(value_parser = at_least_one)]
    n_prompt: Vec<usize>,
    /// Tokens that each sequence decodes (also -ntg)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "128")]
    #[arg(value_parser = at_least_one)]
    n_gen: Vec<usize>,
    /// Numbers of sequences (also -npl)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8")]
    #[arg(value_parser = at_least_one)]
    #[arg(alias = "-npl")]
    n_parallel: Vec<usize>,
    /// All sequences share one prompt, which is computed once (also -pps)
    #[arg(long)]
    #[arg(alias = "-pps")]
    prompt_shared: bool,
    /// Also add a prompt of N tokens while the sequences decode, and print to stderr how long the sequences
    /// waited for their next token
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    arriving: Option<usize>,
    /// Measure without adapters, and print to stderr how much longer a step takes in which each sequence uses
    /// one of the adapters of --lora, in turn
    #[arg(long)]
    lora_each: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Md)]
    output_format: Format,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// llama-batched-bench's Markdown table
    Md,
    /// One JSON object per line
    Jsonl,
}

/// One table row; the fields are named as in llama-batched-bench's JSON.
#[derive(Clone, Copy, Debug, Serialize)]
struct Measured {
    is_pp_shared: bool,
    n_threads: usize,
    pp: usize,
    tg: usize,
    pl: usize,
    n_kv: usize,
    t_pp: f64,
    speed_pp: f64,
    t_tg: f64,
    speed_tg: f64,
    t: f64,
    speed: f64,
}

impl Measured {
    fn of(
        pp: usize,
        tg: usize,
        pl: usize,
        is_pp_shared: bool,
        times: [Duration; 2],
        n_threads: usize,
    ) -> Self {
        let [t_pp, t_tg] = times.map(|time| time.as_secs_f64());
        let n_prompt = if is_pp_shared { pp } else { pl * pp };
        let n_kv = n_prompt + pl * tg;
        let t = t_pp + t_tg;
        let (speed_pp, speed_tg) = (n_prompt as f64 / t_pp, (pl * tg) as f64 / t_tg);
        let speed = n_kv as f64 / t;
        Self { is_pp_shared, n_threads, pp, tg, pl, n_kv, t_pp, speed_pp, t_tg, speed_tg, t, speed }
    }

    fn line(&self) -> String {
        let Self { pp, tg, pl, n_kv, t_pp, speed_pp, t_tg, speed_tg, t, speed, .. } = self;
        format!(
            "|{pp:6} | {tg:6} | {pl:4} | {n_kv:6} | {t_pp:8.3} | {speed_pp:8.2} | {t_tg:8.3} | \
             {speed_tg:8.2} | \
             {t:8.3} | {speed:8.2} |"
        )
    }
}

const HEAD: &str = "\
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|";

impl BatchedBenchArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from loading, running or writing.
    pub fn run(self) -> Result<(), CliError> {
        let most = |list: &[usize]| list.iter().copied().max().unwrap_or(1);
        let (pp, tg, pl) = (most(&self.n_prompt), most(&self.n_gen), most(&self.n_parallel));
        let n_seqs = pl.saturating_add(usize::from(self.arriving.is_some()));
        let n_ctx = pp.saturating_add(tg).max(self.arriving.unwrap_or(0)).saturating_add(1);
        let options = EngineOptions { n_seqs, ..self.model.options(Some(n_ctx))? };
        let n_adapters = options.adapters.len();
        if self.lora_each && (n_adapters == 0 || self.prompt_shared) {
            return Err("--lora-each needs adapters (--lora FILE), and prompts that are not shared".into());
        }
        let engine = self.model.load(&self.model.source()?, &options)?;
        let mut out = io::stdout().lock();
        if self.output_format == Format::Md {
            writeln!(out, "{HEAD}")?;
        }
        // The first steps load the weights into memory.
        let prompts = if self.prompt_shared { Prompts::Shared } else { Prompts::Own };
        let plain = if self.lora_each { Prompts::Adapted(0) } else { prompts };
        measure(&engine, 8, 2, 1, plain)?;
        for &pp in &self.n_prompt {
            for &tg in &self.n_gen {
                for &pl in &self.n_parallel {
                    let times = measure(&engine, pp, tg, pl, plain)?;
                    let row = Measured::of(pp, tg, pl, self.prompt_shared, times, engine.threads());
                    match self.output_format {
                        Format::Md => writeln!(out, "{}", row.line())?,
                        Format::Jsonl => writeln!(out, "{}", serde_json::to_string(&row)?)?,
                    }
                    out.flush()?;
                    if self.lora_each {
                        eprintln!("{}", adapted(&engine, pp, tg, pl, n_adapters)?);
                    }
                    if let Some(n) = self.arriving {
                        eprintln!("{}", arrive(&engine, pp, pl, n)?);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Prompts of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prompts {
    /// One for all sequences.
    Shared,
    /// One per sequence.
    Own,
    /// One per sequence, each with one of this number of adapters, in turn, or without any for 0.
    Adapted(usize),
}

/// Decodes without adapters and with an adapter per sequence, three times in turns, and compares the medians.
fn adapted(engine: &Engine, pp: usize, tg: usize, pl: usize, n: usize) -> Result<String, CliError> {
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..3 {
        for (of, n) in seconds.iter_mut().zip([0, n]) {
            of.push(measure(engine, pp, tg, pl, Prompts::Adapted(n))?[1].as_secs_f64());
        }
    }
    let [plain, with] = seconds.map(|mut of| {
        of.sort_by(f64::total_cmp);
        1e3 * of[1] / tg as f64
    });
    let ratio = with / plain;
    Ok(format!(
        "adapters: a step of {pl} sequences with {} adapters takes {with:.2} ms, {plain:.2} ms without: \
         {ratio:.2} times",
        n.min(pl)
    ))
}

/// Time of the prefills, each with its first generated token, and time of `tg` further tokens per sequence.
fn measure(
    engine: &Engine,
    pp: usize,
    tg: usize,
    pl: usize,
    prompts: Prompts,
) -> Result<[Duration; 2], CliError> {
    let options = BatchOptions { prompts_first: true, prefix_cache: false, ..BatchOptions::default() };
    let mut batch = engine.batch(options)?;
    add(&mut batch, pp, tg + 1, pl, prompts)?;
    let (begun, mut n_first) = (Instant::now(), 0);
    while n_first < pl {
        n_first += step(&mut batch)?.len();
    }
    let prompts = begun.elapsed();
    while !batch.is_idle() {
        step(&mut batch)?;
    }
    Ok([prompts, begun.elapsed() - prompts])
}

/// The events of one step. Returns the error of a sequence that failed: it would distort the measurement.
fn step(batch: &mut Batch) -> Result<Vec<(SeqId, Event)>, CliError> {
    let mut events = batch.step()?;
    match events.iter_mut().find_map(|(_, event)| event.fault.take()) {
        Some(fault) => Err(Error::from(fault).into()),
        None => Ok(events),
    }
}

/// Adds a prompt of `n` tokens while `pl` sequences decode.
fn arrive(engine: &Engine, pp: usize, pl: usize, n: usize) -> Result<String, CliError> {
    let mut batch = engine.batch(BatchOptions { prefix_cache: false, ..BatchOptions::default() })?;
    let room = engine.n_ctx() - pp;
    add(&mut batch, pp, room, pl, Prompts::Own)?;
    let mut alone = Vec::new();
    while alone.len() < 8 {
        let begun = Instant::now();
        if step(&mut batch)?.len() == pl {
            alone.push(begun.elapsed());
        }
    }
    let id = batch.add(&Request::new(tokens(pl, n), greedy(1)))?[0];
    let (mut during, mut gaps, mut last) = (Vec::new(), Vec::new(), Instant::now());
    loop {
        let begun = Instant::now();
        let events = step(&mut batch)?;
        during.push(begun.elapsed());
        if events.iter().any(|(of, _)| *of != id) {
            gaps.push(last.elapsed());
            last = Instant::now();
        }
        if events.iter().any(|(of, event)| *of == id && event.end.is_some()) || gaps.len() + 9 > room {
            break;
        }
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times.get(times.len() / 2).map_or(0.0, |time| 1e3 * time.as_secs_f64())
    };
    let longest = gaps.iter().max().map_or(0.0, |gap| 1e3 * gap.as_secs_f64());
    let (n_steps, during) = (during.len(), median(&mut during));
    Ok(format!(
        "arriving: {n} tokens in {n_steps} steps along with {pl} sequences: longest gap between two tokens \
         {longest:.1} ms, a step \
         {during:.1} ms, {:.2} times; a step before {:.1} ms",
        longest / during,
        median(&mut alone)
    ))
}

fn add(batch: &mut Batch, pp: usize, max_tokens: usize, pl: usize, prompts: Prompts) -> Result<(), CliError> {
    if prompts == Prompts::Shared {
        batch.add(&Request { n: pl, ..Request::new(tokens(0, pp), greedy(max_tokens)) })?;
        return Ok(());
    }
    for i in 0..pl {
        let adapters = match prompts {
            Prompts::Adapted(0) => Some(Vec::new()),
            Prompts::Adapted(n) => Some(vec![AdapterScale { adapter: (i % n) as u32, scale: 1.0 }]),
            Prompts::Shared | Prompts::Own => None,
        };
        batch.add(&Request { adapters, ..Request::new(tokens(i, pp), greedy(max_tokens)) })?;
    }
    Ok(())
}

fn greedy(max_tokens: usize) -> GenerateOptions {
    let (sampler, max_tokens) = (SamplerOptions::greedy(), Some(max_tokens));
    GenerateOptions { sampler, max_tokens, past_eos: true, ..GenerateOptions::default() }
}

/// `n` tokens of prompt `i`, drawn from the first 256 ids, which exist in every vocabulary.
fn tokens(i: usize, n: usize) -> Vec<u32> {
    (0..n).map(|at| (uniform(i as u64, at as u64) * 256.0) as u32).collect()
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("want a number of at least 1".into()),
        Ok(n) => Ok(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_count_as_llama_batched_bench_counts() {
        let times = [Duration::from_millis(500), Duration::from_millis(2000)];
        let row = Measured::of(128, 64, 4, false, times, 2);
        assert_eq!((row.n_kv, row.speed_pp, row.speed_tg, row.speed), (768, 1024.0, 128.0, 307.2));
        let shared = Measured::of(128, 64, 4, true, times, 2);
        assert_eq!((shared.n_kv, shared.speed_pp), (384, 256.0));
        let widths = |line: &str| line.split('|').map(str::len).collect::<Vec<_>>();
        assert_eq!(widths(&row.line()), widths(HEAD.lines().next().unwrap()));
    }
}
