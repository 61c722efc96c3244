//! `AttnIn` and `Attend` of every backend against the f64 oracle: positions around page and split boundaries,
//! every KV codec, grouped heads, several sequences in one step, pages out of order, and poison in all
//! positions that no sequence has written.

use ggml_types::{KvCodec, KvSide, KvVectors, QuantError, kv_by_name};
use sterna::backend::{Backend, BackendError};
use sterna::program::{
    ActQuant, Attend, AttnIn, Buf, GateAct, KvDecl, KvWindow, Norm, NormKind, PAGE, PageTable, QkNorm,
    QueryScale, Rope, RopeId, RopeStyle, Row, Stage, Step,
};
use support::case::{
    Case, StepCase, backends, backends_alternating, cpus, limits, pages_for, rows, shuffled_pages, simt, ty,
    wgpus,
};

/// Shape of an attention layer.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub codec: &'static dyn KvCodec,
    pub act: ActQuant,
    pub rope: Option<(RopeStyle, usize)>,
    /// RMS norm of query heads and LayerNorm of key heads.
    pub head_norms: bool,
    /// Types and input quantisation of Q, K and V, if not those of `act`.
    pub layers: Option<[(&'static str, ActQuant); 3]>,
    /// Sliding window.
    pub window: Option<u32>,
    /// Number of positions after its own that a row attends to.
    pub ahead: u32,
    /// True if heads have sinks.
    pub sinks: bool,
    /// True if the output is gated.
    pub gated: bool,
    /// Soft cap of scores.
    pub soft_cap: Option<f32>,
    pub q_scale: Option<QueryScale>,
}

pub(super) fn plain() -> Shape {
    Shape {
        n_heads: 4,
        n_kv_heads: 1,
        head_dim: 16,
        codec: codec("f32"),
        act: ActQuant::None,
        rope: Some((RopeStyle::Halves, 8)),
        head_norms: false,
        layers: None,
        window: None,
        ahead: 0,
        sinks: false,
        gated: false,
        soft_cap: None,
        q_scale: None,
    }
}

fn codec(name: &str) -> &'static dyn KvCodec {
    kv_by_name(name).expect("a codec of the registry")
}

const DIM: usize = 128;
const ATTN_IN: std::ops::Range<usize> = 0..1;
const BOTH: std::ops::Range<usize> = 0..2;

struct Attention {
    case: Case,
    x: Buf,
    q: Buf,
    y: Buf,
    gate: Option<Buf>,
}

impl Attention {
    /// Creates a layer for steps of up to `max_rows` rows over a table of [`shuffled_pages`].
    fn new(name: &str, shape: Shape, max_rows: usize, n_seqs: usize, n_pages: usize) -> Self {
        let Shape { n_heads, n_kv_heads, head_dim, .. } = shape;
        let mut case = Case::new(name, limits(max_rows, n_seqs, n_pages));
        let (x, q_cols, kv_cols) = (case.buf("x", DIM), n_heads * head_dim, n_kv_heads * head_dim);
        let (q, y) = (case.buf("q", q_cols), case.buf("y", q_cols));
        let gate = shape.gated.then(|| case.buf("gate", q_cols));
        let norm = case.norm(NormKind::Rms, DIM);
        let weights = if shape.act == ActQuant::None { "f16" } else { "i2_s" };
        let [q_layer, k_layer, v_layer] = shape.layers.unwrap_or([(weights, shape.act); 3]);
        let mut layer = |(name, act), cols| case.linear_with_bias(ty(name), cols, DIM, act);
        let wq_rows = if shape.gated { 2 * q_cols } else { q_cols };
        let (wq, wk, wv) = (layer(q_layer, wq_rows), layer(k_layer, kv_cols), layer(v_layer, kv_cols));
        let mut head_norm = |kind| -> Option<Norm> { shape.head_norms.then(|| case.norm(kind, head_dim)) };
        let (q_norm, k_norm) = (head_norm(NormKind::Rms), head_norm(NormKind::Layer));
        let rope = shape.rope.map(|(style, pairs)| {
            let inv_freq = (0..pairs).map(|i| 10_000.0_f64.powf(-(i as f64) / pairs as f64)).collect();
            case.p.rope(Rope {
                style,
                inv_freq,
                magnitude: 1.0 + 0.25 * (pairs % 3) as f32,
                axes: None,
                ahead: (pairs % 3) as u32,
            })
        });
        let kv = case.p.kv(KvDecl {
            n_kv_heads,
            head_dim,
            k: shape.codec,
            v: shape.codec,
            basis: None,
            window: KvWindow::default(),
            sliding: None,
            values_are_keys: false,
        });
        let scale = 1.0 / (head_dim as f32).sqrt();
        case.p.push(
            "attn_in",
            AttnIn {
                q_norm,
                k_norm,
                rope,
                gate,
                q_scale: shape.q_scale,
                ..AttnIn::of(x, norm, [wq, wk, wv], kv, q)
            },
        );
        let sinks = shape.sinks.then(|| case.vector(n_heads, 0.0));
        case.p.push(
            "attend",
            Attend {
                window: shape.window,
                ahead: shape.ahead,
                sinks,
                gate,
                soft_cap: shape.soft_cap,
                ..Attend::causal(q, kv, scale, y)
            },
        );
        Self { case, x, q, y, gate }
    }

