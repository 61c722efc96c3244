//! Errors of the wgpu backend if a device, a limit or memory is missing, which must not be endless waits.
#![cfg(feature = "wgpu")]

use std::path::Path;
use std::sync::Arc;

use sterna::backend::wgpu::Wgpu;
use sterna::backend::wgpu::device::{Gpu, NEEDED, Options};
use sterna::backend::{Backend, BackendError, DeviceOptions, Int8, Opened, OptionId, Profile, auto};
use sterna::program::{Act, ActQuant, FfnIn, Logits, NormKind, ProjAdd, Row, RowsOf, Sampling, Step};
use support::case::model::{Model, SMALL};
use support::case::{Case, StepCase, limits, rows, shuffled_pages, ty, windowed_limits};

/// Opens a separate device. `None` without an adapter, which prints a line.
fn gpu(options: &Options) -> Option<Arc<Gpu>> {
    support::case::wgpus().first().map(|_| Arc::new(Gpu::open(options).expect("it opened before")))
}

#[test]
fn lost_devices_are_an_error() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    let mut backend = Wgpu::on(Arc::clone(&gpu));
    let (case, logits) = SMALL.case("a small model", limits(2, 1, 1));
    let mut running = case.on(&mut backend);
    let (pages, row) = (shuffled_pages(1, 1), Row { token: 1, pos: 0, seq: 0, logits: true });
    let step = Step { rows: &[row], pages: &pages, sampling: &[], changes: &[] };
    running.backend.run(running.exec, &step).expect("a run");
    assert!(running.read(logits, 1).iter().all(|x| x.is_finite()));
    gpu.lose();
    let run = running.backend.run(running.exec, &step).map(|()| String::new());
    let message = run.unwrap_or_else(|err| err.to_string());
    assert!(message.contains("the device was lost"), "{message}");
    let read = running.backend.read(running.exec, logits, 0, &mut [0.0; 4]);
    assert!(read.unwrap_err().to_string().contains("the device was lost"));
    assert!(running.backend.upload(&case.weights[0]).is_err());
}

/// A wait of one thread may complete another thread's read.
#[test]
fn threads_can_share_a_device() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    let (pages, row) = (shuffled_pages(1, 1), Row { token: 1, pos: 0, seq: 0, logits: true });
    let answers = || {
        let mut backend = Wgpu::on(Arc::clone(&gpu));
        let (case, logits) = SMALL.case("a small model", limits(2, 1, 1));
        let mut running = case.on(&mut backend);
        let mut answer = || {
            running.run(
                0..case.p.stages.len(),
                &Step { rows: &[row], pages: &pages, sampling: &[], changes: &[] },
            );
            running.read(logits, 1)
        };
        let first = answer();
        assert!((0..25).all(|_| answer() == first));
        first
    };
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(answers)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect::<Vec<_>>()
    });
    assert!(all.windows(2).all(|two| two[0] == two[1]));
}

/// Opens a backend on a device.
fn open_on(name: &str, device: &str) -> Opened {
    DeviceOptions { device: Some(device.into()), ..name.parse()? }.open(1)
}

#[test]
fn unknown_devices_are_listed_with_the_known_ones() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    for word in ["no such card", "99"] {
        let message = open_on("wgpu", word).map(|_| ()).unwrap_err().to_string();
        assert!(message.contains(&format!("no device `{word}`; this machine has 0: ")), "{message}");
    }
    let first = open_on("wgpu", "0").expect("the first device");
    let device = Wgpu::on(gpu).device();
    let name = device.split(" (").next().expect("a name").to_uppercase();
    assert!(first.device().to_uppercase().starts_with(&name) || open_on("wgpu", &name).is_ok());
    let message = open_on("cpu", "0").map(|_| ()).unwrap_err().to_string();
    assert!(message.contains("DeviceOptions::device: supported only by cuda and wgpu"), "{message}");
}

