//! Tests that [`super`] runs in processes with the stand-in driver: the CUDA backend on a card.

use sterna::backend::Backend;
use sterna::backend::cuda::driver::{Driver, real::Card};
use sterna::backend::cuda::{Cuda, split::Split};
use sterna::program::{Buf, PageTable, Row, Sampling, Step};
use support::case::model::{Model, SMALL};
use support::case::{Case, Running, limits, shuffled_pages, windowed_limits, windowed_pages};

pub const WHY: &str = "the stand-in's card";

pub fn card(ordinal: i32) -> Box<dyn Driver> {
    Box::new(Card::open(ordinal).expect(WHY))
}

fn cuda(ordinal: i32) -> Box<dyn Backend> {
    Box::new(Cuda::on(card(ordinal)))
}

/// Queues a step of `n` rows from `pos` on, as one graph or stage by stage.
fn queue(running: &mut Running<'_>, pages: &PageTable, pos: u32, n: u32, by_stage: bool) {
    let token = |pos: u32| if pos > 80 { Row::PICKED } else { pos * 37 % 300 };
    let rows: Vec<Row> =
        (pos..pos + n).map(|pos| Row { token: token(pos), pos, seq: 0, logits: pos + 1 >= n }).collect();
    let n_outputs = rows.iter().filter(|row| row.logits).count();
    let step = Step { rows: &rows, pages, sampling: &vec![Some(Sampling::GREEDY); n_outputs], changes: &[] };
    if by_stage {
        (0..running.p.stages.len()).for_each(|i| running.run(i..i + 1, &step));
    } else {
        running.backend.run(running.exec, &step).expect("a run");
    }
}

/// Returns every buffer and the picks after a prompt, a step of a few rows, and single rows. Steps are queued
/// without a wait between them, the last ones with tokens that the card picked.
pub fn everything(case: &Case, pages: &PageTable, by_stage: bool) -> Vec<u32> {
    everything_on(cuda(0), case, pages, by_stage)
}

pub fn everything_on(mut on: Box<dyn Backend>, case: &Case, pages: &PageTable, by_stage: bool) -> Vec<u32> {
    let mut running = case.on(&mut *on);
    let mut bits = Vec::new();
    let mut pos = 0;
    for n in [70, 9, 1, 1, 1, 1, 1, 1] {
        queue(&mut running, pages, pos, n, by_stage);
        pos += n;
        if pos > 82 {
            bits.push(running.backend.picked(running.exec, 0, 1).expect("a token"));
        }
    }
    for buf in 0..case.p.bufs.len() {
        bits.extend(running.read(Buf(buf as u32), 1).iter().map(|x| x.to_bits()));
    }
    bits
}

#[test]
#[ignore = "runs only on the stand-in driver"]
fn replays_of_queued_steps_match_the_stages() {
    for model in [SMALL, Model { weights: "q8_0", kv: "turboquant", ..SMALL }] {
        let windowed = model.kv == "turboquant";
        let limits = if windowed { windowed_limits(70, 1, 2) } else { limits(70, 1, 2) };
        let pages = if windowed { windowed_pages(1, 2) } else { shuffled_pages(1, 2) };
        let (case, _) = model.case("a small model", limits);
        let want = everything(&case, &pages, true);
        assert!(want.len() > 1000 && want.iter().any(|bits| *bits != 0));
        for _ in 0..3 {
            assert_eq!(everything(&case, &pages, false), want, "{model:?}");
        }
    }
}

/// Every step is queued on both cards before the first has begun.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn two_cards_match_one() {
    let (case, _) = Model { n_layers: 3, ..SMALL }.case("a small model", limits(70, 1, 2));
    let pages = shuffled_pages(1, 2);
    let want = everything(&case, &pages, true);
    for by_stage in [true, false] {
        let split = Split::on(vec![card(0), card(1)], None).expect(WHY);
        assert!(everything_on(Box::new(split), &case, &pages, by_stage) == want, "by stage: {by_stage}");
    }
}

/// Copies smaller and larger than a part of the pinned staging memory, and more than fit in it; the sources
/// are overwritten at once.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn copies_of_every_size_are_correct() {
    let mut card = Card::open(0).expect(WHY);
    let byte = |i: usize, at: usize| (31 * i + at + at / 251) as u8;
    let large = [1, 63, 64 << 10, 4 << 20, (4 << 20) + 1, 18 << 20];
    let sizes: Vec<usize> = large.into_iter().chain((0..700).map(|i| 40_000 + i)).collect();
    let copy = |(i, &bytes): (usize, &usize)| {
        let at = card.alloc(bytes as u64).expect("memory");
        let mut from: Vec<u8> = (0..bytes).map(|at| byte(i, at)).collect();
        card.write(at, &from).expect("a copy");
        from.fill(0xee);
        at
    };
    let places: Vec<_> = sizes.iter().enumerate().map(copy).collect();
    for (i, (at, bytes)) in places.into_iter().zip(sizes).enumerate() {
        let mut got = vec![0; bytes];
        card.read(at, &mut got).expect("a copy");
        assert!(got.iter().enumerate().all(|(at, got)| *got == byte(i, at)), "{bytes} bytes");
    }
    let none = card.alloc(0).expect("memory");
    card.write(none, &[]).expect("nothing to copy");
    assert!(card.upload_constant("no_such_constants", &[0; 4]).is_err());
}

/// Two cards in one process, with alternating steps.
#[test]
#[ignore = "runs only on the stand-in driver"]
fn cards_are_independent() {
    let (case, logits) = SMALL.case("a small model", limits(4, 1, 1));
    let pages = shuffled_pages(1, 1);
    let mut cards = [cuda(0), cuda(1)];
    let mut both: Vec<_> = cards.iter_mut().map(|card| case.on(&mut **card)).collect();
    for pos in 0..4 {
        both.iter_mut().for_each(|running| queue(running, &pages, pos, 1, false));
    }
    let [a, b] = [0, 1].map(|i| both[i].read(logits, 1));
    assert_eq!(a, b);
}
