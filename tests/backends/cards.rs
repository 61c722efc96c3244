//! CUDA kernels with the geometry of real cards: blocks, splits, tiles and bytes of shared memory as on an
//! H100, an RTX 5080, an RTX 3060 and a T4. One or two shapes of every family of kernels, against the oracle;
//! `conformance.rs` and `attention.rs` test all shapes, on a small card.

use ggml_types::kv_by_name;
use ggml_types::types::REGISTRY;
use sterna::program::{
    Act, ActQuant, Experts, FfnIn, Linear, Logits, NormKind, ProjAdd, RowsOf, Sample, Sampling,
};
use support::case::window::{RIGHT, Rule, TWO_OF_TWO, attends_as, codec};
use support::case::{Case, StepCase, limits, rows, shuffled_pages, simt_of_cards, ty};

use super::attention::{Shape, decodes_and_prefills_on, plain};

/// Rows of the steps: single rows, several rows, and rows for tensor cores have separate kernels.
const N_ROWS: [usize; 3] = [1, 5, 33];

#[test]
#[ignore = "thorough: scripts/test --all"]
fn linear_layers_of_every_type() {
    for ty in REGISTRY {
        for act in [ActQuant::None, ActQuant::I8PerToken, ActQuant::I8PerBlock] {
            for n_rows in N_ROWS {
                let (cols, outputs) = (ty.block_elems().max(256), 300);
                let name = format!("proj_add {} {act:?}, {n_rows} rows", ty.name());
                let mut case = Case::new(&name, limits(n_rows, 1, 1));
                let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
                let norm = Some(case.norm(NormKind::Rms, cols));
                let w = Linear { norm, ..case.linear_with_bias(*ty, outputs, cols, act) };
                case.p.push("proj_add", ProjAdd::plain(y, w, x));
                let inputs =
                    vec![(y, case.numbers.values(n_rows * cols)), (x, case.numbers.values(n_rows * outputs))];
                let rows = rows(0, 0..n_rows as u32);
                let step = StepCase { rows, stages: 0..1, inputs, read: vec![x] };
                case.check(simt_of_cards(), &shuffled_pages(1, 1), &[step]);
            }
        }
    }
}

/// Gate and up with a common kernel, and with one each.
#[test]
fn feed_forward() {
    for (gate, up) in [("i2_s", "i2_s"), ("q8_0", "q8_0"), ("i2_s", "q8_0"), ("q4_k", "q5_k")] {
        for n_rows in N_ROWS {
            let (dim, ffn_dim) = (256, 300);
            let mut case =
                Case::new(&format!("ffn_in of {gate} and {up}, {n_rows} rows"), limits(n_rows, 1, 1));
            let (x, h) = (case.buf("x", dim), case.buf("h", ffn_dim));
            let norm = case.norm(NormKind::Rms, dim);
            let act = |name| match name {
                "i2_s" => ActQuant::I8PerToken,
                "q8_0" => ActQuant::None,
                _ => ActQuant::I8PerBlock,
            };
            let mut layer = |name| case.linear_with_bias(ty(name), ffn_dim, dim, act(name));
            let (gate, up) = (Some(layer(gate)), layer(up));
            case.p.push("ffn_in", FfnIn { gate, ..FfnIn::plain(x, norm, up, Act::Relu2, h) });
            let inputs = vec![(x, case.numbers.values(n_rows * dim))];
            let step = StepCase { rows: rows(0, 0..n_rows as u32), stages: 0..1, inputs, read: vec![h] };
            case.check(simt_of_cards(), &shuffled_pages(1, 1), &[step]);
        }
    }
}

