//! Attention over windowed and rotated KV caches, and an f64 reference built on the codecs' own definition.

use ggml_types::turboquant::{
    Codebook, KeyBasis, Lloyd, Rotation, ScaleRule, Split, TrellisSplit, TrellisVector, plain_search,
};
use ggml_types::{KvCodec, KvSide, kv_by_name, kv_on};
use half::f16;
use sterna::backend::Backend;
use sterna::program::{
    ActQuant, Attend, AttnIn, Buf, KvDecl, KvWindow, Linear, NormKind, PAGE, Stage, Weight,
};

use super::{Case, StepCase, rows, ty, windowed_limits, windowed_pages};

pub const DIM: usize = 96;

/// Head configuration of an attention.
#[derive(Clone, Copy)]
pub struct Heads {
    pub n_kv_heads: usize,
    /// Query heads per KV head.
    pub group: usize,
    pub head_dim: usize,
    pub value_scale: f32,
}

/// Two KV heads with two query heads each.
pub const TWO_OF_TWO: Heads = Heads { n_kv_heads: 2, group: 2, head_dim: 64, value_scale: 1.0 };

impl Heads {
    /// Elements of all query heads.
    pub fn cols(self) -> usize {
        self.n_kv_heads * self.group * self.head_dim
    }
}

/// Rules of the reference for a cache, correct or deliberately wrong.
#[derive(Clone, Copy)]
pub struct Rule {
    pub bits: u32,
    pub key_scale: ScaleRule,
    pub value_scale: ScaleRule,
    pub centre: Centre,
    pub rotated: bool,
    /// Pages before its own that a row reads exactly.
    pub window_pages: usize,
    /// Pages from the first one on that every row reads exactly.
    pub sink_pages: usize,
    /// Maximum number of positions that a row attends to, its own included, with sliding window attention.
    pub sliding: Option<u32>,
    /// Positions after its own that a row attends to. If not 0, all rows run in one step.
    pub ahead: u32,
    /// Bases of the KV heads, if keys are stored in two groups.
    pub bases: Option<&'static [KeyBasis]>,
    /// True if the codes of keys, in two groups, and of values are those of trellises.
    pub trellis: [bool; 2],
    /// Codecs of keys and of values, if there is no window.
    pub at_once: Option<[&'static dyn KvCodec; 2]>,
    /// Rounding of key codes, and of the queries multiplied with them, to bytes, as in the CUDA kernels;
    /// values are rounded to bytes or, for tensor cores, to halves.
    pub rounding: Option<Rounded>,
}

pub const RIGHT: Rule = Rule {
    bits: 3,
    key_scale: ScaleRule::InnerProduct,
    value_scale: ScaleRule::LeastSquares,
    centre: Centre::OwnPage,
    rotated: true,
    window_pages: 1,
    sink_pages: 1,
    sliding: None,
    ahead: 0,
    bases: None,
    trellis: [false; 2],
    at_once: None,
    rounding: None,
};

/// The vector that is subtracted from keys before they are encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Centre {
    Nothing,
    /// The mean of the keys of the first page.
    FirstPage,
    /// The mean of the keys of the same page.
    OwnPage,
    /// The same without rounding to int8.
    OwnPageInFull,
}

/// Rounding of decoded values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rounded {
    Bytes,
    Halves,
}

impl Rounded {
    /// Rounding in the CUDA kernels' attention for this head size.
    pub fn on_cards(head_dim: usize) -> Self {
        if [64, 128, 256].contains(&head_dim) { Self::Halves } else { Self::Bytes }
    }
}

pub struct Reference {
    heads: Heads,
    /// `[rows, n_kv_heads * group, head_dim]`.
    q: Vec<Vec<f64>>,
    /// `[rows, n_kv_heads, head_dim]`.
    k: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
    scale: f64,
}

impl Rule {
    fn rotates(&self, keys: bool) -> bool {
        self.rotated && self.at_once.is_none_or(|codecs| codecs[usize::from(!keys)].rotates())
    }
}

/// Vectors of a head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Queries,
    Keys,
    Values,
}

