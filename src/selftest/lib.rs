//! Self-test of a backend on this machine: compares random models with the CPU, stage by stage, and recorded
//! steps with the same stages run one by one.
//!
//! `sterna selftest` prints all of it ([`stages`], [`replay`]). A device has to pass [`check`] once before it
//! runs anything; `passes.rs` stores the result.
#![forbid(unsafe_code)]

mod choice;
mod passes;

use std::ops::ControlFlow;

use ggml_types::{KvCodec, KvSide, kv_on};

pub use self::choice::{Choice, choose};
pub use self::passes::Passes;
use sterna_backend::{Backend, BackendError, Exec, KvPage, WeightId};
use sterna_gguf::Gguf;
use sterna_model::{Hyper, Model, Options};
use sterna_program::{Buf, Limits, PAGE, PageTable, Program, Row, RowsOf, Sampling, Stage, StateSlots, Step};
use sterna_synth::{Preset, Spec, Synth};

/// Error that ends a self-test before it has a result.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Rows per step, in order: single ones, a few, many, and single ones again. Together there are enough
/// positions that windowed caches encode two pages and read them.
const STEPS: &[usize] = &[1, 1, 7, 70, 1, 70, 33, 70, 1, 33, 1];

/// Rows per step for a model's own layers, one kernel each. CUDA multiplies up to 64 rows and more than 64 by
/// different kernels.
pub const LAYER_STEPS: [usize; 4] = [1, 4, 32, 65];

/// Number of large steps before the others: a windowed cache needs three to encode a page and read it.
fn n_large(program: &Program) -> usize {
    if program.limits.exact_pages > 0 { 3 } else { 1 }
}

fn few_steps(program: &Program) -> Vec<usize> {
    [&[1, 7][..], &vec![70; n_large(program)], &[1]].concat()
}

/// Steps whose recordings are compared with their stages: the input of single rows is the token sampled by
/// the device. The steps after the large ones are within one page, and run repeatedly.
fn replayed(program: &Program) -> Vec<usize> {
    [&vec![70; n_large(program)][..], &[9, 1, 1, 1, 1, 1, 1, 1, 1]].concat()
}

/// A flipped int8 rounding changes a product by at most 1/127 of one input's share; a few may flip if a norm
/// differs in its last bit.
const TOLERANCE: f32 = 2e-3;

/// Tolerance of attention over a quantised cache. CUDA rounds queries to 255 steps and decoded values to
/// bytes, which is 7e-3 of the largest output here. If a key or value differs in its last bit, it may also
/// get the neighbouring code; each side reads its own cache.
const TOLERANCE_OF_CODES: f32 = 2e-2;

/// A model to run: preset, head, codecs of keys and values, and changes to the preset's shape.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Name of a preset.
    pub preset: &'static str,
    /// Type of the head.
    pub head: &'static str,
    /// Codec of keys.
    pub k: &'static dyn KvCodec,
    /// Codec of values.
    pub v: &'static dyn KvCodec,
    /// Layers.
    pub n_layers: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// Query heads, KV heads and head dimension; `None` for the preset's.
    pub heads: Option<[usize; 3]>,
}

/// Result of a stage for steps with a given number of rows.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Name of the stage.
    pub stage: &'static str,
    /// Rows.
    pub rows: usize,
    /// The largest difference of an output from the CPU's, relative to the largest output.
    pub difference: f32,
    /// Largest allowed difference.
    pub most: f32,
}

impl Line {
    /// True if the result matches the CPU.
    pub fn is_right(&self) -> bool {
        self.difference <= self.most
    }
}

impl Subject {
    /// A miniature model of two layers.
    pub fn tiny(head: &'static str, k: &'static dyn KvCodec, v: &'static dyn KvCodec) -> Self {
        Self { preset: "tiny", head, k, v, n_layers: 2, n_vocab: 640, heads: None }
    }