    /// Creates a step of these rows with random inputs.
    fn step_case(&mut self, stages: std::ops::Range<usize>, rows: Vec<Row>) -> StepCase {
        let inputs = vec![(self.x, self.case.numbers.values(rows.len() * DIM))];
        let out = (stages == BOTH).then_some(self.y);
        let read = [self.q].into_iter().chain(self.gate).chain(out).collect();
        StepCase { rows, stages, inputs, read }
    }

    /// Creates steps that write NaN or large values to every position of every page.
    fn poison(&self, pages: &PageTable) -> Vec<StepCase> {
        let mut steps = Vec::new();
        for seq in 0..pages.n_seqs() as u32 {
            let all = rows(seq, 0..(pages.seq(seq).len() * PAGE) as u32);
            for (i, rows) in all.chunks(self.case.p.limits.rows).enumerate() {
                let poison = if i % 2 == 0 { f32::NAN } else { 1e15 };
                let inputs = vec![(self.x, vec![poison; rows.len() * DIM])];
                steps.push(StepCase { rows: rows.to_vec(), stages: ATTN_IN, inputs, read: vec![] });
            }
        }
        steps
    }

    /// Creates the largest possible steps that write positions without attention.
    fn fill(&mut self, seq: u32, positions: std::ops::Range<u32>) -> Vec<StepCase> {
        let max_rows = self.case.p.limits.rows;
        rows(seq, positions).chunks(max_rows).map(|rows| self.step_case(ATTN_IN, rows.to_vec())).collect()
    }
}

/// Last positions of the cases below.
const POSITIONS: [u32; 8] = [0, 1, 62, 63, 64, 127, 255, 256];

fn decodes_and_prefills(name: &str, shape: Shape, positions: &[u32]) {
    decodes_and_prefills_on(backends, name, shape, positions);
}

/// The same on the given backends. One sequence grows through all positions, so that its cache is filled
/// once. At each of them, steps of 40 rows down to a single row attend; positions after them are poisoned.
pub(super) fn decodes_and_prefills_on(
    backends: fn() -> Vec<Box<dyn Backend>>,
    name: &str,
    shape: Shape,
    positions: &[u32],
) {
    let most = *positions.last().expect("a position");
    let n_pages = pages_for(most as usize + 1) + 1;
    let mut attention = Attention::new(name, shape, 64, 1, n_pages);
    let pages = shuffled_pages(1, n_pages);
    let mut steps = attention.poison(&pages);
    let mut filled = 0;
    for &last in positions {
        for n_rows in [40, 7, 2, 1].into_iter().filter(|n| *n <= last + 1) {
            let first = last + 1 - n_rows;
            steps.extend(attention.fill(0, filled..first));
            steps.push(attention.step_case(BOTH, rows(0, first..last + 1)));
            filled = last + 1;
        }
    }
    attention.case.check(backends(), &pages, &steps);
}

#[test]
fn grouped_heads() {
    decodes_and_prefills("4 heads, 1 KV head", plain(), &POSITIONS);
}

/// Windows smaller than a page, of a page, across pages and larger than the sequence, in caches of f32 and
/// f16. Positions outside the window are NaN, before it as well as after the row.
#[test]
fn sliding_windows() {
    for (i, (name, window, last, n_rows)) in [
        ("f32", 1, 70, 1),
        ("f32", 1, 70, 7),
        ("f32", 24, 23, 24),
        ("f32", 24, 130, 40),
        ("f32", 24, 256, 1),
        ("f32", 64, 300, 40),
        ("f32", 65, 128, 2),
        ("f16", 200, 290, 40),
        ("f16", 24, 300, 40),
        ("f16", 300, 290, 7),
        ("f32", 500, 620, 1),
        ("f16", 100, 420, 33),
    ]
    .into_iter()
    .enumerate()
    {
        let shape = Shape { codec: codec(name), window: Some(window), ..plain() };
        let name = format!("{name}, window {window}, {n_rows} rows up to position {last}");
        let n_pages = pages_for(last as usize + 1) + 1;
        let mut attention = Attention::new(&name, shape, 64, 1, n_pages);
        let pages = shuffled_pages(1, n_pages);
        let first = last + 1 - n_rows;
        let mut steps = attention.poison(&pages);
        steps.extend(attention.fill(0, 0..first));
        let unseen = (first + 1).saturating_sub(window);
        for rows in rows(0, 0..unseen).chunks(64) {
            let inputs = vec![(attention.x, vec![f32::NAN; rows.len() * DIM])];
            steps.push(StepCase { rows: rows.to_vec(), stages: ATTN_IN, inputs, read: vec![] });
        }
        steps.push(attention.step_case(BOTH, rows(0, first..last + 1)));
        attention.case.check(backends_alternating(i), &pages, &steps);
    }
}