/// A vector of a KV head as the cache transforms it.
fn rotated(rule: Rule, side: Side, head: usize, x: &[f64]) -> Vec<f32> {
    let mut x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
    match (side, rule.bases) {
        (Side::Queries, Some(bases)) => bases[head].apply_to_query(&mut x),
        (Side::Keys, Some(bases)) => bases[head].apply_to_key(&mut x),
        _ if rule.rotates(side != Side::Values) => Rotation::new(x.len()).unwrap().apply(&mut x),
        _ => {}
    }
    x
}

/// Magnitudes of a codebook as integers up to 127 in a unit that is chosen as in `src/backend/cuda/kv.rs`.
fn as_bytes(book: &Codebook) -> Vec<f64> {
    let upper = &book.centroids()[book.centroids().len() / 2..];
    let worst =
        |unit: f64| upper.iter().map(|c| ((c / unit).round() * unit / c - 1.0).abs()).fold(0.0, f64::max);
    let units = (64_000..=127_000).map(|steps| upper.last().unwrap() / (f64::from(steps) / 1000.0));
    let unit = units.min_by(|a, b| worst(*a).total_cmp(&worst(*b))).unwrap();
    upper.iter().map(|c| (c / unit).round() * unit).collect()
}

/// Rounds a decoded `x` to the nearest magnitude in `bytes`; `scale` is the scale of the vector.
fn to_bytes(bytes: &[f64], scale: f64, x: f64) -> f64 {
    let distance = |c: &f64| (c * scale - x.abs()).abs();
    let nearest = bytes.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
    nearest.unwrap() * scale * x.signum()
}

/// Rounds a decoded `x`, relative to `scale`, to the nearest half.
fn to_half(scale: f64, x: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { f16::from_f64(x / scale).to_f64() * scale }
}

/// Quantises each `group` elements of `x` to 255 steps of its largest.
fn quantise(x: &[f32], group: usize) -> Vec<f32> {
    let of_group = |x: &[f32]| {
        let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        x.iter().map(move |x| (x * (127.0 / most)).round_ties_even() * (most / 127.0)).collect::<Vec<_>>()
    };
    x.chunks(group).flat_map(of_group).collect()
}

/// The mean of some keys, rounded to f16 times integers up to 127.
fn mean_of(keys: &[Vec<f64>], in_full: bool) -> Vec<f64> {
    let n = keys.len() as f64;
    let mean: Vec<f64> = (0..keys[0].len()).map(|i| keys.iter().map(|key| key[i]).sum::<f64>() / n).collect();
    let most = mean.iter().map(|m| m.abs()).fold(0.0, f64::max);
    let scale = f16::from_f32((most / 127.0) as f32).to_f64();
    if in_full || scale == 0.0 {
        return mean.iter().map(|m| if in_full { *m } else { 0.0 }).collect();
    }
    mean.iter().map(|m| scale * (m / scale).round().clamp(-127.0, 127.0)).collect()
}

/// Vectors of one side of a head.
struct Stored {
    /// Each vector exactly, and as decoded from its codes without the mean.
    vectors: Vec<[Vec<f64>; 2]>,
    /// The mean of each page, which is added to products with decoded vectors.
    means: Vec<Vec<f64>>,
}

/// True if two decoded vectors differ by more than float rounding.
fn is_apart(a: &[f64], b: &[f64]) -> bool {
    let size = a.iter().map(|x| x.abs()).fold(0.0, f64::max);
    a.iter().zip(b).any(|(a, b)| (a - b).abs() > 1e-3 * size)
}

fn stored(rule: Rule, keys: bool, vectors: &[Vec<f32>]) -> Stored {
    stored_around(rule, keys, vectors, &[])
}

