//! Every backend, stage and type over a table of cases, against the plain f64 oracle.
//!
//! Every error bound comes from the oracle, which gives its reason at each operation. Before every run all
//! buffers are filled with NaN. Rows beyond the step must keep it.

use ggml_types::types::REGISTRY;
use sterna::backend::Backend;
use sterna::program::{
    Act, ActQuant, AddVector, Embed, Expert, Experts, FfnIn, Gating, Groups, Linear, Logits, NormAdd,
    NormKind, ProjAdd, Routing, Row, RowsOf, Step, Xielu,
};
use support::case::{
    Case, Numbers, StepCase, backend, backends, backends_alternating, cpus, few_backends, limits, rows,
    shuffled_pages, simt, ty,
};

const ACT_QUANTS: [ActQuant; 3] = [ActQuant::None, ActQuant::I8PerToken, ActQuant::I8PerBlock];

/// Columns for every type: an odd number of blocks with about `elems` elements.
pub(super) fn cols_of(block: usize, elems: usize) -> usize {
    block * elems.div_ceil(block).next_multiple_of(2).saturating_sub(1).max(1)
}

pub(super) fn single(n_rows: usize) -> Vec<Row> {
    rows(0, 0..n_rows as u32)
}

/// A single row, a few, and enough for tensor cores.
#[test]
fn linear_layers_of_every_type() {
    linear_layers(&[(1, 37, 700), (5, 16, 1), (17, 67, 300)], backends_alternating);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn linear_layers_of_every_type_and_shape() {
    let shapes = [(1, 1, 1), (1, 37, 700), (2, 5, 300), (5, 16, 1), (17, 67, 300), (33, 3, 520)];
    linear_layers(&shapes, |_| backends());
}

/// The columns of the feed-forward layers of Llama 70B.
#[test]
fn linear_layers_of_long_rows() {
    long_rows((2, 4, 28_672));
}

/// The columns of the feed-forward layers of Mistral Small.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn linear_layers_of_longer_rows() {
    long_rows((1, 4, 32_768));
}

fn long_rows(shape: (usize, usize, usize)) {
    // The other variant of the wgpu kernels has buffers that are smaller than such a row.
    let backends = |_| cpus(&[2]).into_iter().chain(simt(1)).chain(backend("wgpu", 1)).collect();
    linear_layers(&[shape], backends);
}

/// Each shape is rows of the step, outputs, and about the number of columns. `backends` returns those of the
/// n-th case.
fn linear_layers(shapes: &[(usize, usize, usize)], backends: fn(usize) -> Vec<Box<dyn Backend>>) {
    for (i, ty) in REGISTRY.iter().enumerate() {
        for act in ACT_QUANTS {
            for (j, &(n_rows, outputs, about_cols)) in shapes.iter().enumerate() {
                let cols = cols_of(ty.block_elems(), about_cols);
                let outputs = outputs.next_multiple_of(ty.rows_together());
                let name = format!("proj_add {} {act:?} {n_rows} x [{outputs}, {cols}]", ty.name());
                let mut case = Case::new(&name, limits(n_rows + 1, 1, 1));
                let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
                let w = case.linear(*ty, outputs, cols, act);
                case.p.push("proj_add", ProjAdd::plain(y, w, x));
                let inputs =
                    vec![(y, case.numbers.values(n_rows * cols)), (x, case.numbers.values(n_rows * outputs))];
                let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
                case.check(backends(i + j), &shuffled_pages(1, 1), &[step]);
            }
        }
    }
}