/// Rows of encoders attend to the whole sequence, or as far ahead as a window reaches: whole sequences of
/// several lengths in one step. After their ends are other values, and pages of other sequences.
#[test]
fn bidirectional_attention() {
    for (i, (name, head_dim, n_heads, window, ahead, lengths)) in [
        ("f32", 16, 4, None, Attend::ALL, &[1, 40, 7, 64, 65][..]),
        ("f16", 32, 3, None, Attend::ALL, &[130, 2, 63]),
        ("f16", 64, 12, None, Attend::ALL, &[300]),
        ("f16", 64, 4, Some(25), 24, &[20, 100, 1, 70]),
        ("f16", 256, 3, Some(65), 64, &[200, 3]),
        ("f32", 16, 4, None, 5, &[90]),
        ("f16", 64, 4, None, Attend::ALL, &[5; 9]),
        ("f32", 18, 4, None, Attend::ALL, &[70, 3]),
        ("f16", 22, 3, Some(30), 29, &[130]),
    ]
    .into_iter()
    .enumerate()
    {
        let n_kv_heads = if n_heads == 4 { 1 } else { n_heads };
        let rope = Some((RopeStyle::Halves, head_dim / 2));
        let shape =
            Shape { n_heads, n_kv_heads, head_dim, rope, codec: codec(name), window, ahead, ..plain() };
        let name = format!("{name}, {n_heads} heads of {head_dim}, {window:?}, {ahead} ahead, {lengths:?}");
        let n_pages = lengths.iter().map(|n| pages_for(*n as usize)).max().expect("a length") + 1;
        let most = lengths.iter().sum::<u32>() as usize;
        let mut attention = Attention::new(&name, shape, most, lengths.len(), n_pages * lengths.len());
        let pages = shuffled_pages(lengths.len(), n_pages);
        let mut steps = attention.poison(&pages);
        let of_seq = |(seq, n): (usize, &u32)| rows(seq as u32, 0..*n);
        steps.push(attention.step_case(BOTH, lengths.iter().enumerate().flat_map(of_seq).collect()));
        attention.case.check(backends_alternating(i), &pages, &steps);
    }
}

/// A single row, rows that share splits, and tiles of rows, with heads that do not fill a tile.
#[test]
fn heads_with_sinks() {
    let sinks = Shape { sinks: true, ..plain() };
    decodes_and_prefills("sinks", sinks, &[0, 64, 300]);
    let shape = Shape { n_heads: 6, n_kv_heads: 2, window: Some(24), ..sinks };
    decodes_and_prefills("sinks and a window", shape, &[130]);
    decodes_and_prefills("sinks over halves", Shape { codec: codec("f16"), ..sinks }, &[200]);
}

/// Scores of about 1 with caps below and above them: single rows, rows that share splits and tiles of rows,
/// in caches of every form.
#[test]
fn capped_scores() {
    for (i, (name, head_dim, cap, window, last)) in
        [("f32", 16, 0.5, None, 130), ("f16", 64, 1.5, Some(24), 130), ("f16", 256, 0.5, None, 70)]
            .into_iter()
            .enumerate()
    {
        let rope = Some((RopeStyle::Halves, head_dim / 2));
        let (soft_cap, codec) = (Some(cap), codec(name));
        let shape = Shape { n_heads: 4, n_kv_heads: 2, head_dim, rope, codec, soft_cap, window, ..plain() };
        let name = format!("{name}, heads of {head_dim}, cap {cap}");
        let on = [|| backends_alternating(0), || backends_alternating(1)][i % 2];
        decodes_and_prefills_on(on, &name, shape, &[last]);
    }
}

/// Queries grow with the logarithm of the position.
#[test]
fn queries_scaled_by_position() {
    let q_scale = Some(QueryScale { factor: 0.3, period: 20 });
    decodes_and_prefills("scaled queries", Shape { q_scale, ..plain() }, &[19, 130]);
    let shape = Shape { q_scale, head_norms: true, codec: codec("f16"), head_dim: 64, ..plain() };
    decodes_and_prefills("scaled queries, head norms", shape, &[70]);
}

/// Changes to the `AttnIn` of a layer, by the tests below.
type Change = fn(&mut Case, &mut AttnIn);

fn changed(name: &str, shape: Shape, change: Change) {
    let last = 100;
    let n_pages = pages_for(last as usize + 1) + 1;
    let mut attention = Attention::new(name, shape, 64, 1, n_pages);
    let Stage::AttnIn(mut s) = attention.case.p.stages[0].1.clone() else { unreachable!("the first stage") };
    change(&mut attention.case, &mut s);
    attention.case.p.stages[0].1 = s.into();
    let pages = shuffled_pages(1, n_pages);
    let mut steps = attention.poison(&pages);
    steps.extend(attention.fill(0, 0..last - 39));
    steps.push(attention.step_case(BOTH, rows(0, last - 39..last)));
    steps.push(attention.step_case(BOTH, rows(0, last..last + 1)));
    attention.case.check(backends(), &pages, &steps);
}

