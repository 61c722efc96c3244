//! Backends pick exactly the tokens of the reference sampler, and do not modify the logits.

use sterna::program::{Row, RowsOf, Sample, Sampling, Step, TokenChange, sampling};
use support::case::{Case, StepCase, backends, limits, shuffled_pages};

use super::conformance::single;

/// Asserts that every backend picks the same tokens as the reference from `values`, one row for each of
/// `how`.
fn assert_picks(n_vocab: usize, values: &[f32], how: &[Sampling]) {
    assert_picks_of_some(n_vocab, values, &how.iter().copied().map(Some).collect::<Vec<_>>());
}

/// The same; nothing is picked from rows whose `how` is `None`.
fn assert_picks_of_some(n_vocab: usize, values: &[f32], how: &[Option<Sampling>]) {
    let mut case = Case::new(&format!("{how:?}"), limits(how.len() + 1, 1, 1));
    let logits = case.p.buf("logits", RowsOf::Outputs, n_vocab);
    case.p.push("sample", Sample { logits });
    let mut rows = single(how.len() + 1);
    rows[1..].iter_mut().for_each(|row: &mut Row| row.logits = true);
    let step = StepCase { rows, stages: 0..1, inputs: vec![(logits, values.to_vec())], read: vec![] };
    let mut scratch = sampling::Scratch::new(n_vocab);
    let pick = |(row, how): (&[f32], &Option<Sampling>)| {
        how.map_or(u32::MAX, |how| sampling::pick(row, &how, &mut scratch))
    };
    let want: Vec<u32> = values.chunks_exact(n_vocab).zip(how).map(pick).collect();
    for mut backend in backends() {
        let mut running = case.on(&mut *backend);
        running.run_step(&step, &shuffled_pages(1, 1), how);
        let mut got = vec![u32::MAX; how.len()];
        running.backend.tokens(running.exec, 0, &mut got).expect("tokens");
        assert_eq!(got, want, "{} of {n_vocab} as {how:?}", running.backend.name());
        for first in 0..how.len() {
            let mut got = vec![u32::MAX; (how.len() - first).min(2)];
            running.backend.tokens(running.exec, first, &mut got).expect("tokens");
            assert_eq!(got, want[first..][..got.len()], "{} from row {first} on", running.backend.name());
        }
        let left = running.read(logits, how.len());
        assert!(left.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits()), "the logits were modified");
    }
}

const WARM: Sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, seed: 5, ..Sampling::GREEDY };

#[test]
fn picks_match_the_reference() {
    let n_vocab = 501;
    let kinds = [
        Sampling::GREEDY,
        WARM,
        Sampling { top_k: 0, min_p: 0.05, ..WARM },
        Sampling { top_k: 1, ..WARM },
        Sampling { top_k: 2, top_p: 1.0, ..WARM },
        Sampling { top_k: 255, temperature: 2.0, top_p: 1.0, min_p: 0.01, ..WARM },
        Sampling { top_k: 256, temperature: 1.5, top_p: 0.99, ..WARM },
        Sampling { top_k: 257, ..WARM },
        Sampling { typical_p: 0.7, ..WARM },
        Sampling { top_p: 0.0, ..WARM },
        Sampling { temperature: f32::INFINITY, top_p: 1.0, ..WARM },
    ];
    let mut case = Case::new("values", limits(1, 1, 1));
    for counter in 0..4 {
        let how = kinds.map(|how| Sampling { counter, ..how });
        assert_picks(n_vocab, &case.numbers.values(how.len() * n_vocab), &how);
    }
}

/// Each row of a step is sampled with its own parameters: by the device, by the host, or not at all.
#[test]
fn rows_of_a_step_are_sampled_separately() {
    let n_vocab = 501;
    let ways = [
        Some(Sampling::GREEDY),
        Some(WARM),
        Some(Sampling { top_k: 0, ..WARM }),
        Some(Sampling { typical_p: 0.7, ..WARM }),
        None,
    ];
    let mut numbers = Case::new("ways", limits(1, 1, 1)).numbers;
    for n in [1, 2, 9] {
        for counter in 0..5 {
            let mut way = || ways[numbers.below(ways.len())].map(|how| Sampling { counter, ..how });
            let how: Vec<_> = (0..n).map(|_| way()).collect();
            assert_picks_of_some(n_vocab, &numbers.values(n * n_vocab), &how);
        }
    }
    let values = numbers.values(4 * n_vocab);
    assert_picks_of_some(n_vocab, &values, &[None; 4]);
    assert_picks_of_some(n_vocab, &values, &[ways[4], ways[2], ways[0], ways[4]]);
    assert_picks_of_some(n_vocab, &values, &[ways[3], ways[1], ways[4], ways[2]]);
}

/// Few and many equal logits, infinities and NaN, and fewer logits than a block has threads.
#[test]
fn samples_of_equal_infinite_and_nan_logits() {
    let kinds =
        [WARM, Sampling { top_p: 1.0, counter: 1, ..WARM }, Sampling { top_k: 200, counter: 2, ..WARM }];
    let rows: [fn(usize) -> f32; 6] = [
        |_| 1.5,
        |id| (id % 3) as f32,
        |id| if id == 300 { f32::INFINITY } else { 0.0 },
        |id| if id % 2 == 0 { f32::NAN } else { -1.0 },
        |_| f32::NEG_INFINITY,
        |id| if id < 7 { id as f32 } else { f32::NEG_INFINITY },
    ];
    for n_vocab in [201, 701] {
        for row in rows {
            let values: Vec<f32> = (0..3 * n_vocab).map(|at| row(at % n_vocab)).collect();
            assert_picks(n_vocab, &values, &kinds);
        }
    }
}

