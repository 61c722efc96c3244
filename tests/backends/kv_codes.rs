//! Means and codes written by the CUDA kernels, read back from pages: they match the codecs' bit for bit,
//! except for elements on a threshold of the quantiser. The same for the means of keys and the trellis codes
//! that wgpu writes. Also attention over `tq3_0`, whose queries are multiplied with signs bit plane by bit
//! plane, against f64 sums over the same codes.

use ggml_types::turboquant::{
    Codebook, KeyMean, Lloyd, Planes, Prod, Qjl, Rotation, ScaleRule, Split, TrellisSplit, TrellisVector,
    plain_search,
};
use ggml_types::{KvSide, kv_by_name, kv_on};
use half::f16;
use sterna::backend::KvPage;
use sterna::program::{
    ActQuant, Attend, AttnIn, Buf, KvDecl, KvWindow, Linear, NormKind, PAGE, PageTable, Stage,
};
use support::case::{
    Case, Running, StepCase, rows, simt, simt_of_cards, wgpus, windowed_limits, windowed_pages,
};

const DIM: usize = 64;
const N_KV_HEADS: usize = 2;
/// Query heads per KV head: more than a kernel processes at a time.
const GROUP: usize = 5;
const N_ROWS: u32 = 200;
/// Full pages that have codes; the first page never has.
const CODED: std::ops::Range<usize> = 1..3;
/// Page whose codes the last row reads.
const READ_PAGE: usize = 1;

/// Distance to a threshold, relative to the vector's norm, below which f32 and f64 may round differently.
const TIE: f64 = 2e-6;

struct Attention {
    case: Case,
    x: Buf,
    q: Buf,
    y: Buf,
}

impl Attention {
    fn new(codec: &str, head_dim: usize) -> Self {
        let mut case = Case::new("codes", windowed_limits(70, 1, 4));
        let (q_cols, kv_cols) = (N_KV_HEADS * GROUP * head_dim, N_KV_HEADS * head_dim);
        let (x, q, y) = (case.buf("x", DIM), case.buf("q", q_cols), case.buf("y", q_cols));
        let norm = case.norm(NormKind::Rms, DIM);
        let mut linear = |rows, scale, centre| {
            let linear = case.linear(support::case::ty("f32"), rows, DIM, ActQuant::None);
            Linear { bias: Some(case.vector(rows, centre)), scale, ..linear }
        };
        // Keys are far from the origin, so that their mean matters; queries are large, so that scores matter.
        let (wq, wk, wv) = (linear(q_cols, 2.0, 0.0), linear(kv_cols, 1.0, 1.5), linear(kv_cols, 1.0, 0.0));
        let codec = kv_by_name(codec).unwrap();
        let v = kv_on(KvSide::Values, codec);
        let kv = case.p.kv(KvDecl {
            n_kv_heads: N_KV_HEADS,
            head_dim,
            k: codec,
            v,
            basis: None,
            window: KvWindow::default(),
            sliding: None,
            values_are_keys: false,
        });
        let attn_in = AttnIn::of(x, norm, [wq, wk, wv], kv, q);
        case.p.push("attn_in", attn_in);
        case.p.push("attend", Attend::causal(q, kv, 0.125, y));
        Self { case, x, q, y }
    }

    /// Runs all rows; the last one alone.
    fn run(&self, running: &mut Running<'_>, pages: &PageTable, inputs: &[f32]) {
        for (start, end) in [(0, 70), (70, 140), (140, N_ROWS - 1), (N_ROWS - 1, N_ROWS)] {
            let inputs = vec![(self.x, inputs[start as usize * DIM..end as usize * DIM].to_vec())];
            running.run_step(
                &StepCase { rows: rows(0, start..end), stages: 0..2, inputs, read: vec![] },
                pages,
                &[],
            );
        }
    }
}

/// One page of the sequence in the layout of `cuda/lib/codes.cuh`.
struct StoredPage {
    head_dim: usize,
    /// Keys, then values: `[n_kv_heads, PAGE, head_dim]` each.
    exact: Vec<f16>,
    codes: Vec<u8>,
}

