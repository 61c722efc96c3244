//! Weights in octets on CUDA, and the kernels that stream them for steps of 2 to 64 rows: against the oracle,
//! against the CPU, and a row against itself in other steps.

use sterna::backend::cpu::Cpu;
use sterna::backend::{Backend, BackendError, Octets};
use sterna::program::{Act, ActQuant, FfnIn, Linear, Logits, NormKind, ProjAdd, RowsOf, Step};
use support::case::model::{Model, SMALL};
use support::case::{Case, StepCase, limits, rows, shuffled_pages, simt_in_octets, ty};

use super::stage_diff::{first_difference, prompt};

const TYPES: [&str; 5] = ["q4_k", "q5_k", "q6_k", "q4_0", "q8_0"];

/// Copies of 16 bytes and bulk copies, in two orders of threads each.
fn in_any_order() -> Vec<Box<dyn Backend>> {
    (0..4).map(|seed| simt_in_octets(seed, "small card")).collect()
}

/// A projection, gated pairs of rows, and two layers in one launch, of rows that do not fill the last octet,
/// nor the columns if the type's blocks allow it; one tile of rows to two passes.
#[test]
fn products_of_octets_match_the_oracle() {
    let (ffn_dim, by_block) = (84, ActQuant::I8PerBlock);
    for name in TYPES {
        let ty = ty(name);
        let (dim, steps) =
            if ty.block_elems() == 32 { (544, &[11, 50][..]) } else { (768, &[2, 11, 27, 50][..]) };
        for &n_rows in steps {
            let mut case = Case::new(&format!("octets of {name}, {n_rows} rows"), limits(n_rows, 1, 2));
            let [x, y, h] = [("x", 147), ("y", dim), ("h", ffn_dim)].map(|(name, cols)| case.buf(name, cols));
            let logits = case.p.buf("logits", RowsOf::Outputs, 300);
            let norm = Some(case.norm(NormKind::Rms, dim));
            let w = Linear { norm, ..case.linear_with_bias(ty, 147, dim, by_block) };
            case.p.push("proj_add", ProjAdd::plain(y, w, x));
            let norm = case.norm(NormKind::Rms, dim);
            let gate = Some(case.linear_with_bias(ty, ffn_dim, dim, by_block));
            let up = case.linear(ty, ffn_dim, dim, by_block);
            case.p.push("ffn_in", FfnIn { gate, ..FfnIn::plain(y, norm, up, Act::Silu, h) });
            let norm = case.norm(NormKind::Layer, dim);
            let w = case.linear(ty, 300, dim, by_block);
            case.p.push("logits", Logits { x: y, norm, w, soft_cap: None, logits });
            let (ys, xs) = (case.numbers.values(n_rows * dim), case.numbers.values(n_rows * 147));
            let mut rows = rows(0, 0..n_rows as u32);
            rows.iter_mut().for_each(|row| row.logits = true);
            let step = |stages, read| StepCase {
                rows: rows.clone(),
                stages,
                inputs: vec![(y, ys.clone()), (x, xs.clone())],
                read: vec![read],
            };
            let steps = [step(0..1, x), step(1..2, h), step(2..3, logits)];
            let backends = in_any_order().into_iter().skip(n_rows % 2).step_by(2).collect();
            case.check(backends, &shuffled_pages(1, 2), &steps);
        }
    }
}

/// On cards of any size: those with more multiprocessors than the weights have spans, and one whose blocks
/// share tiles.
#[test]
fn a_row_of_octets_has_the_same_bits_in_every_step() {
    let (n_rows, outputs, cols) = (60, 200, 1280);
    for name in TYPES {
        let cards = [(1, "small card"), (2, "rtx 3060"), (3, "small card")];
        for (seed, card) in cards.into_iter().take(if ty(name).block_elems() == 32 { 1 } else { 3 }) {
            let mut case = Case::new(&format!("{name}, {n_rows} rows"), limits(n_rows, 1, 1));
            let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
            let w = case.linear_with_bias(ty(name), outputs, cols, ActQuant::I8PerBlock);
            case.p.push("proj_add", ProjAdd::plain(y, w, x));
            let inputs = case.numbers.values(n_rows * cols);
            let pages = shuffled_pages(1, 1);
            let mut backend = simt_in_octets(seed, card);
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
                assert_eq!(products(n), all[..n * outputs], "{name} on {card}, {n} rows");
            }
        }
    }
}

/// Whole models as files mix types, with rotated pairs of queries and keys, and values.
#[test]
fn models_in_octets_match_the_cpu() {
    for (weights, other, seed) in [("q4_k", Some("q6_k"), 1), ("q5_k", Some("q4_k"), 3)] {
        let model = Model { weights, other, ffn_dim: 512, kv: "f32", ..SMALL };
        let (case, _) = model.case("a small model", limits(40, 1, 1));
        for n in [5, 40] {
            let mut simt = simt_in_octets(seed, "small card");
            let mut cpu = Cpu::new(2).expect("threads");
            let mut both = [case.on(&mut cpu), case.on(&mut *simt)];
            let found = first_difference(&case, &shuffled_pages(1, 1), &prompt(n), 1e-5, &mut both);
            assert_eq!(found, None, "{weights} and {other:?}, {n} tokens");
        }
    }
}

/// A card with 64 KiB of shared memory per block has no room for the ring.
#[test]
fn cards_without_room_for_the_ring_are_refused() {
    use sterna::backend::cuda::driver::cards::Spec;
    use sterna::backend::cuda::{Cuda, driver::simt::Simt};
    let card = || Cuda::on(Box::new(Simt::of_card(1, 0, Spec::find("tesla t4").expect("a card"))));
    let Err(BackendError::Option { .. }) = card().with_octets(Octets::On) else { panic!("it was accepted") };
    assert!(card().with_octets(Octets::Auto).is_ok());
}
