//! Layers whose weights do not fit on the card, computed on the CPU in steps of few rows. The results match
//! the card's except for roundings, in any mixture with steps that copy the weights to the card.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sterna::backend::cpu::Cpu;
use sterna::backend::cuda::driver::{Driver, simt::Simt};
use sterna::backend::cuda::{Cuda, Overrides, Profiling, Streaming};
use sterna::backend::{Backend, DeviceOptions, GpuLayers, MinBatch, Plan};
use sterna::program::{Expert, PageTable, Row, Sampling, Stage, Step};
use support::case::model::{MIXTURE, Model, SMALL};
use support::case::{Case, Running, limits, shuffled_pages, windowed_limits, windowed_pages};

use super::split::{By, everything, everything_of, model_case};
use super::stage_diff::{first_difference, prompt};
use super::stream::watched::{Watch, Watched};

/// Options for `n` layers on the card, two slots, and the smallest batch for which layers are copied.
fn with(n: usize, min_batch: MinBatch) -> Streaming {
    Streaming { min_batch, ..Streaming::new(GpuLayers::Count(n), 2) }
}

fn on(driver: impl Driver, streaming: Streaming) -> Box<dyn Backend> {
    let cuda = Cuda::on(Box::new(driver)).streamed(Some(streaming));
    Box::new(cuda.with_cpu(|| Ok(Box::new(Cpu::new(2)?))))
}

fn resident() -> Box<dyn Backend> {
    Box::new(Cuda::on(Box::new(Simt::new(1, 0))))
}

/// Caches of codes, blocks and floats; layers with a common kernel and without; norms of heads; experts.
const MODELS: [Model; 9] = [
    Model { n_layers: 3, ..SMALL },
    Model { n_layers: 3, head_norms: true, ..SMALL },
    Model { n_layers: 3, kv: "turboquant", ..SMALL },
    Model { n_layers: 4, kv: "q8_0", ..SMALL },
    Model { n_layers: 3, weights: "q8_0", kv: "f32", ..SMALL },
    Model { n_layers: 3, weights: "q4_0", other: Some("q8_0"), head_norms: true, ..SMALL },
    Model { n_layers: 3, weights: "f16", kv: "f32", ..SMALL },
    Model { n_layers: 3, ..MIXTURE },
    Model { n_layers: 3, weights: "q8_0", other: Some("f16"), kv: "f32", ..MIXTURE },
];

/// Maximum difference between the CPU and the CUDA kernels, as in `stage_diff`: a few int8 roundings that
/// flip if a norm differs in its last bit, and otherwise float roundings. Both sides use the card's cache;
/// its keys differ by no more, but their rounding to f16 may flip, by a relative 5e-4, or their code.
fn tolerance(model: &Model) -> f32 {
    match model.kv {
        "f32" if model.weights != "i2_s" => 1e-5,
        "f16" | "f32" => 2e-3,
        _ => 0.03,
    }
}

fn small_case(model: &Model) -> (Case, PageTable) {
    match model.kv {
        "turboquant" => (model.case("a small model", windowed_limits(70, 1, 2)).0, windowed_pages(1, 2)),
        _ => (model.case("a small model", limits(70, 1, 2)).0, shuffled_pages(1, 2)),
    }
}

/// Both start every stage from the same buffers.
#[test]
fn every_stage_on_the_cpu_matches_the_card() {
    for (at, model) in MODELS.into_iter().enumerate() {
        let (case, pages) = small_case(&model);
        // The first model in steps of all sizes, the others in one.
        let steps = [(0, 1, 0), (1, 5, 3), (0, 70, 0)].into_iter().enumerate();
        for (_, (layers, n, seed)) in steps.filter(|(i, _)| at == 0 || at % 3 == *i) {
            let mut whole = resident();
            let mut offloaded = on(Simt::new(1, seed), with(layers, MinBatch::Never));
            let mut both = [case.on(&mut *whole), case.on(&mut *offloaded)];
            let found = first_difference(&case, &pages, &prompt(n), tolerance(&model), &mut both);
            assert_eq!(found, None, "{model:?}, {layers} layers on the card, {n} rows, order {seed}");
        }
    }
}