/// Norms of all heads of a row together, over the input as it is.
#[test]
fn norms_of_rows() {
    let change: Change = |case, s| {
        s.norm = None;
        s.qk_norm = QkNorm::Rows;
        let cols = |w: &sterna::program::Linear, case: &Case| case.p.weight_decl(w.w).rows;
        let (q, k) = (cols(&s.wq, case), cols(s.wk.as_ref().expect("keys"), case));
        s.q_norm = Some(case.norm(NormKind::Rms, q));
        s.k_norm = Some(case.norm(NormKind::Rms, k));
    };
    changed("norms of rows", Shape { n_heads: 4, n_kv_heads: 2, ..plain() }, change);
    let shape = Shape { n_heads: 6, n_kv_heads: 3, head_dim: 64, codec: codec("f16"), ..plain() };
    changed("norms of rows, f16", shape, change);
    let layers = Some([("q8_0", ActQuant::None), ("f16", ActQuant::None), ("f16", ActQuant::None)]);
    changed(
        "norms of rows, layers of several types",
        Shape { layers, codec: codec("f16"), ..plain() },
        change,
    );
}

/// Norms of heads after RoPE, whose magnitude they remove.
#[test]
fn norms_after_rope() {
    let change: Change = |case, s| {
        s.qk_norm = QkNorm::Rotated;
        s.q_norm = Some(case.norm(NormKind::Rms, 16));
        s.k_norm = Some(case.norm(NormKind::Rms, 16));
    };
    changed("norms after RoPE", Shape { n_heads: 4, n_kv_heads: 2, ..plain() }, change);
    let rope = Some((RopeStyle::Adjacent, 7));
    changed("norms after RoPE of a part", Shape { rope, codec: codec("f16"), ..plain() }, change);
}

/// Values with a norm of their own, of their own product or of the keys'.
#[test]
fn values_of_the_keys() {
    let shape = Shape { n_heads: 4, n_kv_heads: 2, head_norms: true, ..plain() };
    let normed: Change = |case, s| s.v_norm = Some(case.norm(NormKind::Rms, 16));
    changed("values with a norm", shape, normed);
    let change: Change = |case, s| {
        s.wv = None;
        s.v_norm = Some(case.norm(NormKind::Rms, 16));
    };
    changed("values of the keys", shape, change);
    let of_f16: Change = |case, s| {
        s.wv = None;
        s.v_norm = Some(case.norm(NormKind::Rms, 64));
    };
    let shape = Shape { head_dim: 64, codec: codec("f16"), ..shape };
    changed("values of the keys, f16", shape, of_f16);
}

/// A second layer that reads the first one's cache.
#[test]
fn layers_that_share_a_cache() {
    for codec in ["f32", "f16"].map(codec) {
        let head_dim = 64;
        let rope = Some((RopeStyle::Halves, head_dim / 2));
        let shape = Shape { n_heads: 4, n_kv_heads: 2, head_dim, rope, codec, head_norms: true, ..plain() };
        let mut attention = Attention::new(&format!("shared, {}", codec.name()), shape, 64, 1, 3);
        let stages = attention.case.p.stages.clone();
        let (Stage::AttnIn(s), Stage::Attend(attend)) = (&stages[0].1, &stages[1].1) else { unreachable!() };
        let wq = attention.case.linear(ty("f16"), 4 * head_dim, DIM, ActQuant::None);
        let norm = s.norm.clone().expect("a norm");
        let second =
            AttnIn { q_norm: s.q_norm.clone(), rope: s.rope, ..AttnIn::queries(s.x, norm, wq, s.kv, s.q) };
        attention.case.p.push("1.attn_in", second);
        attention.case.p.push("1.attend", attend.clone());
        let pages = shuffled_pages(1, 3);
        let mut steps = attention.poison(&pages);
        steps.extend(attention.fill(0, 0..90));
        for rows in [rows(0, 90..130), rows(0, 130..131)] {
            let step = attention.step_case(0..4, rows);
            steps.push(StepCase { read: vec![attention.q, attention.y], ..step });
        }
        attention.case.check(backends(), &pages, &steps);
    }
}

/// The query projection also produces the gates of the output, head by head.
#[test]
fn gated_attention() {
    let rope = Some((RopeStyle::Halves, 8));
    let gated = Shape { gated: true, n_heads: 4, n_kv_heads: 2, head_dim: 64, rope, ..plain() };
    decodes_and_prefills("gated", Shape { head_norms: true, ..gated }, &[0, 64, 300]);
    let layers = Some([("q8_0", ActQuant::None), ("f16", ActQuant::None), ("f16", ActQuant::None)]);
    let shape = Shape { layers, codec: codec("f16"), ..gated };
    decodes_and_prefills("gated, of several types", shape, &[70]);
}

#[test]
fn a_kv_head_for_each_head() {
    decodes_and_prefills("3 heads", Shape { n_heads: 3, n_kv_heads: 3, ..plain() }, &[0, 64, 300]);
}

