//! Weight types on CUDA: whole models of one type, or of two that files mix, compared with the CPU; and
//! several rows at once compared with the same rows one by one.

use sterna::backend::cpu::Cpu;
use sterna::program::{Act, ActQuant, Experts, FfnIn, Linear, Logits, NormKind, ProjAdd, Row, RowsOf, Step};
use support::case::model::{Model, SMALL};
use support::case::{Case, StepCase, limits, rows, shuffled_pages, simt, ty};

use super::stage_diff::{first_difference, prompt};

/// One type of each set of kernels, with a second type that shares its launches or has its own.
const MIXES: [(&str, Option<&str>); 8] = [
    ("q4_k", Some("q6_k")),
    ("q5_k", Some("q4_k")),
    ("q5_1", None),
    ("q5_0", Some("q4_1")),
    ("q3_k", Some("q2_k")),
    ("q2_0", Some("q1_0")),
    ("q1_0", None),
    ("iq4_xs", Some("mxfp4")),
];

#[test]
fn models_of_every_type_match_the_cpu() {
    for (weights, other) in MIXES {
        let model = Model { weights, other, ffn_dim: 512, kv: "f32", ..SMALL };
        let (case, _) = model.case("a small model", limits(20, 1, 1));
        for n in [1, 5, 20] {
            let Some(mut simt) = simt(1) else { return };
            let mut cpu = Cpu::new(2).expect("threads");
            let mut both = [case.on(&mut cpu), case.on(&mut *simt)];
            // Tensor core products keep 22 bits of an activation.
            let found = first_difference(&case, &shuffled_pages(1, 1), &prompt(n), 1e-5, &mut both);
            assert_eq!(found, None, "{weights} and {other:?}, {n} tokens");
        }
    }
}

/// With too few rows for tensor cores, every row has the same sums as alone.
#[test]
fn rows_do_not_depend_on_the_batch() {
    let (n_rows, outputs, cols) = (5, 40, 512);
    for name in ["q4_k", "q5_k", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q2_0", "q1_0", "iq4_nl", "iq4_xs"] {
        let mut case = Case::new(name, limits(n_rows, 1, 1));
        let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
        let w = case.linear_with_bias(ty(name), outputs, cols, ActQuant::None);
        case.p.push("proj_add", ProjAdd::plain(y, w, x));
        let inputs = case.numbers.values(n_rows * cols);
        let pages = shuffled_pages(1, 1);
        let Some(mut backend) = simt(1) else { return };
        let mut running = case.on(&mut *backend);
        let mut products = |rows: &[Row], inputs: &[f32]| {
            running.write(y, inputs);
            running.write(x, &vec![0.0; rows.len() * outputs]);
            running.run(0..1, &Step { rows, pages: &pages, sampling: &[], changes: &[] });
            running.read(x, rows.len())
        };
        let together = products(&rows(0, 0..n_rows as u32), &inputs);
        for (input, together) in inputs.chunks(cols).zip(together.chunks(outputs)) {
            assert_eq!(products(&rows(0, 0..1), input), together, "{name}");
        }
    }
}

/// Steps of 2 to 64 rows have a kernel that multiplies 8, 16, 32 or 64 of them at a time: a row has the same
/// sums in each. The columns are more than its warps have loaded before the first product.
#[test]
fn a_few_rows_do_not_depend_on_the_step() {
    let (n_rows, outputs, cols) = (60, 24, 2304);
    for name in ["q8_0", "q4_0", "q4_k", "q6_k", "q2_k", "mxfp4"] {
        let mut case = Case::new(&format!("{name}, {n_rows} rows"), limits(n_rows, 1, 1));
        let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
        let w = case.linear_with_bias(ty(name), outputs, cols, ActQuant::I8PerBlock);
        case.p.push("proj_add", ProjAdd::plain(y, w, x));
        let inputs = case.numbers.values(n_rows * cols);
        let pages = shuffled_pages(1, 1);
        let Some(mut backend) = simt(1) else { return };
        let mut running = case.on(&mut *backend);
        let mut products = |n: usize| {
            running.write(y, &inputs[..n * cols]);
            running.write(x, &vec![0.0; n * outputs]);
            let rows = rows(0, 0..n as u32);
            running.run(0..1, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] });
            running.read(x, n)
        };
        let all = products(n_rows);
        for n in [2, 9, 20, 40] {
            assert_eq!(products(n), all[..n * outputs], "{name}, {n} rows");
        }
        let inputs = vec![(y, inputs), (x, vec![0.0; n_rows * outputs])];
        let step = StepCase { rows: rows(0, 0..n_rows as u32), stages: 0..1, inputs, read: vec![x] };
        case.check(simt(2).into_iter().collect(), &pages, &[step]);
    }
}

