//! The program language: faults that `check` finds, and the cost of a known model.

use std::sync::Arc;

use ggml_types::{by_name, kv_by_name};
use sterna::program::{
    Act, ActQuant, Attend, AttnIn, BasisId, Buf, Embed, Expert, Experts, FfnIn, Groups, Kv, KvDecl, KvWindow,
    Limits, Linear, Logits, Norm, NormKind, PageTable, Program, ProjAdd, QkNorm, Rope, RopeId, RopeStyle,
    Row, RowsOf, Sample, Stage, Step, Weight,
};

/// Sizes of a BitNet model.
struct Shape {
    n_layers: usize,
    dim: usize,
    ffn_dim: usize,
    n_heads: usize,
    n_kv_heads: usize,
    n_vocab: usize,
}

const TINY: Shape = Shape { n_layers: 1, dim: 256, ffn_dim: 512, n_heads: 2, n_kv_heads: 1, n_vocab: 300 };
const BITNET_2B: Shape =
    Shape { n_layers: 30, dim: 2560, ffn_dim: 6912, n_heads: 20, n_kv_heads: 5, n_vocab: 128_256 };
const HEAD_DIM: usize = 128;

fn bitnet(s: &Shape) -> Program {
    let mut p = Program::new(
        "bitnet-b1.58",
        Limits { rows: 8, outputs: 1, seqs: 1, pages: 64, exact_pages: 0, sliding_pages: 0, states: 0 },
    );
    let (f32_type, f16_type, i2_s) =
        (by_name("f32").unwrap(), by_name("f16").unwrap(), by_name("i2_s").unwrap());
    let (q_dim, kv_dim) = (s.n_heads * HEAD_DIM, s.n_kv_heads * HEAD_DIM);
    let x = p.buf("x", RowsOf::Step, s.dim);
    let q = p.buf("q", RowsOf::Step, q_dim);
    let y = p.buf("y", RowsOf::Step, q_dim);
    let h = p.buf("h", RowsOf::Step, s.ffn_dim);
    let logits = p.buf("logits", RowsOf::Outputs, s.n_vocab);
    let inv_freq: Arc<[f64]> = (0..HEAD_DIM / 2).map(|i| 500_000f64.powf(-(i as f64) / 64.0)).collect();
    let rope =
        Some(p.rope(Rope { style: RopeStyle::Halves, inv_freq, magnitude: 1.0, axes: None, ahead: 0 }));
    let table = p.weight("token_embd.weight", f16_type, s.n_vocab, s.dim);
    p.push("embed", Embed::tokens(table, x));
    for layer in 0..s.n_layers {
        let mut linear = |name: &str, rows, cols| {
            let w = p.weight(format!("blk.{layer}.{name}.weight"), i2_s, rows, cols);
            Linear { act: ActQuant::I8PerToken, ..Linear::of(w) }
        };
        let (wq, wk, wv) =
            (linear("q", q_dim, s.dim), linear("k", kv_dim, s.dim), linear("v", kv_dim, s.dim));
        let wo = linear("o", s.dim, q_dim);
        let (gate, up) = (linear("gate", s.ffn_dim, s.dim), linear("up", s.ffn_dim, s.dim));
        let down = linear("down", s.dim, s.ffn_dim);
        let mut norm = |name: &str, cols| {
            let weight = p.weight(format!("blk.{layer}.{name}.weight"), f32_type, 1, cols);
            Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 }
        };
        let (attn_norm, sub_norm) = (norm("attn_norm", s.dim), norm("attn_sub_norm", q_dim));
        let (ffn_norm, ffn_sub_norm) = (norm("ffn_norm", s.dim), norm("ffn_sub_norm", s.ffn_dim));
        let codec = kv_by_name("f16").unwrap();
        let kv = p.kv(KvDecl {
            n_kv_heads: s.n_kv_heads,
            head_dim: HEAD_DIM,
            k: codec,
            v: codec,
            basis: None,
            window: KvWindow::default(),
            sliding: None,
            values_are_keys: false,
        });
        p.push(format!("{layer}.attn_in"), AttnIn { rope, ..AttnIn::of(x, attn_norm, [wq, wk, wv], kv, q) });
        p.push(format!("{layer}.attend"), Attend::causal(q, kv, 0.088, y));
        p.push(format!("{layer}.attn_out"), ProjAdd::plain(y, Linear { norm: Some(sub_norm), ..wo }, x));
        p.push(format!("{layer}.ffn_in"), FfnIn::gated(x, ffn_norm, gate, up, Act::Relu2, h));
        p.push(format!("{layer}.ffn_out"), ProjAdd::plain(h, Linear { norm: Some(ffn_sub_norm), ..down }, x));
    }
    let weight = p.weight("output_norm.weight", f32_type, 1, s.dim);
    let norm = Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 };
    let w = Linear::of(table);
    p.push("logits", Logits { x, norm, w, soft_cap: None, logits });
    p.push("sample", Sample { logits });
    p
}

