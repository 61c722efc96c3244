//! Windowed KV caches: attention against a reference in f64 over the codecs' own definition; prompts in pieces, cuts,
//! branches and sessions side by side against sessions that went alone; bytes against the formula.

mod case;
mod common;
mod oracle;

use case::{Case, Turn, cpus, rows, simt, wgpus, windowed_limits, windowed_pages};
use ggml_types::turboquant::{Codebook, Lloyd, Rotation, ScaleRule};
use ggml_types::{KvCodec, KvSide, kv_by_name};
use half::f16;
use sterna::engine::{Engine, EngineOptions, Session};
use sterna::program::{
    ActQuant, Attend, AttnIn, Buf, KvDecl, KvWindow, Linear, NormKind, PAGE, Program, Weight,
};

const DIM: usize = 96;
const HEAD_DIM: usize = 64;
const N_KV_HEADS: usize = 2;
const GROUP: usize = 2;
const N_ROWS: u32 = 330;

/// What the reference does with a cache, right or wrong.
#[derive(Clone, Copy)]
struct Rule {
    bits: u32,
    key_scale: ScaleRule,
    value_scale: ScaleRule,
    centred: bool,
    rotated: bool,
    /// Pages before its own that a row reads exactly.
    window_pages: usize,
    /// Pages from the first on that every row reads exactly.
    sink_pages: usize,
    /// The codecs of keys and of values, where there is no window.
    at_once: Option<[&'static dyn KvCodec; 2]>,
    /// Whether codes and the queries that meet them are rounded to bytes, as kernels for cards do.
    bytes: bool,
}

const RIGHT: Rule = Rule {
    bits: 3,
    key_scale: ScaleRule::InnerProduct,
    value_scale: ScaleRule::LeastSquares,
    centred: true,
    rotated: true,
    window_pages: 1,
    sink_pages: 1,
    at_once: None,
    bytes: false,
};

struct Reference {
    /// `[rows, n_kv_heads * GROUP, HEAD_DIM]`.
    q: Vec<Vec<f64>>,
    /// `[rows, n_kv_heads, HEAD_DIM]`.
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
    scale: f64,
}

impl Rule {
    fn rotates(&self, keys: bool) -> bool {
        self.rotated && self.at_once.is_none_or(|codecs| codecs[usize::from(!keys)].rotates())
    }
}

fn rotated(rule: Rule, keys: bool, x: &[f64]) -> Vec<f32> {
    let mut x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    if rule.rotates(keys) {
        Rotation::new(HEAD_DIM).unwrap().apply(&mut x);
    }
    x
}

/// Magnitudes of a codebook as whole numbers up to 127 of a unit, which is found as `src/backend/cuda/kv.rs` says.
fn as_bytes(book: &Codebook) -> Vec<f64> {
    let upper = &book.centroids()[book.centroids().len() / 2..];
    let worst =
        |unit: f64| upper.iter().map(|c| ((c / unit).round() * unit / c - 1.0).abs()).fold(0.0, f64::max);
    let units = (64_000..=127_000).map(|steps| upper.last().unwrap() / (f64::from(steps) / 1000.0));
    let unit = units.min_by(|a, b| worst(*a).total_cmp(&worst(*b))).unwrap();
    upper.iter().map(|c| (c / unit).round() * unit).collect()
}

/// `x`, which a code stands for, with the magnitude of `bytes` that is nearest; `scale` is that of the vector.
fn to_bytes(bytes: &[f64], scale: f64, x: f64) -> f64 {
    let distance = |c: &f64| (c * scale - x.abs()).abs();
    let nearest = bytes.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.unwrap() * scale * x.signum()
}

/// Each `piece` elements of `x` in 255 steps of their largest.
fn in_steps(x: &[f32], piece: usize) -> Vec<f32> {
    let of_piece = |x: &[f32]| {
        let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        x.iter().map(move |x| (x * (127.0 / most)).round_ties_even() * (most / 127.0)).collect::<Vec<_>>()
    };
    x.chunks(piece).flat_map(of_piece).collect()
}

/// Exact and decoded vectors of one head, and what is to be added to products with decoded ones: the mean.
fn kept(rule: Rule, keys: bool, vectors: &[Vec<f32>]) -> (Vec<[Vec<f64>; 2]>, Vec<f64>) {
    if let Some(codecs) = rule.at_once {
        let codec = codecs[usize::from(!keys)];
        let codec_bytes = codec.vec_bytes(HEAD_DIM).unwrap();
        let codec = codec.open(KvSide::Keys, HEAD_DIM).unwrap();
        let decoded = |x: &Vec<f32>| -> Vec<f64> {
            let (mut bytes, mut out) = (vec![0; codec_bytes], vec![0.0; HEAD_DIM]);
            codec.encode(x, &mut bytes);
            codec.decode(&bytes, &mut out);
            out.into_iter().map(f64::from).collect()
        };
        return (vectors.iter().map(|x| [decoded(x), decoded(x)]).collect(), vec![0.0; HEAD_DIM]);
    }
    let scale = if keys { rule.key_scale } else { rule.value_scale };
    let codec = Lloyd::new(HEAD_DIM, rule.bits, scale);
    let exact: Vec<Vec<f64>> =
        vectors.iter().map(|x| x.iter().map(|x| f16::from_f32(*x).to_f64()).collect()).collect();
    let mut mean = vec![0.0; HEAD_DIM];
    if keys && rule.centred {
        for (i, mean) in mean.iter_mut().enumerate() {
            *mean = exact[..PAGE].iter().map(|x| x[i]).sum::<f64>() / PAGE as f64;
        }
    }
    let bytes_of_codes = if rule.bytes { as_bytes(codec.codebook()) } else { Vec::new() };
    let decoded = |x: &Vec<f64>| -> Vec<f64> {
        let centred: Vec<f32> = x.iter().zip(&mean).map(|(x, mean)| (x - mean) as f32).collect();
        let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; HEAD_DIM]);
        codec.encode(&centred, &mut bytes);
        codec.decode(&bytes, &mut out);
        let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
        let value = |x: f64| if rule.bytes { to_bytes(&bytes_of_codes, scale, x) } else { x };
        out.iter().map(|x| value(f64::from(*x))).collect()
    };
    (exact.iter().map(|x| [x.clone(), decoded(x)]).collect(), mean)
}