/// Tensor cores truncate (attention.rs), which must not make sums over many columns too small: 16 rows at
/// once against the same rows one by one, which are summed in f32. With one accumulator over all columns the
/// mean of the outputs would be 5e-5 too small.
#[test]
fn long_tensor_core_sums_are_not_biased() {
    let (n_rows, outputs, cols) = (16, 64, 6912);
    let mut case = Case::new("the bias of many columns", limits(n_rows, 1, 1));
    let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
    let positive: Vec<f32> = case.numbers.values(outputs * cols).iter().map(|w| w.abs() / 64.0).collect();
    let w = case.weight_of(ty("f16"), outputs, cols, &positive);
    let w = Linear::of(w);
    case.p.push("proj_add", ProjAdd::plain(y, w, x));
    let inputs: Vec<f32> = case.numbers.values(n_rows * cols).iter().map(|y| y.abs()).collect();
    let pages = shuffled_pages(1, 1);
    if let Some(mut backend) = simt(1) {
        let mut running = case.on(&mut *backend);
        let mut products = |rows: Vec<Row>, inputs: &[f32]| {
            running.write(y, inputs);
            running.write(x, &vec![0.0; rows.len() * outputs]);
            running.run(0..1, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] });
            running.read(x, rows.len())
        };
        let together = products(single(n_rows), &inputs);
        let alone = inputs.chunks(cols).flat_map(|row| products(single(1), row));
        let (mut diff, mut all) = (0.0_f64, 0.0);
        for (a, b) in together.iter().zip(alone) {
            diff += f64::from(b - a);
            all += f64::from(b);
        }
        println!("relative bias {:.1e}", diff / all);
        assert!((diff / all).abs() < 1e-6, "relative bias {:.1e}", diff / all);
    }
}

#[test]
fn linear_layers_with_norm_bias_and_scale() {
    for (i, ty) in REGISTRY.iter().enumerate() {
        for act in ACT_QUANTS {
            for (kind, n_rows) in [(NormKind::Rms, 4), (NormKind::Layer, 4), (NormKind::Layer, 18)] {
                let cols = cols_of(ty.block_elems(), 500);
                let outputs = 21_usize.next_multiple_of(ty.rows_together());
                let name = format!("proj_add {} {act:?} {kind:?} {n_rows}", ty.name());
                let mut case = Case::new(&name, limits(n_rows + 2, 1, 1));
                let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
                let norm = Some(case.norm(kind, cols));
                let w = Linear { norm, ..case.linear_with_bias(*ty, outputs, cols, act) };
                case.p.push("proj_add", ProjAdd::plain(y, w, x));
                let inputs =
                    vec![(y, case.numbers.values(n_rows * cols)), (x, case.numbers.values(n_rows * outputs))];
                let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
                case.check(backends_alternating(i + n_rows / 4), &shuffled_pages(1, 1), &[step]);
            }
        }
    }
}

