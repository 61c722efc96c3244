//! Weights that the CPU backend reads from a file in every step: the same bits as with weights in memory, for
//! any amount of memory, and read errors.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use ggml_types::HostTensor;
use sterna::backend::cpu::Cpu;
use sterna::backend::cpu::stream::Streaming;
use sterna::backend::{
    Backend, BackendError, DeviceOptions, Exec, KvPage, Resident, WeightBytes, WeightRows,
};
use sterna::program::{Buf, PageTable, Row, Sampling, Step, WeightDecl};
use support::case::model::{MIXTURE, Model, SMALL};
use support::case::{Case, limits, shuffled_pages, windowed_limits, windowed_pages};

const N_SEQS: usize = 2;

/// Number and faults of reads.
#[derive(Default)]
struct Disk {
    /// Reads so far.
    n: AtomicUsize,
    /// The read that fails, counted from the next one; 0 for none.
    fails_after: AtomicI64,
    fault: Fault,
    /// Every `slow_each`-th read takes a millisecond; 0 for none.
    slow_each: usize,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Fault {
    #[default]
    Error,
    End,
    Panic,
}

struct OnDisk {
    tensor: HostTensor,
    disk: Arc<Disk>,
}

impl WeightBytes for OnDisk {
    fn read_at(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        let n = self.disk.n.fetch_add(1, Ordering::Relaxed);
        if self.disk.slow_each > 0 && n.is_multiple_of(self.disk.slow_each) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The thread that runs a step reads the rows of the embedding itself, so a panic would end it.
        let is_ahead = std::thread::current().name() == Some("cpu-reader");
        if (is_ahead || self.disk.fault != Fault::Panic)
            && self.disk.fails_after.load(Ordering::Relaxed) > 0
            && self.disk.fails_after.fetch_sub(1, Ordering::Relaxed) == 1
        {
            match self.disk.fault {
                Fault::Error => return Err(io::Error::other("the disk has failed")),
                Fault::End => return Err(io::ErrorKind::UnexpectedEof.into()),
                Fault::Panic => panic!("a panic in the source"),
            }
        }
        // Overwrite the old contents of the slot.
        into.fill(0xA5);
        into.copy_from_slice(&self.tensor.bytes[at..at + into.len()]);
        Ok(())
    }
}

struct Weight<'a> {
    tensor: &'a HostTensor,
    decl: &'a WeightDecl,
    disk: &'a Arc<Disk>,
}

impl WeightRows for Weight<'_> {
    fn decl(&self) -> &WeightDecl {
        self.decl
    }

    fn read(&self, rows: Range<usize>) -> Result<HostTensor, BackendError> {
        let HostTensor { ty, cols, ref bytes, .. } = *self.tensor;
        let row_bytes = ty.row_bytes(cols).unwrap();
        let tail = &bytes[self.tensor.rows * row_bytes..];
        let bytes = [&bytes[rows.start * row_bytes..rows.end * row_bytes], tail].concat().into();
        Ok(HostTensor { rows: rows.len(), bytes, ..self.tensor.clone() })
    }

    fn reader(&self) -> Option<Arc<dyn WeightBytes>> {
        Some(Arc::new(OnDisk { tensor: self.tensor.clone(), disk: Arc::clone(self.disk) }))
    }
}

fn streaming(resident: Resident, slots: usize, piece_bytes: usize) -> Streaming {
    Streaming { resident, slots, piece_bytes, most_bytes: None }
}

fn model_case(model: Model) -> (Case, PageTable) {
    let windowed = model.kv == "turboquant";
    let limits = if windowed { windowed_limits(80, N_SEQS, 2) } else { limits(80, N_SEQS, 2) };
    let pages = if windowed { windowed_pages(N_SEQS, 2) } else { shuffled_pages(N_SEQS, 2) };
    (model.case("a small model", limits).0, pages)
}