impl Reference {
    /// `[rows, n_kv_heads * GROUP * HEAD_DIM]`.
    fn attend(&self, rule: Rule) -> Vec<Vec<f64>> {
        let mut out = vec![Vec::new(); self.q.len()];
        for head in 0..N_KV_HEADS {
            let at = head * HEAD_DIM..(head + 1) * HEAD_DIM;
            let side = |keys, x: &[Vec<f64>]| {
                let x: Vec<_> = x.iter().map(|x| rotated(rule, keys, &x[at.clone()])).collect();
                kept(rule, keys, &x)
            };
            let ((keys, mean), (values, _)) = (side(true, &self.k), side(false, &self.v));
            for (pos, out) in out.iter_mut().enumerate() {
                // The whole pages of positions up to this one, less those of the window, are read from their codes.
                let coded_pages = ((pos + 1) / PAGE).saturating_sub(rule.window_pages);
                let which = |p: usize| usize::from((rule.sink_pages..coded_pages).contains(&(p / PAGE)));
                for i in 0..GROUP {
                    let q = &self.q[pos][(head * GROUP + i) * HEAD_DIM..][..HEAD_DIM];
                    let q = rotated(rule, true, q);
                    // Kernels for cards round a query that meets codes: as a whole, or 16 elements at a time where it meets blocks.
                    let met = match rule.at_once {
                        _ if !rule.bytes => q.clone(),
                        None => in_steps(&q, HEAD_DIM),
                        Some([keys, _]) if keys.rotates() => in_steps(&q, 16),
                        Some(_) => q.clone(),
                    };
                    let dot = |q: &[f32], k: &[f64]| -> f64 {
                        k.iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum()
                    };
                    let score = |p: usize| match which(p) {
                        0 if rule.at_once.is_none() => dot(&q, &keys[p][0]),
                        _ => dot(&met, &keys[p][1]) + dot(&q, &mean),
                    };
                    let scores: Vec<f64> = (0..=pos).map(|p| (self.scale * score(p)).exp()).collect();
                    let total: f64 = scores.iter().sum();
                    let mut sum = vec![0.0_f64; HEAD_DIM];
                    for (p, score) in scores.iter().enumerate() {
                        sum.iter_mut()
                            .zip(&values[p][which(p)])
                            .for_each(|(sum, v)| *sum += score / total * v);
                    }
                    let mut sum: Vec<f32> = sum.iter().map(|x| *x as f32).collect();
                    if rule.rotates(false) {
                        Rotation::new(HEAD_DIM).unwrap().undo(&mut sum);
                    }
                    out.extend(sum.into_iter().map(f64::from));
                }
            }
        }
        out
    }
}

