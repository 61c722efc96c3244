//! Multi-head latent attention and experts of a latent vector on every backend, compared with the
//! oracle.

use ggml_types::kv_by_name;
use sterna::backend::{Backend, MemoryKind};
use sterna::program::{
    Act, ActQuant, AdapterScale, Attend, Buf, Experts, HeadProj, KvDecl, KvWindow, LatentIn, NormKind, PAGE,
    PageTable, Rope, RopeStyle, Row, Stage,
};
use support::case::{
    Case, StepCase, backend, backends, cpus, few_backends, limits, rows, shuffled_pages, simt, ty,
};

use super::lora::adapted;

const DIM: usize = 64;
const N_SEQS: usize = 2;
const N_PAGES: usize = 3;

/// Shapes and types of a layer.
#[derive(Clone, Copy)]
struct Shape {
    n_heads: usize,
    rank: usize,
    /// Elements of a query that are not rotated, and those that are.
    plain: usize,
    rotated: usize,
    value: usize,
    style: RopeStyle,
    /// Type of the heads' matrices.
    heads: &'static str,
    act: ActQuant,
}

const SMALL: Shape = Shape {
    n_heads: 3,
    rank: 32,
    plain: 24,
    rotated: 16,
    value: 20,
    style: RopeStyle::Adjacent,
    heads: "f16",
    act: ActQuant::None,
};

/// The three stages of a layer, and the buffers of their inputs and outputs.
fn latent(shape: Shape, codec: &str, q_rank: Option<usize>, n_rows: usize) -> (Case, [Buf; 4]) {
    let Shape { n_heads, rank, plain, rotated, value, style, heads, act } = shape;
    let head_dim = rank + rotated;
    let name =
        format!("latent attention of {n_heads} x {head_dim} over {codec}, heads of {heads}, {n_rows} rows");
    let mut case = Case::new(&name, limits(n_rows, N_SEQS, N_PAGES));
    let [x, q, out, y] =
        [("x", DIM), ("q", n_heads * head_dim), ("o", n_heads * head_dim), ("y", n_heads * value)]
            .map(|(name, cols)| case.buf(name, cols));
    let none = ActQuant::None;
    let norm = case.norm(NormKind::Rms, DIM);
    let q_latent = q_rank.map(|rank| {
        let linear = case.linear(ty("f16"), rank, DIM, none);
        (linear, case.norm(NormKind::Rms, rank))
    });
    let wq = case.linear(ty("q8_0"), n_heads * (plain + rotated), q_rank.unwrap_or(DIM), none);
    let wk = (0..n_heads).map(|_| case.linear(ty(heads), rank, plain, act)).collect();
    let wkv = case.linear(ty("f16"), head_dim, DIM, none);
    let kv_norm = case.norm(NormKind::Rms, rank);
    let inv_freq = (0..rotated / 2).map(|i| 100.0_f64.powf(-(i as f64) / 8.0)).collect();
    let rope = case.p.rope(Rope { style, inv_freq, magnitude: 1.0, axes: None, ahead: 0 });
    let k = kv_by_name(codec).expect("a codec");
    let kv = case.p.kv(KvDecl {
        n_kv_heads: 1,
        head_dim,
        k,
        v: k,
        basis: None,
        window: KvWindow::default(),
        sliding: None,
        values_are_keys: true,
    });
    case.p.push("latent_in", LatentIn { x, norm, q_latent, wq, wk, wkv, kv_norm, rope, kv, q });
    case.p.push("attend", Attend::causal(q, kv, 0.15, out));
    let w = (0..n_heads).map(|_| case.linear(ty(heads), value, rank, act)).collect();
    case.p.push("head_proj", HeadProj { x: out, w, out: y });
    (case, [x, q, out, y])
}

/// Prefills two sequences of these lengths, and decodes one row of each.
fn check(backends: Vec<Box<dyn Backend>>, case: (Case, [Buf; 4]), lengths: [u32; 2]) {
    check_in(&shuffled_pages(N_SEQS, N_PAGES), backends, case, lengths);
}