/// The same with these means of pages, if there are any.
fn stored_around(rule: Rule, keys: bool, vectors: &[Vec<f32>], means: &[Vec<f64>]) -> Stored {
    let head_dim = vectors[0].len();
    let n_pages = vectors.len().div_ceil(PAGE);
    if let Some(codecs) = rule.at_once {
        let codec = codecs[usize::from(!keys)];
        let codec_bytes = codec.vec_bytes(head_dim).unwrap();
        let codec = codec.open(KvSide::Keys, head_dim).unwrap();
        let decoded = |x: &Vec<f32>| -> Vec<f64> {
            let (mut bytes, mut out) = (vec![0; codec_bytes], vec![0.0; head_dim]);
            codec.encode(x, &mut bytes);
            codec.decode(&bytes, &mut out);
            out.into_iter().map(f64::from).collect()
        };
        let vectors = vectors.iter().map(|x| [decoded(x), decoded(x)]).collect();
        return Stored { vectors, means: vec![vec![0.0; head_dim]; n_pages] };
    }
    let scale = if keys { rule.key_scale } else { rule.value_scale };
    let codec = Lloyd::new(head_dim, rule.bits, scale);
    let split = rule.bases.map(|_| Split::new(head_dim));
    let exact: Vec<Vec<f64>> =
        vectors.iter().map(|x| x.iter().map(|x| f16::from_f32(*x).to_f64()).collect()).collect();
    let mean = |page: &[Vec<f64>]| match rule.centre {
        _ if !keys => vec![0.0; head_dim],
        Centre::Nothing => vec![0.0; head_dim],
        Centre::FirstPage => mean_of(&exact[..PAGE], false),
        Centre::OwnPage => mean_of(page, false),
        Centre::OwnPageInFull => mean_of(page, true),
    };
    let means = if means.is_empty() { exact.chunks(PAGE).map(mean).collect() } else { means.to_vec() };
    let bytes_of_codes = rule.rounding.map(|_| as_bytes(codec.codebook()));
    let of_groups = |split: &Split| [0, 1].map(|group| as_bytes(split.codebook(group)));
    let bytes_of_groups = split.as_ref().filter(|_| rule.rounding.is_some()).map(of_groups);
    let decoded = |(i, x): (usize, &Vec<f64>)| -> Vec<f64> {
        let centred: Vec<f32> = x.iter().zip(&means[i / PAGE]).map(|(x, mean)| (x - mean) as f32).collect();
        if rule.trellis[usize::from(!keys)] {
            let (mut bytes, mut out) = (vec![0; Split::bytes_of(head_dim)], vec![0.0; head_dim]);
            if keys {
                let codec = TrellisSplit::new(head_dim);
                codec.encode(&centred, &mut bytes, plain_search);
                codec.decode(&bytes, &mut out);
            } else {
                let codec = TrellisVector::new(head_dim);
                codec.encode(&centred, &mut bytes, plain_search);
                codec.decode(&bytes, &mut out);
            }
            return out.into_iter().map(f64::from).collect();
        }
        if let (Some(split), true) = (&split, keys) {
            let (mut bytes, mut out) = (vec![0; split.bytes()], vec![0.0; head_dim]);
            split.encode(&centred, &mut bytes);
            split.decode(&bytes, &mut out);
            let mut out: Vec<f64> = out.into_iter().map(f64::from).collect();
            for (group, out) in out.chunks_mut(head_dim / 2).enumerate() {
                let Some(codes) = &bytes_of_groups else { break };
                let scale = f64::from(split.scale(group).decode(bytes[group]));
                out.iter_mut().for_each(|x| *x = to_bytes(&codes[group], scale, *x));
            }
            return out;
        }
        let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; head_dim]);
        codec.encode(&centred, &mut bytes);
        codec.decode(&bytes, &mut out);
        let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
        let value = |x: f64| match &bytes_of_codes {
            None => x,
            Some(_) if !keys && rule.rounding == Some(Rounded::Halves) => to_half(scale, x),
            Some(bytes) => to_bytes(bytes, scale, x),
        };
        out.iter().map(|x| value(f64::from(*x))).collect()
    };
    let vectors = exact.iter().enumerate().map(|(i, x)| [x.clone(), decoded((i, x))]).collect();
    Stored { vectors, means }
}

/// A change of one element of a transformed key or value, as large as the rounding of float sums.
#[derive(Clone, Copy)]
struct Nudge {
    keys: bool,
    row: usize,
    elem: usize,
    /// Relative to the largest element.
    by: f32,
}

impl Nudge {
    fn apply(&self, x: &mut [f32]) {
        let most = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        x[self.elem] += self.by * most;
    }
}

/// Size of a nudge: sums of a few hundred products in any order, and their transforms, are this close to each
/// other.
const NUDGE: f32 = 1e-6;