/// Creates a backend with the model's weights on such a disk.
fn on(case: &Case, threads: usize, streaming: Streaming, disk: &Arc<Disk>) -> (Cpu, Exec) {
    let mut cpu = Cpu::new(threads).expect("threads").streamed(streaming);
    cpu.prepare(&case.p).expect("a plan");
    let weights = case.weights.iter().zip(&case.p.weights);
    let ids: Vec<_> = weights
        .map(|(tensor, decl)| cpu.upload_rows(&Weight { tensor, decl, disk }).expect("an upload"))
        .collect();
    let exec = cpu.compile(&case.p, &ids).expect("a program that compiles");
    (cpu, exec)
}

fn in_memory(case: &Case) -> (Cpu, Exec) {
    on(case, 2, streaming(Resident::All, 1, 1), &Arc::default())
}

/// `n` positions of the first sequence and one of the other.
fn step(pos: [u32; N_SEQS], n: u32, logits: bool) -> Vec<Row> {
    let row = |seq: usize, pos: u32, last: bool| Row {
        token: (pos * 37 + 11 * seq as u32) % 300,
        pos,
        seq: seq as u32,
        logits: last && logits,
    };
    let mut rows = vec![row(1, pos[1], true)];
    rows.extend((pos[0]..pos[0] + n).map(|at| row(0, at, at + 1 == pos[0] + n)));
    rows
}

/// Prompts and single positions, some of whose logits are not needed.
const STEPS: [(u32, bool); 8] =
    [(70, true), (9, false), (1, true), (1, true), (1, false), (1, true), (1, true), (1, true)];

/// Logits of every step and all pages after the last one.
fn everything(cpu: &mut Cpu, exec: Exec, case: &Case, pages: &PageTable, by_stage: bool) -> Vec<Vec<u8>> {
    let (mut pos, mut all) = ([0; N_SEQS], Vec::new());
    let logits = case.p.buf_named("logits").expect("logits");
    for (n, wanted) in STEPS {
        let rows = step(pos, n, wanted);
        let sampling = if wanted { vec![Some(Sampling::GREEDY); N_SEQS] } else { Vec::new() };
        let step = Step { rows: &rows, pages, sampling: &sampling, changes: &[] };
        match by_stage {
            false => cpu.run(exec, &step).expect("a run"),
            true => {
                (0..case.p.stages.len()).for_each(|i| cpu.run_stages(exec, i..i + 1, &step).expect("a stage"))
            }
        }
        pos = [pos[0] + n, pos[1] + 1];
        if wanted {
            all.push(floats(cpu, exec, logits, case));
        }
    }
    for page in 0..case.p.limits.pages as u32 {
        let mut bytes = vec![0; cpu.page_bytes(exec, KvPage::Quantised(page))];
        cpu.read_page(exec, KvPage::Quantised(page), &mut bytes).expect("a page");
        all.push(bytes);
    }
    all
}

fn floats(cpu: &mut Cpu, exec: Exec, buf: Buf, case: &Case) -> Vec<u8> {
    let mut values = vec![0.0; N_SEQS * case.p.buf_decl(buf).cols];
    cpu.read(exec, buf, 0, &mut values).expect("a read");
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Several numbers of slots, numbers of layers that are a multiple of them and not, reads of a few rows and
/// of all, types with interleaved rows, with a trailer and without, experts, and stages one by one.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn streamed_weights_match_weights_in_memory() {
    use Resident::{Count, Nothing};
    for (model, resident, slots, piece_bytes, threads) in [
        (Model { n_layers: 5, ..SMALL }, Count(0), 2, 4096, 2),
        (Model { n_layers: 3, ..SMALL }, Count(0), 1, 1, 1),
        (Model { n_layers: 5, ..SMALL }, Count(1), 3, 1000, 3),
        (Model { n_layers: 3, ..SMALL }, Nothing, 1, 5000, 2),
        (Model { n_layers: 4, kv: "turboquant", ..SMALL }, Count(1), 2, 1 << 20, 2),
        (Model { n_layers: 3, weights: "q8_0", kv: "q8_0", ..SMALL }, Count(2), 4, 9000, 2),
        (Model { n_layers: 3, weights: "iq2_bn_r4", ..SMALL }, Nothing, 2, 700, 2),
        (Model { n_layers: 2, weights: "tq1_0", ffn_dim: 512, ..SMALL }, Count(0), 2, 2000, 1),
        (Model { n_layers: 3, weights: "q4_0", other: Some("i2_s"), ..SMALL }, Count(1), 1, 3000, 2),
        (Model { n_layers: 2, weights: "f16", head_norms: true, ..SMALL }, Nothing, 2, 40_000, 2),
        (Model { n_layers: 3, weights: "q8_0", ..MIXTURE }, Count(1), 1, 5000, 2),
        (Model { n_layers: 3, ..MIXTURE }, Nothing, 3, 30_000, 2),
    ] {
        let (case, pages) = model_case(model);
        let (mut cpu, exec) = in_memory(&case);
        let want = everything(&mut cpu, exec, &case, &pages, false);
        assert!(want.iter().map(Vec::len).sum::<usize>() > 10_000 && cpu.wrong_guesses(exec).is_none());
        let streaming = streaming(resident, slots, piece_bytes);
        for (by_stage, slow_each) in [(false, 0), (false, 7), (true, 0)] {
            let disk = Arc::new(Disk { slow_each, ..Disk::default() });
            let (mut cpu, exec) = on(&case, threads, streaming, &disk);
            let loaded = disk.n.load(Ordering::Relaxed);
            let got = everything(&mut cpu, exec, &case, &pages, by_stage);
            assert!(disk.n.load(Ordering::Relaxed) >= loaded + 8 * 4, "nothing was read");
            assert!(got == want, "{model:?}, {streaming:?}, by stage: {by_stage}, slow: {slow_each}");
        }
    }
}

