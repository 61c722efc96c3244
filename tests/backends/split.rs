//! Layers divided among several cards: the bits of one card, whatever each of them has.

use std::ops::Range;

use sterna::backend::cuda::driver::{Driver, simt::Simt};
use sterna::backend::cuda::{Cuda, split::Split};
use sterna::backend::{Backend, Exec, KvPage};
use sterna::program::{Buf, PageTable, Row, RowsOf, Sampling, Step};
use support::case::model::{MIXTURE, Model, SMALL};
use support::case::{Case, Running, limits, shuffled_pages, windowed_limits, windowed_pages};

const N_SEQS: usize = 2;
const WARM: Sampling = Sampling { temperature: 1e3, top_k: 20, top_p: 1.0, seed: 3, ..Sampling::GREEDY };

fn card(seed: u64) -> Box<dyn Driver> {
    Box::new(Simt::new(1, seed))
}

fn one_card() -> Box<dyn Backend> {
    Box::new(Cuda::on(card(0)))
}

fn split(proportions: &[f64]) -> Box<dyn Backend> {
    let cards = (0..proportions.len() as u64).map(card).collect();
    Box::new(Split::on(cards, Some(proportions.to_vec())).expect("cards that are connected"))
}

/// How a step is queued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum By {
    Step,
    Stage,
}

/// Queues a step of both sequences, each with the rows from `pos` on: `n` of the first and one of the other.
/// Where `fed`, their tokens are those that were picked.
fn queue(running: &mut Running<'_>, pages: &PageTable, pos: [u32; N_SEQS], n: u32, fed: bool, by: By) {
    let row = |seq: usize, pos: u32, last: bool| Row {
        token: if fed { Row::PICKED } else { (pos * 37 + 11 * seq as u32) % 300 },
        pos,
        seq: seq as u32,
        logits: last,
    };
    let mut rows = vec![row(1, pos[1], true)];
    rows.extend((pos[0]..pos[0] + n).map(|at| row(0, at, at + 1 == pos[0] + n)));
    let how = |seq: usize| Some(Sampling { counter: u64::from(pos[seq]), ..WARM });
    let step = Step { rows: &rows, pages, sampling: &[how(1), how(0)], changes: &[] };
    match by {
        By::Step => running.backend.run(running.exec, &step).expect("a run"),
        By::Stage => (0..running.p.stages.len()).for_each(|i| running.run(i..i + 1, &step)),
    }
}

/// Everything that steps leave: picks, tokens, buffers, pages and what was clamped. A prompt comes in while
/// the other sequence decodes, and then both run ahead.
pub fn everything(case: &Case, pages: &PageTable, backend: &mut dyn Backend, by: By) -> Vec<Vec<u8>> {
    everything_of(&mut case.on(backend), case, pages, by)
}

/// The same of a program that is compiled.
pub fn everything_of(running: &mut Running<'_>, case: &Case, pages: &PageTable, by: By) -> Vec<Vec<u8>> {
    let (mut pos, mut all) = ([0; N_SEQS], Vec::new());
    for n in [70, 9, 1, 1, 1, 1, 1] {
        queue(running, pages, pos, n, n == 1, by);
        pos = [pos[0] + n, pos[1] + 1];
        if pos[1] > 1 {
            let picked = |seq| running.backend.picked(running.exec, seq, 1).expect("a token");
            all.push(bytes_of(&[0, 1].map(picked)));
        }
    }
    let mut tokens = [0; 2];
    running.backend.tokens(running.exec, 0, &mut tokens).expect("tokens");
    all.push(bytes_of(&tokens));
    for (at, decl) in case.p.bufs.iter().enumerate() {
        let n_rows = if decl.rows == RowsOf::Step { 2 } else { N_SEQS };
        all.push(running.read(Buf(at as u32), n_rows).iter().flat_map(|x| x.to_le_bytes()).collect());
    }
    all.extend(kv_pages(case, &mut *running.backend, running.exec));
    let clamped = running.backend.clamped(running.exec).expect("a count");
    all.push(clamped.expect("cards count").to_le_bytes().to_vec());
    all
}

fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

fn all_pages(case: &Case) -> impl Iterator<Item = KvPage> {
    let limits = case.p.limits;
    let quantised = (0..limits.pages as u32).map(KvPage::Quantised);
    quantised.chain((0..limits.exact_pages as u32).map(KvPage::Exact))
}

fn kv_pages(case: &Case, backend: &mut dyn Backend, exec: Exec) -> Vec<Vec<u8>> {
    let read = |page| {
        let mut bytes = vec![0; backend.page_bytes(exec, page)];
        backend.read_page(exec, page, &mut bytes).expect("a page");
        bytes
    };
    all_pages(case).map(read).collect()
}