/// Bits per element, signs included, and number of scales, of keys and of values.
type Shapes = [(usize, usize); 2];

impl StoredPage {
    fn read(running: &mut Running<'_>, pages: &PageTable, i: usize, head_dim: usize) -> Self {
        let mut page = |page: KvPage| {
            let mut bytes = vec![0; running.backend.page_bytes(running.exec, page)];
            running.backend.read_page(running.exec, page, &mut bytes).unwrap();
            bytes
        };
        let codes = page(KvPage::Quantised(pages.seq(0)[i]));
        let exact = page(KvPage::Exact(pages.exact(0)[i].unwrap()));
        let halves = exact.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes));
        Self { head_dim, exact: halves.collect(), codes }
    }

    /// A vector of an exact page.
    fn halves(&self, part: usize, head: usize, place: usize) -> &[f16] {
        &self.exact[((part * N_KV_HEADS + head) * PAGE + place) * self.head_dim..][..self.head_dim]
    }

    fn exact(&self, part: usize, head: usize, place: usize) -> Vec<f32> {
        self.halves(part, head, place).iter().map(|x| x.to_f32()).collect()
    }

    /// Bytes of one head's keys or values, the mean of keys included, and where they begin.
    fn head(&self, shapes: Shapes, part: usize, head: usize) -> (usize, &[u8]) {
        let vectors = |(bits, scales): (usize, usize)| PAGE * (2 * scales + bits * self.head_dim / 8);
        let mean = KeyMean::new(self.head_dim).bytes();
        let head_bytes = [mean + vectors(shapes[0]), vectors(shapes[1])];
        let begin = part * N_KV_HEADS * head_bytes[0] + head * head_bytes[part];
        (if part == 0 { mean } else { 0 }, &self.codes[begin..][..head_bytes[part]])
    }

    /// The mean that was subtracted from the keys: as stored, and its elements.
    fn mean(&self, shapes: Shapes, head: usize) -> (&[u8], Vec<f32>) {
        let (n, bytes) = self.head(shapes, 0, head);
        let mut mean = vec![0.0; self.head_dim];
        KeyMean::new(self.head_dim).decode(&bytes[..n], &mut mean);
        (&bytes[..n], mean)
    }

    /// Scales and bytes of an encoded vector.
    fn vector(&self, shapes: Shapes, part: usize, head: usize, place: usize) -> (Vec<f16>, &[u8]) {
        let (mean, bytes) = self.head(shapes, part, head);
        let ((bits, n_scales), bytes) = (shapes[part], &bytes[mean..]);
        let scale = |i: usize| {
            let at = 2 * (i * PAGE + place);
            f16::from_le_bytes([bytes[at], bytes[at + 1]])
        };
        let vector_bytes = bits * self.head_dim / 8;
        let vector = &bytes[2 * n_scales * PAGE + place * vector_bytes..][..vector_bytes];
        ((0..n_scales).map(scale).collect(), vector)
    }
}

fn word(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(bytes.as_chunks().0[i])
}

/// Low two bits of element `e`; each word holds 16 elements.
fn low(vector: &[u8], e: usize) -> u8 {
    let (g, n) = (e % 16 / 4, e % 4);
    (word(vector, e / 16) >> (16 * (g / 2) + 4 * n + 2 * (g % 2)) & 3) as u8
}

/// Code of element `e` of a vector of 3-bit or 4-bit codes.
fn code(vector: &[u8], bits: usize, e: usize) -> u8 {
    if bits == 4 {
        return vector[e / 2] >> (4 * (e % 2)) & 15;
    }
    let (top, g, n) = (&vector[vector.len() / 3 * 2..], e % 16 / 4, e % 4);
    let top = u16::from_le_bytes(top.as_chunks().0[e / 16]);
    low(vector, e) | ((top >> (4 * n + g) & 1) << 2) as u8
}