/// The same with this page table.
fn check_in(
    pages: &PageTable,
    backends: Vec<Box<dyn Backend>>,
    (mut case, bufs): (Case, [Buf; 4]),
    lengths: [u32; 2],
) {
    let [x, q, out, y] = bufs;
    let mut step = |rows: Vec<Row>| StepCase {
        inputs: vec![(x, case.numbers.values(rows.len() * DIM))],
        rows,
        stages: 0..3,
        read: vec![q, out, y],
    };
    let [one, other] = lengths;
    let decode = [rows(0, one..one + 1), rows(1, other..other + 1)].concat();
    let alone = rows(0, one + 1..one + 2);
    let steps = [step(rows(0, 0..one)), step(rows(1, 0..other)), step(decode), step(alone)];
    case.check(backends, pages, &steps);
}

/// A layer with pairs of two adapters in all its products, `of_heads` also in the heads' matrices of keys.
fn latent_with_adapters(q_rank: Option<usize>, act: ActQuant, of_heads: bool, n: usize) -> (Case, [Buf; 4]) {
    let (mut case, bufs) = latent(SMALL, "f32", q_rank, n);
    case.p.adapters = vec!["one".to_owned(), "two".to_owned()];
    let Stage::LatentIn(mut s) = case.p.stages[0].1.clone() else { panic!("another stage") };
    s.wq.act = act;
    let heads = if of_heads { s.wk.iter_mut().collect() } else { Vec::new() };
    let latent = s.q_latent.iter_mut().map(|(linear, _)| linear);
    for linear in latent.chain([&mut s.wq, &mut s.wkv]).chain(heads) {
        *linear = adapted(&mut case, linear.clone());
    }
    case.p.stages[0].1 = s.into();
    (case, bufs)
}

/// Rows of sequences with different adapters, in one step and alone.
#[test]
fn latent_attention_with_adapters_matches_the_oracle() {
    let mut pages = shuffled_pages(N_SEQS, N_PAGES);
    let of = |adapter, scale| AdapterScale { adapter, scale };
    pages.set_adapters(0, [of(0, 1.0), of(1, -0.5)].into());
    pages.set_adapters(1, [of(1, 2.0)].into());
    for (q_rank, act) in
        [(Some(32), ActQuant::None), (Some(32), ActQuant::I8PerBlock), (None, ActQuant::None)]
    {
        check_in(&pages, few_backends(), latent_with_adapters(q_rank, act, false, 9), [9, 2]);
    }
    check_in(&pages, cpus(&[1]), latent_with_adapters(Some(32), ActQuant::None, true, 9), [9, 2]);
}

/// Devices name the adapters that they cannot run.
#[test]
fn adapters_of_heads_are_refused_by_name() {
    let (case, _) = latent_with_adapters(None, ActQuant::None, true, 1);
    for backend in backend("wgpu", 1).into_iter().chain(simt(1)) {
        let message = backend.plan(&case.p).map(drop).expect_err("no kernels").to_string();
        assert!(message.contains("LoRA adapters of the heads of latent attention"), "{message}");
    }
}

#[test]
fn latent_attention_matches_the_oracle() {
    for (codec, q_rank, style) in [("f32", Some(32), RopeStyle::Adjacent), ("f16", None, RopeStyle::Halves)] {
        let n = 2 * PAGE + 7;
        check(backends(), latent(Shape { style, ..SMALL }, codec, q_rank, n), [n as u32, 5]);
    }
}

/// The lengths of GLM-4.7-Flash's and DeepSeek's heads, with more heads than a block takes at a time.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn heads_of_published_lengths_match_the_oracle() {
    let shape = Shape { n_heads: 9, rank: 512, plain: 192, rotated: 64, value: 24, ..SMALL };
    for codec in ["f16", "f32"] {
        let n = PAGE + 3;
        check(few_backends(), latent(shape, codec, None, n), [n as u32, 2]);
    }
}