fn small(n_layers: usize, kv: &'static str) -> (Case, PageTable) {
    of_model(Model { n_layers, kv, ..SMALL })
}

/// For steps of two sequences.
pub fn of_model(model: Model) -> (Case, PageTable) {
    let windowed = model.kv == "turboquant";
    let limits = if windowed { windowed_limits(80, N_SEQS, 2) } else { limits(80, N_SEQS, 2) };
    let pages = if windowed { windowed_pages(N_SEQS, 2) } else { shuffled_pages(N_SEQS, 2) };
    (model.case("a small model", limits).0, pages)
}

/// Two cards and three, with more layers than cards and with fewer, and cards that get nothing.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn layers_over_several_cards_are_the_bits_of_one() {
    let of = |n_layers, kv| Model { n_layers, kv, ..SMALL };
    for (model, proportions) in [
        (of(3, "f16"), &[1.0, 1.0][..]),
        (of(5, "f16"), &[1.0, 1.0, 1.0, 1.0]),
        (of(3, "turboquant"), &[1.0, 5.0]),
        (of(2, "q8_0"), &[1.0, 0.0, 1.0, 0.0, 1.0]),
        (of(1, "f16"), &[1.0, 1.0]),
        (Model { n_layers: 3, ..MIXTURE }, &[1.0, 1.0]),
    ] {
        let (case, pages) = of_model(model);
        let want = everything(&case, &pages, &mut *one_card(), By::Step);
        assert!(want.iter().map(Vec::len).sum::<usize>() > 10_000);
        for by in [By::Step, By::Stage] {
            let got = everything(&case, &pages, &mut *split(proportions), by);
            assert!(got == want, "{model:?}, {proportions:?}");
        }
    }
}

/// Pages of one card's, written to several, are those that a sequence goes on from.
#[test]
fn pages_of_one_card_are_taken_over_by_several() {
    let (case, pages) = small(3, "turboquant");
    let logits = case.p.buf_named("logits").expect("a buffer");
    let (mut one, mut several) = (one_card(), split(&[1.0, 2.0]));
    let mut of_one = case.on(&mut *one);
    queue(&mut of_one, &pages, [0, 0], 70, false, By::Step);
    let written = kv_pages(&case, &mut *of_one.backend, of_one.exec);
    queue(&mut of_one, &pages, [70, 1], 1, false, By::Step);
    let want = of_one.read(logits, N_SEQS);
    let mut of_several = case.on(&mut *several);
    for (page, bytes) in all_pages(&case).zip(&written) {
        of_several.backend.write_page(of_several.exec, page, bytes).expect("a page");
    }
    queue(&mut of_several, &pages, [70, 1], 1, false, By::Step);
    assert_eq!(of_several.read(logits, N_SEQS), want);
}

/// A weight that two programs share is uploaded once, and both run.
#[test]
fn two_programs_share_weights() {
    let (case, pages) = small(3, "f16");
    let logits = case.p.buf_named("logits").expect("a buffer");
    let mut backend = split(&[1.0, 1.0]);
    let weights: Vec<_> = case.weights.iter().map(|w| backend.upload(w).expect("memory")).collect();
    let execs = [(); 2].map(|()| backend.compile(&case.p, &weights).expect("memory"));
    let rows = execs.map(|exec| {
        let mut running = Running { p: &case.p, backend: &mut *backend, exec };
        queue(&mut running, &pages, [0, 0], 5, false, By::Step);
        running.read(logits, N_SEQS)
    });
    assert_eq!(rows[0], rows[1]);
}

/// What a program takes is what one card takes, and a second head, which is the embedding of the first card.
#[test]
fn the_plan_counts_what_each_card_has() {
    let (case, _) = small(4, "f16");
    let of = |backend: &dyn Backend| backend.plan(&case.p).expect("kernels");
    let (one, two) = (of(&*one_card()), of(&*split(&[1.0, 1.0])));
    let table = &case.weights[0];
    assert_eq!(two.weights_bytes, one.weights_bytes + table.bytes.len() as u64);
    assert_eq!(two.kv_bytes, one.kv_bytes);
    assert!(two.bufs_bytes > one.bufs_bytes);
    assert_eq!(two.free_bytes, None);
}

/// A step that does not fit the whole program is refused as one card refuses it.
#[test]
#[should_panic(expected = "slot 0 has no pick 0 runs ago")]
fn a_row_without_a_pick_is_refused() {
    let (case, pages) = small(2, "f16");
    let mut backend = split(&[1.0, 1.0]);
    let mut running = case.on(&mut *backend);
    let rows = [Row { token: Row::PICKED, pos: 0, seq: 0, logits: true }];
    let all: Range<usize> = 0..case.p.stages.len();
    running.run(all, &Step { rows: &rows, pages: &pages, sampling: &[Some(WARM)], changes: &[] });
}