/// Steps that copy layers mixed with steps on the CPU, of prompts together with decoding, and with rows whose
/// token the device picked: recorded parts match single stages, to the bit, in any order of concurrent work.
#[test]
fn cpu_and_copying_steps_can_be_mixed() {
    mix_steps(0..1);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn cpu_and_copying_steps_can_be_mixed_in_other_models() {
    mix_steps(1..MODELS.len());
}

fn mix_steps(models: Range<usize>) {
    for at in models {
        let model = MODELS[at];
        let (case, pages) = model_case(model);
        let layers = at % 2;
        let run = |seed, min_batch, by| {
            everything(&case, &pages, &mut *on(Simt::new(1, seed), with(layers, min_batch)), by)
        };
        // 71 rows, 10, and then 2 each.
        for min_batch in [MinBatch::Rows(5), if layers == 0 { MinBatch::Rows(11) } else { MinBatch::Never }] {
            let want = run(0, min_batch, By::Stage);
            assert!(run(5, min_batch, By::Step) == want, "{model:?}, {layers} on the card, {min_batch:?}");
        }
        // Layers that are always copied give the bits of a resident model.
        if at < 3 {
            let want = everything(&case, &pages, &mut *resident(), By::Step);
            assert!(run(2, MinBatch::Rows(1), By::Step) == want, "{model:?}");
        }
    }
}

/// Logits of a prompt in a step that copies layers, and of the following steps of one row and more.
fn logits(case: &Case, pages: &PageTable, backend: &mut dyn Backend) -> Vec<Vec<f32>> {
    let logits = case.p.buf_named("logits").expect("a model has logits");
    let mut running = case.on(backend);
    let (mut pos, mut all) = (0, Vec::new());
    for n in [40, 1, 1, 3, 20, 1] {
        let row = |at: u32| Row { token: at * 37 % 300, pos: at, seq: 0, logits: at + 1 == pos + n };
        let rows: Vec<Row> = (pos..pos + n).map(row).collect();
        let step = Step { rows: &rows, pages, sampling: &[Some(Sampling::GREEDY)], changes: &[] };
        running.backend.run(running.exec, &step).expect("a run");
        all.push(running.read(logits, 1));
        pos += n;
    }
    all
}

/// After all layers the differences have grown, because an int8 rounding that flips in one layer is an input
/// of the next, but they are still small compared with the logits.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn logits_match_a_resident_model() {
    let ways = [(0, MinBatch::Rows(4)), (1, MinBatch::Rows(2)), (0, MinBatch::Never)];
    for (model, (layers, min_batch)) in MODELS.into_iter().zip(ways.into_iter().cycle()) {
        let (case, pages) = small_case(&model);
        let want = logits(&case, &pages, &mut *resident());
        let got = logits(&case, &pages, &mut *on(Simt::new(1, 3), with(layers, min_batch)));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let largest = want.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            let most = got.iter().zip(want).fold(0.0_f32, |max, (x, y)| max.max((x - y).abs()));
            assert!(most <= 10.0 * tolerance(&model) * largest, "{model:?} {min_batch:?} {i}: {most}");
        }
    }
}

/// The driver allocates the planned bytes, and no page-locked ones if nothing is ever copied.
#[test]
fn allocations_match_the_plan() {
    let (case, pages) = model_case(Model { n_layers: 5, weights: "q8_0", ..SMALL });
    let linear = |rows: u64, cols: u64| rows * cols / 32 * 34;
    let layer_of =
        |down| 2 * linear(256, 256) + 2 * linear(64, 256) + 2 * linear(384, 256) + linear(256, down);
    // Octets have multiples of 256 columns.
    let (layer, on_the_cpu) = (layer_of(512), layer_of(384));
    for (min_batch, rows, copied) in
        [(MinBatch::Rows(6), 5, true), (MinBatch::Auto, 64, true), (MinBatch::Never, 80, false)]
    {
        let watch = Arc::new(Watch::default());
        let mut backend = on(Watched::new(Simt::new(1, 0), &watch), with(1, min_batch));
        let plan = backend.plan(&case.p).expect("a plan");
        let whole = resident().plan(&case.p).expect("a plan");
        let slots = if copied { 2 } else { 0 };
        assert_eq!(plan.weights_bytes, whole.weights_bytes - (4 - slots) * layer, "{min_batch:?}");
        assert_eq!(plan.bufs_bytes, whole.bufs_bytes + 2 * rows * 64 * 4, "keys and values of {min_batch:?}");
        assert_eq!(plan.host_bytes, if copied { 4 * layer } else { 0 });
        let shared = backend.memory(&case.p).expect("a plan")[0].shared_bytes;
        assert_eq!(shared, if rows > 0 { 4 * on_the_cpu } else { 0 }, "{min_batch:?}");
        let mut running = case.on(&mut *backend);
        let Plan { weights_bytes, kv_bytes, bufs_bytes, host_bytes, .. } = plan;
        let taken = |of: &AtomicU64| of.load(Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(taken(&watch.card), weights_bytes + kv_bytes + bufs_bytes, "{min_batch:?}");
            assert_eq!(taken(&watch.host), host_bytes);
            everything_of(&mut running, &case, &pages, By::Step);
        }
    }
}