/// The layers that are read ahead are those that the next step uses.
#[test]
fn read_ahead_predicts_the_next_step() {
    for model in [Model { n_layers: 3, ..SMALL }, Model { n_layers: 3, ..MIXTURE }] {
        let (case, pages) = model_case(model);
        let disk = Arc::new(Disk::default());
        let (mut cpu, exec) = on(&case, 2, streaming(Resident::Nothing, 2, 20_000), &disk);
        for pos in 0..20 {
            let rows = step([pos, pos], 1, true);
            cpu.run(exec, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] }).expect("a run");
        }
        assert_eq!(cpu.wrong_guesses(exec), Some(0), "{model:?}");
        // A step without logits does not use the head, which is mispredicted once.
        let rows = step([20, 20], 1, false);
        cpu.run(exec, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] }).expect("a run");
        for pos in 21..25 {
            let rows = step([pos, pos], 1, true);
            cpu.run(exec, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] }).expect("a run");
        }
        assert_eq!(cpu.wrong_guesses(exec), Some(1), "{model:?}");
    }
}

/// A failed read, a truncated file, or a panic in the source gives an error that names the weight. Nothing
/// hangs, and the next step is correct.
#[test]
fn failed_reads_are_errors_of_their_step() {
    let (case, pages) = model_case(Model { n_layers: 4, ..SMALL });
    let (mut cpu, exec) = in_memory(&case);
    let want = everything(&mut cpu, exec, &case, &pages, false);
    for (fault, detail, slots) in [
        (Fault::Error, "the disk has failed", 1),
        (Fault::End, "the file has become shorter", 2),
        (Fault::Panic, "panicked", 3),
    ] {
        for after in [3, 17] {
            let disk = Arc::new(Disk { fault, ..Disk::default() });
            let (mut cpu, exec) = on(&case, 2, streaming(Resident::Nothing, slots, 9000), &disk);
            let rows = step([0, 0], 5, true);
            let step = Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] };
            cpu.run(exec, &step).expect("a run");
            disk.fails_after.store(after, Ordering::Relaxed);
            let message = (0..3).find_map(|_| cpu.run(exec, &step).err()).expect("an error").to_string();
            assert!(message.contains("reading a weight again") && message.contains(detail), "{message}");
            assert!(fault == Fault::Panic || message.contains("w") && message.contains("rows"), "{message}");
            assert!(everything(&mut cpu, exec, &case, &pages, false) == want, "{detail} after {after}");
        }
    }
}

