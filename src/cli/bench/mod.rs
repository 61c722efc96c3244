//! `sterna bench`: llama-bench's table. `measure.rs` runs the tests, `table.rs` prints the results.

mod measure;
mod table;

use std::str::FromStr;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::CliError;
use super::model_args::LoadArgs;
use super::speculation_args::{MtpArgs, probability};
use crate::backend::Profile;
use crate::engine::{EngineOptions, MtpDrafts};
use measure::{Measured, Sampling, StagesTime, Taken, Test, measure};
use table::{Format, Table};

/// Measures prefill and decode as llama-bench does.
///
/// Rows: `pp512` prefills 512 random tokens and picks the next one, `tg128` decodes 128 tokens greedily, as
/// `sterna run --temp 0` does; `pp512+tg128` is one after the other, and `@ d4096` starts with 4096 tokens in
/// the cache. With `--sampling default`, `tg128 sampled` decodes again at temperature 0.8 with top-k 40,
/// top-p 0.95 and min-p 0.05. With `--spec-type draft-mtp`, `tg128 mtp3` decodes again with drafts of up to 3
/// tokens. Each test is run once to warm up and then -r times; t/s is the mean over the
/// runs with its standard deviation. GB/s is the bandwidth at which weights and KV cache were read. LISTs are
/// comma-separated.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna bench -m model.gguf
  sterna bench -m model.gguf -p 512 -n 128 -t 1,2,4 -r 5
  sterna bench -m model.gguf -p 0 -n 128 -d 0,4096 -o json
  sterna bench -m model.gguf -p 0 -n 0 -pg 512,128 -o csv
  sterna bench -m model.gguf -p 0 -n 128 --spec-type draft-mtp --acceptance 0.8")]
pub struct BenchArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Prompt lengths; 0 skips the test
    #[arg(short = 'p', long, value_name = "LIST", value_delimiter = ',', default_value = "512")]
    #[arg(alias = "-npp")]
    n_prompt: Vec<usize>,
    /// Numbers of generated tokens; 0 skips the test
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', default_value = "128")]
    #[arg(alias = "-ntg")]
    n_gen: Vec<usize>,
    /// A prompt length and a number of tokens generated after it (repeatable; also -pg)
    #[arg(long, value_name = "PP,TG", value_parser = pair)]
    #[arg(alias = "-pg")]
    prompt_gen: Vec<(usize, usize)>,
    /// Tokens in the cache before each run
    #[arg(short = 'd', long, value_name = "LIST", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<usize>,
    /// Runs of each test
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Sampling of generated tokens
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Sampling::Greedy)]
    sampling: Sampling,
    #[command(flatten)]
    drafts: MtpArgs,
    /// Accept a drafted token with this probability, whatever the model picks: for files with random weights
    #[arg(long, value_name = "P", value_parser = probability)]
    acceptance: Option<f32>,
    /// Numbers of threads [default: physical cores]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// Print to stderr the time per kind of stage and weight type, and the bandwidth in decode. The host then
    /// waits for every step of a device. With =events, stages run one by one between CUDA events
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = PossibleValuesParser::new(["true", "events"]).try_map(|x| Profile::from_str(&x)))]
    profile: Option<Profile>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Format::Md)]
    output: Format,
}

impl BenchArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Any error from loading, running or writing.
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
            let device = self.load.device(self.profile)?;
            let options = EngineOptions {
                batch: self.load.batch_size.min(longest),
                ..self.load.options_on(device, Some(longest), threads)?
            };
            // A step has rows for a draft.
            let batch = options.batch.max(1 + self.drafts.max());
            let options = self.drafts.with_drafts(EngineOptions { batch, ..options })?;
            let threads = options.n_threads();
            let engine = self.load.load(&source, &options)?;
            let table = match &mut table {
                Some(table) => table,
                None => table.insert(Table::begin(self.output, &engine, source.name())?),
            };
            let drafts = match self.drafts.max() {
                0 => None,
                max => {
                    let acceptance = self.acceptance.map(f64::from);
                    Some(MtpDrafts { max, acceptance, ..MtpDrafts::new(&engine)? })
                }
            };
            for &test in &tests {
                let taken = measure(&engine, test, drafts, self.repetitions)?;
                let Taken { seconds, decode_bytes, accepted, stages } = taken;
                table.row(&Measured { test, threads, seconds, decode_bytes, accepted })?;
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
            for &(n_prompt, n_gen) in pairs.iter().filter(|pair| **pair != (0, 0)) {
                let greedy = Test { n_prompt, n_gen, n_depth, sampling: Sampling::Greedy, n_draft: 0 };
                tests.push(greedy);
                if n_gen > 0 && self.drafts.max() > 0 {
                    tests.push(Test { n_draft: self.drafts.max(), ..greedy });
                }
                if n_gen > 0 && self.sampling == Sampling::Default {
                    tests.push(Test { sampling: Sampling::Default, ..greedy });
                }
            }
        }
        tests
    }
}

/// Table of stages: calls, total, share and bandwidth, largest first.
fn profile_table(test: &str, stages: &[StagesTime]) -> String {
    let mut stages = stages.to_vec();
    stages.sort_by_key(|stage| std::cmp::Reverse(stage.time.nanoseconds));
    let all: u64 = stages.iter().map(|stage| stage.time.nanoseconds).sum();
    let mut table =
        format!("\n| stage of {test} | calls | total ms | share | GB/s |\n|---|---:|---:|---:|---:|\n");
    for StagesTime { kind, time, bytes } in stages {
        let (total, share) = (time.nanoseconds as f64, 100.0 * time.nanoseconds as f64 / all.max(1) as f64);
        let rate = bytes.filter(|bytes| *bytes > 0 && time.nanoseconds > 0);
        let rate = rate.map_or("-".into(), |bytes| format!("{:.2}", bytes as f64 / total));
        table += &format!("| {kind} | {} | {:.3} | {share:.1} % | {rate} |\n", time.calls, total / 1e6);
    }
    table + "\n"
}

/// Reads `PP,TG`.
fn pair(text: &str) -> Result<(usize, usize), String> {
    let want = || format!("want two numbers separated by a comma, as in 512,128; got `{text}`");
    let (prompt, generated) = text.split_once(',').ok_or_else(want)?;
    Ok((prompt.parse().map_err(|_| want())?, generated.parse().map_err(|_| want())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::StageTime;

    #[test]
    fn the_profile_has_the_largest_stage_first() {
        let stage = |kind: &str, calls, nanoseconds, bytes| {
            let time = StageTime { calls, nanoseconds };
            StagesTime { kind: kind.to_owned(), time, bytes: Some(bytes) }
        };
        let stages = [stage("sample", 2, 500_000, 0), stage("logits q6_k", 4, 1_500_000, 3_000_000)];
        let table = profile_table("tg2", &stages);
        let lines: Vec<_> = table.trim().lines().collect();
        assert_eq!(lines[0], "| stage of tg2 | calls | total ms | share | GB/s |");
        assert_eq!(lines[2], "| logits q6_k | 4 | 1.500 | 75.0 % | 2.00 |");
        assert_eq!(lines[3], "| sample | 2 | 0.500 | 25.0 % | - |");
    }

    #[test]
    fn pairs_as_they_are_typed() {
        assert_eq!(pair("512,128"), Ok((512, 128)));
        assert!(pair("512").is_err() && pair("a,b").is_err() && pair("1,2,3").is_err());
    }
}