#[test]
fn several_kv_heads_of_odd_size() {
    let shape =
        Shape { n_heads: 6, n_kv_heads: 2, head_dim: 20, rope: Some((RopeStyle::Halves, 7)), ..plain() };
    decodes_and_prefills("6 heads, 2 KV heads of 20", shape, &[5, 130]);
}

#[test]
fn heads_of_a_real_model() {
    let shape = Shape {
        n_heads: 20,
        n_kv_heads: 5,
        head_dim: 128,
        codec: codec("f16"),
        rope: Some((RopeStyle::Halves, 64)),
        act: ActQuant::I8PerToken,
        ..plain()
    };
    decodes_and_prefills("20 heads, 5 KV heads of 128", shape, &[70]);
}

#[test]
fn f16_cache() {
    decodes_and_prefills("f16", Shape { codec: codec("f16"), ..plain() }, &[0, 63, 64, 256]);
}

/// Steps of many rows use tensor cores on a card: heads of every size that these support, groups that fill a
/// block's rows evenly or not, and more heads than fit in a block.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn f16_cache_of_heads_of_every_size() {
    for (n_heads, n_kv_heads, head_dim, last) in [
        (6, 2, 20, 130),
        (3, 3, 64, 300),
        (18, 1, 72, 101),
        (40, 2, 128, 95),
        (2, 1, 136, 40),
        (3, 1, 256, 130),
    ] {
        let rope = Some((RopeStyle::Halves, head_dim / 2));
        let shape = Shape { n_heads, n_kv_heads, head_dim, rope, codec: codec("f16"), ..plain() };
        let name = format!("f16, {n_heads} heads, {n_kv_heads} KV heads of {head_dim}");
        decodes_and_prefills(&name, shape, &[last]);
    }
}

/// A codec of whole vectors, like the quantised ones.
#[derive(Debug)]
struct Vectors;

impl KvCodec for Vectors {
    fn name(&self) -> &'static str {
        "f16 in vectors"
    }

    fn vec_bytes(&self, head_dim: usize) -> Result<usize, QuantError> {
        Ok(1 + codec("f16").vec_bytes(head_dim)?)
    }

    fn open(&self, side: KvSide, head_dim: usize) -> Result<Box<dyn KvVectors>, QuantError> {
        Ok(Box::new(Marked(codec("f16").open(side, head_dim)?)))
    }
}

/// Vectors of another codec, each after one marker byte.
#[derive(Debug)]
struct Marked(Box<dyn KvVectors>);

impl KvVectors for Marked {
    fn encode(&self, x: &[f32], out: &mut [u8]) -> bool {
        out[0] = 42;
        self.0.encode(x, &mut out[1..])
    }

    fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(bytes[0], 42, "the vector was never written");
        self.0.decode(&bytes[1..], out);
    }
}

/// The CPU supports any codec; other backends name the missing kernel.
#[test]
fn custom_kv_codec_runs_only_on_the_cpu() {
    let shape = Shape { codec: &Vectors, ..plain() };
    decodes_and_prefills_on(|| cpus(&[1, 2, 3]), "vectors", shape, &[0, 63, 64, 256]);
    let attention = Attention::new("vectors on a device", shape, 1, 1, 1);
    for backend in simt(1).into_iter().chain(wgpus()) {
        let refused = backend.plan(&attention.case.p);
        let Err(BackendError::Missing { missing, .. }) = refused else { panic!("{}", backend.device()) };
        let [missing] = &missing[..] else { panic!("{missing:?}") };
        assert!(
            missing.starts_with("attend__f16 in vectors (supported caches: f16, f32, q8_0, "),
            "{missing}"
        );
    }
}

/// The bounds above allow for an f16 cache; over the same cache, many rows at once are as exact as single
/// ones. Sums differ by a few f32 roundings: 2^-20 of the largest output leaves room for 8 of them. Queries
/// are small, because roundings of large scores would weigh more.
#[test]
fn attention_of_many_rows_matches_single_rows() {
    for (n_heads, n_kv_heads, head_dim, last) in [(4, 1, 16, 63), (6, 2, 128, 150), (2, 1, 256, 70)] {
        let rope = Some((RopeStyle::Halves, head_dim / 2));
        let shape = Shape { n_heads, n_kv_heads, head_dim, rope, codec: codec("f16"), ..plain() };
        let name = format!("{n_heads} heads together and alone");
        let mut attention = Attention::new(&name, shape, 64, 1, 3);
        let pages = shuffled_pages(1, 3);
        let fill = attention.fill(0, 0..last - 39);
        let together = attention.step_case(ATTN_IN, rows(0, last - 39..last + 1));
        for mut backend in backends() {
            let device = backend.device();
            let mut running = attention.case.on(&mut *backend);
            fill.iter().chain([&together]).for_each(|step| running.run_step(step, &pages, &[]));
            let q: Vec<f32> = running.read(attention.q, 40).iter().map(|q| q / 32.0).collect();
            running.write(attention.q, &q);
            running.run(1..2, &together.step(&pages, &[]));
            let want = running.read(attention.y, 40);
            let largest = want.iter().fold(0.0_f32, |max, y| max.max(y.abs()));
            let cols = n_heads * head_dim;
            for (i, row) in together.rows.iter().enumerate() {
                running.write(attention.q, &q[i * cols..(i + 1) * cols]);
                running.run(1..2, &Step { rows: &[*row], pages: &pages, sampling: &[], changes: &[] });
                let alone = running.read(attention.y, 1);
                for (a, b) in want[i * cols..].iter().zip(&alone) {
                    assert!(
                        (a - b).abs() <= largest / 1048576.0,
                        "{device}: row {i}: {a} together, {b} alone"
                    );
                }
            }
        }
    }
}

