//! `sterna bench`: llama-bench's table.

use std::time::Instant;

use clap::Args;

use super::CliError;
use super::bench_table::{Format, Table};
use super::model_args::LoadArgs;
use crate::backend::StageTime;
use crate::engine::score::Mean;
use crate::engine::{Engine, EngineOptions, Sampler, SamplerOptions, Session, bandwidth};
use crate::program::sampling::uniform;

/// Read for the bandwidth column: several times the last cache of large machines.
const BANDWIDTH_BYTES: usize = 512 << 20;

/// Measures prefill and decode as llama-bench does.
///
/// Rows: `pp512` feeds 512 random tokens and picks the one that follows, `tg128` feeds a random token and then 127 times
/// the one that was picked, the most likely, as `sterna run --temp 0` does; `pp512+tg128` is one after the other, and `@ d4096` has 4096 tokens in the cache already. Each
/// is run once to warm up and then -r times; t/s is the mean over the runs with its standard deviation. The
/// bandwidth is bytes of weights and KV cache over time, and its share is of what a plain read of memory
/// reaches with the same threads, measured before the model is loaded. LISTs are divided by commas.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna bench -m model.gguf
  sterna bench -m model.gguf -p 512 -n 128 -t 1,2,4 -r 5
  sterna bench -m model.gguf -p 0 -n 128 -d 0,4096 -o json
  sterna bench -m model.gguf -p 0 -n 0 -pg 512,128 -o csv")]
pub struct BenchArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Prompt lengths; 0 is none
    #[arg(short = 'p', long, value_name = "LIST", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<usize>,
    /// Numbers of generated tokens; 0 is none
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<usize>,
    /// A prompt and then generated tokens (repeatable; also -pg)
    #[arg(long, value_name = "PP,TG", value_parser = pair)]
    prompt_gen: Vec<(usize, usize)>,
    /// Tokens in the cache before each run
    #[arg(short = 'd', long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<usize>,
    /// Runs of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Numbers of threads [default: physical cores]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// What each kind of stage takes of the device, on stderr; --backend wgpu alone. Runs wait for each step then
    #[arg(long)]
    profile: bool,
    /// How the result is written
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Md)]
    output: Format,
}

/// One row: what is fed on top of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens fed in batches.
    pub n_prompt: usize,
    /// Tokens fed one by one, each of them picked by the last step.
    pub n_gen: usize,
    /// Tokens in the cache before.
    pub n_depth: usize,
}

/// What one test took.
#[derive(Clone, Debug)]
pub struct Measured {
    /// What was run.
    pub test: Test,
    /// Threads of the backend.
    pub threads: usize,
    /// Seconds of each run.
    pub seconds: Vec<f64>,
    /// Bytes that one run reads, where it has single-token steps alone.
    pub decode_bytes: Option<u64>,
    /// Bytes a second of a plain read with the same threads.
    pub read_bandwidth: f64,
}

impl Test {
    /// `pp512`, `tg128`, `pp512+tg128`, with ` @ d4096` behind.
    pub fn name(&self) -> String {
        let mut parts = Vec::new();
        if self.n_prompt > 0 {
            parts.push(format!("pp{}", self.n_prompt));
        }
        if self.n_gen > 0 {
            parts.push(format!("tg{}", self.n_gen));
        }
        let depth = if self.n_depth > 0 { format!(" @ d{}", self.n_depth) } else { String::new() };
        parts.join("+") + &depth
    }

    fn n_tokens(&self) -> usize {
        self.n_prompt + self.n_gen
    }
}

impl Measured {
    /// Tokens a second: mean over the runs and standard deviation of one run.
    pub fn rate(&self) -> (f64, f64) {
        let mut mean = Mean::default();
        self.seconds.iter().for_each(|seconds| mean.add(self.test.n_tokens() as f64 / seconds));
        // The error of the mean times sqrt(n) is the sample's standard deviation.
        (mean.mean(), mean.std_error() * (mean.n() as f64).sqrt())
    }

