//! Attention over every KV codec at lengths around the boundaries of pages, splits and windows, up to 131,072
//! positions: against an f64 softmax over all positions at once, in one split and in many, for two sequences
//! in one step, and with some vectors that no codec supports represent.

use ggml_types::turboquant::{KeyBasis, Rotation};
use ggml_types::{KvCodec, KvSide, KvVectors, kv, kv_by_name, kv_on};
use half::f16;
use sterna::backend::cpu::Cpu;
use sterna::backend::{Backend, BackendError};
use sterna::program::{
    Attend, AttnIn, Buf, KvDecl, KvWindow, Linear, NormKind, PAGE, PageTable, Row, Step, Weight,
};
use support::case::{
    Case, Numbers, Running, cpus, pages_for, rows, simt, ty, wgpus, windowed_limits, windowed_pages,
};

const DIM: usize = 16;
const HEAD_DIM: usize = 64;
const GROUP: usize = 4;
const COLS: usize = GROUP * HEAD_DIM;
const SCALE: f32 = 0.125;
/// Rows of the steps that fill a cache.
const FILL: usize = 256;
/// Rows of a step in which a row's positions are not split: more rows than the threads have tasks, or than a
/// card has blocks.
const TOGETHER: u32 = 12;
/// Numbers of positions before the row that attends.
const LENGTHS: [u32; 9] = [0, 1, 31, 32, 33, 63, 64, 65, 2047];
const LONGEST: u32 = 131_072;

struct Attention {
    case: Case,
    x: Buf,
    q: Buf,
    y: Buf,
    attn_in: AttnIn,
    pages: PageTable,
    /// Codecs of keys and of values.
    codecs: Codecs,
}

