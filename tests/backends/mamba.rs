//! `Mamba` of every backend against the f64 oracle: heads that share keys and heads of other lengths, with
//! and without a norm; rows of several sequences in one step, states that are overwritten and states that are
//! kept.

use sterna::backend::Backend;
use sterna::program::{Limits, Mamba, NormKind, Row, StateDecl};
use support::case::{Case, StepCase, backends, few_backends, limits, rows, shuffled_pages, ty};

use super::delta::{kept, table};

/// Heads, groups, length of a head and of a key.
type Shape = [usize; 4];

fn check(
    backends: fn() -> Vec<Box<dyn Backend>>,
    [n_heads, n_key_heads, head_dim, key_dim]: Shape,
    normed: bool,
) {
    let decl = StateDecl { n_heads, n_key_heads, head_dim, key_dim, taps: 1 };
    let mut case = Case::new(&format!("{decl:?}, norm {normed}"), Limits { states: 7, ..limits(70, 3, 4) });
    let values = n_heads * head_dim;
    let inputs = [("c", decl.channels()), ("z", values), ("a", n_heads)];
    let [c, z, a] = inputs.map(|(name, cols)| case.buf(name, cols));
    let out = case.buf("o", values);
    let state = case.p.state(decl);
    // Heads whose state hardly decays, and heads whose state decays at once.
    let decay: Vec<f32> = (0..n_heads).map(|head| -0.01 * 20.0_f32.powi(head as i32 % 3)).collect();
    let decay = case.weight_of(ty("f32"), 1, n_heads, &decay);
    let (dt, skip) = (case.vector(n_heads, -0.5), case.vector(n_heads, 0.5));
    let norm = normed.then(|| case.norm(NormKind::Rms, values));
    case.p.push("mamba", Mamba { c, z, a, state, decay, dt, skip, norm, out });
    let mut step = |parts: &[(u32, u32, u32)]| {
        let rows: Vec<Row> = parts.iter().flat_map(|&(seq, from, to)| rows(seq, from..to)).collect();
        let inputs = [c, z, a].map(|buf| (buf, case.numbers.values(rows.len() * case.p.buf_decl(buf).cols)));
        StepCase { rows, stages: 0..1, inputs: inputs.into(), read: vec![out] }
    };
    let pages = shuffled_pages(3, 4);
    let at = |slots: &[(u32, Option<u32>, u32)]| table(&pages, slots);
    let steps = [
        // A prompt, in a slot that is then kept; a single row that overwrites its slot.
        (at(&[(0, None, 3)]), step(&[(0, 0, 9)])),
        (at(&[(0, Some(3), 1)]), step(&[(0, 9, 10)])),
        (at(&[(0, Some(1), 1)]), step(&[(0, 10, 11)])),
        // Another sequence continues from the kept slot, a third begins, together with the first.
        (at(&[(0, Some(1), 1), (1, Some(3), 6), (2, None, 0)]), step(&[(1, 9, 11), (0, 11, 12), (2, 0, 5)])),
        // Rows of a prompt between single rows.
        (
            at(&[(0, Some(1), 4), (1, Some(6), 6), (2, Some(0), 0)]),
            step(&[(0, 12, 13), (2, 5, 70), (1, 11, 12)]),
        ),
        (at(&[(0, Some(4), 4), (2, Some(0), 5)]), step(&[(2, 70, 71), (0, 13, 14)])),
        // Drafts, with the states after the first two rows, from which other rows continue.
        (kept(at(&[(0, Some(4), 1), (2, Some(5), 5)]), 0, 0, &[0, 3]), step(&[(2, 71, 72), (0, 14, 17)])),
        (at(&[(0, Some(0), 2)]), step(&[(0, 15, 16)])),
        (kept(at(&[(0, Some(3), 2)]), 0, 20, &[0, 6]), step(&[(0, 16, 40)])),
        (at(&[(0, Some(6), 6)]), step(&[(0, 38, 39)])),
        (at(&[(0, Some(0), 0)]), step(&[(0, 37, 38)])),
    ];
    case.check_each(backends(), &steps);
}

#[test]
fn recurrences() {
    // Granite's and Nemotron's heads, with a norm; Falcon-H1's without.
    check(few_backends, [4, 2, 64, 128], true);
    check(few_backends, [3, 1, 32, 16], false);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn recurrences_of_other_shapes() {
    for shape in [[8, 2, 80, 128], [2, 1, 64, 256], [6, 3, 16, 48], [2, 2, 128, 64], [5, 5, 24, 40]] {
        check(backends, shape, true);
    }
}