/// The product is normalised before it is added, or the residual is, or both.
#[test]
fn product_and_residual_norms() {
    for (name, act) in [("f16", ActQuant::None), ("i2_s", ActQuant::I8PerToken)] {
        for (kind, n_rows, of_product, of_residual) in [
            (NormKind::Rms, 1, true, false),
            (NormKind::Rms, 7, true, false),
            (NormKind::Layer, 2, true, false),
            (NormKind::Rms, 40, true, false),
            (NormKind::Layer, 1, false, true),
            (NormKind::Layer, 40, false, true),
            (NormKind::Rms, 3, false, true),
            (NormKind::Layer, 3, true, true),
        ] {
            let (cols, outputs) = (128, 75);
            let case_name = format!(
                "proj_add {name}, {kind:?}, product: {of_product}, residual: {of_residual}, {n_rows} rows"
            );
            let mut case = Case::new(&case_name, limits(n_rows + 1, 1, 1));
            let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
            let w = case.linear_with_bias(ty(name), outputs, cols, act);
            let post = of_product.then(|| case.norm(kind, outputs));
            let residual = of_residual.then(|| case.norm(kind, outputs));
            case.p.push("proj_add", ProjAdd { post, residual, ..ProjAdd::plain(y, w, x) });
            let inputs =
                vec![(y, case.numbers.values(n_rows * cols)), (x, case.numbers.values(n_rows * outputs))];
            let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
            case.check(backends(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

/// The sum has a factor: with and without a norm, and with int8 products.
#[test]
fn sums_with_a_factor() {
    for (name, act) in [("f16", ActQuant::None), ("i2_s", ActQuant::I8PerToken)] {
        for (has_norm, n_rows) in [(true, 1), (true, 20), (false, 3), (false, 20)] {
            let (cols, outputs) = (128, 75);
            let case_name = format!("proj_add {name} with a factor, norm: {has_norm}, {n_rows} rows");
            let mut case = Case::new(&case_name, limits(n_rows + 1, 1, 1));
            let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
            let w = case.linear_with_bias(ty(name), outputs, cols, act);
            let post = has_norm.then(|| case.norm(NormKind::Rms, outputs));
            case.p.push("proj_add", ProjAdd { post, scale: 0.3, ..ProjAdd::plain(y, w, x) });
            let inputs =
                vec![(y, case.numbers.values(n_rows * cols)), (x, case.numbers.values(n_rows * outputs))];
            let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
            case.check(backends(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

/// Rows with common experts and without, one expert and all of them.
#[test]
fn mixtures_of_experts() {
    for (name, n_experts, n_used) in [("f16", 4, 2), ("mxfp4", 7, 3), ("q4_k", 5, 5), ("f32", 1, 1)] {
        for n_rows in [1, 2, 9, 40] {
            let (dim, ffn_dim) = (256, if name == "q4_k" { 256 } else { 96 });
            let case_name = format!("{n_used} of {n_experts} experts of {name}, {n_rows} rows");
            let mut case = Case::new(&case_name, limits(n_rows + 1, 1, 1));
            let x = case.buf("x", dim);
            let norm = case.norm(NormKind::Rms, dim);
            let none = ActQuant::None;
            let router = case.linear_with_bias(ty("f32"), n_experts, dim, none);
            let experts = case.experts([name; 3], [n_experts, dim, ffn_dim], none);
            let act = if name == "mxfp4" { Act::ClampedSwiglu } else { Act::Silu };
            case.p.push("experts", Experts::of(x, norm, router, experts, n_used, act));
            let inputs = vec![(x, case.numbers.values(n_rows * dim))];
            let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
            case.check(backends(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

/// Every gating, with and without a bias, groups, normalisation and a factor; rows one by one and sorted.
#[test]
fn experts_chosen_by_other_scores() {
    let plain = Routing::SOFTMAX;
    let sigmoid = Routing { gating: Gating::Sigmoid, ..plain.clone() };
    let groups = Some(Groups { n: 4, n_used: 2 });
    for (routing, has_bias, n_experts) in [
        (Routing { normalise: false, ..plain.clone() }, false, 7),
        (Routing { scale: 1.75, ..plain.clone() }, true, 40),
        (Routing { normalise: false, scale: 0.5, ..sigmoid.clone() }, false, 7),
        (Routing { scale: 2.5, ..sigmoid.clone() }, true, 40),
        (Routing { groups, ..sigmoid }, true, 40),
        (Routing { groups, ..plain }, false, 8),
    ] {
        for n_rows in [1, 3, 21] {
            let (dim, ffn_dim, n_used) = (64, 64, 3);
            let case_name = format!("{routing:?}, bias: {has_bias}, {n_experts} experts, {n_rows} rows");
            let mut case = Case::new(&case_name, limits(n_rows + 1, 1, 1));
            let x = case.buf("x", dim);
            let norm = case.norm(NormKind::Rms, dim);
            let router = case.linear(ty("f32"), n_experts, dim, ActQuant::None);
            let bias = has_bias.then(|| case.vector(n_experts, 0.0));
            let experts = case.experts(["f16"; 3], [n_experts, dim, ffn_dim], ActQuant::None);
            let routing = Routing { bias, ..routing.clone() };
            let stage = Experts::of(x, norm, router, experts, n_used, Act::Silu);
            case.p.push("experts", Experts { routing, ..stage });
            let inputs = vec![(x, case.numbers.values(n_rows * dim))];
            let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
            case.check(backends(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

/// Without a gate, with a norm of the router, and with the sum in a buffer of its own, which is then
/// normalised and added; rows one by one and sorted.
#[test]
fn experts_without_gates_and_with_their_own_sum() {
    for (name, act, has_out) in [
        ("f16", Act::Relu2, false),
        ("q8_0", Act::Relu2, true),
        ("q4_0", Act::GeluTanh, true),
        ("f16", Act::Silu, false),
    ] {
        for (n_rows, has_gate) in [(1, false), (3, true), (3, false), (21, false), (21, true)] {
            let (dim, ffn_dim, n_experts, n_used) = (64, 96, 20, 3);
            let case_name = format!("{name} {act:?}, gate: {has_gate}, out: {has_out}, {n_rows} rows");
            let mut case = Case::new(&case_name, limits(n_rows + 1, 1, 1));
            let [x, sum] = ["x", "sum"].map(|name| case.buf(name, dim));
            let [norm, router_norm, post] = [(); 3].map(|()| case.norm(NormKind::Rms, dim));
            let router = case.linear(ty("f32"), n_experts, dim, ActQuant::None);
            let mut experts = case.experts([name; 3], [n_experts, dim, ffn_dim], ActQuant::None);
            if !has_gate {
                experts.iter_mut().for_each(|expert| expert.gate = None);
            }
            let stage = Experts::of(x, norm, router, experts, n_used, act);
            let (router_norm, out) = (has_out.then_some(router_norm), has_out.then_some(sum));
            case.p.push("experts", Experts { router_norm, out, ..stage });
            case.p.push("norm_add", NormAdd { y: sum, norm: post, scale: 0.75, x });
            let values = |case: &mut Case| case.numbers.values(n_rows * dim);
            let inputs = vec![(x, values(&mut case)), (sum, values(&mut case))];
            let step = StepCase { rows: single(n_rows), stages: 0..2, inputs, read: vec![x, sum] };
            case.check(backends(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

#[test]
fn vectors_added_to_rows() {
    for (dim, n_rows) in [(64, 1), (100, 5), (2560, 3)] {
        let mut case = Case::new(&format!("a vector of {dim} for {n_rows} rows"), limits(n_rows + 1, 1, 1));
        let (x, v) = (case.buf("x", dim), case.vector(dim, 0.5));
        case.p.push("add_vector", AddVector { x, v });
        let inputs = vec![(x, case.numbers.values(n_rows * dim))];
        let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
        case.check(backends(), &shuffled_pages(1, 1), &[step]);
    }
}

/// Gate and up types that one kernel computes together and that need two, in tiles with and without tensor
/// cores.
#[test]
fn mixtures_of_experts_on_every_kernel() {
    let (none, int8) = (ActQuant::None, ActQuant::I8PerToken);
    for ([gate, up, down], act) in [
        (["q8_0", "q8_0", "q6_k"], none),
        (["q4_0", "f16", "bf16"], none),
        (["tq2_0", "tq2_0", "i2_s"], none),
        (["tq1_0", "tq2_0", "i2_s"], int8),
        (["i2_s", "f16", "q8_0"], int8),
    ] {
        for n_rows in [1, 3, 37] {
            let (dim, ffn_dim, n_experts, n_used) = (256, 256, 33, 2);
            let name = format!("experts of {gate}, {up} and {down} {act:?}, {n_rows} rows");
            // Two slots of 33 experts: three rows one by one, 37 sorted.
            let mut case = Case::new(&name, limits(n_rows + 1, 1, 1));
            let x = case.buf("x", dim);
            let norm = case.norm(NormKind::Layer, dim);
            let router = case.linear_with_bias(ty("f16"), n_experts, dim, none);
            let experts = case.experts([gate, up, down], [n_experts, dim, ffn_dim], act);
            case.p.push("experts", Experts::of(x, norm, router, experts, n_used, Act::Relu2));
            let inputs = vec![(x, case.numbers.values(n_rows * dim))];
            let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
            case.check(simt(2).into_iter().collect(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

/// Rows one by one, a few, and sorted by expert, with tiles that do not use tensor cores.
#[test]
fn expert_rows_do_not_depend_on_the_batch() {
    for (name, act) in [("bf16", ActQuant::None), ("i2_s", ActQuant::I8PerToken)] {
        let (dim, ffn_dim, n_experts, n_used, n_rows) = (256, 384, 16, 3, 40);
        let mut case = Case::new(&format!("experts of {name}"), limits(n_rows, 1, 1));
        let x = case.buf("x", dim);
        let norm = case.norm(NormKind::Rms, dim);
        let router = case.linear(ty("f32"), n_experts, dim, ActQuant::None);
        let experts = (0..n_experts)
            .map(|_| Expert {
                gate: Some(case.linear(ty(name), ffn_dim, dim, act)),
                up: case.linear(ty(name), ffn_dim, dim, act),
                down: case.linear(ty(name), dim, ffn_dim, act),
            })
            .collect();
        case.p.push("experts", Experts::of(x, norm, router, experts, n_used, Act::Silu));
        let inputs = case.numbers.values(n_rows * dim);
        let pages = shuffled_pages(1, 1);
        let Some(mut backend) = simt(5) else { return };
        let mut running = case.on(&mut *backend);
        let mut run = |inputs: &[f32]| {
            let n = inputs.len() / dim;
            running.write(x, inputs);
            running.run(0..1, &Step { rows: &single(n), pages: &pages, sampling: &[], changes: &[] });
            running.read(x, n)
        };
        let together = run(&inputs);
        let alone: Vec<f32> = inputs.chunks(dim).flat_map(&mut run).collect();
        let by_five: Vec<f32> = inputs.chunks(5 * dim).flat_map(&mut run).collect();
        assert!(together == alone && together == by_five && together != inputs, "{name}");
    }
}

/// The shapes of a real model's largest layers.
#[test]
fn linear_layers_of_full_size() {
    let (int8, none) = (ActQuant::I8PerToken, ActQuant::None);
    for (name, act, n_rows, outputs) in
        [("i2_s", int8, 2, 2560), ("q6_k", none, 1, 640), ("f16", none, 1, 640)]
    {
        let cols = if name == "q6_k" { 2560 } else { 6912 };
        let case_name = format!("proj_add {name} {n_rows} x [{outputs}, {cols}]");
        let mut case = Case::new(&case_name, limits(n_rows, 1, 1));
        let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
        let w = case.linear(ty(name), outputs, cols, act);
        case.p.push("proj_add", ProjAdd::plain(y, w, x));
        let inputs = vec![(y, case.numbers.values(n_rows * cols)), (x, vec![0.0; n_rows * outputs])];
        let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![x] };
        case.check(few_backends(), &shuffled_pages(1, 1), &[step]);
    }
}

/// Recovers the integer sum from every output of an I2_S layer. Rows of equal signs with the largest
/// activations have the largest sums, at which 16-bit accumulators would wrap.
#[test]
fn ternary_sums_are_exact() {
    for cols in [128, 2560, 6912] {
        for n_rows in [1, 4] {
            let mut numbers = Numbers::new(cols as u64);
            let mut codes = vec![1.0; 7 * cols];
            codes[cols..2 * cols].fill(-1.0);
            codes[2 * cols..].iter_mut().for_each(|code| *code = numbers.below(3) as f32 - 1.0);
            let mut case = Case::new(&format!("ternary sums of {cols}"), limits(n_rows, 1, 1));
            let (y, x) = (case.buf("y", cols), case.buf("x", 7));
            let w = case.weight_of(ty("i2_s"), 7, cols, &codes);
            let w = Linear { act: ActQuant::I8PerToken, ..Linear::of(w) };
            case.p.push("proj_add", ProjAdd::plain(y, w, x));
            // Rows of integers whose maximum is 127 are quantised exactly: s is 1.
            let mut input: Vec<f32> = (0..n_rows * cols).map(|_| numbers.below(255) as f32 - 127.0).collect();
            input[..cols].fill(127.0);
            input.chunks_exact_mut(cols).for_each(|row| row[0] = 127.0);
            let step = StepCase {
                rows: single(n_rows),
                stages: 0..1,
                inputs: vec![(y, input.clone()), (x, vec![0.0; n_rows * 7])],
                read: vec![],
            };
            for mut backend in backends() {
                let device = backend.device();
                let mut running = case.on(&mut *backend);
                running.run_step(&step, &shuffled_pages(1, 1), &[]);
                for (i, got) in running.read(x, n_rows).iter().enumerate() {
                    let (a, w) = (&input[i / 7 * cols..][..cols], &codes[i % 7 * cols..][..cols]);
                    let want: i64 = a.iter().zip(w).map(|(a, w)| *a as i64 * *w as i64).sum();
                    assert_eq!(*got, want as f32, "{cols} columns on {device}");
                }
            }
        }
    }
}

#[test]
fn embeddings_of_every_type() {
    for ty in REGISTRY {
        for with_positions in [false, true] {
            let cols = cols_of(ty.block_elems(), 100);
            let mut case = Case::new(&format!("embed {}", ty.name()), limits(6, 1, 1));
            let x = case.buf("x", cols);
            let table = case.weight(*ty, 11_usize.next_multiple_of(ty.rows_together()), cols);
            let positions = with_positions.then(|| case.weight(support::case::ty("f32"), 64, cols));
            let scale = if with_positions { 1.0 } else { 7.5 };
            case.p.push("embed", Embed { scale, positions, ..Embed::tokens(table, x) });
            let rows = [(0, 0), (10, 1), (3, 2), (3, 63)];
            let rows = rows.map(|(token, pos)| Row { token, pos, seq: 0, logits: false }).to_vec();
            let step = StepCase { rows, stages: 0..1, inputs: vec![], read: vec![x] };
            case.check(backends(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

/// A table with three rows per token, of which a stage reads one.
#[test]
fn embeddings_per_layer() {
    for (i, (name, first)) in [("f16", 0), ("q8_0", 2), ("q6_k", 1)].into_iter().enumerate() {
        let (cols, stride) = (256, 3);
        let mut case = Case::new(&format!("embed row {first} of {stride}, {name}"), limits(6, 1, 1));
        let x = case.buf("x", cols);
        let table = case.weight(ty(name), 11 * stride as usize, cols);
        case.p.push("embed", Embed { stride, first, scale: 1.5, ..Embed::tokens(table, x) });
        let rows = [(0, 0), (10, 1), (3, 2), (3, 3)];
        let rows = rows.map(|(token, pos)| Row { token, pos, seq: 0, logits: false }).to_vec();
        let step = StepCase { rows, stages: 0..1, inputs: vec![], read: vec![x] };
        case.check(backends_alternating(i), &shuffled_pages(1, 1), &[step]);
    }
}

/// Two sequences are pairs of texts, whose second text has another token type; the third is a single text.
#[test]
fn embeddings_of_token_types() {
    for with_positions in [false, true] {
        let cols = 100;
        let mut case = Case::new("embed with token types", limits(9, 3, 3));
        let x = case.buf("x", cols);
        let f32s = ty("f32");
        let (table, types) = (case.weight(ty("f16"), 11, cols), Some(case.weight(f32s, 2, cols)));
        let positions = with_positions.then(|| case.weight(f32s, 64, cols));
        case.p.push("embed", Embed { positions, types, ..Embed::tokens(table, x) });
        let mut pages = shuffled_pages(3, 1);
        pages.set_second(0, Some(2));
        pages.set_second(1, Some(0));
        let row = |i: u32| Row { token: 7 * i % 11, pos: i % 3, seq: i / 3, logits: false };
        let step = StepCase { rows: (0..9).map(row).collect(), stages: 0..1, inputs: vec![], read: vec![x] };
        case.check(backends(), &pages, &[step]);
    }
}

#[test]
fn feed_forward_of_every_activation() {
    for act in [Act::Relu2, Act::Silu, Act::Gelu, Act::GeluTanh, Act::ClampedSwiglu] {
        for with_gate in [false, true].into_iter().filter(|gate| *gate || act != Act::ClampedSwiglu) {
            for (quant, name) in [(ActQuant::None, "f16"), (ActQuant::I8PerToken, "i2_s")] {
                for kind in [NormKind::Rms, NormKind::Layer] {
                    for n_rows in [1, 7] {
                        let (dim, ffn_dim) = (256, 75);
                        let case_name = format!("ffn_in {act:?} {name} {kind:?}, gate: {with_gate}");
                        let mut case = Case::new(&case_name, limits(n_rows + 1, 1, 1));
                        let (x, h) = (case.buf("x", dim), case.buf("h", ffn_dim));
                        let norm = case.norm(kind, dim);
                        let gate = with_gate.then(|| case.linear_with_bias(ty(name), ffn_dim, dim, quant));
                        let up = case.linear_with_bias(ty(name), ffn_dim, dim, quant);
                        case.p.push("ffn_in", FfnIn { gate, ..FfnIn::plain(x, norm, up, act, h) });
                        let inputs = vec![(x, case.numbers.values(n_rows * dim))];
                        let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![h] };
                        case.check(backends(), &shuffled_pages(1, 1), &[step]);
                    }
                }
            }
        }
    }
}

/// Apertus's activation function, alone and as a gate. wgpu rejects it as a gate by name.
#[test]
fn feed_forward_with_xielu() {
    let act = Act::Xielu(Xielu { positive: 0.7, negative: 1.3, beta: 0.5, eps: -1e-6 });
    for with_gate in [false, true] {
        let (dim, ffn_dim, n_rows) = (256, 75, 7);
        let mut case = Case::new(&format!("ffn_in with xIELU, gate: {with_gate}"), limits(n_rows + 1, 1, 1));
        let (x, h) = (case.buf("x", dim), case.buf("h", ffn_dim));
        let gate = with_gate.then(|| case.linear_with_bias(ty("f16"), ffn_dim, dim, ActQuant::None));
        let up = case.linear_with_bias(ty("f16"), ffn_dim, dim, ActQuant::None);
        case.p.push("ffn_in", FfnIn { gate, ..FfnIn::plain(x, None, up, act, h) });
        let inputs = vec![(x, case.numbers.values(n_rows * dim))];
        let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![h] };
        let wgpu = backend("wgpu", 1);
        let (runs, refuses) = if with_gate { (None, wgpu) } else { (wgpu, None) };
        let devices = cpus(&[1, 4]).into_iter().chain(simt(1)).chain(runs).collect();
        case.check(devices, &shuffled_pages(1, 1), &[step]);
        if let Some(device) = refuses {
            let message = device.plan(&case.p).map(drop).expect_err("no kernels").to_string();
            assert!(message.contains("the activation function xIELU runs"), "{message}");
        }
    }
}

/// A network whose input is not normalised, and whose hidden layer has factors: with a gate and without, in
/// one kernel on CUDA and in several.
#[test]
fn feed_forward_with_factors() {
    for (with_gate, act, name, n_rows) in [
        (false, Act::GeluTanh, "f16", 1),
        (false, Act::GeluTanh, "q8_0", 20),
        (true, Act::Silu, "f16", 7),
        (true, Act::Gelu, "f16", 2),
    ] {
        let (dim, ffn_dim) = (256, 75);
        let case_name = format!("ffn_in with factors, {act:?}, {name}, gate: {with_gate}");
        let mut case = Case::new(&case_name, limits(n_rows + 1, 1, 1));
        let (x, h, times) = (case.buf("x", dim), case.buf("h", ffn_dim), case.buf("factors", ffn_dim));
        let gate = with_gate.then(|| case.linear_with_bias(ty(name), ffn_dim, dim, ActQuant::None));
        let up = case.linear_with_bias(ty(name), ffn_dim, dim, ActQuant::None);
        case.p.push("ffn_in", FfnIn { gate, times: Some(times), ..FfnIn::plain(x, None, up, act, h) });
        let inputs =
            vec![(x, case.numbers.values(n_rows * dim)), (times, case.numbers.values(n_rows * ffn_dim))];
        let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![h] };
        case.check(backends(), &shuffled_pages(1, 1), &[step]);
    }
}

/// Gate and up of different types or input quantisation, and ternary ones whose inputs are not quantised.
#[test]
fn layers_of_one_stage_with_different_types() {
    let (dim, ffn_dim) = (256, 40);
    let (none, int8) = (ActQuant::None, ActQuant::I8PerToken);
    for (gate, up) in [
        (Some(("i2_s", int8)), ("q8_0", none)),
        (Some(("tq1_0", none)), ("i2_s", int8)),
        (Some(("i2_s", none)), ("i2_s", none)),
        // One kernel on CUDA.
        (Some(("tq1_0", int8)), ("tq2_0", int8)),
        (None, ("tq2_0", none)),
    ] {
        for n_rows in [1, 3, 20] {
            let name = format!("ffn_in of {gate:?} and {up:?}, {n_rows} rows");
            let mut case = Case::new(&name, limits(n_rows + 1, 1, 1));
            let (x, h) = (case.buf("x", dim), case.buf("h", ffn_dim));
            let norm = case.norm(NormKind::Rms, dim);
            let mut layer = |(name, act)| case.linear_with_bias(ty(name), ffn_dim, dim, act);
            let (gate, up) = (gate.map(&mut layer), layer(up));
            case.p.push("ffn_in", FfnIn { gate, ..FfnIn::plain(x, norm, up, Act::Silu, h) });
            let inputs = vec![(x, case.numbers.values(n_rows * dim))];
            let step = StepCase { rows: single(n_rows), stages: 0..1, inputs, read: vec![h] };
            case.check(backends(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

#[test]
fn logits_only_of_requested_rows() {
    let (dim, n_vocab) = (256, 333);
    let all = [vec![], vec![4], vec![0, 2, 3], vec![0, 1, 2, 3, 4]];
    for (asked, name) in all.into_iter().flat_map(|asked| ["f16", "i2_s"].map(|name| (asked.clone(), name))) {
        let mut case = Case::new(&format!("logits of {asked:?}, {name}"), limits(5, 1, 1));
        let (x, logits) = (case.buf("x", dim), case.p.buf("logits", RowsOf::Outputs, n_vocab));
        let norm = case.norm(NormKind::Rms, dim);
        let w = case.linear(ty(name), n_vocab, dim, ActQuant::None);
        case.p.push("logits", Logits { x, norm, w, soft_cap: None, logits });
        let mut rows = single(5);
        asked.iter().for_each(|row: &usize| rows[*row].logits = true);
        let inputs = vec![(x, case.numbers.values(5 * dim))];
        let step = StepCase { rows, stages: 0..1, inputs, read: vec![logits] };
        case.check(backends(), &shuffled_pages(1, 1), &[step]);
    }
}

/// Logits below, near and far above the cap.
#[test]
fn logits_with_a_soft_cap() {
    let (dim, n_vocab) = (256, 333);
    let mut case = Case::new("logits with a soft cap", limits(5, 1, 1));
    let (x, logits) = (case.buf("x", dim), case.p.buf("logits", RowsOf::Outputs, n_vocab));
    let norm = case.norm(NormKind::Rms, dim);
    let mut w = case.linear(ty("f16"), n_vocab, dim, ActQuant::None);
    w.scale = 3.0;
    case.p.push("logits", Logits { x, norm, w, soft_cap: Some(30.0), logits });
    let mut rows = single(5);
    rows[1..].iter_mut().for_each(|row| row.logits = true);
    let inputs = vec![(x, case.numbers.values(5 * dim))];
    let step = StepCase { rows, stages: 0..1, inputs, read: vec![logits] };
    case.check(backends(), &shuffled_pages(1, 1), &[step]);
}

/// NaN, infinity and huge values in a row do not affect other rows.
#[test]
fn nan_stays_in_its_row() {
    let kinds = [(ActQuant::None, "f16"), (ActQuant::I8PerToken, "i2_s"), (ActQuant::I8PerBlock, "q4_k")];
    for (act, name) in kinds {
        for bad in [f32::NAN, f32::INFINITY, 3e38] {
            let (dim, ffn_dim, n_rows) = (256, 48, 9);
            let mut case = Case::new(&format!("{name} with a row of {bad}"), limits(n_rows, 1, 1));
            let (x, h) = (case.buf("x", dim), case.buf("h", ffn_dim));
            let norm = case.norm(NormKind::Rms, dim);
            let gate = Some(case.linear(ty(name), ffn_dim, dim, act));
            let up = case.linear(ty(name), ffn_dim, dim, act);
            case.p.push("ffn_in", FfnIn { gate, ..FfnIn::plain(x, norm, up, Act::Relu2, h) });
            let mut values = case.numbers.values(n_rows * dim);
            let mut step = StepCase {
                rows: single(n_rows),
                stages: 0..1,
                inputs: vec![(x, values.clone())],
                read: vec![],
            };
            for mut backend in backends() {
                if !case.has_kernels(&*backend) {
                    continue;
                }
                let mut running = case.on(&mut *backend);
                step.inputs[0].1.clone_from(&values);
                running.run_step(&step, &shuffled_pages(1, 1), &[]);
                let good = running.read(h, n_rows);
                step.inputs[0].1[4 * dim + 3] = bad;
                running.run_step(&step, &shuffled_pages(1, 1), &[]);
                let with_bad = running.read(h, n_rows);
                for row in (0..n_rows).filter(|row| *row != 4) {
                    let at = row * ffn_dim..(row + 1) * ffn_dim;
                    assert_eq!(good[at.clone()], with_bad[at], "row {row} with {bad} in row 4");
                }
            }
            values.clear();
        }
    }
}
