//! Attention over pages of keys with means and two groups, for keys that RoPE rotates and for hostile ones.

use ggml_types::turboquant::{KeyBasis, KeyMean, KeyVariances, Split};
use half::f16;

use crate::normal::Normal;

const DIM: usize = 64;
const PAGE: usize = 64;
const PAGES: usize = 16;
const QUERIES: usize = 16;
/// Deviation of the scores.
const PEAKY: f64 = 2.0;

/// The vector that is subtracted from the keys of a page before they are encoded.
#[derive(Clone, Copy)]
enum Mean {
    OfPage,
    OfFirstPage,
    Zero,
}

/// Keys of consecutive positions, queries of the last one, and the statistics of both.
struct Head {
    keys: Vec<Vec<f64>>,
    queries: Vec<Vec<f64>>,
    variances: KeyVariances,
}

/// Rotates a vector as NeoX's RoPE does, with the base 10000.
fn rope(x: &mut [f64], position: usize) {
    for i in 0..DIM / 2 {
        let angle = position as f64 * 10_000_f64.powf(-2.0 * i as f64 / DIM as f64);
        let (a, b) = (x[i], x[i + DIM / 2]);
        x[i] = a * angle.cos() - b * angle.sin();
        x[i + DIM / 2] = a * angle.sin() + b * angle.cos();
    }
}

/// A head whose keys have an offset of twice their deviation before RoPE, so that the offset drifts with the
/// position. The sizes of keys and queries differ by pair, over `octaves`, in the opposite direction if
/// `is_other`.
fn head(octaves: f64, is_other: bool) -> Head {
    let mut random = Normal(5);
    let size = |i: usize, octaves: f64| {
        let part = (i % (DIM / 2)) as f64 / (DIM / 2) as f64;
        (octaves * if is_other { 1.0 - part } else { part }).exp2()
    };
    let offset = random.vector(DIM);
    let mut keys: Vec<Vec<f64>> = (0..PAGE * PAGES)
        .map(|position| {
            let part = |i: usize| size(i, -octaves) * (2.0 * offset[i] + random.next());
            let mut key = (0..DIM).map(part).collect::<Vec<_>>();
            rope(&mut key, position);
            key
        })
        .collect();
    for key in keys.iter_mut().flatten() {
        *key = f16::from_f64(*key).to_f64();
    }
    let mut queries: Vec<Vec<f64>> =
        (0..QUERIES).map(|_| (0..DIM).map(|i| size(i, octaves / 2.0) * random.next()).collect()).collect();
    for query in &mut queries {
        rope(query, PAGE * PAGES - 1);
        let scores: Vec<f64> = keys.iter().map(|key| dot(query, key)).collect();
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        let variance = scores.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / scores.len() as f64;
        query.iter_mut().for_each(|q| *q *= PEAKY / variance.sqrt());
    }
    let of_pair = |vectors: &[Vec<f64>], i: usize| {
        let square = |x: &Vec<f64>| (x[i].powi(2) + x[i + DIM / 2].powi(2)) / 2.0;
        vectors.iter().map(square).sum::<f64>() / vectors.len() as f64
    };
    let centred: Vec<Vec<f64>> = keys.chunks(PAGE).flat_map(less_mean).collect();
    let of = |vectors: &[Vec<f64>]| (0..DIM / 2).map(|i| of_pair(vectors, i)).collect();
    let pairs = (0..DIM / 2).map(|i| [i as u16, (i + DIM / 2) as u16]).collect();
    let variances = KeyVariances { pairs, keys: of(&centred), queries: of(&queries) };
    Head { keys, queries, variances }
}

fn less_mean(page: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mean = |i: usize| page.iter().map(|key| key[i]).sum::<f64>() / page.len() as f64;
    let mean: Vec<f64> = (0..DIM).map(mean).collect();
    page.iter().map(|key| key.iter().zip(&mean).map(|(k, m)| k - m).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn log_softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let log_sum = most + scores.iter().map(|s| (s - most).exp()).sum::<f64>().ln();
    scores.iter().map(|s| s - log_sum).collect()
}

/// Scores of a query over the pages of keys as they are stored, and whether nothing was clamped.
fn scores(head: &Head, basis: &KeyBasis, mean: Mean) -> (Vec<Vec<f64>>, bool) {
    let (codec, means) = (Split::new(DIM), KeyMean::new(DIM));
    let mut transformed: Vec<Vec<f16>> = Vec::new();
    for key in &head.keys {
        let mut key: Vec<f32> = key.iter().map(|k| *k as f32).collect();
        basis.apply_to_key(&mut key);
        transformed.push(key.into_iter().map(f16::from_f32).collect());
    }
    let (mut stored, mut whole) = (Vec::new(), true);
    let mut decoded_mean = vec![0.0; DIM];
    for (i, page) in transformed.chunks(PAGE).enumerate() {
        if matches!(mean, Mean::OfPage) || (matches!(mean, Mean::OfFirstPage) && i == 0) {
            let mut bytes = vec![0; means.bytes()];
            means.encode((0..DIM).map(|i| page.iter().map(move |key| key[i])), &mut bytes);
            means.decode(&bytes, &mut decoded_mean);
        }
        for key in page {
            let rest: Vec<f32> = key.iter().zip(&decoded_mean).map(|(k, m)| k.to_f32() - m).collect();
            let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; DIM]);
            whole &= codec.encode(&rest, &mut bytes);
            codec.decode(&bytes, &mut out);
            let key = out.iter().zip(&decoded_mean).map(|(x, m)| f64::from(*x) + f64::from(*m));
            stored.push(key.collect::<Vec<f64>>());
        }
    }
    let scores = |query: &Vec<f64>| {
        let mut query: Vec<f32> = query.iter().map(|q| *q as f32).collect();
        basis.apply_to_query(&mut query);
        let query: Vec<f64> = query.into_iter().map(f64::from).collect();
        stored.iter().map(|key| dot(&query, key)).collect()
    };
    (head.queries.iter().map(scores).collect(), whole)
}