struct Attention {
    case: Case,
    x: Buf,
    y: Buf,
    attn_in: AttnIn,
}

fn codec(name: &str) -> &'static dyn KvCodec {
    kv_by_name(name).unwrap()
}

impl Attention {
    fn new(k: &str, v: &str, window: KvWindow) -> Self {
        let mut case = Case::new("windowed attention", windowed_limits(70, 1, 6));
        let (q_cols, kv_cols) = (N_KV_HEADS * GROUP * HEAD_DIM, N_KV_HEADS * HEAD_DIM);
        let (x, q, y) = (case.buf("x", DIM), case.buf("q", q_cols), case.buf("y", q_cols));
        let norm = case.norm(NormKind::Rms, DIM);
        // Keys stand far off the origin, so that their mean matters; queries are large, so that scores do.
        let mut linear = |rows, scale, centre| {
            let linear = case.linear(case::ty("f32"), rows, DIM, ActQuant::None);
            Linear { bias: Some(case.vector(rows, centre)), scale, ..linear }
        };
        let (wq, wk, wv) = (linear(q_cols, 2.0, 0.0), linear(kv_cols, 1.0, 1.5), linear(kv_cols, 1.0, 0.0));
        let kv = case.p.kv(KvDecl {
            n_kv_heads: N_KV_HEADS,
            head_dim: HEAD_DIM,
            k: codec(k),
            v: codec(v),
            window,
        });
        let attn_in = AttnIn { x, norm, wq, wk, wv, q_norm: None, k_norm: None, rope: None, kv, q };
        case.p.push("attn_in", attn_in.clone());
        case.p.push("attend", Attend { q, kv, scale: 0.125, out: y });
        Self { case, x, y, attn_in }
    }

    fn floats(&self, w: Weight) -> Vec<f64> {
        let bytes = &self.case.weights[w.0 as usize].bytes;
        bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    }

    fn reference(&self, inputs: &[f32]) -> Reference {
        let s = &self.attn_in;
        let weight = self.floats(s.norm.weight);
        let product = |linear: &Linear| {
            let (w, bias) = (self.floats(linear.w), self.floats(linear.bias.unwrap()));
            let of_row = |x: &[f32]| -> Vec<f64> {
                let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / DIM as f64;
                let factor = 1.0 / (square + f64::from(s.norm.eps)).sqrt();
                let n: Vec<f64> = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * factor * w).collect();
                let dots = w.chunks_exact(DIM).map(|w| w.iter().zip(&n).map(|(w, n)| w * n).sum::<f64>());
                dots.zip(&bias).map(|(dot, bias)| dot * f64::from(linear.scale) + bias).collect()
            };
            inputs.chunks_exact(DIM).map(of_row).collect()
        };
        Reference { q: product(&s.wq), k: product(&s.wk), v: product(&s.wv), scale: 0.125 }
    }
}

/// Root of the mean square of the differences, as a part of that of `b`.
fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let pairs = || a.iter().flatten().zip(b.iter().flatten());
    let square: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    (square / pairs().map(|(_, b)| b * b).sum::<f64>()).sqrt()
}

