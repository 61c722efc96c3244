//! Streamed layers on a card: same bits as resident layers, copies that overlap with kernels, and errors if
//! the system or the card refuses something.

use std::path::Path;

use sterna::backend::Backend;
use sterna::backend::cpu::Cpu;
use sterna::backend::cuda::{Cuda, Streaming};
use sterna::backend::{GpuLayers, MinBatch};
use support::case::model::{Model, SMALL};
use support::case::{limits, shuffled_pages, windowed_limits, windowed_pages};

use super::child::{card, everything, everything_on};
use super::{RUN, greedy, has_demo, on_stand_in, sterna, tests, text};

fn streamed(resident: usize, slots: usize) -> Box<dyn Backend> {
    let streaming = Streaming::new(GpuLayers::Count(resident), slots);
    Box::new(Cuda::on(card(0)).streamed(Some(streaming)))
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn child_streamed_layers_match_resident_layers() {
    for (model, ways) in [
        (Model { n_layers: 5, ..SMALL }, &[(0, 1, false), (1, 3, false), (0, 2, true)][..]),
        (Model { n_layers: 4, weights: "q8_0", kv: "turboquant", ..SMALL }, &[(0, 2, false)]),
    ] {
        let windowed = model.kv == "turboquant";
        let limits = if windowed { windowed_limits(70, 1, 2) } else { limits(70, 1, 2) };
        let pages = if windowed { windowed_pages(1, 2) } else { shuffled_pages(1, 2) };
        let (case, _) = model.case("a small model", limits);
        let want = everything(&case, &pages, false);
        assert!(want.len() > 1000 && want.iter().any(|bits| *bits != 0));
        for &(resident, slots, by_stage) in ways {
            let got = everything_on(streamed(resident, slots), &case, &pages, by_stage);
            assert!(got == want, "{model:?}, {resident} on the card, {slots} slots, by stage: {by_stage}");
        }
    }
}

/// On a driver that works at once or late, that starts kernels early or not, with different orders of
/// threads.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn on_the_stand_in_streamed_layers_match_resident_layers() {
    for settings in ["card=h100 seed=2", "card=rtx-3060 prompt"] {
        tests(settings, "stand_in::streamed::child_streamed", 1);
    }
}

/// Graphs of both kinds of steps match single stages.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn child_cpu_offload_steps_match_their_stages() {
    for (model, resident) in [
        (Model { n_layers: 4, ..SMALL }, 1),
        (Model { n_layers: 3, weights: "q8_0", kv: "turboquant", ..SMALL }, 0),
    ] {
        let windowed = model.kv == "turboquant";
        let limits = if windowed { windowed_limits(70, 1, 2) } else { limits(70, 1, 2) };
        let pages = if windowed { windowed_pages(1, 2) } else { shuffled_pages(1, 2) };
        let (case, _) = model.case("a small model", limits);
        for min_batch in [MinBatch::Rows(5), MinBatch::Rows(10), MinBatch::Never] {
            let offloaded = || -> Box<dyn Backend> {
                let some = Streaming { min_batch, ..Streaming::new(GpuLayers::Count(resident), 2) };
                let cuda = Cuda::on(card(0)).streamed(Some(some));
                Box::new(cuda.with_cpu(|| Ok(Box::new(Cpu::new(2)?))))
            };
            let want = everything_on(offloaded(), &case, &pages, true);
            assert!(want.len() > 1000 && want.iter().any(|bits| *bits != 0));
            assert!(everything_on(offloaded(), &case, &pages, false) == want, "{model:?}, {min_batch:?}");
        }
    }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn on_the_stand_in_cpu_offload_steps_match_their_stages() {
    for settings in ["card=h100 seed=2", "card=rtx-3060 prompt"] {
        tests(settings, "stand_in::streamed::child_cpu_offload", 1);
    }
}

/// Number of layers and bytes per layer; each layer has five launches.
const N_LAYERS: usize = 6;
const LAYER_BYTES: u64 = 114_688;

