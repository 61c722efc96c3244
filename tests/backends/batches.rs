//! Results do not depend on how tokens are divided into steps, to the bit: a prompt in one batch, in parts or
//! token by token, together with other sequences or alone, after a cut, with any number of threads.

use std::ops::Range;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sterna::backend::cpu::{Cpu, simd};
use sterna::program::{Buf, PAGE, PageTable, Row, Step};
use support::case::model::{Model, SMALL};
use support::case::{Case, Running, cpus, limits, shuffled_pages, windowed_limits, windowed_pages};

const MAX_ROWS: usize = 80;
const N_SEQS: usize = 3;
const N_PAGES: usize = 6;

/// A cache whose pages are encoded once they have left the window.
const WINDOWED: Model = Model { kv: "turboquant", ..SMALL };

fn small(model: Model) -> (Case, Buf, PageTable) {
    let windowed = model.kv.starts_with("turboquant");
    let (limits, pages) = match windowed {
        true => (windowed_limits(MAX_ROWS, N_SEQS, N_PAGES), windowed_pages(N_SEQS, N_PAGES)),
        false => (limits(MAX_ROWS, N_SEQS, N_PAGES), shuffled_pages(N_SEQS, N_PAGES)),
    };
    let (case, logits) = model.case("a small model", limits);
    (case, logits, pages)
}

/// Token at a position of a sequence, by an arbitrary function.
fn token(seq: u32, pos: u32) -> u32 {
    (seq * 101 + pos * pos * 7 + pos * 13) % SMALL.n_vocab as u32
}

fn rows(seq: u32, positions: Range<u32>) -> Vec<Row> {
    positions.map(|pos| Row { token: token(seq, pos), pos, seq, logits: true }).collect()
}

/// The tokens of sequence 0, in another slot.
fn copies(slot: u32, positions: Range<u32>) -> Vec<Row> {
    rows(0, positions).into_iter().map(|row| Row { seq: slot, ..row }).collect()
}

/// Runs one step, and returns the logits of all its rows.
fn run(running: &mut Running<'_>, logits: Buf, pages: &PageTable, rows: &[Row]) -> Vec<Vec<f32>> {
    let step = Step { rows, pages, sampling: &[], changes: &[] };
    running.backend.run(running.exec, &step).expect("a run");
    let all = running.read(logits, rows.len());
    assert!(all.iter().all(|x| x.is_finite()));
    all.chunks_exact(SMALL.n_vocab).map(<[f32]>::to_vec).collect()
}

/// Returns the logits of positions `0..n`, with one token per step.
fn one_by_one(running: &mut Running<'_>, logits: Buf, pages: &PageTable, seq: u32, n: u32) -> Vec<Vec<f32>> {
    (0..n).flat_map(|pos| run(running, logits, pages, &rows(seq, pos..pos + 1))).collect()
}

#[test]
fn batched_prefill_matches_single_steps() {
    for model in [
        SMALL,
        WINDOWED,
        Model { kv: "q4_0", ..SMALL },
        Model { weights: "q8_0", kv: "f32", n_kv_heads: 8, ..SMALL },
    ] {
        let (case, logits, pages) = small(model);
        for mut backend in cpus(&[2]) {
            let device = backend.device();
            let mut running = case.on(&mut *backend);
            let want = one_by_one(&mut running, logits, &pages, 0, 2 * PAGE as u32 + 1);
            let (page, max_rows) = (PAGE as u32, MAX_ROWS as u32);
            let around_limits = [1, page - 1, page, page + 1, max_rows - 1, max_rows, max_rows + 1];
            for n in around_limits.into_iter().chain([2 * page, 2 * page + 1]) {
                let mut got = Vec::new();
                for start in (0..n).step_by(MAX_ROWS) {
                    let rows = copies(1, start..n.min(start + max_rows));
                    got.extend(run(&mut running, logits, &pages, &rows));
                }
                for (pos, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert_eq!(got, want, "{device}: position {pos} of a prompt of {n}");
                }
            }
        }
    }
}

/// From position 256 on, attention merges the results of splits.
#[test]
fn late_batches_match_single_steps() {
    for model in [SMALL, WINDOWED] {
        let (case, logits, pages) = small(model);
        for mut backend in cpus(&[2]) {
            let device = backend.device();
            let mut running = case.on(&mut *backend);
            for start in (0..240).step_by(MAX_ROWS) {
                run(&mut running, logits, &pages, &rows(0, start..start + MAX_ROWS as u32));
                run(&mut running, logits, &pages, &copies(1, start..start + MAX_ROWS as u32));
            }
            let batch = run(&mut running, logits, &pages, &rows(0, 240..270));
            for (pos, want) in (240..270).zip(batch) {
                let got = run(&mut running, logits, &pages, &copies(1, pos..pos + 1));
                assert_eq!(got[0], want, "{device}, {}: position {pos}", model.kv);
            }
        }
    }
}

#[test]
fn logits_do_not_depend_on_the_number_of_threads() {
    for model in [SMALL, WINDOWED] {
        let (case, logits, pages) = small(model);
        for kernels in simd::all() {
            let on = |threads| {
                let mut cpu = Cpu::with_kernels(threads, kernels).expect("threads");
                let mut running = case.on(&mut cpu);
                let mut all = Vec::new();
                for start in (0..300).step_by(60) {
                    all.extend(run(&mut running, logits, &pages, &rows(0, start..start + 60)));
                }
                all.extend(run(&mut running, logits, &pages, &rows(0, 300..301)));
                all
            };
            let want = on(1);
            for threads in [2, 3, 8] {
                assert!(on(threads) == want, "{threads} threads, {} kernels, {}", kernels.name, model.kv);
            }
        }
    }
}

/// Three sequences in steps with some tokens of each, one of which is sometimes cut back.
#[test]
fn logits_do_not_depend_on_the_schedule() {
    any_schedule(SMALL, 120);
}

#[test]
fn windowed_logits_do_not_depend_on_the_schedule() {
    any_schedule(WINDOWED, 220);
}

fn any_schedule(model: Model, most: u32) {
    let (case, logits, pages) = small(model);
    let mut reference = Cpu::new(1).expect("threads");
    let mut reference = case.on(&mut reference);
    let one_by_one = |seq| one_by_one(&mut reference, logits, &pages, seq, most);
    let want: Vec<_> = (0..N_SEQS as u32).map(one_by_one).collect();

    let config = ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() };
    let counts = proptest::array::uniform3(0_u32..40);
    let schedules = proptest::collection::vec((counts, 0..N_SEQS, 0_u32..8), 1..most as usize / 17);
    let result = TestRunner::new(config).run(&schedules, |steps| {
        let mut mixed = Cpu::new(2).expect("threads");
        let mut mixed = case.on(&mut mixed);
        let mut at = [0_u32; N_SEQS];
        for (counts, cut, by) in steps {
            let mut all = Vec::new();
            for (seq, n) in counts.into_iter().enumerate() {
                let room = (MAX_ROWS - all.len()) as u32;
                let n = n.min(room).min(most - at[seq]);
                all.extend(rows(seq as u32, at[seq]..at[seq] + n));
                at[seq] += n;
            }
            let got = run(&mut mixed, logits, &pages, &all);
            for (row, got) in all.iter().zip(got) {
                prop_assert_eq!(&got, &want[row.seq as usize][row.pos as usize]);
            }
            at[cut] = at[cut].saturating_sub(by);
        }
        Ok(())
    });
    result.unwrap_or_else(|err| panic!("{err}"));
}