#[test]
fn wgpu_options_are_refused_by_other_backends() {
    for name in ["auto", "cpu"] {
        let device = DeviceOptions { int8: Some(Int8::Packed), ..name.parse().unwrap() };
        let want = format!("backend {name}: DeviceOptions::int8: supported only by wgpu");
        assert_eq!(device.open(1).map(drop).unwrap_err().to_string(), want);
    }
    let device = DeviceOptions { profile: Some(Profile::Events), .."wgpu".parse().unwrap() };
    let wrong = device.open(1).map(drop);
    let Err(BackendError::Option { backend: "wgpu", option: OptionId::Profile, detail }) = wrong else {
        panic!("{wrong:?}");
    };
    assert_eq!(detail, "want true, got `events`");
}

/// A step in a submission per launch gives the same bits as in one submission.
#[test]
fn submissions_can_be_short() {
    let mut all = Vec::new();
    for submission_ms in [None, Some(0.0)] {
        let Some(gpu) = gpu(&Options { submission_ms, ..Options::default() }) else { return };
        let mut backend = Wgpu::on(gpu);
        let (case, logits) = SMALL.case("a small model", limits(20, 1, 1));
        let mut running = case.on(&mut backend);
        let pages = shuffled_pages(1, 1);
        let mut of_steps = Vec::new();
        for positions in [0..20, 20..21] {
            let mut rows = rows(0, positions);
            rows.last_mut().expect("a row").logits = true;
            let sampling = [Some(Sampling::GREEDY)];
            let step = Step { rows: &rows, pages: &pages, sampling: &sampling, changes: &[] };
            running.backend.run(running.exec, &step).expect("a run");
            let mut token = [0];
            running.backend.tokens(running.exec, 0, &mut token).expect("a token");
            of_steps.push((running.read(logits, 1), token));
        }
        all.push(of_steps);
    }
    assert!(all[0] == all[1]);
}

/// Rows of weights share a subgroup, as on GPUs, whose subgroups are larger than those of software devices.
#[test]
fn rows_of_weights_can_share_a_subgroup() {
    for lanes in [4, 2] {
        let Some(gpu) = gpu(&Options { lanes: Some(lanes), ..Options::default() }) else { return };
        for (name, act) in [
            ("i2_s", ActQuant::I8PerToken),
            ("q4_k", ActQuant::None),
            ("q8_0", ActQuant::None),
            ("f16", ActQuant::None),
        ] {
            for n_rows in [1, 5] {
                let (outputs, cols) = (37, 768);
                let title = format!("{name}, {lanes} lanes, {n_rows} rows");
                let mut case = Case::new(&title, limits(n_rows, 1, 1));
                let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
                let w = case.linear(ty(name), outputs, cols, act);
                case.p.push("proj_add", ProjAdd::plain(y, w, x));
                let inputs =
                    vec![(y, case.numbers.values(n_rows * cols)), (x, case.numbers.values(n_rows * outputs))];
                let step = StepCase { rows: rows(0, 0..n_rows as u32), stages: 0..1, inputs, read: vec![x] };
                let backend: Box<dyn Backend> = Box::new(Wgpu::on(Arc::clone(&gpu)));
                case.check(vec![backend], &shuffled_pages(1, 1), &[step]);
                let (case, step) = gated_unit(&title, (name, act), n_rows);
                let backend: Box<dyn Backend> = Box::new(Wgpu::on(Arc::clone(&gpu)));
                case.check(vec![backend], &shuffled_pages(1, 1), &[step]);
            }
        }
    }
}