/// A few rows, which have separate kernels, and more rows than a tile; columns that end within a span. The
/// types have one scale per block or two, with offsets and without.
#[test]
fn integer_tiles_match_the_oracle() {
    for name in
        ["q8_0", "q4_0", "q5_1", "q4_k", "q5_k", "q6_k", "q2_k", "q3_k", "q1_0", "q2_0", "mxfp4", "iq4_xs"]
    {
        let ty = ty(name);
        let (outputs, cols) = (19, ty.block_elems() * 544_usize.div_ceil(ty.block_elems()));
        for n_rows in [2, 11, 27, 50, 70] {
            let mut case = Case::new(&format!("{name}, {n_rows} rows"), limits(n_rows, 1, 2));
            let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
            let norm = Some(case.norm(NormKind::Rms, cols));
            let w = Linear { norm, ..case.linear_with_bias(ty, outputs, cols, ActQuant::I8PerBlock) };
            case.p.push("proj_add", ProjAdd::plain(y, w, x));
            let (ys, xs) = (case.numbers.values(n_rows * cols), case.numbers.values(n_rows * outputs));
            let rows = rows(0, 0..n_rows as u32);
            let step = StepCase { rows, stages: 0..1, inputs: vec![(y, ys), (x, xs)], read: vec![x] };
            case.check(simt(2).into_iter().collect(), &shuffled_pages(1, 2), &[step]);
        }
    }
}

/// Types whose codes are multiplied as integers: with one scale per block of columns and with two, with
/// offsets and without, signed and biased codes, and with extra bits that others of the same kernels lack.
const CODES: [&str; 12] =
    ["q8_0", "q4_0", "q4_1", "q5_0", "q4_k", "q5_k", "q6_k", "q2_k", "q3_k", "q1_0", "q2_0", "nvfp4"];

/// Values whose blocks differ in magnitude, some of them 0, and whose half blocks differ in their sums.
fn uneven(case: &mut Case, cols: usize) -> Vec<f32> {
    let mut values = case.numbers.values(cols);
    for (i, half) in values.chunks_mut(ActQuant::BLOCK / 2).enumerate() {
        let scale = [0.01, 0.3, 2.0, 0.0, 20.0][i / 2 % 5];
        let sign = if i % 3 == 0 { -1.0 } else { 1.0 };
        half.iter_mut().for_each(|x| *x = scale * if i % 2 == 0 { *x } else { sign * x.abs() });
    }
    values
}

#[test]
fn single_rows_quantised_per_block_match_the_oracle() {
    let by_block = ActQuant::I8PerBlock;
    for name in CODES {
        let (ty, dim, n_experts) = (ty(name), 512, 3);
        let ffn_dim = ty.block_elems();
        let mut case = Case::new(&format!("a row by block, {name}"), limits(1, 1, 1));
        let [x, y, h] = [("x", dim), ("y", dim), ("h", ffn_dim)].map(|(name, cols)| case.buf(name, cols));
        let logits = case.p.buf("logits", RowsOf::Outputs, 33);
        let w = case.linear_with_bias(ty, dim, dim, by_block);
        case.p.push("proj_add", ProjAdd::plain(y, w, x));
        let norm = case.norm(NormKind::Rms, dim);
        let gate = Some(case.linear_with_bias(ty, ffn_dim, dim, by_block));
        let up = case.linear(ty, ffn_dim, dim, by_block);
        case.p.push("ffn_in", FfnIn { gate, ..FfnIn::plain(y, norm, up, Act::Silu, h) });
        let norm = case.norm(NormKind::Layer, dim);
        let router = case.linear(ty, n_experts, dim, by_block);
        let experts = case.experts([name; 3], [n_experts, dim, ffn_dim], by_block);
        case.p.push("experts", Experts::of(y, norm, router, experts, 2, Act::Silu));
        let norm = case.norm(NormKind::Rms, dim);
        let w = case.linear(ty, 33, dim, by_block);
        case.p.push("logits", Logits { x, norm, w, soft_cap: None, logits });
        let (ys, xs) = (uneven(&mut case, dim), uneven(&mut case, dim));
        let mut rows = rows(0, 0..1);
        rows[0].logits = true;
        let step_case = |stages: std::ops::Range<usize>, inputs: Vec<f32>, read| StepCase {
            rows: rows.clone(),
            stages,
            inputs: vec![(y, inputs), (x, xs.clone())],
            read: vec![read],
        };
        // A block with an infinite value makes the product NaN.
        let broken = ys.iter().enumerate().map(|(i, y)| if i == 70 { f32::INFINITY } else { *y }).collect();
        let steps = [
            step_case(0..1, ys.clone(), x),
            step_case(0..1, broken, x),
            step_case(1..2, ys.clone(), h),
            step_case(2..3, ys.clone(), y),
            step_case(3..4, ys, logits),
        ];
        case.check(simt(3).into_iter().collect(), &shuffled_pages(1, 1), &steps);
    }
}
