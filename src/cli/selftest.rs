//! `sterna selftest`: whether a backend computes on this machine what the CPU does.

use std::io::{self, Write};
use std::ops::ControlFlow;

use clap::Args;
use ggml_types::{KvCodec, KvSide, kv, kv_by_name, kv_on};

use super::CliError;
use super::model_args::device_options;
use crate::backend::{self, Backend, BackendError, Exec};
use crate::gguf::Gguf;
use crate::model::{Hyper, Model, Options};
use crate::program::{Buf, KvWindow, Limits, PAGE, PageTable, Row, RowsOf, Sampling, Stage, Step};
use crate::synth::{Preset, Spec, Synth};

/// Runs models of random weights stage by stage on a backend and on the CPU, and compares every buffer.
///
/// Both start every stage from the same values, so the first stage that goes wrong is the one that is named.
/// A row of the table is one stage over steps of so many rows: the largest difference of any of its outputs
/// from the CPU's, relative to the largest of them, and how large it may be. Every KV cache that the backend
/// has takes its turn.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna selftest --backend cuda")]
pub struct SelftestArgs {
    /// What is tested
    #[arg(long, value_name = "NAME", default_value = "auto")]
    backend: String,
    /// Which device of it: a number of `sterna devices`, or a part of a name
    #[arg(long, value_name = "N|NAME")]
    device: Option<String>,
    /// How wgpu multiplies int8 activations: auto, packed (four at a time), floats [default: auto]
    #[arg(long, value_name = "HOW")]
    int8: Option<String>,
    /// Leaves out the layer of real size, which takes longest
    #[arg(long)]
    small: bool,
}

/// Rows of the steps, in order: single ones, a few, many, and single ones again. Together they are so many
/// positions that caches with a window encode two pages and read them.
const STEPS: &[usize] = &[1, 1, 7, 70, 1, 70, 33, 70, 1, 33, 1];

/// A model to be run: preset, head, and what is changed of its shape.
#[derive(Clone, Copy)]
struct Subject {
    preset: &'static str,
    head: &'static str,
    kv: &'static str,
    n_layers: usize,
    n_vocab: usize,
}

/// Every type of a head; one layer of real size.
const SUBJECTS: &[Subject] = &[
    Subject { preset: "tiny", head: "q8_0", kv: "f32", n_layers: 2, n_vocab: 640 },
    Subject { preset: "tiny", head: "q6_k", kv: "f16", n_layers: 2, n_vocab: 640 },
    Subject { preset: "bitnet-2b-4t", head: "f16", kv: "f16", n_layers: 1, n_vocab: 640 },
];

/// An int8 rounding that flips moves a product by at most 1/127 of one input's share; a few of them may flip
/// where a norm differs in its last place.
const TOLERANCE: f32 = 2e-3;

/// Of attention over a cache of codes. CUDA rounds queries to 255 steps and what codes stand for to bytes,
/// which is 7e-3 of the largest output here. Where a key or value differs in its last place, it may get the
/// neighbouring code besides; each side reads its own cache.
const TOLERANCE_OF_CODES: f32 = 2e-2;

/// How far a stage may be off.
fn tolerance(stage: &str, kv: &str) -> f32 {
    let of_codes = kv_by_name(kv).is_some_and(|codec| codec.rotates());
    if stage == "attend" && of_codes { TOLERANCE_OF_CODES } else { TOLERANCE }
}

impl SelftestArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Where the backend does not start, or differs from the CPU.
    pub fn run(self) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        let mut wrong = 0;
        let of_codec = |kv: &&'static dyn KvCodec| Subject {
            preset: "tiny",
            head: "f16",
            kv: kv.name(),
            n_layers: 2,
            n_vocab: 640,
        };
        let others = if self.small { &SUBJECTS[..SUBJECTS.len() - 1] } else { SUBJECTS };
        let subjects: Vec<_> = kv::REGISTRY.iter().map(of_codec).chain(others.iter().copied()).collect();
        for (i, subject) in subjects.iter().enumerate() {
            let how = device_options(self.device.as_deref(), self.int8.as_deref());
            let mut tested = backend::open_on(&self.backend, backend::physical_cores(), &how)?;
            let mut cpu = backend::open("cpu", backend::physical_cores())?;
            if i == 0 {
                writeln!(out, "{}: {}", tested.name(), tested.device())?;
                writeln!(out, "| model | stage | rows | largest difference | at most | |")?;
                writeln!(out, "|---|---|---:|---:|---:|---|")?;
            }
            let model = subject.model()?;
            let Subject { preset, head, kv, .. } = subject;
            if let Err(BackendError::Missing { missing, .. }) = tested.plan(&model.program) {
                let missing = missing.join(", ");
                writeln!(out, "| {preset}, head {head}, KV {kv} | | | | | not there: {missing} |")?;
                continue;
            }
            for Line { stage, rows, difference } in compare((&model, &mut *tested), (&model, &mut *cpu))? {
                let most = tolerance(stage, kv);
                let verdict = if difference <= most { "ok" } else { "WRONG" };
                wrong += usize::from(verdict != "ok");
                writeln!(
                    out,
                    "| {preset}, head {head}, KV {kv} | {stage} | {rows} | {difference:.1e} | {most:.0e} | \
                     {verdict} |"
                )?;
            }
            out.flush()?;
        }
        match wrong {
            0 => Ok(writeln!(out, "every stage computes what the CPU does")?),
            _ => Err(format!("{wrong} rows of the table are wrong").into()),
        }
    }
}