fn decode(resident: usize, slots: usize) {
    let (case, _) = Model { n_layers: N_LAYERS, ..SMALL }.case("a small model", limits(70, 1, 2));
    everything_on(streamed(resident, slots), &case, &shuffled_pages(1, 2), false);
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn child_all_layers_through_two_slots() {
    decode(0, 2);
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn child_all_layers_through_one_slot() {
    decode(0, 1);
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn child_every_second_layer_through_one_slot() {
    decode(N_LAYERS / 2, 1);
}

/// An item of work of a timeline, in nanoseconds.
#[derive(Clone, Copy)]
struct Work {
    start: u64,
    end: u64,
}

/// Runs a child and returns its kernels and its copies of layers. Copies from pageable memory are an error.
fn timeline(child: &str, rates: &str) -> [Vec<Work>; 2] {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("timeline");
    tests(&format!("card=h100 timeline={} {rates}", file.display()), child, 1);
    read(&file)
}

fn read(file: &Path) -> [Vec<Work>; 2] {
    let text = std::fs::read_to_string(file).expect("a timeline");
    let (mut kernels, mut copies) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let (what, rest) = line.split_once(' ').expect("words");
        let numbers: Vec<u64> = rest.split(' ').map(|n| n.parse().expect("a number")).collect();
        let (work, bytes) = (Work { start: numbers[1], end: numbers[2] }, numbers[3]);
        match what {
            "kernel" => kernels.push(work),
            "copy" if bytes == LAYER_BYTES => copies.push(work),
            "copy" => {}
            _ => panic!("{line}"),
        }
    }
    [kernels, copies]
}

/// Returns the fraction of the copies' time in which kernels run, and the total time of the decoding steps
/// relative to that of their kernels and to that of their copies.
fn overlap([kernels, copies]: &[Vec<Work>; 2]) -> (f64, f64, f64) {
    // The last six steps are of single rows; the first of them waits for a prompt.
    let n_kernels = 5 * (5 * N_LAYERS + 3);
    let from = kernels[kernels.len() - n_kernels].start;
    let to = kernels.last().expect("kernels").end;
    let inside = |work: &&Work| work.start >= from && work.end <= to;
    let sum = |all: &[Work]| all.iter().filter(inside).map(|work| work.end - work.start).sum::<u64>() as f64;
    let shared = |copy: &Work| -> u64 {
        kernels.iter().map(|k| k.end.min(copy.end).saturating_sub(k.start.max(copy.start))).sum()
    };
    let hidden: u64 = copies.iter().filter(inside).map(shared).sum();
    let all = (to - from) as f64;
    (hidden as f64 / sum(copies), all / sum(kernels), all / sum(copies))
}

/// A copy takes as long as the five kernels of a layer, so one of two slots is filled while a layer runs from
/// the other, and a step takes as long as its kernels. With one slot for all layers, copies and kernels
/// alternate; if every second layer is resident, its kernels hide the copy to a single slot.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn on_the_stand_in_copies_and_kernels_overlap() {
    let equal = "link=2.3 kernel=10";
    let two = timeline("stand_in::streamed::child_all_layers_through_two_slots", equal);
    assert!(two[1].len() >= 8 * N_LAYERS, "{} copies", two[1].len());
    let (hidden, of_kernels, _) = overlap(&two);
    assert!(hidden > 0.9 && of_kernels < 1.1, "hidden {hidden}, {of_kernels} of the kernels' time");

    let one = timeline("stand_in::streamed::child_all_layers_through_one_slot", equal);
    let (hidden, of_kernels, _) = overlap(&one);
    // The head and the embedding are resident.
    assert!(hidden < 0.15 && of_kernels > 1.8, "hidden {hidden}, {of_kernels} of the kernels' time");

    let spread = timeline("stand_in::streamed::child_every_second_layer_through_one_slot", equal);
    let (hidden, of_kernels, _) = overlap(&spread);
    assert!(hidden > 0.9 && of_kernels < 1.1, "hidden {hidden}, {of_kernels} of the kernels' time");

    // Over a slow link a step takes as long as its copies.
    let slow = timeline("stand_in::streamed::child_all_layers_through_two_slots", "link=0.5 kernel=10");
    let (_, _, of_copies) = overlap(&slow);
    assert!(of_copies < 1.2, "{of_copies} of the copies' time");
}

/// `-ngl` as in llama.cpp, and the line that it prints. All backends accept it if it means all layers.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn gpu_layers_are_reported() {
    if !has_demo() {
        return;
    }
    let run = |backend: &str, more: &[&str]| {
        let own = ["--backend", backend, "--no-self-test", "-n", "2", "-v"];
        let output = sterna("card=h100", &[&RUN[..], &own, more].concat());
        (output.status.success(), text(&output.stderr))
    };
    // A number of layers selects the card if no backend is named.
    for backend in ["cuda", "auto"] {
        let (passed, stderr) = run(backend, &["-ngl", "1"]);
        let stays = stderr.contains("warning: 1 of ") && stderr.contains(" layers stay on the card; ");
        assert!(passed && stays, "{backend}: {stderr}");
    }
    // No layers at all select the CPU.
    for (backend, layers, device) in [
        ("cuda", "all", "NVIDIA"),
        ("cuda", "99", "NVIDIA"),
        ("cuda", "auto", "NVIDIA"),
        ("cpu", "99", " kernels"),
        ("cpu", "auto", " kernels"),
        ("cpu", "0", " kernels"),
        ("auto", "0", " kernels"),
    ] {
        let (passed, stderr) = run(backend, &["-ngl", layers]);
        assert!(passed && !stderr.contains("layers stay"), "{backend} {layers}: {stderr}");
        assert!(stderr.contains(device), "{backend} {layers}: {stderr}");
    }
    // The device that computes the other layers, and in which steps.
    for (min_batch, want) in [
        ("1", "MB) are copied to it in every step, through "),
        ("4", "MB) are copied to it in steps of 4 rows or more, through "),
        ("off", "MB) are not copied: the CPU computes with them"),
        ("auto", " (measured: "),
    ] {
        let (passed, stderr) =
            run("cuda", &["-ngl", "0", "--stream-slots", "1", "--op-offload-min-batch", min_batch]);
        let stay = stderr.contains("warning: 0 of ") && stderr.contains(want);
        assert!(passed && stay, "{min_batch}: {stderr}");
    }
    let (passed, stderr) = run("cuda", &["-ngl", "0", "--op-offload-min-batch", "0"]);
    assert!(!passed && stderr.contains("want auto, off or a number of rows from 1 on"), "{stderr}");
    for (backend, layers, want) in [
        ("cpu", "1", "--gpu-layers: supported only by cuda and cuda-simt"),
        ("cuda", "some", "--gpu-layers: want all, auto or one number of layers, got `some`"),
    ] {
        let (passed, stderr) = run(backend, &["-ngl", layers]);
        assert!(!passed && stderr.contains(want), "{backend} {layers}: {stderr}");
    }
}