    /// Bytes a second that decoding read, the mean over the runs.
    pub fn bandwidth(&self) -> Option<f64> {
        let bytes = self.decode_bytes? as f64;
        let mut mean = Mean::default();
        self.seconds.iter().for_each(|seconds| mean.add(bytes / seconds));
        Some(mean.mean())
    }
}

impl BenchArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Whatever loading, running or writing returns.
    pub fn run(self) -> Result<(), CliError> {
        let source = self.load.source()?;
        let tests = self.tests();
        let longest = tests.iter().map(|test| test.n_depth.saturating_add(test.n_tokens())).max();
        let longest = longest.ok_or("nothing to measure: -p, -n and -pg are all 0")?;
        let threads: Vec<Option<usize>> = match self.threads.as_slice() {
            [] => vec![None],
            list => list.iter().map(|&n| Some(usize::from(n))).collect(),
        };
        let mut table = None;
        for threads in threads {
            let mut options = EngineOptions {
                batch: self.load.batch_size.min(longest),
                ..self.load.options(Some(longest), threads)
            };
            if self.profile {
                options.device = options.device.with("profile", "true");
            }
            let threads = options.n_threads();
            let read_bandwidth = bandwidth::measure(threads, BANDWIDTH_BYTES);
            let engine = self.load.load(&source, &options)?;
            let table = match &mut table {
                Some(table) => table,
                None => table.insert(Table::begin(self.output, &engine, source.name())?),
            };
            for &test in &tests {
                let Taken { seconds, decode_bytes, stages } = measure(&engine, test, self.repetitions)?;
                table.row(&Measured { test, threads, seconds, decode_bytes, read_bandwidth })?;
                if let Some(stages) = stages {
                    eprint!("{}", profile_table(&test.name(), &stages));
                }
            }
        }
        Ok(table.map_or(Ok(()), Table::end)?)
    }

    fn tests(&self) -> Vec<Test> {
        let prompts = self.n_prompt.iter().map(|&n| (n, 0));
        let gens = self.n_gen.iter().map(|&n| (0, n));
        let pairs: Vec<(usize, usize)> = prompts.chain(gens).chain(self.prompt_gen.iter().copied()).collect();
        let mut tests = Vec::new();
        for &n_depth in &self.n_depth {
            let tested = pairs.iter().filter(|pair| **pair != (0, 0));
            tests.extend(tested.map(|&(n_prompt, n_gen)| Test { n_prompt, n_gen, n_depth }));
        }
        tests
    }
}

