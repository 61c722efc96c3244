//! Multi-head latent attention, and experts of a latent vector, on the CPU, the only backend with kernels for
//! them.

use ggml_types::kv_by_name;
use sterna::program::{
    Act, ActQuant, Attend, Buf, Experts, HeadProj, KvDecl, KvWindow, LatentIn, NormKind, PAGE, Rope,
    RopeStyle, Row,
};
use support::case::{Case, StepCase, backend, cpus, limits, rows, shuffled_pages, simt, ty};

const DIM: usize = 64;
const N_HEADS: usize = 3;
const RANK: usize = 32;
const PLAIN: usize = 24;
const ROTATED: usize = 16;
const VALUE: usize = 20;
const N_SEQS: usize = 2;
const N_PAGES: usize = 3;

/// The three stages of a layer, and the buffers of their inputs and outputs.
fn latent(codec: &str, q_rank: Option<usize>, n_rows: usize) -> (Case, [Buf; 4]) {
    let head_dim = RANK + ROTATED;
    let name = format!("latent attention over {codec}, queries of rank {q_rank:?}, {n_rows} rows");
    let mut case = Case::new(&name, limits(n_rows, N_SEQS, N_PAGES));
    let [x, q, out, y] =
        [("x", DIM), ("q", N_HEADS * head_dim), ("o", N_HEADS * head_dim), ("y", N_HEADS * VALUE)]
            .map(|(name, cols)| case.buf(name, cols));
    let none = ActQuant::None;
    let norm = case.norm(NormKind::Rms, DIM);
    let q_latent = q_rank.map(|rank| {
        let linear = case.linear(ty("f16"), rank, DIM, none);
        (linear, case.norm(NormKind::Rms, rank))
    });
    let wq = case.linear(ty("q8_0"), N_HEADS * (PLAIN + ROTATED), q_rank.unwrap_or(DIM), none);
    let wk = (0..N_HEADS).map(|_| case.linear(ty("f16"), RANK, PLAIN, none)).collect();
    let wkv = case.linear(ty("f16"), head_dim, DIM, none);
    let kv_norm = case.norm(NormKind::Rms, RANK);
    let inv_freq = (0..ROTATED / 2).map(|i| 100.0_f64.powf(-(i as f64) / 8.0)).collect();
    let rope = case.p.rope(Rope { style: RopeStyle::Adjacent, inv_freq, magnitude: 1.0, axes: None });
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
    let w = (0..N_HEADS).map(|_| case.linear(ty("f32"), VALUE, RANK, none)).collect();
    case.p.push("head_proj", HeadProj { x: out, w, out: y });
    (case, [x, q, out, y])
}

/// Prefills two sequences over several pages, and decodes one row of each.
#[test]
fn latent_attention_matches_the_oracle() {
    for (codec, q_rank) in [("f32", Some(32)), ("f16", None)] {
        let n = 2 * PAGE + 7;
        let (mut case, [x, q, out, y]) = latent(codec, q_rank, n);
        let mut step = |rows: Vec<Row>| StepCase {
            inputs: vec![(x, case.numbers.values(rows.len() * DIM))],
            rows,
            stages: 0..3,
            read: vec![q, out, y],
        };
        let last = n as u32;
        let decode = [rows(0, last..last + 1), rows(1, 5..6)].concat();
        let steps = [step(rows(0, 0..last)), step(rows(1, 0..5)), step(decode)];
        case.check(cpus(&[1, 4]), &shuffled_pages(N_SEQS, N_PAGES), &steps);
    }
}

/// Half of the bytes of a cache with values, and no other KV codec.
#[test]
fn the_cache_has_one_vector_per_position() {
    let (mut case, _) = latent("f16", None, 1);
    let positions = (N_SEQS * N_PAGES * PAGE) as u64;
    assert_eq!(case.p.kv_bytes(), positions * 2 * (RANK + ROTATED) as u64);
    let kv = &mut case.p.kvs[0];
    (kv.k, kv.v) = (kv_by_name("q8_0").unwrap(), kv_by_name("q8_0").unwrap());
    let message = case.p.check().expect_err("q8_0").to_string();
    assert!(message.contains("q8_0: not for keys that are also the values, use f16"), "{message}");
}

/// Devices reject it in their plan, with the way out.
#[test]
fn devices_reject_latent_attention_by_name() {
    let (case, _) = latent("f16", None, 1);
    for device in simt(1).into_iter().chain(backend("wgpu", 1)) {
        let message = device.plan(&case.p).map(drop).expect_err("no kernels").to_string();
        assert!(message.contains("latent attention runs only on the CPU"), "{message}");
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
        case.check(cpus(&[1, 4]), &shuffled_pages(1, 1), &[step]);
    }
}

#[test]
fn devices_reject_experts_of_a_latent_vector_by_name() {
    let (case, _) = experts(1, false);
    for device in simt(1).into_iter().chain(backend("wgpu", 1)) {
        let message = device.plan(&case.p).map(drop).expect_err("no kernels").to_string();
        assert!(message.contains("those of a latent vector") && message.contains("backend cpu"), "{message}");
    }
}
