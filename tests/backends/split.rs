//! Layers divided among several cards: the same bits as on one card, for any division.

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

/// Queues a step of both sequences from `pos` on: `n` rows of the first and one of the other. If `fed`, their
/// tokens are the ones that the device picked.
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

/// All results of several steps: picks, tokens, buffers, pages and the number of clamped vectors. One
/// sequence has a prompt while the other decodes, and then both are fed with the device's picks.
pub fn everything(case: &Case, pages: &PageTable, backend: &mut dyn Backend, by: By) -> Vec<Vec<u8>> {
    everything_of(&mut case.on(backend), case, pages, by)
}

/// The same for a compiled program.
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
    model_case(Model { n_layers, kv, ..SMALL })
}

/// The model and pages for steps of two sequences.
pub fn model_case(model: Model) -> (Case, PageTable) {
    let windowed = model.kv == "turboquant";
    let limits = if windowed { windowed_limits(80, N_SEQS, 2) } else { limits(80, N_SEQS, 2) };
    let pages = if windowed { windowed_pages(N_SEQS, 2) } else { shuffled_pages(N_SEQS, 2) };
    (model.case("a small model", limits).0, pages)
}

/// Two to five cards, with more layers than cards and with fewer, and cards without layers.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn several_cards_match_one() {
    let of = |n_layers, kv| Model { n_layers, kv, ..SMALL };
    for (model, proportions) in [
        (of(3, "f16"), &[1.0, 1.0][..]),
        (of(5, "f16"), &[1.0, 1.0, 1.0, 1.0]),
        (of(3, "turboquant"), &[1.0, 5.0]),
        (of(2, "q8_0"), &[1.0, 0.0, 1.0, 0.0, 1.0]),
        (of(1, "f16"), &[1.0, 1.0]),
        (Model { n_layers: 3, ..MIXTURE }, &[1.0, 1.0]),
    ] {
        let (case, pages) = model_case(model);
        let want = everything(&case, &pages, &mut *one_card(), By::Step);
        assert!(want.iter().map(Vec::len).sum::<usize>() > 10_000);
        for by in [By::Step, By::Stage] {
            let got = everything(&case, &pages, &mut *split(proportions), by);
            assert!(got == want, "{model:?}, {proportions:?}");
        }
    }
}

/// A sequence can continue on several cards from pages that one card has written.
#[test]
fn several_cards_continue_from_pages_of_one() {
    let (case, pages) = small(3, "turboquant");
    let logits = case.p.buf_named("logits").expect("a buffer");
    let (mut one, mut several) = (one_card(), split(&[1.0, 2.0]));
    let mut on_one = case.on(&mut *one);
    queue(&mut on_one, &pages, [0, 0], 70, false, By::Step);
    let written = kv_pages(&case, &mut *on_one.backend, on_one.exec);
    queue(&mut on_one, &pages, [70, 1], 1, false, By::Step);
    let want = on_one.read(logits, N_SEQS);
    let mut on_several = case.on(&mut *several);
    for (page, bytes) in all_pages(&case).zip(&written) {
        on_several.backend.write_page(on_several.exec, page, bytes).expect("a page");
    }
    queue(&mut on_several, &pages, [70, 1], 1, false, By::Step);
    assert_eq!(on_several.read(logits, N_SEQS), want);
}

/// Two programs over the same uploaded weights both run.
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

/// Two cards need the memory of one, and a second copy of the embedding as output head.
#[test]
fn plan_counts_the_second_head() {
    let (case, _) = small(4, "f16");
    let of = |backend: &dyn Backend| backend.plan(&case.p).expect("kernels");
    let (one, two) = (of(&*one_card()), of(&*split(&[1.0, 1.0])));
    let table = &case.weights[0];
    assert_eq!(two.weights_bytes, one.weights_bytes + table.bytes.len() as u64);
    assert_eq!(two.kv_bytes, one.kv_bytes);
    assert!(two.bufs_bytes > one.bufs_bytes);
    assert_eq!(two.free_bytes, None);
}

/// An invalid step is refused as on one card.
#[test]
#[should_panic(expected = "slot 0 has no pick 0 runs ago")]
fn rows_without_a_pick_are_refused() {
    let (case, pages) = small(2, "f16");
    let mut backend = split(&[1.0, 1.0]);
    let mut running = case.on(&mut *backend);
    let rows = [Row { token: Row::PICKED, pos: 0, seq: 0, logits: true }];
    let all: Range<usize> = 0..case.p.stages.len();
    running.run(all, &Step { rows: &rows, pages: &pages, sampling: &[Some(WARM)], changes: &[] });
}