impl Reference {
    /// `[rows, n_kv_heads * group * head_dim]`.
    pub fn attend(&self, rule: Rule) -> Vec<Vec<f64>> {
        let of_heads: Vec<_> =
            (0..self.heads.n_kv_heads).map(|head| self.attend_head(rule, head, &[])).collect();
        (0..self.q.len()).map(|row| of_heads.iter().flat_map(|head| head[row].clone()).collect()).collect()
    }

    /// The keys or values of a head as the cache transforms them, `[rows, head_dim]`.
    fn transformed(&self, rule: Rule, keys: bool, head: usize, nudges: &[Nudge]) -> Vec<Vec<f32>> {
        let (side, x) = if keys { (Side::Keys, &self.k) } else { (Side::Values, &self.v) };
        let at = head * self.heads.head_dim..(head + 1) * self.heads.head_dim;
        let mut x: Vec<_> = x.iter().map(|x| rotated(rule, side, head, &x[at.clone()])).collect();
        nudges.iter().filter(|nudge| nudge.keys == keys).for_each(|nudge| nudge.apply(&mut x[nudge.row]));
        x
    }

    /// Nudges of a head's vectors, of which each gives one of them other codes.
    fn nudges(&self, rule: Rule, head: usize) -> Vec<Nudge> {
        let mut found = Vec::new();
        for keys in [true, false] {
            let x = self.transformed(rule, keys, head, &[]);
            let plain = stored(rule, keys, &x);
            // Each element of all vectors at once: a vector has its own codes.
            for (elem, by) in (0..self.heads.head_dim).flat_map(|elem| [(elem, NUDGE), (elem, -NUDGE)]) {
                let nudge = Nudge { keys, row: 0, elem, by };
                let mut nudged = x.clone();
                nudged.iter_mut().for_each(|x| nudge.apply(x));
                // In other means, the nudges of all vectors would add up.
                let nudged = stored_around(rule, keys, &nudged, &plain.means);
                let pairs = plain.vectors.iter().zip(&nudged.vectors).enumerate();
                let other = pairs.filter(|(_, (a, b))| is_apart(&a[1], &b[1]));
                found.extend(other.map(|(row, _)| Nudge { row, ..nudge }));
            }
        }
        found
    }

    /// The result for those codes, among all that rounding may give, that are the nearest to `got`; and the
    /// number of vectors whose codes it takes.
    fn nearest(&self, rule: Rule, got: &[Vec<f64>]) -> (Vec<Vec<f64>>, usize) {
        let Heads { n_kv_heads, group, head_dim, .. } = self.heads;
        let (mut out, mut n) = (vec![Vec::new(); self.q.len()], 0);
        for head in 0..n_kv_heads {
            let at = head * group * head_dim..(head + 1) * group * head_dim;
            let got: Vec<_> = got.iter().map(|row| row[at.clone()].to_vec()).collect();
            let (mut taken, mut best) = (Vec::new(), self.attend_head(rule, head, &[]));
            if distance(&got, &best) > MOST {
                for nudge in self.nudges(rule, head) {
                    let with: Vec<_> = taken.iter().copied().chain([nudge]).collect();
                    let other = self.attend_head(rule, head, &with);
                    if distance(&got, &other) < distance(&got, &best) {
                        (taken, best) = (with, other);
                    }
                }
            }
            n += taken.len();
            out.iter_mut().zip(best).for_each(|(out, row)| out.extend(row));
        }
        (out, n)
    }