/// Sign of element `e`, stored after the 2-bit codes.
fn sign(vector: &[u8], head_dim: usize, e: usize) -> bool {
    word(vector, head_dim / 16 + e / 32) >> (e % 32) & 1 == 1
}

/// True if an element is on a threshold.
fn is_tie(book: &Codebook, unit: f64) -> bool {
    book.thresholds().iter().any(|threshold| (unit - threshold).abs() < TIE)
}

/// True if they are at most one f16 step apart.
fn is_near(a: f16, b: f16) -> bool {
    a.to_bits().abs_diff(b.to_bits()) <= 1
}

fn norm(y: &[f32]) -> f64 {
    y.iter().map(|y| f64::from(*y).powi(2)).sum::<f64>().sqrt()
}

/// Compares a vector of 3-bit or 4-bit codes with the codec's; returns the number of elements that differ,
/// which must be on thresholds.
fn check_lloyd(codec: &Lloyd, y: &[f32], scales: &[f16], vector: &[u8]) -> usize {
    let (mut bytes, mut want) = (vec![0; codec.bytes()], vec![0; y.len()]);
    codec.encode(y, &mut bytes);
    let scale = codec.split(&bytes, &mut want);
    let norm = norm(y);
    let mut ties = 0;
    for (e, want) in want.iter().enumerate() {
        let got = code(vector, codec.bits() as usize, e);
        let tie = is_tie(codec.codebook(), f64::from(y[e]) / norm);
        assert!(
            got == *want || tie,
            "element {e}: {got}, want {want}, {} of the norm",
            f64::from(y[e]) / norm
        );
        ties += usize::from(got != *want);
    }
    assert!(ties > 0 || is_near(scales[0], scale), "{}, want {scale}", scales[0]);
    ties
}

/// The same for 2-bit codes and signs.
fn check_prod(codec: &Prod, y: &[f32], scales: &[f16], vector: &[u8]) -> usize {
    let (mut bytes, mut want) = (vec![0; codec.bytes()], vec![0; y.len()]);
    codec.encode(y, &mut bytes);
    let want_scales = codec.split(&bytes, &mut want);
    let norm = norm(y);
    let differ = |e: &usize| low(vector, *e) != want[*e] & 3;
    let ties: Vec<usize> = (0..y.len()).filter(differ).collect();
    assert!(ties.iter().all(|e| is_tie(codec.codebook(), f64::from(y[*e]) / norm)), "{ties:?}");
    // If a code differs, or the norm differs by an f16 step, the residual is a different vector.
    if !ties.is_empty() || scales[0] != want_scales[0] {
        assert!(!ties.is_empty() || is_near(scales[0], want_scales[0]));
        return 1;
    }
    assert!(is_near(scales[1], want_scales[1]), "{}, want {}", scales[1], want_scales[1]);
    let centroid = |e: usize| codec.codebook().centroids()[usize::from(want[e] & 3)];
    let residual = |e: usize| f64::from(y[e]) - scales[0].to_f64() * centroid(e);
    let mut residual: Vec<f64> = (0..y.len()).map(residual).collect();
    let length = residual.iter().map(|x| x * x).sum::<f64>().sqrt();
    codec.qjl().project(&mut residual);
    let size = residual.iter().map(|x| x * x).sum::<f64>().sqrt();
    for (e, x) in residual.iter().enumerate() {
        let same = sign(vector, y.len(), e) == (want[e] & 4 != 0);
        assert!(same || x.abs() < 1e-5 * size, "sign {e}: {x} of {size}, residual {length}");
    }
    0
}

