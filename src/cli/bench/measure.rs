//! Runs the tests of `sterna bench` and records their times.

use std::time::Instant;

use clap::ValueEnum;
use serde::Serialize;

use crate::backend::StageTime;
use crate::engine::{Engine, Error, MtpDrafts, Sampler, SamplerOptions, Session, Stats};
use crate::eval::score::Mean;
use crate::program::Program;
use crate::program::sampling::uniform;

/// Sampling methods of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sampling {
    /// The most likely token
    Greedy,
    /// Greedy, and also llama.cpp's default sampling
    Default,
}

/// One test: `n_prompt` and `n_gen` tokens on top of `n_depth` cached ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens fed in batches.
    pub n_prompt: usize,
    /// Tokens fed one at a time, each picked by the previous step.
    pub n_gen: usize,
    /// Tokens in the KV cache before the run.
    pub n_depth: usize,
    /// Sampling method.
    pub sampling: Sampling,
    /// Maximum tokens of a draft by the MTP block; 0 for none.
    pub n_draft: usize,
}

/// Times of one test.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The test that was run.
    pub test: Test,
    /// Threads of the backend.
    pub threads: usize,
    /// Seconds of each run.
    pub seconds: Vec<f64>,
    /// Bytes that one run reads, if it consists only of single-token steps.
    pub decode_bytes: Option<u64>,
    /// Share of drafted tokens that were accepted, if any were drafted.
    pub accepted: Option<f64>,
}

impl Test {
    /// `pp512`, `tg128`, `pp512+tg128`, followed by ` mtp3`, ` sampled` and ` @ d4096` where they apply.
    pub fn name(&self) -> String {
        let mut parts = Vec::new();
        if self.n_prompt > 0 {
            parts.push(format!("pp{}", self.n_prompt));
        }
        if self.n_gen > 0 {
            parts.push(format!("tg{}", self.n_gen));
        }
        let depth = if self.n_depth > 0 { format!(" @ d{}", self.n_depth) } else { String::new() };
        let sampled = if self.sampling == Sampling::Default { " sampled" } else { "" };
        let drafts = if self.n_draft > 0 { format!(" mtp{}", self.n_draft) } else { String::new() };
        parts.join("+") + &drafts + sampled + &depth
    }

    /// Number of tokens that a run feeds or generates.
    pub fn n_tokens(&self) -> usize {
        self.n_prompt + self.n_gen
    }
}

impl Measured {
    /// Tokens per second: mean over the runs, and standard deviation of a single run.
    pub fn rate(&self) -> (f64, f64) {
        let mut mean = Mean::default();
        self.seconds.iter().for_each(|seconds| mean.add(self.test.n_tokens() as f64 / seconds));
        // The error of the mean times sqrt(n) is the sample's standard deviation.
        (mean.mean(), mean.std_error() * (mean.n() as f64).sqrt())
    }

    /// Bytes per second read while decoding, averaged over the runs.
    pub fn bandwidth(&self) -> Option<f64> {
        let bytes = self.decode_bytes? as f64;
        let mut mean = Mean::default();
        self.seconds.iter().for_each(|seconds| mean.add(bytes / seconds));
        Some(mean.mean())
    }
}

/// Time of all stages of one kind with the same weight types.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StagesTime {
    /// Kind and weight types: `ffn_in q4_k`.
    pub kind: String,
    /// Number of calls and total time.
    pub time: StageTime,
    /// Bytes read, if all steps were single-token steps.
    pub bytes: Option<u64>,
}

/// Result of a test.
pub struct Taken {
    /// Seconds of each run.
    pub seconds: Vec<f64>,
    /// Bytes that one run of single-token steps reads.
    pub decode_bytes: Option<u64>,
    /// Share of drafted tokens that were accepted, if any were drafted.
    pub accepted: Option<f64>,
    /// Times over all runs, if stages are timed.
    pub stages: Option<Vec<StagesTime>>,
}