fn step_of(running: &mut Running<'_>, pages: &PageTable, pos: u32, n: u32) -> Result<(), String> {
    let rows: Vec<Row> =
        (pos..pos + n).map(|pos| Row { token: 3, pos, seq: 0, logits: pos % 2 == 0 }).collect();
    let step = Step { rows: &rows, pages, sampling: &[], changes: &[] };
    running.backend.run(running.exec, &step).map_err(|err| err.to_string())
}

/// Steps on the CPU queue no copies; the layers that were copied ahead remain for the next step that copies.
#[test]
fn steps_on_the_cpu_copy_no_weights() {
    let (case, pages) = model_case(Model { n_layers: 5, ..SMALL });
    let watch = Arc::new(Watch::default());
    let mut backend = on(Watched::new(Simt::new(1, 0), &watch), with(0, MinBatch::Rows(4)));
    let mut running = case.on(&mut *backend);
    let mut copies = 0;
    let mut pos = 0;
    // Compiling a program copies two layers; a step that copies leaves two for the next one.
    for (n, want) in [(1, 2), (3, 0), (20, 5), (2, 0), (1, 0), (4, 5), (3, 0), (5, 5)] {
        step_of(&mut running, &pages, pos, n).expect("a run");
        pos += n;
        let all = watch.copies.load(Ordering::Relaxed);
        assert_eq!(all - copies, want, "a step of {n} rows");
        copies = all;
    }
    for n in [1, 3] {
        assert!(!backend.returns_early(sterna::backend::Exec(0), n), "{n}");
    }
    assert!(backend.returns_early(sterna::backend::Exec(0), 4));
}

/// A call that fails in the middle of a step gives an error that names it; later steps work again.
#[test]
fn faults_are_errors_that_name_the_call() {
    let (case, pages) = model_case(Model { n_layers: 3, ..SMALL });
    let backend = |watch: &Arc<Watch>| on(Watched::new(Simt::new(1, 1), watch), with(0, MinBatch::Rows(5)));
    let want = everything(&case, &pages, &mut *backend(&Arc::default()), By::Step);
    // The residual of a layer, the output of attention, and queries that are copied to the card.
    for (reads, writes, call) in
        [(1, 0, "read"), (2, 0, "read"), (5, 0, "read"), (0, 4, "write"), (0, 9, "write")]
    {
        let watch = Arc::new(Watch::default());
        let mut backend = backend(&watch);
        let mut running = case.on(&mut *backend);
        watch.reads_until.store(reads, Ordering::Relaxed);
        watch.writes_until.store(writes, Ordering::Relaxed);
        let message = (0..4).find_map(|pos| step_of(&mut running, &pages, pos, 2).err()).expect("an error");
        assert!(message.contains(call) && message.contains("failed once"), "{message}");
        let again = everything_of(&mut running, &case, &pages, By::Step);
        assert!(again == want, "after {call} {reads} {writes}");
    }
    let no_threads = || {
        let (backend, call, detail) = ("cpu", "starting a thread", "refused".to_owned());
        Err(sterna::backend::BackendError::Device { backend, call, detail })
    };
    let cuda =
        Cuda::on(Box::new(Simt::new(1, 0))).streamed(Some(with(0, MinBatch::Never))).with_cpu(no_threads);
    let mut backend: Box<dyn Backend> = Box::new(cuda);
    let ids: Vec<_> = case.weights.iter().map(|w| backend.upload(w).expect("an upload")).collect();
    let message = backend.compile(&case.p, &ids).unwrap_err().to_string();
    assert!(message.contains("backend cpu: starting a thread: refused"), "{message}");
}

/// Only experts are on the CPU, as with `--cpu-moe`; the rest of their layers is on the card.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn experts_alone_can_run_on_the_cpu() {
    let (case, pages) = model_case(Model { n_layers: 4, weights: "q8_0", kv: "f32", ..MIXTURE });
    let of_stage = |(_, stage): &(String, Stage)| match stage {
        Stage::Experts(s) => s.experts.iter().flat_map(Expert::layers).map(|layer| layer.w).collect(),
        _ => Vec::new(),
    };
    let names = case.p.stages.iter().flat_map(of_stage).map(|w| case.p.weight_decl(w).name.clone());
    let pattern = format!("^({})$=CPU", names.collect::<Vec<_>>().join("|"));
    let overrides = Overrides::parse(&pattern).expect("patterns");
    let some = |min_batch| Streaming { overrides: overrides.clone(), ..with(9, min_batch) };
    let want = everything(&case, &pages, &mut *resident(), By::Step);
    assert!(everything(&case, &pages, &mut *on(Simt::new(1, 2), some(MinBatch::Rows(1))), By::Step) == want);
    for min_batch in [MinBatch::Rows(8), MinBatch::Never] {
        let mut offloaded = on(Simt::new(1, 2), some(min_batch));
        // No keys and values are copied between the two.
        let plans =
            [&offloaded, &resident()].map(|backend| backend.plan(&case.p).expect("a plan").bufs_bytes);
        assert_eq!(plans[0], plans[1]);
        let by_step = everything(&case, &pages, &mut *offloaded, By::Step);
        let by_stage = everything(&case, &pages, &mut *on(Simt::new(1, 0), some(min_batch)), By::Stage);
        assert!(by_step == by_stage && by_step != want, "{min_batch:?}");
        let mut whole = resident();
        let mut both = [case.on(&mut *whole), case.on(&mut *offloaded)];
        // Only float products, of few columns.
        assert_eq!(first_difference(&case, &pages, &prompt(7), 1e-5, &mut both), None);
    }
}

