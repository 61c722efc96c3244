//! Weights in a rotated basis: inputs are rotated into it, after the norm, and rows of an embedding out of
//! it. Runs of every length, in rows of one run, of several, or of a size that does not fill a block of
//! threads. Also layers with a second norm, whose inputs are prepared in the same place.

use ggml_types::kv_by_name;
use sterna::program::{
    Act, ActQuant, Attend, AttnIn, Basis, BasisId, Embed, FfnIn, KvDecl, KvWindow, Linear, Logits, Norm,
    NormKind, ProjAdd, ProjIn, RowsOf,
};
use support::case::{Case, StepCase, backends, few_backends, limits, rows, shuffled_pages, ty};

/// Number of elements of a basis, and length of its runs.
const SHAPES: [[usize; 2]; 7] =
    [[256, 1], [256, 2], [384, 128], [1536, 512], [2048, 1024], [4096, 2048], [4096, 4096]];

fn basis(case: &mut Case, [len, block]: [usize; 2]) -> BasisId {
    let signs = case.numbers.values(len).iter().map(|x| x.signum()).collect();
    case.p.basis(Basis { block, signs })
}

fn rotated(case: &mut Case, basis: BasisId, name: &str, rows: usize, cols: usize, act: ActQuant) -> Linear {
    Linear { basis: Some(basis), ..case.linear_with_bias(ty(name), rows, cols, act) }
}

#[test]
fn every_stage_rotates_its_inputs() {
    for (i, shape) in SHAPES.into_iter().enumerate() {
        let (name, act) = [("f16", ActQuant::None), ("q8_0", ActQuant::I8PerBlock)][i % 2];
        // Wide bases in steps of one size.
        for n_rows in if shape[0] < 2048 { vec![1, 5, 20] } else { vec![[1, 5, 20][i % 3]] } {
            let dim = shape[0];
            let what = format!("{n_rows} rows of {dim} {name}, runs of {}", shape[1]);
            let mut case = Case::new(&what, limits(n_rows, 1, 1));
            let basis = basis(&mut case, shape);
            let [x, y, h] = [("x", dim), ("y", dim), ("h", 40)].map(|(name, cols)| case.buf(name, cols));
            let logits = case.p.buf("logits", RowsOf::Outputs, 33);
            let table = case.weight(ty(name), 50, dim);
            case.p.push("embed", Embed { basis: Some(basis), scale: 1.5, ..Embed::tokens(table, x) });
            let norm = Some(case.norm(NormKind::Rms, dim));
            let w = Linear { norm, ..rotated(&mut case, basis, name, dim, dim, act) };
            case.p.push("proj_add", ProjAdd::plain(y, w, x));
            for (label, types) in [("ffn_in", [name; 2]), ("ffn_in of two types", ["f16", "q8_0"])] {
                let norm = case.norm(NormKind::Layer, dim);
                let [gate, up] = types.map(|name| rotated(&mut case, basis, name, 40, dim, act));
                let (gate, act) = (Some(gate), Act::Silu);
                case.p.push(label, FfnIn { gate, ..FfnIn::plain(x, norm, up, act, h) });
            }
            let norm = case.norm(NormKind::Rms, dim);
            let w = rotated(&mut case, basis, name, 33, dim, act);
            case.p.push("logits", Logits { x, norm, w, soft_cap: None, logits });
            let mut rows = rows(0, 0..n_rows as u32);
            rows.iter_mut().enumerate().for_each(|(i, row)| row.logits = i % 3 != 1);
            let steps = (0..5).map(|stage| {
                let inputs = [vec![], vec![x, y], vec![x], vec![x], vec![x]][stage].clone();
                let read = [x, x, h, h, logits][stage];
                let value = |buf| (buf, case.numbers.values(n_rows * dim));
                let inputs = inputs.into_iter().map(value).collect();
                StepCase { rows: rows.clone(), stages: stage..stage + 1, inputs, read: vec![read] }
            });
            let steps: Vec<_> = steps.collect();
            case.check(few_backends(), &shuffled_pages(1, 1), &steps);
        }
    }
}