    /// A tiny model with a codec of the registry, for keys and, if it supports both, for values.
    pub fn of_codec(head: &'static str, codec: &'static dyn KvCodec) -> Self {
        Self::tiny(head, codec, kv_on(KvSide::Values, codec))
    }

    /// The same model with at least one layer per device.
    #[must_use]
    pub fn over(self, n_devices: usize) -> Self {
        Self { n_layers: self.n_layers.max(n_devices), ..self }
    }

    /// Creates the model with random weights.
    ///
    /// # Errors
    /// If the preset or the head type does not exist.
    pub fn model(&self) -> Result<Model, Error> {
        let preset = Preset::by_name(self.preset)?;
        let spec = preset.spec(None, Some(self.head), 7)?;
        let [n_heads, n_kv_heads, head_dim] =
            self.heads.unwrap_or([spec.n_heads, spec.n_kv_heads, spec.head_dim]);
        let (n_layers, n_vocab) = (self.n_layers, self.n_vocab);
        let spec = Spec { n_layers, n_vocab, n_heads, n_kv_heads, head_dim, ..spec };
        let mut bytes = Vec::new();
        Synth::new(&spec)?.write(&mut bytes, |_| ControlFlow::Continue(()))?;
        let gguf = Gguf::from_bytes(bytes.into())?;
        let most = STEPS.iter().copied().max().unwrap_or(1);
        let pages = STEPS.iter().sum::<usize>().div_ceil(PAGE);
        let exact_pages = if self.k.windowed() || self.v.windowed() { pages } else { 0 };
        let limits =
            Limits { rows: most, outputs: most, seqs: 1, pages, exact_pages, sliding_pages: 0, states: 0 };
        let hyper = Hyper::read(gguf.metadata(), self.n_vocab)?;
        let options = Options::new(limits, self.k, self.v);
        Ok(Model::build(&gguf, hyper, &options)?)
    }
}

fn tolerance(program: &Program, stage: &str) -> f32 {
    let of_codes = program.kvs.iter().any(|kv| kv.k.rotates() || kv.v.rotates());
    if stage == "attend" && of_codes { TOLERANCE_OF_CODES } else { TOLERANCE }
}

/// Self-test of a device: compares its stages with the CPU's over caches with these codecs, and recorded
/// steps with their stages. Returns a description of the first error, if any.
///
/// # Errors
/// If the device fails, or lacks a kernel.
pub fn check(
    backend: &mut dyn Backend,
    k: &'static dyn KvCodec,
    v: &'static dyn KvCodec,
) -> Result<Option<String>, Error> {
    check_with_heads(backend, k, v, None)
}

/// Self-test before a device runs a model, of which `layers` contains one layer of each kind: compares those
/// layers over a few rows with the CPU's, and runs [`check`] with the caches and heads of the model.
///
/// # Errors
/// As [`check`].
pub fn check_for(layers: &Model, backend: &mut dyn Backend) -> Result<Option<String>, Error> {
    let mut cpu = sterna_backend::open("cpu", sterna_backend::physical_cores())?;
    let stages = of_each_kind(&layers.program, backend.n_devices());
    let lines = compare((layers, backend), (layers, &mut *cpu), &stages, &LAYER_STEPS)?;
    if let Some(line) = lines.into_iter().find(|line| !line.is_right()) {
        return Ok(Some(differs(&line, "of this model")));
    }
    let Some(kv) = layers.program.kvs.first() else { return Ok(None) };
    let group = layers.hyper.n_heads / layers.hyper.n_kv_heads;
    // The smallest number for which the following weights consist of whole blocks.
    let fills = |n_kv_heads: &usize| (n_kv_heads * group * kv.head_dim).is_multiple_of(256);
    let n_kv_heads = (0..5).map(|log2| 1 << log2).find(fills);
    // The small model has no latent attention, whose heads are longer than others may be.
    let n_kv_heads = n_kv_heads.filter(|_| !kv.values_are_keys);
    let heads = n_kv_heads.map(|n_kv_heads| [n_kv_heads * group, n_kv_heads, kv.head_dim]);
    check_with_heads(backend, kv.k, kv.v, heads)
}

