//! Rows too long for a card's shared memory: the CUDA kernels load the activations part by part.

use ggml_types::types::REGISTRY;
use sterna::backend::Backend;
use sterna::backend::cuda::Cuda;
use sterna::backend::cuda::driver::cards::{SMALL, Spec};
use sterna::backend::cuda::driver::simt::Simt;
use sterna::program::{Act, ActQuant, Experts, Linear, NormKind, ProjAdd};
use support::case::{Case, StepCase, limits, rows, shuffled_pages, ty};

fn card(block_shared_bytes: u32) -> Vec<Box<dyn Backend>> {
    let card = Box::leak(Box::new(Spec { block_shared_bytes, ..SMALL }));
    vec![Box::new(Cuda::on(Box::new(Simt::of_card(2, 1, card))))]
}

/// Checks a product of `n_rows` rows, with or without a norm, against the oracle.
fn check_product(
    name: &str,
    [outputs, cols]: [usize; 2],
    act: ActQuant,
    normed: bool,
    n_rows: usize,
    shared: u32,
) {
    let what = format!("{name}, {outputs} x {cols}, {act:?}, {n_rows} rows, {shared} bytes");
    let mut case = Case::new(&what, limits(n_rows, 1, 1));
    let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
    let norm = normed.then(|| case.norm(NormKind::Rms, cols));
    let w = Linear { norm, ..case.linear_with_bias(ty(name), outputs, cols, act) };
    case.p.push("proj_add", ProjAdd::plain(y, w, x));
    let inputs = vec![(y, case.numbers.values(n_rows * cols)), (x, case.numbers.values(n_rows * outputs))];
    let step = StepCase { rows: rows(0, 0..n_rows as u32), stages: 0..1, inputs, read: vec![x] };
    let backends = card(shared);
    assert!(case.has_kernels(&*backends[0]), "{what}: refused");
    case.check(backends, &shuffled_pages(1, 1), &[step]);
}

/// Blocks have 64 KiB of shared memory on cards of compute capability 7.5. The conformance tests run such
/// rows with 99 KiB.
#[test]
fn long_rows_of_every_type_match_the_oracle() {
    for ty in REGISTRY {
        for n_rows in [1, 5] {
            check_product(ty.name(), [12, 28_672], ActQuant::None, false, n_rows, 64 << 10);
        }
    }
}

/// A row quantised per block must fit in shared memory as a whole; longer rows are refused.
#[test]
fn too_long_rows_quantised_per_block_are_refused() {
    check_product("q4_k", [12, 32_768], ActQuant::I8PerBlock, false, 1, 64 << 10);
    let mut case = Case::new("a row of 65,536", limits(1, 1, 1));
    let (y, x) = (case.buf("y", 65_536), case.buf("x", 1));
    let w = case.linear(ty("q4_k"), 1, 65_536, ActQuant::I8PerBlock);
    case.p.push("proj_add", ProjAdd::plain(y, w, x));
    let refused = card(64 << 10)[0].plan(&case.p).expect_err("no room").to_string();
    assert!(refused.contains("rows of 65536 inputs of q4_k"), "{refused}");
}

/// Several parts, and more groups of weight rows than a warp keeps sums for.
#[test]
fn sums_over_several_parts_match_the_oracle() {
    for name in ["f32", "f16", "q4_k", "q8_0", "q1_0", "i2_s"] {
        for act in [ActQuant::None, ActQuant::I8PerToken] {
            for n_rows in [1, 5, 11] {
                let outputs = if n_rows == 1 { 300 } else { 70 };
                check_product(name, [outputs, 13_568], act, n_rows != 5, n_rows, 48 << 10);
            }
        }
    }
}

/// Down projections of experts, for one row and for several.
#[test]
fn experts_with_long_rows_match_the_oracle() {
    for (name, n_rows) in [("q8_0", 1), ("bf16", 5)] {
        let (dim, ffn_dim, n_experts, n_used) = (64, 12_800, 4, 2);
        let mut case = Case::new(&format!("experts of {name}, {n_rows} rows"), limits(n_rows, 1, 1));
        let x = case.buf("x", dim);
        let norm = case.norm(NormKind::Rms, dim);
        let router = case.linear(ty("f32"), n_experts, dim, ActQuant::None);
        let experts = case.experts([name; 3], [n_experts, dim, ffn_dim], ActQuant::None);
        case.p.push("experts", Experts::of(x, norm, router, experts, n_used, Act::Silu));
        let inputs = vec![(x, case.numbers.values(n_rows * dim))];
        let step = StepCase { rows: rows(0, 0..n_rows as u32), stages: 0..1, inputs, read: vec![x] };
        let backends = card(48 << 10);
        assert!(case.has_kernels(&*backends[0]), "{name}: refused");
        case.check(backends, &shuffled_pages(1, 1), &[step]);
    }
}