/// A stage whose norm and gated linear unit are in the kernel of its products, and its inputs.
fn gated_unit(title: &str, (name, act): (&str, ActQuant), n_rows: usize) -> (Case, StepCase) {
    let (ffn_dim, dim) = (37, 768);
    let mut case = Case::new(title, limits(n_rows, 1, 1));
    let (x, h) = (case.buf("x", dim), case.buf("h", ffn_dim));
    let norm = case.norm(NormKind::Rms, dim);
    let [gate, up] = [(); 2].map(|()| case.linear_with_bias(ty(name), ffn_dim, dim, act));
    case.p.push("ffn_in", FfnIn::gated(x, norm, gate, up, Act::Silu, h));
    let inputs = vec![(x, case.numbers.values(n_rows * dim))];
    let step = StepCase { rows: rows(0, 0..n_rows as u32), stages: 0..1, inputs, read: vec![h] };
    (case, step)
}

/// The kernels of every weight type that apply a norm and a gated linear unit: for one row, a few, and many.
#[test]
fn gated_units_of_every_kind_of_type() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    let none = ActQuant::None;
    for of_type in [
        ("i2_s", ActQuant::I8PerToken),
        ("i2_s", none),
        ("f16", none),
        ("f32", none),
        ("q2_k", none),
        ("q5_k", none),
        ("q6_k", none),
        ("q8_0", none),
        ("iq4_xs", none),
        ("iq3_s", none),
    ] {
        for n_rows in [1, 3, 9] {
            let title = format!("a gated unit of {}, {n_rows} rows", of_type.0);
            let (case, step) = gated_unit(&title, of_type, n_rows);
            let backend: Box<dyn Backend> = Box::new(Wgpu::on(Arc::clone(&gpu)));
            case.check(vec![backend], &shuffled_pages(1, 1), &[step]);
        }
    }
}

/// Kernels of one row and of a few share only the text of their loops; their sums have the same bits.
#[test]
fn a_few_rows_have_the_bits_of_single_rows() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    for (name, act) in [
        ("i2_s", ActQuant::I8PerToken),
        ("tq2_0", ActQuant::None),
        ("q4_k", ActQuant::None),
        ("q6_k", ActQuant::None),
        ("mxfp4", ActQuant::None),
        ("iq4_nl", ActQuant::None),
        ("f16", ActQuant::None),
    ] {
        let (n_rows, outputs, cols) = (3, 37, 768);
        let mut case = Case::new(name, limits(n_rows, 1, 1));
        let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
        let w = case.linear(ty(name), outputs, cols, act);
        case.p.push("proj_add", ProjAdd::plain(y, w, x));
        let inputs = case.numbers.values(n_rows * cols);
        let mut backend = Wgpu::on(Arc::clone(&gpu));
        let mut running = case.on(&mut backend);
        let pages = shuffled_pages(1, 1);
        let mut products = |inputs: &[f32]| {
            let n = inputs.len() / cols;
            running.write(y, inputs);
            running.write(x, &vec![0.0; n * outputs]);
            let rows = rows(0, 0..n as u32);
            running.run(0..1, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] });
            running.read(x, n)
        };
        let together = products(&inputs);
        let alone: Vec<f32> = inputs.chunks(cols).flat_map(&mut products).collect();
        assert!(together == alone && together.iter().all(|sum| *sum != 0.0), "{name}");

        let (case, step) = gated_unit(name, (name, act), n_rows);
        let ((x, inputs), h) = (&step.inputs[0], step.read[0]);
        let mut backend = Wgpu::on(Arc::clone(&gpu));
        let mut running = case.on(&mut backend);
        let mut hidden = |inputs: &[f32]| {
            let n = inputs.len() / cols;
            running.write(*x, inputs);
            running.run(0..1, &Step { rows: &step.rows[..n], pages: &pages, sampling: &[], changes: &[] });
            running.read(h, n)
        };
        let together = hidden(inputs);
        let alone: Vec<f32> = inputs.chunks(cols).flat_map(&mut hidden).collect();
        assert!(together == alone && together.iter().all(|h| *h != 0.0), "gated unit of {name}");
    }
}