/// Short description of what a test of these layers covers.
pub fn kinds(program: &Program) -> String {
    let mut kinds: Vec<String> = (0..program.stages.len()).map(|stage| program.kind(stage)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let codecs = program.kvs.first().map_or(["none"; 2], |kv| [kv.k.name(), kv.v.name()]);
    let [k, v] = codecs;
    format!(
        "KV {k} and {v}, {} kinds of stages {:08x}",
        kinds.len(),
        crc32fast::hash(kinds.concat().as_bytes())
    )
}

fn check_with_heads(
    backend: &mut dyn Backend,
    k: &'static dyn KvCodec,
    v: &'static dyn KvCodec,
    heads: Option<[usize; 3]>,
) -> Result<Option<String>, Error> {
    let model = Subject { heads, ..Subject::tiny("f16", k, v) }.over(backend.n_devices()).model()?;
    let mut cpu = sterna_backend::open("cpu", sterna_backend::physical_cores())?;
    let steps = few_steps(&model.program);
    let stages = all_stages(&model.program);
    let lines = compare((&model, backend), (&model, &mut *cpu), &stages, &steps)?;
    if let Some(line) = lines.into_iter().find(|line| !line.is_right()) {
        return Ok(Some(differs(&line, &format!("with KV {} and {}", k.name(), v.name()))));
    }
    replay(&model, backend, 2)
}

fn differs(line: &Line, of: &str) -> String {
    let Line { stage, rows, difference, most } = line;
    format!(
        "stage {stage} over {rows} rows {of} differs by {difference:.1e} from the CPU, and at most \
         {most:.0e} is allowed"
    )
}

/// Compares every stage of a model on a backend with the CPU.
///
/// # Errors
/// If one of the backends fails.
pub fn stages(subject: &Subject, backend: &mut dyn Backend) -> Result<Vec<Line>, Error> {
    let model = subject.model()?;
    let mut cpu = sterna_backend::open("cpu", sterna_backend::physical_cores())?;
    compare((&model, backend), (&model, &mut *cpu), &all_stages(&model.program), STEPS)
}

fn load(model: &Model, backend: &mut dyn Backend) -> Result<Vec<WeightId>, BackendError> {
    let weights = model.weights.iter().map(|w| w.read().map_err(|error| BackendError::Weight(error.into())));
    weights.map(|w| backend.upload(&w?)).collect()
}

/// The pages of a sequence in reverse order, so that page ids differ from page indices.
fn pages(program: &Program) -> PageTable {
    let mut pages = PageTable::new(1, program.limits.pages);
    pages.seq_mut(0).extend((0..program.limits.pages as u32).rev());
    pages.exact_mut(0).extend((0..program.limits.exact_pages as u32).map(Some));
    pages
}

/// Tokens that the rows of a test are from.
fn n_tokens(program: &Program) -> usize {
    program.logits().map_or(600, |s| program.buf_decl(s.logits).cols.min(600))
}

fn all_stages(program: &Program) -> Vec<usize> {
    (0..program.stages.len()).collect()
}

/// The stages without repeated feed-forward layers of the same kind, which are most of the work. Several
/// devices have separate stages, so all of them are tested.
fn of_each_kind(program: &Program, n_devices: usize) -> Vec<usize> {
    let kinds: Vec<String> = all_stages(program).into_iter().map(|i| program.kind(i)).collect();
    let is_wanted = |i: &usize| {
        let is_large =
            matches!(program.stages[*i].1, Stage::FfnIn(_) | Stage::Experts(_) | Stage::ProjAdd(_));
        n_devices > 1 || !is_large || !kinds[..*i].contains(&kinds[*i])
    };
    all_stages(program).into_iter().filter(is_wanted).collect()
}

/// Runs the same model on a backend and on the CPU. Both start every stage from the same values, so the first
/// wrong stage is the one reported.
fn compare(
    tested: (&Model, &mut dyn Backend),
    on_cpu: (&Model, &mut dyn Backend),
    stages: &[usize],
    steps: &[usize],
) -> Result<Vec<Line>, Error> {
    let ((model, tested), (of_cpu, cpu)) = (tested, on_cpu);
    let program = &model.program;
    let weights = load(model, tested)?;
    let e = tested.compile(program, &weights)?;
    let weights = load(of_cpu, cpu)?;
    let of_cpu = cpu.compile(&of_cpu.program, &weights)?;
    let mut pages = pages(program);
    let n_tokens = n_tokens(program);
    let mut lines: Vec<Line> = Vec::new();
    let mut pos = 0;
    let picks = program.sample().is_some();
    for &n in steps {
        // If rows see ahead, a text runs as a whole.
        pos = if program.sees_ahead() { 0 } else { pos };
        let rows: Vec<Row> = (pos..pos + n)
            .map(|pos| Row { token: (pos * 37 % n_tokens) as u32, pos: pos as u32, seq: 0, logits: picks })
            .collect();
        if program.limits.states > 0 {
            pages.set_state(0, Some(StateSlots { from: (pos > 0).then_some(0), to: 0 }));
        }
        pos += n;
        let sampling = vec![Some(Sampling::GREEDY); if picks { n } else { 0 }];
        let step = Step { rows: &rows, pages: &pages, sampling: &sampling, changes: &[] };
        for &i in stages {
            let (_, stage) = &program.stages[i];
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
                None => lines.push(Line { stage, rows: n, difference, most: tolerance(program, stage) }),
            }
        }
    }
    Ok(lines)
}