/// The distance of heads, less that share of them which are farthest.
fn distance_of_most(a: &[Vec<f64>], b: &[Vec<f64>], all_but: f64) -> f64 {
    let heads = |x: &[Vec<f64>]| -> Vec<Vec<f64>> {
        x.iter().flat_map(|row| row.chunks_exact(HEAD_DIM).map(<[f64]>::to_vec)).collect()
    };
    let mut pairs: Vec<_> = heads(a).into_iter().zip(heads(b)).collect();
    let of = |(a, b): &(Vec<f64>, Vec<f64>)| distance(std::slice::from_ref(a), std::slice::from_ref(b));
    pairs.sort_by(|a, b| of(a).total_cmp(&of(b)));
    pairs.truncate(((1.0 - all_but) * pairs.len() as f64) as usize);
    let (a, b): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    distance(&a, &b)
}

#[test]
fn attention_is_that_of_the_decoded_codes() {
    for (name, bits) in [("turboquant", 3), ("turboquant-4", 4)] {
        let rule = Rule { bits, ..RIGHT };
        let wrong = [
            ("no rotation", Rule { rotated: false, ..rule }),
            ("no mean", Rule { centred: false, ..rule }),
            ("the scale of values for keys", Rule { key_scale: ScaleRule::LeastSquares, ..rule }),
            ("the scale of keys for values", Rule { value_scale: ScaleRule::InnerProduct, ..rule }),
            ("no window", Rule { window_pages: 0, ..rule }),
            ("a page more in the window", Rule { window_pages: 2, ..rule }),
            ("the first page encoded", Rule { sink_pages: 0, ..rule }),
        ];
        attends_as([name; 2], rule, &wrong);
    }
}

#[test]
fn sinks_and_window_may_be_larger() {
    let rule = Rule { sink_pages: 2, window_pages: 2, ..RIGHT };
    let wrong = [
        ("one page of sinks", Rule { sink_pages: 1, ..rule }),
        ("a window of one page", Rule { window_pages: 1, ..rule }),
    ];
    attends_as(["turboquant"; 2], rule, &wrong);
    assert_eq!(KvWindow::default(), KvWindow { sink_pages: 1, newest_pages: 1 });
    assert_eq!(KvWindow::of_positions(65, 128), KvWindow { sink_pages: 2, newest_pages: 2 });
    let all = Rule { sink_pages: 6, ..RIGHT };
    attends_as(["turboquant"; 2], all, &[("codes", RIGHT)]);
}

/// What is no number, or too large for f16, is put right where it is kept and counted, and the rows behind it go on.
#[test]
fn hostile_vectors_are_repaired_and_counted() {
    for name in ["turboquant", "turboquant-4", "q8_0", "q4_0"] {
        for (bad, value_scale, repaired) in [
            // Keys and values of the rows, for each head.
            (f32::NAN, 1.0, 3 * 2 * N_KV_HEADS),
            (f32::INFINITY, 1.0, 3 * 2 * N_KV_HEADS),
            // The values of all rows but those of zeros.
            (0.0, 1e7, (200 - 3) * N_KV_HEADS),
        ] {
            let mut attention = Attention::new(name, name, KvWindow::default());
            let sterna::program::Stage::AttnIn(s) = &mut attention.case.p.stages[0].1 else { unreachable!() };
            s.wv.scale = value_scale;
            let mut inputs = attention.case.numbers.values(200 * DIM);
            // In the page that stays exact, in one that is encoded, and in the newest.
            for row in [20, 70, 190] {
                inputs[row * DIM..(row + 1) * DIM].fill(bad);
            }
            let pages = windowed_pages(1, 6);
            for mut backend in cpus(&[1, 2]).into_iter().chain(simt(1)).chain(wgpus()) {
                let device = format!("{name} of {bad} on {}", backend.device());
                let mut running = attention.case.on(&mut *backend);
                for start in (0..200).step_by(50) {
                    let inputs = vec![(attention.x, inputs[start * DIM..(start + 50) * DIM].to_vec())];
                    let rows = rows(0, start as u32..start as u32 + 50);
                    running.turn(&Turn { rows, stages: 0..2, inputs, read: vec![] }, &pages, &[]);
                    let y = running.read(attention.y, 50);
                    for (i, y) in y.chunks_exact(N_KV_HEADS * GROUP * HEAD_DIM).enumerate() {
                        let is_bad = [20, 70, 190].contains(&(start + i)) && bad != 0.0;
                        assert!(is_bad || y.iter().all(|y| y.is_finite()), "{device}: row {}", start + i);
                    }
                }
                // Of two full pages that are encoded, scales may be beyond f16 once more.
                let again = if bad == 0.0 && !name.starts_with('q') { 2 * 64 * N_KV_HEADS } else { 0 };
                let (Some(count), least) = (running.repaired(), repaired as u64) else {
                    assert_eq!(running.backend.name(), "wgpu");
                    continue;
                };
                assert!((least..=least + again as u64).contains(&count), "{device}: {count}, not {least}");
            }
        }
    }
}