/// Slots one by one, and rows sorted by expert.
#[test]
fn mixtures_of_experts() {
    for (name, n_rows) in [("q8_0", 1), ("f16", 33), ("bf16", 33)] {
        let (dim, ffn_dim, n_experts, n_used) = (256, 300, 40, 3);
        let ffn_dim = if name == "q8_0" { 320 } else { ffn_dim };
        let mut case = Case::new(&format!("experts of {name}, {n_rows} rows"), limits(n_rows, 1, 1));
        let x = case.buf("x", dim);
        let norm = case.norm(NormKind::Rms, dim);
        let router = case.linear(ty("f32"), n_experts, dim, ActQuant::None);
        let rounding = if name == "q8_0" { ActQuant::I8PerBlock } else { ActQuant::None };
        let experts = case.experts([name; 3], [n_experts, dim, ffn_dim], rounding);
        let act = Act::ClampedSwiglu;
        case.p.push("experts", Experts::of(x, norm, router, experts, n_used, act));
        let inputs = vec![(x, case.numbers.values(n_rows * dim))];
        let rows = rows(0, 0..n_rows as u32);
        let step = StepCase { rows, stages: 0..1, inputs, read: vec![x] };
        case.check(simt_of_cards(), &shuffled_pages(1, 1), &[step]);
    }
}

#[test]
fn logits_and_greedy_tokens() {
    let (dim, n_vocab, n_rows) = (256, 2_000, 5);
    for name in ["f16", "q6_k", "i2_s"] {
        let mut case = Case::new(&format!("logits of {name}"), limits(n_rows, 1, 1));
        let (x, logits) = (case.buf("x", dim), case.p.buf("logits", RowsOf::Outputs, n_vocab));
        let norm = case.norm(NormKind::Rms, dim);
        let w = case.linear(ty(name), n_vocab, dim, ActQuant::None);
        case.p.push("logits", Logits { x, norm, w, soft_cap: None, logits });
        case.p.push("sample", Sample { logits });
        let mut rows = rows(0, 0..n_rows as u32);
        rows.iter_mut().for_each(|row| row.logits = true);
        let inputs = vec![(x, case.numbers.values(n_rows * dim))];
        let step = StepCase { rows, stages: 0..1, inputs, read: vec![logits] };
        case.check(simt_of_cards(), &shuffled_pages(1, 1), std::slice::from_ref(&step));
        for mut backend in simt_of_cards() {
            let device = backend.device();
            let mut running = case.on(&mut *backend);
            let step =
                StepCase { stages: 0..2, rows: step.rows.clone(), inputs: step.inputs.clone(), read: vec![] };
            running.run_step(&step, &shuffled_pages(1, 1), &[Some(Sampling::GREEDY); 5]);
            let values = running.read(logits, n_rows);
            let want: Vec<u32> = values.chunks(n_vocab).map(sterna::program::sampling::argmax).collect();
            let mut got = vec![0; n_rows];
            running.backend.tokens(running.exec, 0, &mut got).expect("tokens");
            assert_eq!(got, want, "{device}");
        }
    }
}

/// Single rows, which split their positions, and tiles of many rows.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn attention_over_float_caches() {
    for name in ["f16", "f32"] {
        let codec = kv_by_name(name).expect("a codec of the registry");
        let shape = Shape { n_heads: 8, n_kv_heads: 2, head_dim: 64, codec, ..plain() };
        decodes_and_prefills_on(simt_of_cards, &format!("cards, {name}"), shape, &[300]);
        // Tiles of these heads need more shared memory than a T4 has.
        let shape = Shape { head_dim: 128, ..shape };
        decodes_and_prefills_on(simt_of_cards, &format!("cards, {name} of 128"), shape, &[80]);
    }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn attention_over_quantised_caches() {
    for names in [["q8_0", "q4_0"], ["q4_0", "f16"]] {
        let rule = Rule { at_once: Some(names.map(codec)), ..RIGHT };
        attends_as(TWO_OF_TWO, names, rule, &[], 330, simt_of_cards());
    }
    for (name, bits) in [("turboquant-mse", 3), ("turboquant-4", 4)] {
        attends_as(TWO_OF_TWO, [name; 2], Rule { bits, ..RIGHT }, &[], 330, simt_of_cards());
    }
}