impl Subject {
    fn model(&self) -> Result<Model, CliError> {
        let preset = Preset::by_name(self.preset)?;
        let spec =
            Spec { n_layers: self.n_layers, n_vocab: self.n_vocab, ..preset.spec(None, Some(self.head), 7)? };
        let mut bytes = Vec::new();
        Synth::new(&spec)?.write(&mut bytes, |_| ControlFlow::Continue(()))?;
        let gguf = Gguf::from_bytes(bytes.into())?;
        let most = STEPS.iter().copied().max().unwrap_or(1);
        let pages = STEPS.iter().sum::<usize>().div_ceil(PAGE);
        let k = kv_by_name(self.kv).ok_or("no such KV codec")?;
        let exact_pages = if k.windowed() { pages } else { 0 };
        let limits = Limits { rows: most, outputs: most, seqs: 1, pages, exact_pages };
        let hyper = Hyper::read(gguf.metadata(), self.n_vocab)?;
        Ok(Model::build(
            &gguf,
            hyper,
            &Options { limits, k, v: kv_on(KvSide::Values, k), window: KvWindow::default() },
        )?)
    }
}

/// One row of the table.
struct Line {
    stage: &'static str,
    rows: usize,
    difference: f32,
}

/// A model on a backend, and the same on the CPU.
fn compare(
    tested: (&Model, &mut dyn Backend),
    on_cpu: (&Model, &mut dyn Backend),
) -> Result<Vec<Line>, CliError> {
    let ((model, tested), (of_cpu, cpu)) = (tested, on_cpu);
    let program = &model.program;
    let (e, of_cpu) = (load(model, tested)?, load(of_cpu, cpu)?);
    let mut pages = PageTable::new(1, program.limits.pages);
    // Backwards, so that no page lies where its number in the sequence would put it.
    pages.seq_mut(0).extend((0..program.limits.pages as u32).rev());
    pages.exact_mut(0).extend((0..program.limits.exact_pages as u32).map(Some));

    let mut lines: Vec<Line> = Vec::new();
    let mut pos = 0;
    for &n in STEPS {
        let rows: Vec<Row> = (pos..pos + n)
            .map(|pos| Row { token: (pos * 37 % 600) as u32, pos: pos as u32, seq: 0, logits: true })
            .collect();
        pos += n;
        let sampling = vec![Some(Sampling::GREEDY); n];
        let step = Step { rows: &rows, pages: &pages, sampling: &sampling };
        for (i, (_, stage)) in program.stages.iter().enumerate() {
            tested.run_stages(e, i..i + 1, &step)?;
            cpu.run_stages(of_cpu, i..i + 1, &step)?;
            let mut difference = 0.0_f32;
            for (b, decl) in program.bufs.iter().enumerate() {
                let buf = Buf(b as u32);
                let n_rows = if decl.rows == RowsOf::Step { n } else { step.n_outputs() };
                let [mut got, mut want] = [(); 2].map(|()| vec![0.0; n_rows * decl.cols]);
                tested.read(e, buf, 0, &mut got)?;
                cpu.read(of_cpu, buf, 0, &mut want)?;
                difference = difference.max(relative(&got, &want));
                tested.write(e, buf, 0, &want)?;
            }
            if let Stage::Sample(_) = stage {
                let [mut got, mut want] = [(); 2].map(|()| vec![0; n]);
                tested.tokens(e, 0, &mut got)?;
                cpu.tokens(of_cpu, 0, &mut want)?;
                difference = if got == want { 0.0 } else { f32::INFINITY };
            }
            let stage = stage.name();
            match lines.iter_mut().find(|line| (line.stage, line.rows) == (stage, n)) {
                Some(line) => line.difference = line.difference.max(difference),
                None => lines.push(Line { stage, rows: n, difference }),
            }
        }
    }
    Ok(lines)
}

fn load(model: &Model, backend: &mut dyn Backend) -> Result<Exec, CliError> {
    let weights: Result<Vec<_>, _> = model.weights.iter().map(|w| backend.upload(w)).collect();
    Ok(backend.compile(&model.program, &weights?)?)
}

/// The largest difference, relative to the largest value; infinite where one side has no number.
fn relative(got: &[f32], want: &[f32]) -> f32 {
    let largest = want.iter().fold(f32::MIN_POSITIVE, |max, x| max.max(x.abs()));
    got.iter().zip(want).fold(0.0, |worst: f32, (a, b)| {
        let far = (a - b).abs() / largest;
        if far.is_nan() { f32::INFINITY } else { worst.max(far) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attention with a cache of another kind is farther off than a cache of codes may be.
    #[test]
    fn one_cache_is_not_taken_for_another() {
        for pair in [["q4_0", "q8_0"], ["turboquant", "turboquant-4"], ["tq3_0", "turboquant"]] {
            let models = pair.map(|kv| {
                Subject { preset: "tiny", head: "f16", kv, n_layers: 2, n_vocab: 640 }.model().unwrap()
            });
            let [mut tested, mut cpu] = [(); 2].map(|()| backend::open("cpu", 2).unwrap());
            let lines = compare((&models[0], &mut *tested), (&models[1], &mut *cpu)).unwrap();
            let of_attend = lines.iter().filter(|line| line.stage == "attend").map(|line| line.difference);
            let most = of_attend.fold(0.0, f32::max);
            assert!(most > 2.0 * TOLERANCE_OF_CODES, "{pair:?}: {most}");
        }
    }
}