/// Tensor cores truncate sums towards zero, and so does the CPU build of the kernels: over thousands of
/// positions the outputs of a tile must not become too small. Roundings of single elements cancel in the mean
/// of the 1,536 outputs; with one accumulator over all positions the mean would be 3e-5 too small.
#[test]
fn long_context_attention_is_not_biased() {
    // As many KV heads as blocks of a launch, so that no tile is split.
    let (n_heads, head_dim, n_positions) = (6, 16, 4096);
    let shape = Shape { n_heads, n_kv_heads: n_heads, head_dim, rope: None, codec: codec("f16"), ..plain() };
    let n_pages = n_positions as usize / PAGE;
    let mut attention = Attention::new("the bias of a long context", shape, 512, 1, n_pages);
    // Values of one sign add up.
    let bias = attention.case.vector(n_heads * head_dim, 4.0);
    let sterna::program::Stage::AttnIn(s) = &mut attention.case.p.stages[0].1 else { unreachable!() };
    s.wv.as_mut().expect("a layer").bias = Some(bias);
    let pages = shuffled_pages(1, n_pages);
    let fill = attention.fill(0, 0..n_positions - 16);
    let together = attention.step_case(ATTN_IN, rows(0, n_positions - 16..n_positions));
    if let Some(mut backend) = simt(1) {
        let mut running = attention.case.on(&mut *backend);
        fill.iter().chain([&together]).for_each(|step| running.run_step(step, &pages, &[]));
        // Weights are about equal, so that every position contributes.
        let q: Vec<f32> = running.read(attention.q, 16).iter().map(|q| q / 32.0).collect();
        running.write(attention.q, &q);
        running.run(1..2, &together.step(&pages, &[]));
        let got = running.read(attention.y, 16);
        let cols = n_heads * head_dim;
        let (mut diff, mut all) = (0.0_f64, 0.0);
        for (i, row) in together.rows.iter().enumerate() {
            running.write(attention.q, &q[i * cols..(i + 1) * cols]);
            running.run(1..2, &Step { rows: &[*row], pages: &pages, sampling: &[], changes: &[] });
            for (a, b) in got[i * cols..].iter().zip(running.read(attention.y, 1)) {
                diff += f64::from(b - a) * f64::from(b.signum());
                all += f64::from(b.abs());
            }
        }
        println!("relative bias {:.1e}", diff / all);
        assert!((diff / all).abs() < 1e-6, "relative bias {:.1e}", diff / all);
    }
}

/// A value beyond the range of f16 makes its element infinite in the rows that attend to it: the same
/// elements in one step of all rows as in steps of single rows.
#[test]
fn f16_overflow_stays_in_its_element() {
    ["f16", "q8_0"].into_iter().for_each(values_beyond_f16);
}

fn values_beyond_f16(keys: &str) {
    let shape = Shape { codec: codec("f16"), head_dim: 64, ..plain() };
    let mut attention = Attention::new("values beyond halves", shape, 64, 1, 2);
    attention.case.p.kvs[0].k = codec(keys);
    let sterna::program::Stage::AttnIn(s) = &mut attention.case.p.stages[0].1 else { unreachable!() };
    s.wv.as_mut().expect("a layer").scale = 2.5e4;
    let pages = shuffled_pages(1, 2);
    let together = attention.step_case(BOTH, rows(0, 0..40));
    for mut backend in simt(1).into_iter().chain(cpus(&[1])) {
        let device = backend.device();
        let mut running = attention.case.on(&mut *backend);
        running.run_step(&together, &pages, &[]);
        let (q, got) = (running.read(attention.q, 40), running.read(attention.y, 40));
        let cols = got.len() / 40;
        let finite = got[39 * cols..].iter().filter(|y| y.is_finite()).count();
        assert!(finite > 0 && finite < cols, "{finite} of {cols} elements of the last row are finite");
        for (i, row) in together.rows.iter().enumerate() {
            running.write(attention.q, &q[i * cols..(i + 1) * cols]);
            running.run(1..2, &Step { rows: &[*row], pages: &pages, sampling: &[], changes: &[] });
            let alone = running.read(attention.y, 1);
            for (elem, (a, b)) in got[i * cols..].iter().zip(&alone).enumerate() {
                assert_eq!(
                    a.is_finite(),
                    b.is_finite(),
                    "{device}: row {i}, {elem}: {a} together, {b} alone"
                );
            }
        }
    }
}