    /// The vectors of one KV head and its queries, which are nudged: `[rows, group * head_dim]`.
    fn attend_head(&self, rule: Rule, head: usize, nudges: &[Nudge]) -> Vec<Vec<f64>> {
        let Heads { group, head_dim, .. } = self.heads;
        let mut out = vec![Vec::new(); self.q.len()];
        let of_side = |keys| stored(rule, keys, &self.transformed(rule, keys, head, nudges));
        let (keys, values) = (of_side(true), of_side(false));
        for (pos, out) in out.iter_mut().enumerate() {
            // Complete pages of the positions up to this one are read from their codes, except those in
            // the window.
            let coded_pages = ((pos + 1) / PAGE).saturating_sub(rule.window_pages);
            let which = |p: usize| usize::from((rule.sink_pages..coded_pages).contains(&(p / PAGE)));
            for i in 0..group {
                let q = &self.q[pos][(head * group + i) * head_dim..][..head_dim];
                let q = rotated(rule, Side::Queries, head, q);
                // The CUDA kernels quantise a query that is multiplied with codes: as a whole, or in runs
                // of 16 elements for block codecs.
                let coded_q = match rule.at_once {
                    _ if rule.rounding.is_none() => q.clone(),
                    None => quantise(&q, head_dim),
                    Some([keys, _]) if keys.rotates() => quantise(&q, 16),
                    Some(_) => q.clone(),
                };
                let dot =
                    |q: &[f32], k: &[f64]| -> f64 { k.iter().zip(q).map(|(k, q)| k * f64::from(*q)).sum() };
                let score = |p: usize| match which(p) {
                    0 if rule.at_once.is_none() => dot(&q, &keys.vectors[p][0]),
                    _ => dot(&coded_q, &keys.vectors[p][1]) + dot(&q, &keys.means[p / PAGE]),
                };
                let first = rule.sliding.map_or(0, |n| (pos + 1).saturating_sub(n as usize));
                let last = pos.saturating_add(rule.ahead as usize).min(self.q.len() - 1);
                let seen = || first..=last;
                let scores: Vec<f64> = seen().map(|p| (self.scale * score(p)).exp()).collect();
                let total: f64 = scores.iter().sum();
                let mut sum = vec![0.0_f64; head_dim];
                for (p, score) in seen().zip(&scores) {
                    sum.iter_mut()
                        .zip(&values.vectors[p][which(p)])
                        .for_each(|(sum, v)| *sum += score / total * v);
                }
                let mut sum: Vec<f32> = sum.iter().map(|x| *x as f32).collect();
                if rule.rotates(false) {
                    Rotation::new(head_dim).unwrap().undo(&mut sum);
                }
                out.extend(sum.into_iter().map(f64::from));
            }
        }
        out
    }
}

/// Pages of a cache that keeps a sliding window of up to 200 positions and the 70 rows of a step.
const RING: usize = 5;

pub struct Attention {
    pub case: Case,
    pub x: Buf,
    pub y: Buf,
    attn_in: AttnIn,
    heads: Heads,
}

pub fn codec(name: &str) -> &'static dyn KvCodec {
    kv_by_name(name).unwrap()
}

impl Attention {
    pub fn new(heads: Heads, k: &str, v: &str, window: KvWindow) -> Self {
        let Heads { n_kv_heads, head_dim, value_scale, .. } = heads;
        let mut case = Case::new("windowed attention", windowed_limits(70, 1, 6));
        let (q_cols, kv_cols) = (heads.cols(), n_kv_heads * head_dim);
        let (x, q, y) = (case.buf("x", DIM), case.buf("q", q_cols), case.buf("y", q_cols));
        let norm = case.norm(NormKind::Rms, DIM);
        // Keys are far from the origin, so that their mean matters; queries are large, so that scores matter.
        let mut linear = |rows, scale, centre, of_bias: f32| {
            let linear = case.linear(ty("f32"), rows, DIM, ActQuant::None);
            let bias: Vec<f32> = (0..rows).map(|_| centre + of_bias * case.numbers.value()).collect();
            Linear { bias: Some(case.weight_of(ty("f32"), 1, rows, &bias)), scale, ..linear }
        };
        let (wq, wk) = (linear(q_cols, 2.0, 0.0, 0.1), linear(kv_cols, 1.0, 1.5, 0.1));
        let wv = linear(kv_cols, value_scale, 0.0, 0.1 * value_scale);
        let kv = case.p.kv(KvDecl {
            n_kv_heads,
            head_dim,
            k: codec(k),
            v: kv_on(KvSide::Values, codec(v)),
            basis: None,
            window,
            sliding: None,
            values_are_keys: false,
        });
        let attn_in = AttnIn::of(x, norm, [wq, wk, wv], kv, q);
        case.p.push("attn_in", attn_in.clone());
        case.p.push("attend", Attend::causal(q, kv, 0.125, y));
        Self { case, x, y, attn_in, heads }
    }