type Codecs = [&'static dyn KvCodec; 2];

/// Keys and values of one sequence before they are stored, `[positions, HEAD_DIM]`; a backend's differ only
/// by roundings.
struct Vectors {
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
}

/// Keys or values of a cache: the vectors in exact pages, the decoded ones, and the mean of each page that is
/// subtracted before encoding.
struct StoredSide {
    exact: Vec<Vec<f32>>,
    coded: Vec<Vec<f32>>,
    means: Vec<Vec<f32>>,
}

impl StoredSide {
    /// Exact vectors with their positions' means subtracted.
    fn centred(&self) -> impl Iterator<Item = Vec<f32>> {
        let of_page = |(page, mean): (&[Vec<f32>], &Vec<f32>)| {
            page.iter().map(|x| x.iter().zip(mean).map(|(x, m)| x - m).collect()).collect::<Vec<_>>()
        };
        self.exact.chunks(PAGE).zip(&self.means).flat_map(of_page)
    }
}

/// Transforms a query, key or value as a cache without statistics does.
fn rotate(codec: &dyn KvCodec, x: &mut [f32]) {
    match (codec.form().has_basis(), codec.rotates()) {
        (true, _) => KeyBasis::plain(HEAD_DIM).unwrap().apply_to_key(x),
        (false, true) => Rotation::new(HEAD_DIM).unwrap().apply(x),
        (false, false) => {}
    }
}

impl Attention {
    /// Creates a layer for `n_seqs` sequences of up to `positions`, with the same codec for keys and values.
    fn new(codec: &'static dyn KvCodec, positions: u32, n_seqs: usize) -> Self {
        Self::of([codec, kv_on(KvSide::Values, codec)], positions, n_seqs)
    }

    fn of(codecs: Codecs, positions: u32, n_seqs: usize) -> Self {
        let n_pages = pages_for(positions as usize);
        let mut case = Case::new("attention at many lengths", windowed_limits(FILL, n_seqs, n_pages));
        let (x, q, y) = (case.buf("x", DIM), case.buf("q", COLS), case.buf("y", COLS));
        let norm = case.norm(NormKind::Rms, DIM);
        // Keys are far from the origin, so that their mean matters. If the first input is not zero, the
        // vectors exceed f16.
        let mut linear = |rows, centre| {
            let mut values: Vec<f32> = (0..rows * DIM).map(|_| 0.25 * case.numbers.value()).collect();
            values.iter_mut().step_by(DIM).for_each(|x| *x = 1e6);
            let (w, bias) = (case.weight_of(ty("f32"), rows, DIM, &values), case.vector(rows, centre));
            Linear { bias: Some(bias), ..Linear::of(w) }
        };
        let (wq, wk, wv) = (linear(COLS, 0.0), linear(HEAD_DIM, 1.5), linear(HEAD_DIM, 0.0));
        let [k, v] = codecs;
        let kv = case.p.kv(KvDecl {
            n_kv_heads: 1,
            head_dim: HEAD_DIM,
            k,
            v,
            basis: None,
            window: KvWindow::default(),
            sliding: None,
            values_are_keys: false,
        });
        let attn_in = AttnIn::of(x, norm, [wq, wk, wv], kv, q);
        case.p.push("attn_in", attn_in.clone());
        case.p.push("attend", Attend::causal(q, kv, SCALE, y));
        Self { case, x, q, y, attn_in, pages: windowed_pages(n_seqs, n_pages), codecs }
    }

    /// Inputs of some positions, `[positions, DIM]`.
    fn inputs(seed: u64, positions: u32) -> Vec<f32> {
        let mut values = Numbers::new(seed).values(positions as usize * DIM);
        values.iter_mut().step_by(DIM).for_each(|x| *x = 0.0);
        values
    }

    /// Queries whose scores have a standard deviation of about 2, rotated if the cache is.
    fn queries(&self, n: usize) -> Vec<f32> {
        let mut q: Vec<f32> = Numbers::new(3).values(n * COLS).iter().map(|q| 2.0 * q).collect();
        q.chunks_exact_mut(HEAD_DIM).for_each(|q| rotate(self.codecs[0], q));
        q
    }

    /// Writes a sequence into the cache.
    fn fill(&self, running: &mut Running<'_>, seq: u32, inputs: &[f32]) {
        let rows = rows(seq, 0..(inputs.len() / DIM) as u32);
        for (rows, x) in rows.chunks(FILL).zip(inputs.chunks(FILL * DIM)) {
            running.write(self.x, x);
            running.run(0..1, &self.step(rows));
        }
    }

    fn step<'a>(&'a self, rows: &'a [Row]) -> Step<'a> {
        Step { rows, pages: &self.pages, sampling: &[], changes: &[] }
    }

    /// Returns the attention output of the rows, `[rows, COLS]`.
    fn attend(&self, running: &mut Running<'_>, rows: &[Row], q: &[f32]) -> Vec<f32> {
        running.write(self.q, q);
        running.run(1..2, &self.step(rows));
        running.read(self.y, rows.len())
    }

    fn floats(&self, w: Weight) -> Vec<f64> {
        let bytes = &self.case.weights[w.0 as usize].bytes;
        bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    }

    fn vectors(&self, inputs: &[f32]) -> Vectors {
        let s = &self.attn_in;
        let norm = s.norm.as_ref().expect("a norm");
        let weight = self.floats(norm.weight);
        let product = |linear: &Linear| -> Vec<Vec<f32>> {
            let (w, bias) = (self.floats(linear.w), self.floats(linear.bias.unwrap()));
            let of_row = |x: &[f32]| {
                let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / DIM as f64;
                let factor = 1.0 / (square + f64::from(norm.eps)).sqrt();
                let n: Vec<f64> = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * factor * w).collect();
                let dots = w.chunks_exact(DIM).map(|w| w.iter().zip(&n).map(|(w, n)| w * n).sum::<f64>());
                dots.zip(&bias).map(|(dot, bias)| (dot + bias) as f32).collect()
            };
            inputs.chunks_exact(DIM).map(of_row).collect()
        };
        let [k, v] = [&s.wk, &s.wv].map(|layer| product(layer.as_ref().expect("a layer")));
        Vectors { k, v }
    }

    fn stored(&self, side: KvSide, vectors: &[Vec<f32>]) -> StoredSide {
        let kv_codec = self.codecs[usize::from(side == KvSide::Values)];
        let (codec, bytes) = (kv_codec.open(side, HEAD_DIM).unwrap(), kv_codec.vec_bytes(HEAD_DIM).unwrap());
        let rotated = vectors.iter().map(|x| {
            let mut x = x.clone();
            rotate(kv_codec, &mut x);
            if kv_codec.windowed() {
                let most = f16::MAX.to_f32();
                let within = |x: f32| if x.is_finite() { x.clamp(-most, most) } else { 0.0 };
                x.iter_mut().for_each(|x| *x = f16::from_f32(within(*x)).to_f32());
            }
            x
        });
        let exact: Vec<Vec<f32>> = rotated.collect();
        let mean = |page: &[Vec<f32>]| {
            let mut mean = vec![0.0; HEAD_DIM];
            if let Some(of_keys) = kv_codec.key_mean(side, HEAD_DIM) {
                let mut bytes = vec![0; of_keys.bytes()];
                let dims = (0..HEAD_DIM).map(|i| page.iter().map(move |x| f16::from_f32(x[i])));
                of_keys.encode(dims, &mut bytes);
                of_keys.decode(&bytes, &mut mean);
            }
            mean
        };
        let means = exact.chunks(PAGE).map(mean).collect();
        let mut stored = StoredSide { exact, coded: Vec::new(), means };
        stored.coded = stored.centred().map(|x| round(&*codec, bytes, &x)).collect();
        stored
    }
}