/// Compares whole steps with the same steps run stage by stage: all buffers, sampled tokens and pages, bit by
/// bit. Each step is queued before the previous token is available, and the last ones run `times` times.
/// Returns a description of the first difference.
///
/// # Errors
/// If the backend fails.
pub fn replay(model: &Model, backend: &mut dyn Backend, times: usize) -> Result<Option<String>, Error> {
    let program = &model.program;
    let weights = load(model, backend)?;
    let [by_stage, whole] = [backend.compile(program, &weights)?, backend.compile(program, &weights)?];
    let want = everything(program, backend, by_stage, true, 0)?;
    for time in 0..times {
        let first = if time == 0 { 0 } else { n_large(program) };
        let got = everything(program, backend, whole, false, first)?;
        for ((what, got), (_, want)) in got.iter().zip(&want) {
            let differ = got.iter().zip(want).filter(|(got, want)| got != want).count();
            if differ > 0 {
                let of = want.len();
                return Ok(Some(format!(
                    "{what} after whole steps: {differ} of {of} bytes differ from the same stages run \
                     one by one"
                )));
            }
        }
    }
    Ok(None)
}

/// Runs the steps of [`replayed`] from `first` on and returns all results, each with its name; except for
/// queries, which attention may or may not rotate in place.
fn everything(
    program: &Program,
    backend: &mut dyn Backend,
    e: Exec,
    by_stage: bool,
    first: usize,
) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let pages = pages(program);
    let ahead = backend.runs_ahead(e, &Sampling::GREEDY);
    let mut picks = Vec::new();
    let steps = replayed(program);
    for i in first..steps.len() {
        let (pos, n): (usize, _) = (steps[..i].iter().sum(), steps[i]);
        let is_fed = ahead && n == 1;
        let row = |pos: usize| Row {
            token: if is_fed { Row::PICKED } else { (pos * 37 % 600) as u32 },
            pos: pos as u32,
            seq: 0,
            logits: pos + 1 == steps[..=i].iter().sum::<usize>(),
        };
        let rows: Vec<Row> = (pos..pos + n).map(row).collect();
        let step = Step { rows: &rows, pages: &pages, sampling: &[Some(Sampling::GREEDY)], changes: &[] };
        match by_stage {
            true => (0..program.stages.len()).try_for_each(|i| backend.run_stages(e, i..i + 1, &step))?,
            false => backend.run(e, &step)?,
        }
        if is_fed {
            picks.extend(backend.picked(e, 0, 1)?.to_le_bytes());
        }
    }
    let mut all = vec![("picks".to_owned(), picks)];
    let is_query =
        |b: Buf| program.stages.iter().any(|(_, stage)| matches!(stage, Stage::Attend(s) if s.q == b));
    for (b, decl) in program.bufs.iter().enumerate() {
        let b = Buf(b as u32);
        if is_query(b) {
            continue;
        }
        let mut row = vec![0.0; decl.cols];
        backend.read(e, b, 0, &mut row)?;
        all.push((format!("buffer {}", decl.name), row.iter().flat_map(|x| x.to_le_bytes()).collect()));
    }
    let quantised = pages.seq(0).iter().map(|page| KvPage::Quantised(*page));
    let exact = pages.exact(0).iter().flatten().map(|page| KvPage::Exact(*page));
    for page in quantised.chain(exact) {
        let mut bytes = vec![0; backend.page_bytes(e, page)];
        backend.read_page(e, page, &mut bytes)?;
        all.push((format!("{page:?} of the KV cache"), bytes));
    }
    Ok(all)
}

