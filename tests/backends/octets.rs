//! Weights in octets on CUDA, and the kernels that stream them for steps of 2 to 64 rows and of more: against
//! the oracle, against the CPU, and a row against itself in other steps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sterna::backend::cpu::Cpu;
use sterna::backend::cuda::Cuda;
use sterna::backend::cuda::driver::cards::Spec;
use sterna::backend::cuda::driver::simt::{Simt, host::Counts};
use sterna::backend::{Backend, BackendError, Octets};
use sterna::program::{Act, ActQuant, FfnIn, Linear, Logits, NormKind, ProjAdd, RowsOf, Step};
use support::case::model::{Model, SMALL};
use support::case::{Case, StepCase, limits, rows, shuffled_pages, simt_in_octets, ty};

use super::stage_diff::{first_difference, prompt};

const TYPES: [&str; 5] = ["q4_k", "q5_k", "q6_k", "q4_0", "q8_0"];

/// Types with a kernel for more than 64 rows.
const OF_MANY: [&str; 4] = ["q4_k", "q6_k", "q4_0", "q8_0"];

/// Copies of 16 bytes and bulk copies, in two orders of threads each.
fn in_any_order() -> Vec<Box<dyn Backend>> {
    (0..4).map(|seed| simt_in_octets(seed, "small card")).collect()
}

/// A projection, gated pairs of rows, and two layers in one launch, of rows that do not fill the last octet,
/// nor the columns if the type's blocks allow it; one tile of rows to two passes, and more than 64 rows.
#[test]
fn products_of_octets_match_the_oracle() {
    let (ffn_dim, by_block) = (84, ActQuant::I8PerBlock);
    for name in TYPES {
        let ty = ty(name);
        let (dim, steps) =
            if ty.block_elems() == 32 { (544, &[11, 50, 70][..]) } else { (768, &[2, 11, 27, 50, 70][..]) };
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

/// In steps of more than 64 rows, of which a tile has half or all, and in tiles that a block multiplies one
/// after the other. Every kernel has the same sums of a row, whatever the other rows are.
#[test]
fn a_row_of_octets_has_the_same_bits_in_every_large_step() {
    let (n_rows, outputs, cols) = (140, 420, 512);
    for (name, seed) in OF_MANY.into_iter().zip(0..) {
        let mut case = Case::new(&format!("{name}, {n_rows} rows"), limits(n_rows, 1, 3));
        let (y, x) = (case.buf("y", cols), case.buf("x", outputs));
        let w = case.linear_with_bias(ty(name), outputs, cols, ActQuant::I8PerBlock);
        case.p.push("proj_add", ProjAdd::plain(y, w, x));
        let inputs = case.numbers.values(n_rows * cols);
        let pages = shuffled_pages(1, 3);
        let mut backend = simt_in_octets(seed, "small card");
        let mut running = case.on(&mut *backend);
        let mut products = |from: usize, n: usize| {
            running.write(y, &inputs[from * cols..][..n * cols]);
            running.write(x, &vec![0.0; n * outputs]);
            let rows = rows(0, 0..n as u32);
            running.run(0..1, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] });
            running.read(x, n)
        };
        let all = products(0, n_rows);
        for (from, n) in [(0, 66), (37, 100)] {
            assert_eq!(products(from, n), all[from * outputs..][..n * outputs], "{name}, {n} rows");
        }
    }
}

/// Products of many rows read shared memory from different banks.
#[test]
fn products_of_many_rows_have_no_bank_conflicts() {
    for name in OF_MANY {
        let (n_rows, cols) = (70, 512);
        let mut case = Case::new(name, limits(n_rows, 1, 2));
        let (y, x) = (case.buf("y", cols), case.buf("x", 128));
        let w = case.linear_with_bias(ty(name), 128, cols, ActQuant::I8PerBlock);
        case.p.push("proj_add", ProjAdd::plain(y, w, x));
        let all: Arc<Mutex<BTreeMap<String, Counts>>> = Arc::default();
        let card = Spec::find("rtx-5080").expect("a card of the table");
        let cuda = Cuda::on(Box::new(Simt::of_card(2, 0, card).counting(Arc::clone(&all))));
        let mut backend: Box<dyn Backend> = Box::new(cuda.with_octets(Octets::On).expect("enough memory"));
        let mut running = case.on(&mut *backend);
        let (rows, pages) = (rows(0, 0..n_rows as u32), shuffled_pages(1, 2));
        running.run(0..1, &Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] });
        let counts = all.lock().expect("not poisoned")[&format!("proj_add__{name}__octets_many")];
        assert!(counts.least_passes > 0 && counts.least_sectors > 0, "{name}: {counts:?}");
        assert_eq!(counts.passes, counts.least_passes, "{name}");
        // The scales of half an octet of Q6_K are half of each sector.
        assert!(name == "q6_k" || counts.sectors == counts.least_sectors, "{name}: {counts:?}");
    }
}

/// Whole models as files mix types, with rotated pairs of queries and keys, and values.
#[test]
fn models_in_octets_match_the_cpu() {
    for (weights, other, seed) in [("q4_k", Some("q6_k"), 1), ("q5_k", Some("q4_k"), 3)] {
        let model = Model { weights, other, ffn_dim: 512, kv: "f32", ..SMALL };
        let (case, _) = model.case("a small model", limits(70, 1, 2));
        for n in [5, 40, 70] {
            let mut simt = simt_in_octets(seed, "small card");
            let mut cpu = Cpu::new(2).expect("threads");
            let mut both = [case.on(&mut cpu), case.on(&mut *simt)];
            let found = first_difference(&case, &shuffled_pages(1, 2), &prompt(n), 1e-5, &mut both);
            assert_eq!(found, None, "{weights} and {other:?}, {n} tokens");
        }
    }
}

/// A card with 64 KiB of shared memory per block has no room for the ring.
#[test]
fn cards_without_room_for_the_ring_are_refused() {
    let card = || Cuda::on(Box::new(Simt::of_card(1, 0, Spec::find("tesla t4").expect("a card"))));
    let Err(BackendError::Option { .. }) = card().with_octets(Octets::On) else { panic!("it was accepted") };
    assert!(card().with_octets(Octets::Auto).is_ok());
}