#[test]
fn rotary_embeddings() {
    let ropes =
        [None, Some((RopeStyle::Halves, 5)), Some((RopeStyle::Adjacent, 8)), Some((RopeStyle::Adjacent, 3))];
    for rope in ropes {
        decodes_and_prefills(&format!("{rope:?}"), Shape { rope, ..plain() }, &[0, 127]);
    }
}

#[test]
fn norms_of_heads() {
    decodes_and_prefills("head norms", Shape { head_norms: true, ..plain() }, &[3, 66]);
    // As in Qwen3; heads that do not fill warps, with RoPE on a part of them; one with quantised inputs.
    for (n_heads, n_kv_heads, head_dim, rope, act) in [
        (4, 2, 128, Some((RopeStyle::Halves, 64)), ActQuant::None),
        (6, 3, 20, Some((RopeStyle::Adjacent, 7)), ActQuant::None),
        (2, 1, 72, None, ActQuant::I8PerToken),
    ] {
        let shape = Shape { n_heads, n_kv_heads, head_dim, codec: codec("f16"), rope, act, ..plain() };
        let name = format!("head norms, {n_heads} heads, {n_kv_heads} KV heads of {head_dim}");
        decodes_and_prefills(&name, Shape { head_norms: true, ..shape }, &[66]);
    }
}

/// Gemma 4's global layers: CUDA has kernels over f16, wgpu over f16 and f32.
#[test]
fn heads_of_512_elements() {
    let on = || {
        let mut backends = cpus(&[2]);
        backends.extend(simt(1));
        backends.extend(wgpus());
        backends
    };
    for (n_heads, head_dim) in [(2, 512), (5, 264)] {
        let rope = Some((RopeStyle::Halves, head_dim / 2));
        let shape = Shape { n_heads, head_dim, rope, codec: codec("f16"), head_norms: true, ..plain() };
        decodes_and_prefills_on(on, &format!("{n_heads} heads of {head_dim}"), shape, &[70]);
    }
    let shape = Shape { head_dim: 512, head_norms: true, ..plain() };
    let floats = Shape { codec: codec("f32"), ..shape };
    decodes_and_prefills_on(wgpus, "heads of 512 over f32", floats, &[70]);
    for (codec_name, head_dim, backends) in
        [("f32", 512, simt(1).into_iter().collect::<Vec<_>>()), ("f16", 640, wgpus())]
    {
        let shape = Shape { head_dim, codec: codec(codec_name), ..shape };
        let attention = Attention::new("wide heads", shape, 1, 1, 1);
        for backend in backends {
            let refused = backend.plan(&attention.case.p);
            let Err(BackendError::Missing { missing, .. }) = refused else { panic!("{}", backend.device()) };
            let want = format!("attend with heads of {head_dim}");
            assert!(missing.iter().any(|what| what.starts_with(&want)), "{missing:?}");
        }
    }
}

/// Types of Q, K and V that no kernel computes together, and ternary ones whose inputs are not quantised.
#[test]
fn layers_of_different_types() {
    let (none, int8) = (ActQuant::None, ActQuant::I8PerToken);
    for (layers, head_norms) in [
        ([("i2_s", int8), ("i2_s", int8), ("q8_0", none)], true),
        ([("i2_s", int8), ("i2_s", int8), ("i2_s", none)], false),
        ([("i2_s", none), ("i2_s", none), ("i2_s", none)], false),
        ([("f16", none), ("f32", none), ("q4_0", none)], false),
    ] {
        let shape = Shape { codec: codec("f16"), layers: Some(layers), head_norms, ..plain() };
        decodes_and_prefills(&format!("{layers:?}"), shape, &[66]);
    }
}

#[test]
fn int8_projections() {
    decodes_and_prefills("int8", Shape { act: ActQuant::I8PerToken, ..plain() }, &[3, 66]);
}