/// The same for keys in two groups; the 16 bits of a scale are those of both groups.
fn check_split(codec: &Split, y: &[f32], scales: &[f16], vector: &[u8]) -> usize {
    let (mut bytes, mut want) = (vec![0; codec.bytes()], vec![0; y.len()]);
    codec.encode(y, &mut bytes);
    codec.split(&bytes, &mut want);
    let half = y.len() / 2;
    let mut ties = 0;
    for (group, (y, want)) in y.chunks(half).zip(want.chunks(half)).enumerate() {
        let got = |i: usize| match group {
            0 => vector[i / 2] >> (4 * (i % 2)) & 15,
            _ => (word(&vector[half / 2..], i / 16) >> (4 * (i % 8) + 2 * (i % 16 / 8)) & 3) as u8,
        };
        let (book, norm) = (codec.codebook(group), norm(y));
        let differ: Vec<usize> = (0..half).filter(|i| got(*i) != want[*i]).collect();
        assert!(differ.iter().all(|i| is_tie(book, f64::from(y[*i]) / norm)), "group {group}: {differ:?}");
        ties += differ.len();
        let along: f64 = (0..half).map(|i| f64::from(y[i]) * book.centroids()[usize::from(got(i))]).sum();
        // The logarithm may be between two codes.
        let near = [1.0 - 1e-5, 1.0 + 1e-5].map(|by| codec.scale(group).encode(by * norm * norm / along).0);
        let scale = scales[0].to_bits().to_le_bytes()[group];
        assert!(near.contains(&scale), "group {group}: {scale}, want {near:?}");
    }
    ties
}

/// Element `i` of a stream of codes, low bits first.
fn field(bytes: &[u8], bits: usize, i: usize) -> u8 {
    (0..bits).map(|b| bits * i + b).enumerate().map(|(b, at)| (bytes[at / 8] >> (at % 8) & 1) << b).sum()
}

/// Compares a key in trellis codes with the codec's, bit by bit.
fn check_trellis_key(y: &[f32], scales: &[f16], vector: &[u8]) {
    let codec = TrellisSplit::new(y.len());
    let (mut bytes, mut want) = (vec![0; codec.bytes()], vec![0; y.len()]);
    codec.encode(y, &mut bytes, plain_search);
    let want_scales = codec.split(&bytes, &mut want);
    let half = y.len() / 2;
    let got: Vec<u8> = (0..half)
        .map(|i| field(vector, 4, i))
        .chain((0..half).map(|i| field(&vector[half / 2..], 2, i)))
        .collect();
    assert_eq!((got, scales[0].to_bits().to_le_bytes()), (want, want_scales));
}

/// The same for a value, whose codes are 32 bits per piece and then 16 bits per piece.
fn check_trellis_value(y: &[f32], scales: &[f16], vector: &[u8]) {
    let codec = TrellisVector::new(y.len());
    let (mut bytes, mut want) = (vec![0; codec.bytes()], vec![0; y.len()]);
    codec.encode(y, &mut bytes, plain_search);
    let want_scale = codec.split(&bytes, &mut want);
    let (low, top) = vector.split_at(y.len() / 4);
    let pieces = low.as_chunks::<4>().0.iter().zip(top.as_chunks::<2>().0);
    let got: Vec<u8> = pieces
        .flat_map(|(low, top)| {
            let piece = [&low[..], top].concat();
            (0..16).map(move |i| field(&piece, 3, i))
        })
        .collect();
    assert_eq!((got, scales[0]), (want, want_scale));
}