/// Layers of one input, of which only some are in a rotated basis.
#[test]
fn layers_of_one_input_can_have_different_bases() {
    let (dim, int8) = (256, ActQuant::I8PerBlock);
    for n_rows in [1, 5, 20] {
        let mut case = Case::new(&format!("two of four layers rotated, {n_rows} rows"), limits(n_rows, 1, 1));
        let [one, other] = [64, 256].map(|block| basis(&mut case, [dim, block]));
        let [x, u, z] = [("x", dim), ("u", 48), ("z", 32)].map(|(name, cols)| case.buf(name, cols));
        let [a, b, h] = [("a", 4), ("b", 4), ("h", 40)].map(|(name, cols)| case.buf(name, cols));
        let norm = case.norm(NormKind::Rms, dim);
        let wu = rotated(&mut case, one, "q8_0", 48, dim, int8);
        let wa = case.linear_with_bias(ty("q8_0"), 4, dim, int8);
        let wz = rotated(&mut case, one, "q4_0", 32, dim, int8);
        let wb = rotated(&mut case, other, "q8_0", 4, dim, int8);
        let products = vec![(wu, u), (wz, z), (wa, a), (wb, b)];
        case.p.push("proj_in", ProjIn { x, norm, products });
        let norm = case.norm(NormKind::Rms, dim);
        let gate = Some(case.linear_with_bias(ty("q8_0"), 40, dim, int8));
        let up = rotated(&mut case, one, "q8_0", 40, dim, int8);
        case.p.push("ffn_in", FfnIn { gate, ..FfnIn::plain(x, norm, up, Act::Silu, h) });
        let reads = [vec![u, z, a, b], vec![h]];
        let steps = reads.into_iter().enumerate().map(|(stage, read)| {
            let inputs = vec![(x, case.numbers.values(n_rows * dim))];
            StepCase { rows: rows(0, 0..n_rows as u32), stages: stage..stage + 1, inputs, read }
        });
        let steps: Vec<_> = steps.collect();
        case.check(few_backends(), &shuffled_pages(1, 1), &steps);
    }
}

/// Each layer has a norm after that of the stage, in rows that are shorter than a block of threads, and
/// longer.
#[test]
fn layers_can_have_a_second_norm() {
    let (f16, ternary, int8) =
        (("f16", ActQuant::None), ("i2_s", ActQuant::I8PerToken), ActQuant::I8PerBlock);
    for (n_rows, dim, [layer, other]) in [
        (1, 256, [ternary; 2]),
        (5, 640, [ternary; 2]),
        (20, 1152, [ternary; 2]),
        (1, 1152, [f16; 2]),
        (20, 256, [f16, ("q8_0", ActQuant::None)]),
        (5, 2304, [("q8_0", int8), ternary]),
        (20, 256, [("q4_k", int8); 2]),
    ] {
        let what = format!("{n_rows} rows of {dim}, layers of {} and {}", layer.0, other.0);
        let mut case = Case::new(&what, limits(n_rows, 1, 1));
        let [x, q, y, h] = [("x", dim), ("q", 128), ("y", 128), ("h", 40)].map(|(n, cols)| case.buf(n, cols));
        let logits = case.p.buf("logits", RowsOf::Outputs, 33);
        let normed = |case: &mut Case, (name, act), rows| {
            let norm = Some(case.norm(NormKind::Rms, dim));
            Linear { norm, ..case.linear_with_bias(ty(name), rows, dim, act) }
        };
        // Larger values, so that the second norm changes them.
        let stage_norm =
            |case: &mut Case, kind| Norm { weight: case.vector(dim, 3.0), ..case.norm(kind, dim) };
        let norm = stage_norm(&mut case, NormKind::Rms);
        let [wq, wk, wv] =
            [(layer, 128), (layer, 64), (other, 64)].map(|(l, rows)| normed(&mut case, l, rows));
        let (k, window) = (kv_by_name("f16").expect("a codec"), KvWindow::default());
        let kv = case.p.kv(KvDecl {
            n_kv_heads: 2,
            head_dim: 32,
            k,
            v: k,
            basis: None,
            window,
            sliding: None,
            values_are_keys: false,
        });
        case.p.push("attn_in", AttnIn::of(x, norm, [wq, wk, wv], kv, q));
        let scale = 0.2;
        case.p.push("attend", Attend::causal(q, kv, scale, y));
        for (label, has_gate) in [("ffn_in", true), ("ffn_in without a gate", false)] {
            let norm = stage_norm(&mut case, NormKind::Layer);
            let gate = has_gate.then(|| normed(&mut case, layer, 40));
            let up = normed(&mut case, other, 40);
            case.p.push(label, FfnIn { gate, ..FfnIn::plain(x, norm, up, Act::Silu, h) });
        }
        let (norm, w) = (stage_norm(&mut case, NormKind::Rms), normed(&mut case, layer, 33));
        case.p.push("logits", Logits { x, norm, w, soft_cap: None, logits });
        let mut rows = rows(0, 0..n_rows as u32);
        rows.iter_mut().enumerate().for_each(|(i, row)| row.logits = i % 3 != 1);
        let reads = [(0..2, vec![q, y]), (2..3, vec![h]), (3..4, vec![h]), (4..5, vec![logits])];
        let steps = reads.into_iter().map(|(stages, read)| {
            let inputs = vec![(x, case.numbers.values(n_rows * dim))];
            StepCase { rows: rows.clone(), stages, inputs, read }
        });
        let steps: Vec<_> = steps.collect();
        case.check(backends(), &shuffled_pages(1, 1), &steps);
    }
}
