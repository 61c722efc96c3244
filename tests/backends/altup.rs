//! Alternating updates and gates with a cutoff: every backend matches the oracle.

use sterna::program::{Act, ActQuant, AltUpCorrect, AltUpPredict, Buf, FfnIn, Rescale, Row, STREAMS};
use support::case::{Case, StepCase, backends, few_backends, limits, rows, shuffled_pages, ty};

const DIM: usize = 96;

/// All three stages, and the buffers of their inputs and outputs. The first one's outputs are inputs of the
/// second.
fn altup(n_rows: usize, dim: usize, active: usize) -> (Case, Vec<Buf>) {
    let name = format!("alternating updates of {n_rows} rows of {dim}, {active} active");
    let mut case = Case::new(&name, limits(n_rows, 1, 1));
    let c = case.buf("c", STREAMS);
    let x = ["x", "x1", "x2", "x3"].map(|name| case.buf(name, dim));
    let p = ["p", "p1", "p2", "p3"].map(|name| case.buf(name, dim));
    let [y, scaled, mean] = ["y", "scaled", "mean"].map(|name| case.buf(name, dim));
    let w = case.vector(STREAMS * STREAMS * STREAMS, 0.0);
    case.p.push("altup_predict", AltUpPredict { c, w, x, active, out: p, y });
    let w = case.vector(STREAMS * STREAMS, 0.0);
    let factors = case.vector(dim, 1.0);
    // Another stream than the first one's, so that its number is not ignored.
    let active = (active + 2) % STREAMS;
    let correct = AltUpCorrect { c, w, y: mean, predicted: p, active, x, factors, scaled };
    case.p.push("altup_correct", correct);
    let [x0, x1, x2, x3] = x;
    case.p.push("rescale", Rescale { like: x0, y: [x1, x2, x3], floor: 1e-5, mean: Some(mean) });
    (case, [[c].as_slice(), &x, &p, &[y, scaled, mean]].concat())
}

fn one_sequence(n_rows: usize) -> Vec<Row> {
    rows(0, 0..n_rows as u32)
}

#[test]
fn alternating_updates_match_the_oracle() {
    // Rows of several blocks of threads, and of a part of one.
    for (n_rows, dim, active) in [(1, DIM, 0), (7, 75, 1), (2, 600, 3)] {
        let (mut case, bufs) = altup(n_rows, dim, active);
        let cols = |buf: Buf| if buf == bufs[0] { STREAMS } else { dim };
        let inputs = bufs.iter().map(|buf| (*buf, case.numbers.values(n_rows * cols(*buf)))).collect();
        let step = StepCase { rows: one_sequence(n_rows), stages: 0..3, inputs, read: bufs };
        case.check(backends(), &shuffled_pages(1, 1), &[step]);
    }
}

/// Streams of zeros and of tiny values are divided by the floor.
#[test]
fn tiny_streams_are_divided_by_the_floor() {
    let (mut case, bufs) = altup(1, DIM, 0);
    let [like, zero, tiny, other] = [1, 2, 3, 4].map(|at| bufs[at]);
    let inputs = vec![
        (like, case.numbers.values(DIM)),
        (zero, vec![0.0; DIM]),
        (tiny, vec![1e-4; DIM]),
        (other, case.numbers.values(DIM)),
    ];
    let read = [like, zero, tiny, other, bufs[11]].to_vec();
    let step = StepCase { rows: one_sequence(1), stages: 2..3, inputs, read };
    case.check(few_backends(), &shuffled_pages(1, 1), &[step]);
}

/// Gates with a cutoff, at widths of whole vectors and not.
fn cut(n_rows: usize, ffn_dim: usize, cutoff: f32) -> (Case, [Buf; 2]) {
    let name = format!("ffn_in with a cutoff of {cutoff}, {n_rows} rows of {ffn_dim}");
    let mut case = Case::new(&name, limits(n_rows, 1, 1));
    let [x, h] = [("x", DIM), ("h", ffn_dim)].map(|(name, cols)| case.buf(name, cols));
    let gate = case.linear(ty("f32"), ffn_dim, DIM, ActQuant::None);
    let up = case.linear(ty("f16"), ffn_dim, DIM, ActQuant::None);
    let stage = FfnIn::gated(x, None, gate, up, Act::GeluTanh, h);
    case.p.push("ffn_in", FfnIn { cutoff: Some(cutoff), ..stage });
    (case, [x, h])
}

#[test]
fn gates_with_a_cutoff_match_the_oracle() {
    for (n_rows, ffn_dim, cutoff) in [(1, 600, 1.645), (5, 75, 0.5), (20, 40, -0.25)] {
        let (mut case, [x, h]) = cut(n_rows, ffn_dim, cutoff);
        let inputs = vec![(x, case.numbers.values(n_rows * DIM))];
        let step = StepCase { rows: one_sequence(n_rows), stages: 0..1, inputs, read: vec![h] };
        case.check(backends(), &shuffled_pages(1, 1), &[step]);
    }
}

#[test]
fn wrong_streams_are_refused() {
    let check = |change: &dyn Fn(&mut AltUpPredict)| {
        let (mut case, _) = altup(1, DIM, 0);
        let (_, sterna::program::Stage::AltUpPredict(s)) = &mut case.p.stages[0] else { panic!("the first") };
        change(s);
        case.p.check().expect_err("a wrong stage").to_string()
    };
    let message = check(&|s| s.active = STREAMS);
    assert!(message.contains("stream 4 of 4 is active"), "{message}");
    let message = check(&|s| s.out[1] = s.x[1]);
    assert!(message.contains("`x1` is used for two operands"), "{message}");
    let (mut case, _) = cut(1, 64, 1.0);
    let (_, sterna::program::Stage::FfnIn(s)) = &mut case.p.stages[0] else { panic!("the first") };
    s.gate = None;
    let message = case.p.check().expect_err("no gate").to_string();
    assert!(message.contains("one without a gate"), "{message}");
}