/// The search of a block of many warps finds the codec's codes, also of vectors that are not like Gaussian
/// numbers: zeros, one large element, magnitudes near the smallest and the largest f16, and NaN.
#[test]
fn kernels_write_the_trellis_codes_of_the_codec() {
    for head_dim in [32, 64, 128, 256] {
        let Some(mut backend) = simt(1) else { return };
        let mut attention = Attention::new("turboquant-t", head_dim);
        let mut inputs = attention.case.numbers.values(N_ROWS as usize * DIM);
        for (row, x) in inputs.chunks_exact_mut(DIM).enumerate() {
            match row {
                70 => x.fill(0.0),
                71 => x[3] = f32::NAN,
                72 => x[5] = f32::INFINITY,
                _ => {}
            }
        }
        let pages = windowed_pages(1, 4);
        let mut running = attention.case.on(&mut *backend);
        attention.run(&mut running, &pages, &inputs);
        let shapes = [(3, 1); 2];
        for i in CODED {
            let stored = &StoredPage::read(&mut running, &pages, i, head_dim);
            for head in 0..N_KV_HEADS {
                let (_, mean) = stored.mean(shapes, head);
                for place in 0..PAGE {
                    let (scales, vector) = stored.vector(shapes, 0, head, place);
                    let key = stored.exact(0, head, place);
                    let y: Vec<f32> = key.iter().zip(&mean).map(|(y, m)| y - m).collect();
                    check_trellis_key(&y, &scales, vector);
                    let (scales, vector) = stored.vector(shapes, 1, head, place);
                    check_trellis_value(&stored.exact(1, head, place), &scales, vector);
                }
            }
        }
    }
}

#[test]
fn kernels_write_the_codes_of_the_codecs() {
    let Some(mut backend) = simt(1) else { return };
    let same = |bits| [(bits, 1); 2];
    let cases: [(_, _, _, &[usize]); 4] = [
        ("turboquant-mse", 3, same(3), &[64, 128]),
        ("turboquant-4", 4, same(4), &[32]),
        ("turboquant", 3, same(3), &[32, 64, 128, 256]),
        ("tq3_0", 3, [(3, 2), (3, 1)], &[64, 256]),
    ];
    for (name, bits, shapes, head_dims) in cases {
        for &head_dim in head_dims {
            let mut attention = Attention::new(name, head_dim);
            let inputs = attention.case.numbers.values(N_ROWS as usize * DIM);
            let pages = windowed_pages(1, 4);
            let mut running = attention.case.on(&mut *backend);
            attention.run(&mut running, &pages, &inputs);
            let keys = Lloyd::new(head_dim, bits as u32, ScaleRule::InnerProduct);
            let values = Lloyd::new(head_dim, bits as u32, ScaleRule::LeastSquares);
            let prod = Prod::new(head_dim, Qjl::srht(head_dim).unwrap());
            let split = Split::new(head_dim);
            let (mut ties, mut vectors) = (0, 0);
            for i in CODED {
                let stored = &StoredPage::read(&mut running, &pages, i, head_dim);
                for head in 0..N_KV_HEADS {
                    let (of_page, mean) = stored.mean(shapes, head);
                    let dims = |e: usize| (0..PAGE).map(move |place| stored.halves(0, head, place)[e]);
                    let mut want = vec![0xee; of_page.len()];
                    KeyMean::new(head_dim).encode((0..head_dim).map(dims), &mut want);
                    assert_eq!(of_page, want, "{name}, {head_dim}: the mean of page {i}, head {head}");
                    for place in 0..PAGE {
                        let (scales, vector) = stored.vector(shapes, 0, head, place);
                        let key = stored.exact(0, head, place);
                        let y: Vec<f32> = key.iter().zip(&mean).map(|(y, m)| y - m).collect();
                        ties += match name {
                            "tq3_0" => check_prod(&prod, &y, &scales, vector),
                            "turboquant" => check_split(&split, &y, &scales, vector),
                            _ => check_lloyd(&keys, &y, &scales, vector),
                        };
                        let (scales, vector) = stored.vector(shapes, 1, head, place);
                        ties += check_lloyd(&values, &stored.exact(1, head, place), &scales, vector);
                        vectors += 2;
                    }
                }
            }
            // One vector in fifty may have an element on a threshold.
            assert!(50 * ties <= vectors, "{name}, {head_dim}: {ties} in {vectors} vectors");
        }
    }
}