#[test]
fn blocks_of_rotated_vectors_are_read_as_they_are() {
    for name in ["q8_0", "q4_0"] {
        let rule = Rule { at_once: Some([codec(name); 2]), ..RIGHT };
        attends_as([name; 2], rule, &[("no rotation", Rule { rotated: false, ..rule })]);
    }
}

#[test]
fn keys_and_values_may_be_kept_in_different_blocks_or_one_of_them_as_halves() {
    for names in [
        ["q8_0", "q4_0"],
        ["q4_0", "q8_0"],
        ["f16", "q8_0"],
        ["q8_0", "f16"],
        ["f16", "q4_0"],
        ["q4_0", "f16"],
    ] {
        let rule = Rule { at_once: Some(names.map(codec)), ..RIGHT };
        attends_as(names, rule, &[]);
    }
}

/// Attention with keys and values of such types is what the reference gives by `rule`, and far from what it gives by the
/// wrong ones.
fn attends_as([k, v]: [&str; 2], rule: Rule, wrong: &[(&str, Rule)]) {
    let cols = N_KV_HEADS * GROUP * HEAD_DIM;
    let window = KvWindow { sink_pages: rule.sink_pages, newest_pages: rule.window_pages };
    let mut attention = Attention::new(k, v, window);
    let inputs = attention.case.numbers.values(N_ROWS as usize * DIM);
    let reference = attention.reference(&inputs);
    let pages = windowed_pages(1, 6);
    let cards = [simt(1), simt(2)].into_iter().flatten();
    // wgpu takes one codec for both.
    let wgpus = wgpus().into_iter().filter(|_| k == v);
    let cpus = cpus(&[1, 3]).into_iter().chain(wgpus).map(|backend| (backend, rule));
    let wants = [rule, Rule { bytes: true, ..rule }].map(|rule| reference.attend(rule));
    for (mut backend, rule) in cpus.chain(cards.map(|card| (card, Rule { bytes: true, ..rule }))) {
        let device = backend.device();
        let on_wgpu = backend.name() == "wgpu";
        let want = &wants[usize::from(rule.bytes)];
        let mut running = attention.case.on(&mut *backend);
        let mut got = Vec::new();
        let mut start = 0;
        // Steps of a single row, of a part of a page, and of more than a page.
        for n in [70, 1, 1, 50, 70, 3, 1, 60].into_iter().cycle() {
            let end = N_ROWS.min(start + n);
            let inputs = inputs[start as usize * DIM..end as usize * DIM].to_vec();
            let inputs = vec![(attention.x, inputs)];
            let turn = Turn { rows: rows(0, start..end), stages: 0..2, inputs, read: vec![] };
            running.turn(&turn, &pages, &[]);
            let y = running.read(attention.y, (end - start) as usize);
            got.extend(y.chunks_exact(cols).map(|y| y.iter().map(|y| f64::from(*y)).collect::<Vec<_>>()));
            start = end;
            if start == N_ROWS {
                break;
            }
        }
        // f32 sums, and a few numbers that round to the other f16, or get the other code at a threshold.
        let error = distance(&got, want);
        // A block is encoded anew for every input that is a rounding away: where two scales fit it as well, or an element lies
        // on a border, all rows that see the vector move a little. So on a device whose products are not the CPU's to the bit
        // nine heads in ten are as near as ever, and all of them near.
        let all_but = if on_wgpu && rule.at_once.is_some() { 0.1 } else { 0.0 };
        let most = distance_of_most(&got, want, all_but);
        assert!(most < 2e-4 && error < 2e-3, "{k}, {v} on {device}: {most}, {error} of all");
        // What a wrong cache would give is far from that.
        for (what, rule) in wrong.iter().filter(|_| device.contains("1 thread")) {
            let error = distance(&got, &reference.attend(*rule));
            assert!(error > 1e-3, "{k}, {v}, {what}: {error}");
        }
    }
}