/// Kinds of stages, and what they took.
type Stages = Vec<(&'static str, StageTime)>;

/// What a test took.
struct Taken {
    /// Of each run.
    seconds: Vec<f64>,
    /// That one run of single-token steps reads.
    decode_bytes: Option<u64>,
    /// Of all runs, where they are timed.
    stages: Option<Stages>,
}

fn measure(engine: &Engine, test: Test, repetitions: u32) -> Result<Taken, CliError> {
    let mut session = engine.session()?;
    let n_vocab = engine.hyper().n_vocab;
    let token = |at: usize| ((uniform(0, at as u64) * n_vocab as f64) as u32).min(n_vocab as u32 - 1);
    let depth: Vec<u32> = (0..test.n_depth).map(token).collect();
    let prompt: Vec<u32> = (test.n_depth..test.n_depth + test.n_prompt).map(token).collect();
    session.feed_quietly(&depth)?;

    // Warm-up: the prompt once, and two single steps, the second of which may be queued ahead.
    run(&mut session, Test { n_gen: test.n_gen.min(2), ..test }, &prompt, token(0))?;
    let before = engine.stage_times();
    let mut seconds = Vec::new();
    for _ in 0..repetitions {
        let start = Instant::now();
        run(&mut session, test, &prompt, token(0))?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let steps = test.n_depth..test.n_depth + test.n_gen;
    let decode_bytes =
        (test.n_prompt == 0).then(|| steps.map(|position| engine.decode_cost(position).bytes()).sum());
    let taken = before.zip(engine.stage_times());
    let stages = taken.map(|(before, after)| {
        let mut kinds = Stages::new();
        for ((_, stage), (before, after)) in engine.program().stages.iter().zip(before.iter().zip(after)) {
            let at = kinds.iter().position(|(kind, _)| *kind == stage.name()).unwrap_or_else(|| {
                kinds.push((stage.name(), StageTime::default()));
                kinds.len() - 1
            });
            kinds[at].1.calls += after.calls - before.calls;
            kinds[at].1.nanoseconds += after.nanoseconds - before.nanoseconds;
        }
        kinds
    });
    Ok(Taken { seconds, decode_bytes, stages })
}

/// Stage, calls, total and share, largest first.
fn profile_table(test: &str, stages: &Stages) -> String {
    let mut stages = stages.clone();
    stages.sort_by_key(|(_, time)| std::cmp::Reverse(time.nanoseconds));
    let all: u64 = stages.iter().map(|(_, time)| time.nanoseconds).sum();
    let mut table = format!("\n| stage of {test} | calls | total ms | share |\n|---|---:|---:|---:|\n");
    for (kind, time) in stages {
        let (total, share) = (time.nanoseconds as f64, 100.0 * time.nanoseconds as f64 / all.max(1) as f64);
        table += &format!("| {kind} | {} | {:.3} | {share:.1} % |\n", time.calls, total / 1e6);
    }
    table + "\n"
}

/// One run: the prompt, and behind it, or behind a token of its own, the generated tokens.
fn run(session: &mut Session, test: Test, prompt: &[u32], token: u32) -> Result<(), CliError> {
    session.cut_back(test.n_depth);
    let mut sampler = Sampler::new(SamplerOptions::greedy())?;
    match prompt {
        [] => session.feed_and_pick_many(&[token], test.n_gen, &mut sampler)?,
        _ => session.feed_and_pick_many(prompt, 1 + test.n_gen, &mut sampler)?,
    };
    Ok(())
}

/// Reads `PP,TG`.
fn pair(text: &str) -> Result<(usize, usize), String> {
    let want = || format!("want two numbers divided by a comma, as in 512,128; got `{text}`");
    let (prompt, generated) = text.split_once(',').ok_or_else(want)?;
    Ok((prompt.parse().map_err(|_| want())?, generated.parse().map_err(|_| want())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_called_as_llama_bench_calls_them() {
        let name = |n_prompt, n_gen, n_depth| Test { n_prompt, n_gen, n_depth }.name();
        assert_eq!(name(512, 0, 0), "pp512");
        assert_eq!(name(0, 128, 4096), "tg128 @ d4096");
        assert_eq!(name(512, 128, 0), "pp512+tg128");
    }

    #[test]
    fn the_rate_is_the_mean_of_rates_with_the_samples_deviation() {
        let test = Test { n_prompt: 0, n_gen: 10, n_depth: 0 };
        let seconds = vec![1.0, 0.5];
        let measured = Measured { test, threads: 1, seconds, decode_bytes: Some(100), read_bandwidth: 1.0 };
        let (mean, deviation) = measured.rate();
        assert_eq!(mean, 15.0);
        assert!((deviation - 50f64.sqrt()).abs() < 1e-12);
        assert_eq!(measured.bandwidth(), Some(150.0));
    }

    #[test]
    fn the_profile_has_the_largest_stage_first() {
        let time = |calls, nanoseconds| StageTime { calls, nanoseconds };
        let table = profile_table("tg2", &vec![("embed", time(2, 500_000)), ("attend", time(4, 1_500_000))]);
        let lines: Vec<_> = table.trim().lines().collect();
        assert_eq!(lines[0], "| stage of tg2 | calls | total ms | share |");
        assert_eq!(lines[2..], ["| attend | 4 | 1.500 | 75.0 % |", "| embed | 2 | 0.500 | 25.0 % |"]);
    }

    #[test]
    fn pairs_as_they_are_typed() {
        assert_eq!(pair("512,128"), Ok((512, 128)));
        assert!(pair("512").is_err() && pair("a,b").is_err() && pair("1,2,3").is_err());
    }
}
