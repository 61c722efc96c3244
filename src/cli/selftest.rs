//! `sterna selftest`: compares a backend with the CPU backend on this machine.

use std::io::{self, Write};

use clap::Args;
use ggml_types::{KvCodec, kv};

use super::CliError;
use super::model_args::DeviceArgs;
use crate::backend::{self, Backend, BackendError};
use crate::selftest::{self, Line, Subject};

/// Tests a backend against the CPU on models of random weights, stage by stage.
///
/// Every buffer is compared after every stage. Then whole steps, each queued before the previous one has
/// ended, are compared with the same stages run one by one. Both backends start every stage from the same
/// values, so the first stage that fails is the one that is reported. A row of the table is one stage over
/// steps of n rows: the largest difference of its outputs from the CPU's, relative to the largest output, and
/// the allowed difference. Every KV cache type of the backend is tested.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna selftest --backend cuda")]
pub struct SelftestArgs {
    /// Backend to test
    #[arg(long, value_name = "NAME", default_value = "auto")]
    backend: String,
    #[command(flatten)]
    device: DeviceArgs,
    /// Leave out the layer of a real model's size, which takes longest
    #[arg(long)]
    small: bool,
    /// Run only the tests that a device must pass before its first model, with this KV cache type
    #[arg(long, value_name = "TYPE", num_args = 0..=1, default_missing_value = "f16")]
    #[arg(conflicts_with = "small")]
    quick: Option<&'static dyn KvCodec>,
}

/// Number of repetitions of whole steps.
const REPLAYS: usize = 8;

/// All cache types, a few output heads, experts, and one layer of a real model's size.
fn subjects(small: bool) -> Vec<Subject> {
    let of_codec = |codec: &&'static dyn KvCodec| Subject::of_codec("f16", *codec);
    let mut subjects: Vec<Subject> = kv::REGISTRY.iter().map(of_codec).collect();
    subjects.push(Subject::of_codec("q8_0", kv::F32));
    subjects.push(Subject::of_codec("q6_k", kv::F16));
    subjects.push(Subject { preset: "tiny-moe", ..Subject::of_codec("f16", kv::F16) });
    if !small {
        let tiny = Subject::of_codec("f16", kv::F16);
        subjects.push(Subject { preset: "bitnet-2b-4t", n_layers: 1, ..tiny });
    }
    subjects
}

impl SelftestArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If the backend does not start, or differs from the CPU.
    pub fn run(self) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        let device = self.device.options(&self.backend)?;
        let open = || device.open(backend::physical_cores());
        if let Some(codec) = self.quick {
            let Subject { k, v, .. } = Subject::of_codec("f16", codec);
            let mut tested = open()?;
            writeln!(out, "{}: {}", tested.name(), tested.device())?;
            return match selftest::check(&mut *tested, k, v)? {
                None => Ok(writeln!(out, "it computes the same as the CPU")?),
                Some(wrong) => Err(wrong.into()),
            };
        }
        let mut wrong = 0;
        for (i, subject) in subjects(self.small).iter().enumerate() {
            let mut tested = open()?;
            if i == 0 {
                writeln!(out, "{}: {}", tested.name(), tested.device())?;
                writeln!(out, "| model | stage | rows | largest difference | at most | |")?;
                writeln!(out, "|---|---|---:|---:|---:|---|")?;
            }
            wrong += table(&mut out, &subject.over(tested.n_devices()), &mut *tested)?;
            out.flush()?;
        }
        match wrong {
            0 => Ok(writeln!(out, "every stage computes the same as the CPU")?),
            _ => Err(format!("{wrong} rows of the table are wrong").into()),
        }
    }
}

/// Writes the rows of one model, and returns how many of them are wrong.
fn table(out: &mut impl Write, subject: &Subject, tested: &mut dyn Backend) -> Result<usize, CliError> {
    let Subject { preset, head, k, .. } = subject;
    let name = format!("{preset}, head {head}, KV {}", k.name());
    let model = subject.model()?;
    if let Err(BackendError::Missing { missing, .. }) = tested.plan(&model.program) {
        writeln!(out, "| {name} | | | | | not supported: {} |", missing.join(", "))?;
        return Ok(0);
    }
    let mut wrong = 0;
    for line in selftest::stages(subject, tested)? {
        let verdict = if line.is_right() { "ok" } else { "WRONG" };
        wrong += usize::from(!line.is_right());
        let Line { stage, rows, difference, most } = line;
        writeln!(out, "| {name} | {stage} | {rows} | {difference:.1e} | {most:.0e} | {verdict} |")?;
    }
    let differs = selftest::replay(&model, tested, REPLAYS)?;
    wrong += usize::from(differs.is_some());
    let verdict = differs.map_or("ok".into(), |what| format!("WRONG: {what}"));
    writeln!(out, "| {name} | whole steps, {REPLAYS} times | | | 0 | {verdict} |")?;
    Ok(wrong)
}