fn round(codec: &dyn KvVectors, bytes: usize, x: &[f32]) -> Vec<f32> {
    let (mut encoded, mut out) = (vec![0; bytes], vec![0.0; x.len()]);
    codec.encode(x, &mut encoded);
    codec.decode(&encoded, &mut out);
    out
}

/// Softmax over all positions that a row attends to, `[COLS]`; the page table determines which are exact.
fn reference(pages: &PageTable, row: &Row, codecs: Codecs, q: &[f32], stored: &[StoredSide; 2]) -> Vec<f64> {
    reference_with(pages, row, codecs, [q; 2], stored)
}

/// A query in 255 steps of its largest element, as the CUDA kernels multiply it with codes.
fn in_steps(q: &[f32]) -> Vec<f32> {
    let step = q.iter().fold(0.0_f32, |most, q| most.max(q.abs())) / 127.0;
    q.iter().map(|q| (q / step).round_ties_even() * step).collect()
}

/// The same with queries, and with those that are multiplied with codes.
fn reference_with(
    pages: &PageTable,
    row: &Row,
    codecs: Codecs,
    [q, coded_q]: [&[f32]; 2],
    [k, v]: &[StoredSide; 2],
) -> Vec<f64> {
    let is_exact = |codec: &dyn KvCodec, p: usize| {
        codec.windowed() && pages.exact_for(KvWindow::default(), row, p / PAGE).is_some()
    };
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut out = Vec::new();
    for (q, coded_q) in q.chunks_exact(HEAD_DIM).zip(coded_q.chunks_exact(HEAD_DIM)) {
        let of_means: Vec<f64> = k.means.iter().map(|mean| dot(q, mean)).collect();
        let score = |p: usize| match is_exact(codecs[0], p) {
            true => dot(q, &k.exact[p]),
            false => dot(coded_q, &k.coded[p]) + of_means[p / PAGE],
        };
        let scores: Vec<f64> = (0..=row.pos as usize).map(|p| f64::from(SCALE) * score(p)).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut sum, mut total) = (vec![0.0_f64; HEAD_DIM], 0.0);
        for (p, score) in scores.iter().enumerate() {
            let weight = (score - most).exp();
            total += weight;
            let value = if is_exact(codecs[1], p) { &v.exact[p] } else { &v.coded[p] };
            sum.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        }
        let mut sum: Vec<f32> = sum.iter().map(|x| (x / total) as f32).collect();
        if codecs[1].rotates() {
            Rotation::new(HEAD_DIM).unwrap().undo(&mut sum);
        }
        out.extend(sum.into_iter().map(f64::from));
    }
    out
}

/// Root mean square of the differences, relative to that of `b`.
fn distance<'a>(a: &[f32], b: impl Iterator<Item = &'a f64> + Clone) -> f64 {
    let square: f64 = a.iter().zip(b.clone()).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    (square / b.map(|b| b * b).sum::<f64>()).sqrt()
}

