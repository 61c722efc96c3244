//! Compares two backends stage by stage: both start every stage from the same buffers, and the first stage
//! whose buffers differ is reported by its label. Use it to find the stage at fault if the results of a whole
//! program differ.

use sterna::backend::cpu::{Cpu, simd};
use sterna::program::{Buf, PageTable, Row, RowsOf, Step};
use support::case::model::{MIXTURE, Model, SMALL};
use support::case::{
    Case, Running, backends, limits, shuffled_pages, simt, wgpus, windowed_limits, windowed_pages,
};

/// Finds the first stage after which a buffer differs by more than `tolerance` of its largest magnitude.
pub(super) fn first_difference(
    case: &Case,
    pages: &PageTable,
    rows: &[Row],
    tolerance: f32,
    [a, b]: &mut [Running<'_>; 2],
) -> Option<String> {
    let step = Step { rows, pages, sampling: &[], changes: &[] };
    let n_outputs = step.n_outputs();
    for (i, (label, _)) in case.p.stages.iter().enumerate() {
        a.run(i..i + 1, &step);
        b.run(i..i + 1, &step);
        for (j, decl) in case.p.bufs.iter().enumerate() {
            let n_rows = if decl.rows == RowsOf::Step { rows.len() } else { n_outputs };
            let buf = Buf(j as u32);
            let (left, right) = (a.read(buf, n_rows), b.read(buf, n_rows));
            let largest = left.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
            let differ = |x: f32, y: f32| (x - y).abs() > tolerance * largest || (x - y).is_nan();
            if let Some(at) = left.iter().zip(&right).position(|(x, y)| differ(*x, *y)) {
                let (row, col) = (at / decl.cols, at % decl.cols);
                let (x, y) = (left[at], right[at]);
                return Some(format!("{label}: {}[{row}, {col}] is {x} and {y}", decl.name));
            }
            // A small difference must not become an int8 step later on.
            b.write(buf, &left);
        }
    }
    None
}

pub(super) fn prompt(n: u32) -> Vec<Row> {
    (0..n).map(|pos| Row { token: pos * 37 % 300, pos, seq: 0, logits: pos + 1 == n }).collect()
}

/// An int8 step is at most 1/127 of the largest input, and a few roundings may flip if a norm differs in its
/// last bit; float products differ only by a few roundings.
fn tolerance(model: &Model) -> f32 {
    if [Some(model.weights), model.other].contains(&Some("i2_s")) { 2e-3 } else { 1e-5 }
}

/// The same for CUDA, whose attention over quantised caches rounds queries to 255 steps.
fn cuda_tolerance(model: &Model) -> f32 {
    if ["f16", "f32"].contains(&model.kv) { tolerance(model) } else { 0.03 }
}

#[test]
fn cpu_kernel_sets_match_plain_code() {
    for model in [SMALL, Model { weights: "q8_0", kv: "f32", ..SMALL }] {
        let (case, _) = model.case("a small model", limits(70, 1, 2));
        let pages = shuffled_pages(1, 2);
        for kernels in simd::all() {
            for n in [1, 70] {
                let mut plain = Cpu::with_kernels(1, simd::all()[0]).expect("threads");
                let mut fast = Cpu::with_kernels(2, kernels).expect("threads");
                let found = first_difference(
                    &case,
                    &pages,
                    &prompt(n),
                    tolerance(&model),
                    &mut [case.on(&mut plain), case.on(&mut fast)],
                );
                assert_eq!(found, None, "{} kernels, {n} tokens", kernels.name);
            }
        }
    }
}

/// CUDA norms sum in pairs of f32, so almost all int8 roundings are the same as on the CPU.
#[test]
fn cuda_kernels_match_the_cpu() {
    // Norms of heads, over every kind of cache, and layers without a common kernel.
    let normed = ["f16", "q8_0"].map(|kv| Model { head_norms: true, kv, ..SMALL });
    let mixed = [None, Some("q8_0")].map(|other| Model {
        other,
        weights: "q4_0",
        kv: "f32",
        head_norms: true,
        ..SMALL
    });
    let models =
        [SMALL, Model { weights: "q8_0", kv: "f32", ..SMALL }, Model { other: Some("q8_0"), ..SMALL }];
    let mixtures = [Some("q8_0"), None].map(|other| Model { other, kv: "f32", ..MIXTURE });
    for model in models.into_iter().chain(normed).chain(mixed).chain(mixtures) {
        let (case, _) = model.case("a small model", limits(70, 1, 2));
        for (n, seed) in [(1, 3), (5, 0), (70, 3)] {
            let Some(mut simt) = simt(seed) else { return };
            let mut cpu = Cpu::new(2).expect("threads");
            let mut both = [case.on(&mut cpu), case.on(&mut *simt)];
            let pages = shuffled_pages(1, 2);
            let found = first_difference(&case, &pages, &prompt(n), cuda_tolerance(&model), &mut both);
            assert_eq!(found, None, "{model:?}, {n} tokens, order {seed}");
        }
    }
}

/// The norms of wgpu also sum in pairs of f32. Quantised caches get positions of several pages, so that codes
/// are read.
#[test]
fn wgpu_kernels_match_the_cpu() {
    let caches = ["turboquant", "turboquant-mse", "turboquant-4", "q8_0", "q4_0"];
    let caches = caches.map(|kv| Model { kv, ..SMALL });
    let models = [SMALL, Model { weights: "q8_0", kv: "f32", ..SMALL }].into_iter().chain(caches);
    for (i, model) in models.enumerate() {
        let windowed = model.kv.starts_with("turboquant");
        let codes = model.kv != "f16" && model.kv != "f32";
        let limits = if windowed { windowed_limits(70, 1, 4) } else { limits(70, 1, 4) };
        let pages = if windowed { windowed_pages(1, 4) } else { shuffled_pages(1, 4) };
        let (case, _) = model.case("a small model", limits);
        for n in if codes { vec![70] } else { vec![1, 5, 70] } {
            // Both variants of the kernels over float caches, one of them over each quantised cache.
            for mut wgpu in
                wgpus().into_iter().skip(if codes { i % 2 } else { 0 }).take(2 - usize::from(codes))
            {
                let device = wgpu.device();
                let mut cpu = Cpu::new(2).expect("threads");
                let mut both = [case.on(&mut cpu), case.on(&mut *wgpu)];
                for start in (0..if codes { 3 * n } else { n }).step_by(70) {
                    let rows: Vec<Row> =
                        prompt(n).into_iter().map(|row| Row { pos: row.pos + start, ..row }).collect();
                    let found = first_difference(&case, &pages, &rows, tolerance(&model), &mut both);
                    assert_eq!(found, None, "{} cache, {n} tokens from {start} on, on {device}", model.kv);
                }
            }
        }
    }
}

#[test]
fn first_stage_that_differs_is_named() {
    let (case, _) = SMALL.case("a small model", limits(4, 1, 1));
    let (mut other, _) = SMALL.case("a small model", limits(4, 1, 1));
    // A different epsilon in one norm of the second layer.
    let at = other.p.stages.iter().position(|(label, _)| label == "1.ffn_in").expect("the stage");
    let sterna::program::Stage::FfnIn(stage) = &mut other.p.stages[at].1 else {
        unreachable!("by its label")
    };
    stage.norm.as_mut().expect("a norm").eps = 0.5;
    let mut cpus = [Cpu::new(1).expect("threads"), Cpu::new(1).expect("threads")];
    let [a, b] = &mut cpus;
    let mut both = [case.on(a), other.on(b)];
    let found = first_difference(&case, &shuffled_pages(1, 1), &prompt(4), tolerance(&SMALL), &mut both);
    assert!(found.as_ref().is_some_and(|found| found.starts_with("1.ffn_in: h[0, ")), "{found:?}");
}

#[test]
fn steps_without_rows_do_nothing() {
    let (case, logits) = SMALL.case("a small model", limits(4, 1, 1));
    for mut backend in backends() {
        let mut running = case.on(&mut *backend);
        let before = running.read(logits, 4);
        let step = Step { rows: &[], pages: &shuffled_pages(1, 1), sampling: &[], changes: &[] };
        running.backend.run(running.exec, &step).expect("a run");
        assert_eq!(running.read(logits, 4), before);
    }
}

/// Exceeding the limits of a program is a bug of the caller.
#[test]
fn steps_beyond_the_limits_panic() {
    let (case, _) = SMALL.case("a small model", limits(4, 2, 1));
    let pages = shuffled_pages(2, 1);
    let row = |token, pos, seq| Row { token, pos, seq, logits: false };
    let too_far = "position 64 needs page 2 of 1";
    let wrong = [
        (vec![row(300, 0, 0)], "token 300, there are 300"),
        (vec![row(0, 64, 0)], too_far),
        (vec![row(0, 0, 2)], "sequence slot 2, there are 2"),
        (vec![row(0, 0, 0); 5], "5 rows, the limit is 4"),
    ];
    for (rows, want) in wrong {
        let mut cpu = Cpu::new(2).expect("threads");
        let running = case.on(&mut cpu);
        let step = Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] };
        let run = std::panic::AssertUnwindSafe(|| running.backend.run(running.exec, &step));
        let panic = std::panic::catch_unwind(run).expect_err("a panic");
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some(want));
    }
}