/// Invalid codes are found when they are first read.
#[test]
fn invalid_codes_are_an_error() {
    let (mut case, pages) = model_case(Model { n_layers: 3, ..SMALL });
    let at = (0..case.weights.len()).filter(|at| case.weights[*at].ty.name() == "i2_s").nth(9).unwrap();
    let mut bytes = case.weights[at].bytes.to_vec();
    let last = case.weights[at].rows * case.weights[at].ty.row_bytes(case.weights[at].cols).unwrap() - 1;
    bytes[last] |= 3;
    case.weights[at].bytes = bytes.into();
    let rows = step([0, 0], 1, true);
    let run = |resident| {
        let (mut cpu, exec) = on(&case, 1, streaming(resident, 2, 2000), &Arc::default());
        cpu.run(exec, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] })
    };
    let message = run(Resident::Count(0)).unwrap_err().to_string();
    assert!(message.contains(&case.weights[at].name) && message.contains("an invalid "), "{message}");
}

/// The plan keeps everything in memory if it fits, else as many layers as leave a margin, else not even the
/// head. The smallest plan is returned even if it does not fit, and is refused later.
#[test]
fn auto_keeps_as_many_layers_as_fit() {
    let (case, _) = model_case(Model { n_layers: 6, weights: "q8_0", ..SMALL });
    let plan = |resident, most_bytes| {
        let streaming = Streaming { most_bytes, ..streaming(resident, 2, 10_000) };
        let cpu = Cpu::new(1).expect("a thread").streamed(streaming);
        let memory = cpu.memory(&case.p).expect("a plan").remove(0);
        (cpu.plan(&case.p).expect("a plan"), memory.file_bytes, memory.streamed_layers)
    };
    let need = |plan: &sterna::backend::Plan| plan.weights_bytes + plan.kv_bytes + plan.bufs_bytes;
    let (whole, read, _) = plan(Resident::All, None);
    assert_eq!(read, 0);
    assert_eq!(plan(Resident::Auto, Some(need(&whole))).1, 0);
    // With one layer less, its matrices are read in every step; slots and head stay in memory.
    let (one, of_five, _) = plan(Resident::Count(1), None);
    let (none, of_six, _) = plan(Resident::Count(0), None);
    let linear = |rows: u64, cols: u64| rows * cols / 32 * 34;
    let layer = 2 * linear(256, 256) + 2 * linear(64, 256) + 2 * linear(384, 256) + linear(256, 384);
    assert_eq!((of_six, of_six - of_five, need(&one) - need(&none)), (6 * layer, layer, layer));
    let others = none.kv_bytes + none.bufs_bytes;
    for (n, with) in [(0, &none), (1, &one)] {
        // An eighth of so little memory stays free.
        let room = with.weights_bytes + others;
        let enough = room * 8 / 7 + 8;
        let (got, read, streamed) = plan(Resident::Auto, Some(enough));
        assert_eq!((need(&got), read, streamed), (need(with), (6 - n) * layer, 6 - n as usize));
        let (less, more_read, _) = plan(Resident::Auto, Some(room * 8 / 7 - 8));
        assert!(need(&less) < need(with) && more_read > read, "{n} layers in less room");
    }
    // Nothing fits in 8 bytes.
    let (least, read, streamed) = plan(Resident::Auto, Some(8));
    let (nothing, all, _) = plan(Resident::Nothing, None);
    assert_eq!((need(&least), read, streamed), (need(&nothing), all, 6));
    assert!(least.weights_bytes < none.weights_bytes && need(&least) > least.free_bytes.unwrap());
    // Mapped pages belong to the system's page cache.
    let (mapped, read, _) = plan(Resident::Mapped, None);
    assert_eq!((mapped.weights_bytes, read), (0, whole.weights_bytes));
}

#[test]
fn options_are_checked() {
    let on = || "cpu".parse::<DeviceOptions>().unwrap();
    for slots in [0, 65] {
        let message = DeviceOptions { stream_slots: Some(slots), ..on() }.open(1).map(drop).unwrap_err();
        assert!(
            message.to_string().contains(&format!("stream_slots: want 1 to 64, got `{slots}`")),
            "{message}"
        );
    }
    assert!("many".parse::<Resident>().unwrap_err().contains("many"));
    for value in ["auto", "all", "none", "mapped", "3"] {
        let resident_layers = Some(value.parse().unwrap());
        DeviceOptions { resident_layers, ..on() }.open(1).map(drop).unwrap();
    }
}