/// A single row and batches far into a sequence, whose splits run in parallel.
#[test]
fn a_long_context() {
    long_context(&["f16"]);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn a_long_context_in_f32() {
    long_context(&["f32"]);
}

fn long_context(codecs: &[&str]) {
    for codec in codecs.iter().map(|name| codec(name)) {
        let shape = Shape { codec, n_heads: 8, n_kv_heads: 2, ..plain() };
        let mut attention = Attention::new(&format!("long, {}", codec.name()), shape, 64, 1, 32);
        let pages = shuffled_pages(1, 32);
        let mut steps = attention.fill(0, 0..2037);
        steps.push(attention.step_case(BOTH, rows(0, 2037..2047)));
        steps.push(attention.step_case(BOTH, rows(0, 2016..2047)));
        steps.push(attention.step_case(BOTH, rows(0, 2047..2048)));
        attention.case.check(backends(), &pages, &steps);
    }
}

/// Sequences of different lengths, some decoding and some in the middle of their prompt, in one step.
#[test]
fn several_sequences_in_one_step() {
    for codec in [codec("f32"), codec("f16")] {
        several_sequences(Shape { n_heads: 4, n_kv_heads: 2, codec, ..plain() });
    }
}

fn several_sequences(shape: Shape) {
    let (n_seqs, n_pages) = (4, 6);
    let name = format!("several sequences, {}", shape.codec.name());
    let mut attention = Attention::new(&name, shape, 64, n_seqs, n_pages);
    let pages = shuffled_pages(n_seqs, n_pages);
    let mut steps = attention.poison(&pages);
    for (seq, from) in [(0, 300), (1, 63), (2, 0), (3, 64)] {
        steps.extend(attention.fill(seq, 0..from));
    }
    let mut mixed = rows(0, 300..301);
    mixed.extend(rows(2, 0..33));
    mixed.extend(rows(1, 63..64));
    mixed.extend(rows(3, 64..70));
    steps.push(attention.step_case(BOTH, mixed));
    // Interleaved rows, each sequence still in the order of its positions.
    let interleaved =
        |i: u32| [(0, 301 + i), (2, 33 + i), (3, 70 + i)].map(|(seq, pos)| rows(seq, pos..pos + 1)[0]);
    steps.push(attention.step_case(BOTH, (0..4).flat_map(interleaved).collect()));
    attention.case.check(backends(), &pages, &steps);
}

/// A sequence that was cut back does not read the positions that it had written after the cut, even if NaN.
#[test]
fn cut_back_sequences_ignore_later_positions() {
    for codec in [codec("f32"), codec("f16")] {
        let shape = Shape { codec, ..plain() };
        let mut attention = Attention::new(&format!("cut back, {}", codec.name()), shape, 64, 1, 4);
        let pages = shuffled_pages(1, 4);
        let mut steps = attention.fill(0, 0..100);
        let mut bad = attention.step_case(ATTN_IN, rows(0, 80..140));
        bad.inputs[0].1.fill(f32::NAN);
        bad.read.clear();
        steps.push(bad);
        steps.push(attention.step_case(BOTH, rows(0, 80..97)));
        steps.push(attention.step_case(BOTH, rows(0, 97..102)));
        steps.push(attention.step_case(BOTH, rows(0, 102..103)));
        attention.case.check(backends(), &pages, &steps);
    }
}

/// A row of NaN affects the rows after it, and no row before it or of another sequence.
#[test]
fn nan_reaches_only_later_rows_of_its_sequence() {
    for codec in [codec("f32"), codec("f16")] {
        let shape = Shape { codec, ..plain() };
        let mut attention = Attention::new(&format!("NaN, {}", codec.name()), shape, 64, 2, 2);
        let pages = shuffled_pages(2, 2);
        let mut both = rows(0, 0..40);
        both.extend(rows(1, 0..10));
        let mut step = attention.step_case(BOTH, both);
        step.inputs[0].1[20 * DIM + 5] = f32::NAN;
        attention.case.check(backends(), &pages, &[step]);
    }
}

/// Two layers of one program may have different RoPE parameters.
#[test]
fn each_layer_has_its_own_rope() {
    let mut attention = Attention::new("two ropes", plain(), 8, 1, 1);
    let other = Rope {
        style: RopeStyle::Adjacent,
        inv_freq: vec![0.5, 0.1].into(),
        magnitude: 1.0,
        axes: None,
        ahead: 0,
    };
    let other: RopeId = attention.case.p.rope(other);
    let (_, first) = attention.case.p.stages[0].clone();
    let sterna::program::Stage::AttnIn(mut second) = first else { unreachable!("the first stage") };
    second.rope = Some(other);
    attention.case.p.push("1.attn_in", second);
    let pages = shuffled_pages(1, 1);
    let mut steps = vec![attention.step_case(0..1, rows(0, 0..7)), attention.step_case(2..3, rows(0, 0..7))];
    let all = attention.step_case(0..3, rows(0, 2..7));
    steps.push(StepCase { read: vec![attention.q], ..all });
    attention.case.check(backends(), &pages, &steps);
}

/// Gates with softplus, an element each or one per head, of both signs, and large ones.
#[test]
fn gates_with_softplus() {
    for per_head in [false, true] {
        let shape = Shape { n_kv_heads: 2, ..plain() };
        let name = format!("gates with softplus, per head: {per_head}");
        let mut attention = Attention::new(&name, shape, 8, 1, 1);
        let cols = if per_head { shape.n_heads } else { shape.n_heads * shape.head_dim };
        let buf = attention.case.buf("gate", cols);
        let (_, Stage::Attend(s)) = &mut attention.case.p.stages[1] else { panic!("the second") };
        (s.gate, s.gate_act) = (Some(buf), GateAct::Softplus);
        let mut step = attention.step_case(BOTH, rows(0, 0..7));
        let mut gates: Vec<f32> =
            attention.case.numbers.values(7 * cols).iter().map(|gate| 4.0 * gate).collect();
        (gates[0], gates[cols]) = (30.0, -30.0);
        step.inputs.push((buf, gates));
        attention.case.check(backends(), &shuffled_pages(1, 1), &[step]);
        // A gate per head needs softplus.
        let (_, Stage::Attend(s)) = &mut attention.case.p.stages[1] else { panic!("the second") };
        s.gate_act = GateAct::Sigmoid;
        assert_eq!(attention.case.p.check().is_err(), per_head);
    }
}
