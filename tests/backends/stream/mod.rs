//! Streamed layers: the same bits as with a resident model, in the planned memory, in any order of copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use sterna::backend::cuda::driver::{Driver, simt::Simt};
use sterna::backend::cuda::{Cuda, Overrides, Profiling, Streaming};
use sterna::backend::{Backend, BackendError, DeviceOptions, GpuLayers, MinBatch, Plan};
use sterna::program::{Expert, Program, Row, Sampling, Stage, Step};
use support::case::Running;
use support::case::model::{MIXTURE, Model, SMALL};

use super::split::{By, everything, everything_of, model_case};

pub(super) mod watched;

use watched::{Watch, Watched};

fn streaming(n: usize, slots: usize) -> Option<Streaming> {
    Some(Streaming::new(GpuLayers::Count(n), slots))
}

fn on(driver: impl Driver, streaming: Option<Streaming>) -> Box<dyn Backend> {
    Box::new(Cuda::on(Box::new(driver)).streamed(streaming))
}

/// Several numbers of slots, numbers of layers that are a multiple of them and not, and copies in several
/// orders; caches, batches, prompts together with decoding, queued steps, and stages one by one.
#[test]
fn streamed_layers_match_resident_layers() {
    compare_with_resident(&[
        (Model { n_layers: 5, ..SMALL }, 0, 2, &[3]),
        (Model { n_layers: 3, ..SMALL }, 0, 1, &[1, 2, 4]),
        (Model { n_layers: 4, kv: "turboquant", ..SMALL }, 1, 2, &[5]),
        (Model { n_layers: 3, weights: "q4_0", other: Some("i2_s"), ..SMALL }, 1, 1, &[3]),
    ]);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn streamed_layers_match_resident_layers_in_other_models() {
    compare_with_resident(&[
        (Model { n_layers: 5, ..SMALL }, 0, 2, &[0]),
        (Model { n_layers: 5, ..SMALL }, 1, 3, &[6]),
        (Model { n_layers: 3, weights: "q8_0", kv: "q8_0", ..SMALL }, 0, 2, &[2]),
        (Model { n_layers: 2, weights: "f16", head_norms: true, ..SMALL }, 0, 1, &[4]),
        (Model { n_layers: 3, weights: "q8_0", ..MIXTURE }, 1, 1, &[7]),
    ]);
}

/// Each case is a model, number of resident layers, slots, and seeds of the order of copies.
fn compare_with_resident(cases: &[(Model, usize, usize, &[u64])]) {
    for &(model, resident, slots, seeds) in cases {
        let (case, pages) = model_case(model);
        let want = everything(&case, &pages, &mut *on(Simt::new(1, 0), None), By::Step);
        assert!(want.iter().map(Vec::len).sum::<usize>() > 10_000);
        for (i, seed) in seeds.iter().enumerate() {
            let mut backend = on(Simt::new(1, *seed), streaming(resident, slots));
            assert!(backend.plan(&case.p).expect("a plan").host_bytes > 0, "{model:?}: nothing is streamed");
            let by = if i == 2 { By::Stage } else { By::Step };
            let got = everything(&case, &pages, &mut *backend, by);
            assert!(got == want, "{model:?}, {resident} on the card, {slots} slots, order {seed}, by {by:?}");
        }
    }
}

/// Proves that the test above can fail: without the waits for copies it does.
#[test]
fn missing_waits_change_the_result() {
    let (case, pages) = model_case(Model { n_layers: 3, ..SMALL });
    let want = everything(&case, &pages, &mut *on(Simt::new(1, 0), None), By::Step);
    let watch = Watch { forgets: true, ..Watch::default() };
    let forgetful = Watched::new(Simt::new(1, 0), &Arc::new(watch));
    let got = everything(&case, &pages, &mut *on(forgetful, streaming(0, 2)), By::Step);
    assert!(got != want, "missing waits have no effect");
}

/// The driver allocates the planned bytes exactly, for a type whose size on a card is that in the file, up to
/// multiples of 256 columns, with slots instead of the streamed layers.
#[test]
fn allocations_match_the_plan() {
    for (resident, slots, n_slots) in [(0, 1, 1), (0, 2, 2), (3, 2, 2), (5, 2, 0), (7, 2, 0), (9, 1, 0)] {
        let (case, pages) = model_case(Model { n_layers: 7, weights: "q8_0", ..SMALL });
        let watch = Arc::new(Watch::default());
        let card = Cuda::on(Box::new(Watched::new(Simt::new(1, 0), &watch)));
        // Timing of stages needs memory, too.
        let profiling = (slots == 1).then_some(Profiling::Stamps);
        let mut backend: Box<dyn Backend> =
            Box::new(card.streamed(streaming(resident, slots)).profiled(profiling));
        let plan = backend.plan(&case.p).expect("a plan");
        let whole = on(Simt::new(1, 0), None).plan(&case.p).expect("a plan");
        let linear = |rows: u64, cols: u64| rows * cols / 32 * 34;
        let layer = 2 * linear(256, 256) + 2 * linear(64, 256) + 2 * linear(384, 256) + linear(256, 512);
        let streamed = if n_slots > 0 { 7 - resident as u64 } else { 0 };
        assert_eq!(plan.weights_bytes, whole.weights_bytes - (streamed - n_slots) * layer);
        assert_eq!(plan.host_bytes, streamed * layer);
        let mut running = case.on(&mut *backend);
        let Plan { weights_bytes, kv_bytes, bufs_bytes, host_bytes, .. } = plan;
        let taken = |of: &AtomicU64| of.load(Ordering::Relaxed);
        assert_eq!(taken(&watch.card), weights_bytes + kv_bytes + bufs_bytes, "{resident}, {slots}");
        assert_eq!(taken(&watch.host), host_bytes);
        if (resident, slots) == (0, 2) {
            everything_of(&mut running, &case, &pages, By::Step);
            assert_eq!(taken(&watch.card), weights_bytes + kv_bytes + bufs_bytes, "a step allocates nothing");
        }
    }
}

/// As many layers stay as leave a margin, and none is streamed if all of them fit.
#[test]
fn auto_keeps_as_many_layers_as_fit() {
    let (case, _) = model_case(Model { n_layers: 6, weights: "q8_0", ..SMALL });
    let plan = |streaming, free: u64| {
        let watch = Watch { free: Some(free), ..Watch::default() };
        on(Watched::new(Simt::new(1, 0), &Arc::new(watch)), streaming).plan(&case.p).expect("a plan")
    };
    let need = |plan: &Plan| plan.weights_bytes + plan.kv_bytes + plan.bufs_bytes;
    let auto = Some(Streaming::new(GpuLayers::Auto, 2));
    let whole = plan(None, u64::MAX);
    // The plan includes some driver memory for each graph.
    let recordings = {
        let backend = on(Simt::new(1, 0), None);
        let devices = backend.memory(&case.p).expect("a plan");
        let graphs = devices[0].overhead.iter().filter(|part| part.name.ends_with("recorded graphs"));
        graphs.map(|part| part.bytes).sum::<u64>()
    };
    // A 32nd of the free memory is the margin.
    let room = |plan: &Plan| (need(plan) + recordings) * 32 / 31 + 2;
    assert_eq!(plan(auto.clone(), room(&whole)).host_bytes, 0);
    for n in [0, 1, 3] {
        let want = plan(streaming(n, 2), u64::MAX);
        let got = plan(auto.clone(), room(&want));
        assert_eq!((need(&got), got.host_bytes), (need(&want), want.host_bytes), "{n} layers");
    }
    // The smallest plan is returned even if it does not fit, so that the error contains its size.
    let none = plan(auto.clone(), 1000);
    assert!(need(&none) > 1000 && need(&none) == need(&plan(streaming(0, 2), 1000)));
}

/// A refused allocation of page-locked memory, or a failed copy, gives an error that names it, and the
/// backend still works.
#[test]
fn faults_are_errors_that_name_the_call() {
    let (case, pages) = model_case(Model { n_layers: 5, ..SMALL });
    let ids = |backend: &mut Box<dyn Backend>| -> Vec<_> {
        case.weights.iter().map(|w| backend.upload(w).expect("an upload")).collect()
    };
    let watch = Arc::new(Watch { no_ring: AtomicBool::new(true), ..Watch::default() });
    let mut backend = on(Watched::new(Simt::new(1, 0), &watch), streaming(0, 2));
    let weights = ids(&mut backend);
    let message = backend.compile(&case.p, &weights).unwrap_err().to_string();
    assert!(message.contains("page-locked") && message.contains("refused"), "{message}");
    // Page-locked memory is available again.
    watch.no_ring.store(false, Ordering::Relaxed);
    backend.compile(&case.p, &weights).expect("memory");

    let want = everything(&case, &pages, &mut *on(Simt::new(1, 0), None), By::Step);
    for n in [1, 6] {
        let watch = Arc::new(Watch { fails: AtomicU32::new(2 + n), ..Watch::default() });
        let mut backend = on(Watched::new(Simt::new(1, 1), &watch), streaming(0, 2));
        let mut running = case.on(&mut *backend);
        let failed = first_error(&mut running, &pages);
        assert!(failed.contains("copy_ahead") && failed.contains("failed once"), "{failed}");
        // Later steps find every layer in its slot.
        assert!(everything_of(&mut running, &case, &pages, By::Step) == want, "after copy {n}");
    }
}

fn first_error(running: &mut Running<'_>, pages: &sterna::program::PageTable) -> String {
    let rows = [Row { token: 3, pos: 0, seq: 0, logits: true }];
    let step = Step { rows: &rows, pages, sampling: &[Some(Sampling::GREEDY)], changes: &[] };
    let run = |_| running.backend.run(running.exec, &step).err();
    (0..4).find_map(run).expect("an error").to_string()
}

/// By timestamps in graphs, and by events around stages.
#[test]
fn streamed_layers_are_timed() {
    let (case, pages) = model_case(Model { n_layers: 3, ..SMALL });
    for how in [Profiling::Stamps, Profiling::Events] {
        let card = Cuda::on(Box::new(Simt::new(1, 0))).profiled(Some(how)).streamed(streaming(0, 1));
        let mut backend: Box<dyn Backend> = Box::new(card);
        let mut running = case.on(&mut *backend);
        everything_of(&mut running, &case, &pages, By::Step);
        let exec = running.exec;
        let times = backend.stage_times(exec).expect("they are timed");
        assert_eq!(times.len(), case.p.stages.len());
        assert!(times.iter().all(|time| time.calls == 7), "{how:?}: {times:?}");
    }
}

/// Two programs over the same weights run one after the other, each with its own slots.
#[test]
fn two_programs_share_streamed_weights() {
    let (case, pages) = model_case(Model { n_layers: 4, ..SMALL });
    let want = everything(&case, &pages, &mut *on(Simt::new(1, 0), None), By::Step);
    let mut backend = on(Simt::new(1, 2), streaming(1, 1));
    let weights: Vec<_> = case.weights.iter().map(|w| backend.upload(w).expect("an upload")).collect();
    let execs = [(); 2].map(|()| backend.compile(&case.p, &weights).expect("memory"));
    for exec in execs {
        let mut running = Running { p: &case.p, backend: &mut *backend, exec };
        assert!(everything_of(&mut running, &case, &pages, By::Step) == want);
    }
}

#[test]
fn options_choose_the_layers_and_the_note_names_them() {
    let (case, _) = model_case(Model { n_layers: 5, ..SMALL });
    let note_of = |options: DeviceOptions| -> Result<Option<String>, BackendError> {
        let DeviceOptions { backend, .. } = "cuda-simt".parse::<DeviceOptions>()?;
        let options = DeviceOptions { backend, op_offload_min_batch: Some(MinBatch::Rows(1)), ..options };
        let mut backend = options.open(1)?;
        case.on(&mut *backend);
        Ok(backend.note())
    };
    let layers = |n: &str| DeviceOptions { gpu_layers: Some(n.parse().unwrap()), ..DeviceOptions::default() };
    for (options, want) in [
        (DeviceOptions::default(), None),
        (layers("all"), None),
        (layers("99"), None),
        (layers("auto"), None),
        (layers("2"), Some("2 of 5 layers stay on the GPU; the weights of the other 3 (")),
        (DeviceOptions { stream_slots: Some(3), ..layers("0") }, Some("in every step, through 3 slots of ")),
    ] {
        let note = note_of(options.clone()).expect("options");
        assert_eq!(note.is_some(), want.is_some(), "{options:?}: {note:?}");
        assert!(note.unwrap_or_default().contains(want.unwrap_or_default()));
    }
    for (list, want) in [
        ("exps", "want PATTERN=BUFFER"),
        ("a=CPU,(=CPU", "`(` is not a regular expression"),
        ("a=ROCm0", "want the buffer CPU, CUDA_Host or CUDA0, got `ROCm0`"),
    ] {
        let options = DeviceOptions { override_tensor: Some(list.into()), ..DeviceOptions::default() };
        let message = note_of(options).unwrap_err().to_string();
        assert!(message.contains(&format!("DeviceOptions::override_tensor: {want}")), "{message}");
    }
}

/// Names of the matrices of a layer's experts.
fn experts_of(p: &Program, layer: usize) -> Vec<&str> {
    let stages = p.layers().remove(layer).stages;
    let experts = p.stages[stages].iter().flat_map(|(_, stage)| match stage {
        Stage::Experts(s) => s.experts.as_slice(),
        _ => &[],
    });
    experts.flat_map(Expert::layers).map(|linear| p.weight_decl(linear.w).name.as_str()).collect()
}

/// If only experts are streamed, steps of few rows read the selected ones from host memory: they copy
/// nothing, and give the same bits as experts on the card.
#[test]
fn selected_experts_are_read_from_host_memory() {
    let model = Model { n_layers: 2, weights: "i2_s", experts: Some((16, 2)), ..MIXTURE };
    let (case, pages) = model_case(model);
    let want = everything(&case, &pages, &mut *on(Simt::new(1, 0), None), By::Step);
    let all: Vec<String> = (0..model.n_layers)
        .map(|layer| format!("^({})$=CPU", experts_of(&case.p, layer).join("|")))
        .collect();
    let overrides = Overrides::parse(&all.join(",")).expect("patterns");
    let streaming = Streaming { overrides, ..Streaming::new(GpuLayers::Count(9), 1) };
    for by in [By::Step, By::Stage] {
        let mut backend = on(Simt::new(1, 3), Some(streaming.clone()));
        assert!(everything(&case, &pages, &mut *backend, by) == want, "{model:?} by {by:?}");
        let note = backend.note().expect("something is streamed");
        assert!(note.contains("in steps of more than 8 rows"), "{note}");
        assert!(note.contains("reads the selected experts from host memory"), "{note}");
    }
    let watch = Arc::new(Watch::default());
    let mut backend = on(Watched::new(Simt::new(1, 1), &watch), Some(streaming.clone()));
    let running = case.on(&mut *backend);
    let mut copies_in = |n: u32| {
        let row = |pos| Row { token: 3, pos, seq: 0, logits: pos + 1 == n };
        let rows: Vec<Row> = (0..n).map(row).collect();
        let before = watch.copies.load(Ordering::Relaxed);
        let step = Step { rows: &rows, pages: &pages, sampling: &[Some(Sampling::GREEDY)], changes: &[] };
        running.backend.run(running.exec, &step).expect("a run");
        watch.copies.load(Ordering::Relaxed) - before
    };
    assert_eq!([1, 8, 1].map(&mut copies_in), [0; 3]);
    assert_eq!([20, 20].map(&mut copies_in), [model.n_layers as u64; 2]);
    assert_eq!(copies_in(1), 0);
}

/// Matrices that match a pattern, such as experts, stay in host memory; the rest of their layers is on the
/// card, and the bits are the same.
#[test]
fn only_matching_matrices_are_streamed() {
    let (case, pages) = model_case(Model { n_layers: 4, weights: "q8_0", ..MIXTURE });
    let want = everything(&case, &pages, &mut *on(Simt::new(1, 0), None), By::Step);
    let whole = on(Simt::new(1, 0), None).plan(&case.p).expect("a plan");
    // Experts of all layers except the second, which an earlier pattern keeps on the card.
    let experts = |layer: usize| experts_of(&case.p, layer);
    let pattern = |layer: usize| format!("^({})$", experts(layer).join("|"));
    assert_eq!(experts(1).len(), 18);
    let all: Vec<String> = (0..4).map(|layer| pattern(layer) + "=CPU").collect();
    let text = format!("{}=CUDA0,{}", pattern(1), all.join(","));
    let overrides = Overrides::parse(&text).expect("patterns");
    let slots = 2;
    let some = Streaming { overrides: overrides.clone(), ..Streaming::new(GpuLayers::Count(9), slots) };
    let mut backend = on(Simt::new(1, 2), Some(some));
    let plan = backend.plan(&case.p).expect("a plan");
    // On a card, rows have multiples of 256 columns.
    let experts = 6 * (2 * 384 * 256 + 256 * 512) / 32 * 34;
    assert_eq!(plan.host_bytes, 3 * experts);
    assert_eq!(plan.weights_bytes, whole.weights_bytes - (3 - slots as u64) * experts);
    assert!(everything(&case, &pages, &mut *backend, By::Step) == want, "{slots} slots");
    let note = backend.note().expect("something is streamed");
    assert!(note.contains("1 of 4 layers stay on the GPU; the weights of the other 3 ("), "{note}");
    // Together with layers that are streamed whole, and with slots for everything that would be streamed.
    let both = Streaming { overrides: overrides.clone(), ..Streaming::new(GpuLayers::Count(2), 1) };
    let mut backend = on(Simt::new(1, 3), Some(both));
    assert!(backend.plan(&case.p).expect("a plan").host_bytes > 3 * experts);
    assert!(everything(&case, &pages, &mut *backend, By::Step) == want);
    let roomy = Streaming { overrides, ..Streaming::new(GpuLayers::Count(9), 3) };
    assert_eq!(on(Simt::new(1, 0), Some(roomy)).plan(&case.p).expect("a plan").host_bytes, 0);
}