/// Runs a test once to warm up, then `repetitions` times. `drafts` are those of a test with drafts.
///
/// # Errors
/// Any error of the engine.
pub fn measure(
    engine: &Engine,
    test: Test,
    drafts: Option<MtpDrafts>,
    repetitions: u32,
) -> Result<Taken, Error> {
    let drafts = drafts.filter(|_| test.n_draft > 0);
    let mut session = engine.session()?;
    let n_vocab = engine.hyper().n_vocab;
    let token = |at: usize| ((uniform(0, at as u64) * n_vocab as f64) as u32).min(n_vocab as u32 - 1);
    let depth: Vec<u32> = (0..test.n_depth).map(token).collect();
    let prompt: Vec<u32> = (test.n_depth..test.n_depth + test.n_prompt).map(token).collect();
    session.prefill(&depth)?;
    if test.sampling == Sampling::Default {
        let options = SamplerOptions { seed: Some(0), ..SamplerOptions::default() };
        session.set_sampler(Sampler::new(options)?);
    }

    // Warm-up: the prompt once, and two single steps, the second of which may be queued ahead.
    let mut stats = Stats::default();
    run(&mut session, Test { n_gen: test.n_gen.min(2), ..test }, &prompt, token(0), None)?;
    let mut all: Vec<StageTime> = Vec::new();
    let mut seconds = Vec::new();
    for _ in 0..repetitions {
        // Layers with a sliding window may have dropped positions: recompute them before the clock starts.
        session.cut_back(test.n_depth);
        session.prefill(&[])?;
        let before = engine.stage_times()?.unwrap_or_default();
        let start = Instant::now();
        stats.add(&run(&mut session, test, &prompt, token(0), drafts)?);
        seconds.push(start.elapsed().as_secs_f64());
        let after = engine.stage_times()?.unwrap_or_default();
        all.resize(after.len(), StageTime::default());
        for (sum, (before, after)) in all.iter_mut().zip(before.iter().zip(&after)) {
            sum.calls += after.calls - before.calls;
            sum.nanoseconds += after.nanoseconds - before.nanoseconds;
        }
    }
    let bytes = (test.n_prompt == 0 && test.n_draft == 0).then(|| {
        let mut of_stages = vec![0; engine.program().stages.len()];
        for position in test.n_depth..test.n_depth + test.n_gen {
            let costs = engine.decode_costs(position);
            of_stages.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost.bytes());
        }
        of_stages
    });
    let decode_bytes = bytes.as_ref().map(|of_stages| of_stages.iter().sum());
    let stages = (!all.is_empty()).then(|| by_kind(engine.program(), &all, bytes.as_deref(), repetitions));
    let n_drafted = stats.drafted_tokens;
    let accepted = (n_drafted > 0).then(|| stats.accepted_tokens as f64 / n_drafted as f64);
    Ok(Taken { seconds, decode_bytes, accepted, stages })
}

/// Sums the times of stages of the same kind with the same weight types. `bytes` are those of one run.
fn by_kind(p: &Program, times: &[StageTime], bytes: Option<&[u64]>, runs: u32) -> Vec<StagesTime> {
    let mut kinds: Vec<StagesTime> = Vec::new();
    for (i, ((_, stage), time)) in p.stages.iter().zip(times).enumerate() {
        let mut words = vec![stage.name()];
        for linear in stage.linears().1 {
            let ty = p.weight_decl(linear.w).ty.name();
            if !words.contains(&ty) {
                words.push(ty);
            }
        }
        let kind = words.join(" ");
        let at = kinds.iter().position(|known| known.kind == kind).unwrap_or_else(|| {
            kinds.push(StagesTime { kind, bytes: bytes.map(|_| 0), ..StagesTime::default() });
            kinds.len() - 1
        });
        let sum = &mut kinds[at];
        sum.time.calls += time.calls;
        sum.time.nanoseconds += time.nanoseconds;
        sum.bytes = sum.bytes.zip(bytes).map(|(sum, bytes)| sum + u64::from(runs) * bytes[i]);
    }
    kinds
}

/// One run: the prompt, or a single token, then the generated tokens. Returns the counters of drafts.
fn run(
    session: &mut Session,
    test: Test,
    prompt: &[u32],
    token: u32,
    drafts: Option<MtpDrafts>,
) -> Result<Stats, Error> {
    session.cut_back(test.n_depth);
    let (fed, n) = if prompt.is_empty() { (&[token][..], test.n_gen) } else { (prompt, 1 + test.n_gen) };
    match drafts {
        Some(drafts) => session.decode_drafted(fed, n, &drafts),
        None => session.decode_many(fed, n).map(|_| Stats::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_called_as_llama_bench_calls_them() {
        let name = |n_prompt, n_gen, n_depth, sampling| {
            Test { n_prompt, n_gen, n_depth, sampling, n_draft: 0 }.name()
        };
        assert_eq!(name(512, 0, 0, Sampling::Greedy), "pp512");
        assert_eq!(name(0, 128, 4096, Sampling::Greedy), "tg128 @ d4096");
        assert_eq!(name(0, 128, 4096, Sampling::Default), "tg128 sampled @ d4096");
        assert_eq!(name(512, 128, 0, Sampling::Greedy), "pp512+tg128");
        let drafted = Test { n_prompt: 0, n_gen: 8, n_depth: 0, sampling: Sampling::Greedy, n_draft: 3 };
        assert_eq!(drafted.name(), "tg8 mtp3");
    }

    #[test]
    fn the_rate_is_the_mean_of_rates_with_the_samples_deviation() {
        let test = Test { n_prompt: 0, n_gen: 10, n_depth: 0, sampling: Sampling::Greedy, n_draft: 0 };
        let seconds = vec![1.0, 0.5];
        let measured = Measured { test, threads: 1, seconds, decode_bytes: Some(100), accepted: None };
        let (mean, deviation) = measured.rate();
        assert_eq!(mean, 15.0);
        assert!((deviation - 50f64.sqrt()).abs() < 1e-12);
        assert_eq!(measured.bandwidth(), Some(150.0));
    }
}