macro_rules! stage {
    ($p:expr, $label:expr, $kind:ident) => {
        $p.stages
            .iter_mut()
            .find_map(|(label, stage)| match stage {
                Stage::$kind(stage) if label == $label => Some(stage),
                _ => None,
            })
            .expect("the label and kind of a stage")
    };
}

/// Replaces the first layer's feed-forward network with a mixture of equal experts; the router has one row.
fn put_experts(p: &mut Program, n: usize, n_used: usize) {
    let FfnIn { x, norm, gate, up, .. } = stage!(p, "0.ffn_in", FfnIn).clone();
    let norm = norm.expect("a norm");
    let down = stage!(p, "0.ffn_out", ProjAdd).w.clone();
    let router = Linear { w: p.weight("router", by_name("f32").unwrap(), 1, 256), ..up.clone() };
    let expert = Expert { gate, up, down };
    let stage = Experts::of(x, norm, router, vec![expert; n], n_used, Act::Silu);
    let at = p.stages.iter().position(|(label, _)| label == "0.ffn_in").expect("a stage");
    p.stages[at] = ("0.experts".into(), stage.into());
}

/// A fault: its name, the change, and words that the message must contain.
type Fault = (&'static str, fn(&mut Program), &'static [&'static str]);

const FAULTS: &[Fault] = &[
    ("no rows", |p| p.limits.rows = 0, &["limits"]),
    ("label twice", |p| p.stages[1].0 = "embed".into(), &["embed", "taken"]),
    ("unknown weight", |p| stage!(p, "embed", Embed).table = Weight(999), &["embed", "999"]),
    ("unknown buffer", |p| stage!(p, "0.attend", Attend).q = Buf(77), &["0.attend", "77"]),
    ("unknown cache", |p| stage!(p, "0.attend", Attend).kv = Kv(3), &["0.attend", "3"]),
    ("unknown rope", |p| stage!(p, "0.attn_in", AttnIn).rope = Some(RopeId(5)), &["0.attn_in", "5"]),
    ("embedding of another width", |p| p.weights[0].cols = 128, &["embed", "256", "128"]),
    (
        "projection of another height",
        |p| p.weights[1].rows = 128,
        &["0.attn_in", "blk.0.q.weight", "[256, 256]"],
    ),
    (
        "norm that is not f32",
        |p| p.weights[8].ty = by_name("f16").unwrap(),
        &["0.attn_in", "attn_norm", "f16"],
    ),
    ("norm of another width", |p| p.weights[9].cols = 128, &["0.attn_out", "attn_sub_norm", "[256]"]),
    ("heads that do not divide", |p| p.kvs[0].n_kv_heads = 3, &["0.attn_in", "3 KV heads"]),
    ("rope longer than a head", |p| p.kvs[0].head_dim = 64, &["0.attn_in", "64"]),
    ("infinite frequency", |p| p.ropes[0].inv_freq = [f64::INFINITY].into(), &["ropes", "finite"]),
    ("logits of every row", |p| p.bufs[4].rows = RowsOf::Step, &["logits", "Outputs"]),
    (
        "columns that are not a multiple of the block",
        |p| p.weights[1].cols = 100,
        &["0.attn_in", "blk.0.q.weight"],
    ),
    (
        "sum onto itself",
        |p| {
            let s = stage!(p, "0.ffn_out", ProjAdd);
            s.y = s.x
        },
        &["0.ffn_out", "one buffer"],
    ),
    ("a soft cap of 0", |p| stage!(p, "0.attend", Attend).soft_cap = Some(0.0), &["0.attend", "soft cap"]),
    ("values without keys", |p| stage!(p, "0.attn_in", AttnIn).wk = None, &["0.attn_in", "without keys"]),
    (
        "a norm of rows of another length",
        |p| {
            let s = stage!(p, "0.attn_in", AttnIn);
            s.k_norm = s.norm.clone();
            s.qk_norm = QkNorm::Rows
        },
        &["0.attn_in", "want [128] f32"],
    ),
    ("a row beyond those of a token", |p| stage!(p, "embed", Embed).first = 1, &["embed", "row 1 of 1"]),
    (
        "factors of another width",
        |p| stage!(p, "0.ffn_in", FfnIn).times = Some(Buf(0)),
        &["0.ffn_in", "factors"],
    ),
    ("an empty window", |p| stage!(p, "0.attend", Attend).window = Some(0), &["0.attend", "window"]),
    (
        "a cache that keeps less than attention reads",
        |p| {
            (p.kvs[0].sliding, p.limits.sliding_pages) = (Some(8), 1);
            stage!(p, "0.attend", Attend).window = Some(9)
        },
        &["0.attend", "9 positions of a cache that keeps 8"],
    ),
    (
        "a cache that keeps a window for full attention",
        |p| (p.kvs[0].sliding, p.limits.sliding_pages) = (Some(8), 1),
        &["0.attend", "all positions of a cache that keeps 8"],
    ),
    ("windows without pages", |p| p.kvs[0].sliding = Some(8), &["limits", "sliding windows need pages"]),
    ("an infinite factor", |p| stage!(p, "embed", Embed).scale = f32::INFINITY, &["embed", "factor"]),
    ("a soft cap of 0", |p| stage!(p, "logits", Logits).soft_cap = Some(0.0), &["logits", "soft cap"]),
    (
        "a norm of a product, of another width",
        |p| {
            let ffn_sub_norm = stage!(p, "0.ffn_out", ProjAdd).w.norm.clone();
            stage!(p, "0.ffn_out", ProjAdd).post = ffn_sub_norm
        },
        &["0.ffn_out", "[256]"],
    ),
    (
        "a layer's second norm, of another width",
        |p| {
            let ffn_sub_norm = stage!(p, "0.ffn_out", ProjAdd).w.norm.clone();
            stage!(p, "0.attn_in", AttnIn).wk.as_mut().expect("keys").norm = ffn_sub_norm
        },
        &["0.attn_in", "[256]"],
    ),
    (
        "a layer's second norm after the stage's and before a basis",
        |p| {
            let norm = stage!(p, "0.ffn_in", FfnIn).norm.clone();
            stage!(p, "0.ffn_in", FfnIn).up.norm = norm;
            stage!(p, "0.ffn_in", FfnIn).up.basis = Some(BasisId(0));
        },
        &["0.ffn_in", "up.weight", "second norm before a basis"],
    ),
    (
        "a gate of a shared expert with its own norm",
        |p| {
            let norm = stage!(p, "0.ffn_in", FfnIn).norm.clone();
            let share = Linear { norm, ..stage!(p, "0.ffn_in", FfnIn).up.clone() };
            stage!(p, "0.ffn_in", FfnIn).share = Some(share);
        },
        &["0.ffn_in", "of its own, which no kernel supports"],
    ),
    ("more experts than there are", |p| put_experts(p, 1, 2), &["experts", "2 of 1 experts"]),
    ("no expert for a row", |p| put_experts(p, 1, 0), &["experts", "0 of 1 experts"]),
    ("a router for fewer experts", |p| put_experts(p, 2, 1), &["experts", "[2, 256]"]),
    (
        "a gate of only one expert",
        |p| {
            put_experts(p, 2, 1);
            let w = p.weight("router of two", by_name("f32").unwrap(), 2, 256);
            let stage = stage!(p, "0.experts", Experts);
            (stage.router.w, stage.experts[1].gate) = (w, None);
        },
        &["experts", "with a gate and without"],
    ),
    (
        "a group of one expert",
        |p| {
            put_experts(p, 1, 1);
            stage!(p, "0.experts", Experts).routing.groups = Some(Groups { n: 1, n_used: 1 });
        },
        &["experts", "1 groups of 1 experts"],
    ),
    (
        "bias of an RMS norm",
        |p| {
            let norm = stage!(p, "0.ffn_in", FfnIn).norm.as_mut().expect("a norm");
            norm.bias = Some(norm.weight)
        },
        &["0.ffn_in", "bias"],
    ),
];

#[test]
fn valid_programs_pass_the_check() {
    bitnet(&TINY).check().unwrap();
    bitnet(&BITNET_2B).check().unwrap();
}

#[test]
fn unused_declarations_are_found() {
    let mut p = bitnet(&TINY);
    p.check_all_named(&[]).unwrap();
    let w = p.weight("blk.0.post_ffw_norm.weight", by_name("f32").unwrap(), 1, 256);
    let message = p.check_all_named(&[]).unwrap_err().to_string();
    assert!(
        message.contains("weight blk.0.post_ffw_norm.weight is declared, but no stage uses it"),
        "{message}"
    );
    // Unless the host reads it.
    p.check_all_named(&[w]).unwrap();
    p.buf("spare", RowsOf::Step, 8);
    let message = p.check_all_named(&[w]).unwrap_err().to_string();
    assert!(message.contains("buffer `spare` is declared"), "{message}");
}

#[test]
fn faults_are_found_and_named() {
    for (name, break_it, words) in FAULTS {
        let mut p = bitnet(&TINY);
        break_it(&mut p);
        let message = p.check().expect_err(name).to_string();
        for word in *words {
            assert!(message.contains(word), "{name}: no `{word}` in `{message}`");
        }
    }
}

/// The published shape: 2084.0 M ternary weights in 521.0 MB; a head of 656.7 MB in f16; 76,800 bytes of f16
/// cache per position; 153 stages.
#[test]
fn costs_of_bitnet_2b_match_its_shape() {
    let p = bitnet(&BITNET_2B);
    assert_eq!(p.stages.len(), 153);
    assert_eq!(p.kv_bytes(), 64 * 64 * 76_800);

    let ternary = 30 * (2 * 2560 * 2560 + 2 * 640 * 2560 + 3 * 6912 * 2560_u64);
    let head = 128_256 * 2560 * 2;
    let tails = 30 * 7 * 32;
    let norms = 30 * (3 * 2560 + 6912) * 4 + 2560 * 4;
    assert_eq!(p.weights_bytes(), ternary / 4 + tails + head + norms);

    let pages = PageTable::new(1, 1);
    let row = |pos| Row { token: 0, pos, seq: 0, logits: true };
    let decode = p.cost(&Step { rows: &[row(99)], pages: &pages, sampling: &[], changes: &[] });
    assert_eq!(
        decode.weight_bytes,
        ternary / 4 + tails + head + 2560 * 2,
        "one embedding row besides the head"
    );
    assert_eq!(decode.kv_bytes, (100 + 1) * 76_800, "100 positions read, one written");
    assert_eq!(decode.macs, ternary + head / 2 + 30 * 2 * 100 * 2560);

    let quiet = Row { logits: false, ..row(0) };
    let prefill =
        p.cost(&Step { rows: &[quiet, Row { pos: 1, ..quiet }], pages: &pages, sampling: &[], changes: &[] });
    assert_eq!(
        prefill.weight_bytes,
        ternary / 4 + tails + 2 * 2560 * 2,
        "weights once per step, and no head"
    );
    assert_eq!(prefill.kv_bytes, (1 + 2 + 2) * 76_800);
}

#[test]
fn buffers_are_found_by_name() {
    let p = bitnet(&TINY);
    assert_eq!(p.buf_named("h"), Some(Buf(3)));
    assert_eq!(p.buf_named("nothing"), None);
}