/// Maximum distance of a backend from the reference. The CPU and wgpu multiply floats with codes: f32 sums,
/// and a few values that round to another f16 or get another code, because their last bits differ. CUDA
/// rounds queries to 255 steps and centroids to 255 values, which `kv_window.rs` checks exactly. If a
/// residual differs in its last bit, the signs of near-zero elements flip, and they weigh as much as all
/// others.
fn bound(backend: &dyn Backend, [k, v]: Codecs) -> f64 {
    let of_codes = k.rotates() || v.rotates();
    match backend.name() {
        "cpu" | "wgpu" if k.name() == "tq3_0" => 1e-2,
        // The offset is one more f16 that may round differently, for its whole block.
        "cpu" if ["q4_1", "q5_1"].contains(&k.name()) => 2e-3,
        "cuda" | "cuda-simt" if of_codes => 3e-2,
        _ => 1e-3,
    }
}

/// True if CUDA processes rows over such a cache in tiles.
fn tiles_on_cuda(codecs: Codecs) -> bool {
    let [k, v] = codecs.map(KvCodec::name);
    let blocks = |name| ["f16", "q8_0", "q4_0"].contains(&name);
    let tiled = ["turboquant", "turboquant-t", "turboquant-4", "turboquant-mse"].contains(&k);
    blocks(k) && blocks(v) || tiled && kv_on(KvSide::Values, codecs[0]) == codecs[1]
}

/// Numbers of rows in one step: [`TOGETHER`], and enough for tiles if the backend has them.
fn together(backend: &dyn Backend, codecs: Codecs) -> &'static [u32] {
    match backend.name() {
        "wgpu" => &[2 * TOGETHER],
        "cuda" | "cuda-simt" if tiles_on_cuda(codecs) => &[TOGETHER, 2 * TOGETHER],
        _ => &[TOGETHER],
    }
}

/// The last `n` rows of one sequence up to `last`, or fewer at its start.
fn up_to(last: u32, n: u32) -> Vec<Row> {
    rows(0, (last + 1).saturating_sub(n)..last + 1)
}

/// Compares a single row, whose positions are split over many tasks or blocks, with the same row in a step of
/// many, where one task or block reads them all.
fn compare_splits(
    backend: &mut dyn Backend,
    attention: &Attention,
    stored: &[StoredSide; 2],
    inputs: &[f32],
    lengths: &[u32],
) {
    let codecs = attention.codecs;
    let what = format!("{} and {} on {}", codecs[0].name(), codecs[1].name(), backend.device());
    let (same_bits, bound) = (backend.name() == "cpu", bound(backend, codecs));
    let mut running = attention.case.on(backend);
    attention.fill(&mut running, 0, inputs);
    for &length in lengths {
        let sizes = together(&*running.backend, codecs);
        let last = rows(0, length..length + 1)[0];
        let q = attention.queries(up_to(length, sizes[0]).len());
        let last_q = &q[q.len() - COLS..];
        let many = attention.attend(&mut running, &[last], last_q);
        let want = reference(&attention.pages, &last, codecs, last_q, stored);
        let error = distance(&many, want.iter());
        assert!(error < bound, "{what}: {length} positions before: {error}");
        for &n in sizes {
            let together = up_to(length, n);
            let others_q = attention.queries(together.len() - 1);
            let all = attention.attend(&mut running, &together, &[&others_q, last_q].concat());
            let wide: Vec<f64> = all[others_q.len()..].iter().map(|x| f64::from(*x)).collect();
            let apart = distance(&many, wide.iter());
            // Cards merge splits in another order, which gives a few different roundings.
            let most = if same_bits { 0.0 } else { 1e-5 };
            assert!(apart <= most, "{what}: {length} positions before, in a step of {n} rows: {apart} apart");
        }
        // The result for one position less is different.
        if same_bits && length > 0 && length < 100 {
            let before = Row { pos: length - 1, ..last };
            let short = distance(&many, reference(&attention.pages, &before, codecs, last_q, stored).iter());
            assert!(short > 4.0 * error, "{what}: {length} positions before: {error}, one less: {short}");
        }
    }
}