/// Each stage is timed without changing its results. A device without timestamps gives an error.
#[test]
fn stages_are_timed_on_devices_with_timestamps() {
    let Some(plain) = gpu(&Options::default()) else { return };
    let timed = match Gpu::open(&Options { profile: true, ..Options::default() }) {
        Ok(gpu) => Arc::new(gpu),
        Err(err) => {
            return assert!(err.to_string().contains("DeviceOptions::profile: "), "{err}");
        }
    };
    let (case, logits) = SMALL.case("a small model", limits(2, 1, 1));
    let (pages, row) = (shuffled_pages(1, 1), Row { token: 1, pos: 0, seq: 0, logits: true });
    let step = Step { rows: &[row], pages: &pages, sampling: &[], changes: &[] };
    let mut all = Vec::new();
    for (gpu, is_timed) in [(plain, false), (timed, true)] {
        let mut backend = Wgpu::on(gpu);
        let mut running = case.on(&mut backend);
        running.backend.run(running.exec, &step).expect("a run");
        running.run(0..3, &step);
        running.backend.run(running.exec, &step).expect("a run");
        all.push(running.read(logits, 1));
        let times = running.backend.stage_times(running.exec);
        assert_eq!(times.is_some(), is_timed);
        if let Some(times) = times {
            let calls: Vec<u64> = times.iter().map(|time| time.calls).collect();
            assert!(calls[..3] == [3; 3] && calls[3..].iter().all(|calls| *calls == 2), "{calls:?}");
            // A stage without work, such as sampling without sampled rows, may take no time.
            let busy = times.iter().filter(|time| time.nanoseconds > 0).count();
            assert!(busy + 1 >= times.len(), "{times:?}");
        }
    }
    assert_eq!(all[0], all[1]);
}