/// The means follow the codes of a page of keys: on wgpu, those of all heads after the codes of all heads.
#[test]
fn wgpu_writes_the_means_of_pages() {
    for (mut backend, (name, head_dim)) in wgpus().into_iter().zip([("turboquant-mse", 64), ("tq3_0", 256)]) {
        let mut attention = Attention::new(name, head_dim);
        let inputs = attention.case.numbers.values(N_ROWS as usize * DIM);
        let pages = windowed_pages(1, 4);
        let mut running = attention.case.on(&mut *backend);
        attention.run(&mut running, &pages, &inputs);
        let mut page = |page: KvPage| {
            let mut bytes = vec![0; running.backend.page_bytes(running.exec, page)];
            running.backend.read_page(running.exec, page, &mut bytes).unwrap();
            bytes
        };
        let mean = KeyMean::new(head_dim);
        let codes_bytes = N_KV_HEADS * PAGE * kv_by_name(name).unwrap().vec_bytes(head_dim).unwrap();
        for i in CODED {
            let codes = page(KvPage::Quantised(pages.seq(0)[i]));
            let exact = page(KvPage::Exact(pages.exact(0)[i].unwrap()));
            // [n_kv_heads, head_dim / 2, PAGE] pairs of f16.
            let pairs: &[[u8; 4]] = exact.as_chunks().0;
            for head in 0..N_KV_HEADS {
                let key = |place: usize, e: usize| {
                    let pair = pairs[(head * head_dim / 2 + e / 2) * PAGE + place];
                    f16::from_le_bytes([pair[e % 2 * 2], pair[e % 2 * 2 + 1]])
                };
                let mut want = vec![0; mean.bytes()];
                mean.encode((0..head_dim).map(|e| (0..PAGE).map(move |place| key(place, e))), &mut want);
                let got = &codes[codes_bytes + head * mean.bytes()..][..mean.bytes()];
                assert_eq!(got, want, "{name}, page {i}, head {head}");
                assert!(want.iter().filter(|m| **m != 0).count() > head_dim / 2, "means of 0");
            }
        }
    }
}

/// Codes of `bits` bits as a stream of words, the first code in the highest bits.
fn stream(codes: &[u8], bits: usize) -> Vec<u32> {
    let bit = |i: usize| u32::from(codes[i / bits]) >> (bits - 1 - i % bits) & 1;
    let word = |word: usize| (0..32).fold(0, |all, i| all << 1 | bit(32 * word + i));
    (0..codes.len() * bits / 32).map(word).collect()
}