/// The largest difference, relative to the largest value; infinite if one side has NaN.
fn relative(got: &[f32], want: &[f32]) -> f32 {
    let largest = want.iter().fold(f32::MIN_POSITIVE, |max, x| max.max(x.abs()));
    got.iter().zip(want).fold(0.0, |worst: f32, (a, b)| {
        let far = (a - b).abs() / largest;
        if far.is_nan() { f32::INFINITY } else { worst.max(far) }
    })
}

#[cfg(test)]
mod tests {
    use ggml_types::kv_by_name;

    use super::*;

    /// Attention with another kind of cache differs by more than the tolerance of quantised caches.
    #[test]
    fn one_cache_is_not_taken_for_another() {
        for pair in [["q4_0", "q8_0"], ["turboquant-mse", "turboquant-4"], ["tq3_0", "turboquant-mse"]] {
            let subjects = pair.map(|kv| Subject::of_codec("f16", kv_by_name(kv).unwrap()));
            let models = subjects.map(|subject| subject.model().unwrap());
            let [mut tested, mut cpu] = [(); 2].map(|()| sterna_backend::open("cpu", 2).unwrap());
            let (of_tested, of_cpu) = (&models[0], &models[1]);
            let lines =
                compare((of_tested, &mut *tested), (of_cpu, &mut *cpu), &all_stages(&of_cpu.program), STEPS)
                    .unwrap();
            let of_attend = lines.iter().filter(|line| line.stage == "attend").map(|line| line.difference);
            let most = of_attend.fold(0.0, f32::max);
            assert!(most > 2.0 * TOLERANCE_OF_CODES, "{pair:?}: {most}");
        }
    }

    /// The short test detects it, too; and the CPU passes.
    #[test]
    fn a_short_check_sees_codes_and_passes_the_cpu() {
        let [a, b] = ["turboquant-mse", "turboquant-4"].map(|kv| kv_by_name(kv).unwrap());
        let subject = Subject::of_codec("f16", a);
        let models = [subject, Subject::of_codec("f16", b)].map(|subject| subject.model().unwrap());
        let [mut tested, mut cpu] = [(); 2].map(|()| sterna_backend::open("cpu", 2).unwrap());
        let (of_tested, of_cpu) = (&models[0], &models[1]);
        let steps = few_steps(&of_tested.program);
        let lines =
            compare((of_tested, &mut *tested), (of_cpu, &mut *cpu), &all_stages(&of_cpu.program), &steps)
                .unwrap();
        assert!(lines.iter().any(|line| line.stage == "attend" && !line.is_right()), "{lines:?}");
        let passed = check(&mut *sterna_backend::open("cpu", 2).unwrap(), a, a).unwrap();
        assert_eq!(passed, None);
    }
}