/// One variant of the wgpu kernels, which alternates with `i`: every codec runs with both in half the time.
fn one_wgpu(i: usize) -> Option<Box<dyn Backend>> {
    wgpus().into_iter().nth(i % 2)
}

/// True if a backend supports the codec. Not all support all of them; `kv_window.rs` tests the error.
fn supports(backend: &dyn Backend, attention: &Attention) -> bool {
    match backend.plan(&attention.case.p) {
        Err(BackendError::Missing { .. }) => false,
        plan => plan.is_ok_and(|plan| plan.kv_bytes > 0),
    }
}

#[test]
fn every_codec_at_every_length() {
    every_length(&LENGTHS);
}

fn every_length(lengths: &[u32]) {
    let longest = *lengths.last().expect("a length");
    for (i, &codec) in kv::REGISTRY.iter().enumerate() {
        let attention = Attention::new(codec, longest + 1, 1);
        let inputs = Attention::inputs(1, longest + 1);
        let vectors = attention.vectors(&inputs);
        let stored =
            [attention.stored(KvSide::Keys, &vectors.k), attention.stored(KvSide::Values, &vectors.v)];
        for mut backend in cpus(&[3]).into_iter().chain(simt(1)).chain(one_wgpu(i)) {
            if !supports(&*backend, &attention) {
                continue;
            }
            // A long context takes many seconds on wgpu in software: `lengths_of_many_splits` has one.
            let n =
                if backend.name() == "wgpu" { lengths.len().saturating_sub(1).max(1) } else { lengths.len() };
            let inputs = &inputs[..(lengths[n - 1] as usize + 1) * DIM];
            compare_splits(&mut *backend, &attention, &stored, inputs, &lengths[..n]);
        }
    }
}

/// Keys and values supports have different codecs, on the CPU and wgpu any two.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn pairs_of_codecs() {
    let positions = 300;
    let inputs = Attention::inputs(8, positions);
    let vectors = Attention::new(kv::REGISTRY[0], 1, 1).vectors(&inputs);
    let pairs = kv::REGISTRY.iter().flat_map(|k| kv::REGISTRY.iter().map(move |v| [*k, *v]));
    let possible = pairs.filter(|[_, v]| v.instead(KvSide::Values).is_none());
    for (i, codecs) in possible.enumerate() {
        let attention = Attention::of(codecs, positions, 1);
        let stored =
            [attention.stored(KvSide::Keys, &vectors.k), attention.stored(KvSide::Values, &vectors.v)];
        let backends = cpus(&[1]).into_iter().take(1).chain(one_wgpu(i));
        for mut backend in backends.filter(|backend| supports(&**backend, &attention)) {
            compare_splits(&mut *backend, &attention, &stored, &inputs, &[positions - 1]);
        }
    }
}