/// A sequence of any tokens: the model's text does not matter.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (seed * 131 + i * i * 7 + i * 13) % 500).collect()
}

fn engine(codec: &str, batch: usize, n_seqs: usize) -> Engine {
    let path = common::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let options = EngineOptions {
        backend: "cpu".into(),
        threads: Some(1),
        n_ctx: Some(384),
        batch,
        outputs: batch,
        n_seqs,
        cache_type_k: codec.into(),
        cache_type_v: codec.into(),
        ..EngineOptions::default()
    };
    Engine::open(path, &options).unwrap()
}

/// Logits after each of the tokens, as bits.
fn feed(session: &mut Session, tokens: &[u32]) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    let keep = |_, logits: &[f32]| -> Result<(), sterna::Error> {
        assert!(logits.iter().all(|x| x.is_finite()));
        all.push(logits.iter().map(|x| x.to_bits()).collect());
        Ok(())
    };
    session.feed_each(tokens, keep).unwrap();
    all
}

#[test]
fn a_prompt_in_pieces_is_its_tokens_one_by_one() {
    let prompt = tokens(1, 330);
    let one_by_one = feed(&mut engine("turboquant", 1, 1).session().unwrap(), &prompt);
    let exact = feed(&mut engine("f16", 1, 1).session().unwrap(), &prompt);
    let same = one_by_one.iter().zip(&exact).take_while(|(a, b)| a == b).count();
    assert!(same < 192, "pages are encoded: {same} positions are as with f16");
    for batch in [7, 63, 64, 65, 128, 192, 330] {
        let got = feed(&mut engine("turboquant", batch, 1).session().unwrap(), &prompt);
        for (pos, (got, want)) in got.iter().zip(&one_by_one).enumerate() {
            assert!(got == want, "batches of {batch}: position {pos}");
        }
    }
}

#[test]
fn a_cut_by_up_to_the_window_is_as_if_nothing_had_been() {
    for codec in ["f16", "turboquant"] {
        let engine = engine(codec, 80, 2);
        for n in [40, 64, 127, 128, 191, 192, 200, 255, 256, 257, 300] {
            for by in [1, 20, 63, 64] {
                let mut cut = engine.session().unwrap();
                feed(&mut cut, &tokens(2, n));
                let keep = n.saturating_sub(by);
                cut.cut_back(keep);
                let mut alone = engine.session().unwrap();
                feed(&mut alone, &tokens(2, keep));
                let tail = tokens(3, 70);
                assert!(feed(&mut cut, &tail) == feed(&mut alone, &tail), "{codec}: {n} cut by {by}");
            }
        }
    }
}