/// Trellis codes are searched with integers, so that they are those of the codecs: all codes and scales, of
/// keys from small ones to those whose scales have to be clamped.
#[test]
fn wgpu_writes_the_codes_of_trellises() {
    let cases = [(32, 1.0), (64, 1e-3), (64, 300.0), (128, 0.02), (256, 1.0)];
    for (i, (head_dim, scale)) in cases.into_iter().enumerate() {
        let Some(mut backend) = wgpus().into_iter().nth(i % 2) else { return };
        let mut attention = Attention::new("turboquant-t", head_dim);
        let Stage::AttnIn(s) = &mut attention.case.p.stages[0].1 else { unreachable!("the first stage") };
        [&mut s.wk, &mut s.wv].into_iter().flatten().for_each(|linear| linear.scale *= scale);
        let inputs = attention.case.numbers.values(N_ROWS as usize * DIM);
        let pages = windowed_pages(1, 4);
        let mut running = attention.case.on(&mut *backend);
        attention.run(&mut running, &pages, &inputs);
        let mut page = |page: KvPage| {
            let mut bytes = vec![0; running.backend.page_bytes(running.exec, page)];
            running.backend.read_page(running.exec, page, &mut bytes).unwrap();
            bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>()
        };
        let (keys, values, mean) =
            (TrellisSplit::new(head_dim), TrellisVector::new(head_dim), KeyMean::new(head_dim));
        let (words, half) = (3 * head_dim / 32, head_dim / 2);
        // Words of the codes of a head's page, then those with its scales.
        let head_words = PAGE * words + PAGE / 2;
        let means_at = N_KV_HEADS * head_words;
        let values_at = means_at + N_KV_HEADS * mean.bytes() / 4;
        let mut clamped = 0;
        for i in CODED {
            let codes = page(KvPage::Quantised(pages.seq(0)[i]));
            let exact = page(KvPage::Exact(pages.exact(0)[i].unwrap()));
            for (head, place) in (0..N_KV_HEADS).flat_map(|head| (0..PAGE).map(move |place| (head, place))) {
                let what = format!("heads of {head_dim}, scale {scale}: page {i}, head {head}, {place}");
                // [n_kv_heads, half, PAGE] words of keys, then [n_kv_heads, PAGE, half] of values.
                let key = |e: usize| (exact[(head * half + e / 2) * PAGE + place], e);
                let value =
                    |e: usize| (exact[N_KV_HEADS * PAGE * half + (head * PAGE + place) * half + e / 2], e);
                let float =
                    |(word, e): (u32, usize)| f16::from_bits((word >> (16 * (e % 2))) as u16).to_f32();
                let bytes: Vec<u8> = codes[means_at + head * mean.bytes() / 4..][..mean.bytes() / 4]
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect();
                let mut of_page = vec![0.0; head_dim];
                mean.decode(&bytes, &mut of_page);
                let y: Vec<f32> = (0..head_dim).map(|e| float(key(e)) - of_page[e]).collect();
                let (mut bytes, mut want) = (vec![0; keys.bytes()], vec![0; head_dim]);
                clamped += keys.encode(&y, &mut bytes, plain_search);
                let scales = u16::from_le_bytes(keys.split(&bytes, &mut want));
                let want = [stream(&want[..half], 4), stream(&want[half..], 2)].concat();
                let at = head * head_words;
                let got: Vec<u32> = (0..words).map(|word| codes[at + word * PAGE + place]).collect();
                assert_eq!(got, want, "{what}: keys");
                let scale_of =
                    |at: usize| (codes[at + PAGE * words + place / 2] >> (16 * (place % 2))) as u16;
                assert_eq!(scale_of(at), scales, "{what}: scales of keys");

                let y: Vec<f32> = (0..head_dim).map(|e| float(value(e))).collect();
                let (mut bytes, mut want) = (vec![0; values.bytes()], vec![0; head_dim]);
                clamped += values.encode(&y, &mut bytes, plain_search);
                let of_values = values.split(&bytes, &mut want).to_bits();
                let at = values_at + head * head_words;
                assert_eq!(codes[at + place * words..][..words], stream(&want, 3), "{what}: values");
                assert_eq!(scale_of(at), of_values, "{what}: scale of values");
            }
        }
        assert_eq!(running.clamped(), Some(clamped as u64), "heads of {head_dim}, scale {scale}");
        assert_eq!(clamped > 0, scale > 100.0, "{clamped} of heads of {head_dim}, scale {scale}");
    }
}

/// Centroids of a codebook, rounded to integers up to 127 in a unit that is chosen as in
/// `src/backend/cuda/kv.rs`.
fn rounded_centroids(book: &Codebook) -> Vec<f64> {
    let upper = &book.centroids()[book.centroids().len() / 2..];
    let worst =
        |unit: f64| upper.iter().map(|c| ((c / unit).round() * unit / c - 1.0).abs()).fold(0.0, f64::max);
    let units = (64_000..=127_000).map(|steps| upper.last().unwrap() / (f64::from(steps) / 1000.0));
    let unit = units.min_by(|a, b| worst(*a).total_cmp(&worst(*b))).unwrap();
    let upper: Vec<f64> = upper.iter().map(|c| (c / unit).round() * unit).collect();
    upper.iter().rev().map(|c| -c).chain(upper.iter().copied()).collect()
}