/// If page-locked memory is refused or too small, or a stream, a wait or a copy fails, the error names the
/// call, and nothing leaks.
#[test]
fn streaming_faults_end_the_run_without_leaks() {
    if !has_demo() {
        return;
    }
    let run = |settings: &str| greedy(settings, "cuda", &["-ngl", "0", "--op-offload-min-batch", "1"]);
    for (settings, call) in [
        ("refuse=cuMemHostAlloc@2", "cuMemHostAlloc"),
        ("pinned=16", "cuMemHostAlloc"),
        ("refuse=cuStreamCreate@2", "cuStreamCreate"),
        ("refuse=cuStreamWaitEvent@1", "cuStreamWaitEvent"),
        ("refuse=cuStreamWaitEvent@40", "cuStreamWaitEvent"),
        ("refuse=cuMemcpyHtoDAsync_v2@40", "cuMemcpyHtoDAsync"),
        ("refuse=cuMemcpyHtoDAsync_v2@41", "cuMemcpyHtoDAsync"),
        ("fail=cuStreamWaitEvent@40", "cuStreamWaitEvent"),
    ] {
        let stderr = run(settings).expect_err(settings);
        assert!(stderr.contains(call) && !stderr.contains("panicked"), "{settings}: {stderr}");
        assert!(settings.starts_with("fail") || !stderr.contains("leaked"), "{settings}: {stderr}");
        if call == "cuMemHostAlloc" {
            let want = "bytes of page-locked memory for streamed layers: CUDA_ERROR_OUT_OF_MEMORY; a larger ";
            assert!(stderr.contains(want) && stderr.contains("--gpu-layers"), "{settings}: {stderr}");
        }
    }
}

/// The same if the CPU computes a part of every step: copies from the card and to it.
#[test]
fn cpu_offload_faults_end_the_run_without_leaks() {
    if !has_demo() {
        return;
    }
    for (settings, call) in [
        ("refuse=cuMemcpyDtoHAsync_v2@1", "cuMemcpyDtoHAsync"),
        ("refuse=cuMemcpyDtoHAsync_v2@30", "cuMemcpyDtoHAsync"),
        ("refuse=cuMemcpyHtoDAsync_v2@60", "cuMemcpyHtoDAsync"),
        ("refuse=cuGraphLaunch@7", "cuGraphLaunch"),
    ] {
        let stderr =
            greedy(settings, "cuda", &["-ngl", "0", "--op-offload-min-batch", "off"]).expect_err(settings);
        assert!(stderr.contains(call) && !stderr.contains("panicked"), "{settings}: {stderr}");
        assert!(!stderr.contains("leaked"), "{settings}: {stderr}");
    }
}

/// Proves that the tests above can fail: the tests in `rules` free nothing.
#[test]
fn leaks_are_reported() {
    let exe = std::env::current_exe().expect("this binary");
    let args = ["stand_in::rules::graphs_run_the_captured_work", "--include-ignored"];
    let output = on_stand_in("card=h100 card=small card=small", exe).args(args).output().expect("it runs");
    let stderr = text(&output.stderr);
    for what in ["1 allocations", "1 streams", "1 executable graphs"] {
        assert!(stderr.contains(&format!("leaked {what}")), "{stderr}");
    }
}