/// A matrix per head in types of each form of products, also with inputs quantised by block.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn heads_of_every_form_match_the_oracle() {
    let shape = Shape { rank: 256, plain: 256, ..SMALL };
    let types = ["bf16", "f32", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k", "q2_k", "q5_0", "iq4_nl", "q1_0"];
    let acts = [ActQuant::None, ActQuant::I8PerBlock];
    for (heads, act) in types.into_iter().flat_map(|ty| acts.map(|act| (ty, act))) {
        let shape = Shape { heads, act, ..shape };
        let devices = simt(1).into_iter().chain(backend("cpu", 2));
        let devices = devices.chain(backend("wgpu", 1).filter(|_| act == ActQuant::None));
        check(devices.collect(), latent(shape, "f32", None, 9), [9, 2]);
    }
}

/// Half of the bytes of a cache with values, and no other KV codec.
#[test]
fn the_cache_has_one_vector_per_position() {
    let (mut case, _) = latent(SMALL, "f16", None, 1);
    let positions = (N_SEQS * N_PAGES * PAGE) as u64;
    let bytes = positions * 2 * (SMALL.rank + SMALL.rotated) as u64;
    assert_eq!(case.p.kv_bytes(), bytes);
    for device in simt(1).into_iter().chain(backend("wgpu", 1)) {
        let parts = device.memory(&case.p).expect("a plan").remove(0).parts;
        let kv: u64 = parts.iter().filter(|part| part.kind == MemoryKind::Kv).map(|part| part.bytes).sum();
        // An empty buffer of values takes 16 bytes.
        assert!((bytes..=bytes + 16).contains(&kv), "{}: {kv} of {bytes}", device.name());
    }
    let kv = &mut case.p.kvs[0];
    (kv.k, kv.v) = (kv_by_name("q8_0").unwrap(), kv_by_name("q8_0").unwrap());
    let message = case.p.check().expect_err("q8_0").to_string();
    assert!(message.contains("q8_0: not for keys that are also the values, use f16"), "{message}");
}

/// Devices reject longer keys in their plan.
#[test]
fn devices_reject_longer_keys_by_name() {
    let (case, _) = latent(Shape { rank: 520, rotated: 64, ..SMALL }, "f16", None, 1);
    for device in simt(1).into_iter().chain(backend("wgpu", 1)) {
        let message = device.plan(&case.p).map(drop).expect_err("no kernels").to_string();
        assert!(message.contains("584") && message.contains("576"), "{message}");
    }
}

/// Experts whose input is shorter than the router's, with a gate and without.
fn experts(n_rows: usize, gated: bool) -> (Case, [Buf; 3]) {
    let (width, ffn_dim, n_experts) = (32, 96, 5);
    let mut case = Case::new(&format!("experts of a latent vector, gate: {gated}"), limits(n_rows, 1, 1));
    let [x, input, out] = [("x", DIM), ("z", width), ("sum", width)].map(|(name, cols)| case.buf(name, cols));
    let norm = case.norm(NormKind::Rms, DIM);
    let router = case.linear(ty("f32"), n_experts, DIM, ActQuant::None);
    let mut experts = case.experts(["q8_0"; 3], [n_experts, width, ffn_dim], ActQuant::None);
    if !gated {
        experts.iter_mut().for_each(|expert| expert.gate = None);
    }
    let stage = Experts::of(x, norm, router, experts, 2, Act::Relu2);
    case.p.push("experts", Experts { input: Some(input), out: Some(out), ..stage });
    (case, [x, input, out])
}

#[test]
fn experts_of_a_latent_vector_match_the_oracle() {
    for (n_rows, gated) in [(1, false), (19, false), (7, true)] {
        let (mut case, [x, input, out]) = experts(n_rows, gated);
        let inputs = vec![(x, case.numbers.values(n_rows * DIM)), (input, case.numbers.values(n_rows * 32))];
        let rows = rows(0, 0..n_rows as u32);
        let step = StepCase { rows, stages: 0..1, inputs, read: vec![x, out] };
        case.check(backends(), &shuffled_pages(1, 1), &[step]);
    }
}