    /// Makes all keys zero.
    pub fn zero_keys(&mut self) {
        let Stage::AttnIn(s) = &mut self.case.p.stages[0].1 else { unreachable!("the first stage") };
        let wk = s.wk.as_mut().expect("a stage with keys");
        wk.scale = 0.0;
        self.attn_in.wk = Some(wk.clone());
        let bias = wk.bias.expect("each layer has one");
        let bytes = &mut self.case.weights[bias.0 as usize].bytes;
        *bytes = vec![0; bytes.len()].into();
    }

    /// Applies the window and look-ahead of a rule to attention.
    fn see(&mut self, rule: Rule) {
        let Stage::Attend(s) = &mut self.case.p.stages[1].1 else { unreachable!("the second stage attends") };
        (s.window, s.ahead) = (rule.sliding, rule.ahead);
    }

    /// Makes the cache keep only the window, in `pages` pages, or all positions if `pages` is 0.
    fn keep(&mut self, pages: usize) {
        let p = &mut self.case.p;
        p.keep_windows(pages);
        if pages == 0 {
            p.kvs[0].sliding = None;
        }
    }

    fn floats(&self, w: Weight) -> Vec<f64> {
        let bytes = &self.case.weights[w.0 as usize].bytes;
        bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
    }

    pub fn reference(&self, inputs: &[f32]) -> Reference {
        let s = &self.attn_in;
        let norm = s.norm.as_ref().expect("a norm");
        let weight = self.floats(norm.weight);
        let product = |linear: &Linear| {
            let (w, bias) = (self.floats(linear.w), self.floats(linear.bias.unwrap()));
            let of_row = |x: &[f32]| -> Vec<f64> {
                let square = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / DIM as f64;
                let factor = 1.0 / (square + f64::from(norm.eps)).sqrt();
                let n: Vec<f64> = x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * factor * w).collect();
                let dots = w.chunks_exact(DIM).map(|w| w.iter().zip(&n).map(|(w, n)| w * n).sum::<f64>());
                dots.zip(&bias).map(|(dot, bias)| dot * f64::from(linear.scale) + bias).collect()
            };
            inputs.chunks_exact(DIM).map(of_row).collect()
        };
        let [k, v] = [&s.wk, &s.wv].map(|layer| product(layer.as_ref().expect("a layer")));
        Reference { heads: self.heads, q: product(&s.wq), k, v, scale: 0.125 }
    }
}

/// Largest distance of a right result.
const MOST: f64 = 2e-4;

/// Root mean square of the differences, relative to that of `b`.
pub fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let pairs = || a.iter().flatten().zip(b.iter().flatten());
    let square: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    (square / pairs().map(|(_, b)| b * b).sum::<f64>()).sqrt()
}

/// Distance without the given share of the farthest heads.
fn distance_of_most(a: &[Vec<f64>], b: &[Vec<f64>], head_dim: usize, all_but: f64) -> f64 {
    let heads = |x: &[Vec<f64>]| -> Vec<Vec<f64>> {
        x.iter().flat_map(|row| row.chunks_exact(head_dim).map(<[f64]>::to_vec)).collect()
    };
    let mut pairs: Vec<_> = heads(a).into_iter().zip(heads(b)).collect();
    let of = |(a, b): &(Vec<f64>, Vec<f64>)| distance(std::slice::from_ref(a), std::slice::from_ref(b));
    pairs.sort_by(|a, b| of(a).total_cmp(&of(b)));
    pairs.truncate(((1.0 - all_but) * pairs.len() as f64) as usize);
    let (a, b): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    distance(&a, &b)
}

/// Checks on each backend that attention with keys and values of these types matches the reference under
/// `rule`, and is far from the reference under the wrong rules.
pub fn attends_as(
    heads: Heads,
    [k, v]: [&str; 2],
    rule: Rule,
    wrong: &[(&str, Rule)],
    n_rows: u32,
    backends: Vec<Box<dyn Backend>>,
) {
    let window = KvWindow { sink_pages: rule.sink_pages, newest_pages: rule.window_pages };
    attended_as(Attention::new(heads, k, v, window), [k, v], rule, wrong, n_rows, backends);
}