/// What was encoded stays so, and the rest is as good as ever.
#[test]
fn a_longer_cut_goes_on_from_the_codes() {
    let engine = engine("turboquant", 80, 2);
    let mut cut = engine.session().unwrap();
    feed(&mut cut, &tokens(4, 330));
    cut.cut_back(150);
    assert_eq!((cut.position(), cut.remaining()), (150, 234));
    let mut alone = engine.session().unwrap();
    feed(&mut alone, &tokens(4, 150));
    let tail = tokens(5, 100);
    let (cut, alone) = (feed(&mut cut, &tail), feed(&mut alone, &tail));
    let numbers = |logits: &[Vec<u32>]| -> Vec<Vec<f64>> {
        logits.iter().map(|row| row.iter().map(|x| f64::from(f32::from_bits(*x))).collect()).collect()
    };
    let distance = distance(&numbers(&cut), &numbers(&alone));
    assert!(distance > 0.0 && distance < 0.2, "{distance}");
}

#[test]
fn a_branch_is_a_session_of_its_own() {
    for codec in ["f16", "turboquant"] {
        let engine = engine(codec, 80, 3);
        for (n, at) in
            [(10, 10), (64, 64), (100, 70), (192, 191), (200, 200), (300, 300), (319, 255), (300, 240)]
        {
            let mut trunk = engine.session().unwrap();
            feed(&mut trunk, &tokens(6, n));
            let mut branch = trunk.branch(at).unwrap();
            assert_eq!(branch.tokens(), &trunk.tokens()[..at]);
            let (left, right) = (tokens(7, 30), tokens(8, 30));
            // In turn, so that one would see what the other writes.
            let mut got = [Vec::new(), Vec::new()];
            for i in (0..30).step_by(10) {
                got[0].extend(feed(&mut trunk, &left[i..i + 10]));
                got[1].extend(feed(&mut branch, &right[i..i + 10]));
            }
            trunk.cut_back(at.min(n) / 2);
            drop(trunk);
            got[1].extend(feed(&mut branch, &left));
            for (got, keep, tail) in [(&got[0], n, left.clone()), (&got[1], at, [right, left].concat())] {
                let mut alone = engine.session().unwrap();
                feed(&mut alone, &tokens(6, keep));
                assert!(*got == feed(&mut alone, &tail), "{codec}: {n} tokens, branch at {at}");
            }
        }
    }
}

#[test]
fn sessions_side_by_side_are_sessions_alone() {
    let together = engine("turboquant", 50, 3);
    let mut sessions: Vec<_> = (0..3).map(|_| together.session().unwrap()).collect();
    let mut got = vec![Vec::new(); 3];
    for start in (0..300).step_by(50) {
        for (i, session) in sessions.iter_mut().enumerate() {
            got[i].extend(feed(session, &tokens(i as u32, 300)[start..start + 50]));
        }
    }
    for (i, got) in got.iter().enumerate() {
        let want = feed(&mut engine("turboquant", 300, 1).session().unwrap(), &tokens(i as u32, 300));
        assert!(*got == want, "session {i}");
    }
}

#[test]
fn heads_that_cannot_be_rotated_are_refused() {
    let mut p = Program::new("odd", windowed_limits(1, 1, 1));
    let decl = KvDecl {
        n_kv_heads: 1,
        head_dim: 80,
        k: codec("turboquant"),
        v: codec("f16"),
        window: KvWindow::default(),
    };
    assert!(decl.k.vec_bytes(80).unwrap_err().to_string().contains("power of two"));
    p.kv(decl);
    let backend = sterna::backend::cpu::Cpu::new(1).unwrap();
    assert!(sterna::backend::Backend::plan(&backend, &p).is_err());
}

/// A backend without the kernels says so, and where to go, before anything is loaded.
#[cfg(feature = "simt")]
#[test]
fn a_backend_that_lacks_the_codec_names_the_way_out() {
    let path = common::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    for (k, v, what) in [
        ("f32", "q4_0", "(in one cache go f16, q8_0, q4_0)"),
        ("f16", "turboquant-4", "keys of f16 and values of turboquant-4"),
    ] {
        let options = EngineOptions {
            backend: "cuda-simt".into(),
            cache_type_k: k.into(),
            cache_type_v: v.into(),
            ..EngineOptions::default()
        };
        let err = Engine::open(&path, &options).unwrap_err().to_string();
        assert!(err.contains(what) && err.contains("--backend cpu"), "{err}");
    }
}