/// More pages in one split than the CUDA kernels multiply the means of at a time, at most 128. The sequence
/// repeats a few pages, so that it is filled quickly.
#[test]
fn many_pages_in_one_split() {
    let (n_filled, length) = (4, 130 * PAGE as u32);
    let of = |i: usize| if i < n_filled { i } else { 1 + i % (n_filled - 1) };
    let mut attention = Attention::new(kv_by_name("turboquant-mse").unwrap(), length + 1, 1);
    let (pages, exact) = (attention.pages.seq(0).to_vec(), attention.pages.exact(0).to_vec());
    *attention.pages.seq_mut(0) = (0..pages.len()).map(|i| pages[of(i)]).collect();
    *attention.pages.exact_mut(0) = (0..exact.len()).map(|i| exact[of(i)]).collect();
    let inputs = Attention::inputs(5, (n_filled * PAGE) as u32);
    let vectors = attention.vectors(&inputs);
    let repeated = |side, vectors: &[Vec<f32>]| {
        let StoredSide { exact, coded, means } = attention.stored(side, vectors);
        let at = |p: usize| of(p / PAGE) * PAGE + p % PAGE;
        let all = |x: &[Vec<f32>]| (0..=length as usize).map(|p| x[at(p)].clone()).collect();
        let means = (0..pages.len()).map(|i| means[of(i)].clone()).collect();
        StoredSide { exact: all(&exact), coded: all(&coded), means }
    };
    let stored = [repeated(KvSide::Keys, &vectors.k), repeated(KvSide::Values, &vectors.v)];
    for mut backend in cpus(&[1]).into_iter().take(1).chain(simt(1)) {
        compare_splits(&mut *backend, &attention, &stored, &inputs, &[length]);
    }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn lengths_of_many_splits() {
    every_length(&[4095]);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn a_context_of_131072_positions() {
    let inputs = Attention::inputs(2, LONGEST + 1);
    let vectors = Attention::new(kv::REGISTRY[0], 1, 1).vectors(&inputs);
    for &codec in kv::REGISTRY {
        let attention = Attention::new(codec, LONGEST + 1, 1);
        let stored =
            [attention.stored(KvSide::Keys, &vectors.k), attention.stored(KvSide::Values, &vectors.v)];
        let mut cpu = Cpu::new(3).expect("threads");
        compare_splits(&mut cpu, &attention, &stored, &inputs, &[LONGEST]);
    }
}

/// The reference changes a lot if the signs of residuals are ignored or weighted too little.
#[test]
fn signs_of_residuals_have_the_right_weight() {
    let positions = 400;
    let attention = Attention::new(kv_by_name("tq3_0").unwrap(), positions, 1);
    let inputs = Attention::inputs(7, positions);
    let vectors = attention.vectors(&inputs);
    let codec = attention.codecs[0].open(KvSide::Keys, HEAD_DIM).unwrap();
    let bytes = attention.codecs[0].vec_bytes(HEAD_DIM).unwrap();
    let weighted = |weight: f64| {
        let mut keys = attention.stored(KvSide::Keys, &vectors.k);
        let centred: Vec<_> = keys.centred().collect();
        for (coded, centred) in keys.coded.iter_mut().zip(&centred) {
            let mut encoded = vec![0; bytes];
            codec.encode(centred, &mut encoded);
            // The length of the residual follows the norm and two bits per element.
            let at = 2 + HEAD_DIM / 4;
            let length = f16::from_le_bytes([encoded[at], encoded[at + 1]]).to_f64();
            encoded[at..at + 2].copy_from_slice(&f16::from_f64(weight * length).to_le_bytes());
            codec.decode(&encoded, coded);
        }
        [keys, attention.stored(KvSide::Values, &vectors.v)]
    };
    let row = rows(0, positions - 1..positions)[0];
    let q = attention.queries(1);
    let want = |weight| reference(&attention.pages, &row, attention.codecs, &q, &weighted(weight));
    let without_sqrt = (2.0 / std::f64::consts::PI).sqrt();
    let [right, dropped, weak] = [1.0, 0.0, without_sqrt].map(want);
    for mut backend in cpus(&[1]).into_iter().chain(wgpus()) {
        let mut running = attention.case.on(&mut *backend);
        attention.fill(&mut running, 0, &inputs);
        let got = attention.attend(&mut running, &[row], &q);
        let [right, dropped, weak] = [&right, &dropped, &weak].map(|want| distance(&got, want.iter()));
        assert!(right < 1e-2 && dropped > 10.0 * right && weak > 2.0 * right, "{right}, {dropped}, {weak}");
    }
}

/// Rows of two sequences of different lengths in one step give the same results as alone.
#[test]
fn sequences_in_one_step_are_independent() {
    for (i, &codec) in kv::REGISTRY.iter().enumerate() {
        let attention = Attention::new(codec, 400, 2);
        let inputs = [4, 5].map(|seed| Attention::inputs(seed, 400));
        let two = || cpus(&[3]).into_iter().chain(simt(2)).chain(one_wgpu(i + 1));
        for (mut backend, mut another) in two().zip(two()) {
            if !supports(&*backend, &attention) {
                continue;
            }
            let what = format!("{} on {}", codec.name(), backend.device());
            let same_bits = backend.name() == "cpu";
            let mut running = attention.case.on(&mut *backend);
            // Both sequences write in each step.
            for start in (0..400).step_by(FILL / 2) {
                let end = (start + FILL / 2).min(400);
                let both: Vec<Row> = (0..2).flat_map(|seq| rows(seq, start as u32..end as u32)).collect();
                let x = inputs.each_ref().map(|x| &x[start * DIM..end * DIM]).concat();
                running.write(attention.x, &x);
                running.run(0..1, &attention.step(&both));
            }
            // Single rows; or tiles, which end at the end of a page, at 127 and 383.
            let step = match !same_bits && tiles_on_cuda(attention.codecs) {
                true => [rows(0, 120..132), rows(1, 380..400)].concat(),
                false => [rows(0, 130..132), rows(1, 399..400)].concat(),
            };
            let q = attention.queries(step.len());
            let both = attention.attend(&mut running, &step, &q);

            let other = Attention::new(codec, 400, 2);
            let mut alone = other.case.on(&mut *another);
            (0..2).for_each(|seq| other.fill(&mut alone, seq, &inputs[seq as usize]));
            for (i, row) in step.iter().enumerate() {
                let at = i * COLS..(i + 1) * COLS;
                let one = other.attend(&mut alone, &[*row], &q[at.clone()]);
                let wide: Vec<f64> = one.iter().map(|x| f64::from(*x)).collect();
                let apart = distance(&both[at], wide.iter());
                assert!(apart <= if same_bits { 0.0 } else { 1e-5 }, "{what}: row {i}: {apart}");
            }
        }
    }
}

/// NaN vectors, vectors beyond f16 and zero vectors: inside the window and after it, they do not affect other
/// rows, and they are counted.
#[test]
fn unrepresentable_vectors_are_clamped() {
    let positions = 400_usize;
    let windowed = kv::REGISTRY.iter().filter(|codec| codec.windowed());
    for &codec in windowed {
        let attention = Attention::new(codec, positions as u32, 1);
        let mut inputs = Attention::inputs(6, positions as u32);
        inputs[100 * DIM + 3] = f32::NAN;
        inputs[101 * DIM + 4] = f32::INFINITY;
        inputs[102 * DIM..103 * DIM].fill(0.0);
        // The weight scales this to a million, which is infinite in f16.
        inputs[103 * DIM] = 1.0;
        let vectors = attention.vectors(&inputs);
        assert!(vectors.k[100][0].is_nan() && vectors.k[103][0].abs() > 1e5);
        let stored =
            [attention.stored(KvSide::Keys, &vectors.k), attention.stored(KvSide::Values, &vectors.v)];
        for mut backend in cpus(&[1, 3]).into_iter().chain(simt(1)).chain(wgpus()) {
            if !supports(&*backend, &attention) {
                continue;
            }
            let what = format!("{} on {}", codec.name(), backend.device());
            // Keys less a mean of large keys are large, and so is the effect of rounded queries on their
            // scores. Values of trellis codes are exact on cards, so that nothing else has one.
            let rounds = codec.name() == "turboquant-t" && backend.name().starts_with("cuda");
            let bound = if rounds { 1e-3 } else { bound(&*backend, attention.codecs) };
            let mut running = attention.case.on(&mut *backend);
            attention.fill(&mut running, 0, &inputs);
            for pos in [110, 255, 256, 399] {
                let row = rows(0, pos..pos + 1)[0];
                let q = attention.queries(1);
                let got = attention.attend(&mut running, &[row], &q);
                assert!(got.iter().all(|x| x.is_finite()), "{what}: row {pos}");
                let in_steps: Vec<f32> = q.chunks_exact(HEAD_DIM).flat_map(in_steps).collect();
                let coded_q = if rounds { &in_steps } else { &q };
                let want = reference_with(&attention.pages, &row, attention.codecs, [&q, coded_q], &stored);
                let error = distance(&got, want.iter());
                assert!(error < bound, "{what}: row {pos}: {error}");
            }
            // At least keys and values of two NaN rows, and the keys of one row beyond f16.
            assert!(running.clamped().is_some_and(|n| n >= 5), "{what}");
        }
    }
}