/// In both kinds of steps.
#[test]
fn stages_are_timed() {
    let (case, pages) = model_case(Model { n_layers: 3, ..SMALL });
    for how in [Profiling::Stamps, Profiling::Events] {
        let card = Cuda::on(Box::new(Simt::new(1, 0))).profiled(Some(how));
        let card = card.streamed(Some(with(0, MinBatch::Rows(5)))).with_cpu(|| Ok(Box::new(Cpu::new(1)?)));
        let mut backend: Box<dyn Backend> = Box::new(card);
        let mut running = case.on(&mut *backend);
        everything_of(&mut running, &case, &pages, By::Step);
        let exec = running.exec;
        let times = backend.stage_times(exec).expect("they are timed");
        assert!(times.iter().all(|time| time.calls == 7 && time.nanoseconds > 0), "{how:?}: {times:?}");
    }
}

/// Two programs over the same weights run one after the other.
#[test]
fn two_programs_share_weights() {
    let (case, pages) = model_case(Model { n_layers: 4, ..SMALL });
    let fresh = || on(Simt::new(1, 2), with(1, MinBatch::Rows(5)));
    let want = everything(&case, &pages, &mut *fresh(), By::Step);
    let mut backend = fresh();
    let weights: Vec<_> = case.weights.iter().map(|w| backend.upload(w).expect("an upload")).collect();
    let execs = [(); 2].map(|()| backend.compile(&case.p, &weights).expect("memory"));
    for exec in execs {
        let mut running = Running { p: &case.p, backend: &mut *backend, exec };
        assert!(everything_of(&mut running, &case, &pages, By::Step) == want);
    }
}

#[test]
fn options_and_note_describe_the_offload() {
    let (case, pages) = model_case(Model { n_layers: 5, ..SMALL });
    let opened = |value: &str| {
        let op_offload_min_batch = Some(value.parse().unwrap());
        let gpu_layers = Some(GpuLayers::Count(2));
        DeviceOptions { gpu_layers, op_offload_min_batch, .."cuda-simt".parse().unwrap() }.open(1)
    };
    for (value, want) in [
        ("1", "are copied to it in every step, through 2 slots of "),
        ("4", "are copied to it in steps of 4 rows or more, through 2 slots of "),
        ("off", "are not copied: the CPU computes with them"),
    ] {
        let mut backend = opened(value).expect("options");
        case.on(&mut *backend);
        let note = backend.note().expect("layers are streamed");
        assert!(note.starts_with("2 of 5 layers stay on the GPU; the weights of the other 3 ("), "{note}");
        assert!(note.contains(want) && (value == "1") != note.contains("CPU"), "{note}");
    }
    // The note contains the measurement, whatever its result, and steps run.
    let mut backend = opened("auto").expect("options");
    everything(&case, &pages, &mut *backend, By::Step);
    let note = backend.note().expect("layers are streamed");
    assert!(note.contains(" (measured: ") && note.contains(" ms per row to compute with them)"), "{note}");
    for value in ["0", "few", "-1"] {
        let message = value.parse::<MinBatch>().unwrap_err();
        assert!(message.starts_with("want auto, off or a number of rows"), "{message}");
    }
}

/// Slow copies are avoided in more steps than fast ones, by a measurement on this machine.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn auto_min_batch_follows_the_measurement() {
    let (case, _) = model_case(Model { n_layers: 5, ..SMALL });
    let early = |nanoseconds| {
        let watch = Arc::new(Watch { copy_nanoseconds: nanoseconds, ..Watch::default() });
        let mut backend = on(Watched::new(Simt::new(1, 0), &watch), with(0, MinBatch::Auto));
        let exec = case.on(&mut *backend).exec;
        (1..=80).filter(|n| backend.returns_early(exec, *n)).min().expect("large steps are queued")
    };
    // The CPU computes a layer in less than a second.
    assert_eq!(early(500_000_000), 65, "the largest threshold that is tried");
    let quick = early(0);
    assert!(quick <= 65, "{quick}");
}