/// The largest logits all belong to a few threads of a block, so that many more than `top_k` exceed the
/// threshold that is derived from the threads' maxima.
#[test]
fn samples_of_large_logits_in_few_threads() {
    let n_vocab = 20_000;
    let row =
        |id: usize| if id % 256 < 39 { 4.0 + (id as f32 * 0.61).sin() } else { (id as f32 * 0.37).sin() };
    let values: Vec<f32> = (0..2 * n_vocab).map(|at| row(at % n_vocab)).collect();
    assert_picks(n_vocab, &values, &[WARM, Sampling { top_p: 1.0, counter: 3, ..WARM }]);
}

/// Rows that many blocks share, one of which only has very low logits, such as those of unused tokens: if
/// `top_k` is the number of threads of a block, all candidates of the other blocks exceed the threshold.
#[test]
fn samples_of_rows_over_many_blocks() {
    let kinds = [
        Sampling::GREEDY,
        WARM,
        Sampling { top_k: 256, top_p: 1.0, temperature: 2.0, ..WARM },
        Sampling { top_k: 256, min_p: 0.1, ..WARM },
    ];
    for n_vocab in [131_072, 140_001] {
        let row = |id: usize| if id < 4096 { -30.0 } else { 6.0 } + (id as f32 * 0.37).sin();
        let values: Vec<f32> = (0..kinds.len() * n_vocab).map(|at| row(at % n_vocab)).collect();
        assert_picks(n_vocab, &values, &kinds);
    }
}

/// Bias and penalties change logits, also for the row's input token that the device picked and the host does
/// not know yet: the pick is from the changed logits, and the buffer is not modified.
#[test]
fn samples_of_changed_logits() {
    let n_vocab = 9_000;
    let penalised =
        Sampling { repeat_penalty: 1.3, presence_penalty: 0.2, frequency_penalty: 0.1, ..Sampling::GREEDY };
    let ways = [
        penalised,
        Sampling { temperature: 0.8, top_k: 40, top_p: 0.9, seed: 5, ..penalised },
        WARM,
        Sampling { repeat_penalty: 0.5, temperature: 2.0, top_k: 256, seed: 6, ..Sampling::GREEDY },
        Sampling::GREEDY,
    ];
    let n = ways.len();
    let mut case = Case::new("changed logits", limits(n, n, 1));
    let logits = case.p.buf("logits", RowsOf::Outputs, n_vocab);
    case.p.push("sample", Sample { logits });
    let values: Vec<f32> = case.numbers.values(n * n_vocab);
    let pages = shuffled_pages(n, 1);
    let largest: Vec<u32> = values.chunks_exact(n_vocab).map(sampling::argmax).collect();
    // Tokens at the ends of a block's range, an invalid token, and the best token itself; and the maximum
    // number of changes.
    let change =
        |output: usize, token, count, bias| TokenChange { output: output as u32, token, count, bias };
    let mut changes = Vec::new();
    for (output, &best) in largest.iter().enumerate() {
        let mut of_row: Vec<_> =
            [(0, 2, 0.0), (4095, 1, 0.5), (4096, 0, 3.0), (8999, 3, -0.25), (9001, 1, 1e9)]
                .map(|(token, count, bias)| change(output, token, count, bias))
                .into();
        match output {
            0 => of_row.push(change(output, best, 1, 0.0)),
            2 => of_row.push(change(output, best, 0, f32::NEG_INFINITY)),
            3 => of_row.extend((100..351).map(|token| change(output, token, token % 3, token as f32 * 1e-3))),
            _ => (),
        }
        changes.extend(of_row.into_iter().filter(|_| output != 4));
    }
    let mut scratch = sampling::Scratch::new(n_vocab);
    let mut want = |how: &[Sampling], fed: Option<&[u32]>| -> Vec<u32> {
        let mut values = values.clone();
        let rows = values.chunks_exact_mut(n_vocab).zip(how).enumerate();
        rows.map(|(output, (row, how))| {
            let mut changes: Vec<_> =
                changes.iter().filter(|c| c.output as usize == output).copied().collect();
            if let Some(fed) = fed {
                match changes.iter_mut().find(|change| change.token == fed[output]) {
                    Some(known) => known.count += 1,
                    None => changes.push(change(output, fed[output], 1, 0.0)),
                }
            }
            for TokenChange { token, count, bias, .. } in changes {
                if let Some(logit) = row.get_mut(token as usize) {
                    *logit = how.changed(*logit, count, bias);
                }
            }
            sampling::pick(row, how, &mut scratch)
        })
        .collect()
    };
    for mut backend in backends() {
        if backend.most_changes() == 0 {
            continue;
        }
        assert!(backend.most_changes() >= changes.len() / n);
        let mut running = case.on(&mut *backend);
        running.write(logits, &values);
        let mut fed: Option<Vec<u32>> = None;
        for counter in 0..6 {
            let how = ways.map(|how| Sampling { counter, ..how });
            let token = if fed.is_some() { Row::PICKED } else { 7 };
            let row = |seq| Row { token, pos: counter as u32, seq, logits: true };
            let rows: Vec<Row> = (0..n as u32).map(row).collect();
            let sampling = how.map(Some);
            let step = Step { rows: &rows, pages: &pages, sampling: &sampling, changes: &changes };
            running.run(0..1, &step);
            let mut got = vec![u32::MAX; n];
            running.backend.tokens(running.exec, 0, &mut got).expect("tokens");
            assert_eq!(got, want(&how, fed.as_deref()), "{} after {fed:?}", running.backend.name());
            fed = Some(got);
        }
        let left = running.read(logits, n);
        assert!(
            left.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits()),
            "the logits were modified"
        );
    }
}
