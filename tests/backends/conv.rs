//! `Conv` of every backend against the f64 oracle: with and without gates, bias and SiLU; rows of several
//! sequences in one step, states that are overwritten and states that are kept.

use sterna::program::{Conv, Limits, Row, StateDecl};
use support::case::{Case, StepCase, backends, limits, rows, shuffled_pages, ty};

use super::delta::{kept, table};

/// Gates before and after, bias, SiLU.
type Options = [bool; 4];

fn check(channels: usize, taps: usize, [has_before, has_after, has_bias, silu]: Options) {
    let name = format!("{channels} channels, {taps} taps, {:?}", [has_before, has_after, has_bias, silu]);
    let mut case = Case::new(&name, Limits { states: 7, ..limits(70, 3, 4) });
    let [u, out] = ["u", "o"].map(|name| case.buf(name, channels));
    let before = has_before.then(|| case.buf("b", channels));
    let after = has_after.then(|| case.buf("c", channels));
    let state = case.p.state(StateDecl::of_conv(channels, taps));
    let taps_of = case.numbers.values(channels * taps);
    let w = case.weight_of(ty("f32"), 1, channels * taps, &taps_of);
    let bias = has_bias.then(|| case.vector(channels, 0.1));
    case.p.push("conv", Conv { u, before, after, state, w, bias, silu, out });
    let inputs: Vec<_> = [Some(u), before, after].into_iter().flatten().collect();
    let mut step = |parts: &[(u32, u32, u32)]| {
        let rows: Vec<Row> = parts.iter().flat_map(|&(seq, from, to)| rows(seq, from..to)).collect();
        let values = |buf| (buf, case.numbers.values(rows.len() * channels));
        let inputs = inputs.iter().copied().map(values).collect();
        StepCase { rows, stages: 0..1, inputs, read: vec![out] }
    };
    let pages = shuffled_pages(3, 4);
    let at = |slots: &[(u32, Option<u32>, u32)]| table(&pages, slots);
    let steps = [
        // A prompt, in a slot that is then kept; single rows that overwrite their slot.
        (at(&[(0, None, 3)]), step(&[(0, 0, 9)])),
        (at(&[(0, Some(3), 1)]), step(&[(0, 9, 10)])),
        (at(&[(0, Some(1), 1)]), step(&[(0, 10, 11)])),
        // Another sequence continues from the kept slot, a third begins with fewer rows than the taps.
        (at(&[(0, Some(1), 1), (1, Some(3), 6), (2, None, 0)]), step(&[(1, 9, 11), (0, 11, 12), (2, 0, 1)])),
        // Rows of a prompt between single rows.
        (
            at(&[(0, Some(1), 4), (1, Some(6), 6), (2, Some(0), 0)]),
            step(&[(0, 12, 13), (2, 1, 66), (1, 11, 12)]),
        ),
        (at(&[(0, Some(4), 4), (2, Some(0), 5)]), step(&[(2, 66, 67), (0, 13, 14)])),
        // Drafts, with the states after the first two rows, from which other rows continue.
        (kept(at(&[(0, Some(4), 1), (2, Some(5), 5)]), 0, 0, &[0, 3]), step(&[(2, 67, 68), (0, 14, 17)])),
        (at(&[(0, Some(0), 2)]), step(&[(0, 15, 16)])),
        (kept(at(&[(0, Some(3), 2)]), 0, 20, &[0, 6]), step(&[(0, 16, 40)])),
        (at(&[(0, Some(6), 6)]), step(&[(0, 38, 39)])),
        (at(&[(0, Some(0), 0)]), step(&[(0, 37, 38)])),
    ];
    case.check_each(backends(), &steps);
}

#[test]
fn convolutions() {
    // LFM2's, with both gates; Mamba's, with a bias and SiLU.
    check(160, 3, [true, true, false, false]);
    check(600, 4, [false, false, true, true]);
    check(7, 8, [true, false, true, false]);
    check(33, 2, [false, true, false, true]);
}