/// Kernels that one run compiles are cached for the next; a corrupt or missing file is ignored.
#[test]
fn kernel_cache_ignores_broken_files() {
    if gpu(&Options::default()).is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let options = |dir: &Path| Options { cache_dir: Some(dir.to_owned()), ..Options::default() };
    let (case, logits) = SMALL.case("a small model", limits(2, 1, 1));
    let run = |dir: &Path| {
        let mut backend = Wgpu::on(gpu(&options(dir)).expect("it opened before"));
        let mut running = case.on(&mut backend);
        let (pages, row) = (shuffled_pages(1, 1), Row { token: 1, pos: 0, seq: 0, logits: true });
        let step = Step { rows: &[row], pages: &pages, sampling: &[], changes: &[] };
        running.backend.run(running.exec, &step).expect("a run");
        running.read(logits, 1)
    };
    let cache_dir = dir.path().join("new");
    let files = || -> Vec<_> {
        let entries = std::fs::read_dir(&cache_dir).into_iter().flatten();
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    let want = run(&cache_dir);
    let files_now = files();
    let [file] = &files_now[..] else {
        return support::print_note(format_args!("not run: this adapter does not cache compiled kernels"));
    };
    let whole = std::fs::read(file).expect("a file");
    assert!(
        whole.len() > 8 && file.file_name().is_some_and(|name| name.to_string_lossy().contains("vulkan"))
    );
    assert_eq!(run(&cache_dir), want);
    let mut wrong = whole.clone();
    wrong[whole.len() / 2] ^= 1;
    for bytes in [&wrong[..], &whole[..whole.len() / 2], b"", b"no cache at all"] {
        std::fs::write(file, bytes).expect("a write");
        assert_eq!(run(&cache_dir), want);
        assert_ne!(std::fs::read(file).expect("a file"), bytes, "not rewritten");
    }
    // A folder that cannot be created.
    assert_eq!(run(&file.join("below a file")), want);
    assert_eq!(files().len(), 1);
}

/// `--backend wgpu` uses a software adapter if there is no GPU, with a note; `auto` does not.
#[test]
fn auto_does_not_use_software_adapters() {
    let Some(gpu) = gpu(&Options::default()) else { return };
    let backend = Wgpu::on(gpu);
    let software = backend.device().contains("software on the CPU");
    assert_eq!(backend.note().is_some_and(|note| note.contains("wgpu found no GPU")), software);
    let names: Vec<_> = auto(1).into_iter().flatten().map(|backend| backend.name()).collect();
    assert_eq!(names.contains(&"wgpu"), !software, "{names:?}");
    assert_eq!(names.last(), Some(&"cpu"));
}

#[test]
fn oversized_buffers_are_refused_by_the_plan() {
    let options = Options { max_part_bytes: Some(1000), ..Options::default() };
    let Some(gpu) = gpu(&options) else { return };
    let backend = Wgpu::on(gpu);
    let mut case = Case::new("a row that is too long", limits(1, 1, 1));
    let (y, x) = (case.buf("y", 512), case.buf("x", 3));
    let w = case.linear(ty("f32"), 3, 512, ActQuant::None);
    case.p.push("proj_add", ProjAdd::plain(y, w, x));
    let message = backend.plan(&case.p).unwrap_err().to_string();
    assert!(message.contains("a row takes 2048 bytes, more than the 1000"), "{message}");

    let mut case = Case::new("logits that are too many", limits(60_000, 1, 1000));
    let (x, logits) = (case.buf("x", 8), case.p.buf("logits", RowsOf::Outputs, 1_000_000));
    let norm = case.norm(NormKind::Rms, 8);
    let w = case.linear(ty("f16"), 1_000_000, 8, ActQuant::None);
    case.p.push("logits", Logits { x, norm, w, soft_cap: None, logits });
    let message = backend.plan(&case.p).unwrap_err().to_string();
    assert!(message.contains("logits of 60000 rows: 240000000000 bytes"), "{message}");
}

/// A program with one buffer of this size and little else.
fn with_a_buffer_of(bytes: usize) -> Case {
    let mut case = Case::new("a large buffer", limits(bytes / 512, 1, 1));
    let (y, x) = (case.buf("y", 8), case.buf("x", 128));
    let w = case.linear(ty("f32"), 128, 8, ActQuant::None);
    case.p.push("proj_add", ProjAdd::plain(y, w, x));
    case
}

/// If memory is known to be short, nothing is allocated; otherwise the error is the driver's. The device
/// works afterwards in both cases.
#[test]
fn devices_work_after_an_out_of_memory_error() {
    let full = Options { memory_bytes: Some(4 << 20), ..Options::default() };
    let Some(gpu) = gpu(&full) else { return };
    let mut backend = Wgpu::on(gpu);
    let (large, small) = (with_a_buffer_of(8 << 20), with_a_buffer_of(512));
    let plan = backend.plan(&large.p).expect("kernels for all");
    assert!(plan.free_bytes.is_some_and(|free| free < plan.bufs_bytes), "{plan:?}");
    let ids = [backend.upload(&large.weights[0]).expect("a small weight")];
    let message = backend.compile(&large.p, &ids).unwrap_err().to_string();
    assert!(message.contains("bytes needed") && message.contains("bytes free"), "{message}");
    let mut too_large = Case::new("a large weight", limits(1, 1, 1));
    too_large.weight(ty("f32"), 2048, 1024);
    let message = backend.upload(&too_large.weights[0]).unwrap_err().to_string();
    assert!(message.contains("8388608 bytes needed"), "{message}");
    check_works(&mut backend, &small);

    // A buffer larger than any device supports: the plan accepts it, and wgpu refuses it.
    let trusting = Options { max_buffer_bytes: Some(u64::MAX), ..Options::default() };
    let mut backend = Wgpu::open(&trusting).expect("it opened before");
    let mut case = Case::new("what no device has", limits(60_000, 1, 1));
    let (x, logits) = (case.buf("x", 8), case.p.buf("logits", RowsOf::Outputs, 100_000_000));
    let norm = case.norm(NormKind::Rms, 8);
    let w = case.linear(ty("f32"), 8, 8, ActQuant::None);
    let _ = (x, logits, norm, w);
    let ids: Vec<_> = case.weights.iter().map(|w| backend.upload(w).expect("a small weight")).collect();
    let message = backend.compile(&case.p, &ids).unwrap_err().to_string();
    assert!(message.contains("allocating memory: 24000000000000 bytes: "), "{message}");
    assert!(message.contains("a KV cache of q8_0"), "{message}");
    check_works(&mut backend, &small);
}

/// Allocated buffers match the plan, except for the parameters of dispatches.
#[test]
fn buffers_match_the_plan() {
    /// Parameters of a stage's dispatches: a few, and each begins at a multiple of 256 bytes.
    const PARAMS_BYTES: u64 = 4096;
    for (weights, kv) in
        [("i2_s", "f16"), ("q6_k", "q8_0"), ("tq1_0", "turboquant-mse"), ("q4_0", "q4_0"), ("f16", "f32")]
    {
        // A few rows per part, so that there are several.
        let options =
            Options { memory_bytes: Some(1 << 40), max_part_bytes: Some(32 << 10), ..Options::default() };
        let Some(gpu) = gpu(&options) else { return };
        let mut backend = Wgpu::on(gpu);
        let windowed = kv == "turboquant-mse";
        let limits = if windowed { windowed_limits(96, 1, 6) } else { limits(96, 1, 6) };
        let (case, _) = Model { weights, kv, ffn_dim: 512, ..SMALL }.case("a small model", limits);
        if !case.has_kernels(&backend) {
            continue;
        }
        let plan = backend.plan(&case.p).expect("kernels for all");
        let free =
            |backend: &Wgpu| backend.plan(&case.p).expect("as before").free_bytes.expect("it is limited");
        let before = free(&backend);
        let ids: Vec<_> = case.weights.iter().map(|w| backend.upload(w).expect("there is room")).collect();
        let after = free(&backend);
        assert_eq!(before - after, plan.weights_bytes, "{weights}");
        backend.compile(&case.p, &ids).expect("there is room");
        let planned = plan.kv_bytes + plan.bufs_bytes;
        let taken = after - free(&backend);
        let params = PARAMS_BYTES * case.p.stages.len() as u64;
        assert!(
            (planned..=planned + params).contains(&taken),
            "{weights}, {kv}: {planned} planned, {taken} taken"
        );
    }
}

/// Checks that the backend still computes correctly.
fn check_works(backend: &mut Wgpu, case: &Case) {
    let mut running = case.on(backend);
    let pages = shuffled_pages(1, 1);
    let row = Row { token: 0, pos: 0, seq: 0, logits: false };
    running.write(sterna::program::Buf(0), &[0.0; 8]);
    running.write(sterna::program::Buf(1), &[2.0; 128]);
    running.run(0..1, &Step { rows: &[row], pages: &pages, sampling: &[], changes: &[] });
    assert_eq!(running.read(sterna::program::Buf(1), 1), [2.0; 128]);
}

#[test]
fn adapters_below_the_limits_are_refused() {
    if gpu(&Options::default()).is_none() {
        return;
    }
    for (limit, needs) in NEEDED {
        let options = Options { at_most: vec![(limit, needs - 1)], ..Options::default() };
        let message = Gpu::open(&options).map(drop).unwrap_err().to_string();
        let want = format!(
            "has {} {limit}, and {needs} are needed; choose another with DeviceOptions::device",
            needs - 1
        );
        assert!(message.contains(&want) && message.contains("the cpu backend"), "{message}");
        let options = Options { at_most: vec![(limit, needs)], ..Options::default() };
        assert!(Gpu::open(&options).is_ok(), "{limit}");
    }
    let options = Options { timestamps: Some(false), ..Options::default() };
    assert!(Gpu::open(&options).is_ok());
    let message = Gpu::open(&Options { profile: true, ..options }).map(drop).unwrap_err().to_string();
    assert!(message.contains("has no timestamps; choose another with DeviceOptions::device"), "{message}");
}