/// Quantises a vector to 255 steps of its largest element; also returns the step.
fn quantise(x: &[f32]) -> (Vec<i8>, f64) {
    let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    (x.iter().map(|x| (x * (127.0 / most)).round_ties_even() as i8).collect(), f64::from(most / 127.0))
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

#[test]
fn attention_over_signs_matches_f64() {
    let small = [64, 128].into_iter().filter_map(|head_dim| Some((head_dim, simt(1)?)));
    let large = simt_of_cards().into_iter().map(|card| (64, card));
    for (head_dim, mut backend) in small.chain(large) {
        let mut attention = Attention::new("tq3_0", head_dim);
        let inputs = attention.case.numbers.values(N_ROWS as usize * DIM);
        let pages = windowed_pages(1, 4);
        let mut running = attention.case.on(&mut *backend);
        attention.run(&mut running, &pages, &inputs);
        let stored: Vec<StoredPage> =
            (0..4).map(|i| StoredPage::read(&mut running, &pages, i, head_dim)).collect();
        // The kernel has rotated the queries in place.
        let (queries, out) = (running.read(attention.q, 1), running.read(attention.y, 1));
        let prod = Prod::new(head_dim, Qjl::srht(head_dim).unwrap());
        let (key_units, value_units) =
            (rounded_centroids(prod.codebook()), rounded_centroids(&Codebook::new(head_dim, 3)));
        let shapes = [(3, 2), (3, 1)];
        let (mut error, mut size, mut without_signs) = (0.0, 0.0, 0.0);
        for (i, (q, got)) in queries.chunks_exact(head_dim).zip(out.chunks_exact(head_dim)).enumerate() {
            let head = i / GROUP;
            let (bytes, step) = quantise(q);
            let mut projected = q.to_vec();
            prod.qjl().project_query(&mut projected);
            let (projected, projected_step) = quantise(&projected);
            let planes = Planes::new(&projected);
            let of_mean = dot(q, &stored[READ_PAGE].mean(shapes, head).1);
            let answer = |sign_weight: f64| {
                let mut soft = Vec::new();
                for pos in 0..N_ROWS as usize {
                    let (page, place) = (pos / PAGE, pos % PAGE);
                    if page != READ_PAGE {
                        let key = stored[page].exact(0, head, place);
                        soft.push((
                            dot(q, &key),
                            stored[page].exact(1, head, place).iter().map(|x| f64::from(*x)).collect(),
                        ));
                        continue;
                    }
                    let (scales, vector) = stored[page].vector(shapes, 0, head, place);
                    let codes: f64 = (0..head_dim)
                        .map(|e| f64::from(bytes[e]) * key_units[usize::from(low(vector, e))])
                        .sum();
                    let signs: Vec<u32> =
                        (0..head_dim / 32).map(|i| word(vector, head_dim / 16 + i)).collect();
                    let signed_sum =
                        f64::from(planes.signed_sum(&signs)) * projected_step * prod.qjl().factor();
                    let score = step * codes * scales[0].to_f64()
                        + sign_weight * signed_sum * scales[1].to_f64()
                        + of_mean;
                    let (scales, vector) = stored[page].vector(shapes, 1, head, place);
                    let value = |e: usize| value_units[usize::from(code(vector, 3, e))] * scales[0].to_f64();
                    soft.push((score, (0..head_dim).map(value).collect::<Vec<f64>>()));
                }
                let weights: Vec<f64> = soft.iter().map(|(score, _)| (0.125 * score).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut sum = vec![0.0_f32; head_dim];
                for (e, sum) in sum.iter_mut().enumerate() {
                    let all = weights.iter().zip(&soft).map(|(weight, (_, value))| weight * value[e]);
                    *sum = (all.sum::<f64>() / total) as f32;
                }
                Rotation::new(head_dim).unwrap().undo(&mut sum);
                sum
            };
            let square = |a: &[f32]| a.iter().zip(got).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            let want = answer(1.0);
            error += square(&want);
            without_signs += square(&answer(0.0));
            size += dot(&want, &want);
        }
        let (error, without_signs) = ((error / size).sqrt(), (without_signs / size).sqrt());
        assert!(error < 1e-4, "heads of {head_dim}: {error}");
        assert!(without_signs > 1e-2, "heads of {head_dim}: only {without_signs} without signs");
    }
}
