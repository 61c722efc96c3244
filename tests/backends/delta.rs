//! `ProjIn` and `Delta` of every backend against the f64 oracle: heads with shared keys and without, rows of
//! several sequences in one step, states that are overwritten and states that are kept.

use sterna::backend::Backend;
use sterna::program::{
    Act, ActQuant, Buf, Delta, FfnIn, Limits, NormKind, PageTable, ProjIn, Row, RowStates, StateDecl,
    StateSlots,
};
use support::case::{Case, StepCase, backends, few_backends, limits, rows, shuffled_pages, ty};

const DIM: usize = 96;
const IN: usize = 0;

struct Net {
    case: Case,
    x: Buf,
    inputs: [Buf; 4],
    out: Buf,
}

impl Net {
    fn new(name: &str, decl: StateDecl, layers: [(&'static str, ActQuant); 4], n_seqs: usize) -> Self {
        let limits = Limits { states: 2 * n_seqs + 1, ..limits(70, n_seqs, 4) };
        let mut case = Case::new(name, limits);
        let values = decl.n_heads * decl.head_dim;
        let x = case.buf("x", DIM);
        let inputs = [("u", decl.channels()), ("z", values), ("a", decl.n_heads), ("b", decl.n_heads)];
        let cols = inputs.map(|(_, cols)| cols);
        let inputs = inputs.map(|(name, cols)| case.buf(name, cols));
        let out = case.buf("o", values);
        let norm = case.norm(NormKind::Rms, DIM);
        let product = |i: usize| {
            let (name, act) = layers[i];
            (case.linear_with_bias(ty(name), cols[i], DIM, act), inputs[i])
        };
        let products = (0..4).map(product).collect();
        case.p.push("proj_in", ProjIn { x, norm, products });
        let [u, z, a, b] = inputs;
        let state = case.p.state(decl);
        let conv = case.numbers.values(decl.channels() * decl.taps);
        let conv = case.weight_of(ty("f32"), 1, conv.len(), &conv);
        // Heads whose state hardly decays, and heads whose state decays at once.
        let decay: Vec<f32> = (0..decl.n_heads).map(|head| -0.01 * 20.0_f32.powi(head as i32 % 3)).collect();
        let decay = case.weight_of(ty("f32"), 1, decl.n_heads, &decay);
        let dt = case.vector(decl.n_heads, -0.5);
        let norm = case.norm(NormKind::Rms, decl.head_dim);
        let grouped = decl.n_heads == 6;
        case.p.push("delta", Delta { u, z, a, b, state, conv, decay, dt, eps: 1e-6, norm, grouped, out });
        Self { case, x, inputs, out }
    }

    /// Creates a step of random inputs for the recurrence alone, or for both stages.
    fn step_case(&mut self, first: usize, rows: Vec<Row>) -> StepCase {
        let mut inputs = Vec::new();
        let bufs = if first == IN { vec![self.x] } else { self.inputs.to_vec() };
        for buf in bufs {
            let cols = self.case.p.buf_decl(buf).cols;
            inputs.push((buf, self.case.numbers.values(rows.len() * cols)));
        }
        let read = if first == IN { [&self.inputs[..], &[self.out]].concat() } else { vec![self.out] };
        StepCase { rows, stages: first..2, inputs, read }
    }
}

fn decl(n_heads: usize, n_key_heads: usize, head_dim: usize, taps: usize) -> StateDecl {
    StateDecl { n_heads, n_key_heads, head_dim, key_dim: head_dim, taps }
}

const F16: [(&str, ActQuant); 4] = [("f16", ActQuant::None); 4];

/// Adds the state slots of each sequence of a step to a page table.
pub(super) fn table(pages: &PageTable, slots: &[(u32, Option<u32>, u32)]) -> PageTable {
    let mut pages = pages.clone();
    slots.iter().for_each(|&(seq, from, to)| pages.set_state(seq, Some(StateSlots { from, to })));
    pages
}

/// Adds slots for the states after rows of a sequence, the first of them row `first`.
pub(super) fn kept(mut pages: PageTable, seq: u32, first: usize, slots: &[u32]) -> PageTable {
    *pages.row_states_mut(seq) = RowStates { first, slots: slots.to_vec() };
    pages
}

/// A layer with the delta nets of a 27B model, with a smaller residual, for one sequence.
#[cfg(feature = "simt")]
pub(super) fn nets_of_27b() -> (Case, PageTable) {
    let decl = decl(48, 16, 128, 4);
    let net = Net::new("nets of a 27B", decl, F16, 1);
    (net.case, table(&shuffled_pages(1, 4), &[(0, Some(0), 0)]))
}

fn check(backends: fn() -> Vec<Box<dyn Backend>>, shapes: &[(usize, usize, usize, usize)]) {
    for &(n_heads, n_key_heads, head_dim, taps) in shapes {
        let decl = decl(n_heads, n_key_heads, head_dim, taps);
        let mut net = Net::new(&format!("{decl:?}"), decl, F16, 3);
        let pages = shuffled_pages(3, 4);
        let at = |slots: &[(u32, Option<u32>, u32)]| table(&pages, slots);
        let several = |parts: &[(u32, u32, u32)]| -> Vec<Row> {
            parts.iter().flat_map(|&(seq, from, to)| rows(seq, from..to)).collect()
        };
        let steps = [
            // A prompt, in a slot that is then kept; single rows that overwrite their slot.
            (at(&[(0, None, 3)]), net.step_case(1, rows(0, 0..9))),
            (at(&[(0, Some(3), 1)]), net.step_case(1, rows(0, 9..10))),
            (at(&[(0, Some(1), 1)]), net.step_case(1, rows(0, 10..11))),
            // Another sequence continues from the kept slot, a third begins, together with the first.
            (
                at(&[(0, Some(1), 1), (1, Some(3), 6), (2, None, 0)]),
                net.step_case(1, several(&[(1, 9, 11), (0, 11, 12), (2, 0, 5)])),
            ),
            (
                at(&[(0, Some(1), 4), (1, Some(6), 6), (2, Some(0), 0)]),
                net.step_case(1, several(&[(0, 12, 13), (2, 5, 70), (1, 11, 12)])),
            ),
            (at(&[(0, Some(1), 2)]), net.step_case(1, rows(0, 12..14))),
            // Continues from the slots of single rows in the step of that prompt.
            (at(&[(0, Some(4), 4), (1, Some(6), 6)]), net.step_case(1, several(&[(0, 13, 14), (1, 12, 25)]))),
            (at(&[(0, Some(4), 4), (1, Some(6), 6)]), net.step_case(1, several(&[(0, 14, 15), (1, 25, 26)]))),
            (at(&[(1, None, 5)]), net.step_case(IN, rows(1, 0..3))),
            // Drafts, with the states after the first two rows, from which other rows continue.
            (
                kept(at(&[(0, Some(4), 1), (1, Some(5), 5)]), 0, 0, &[0, 3]),
                net.step_case(1, several(&[(1, 3, 4), (0, 15, 18)])),
            ),
            (at(&[(0, Some(0), 2)]), net.step_case(1, rows(0, 16..17))),
            (kept(at(&[(0, Some(3), 2)]), 0, 20, &[0, 6]), net.step_case(1, rows(0, 17..41))),
            (at(&[(0, Some(6), 6)]), net.step_case(1, rows(0, 39..40))),
            (at(&[(0, Some(0), 0)]), net.step_case(1, rows(0, 38..39))),
        ];
        net.case.check_each(backends(), &steps);
    }
}

#[test]
fn delta_nets() {
    check(few_backends, &[(4, 2, 64, 4), (6, 2, 128, 4)]);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn delta_nets_of_other_shapes() {
    let shapes = [
        (4, 2, 64, 4),
        (6, 2, 128, 4),
        (1, 1, 32, 2),
        (2, 2, 160, 8),
        (3, 1, 96, 3),
        (5, 5, 128, 4),
        (4, 2, 16, 4),
        (2, 1, 48, 4),
    ];
    check(backends, &shapes);
}

/// Projections of different types and input quantisation.
#[test]
fn projections_of_several_types() {
    let (none, int8) = (ActQuant::None, ActQuant::I8PerBlock);
    for layers in [
        [("q8_0", int8), ("q8_0", int8), ("f32", none), ("f32", none)],
        [("q8_0", int8), ("q4_0", int8), ("bf16", none), ("f16", none)],
        [("f16", none), ("f16", none), ("q8_0", int8), ("q8_0", int8)],
    ] {
        let decl = decl(4, 2, 64, 4);
        for n_rows in [1, 5, 20] {
            let mut net = Net::new(&format!("{layers:?}, {n_rows} rows"), decl, layers, 1);
            let (x, values) = (net.x, net.case.numbers.values(n_rows as usize * DIM));
            let step = StepCase {
                rows: rows(0, 0..n_rows),
                stages: 0..1,
                inputs: vec![(x, values)],
                read: net.inputs.to_vec(),
            };
            let pages = table(&shuffled_pages(1, 4), &[(0, None, 0)]);
            net.case.check(few_backends(), &pages, &[step]);
        }
    }
}

/// The output of a shared expert is scaled by the sigmoid of a gate per row.
#[test]
fn shared_experts_with_a_gate() {
    for (n_rows, name) in [(1, "f16"), (7, "f16"), (20, "q8_0")] {
        let (dim, ffn_dim) = (256, 75);
        let mut case = Case::new(&format!("{n_rows} rows of {name} with a share"), limits(n_rows + 1, 1, 1));
        let (x, h) = (case.buf("x", dim), case.buf("h", ffn_dim));
        let norm = case.norm(NormKind::Rms, dim);
        let act = ActQuant::None;
        let gate = Some(case.linear_with_bias(ty(name), ffn_dim, dim, act));
        let up = case.linear_with_bias(ty(name), ffn_dim, dim, act);
        let share = Some(case.linear(ty("f32"), 1, dim, act));
        case.p.push("ffn_in", FfnIn { gate, share, ..FfnIn::plain(x, norm, up, Act::Silu, h) });
        let inputs = vec![(x, case.numbers.values(n_rows * dim))];
        let step = StepCase { rows: rows(0, 0..n_rows as u32), stages: 0..1, inputs, read: vec![h] };
        case.check(backends(), &shuffled_pages(1, 1), &[step]);
    }
}