/// Mean KL of attention over stored keys from attention over exact ones.
fn kl(head: &Head, basis: &KeyBasis, mean: Mean) -> f64 {
    let (stored, whole) = scores(head, basis, mean);
    assert!(whole);
    let of = |(query, stored): (&Vec<f64>, &Vec<f64>)| -> f64 {
        let exact: Vec<f64> = head.keys.iter().map(|key| dot(query, key)).collect();
        let (p, other) = (log_softmax(&exact), log_softmax(stored));
        p.iter().zip(&other).map(|(p, o)| p.exp() * (p - o)).sum()
    };
    head.queries.iter().zip(&stored).map(of).sum::<f64>() / QUERIES as f64
}

/// Offsets that drift with RoPE need the mean of each page, and the groups need the right statistics, in the
/// right order.
#[test]
fn keys_that_drift_with_rope() {
    let head = head(4.0, false);
    let basis = KeyBasis::of(&head.variances).unwrap();
    let right = kl(&head, &basis, Mean::OfPage);
    let reversed: Vec<bool> = basis.first_group().into_iter().map(|first| !first).collect();
    let reversed = KeyBasis::from_parts(basis.exponents().to_vec(), &reversed).unwrap();
    let unscaled = KeyBasis::from_parts(vec![0; DIM], &basis.first_group()).unwrap();
    let wrong = [
        ("no mean", kl(&head, &basis, Mean::Zero)),
        ("the mean of the first page", kl(&head, &basis, Mean::OfFirstPage)),
        ("the other order", kl(&head, &reversed, Mean::OfPage)),
        ("not balanced", kl(&head, &unscaled, Mean::OfPage)),
    ];
    println!("{right} {wrong:?}");
    assert!(right < 0.03, "{right}");
    for (what, kl) in wrong {
        assert!(kl > 1.5 * right, "{what}: {kl}, {right}");
    }
}

/// Statistics of another model lose quality, as much as one expects, and nothing else.
#[test]
fn keys_with_the_statistics_of_another_model() {
    let [head, other] = [false, true].map(|is_other| head(4.0, is_other));
    let [own, foreign] = [&head, &other].map(|of| KeyBasis::of(&of.variances).unwrap());
    let [own, foreign] = [own, foreign].map(|basis| kl(&head, &basis, Mean::OfPage));
    println!("{own} {foreign}");
    assert!(foreign > 2.0 * own && foreign < 1.0, "{foreign}, {own}");
}

/// Keys of a page that are all equal are their mean: the scores of the page are equal too, and as exact as a
/// mean in steps of 1/127.
#[test]
fn pages_of_equal_keys() {
    let mut head = head(4.0, false);
    for page in head.keys.chunks_mut(PAGE) {
        let first = page[0].clone();
        page.fill(first);
    }
    let basis = KeyBasis::of(&head.variances).unwrap();
    let (stored, whole) = scores(&head, &basis, Mean::OfPage);
    assert!(whole);
    for (query, stored) in head.queries.iter().zip(&stored) {
        for (i, scores) in stored.chunks(PAGE).enumerate() {
            let want = dot(query, &head.keys[i * PAGE]);
            assert!(scores.iter().all(|s| s.to_bits() == scores[0].to_bits()));
            assert!((scores[0] - want).abs() < 0.05 * PEAKY, "{} {want}", scores[0]);
        }
    }
}

/// One huge element changes the mean of its page and the codes of its own key. Other pages keep their bits,
/// and all scores are finite.
#[test]
fn one_huge_element_stays_in_its_page() {
    let mut head = head(4.0, false);
    let basis = KeyBasis::of(&head.variances).unwrap();
    let (before, _) = scores(&head, &basis, Mean::OfPage);
    head.keys[5 * PAGE + 7][3] = 30_000.0;
    let (after, _) = scores(&head, &basis, Mean::OfPage);
    for (before, after) in before.iter().zip(&after) {
        assert!(after.iter().all(|s| s.is_finite()));
        let pages = before.chunks(PAGE).zip(after.chunks(PAGE)).enumerate();
        let changed: Vec<usize> = pages.filter(|(_, (a, b))| a != b).map(|(page, _)| page).collect();
        assert_eq!(changed, [5]);
    }
}