/// The same for an attention whose window is that of the rule.
pub fn attended_as(
    mut attention: Attention,
    [k, v]: [&str; 2],
    rule: Rule,
    mut wrong: &[(&str, Rule)],
    n_rows: u32,
    backends: Vec<Box<dyn Backend>>,
) {
    let heads = attention.heads;
    attention.see(rule);
    attention.case.p.kvs[0].basis = rule.bases.map(|bases| bases.to_vec().into());
    let inputs = attention.case.numbers.values(n_rows as usize * DIM);
    let reference = attention.reference(&inputs);
    let on_cards = Rule { rounding: Some(Rounded::on_cards(heads.head_dim)), ..rule };
    let rules = [rule, on_cards];
    let wants = rules.map(|rule| reference.attend(rule));
    // A cache that keeps a sliding window gets fewer pages than positions, and reuses them.
    let rings: &[usize] = if rule.sliding.is_some() && rule.ahead == 0 { &[0, RING] } else { &[0] };
    for mut backend in backends {
        for ring in rings {
            attention.keep(*ring);
            let device = backend.device();
            let on_wgpu = backend.name() == "wgpu";
            let which = usize::from(backend.name().starts_with("cuda"));
            let mut pages = windowed_pages(1, 6);
            let mut running = attention.case.on(&mut *backend);
            let mut got = Vec::new();
            let mut start = 0;
            // Steps of a single row, of part of a page, and of more than a page.
            for n in [70, 1, 1, 50, 70, 3, 1, 60].into_iter().cycle() {
                let end = n_rows.min(start + n);
                let inputs = inputs[start as usize * DIM..end as usize * DIM].to_vec();
                let inputs = vec![(attention.x, inputs)];
                let step = StepCase { rows: rows(0, start..end), stages: 0..2, inputs, read: vec![] };
                if *ring > 0 {
                    let first = rule.sliding.map_or(0, |n| (start + 1).saturating_sub(n)) as usize / PAGE;
                    let of = |i: usize| (i >= first).then_some((i % ring) as u32);
                    *pages.sliding_mut(0) = (0..=(end as usize - 1) / PAGE).map(of).collect();
                }
                running.run_step(&step, &pages, &[]);
                let y = running.read(attention.y, (end - start) as usize);
                got.extend(
                    y.chunks_exact(heads.cols()).map(|y| y.iter().map(|y| f64::from(*y)).collect::<Vec<_>>()),
                );
                start = end;
                if start == n_rows {
                    break;
                }
            }
            // Where the products of the device have other last bits than f64, a vector may get other codes:
            // an element at a border, or a block that two scales fit equally well. All rows that attend to it
            // move, by more than the bound. So the result is compared with that of the nearest codes that
            // rounding may give; its bound is for f32 sums, and for values that round to the other f16.
            let is_near = on_wgpu || distance(&got, &wants[which]) < MOST;
            let nearest = (!is_near).then(|| reference.nearest(rules[which], &got));
            let (want, flipped) = nearest.as_ref().map_or((&wants[which], 0), |(want, n)| (want, *n));
            let error = distance(&got, want);
            // wgpu's products differ more often, so that nine heads in ten must be as close as ever, and all
            // of them close.
            let all_but = if on_wgpu && rule.at_once.is_some() { 0.1 } else { 0.0 };
            let most = distance_of_most(&got, want, heads.head_dim, all_but);
            let Heads { n_kv_heads, group, head_dim, value_scale } = heads;
            let what = format!(
                "{n_kv_heads} x {group} heads of {head_dim}, values x {value_scale}, {k}, {v} on {device}, a \
                 ring of {ring} pages"
            );
            assert!(
                most < MOST && error < 2e-3,
                "{what}: {most}, {error} of all, {flipped} codes taken over"
            );
            if flipped > 0 {
                println!("{what}: {flipped} vectors with other codes, {}", distance(&got, &wants[which]));
            }
            // Codes near a border are rare.
            assert!(flipped <= 2 + n_rows as usize / 50, "{what}: {flipped} vectors with other codes");
            // The results of a wrong cache are far from that on every backend.
            for (what, rule) in std::mem::take(&mut wrong) {
                let error = distance(&got, &reference.attend(*rule));
                assert!(error > 1e-3, "{k}, {v}, {what}: {error}");
            }
        }
    }
}
