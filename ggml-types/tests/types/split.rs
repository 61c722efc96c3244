//! The codec of keys in two groups, and the basis of a head that divides them.

use ggml_types::QuantError;
use ggml_types::turboquant::{Codebook, KeyBasis, KeyVariances, LogScale, Split};
use proptest::prelude::*;

use crate::normal::Normal;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

fn narrow(x: &[f64]) -> Vec<f32> {
    x.iter().map(|x| *x as f32).collect()
}

/// Pairs as in NeoX: `(i, i + dim / 2)`.
fn halves(dim: usize) -> Vec<[u16; 2]> {
    (0..dim / 2).map(|i| [i as u16, (i + dim / 2) as u16]).collect()
}

fn coded(codec: &Split, y: &[f32]) -> (Vec<u8>, Vec<f64>, bool) {
    let (mut bytes, mut out) = (vec![0xee; codec.bytes()], vec![0.0; codec.dim()]);
    let whole = codec.encode(y, &mut bytes);
    codec.decode(&bytes, &mut out);
    (bytes, wide(&out), whole)
}

/// Groups of 128 elements have the errors of codebooks for 128, and scores have no bias. Errors of scales of
/// 8 bits are far below both.
#[test]
fn groups_have_the_errors_of_their_bits() {
    const N: usize = 3000;
    let (dim, mut random) = (256, Normal(3));
    let codec = Split::new(dim);
    let (mut errors, mut biases) = ([0.0; 2], [0.0; 2]);
    for _ in 0..N {
        let (y, other) = (random.vector(dim), random.vector(dim));
        let (_, decoded, whole) = coded(&codec, &narrow(&y));
        assert!(whole);
        for group in 0..2 {
            let at = group * dim / 2..(group + 1) * dim / 2;
            let (y, c, other) = (&y[at.clone()], &decoded[at.clone()], &other[at]);
            // What the best scale leaves, which is 1.3 % less than a codebook's error with exact scales.
            errors[group] += 1.0 - dot(y, c).powi(2) / (dot(y, y) * dot(c, c));
            // A query with a product of about 0.9, relative to the lengths.
            let q: Vec<f64> = y.iter().zip(other).map(|(y, o)| 0.9 * y + 0.19f64.sqrt() * o).collect();
            biases[group] += (dot(&q, c) - dot(&q, y)) / dot(y, y);
        }
    }
    for (group, want) in [0.0092, 0.1145].into_iter().enumerate() {
        let (error, bias) = (errors[group] / N as f64, biases[group] / N as f64);
        assert!((error / want - 1.0).abs() < 0.02, "group {group}: {error}, want {want}");
        // The deviation of the mean of 3000 errors, with 2 bits, is 0.0003; least squares has 0.104.
        assert!(bias.abs() < 0.001, "group {group}: {bias}");
    }
}

#[test]
fn bytes_by_hand() {
    assert_eq!([32, 64, 128, 256].map(Split::bytes_of), [14, 26, 50, 98]);
    let codec = Split::new(32);
    let (mut y, mut bytes) = ([-0.01f32; 32], [0; 14]);
    (y[0], y[15], y[16], y[31]) = (4.0, 4.0, 8.0, 8.0);
    assert!(codec.encode(&y, &mut bytes));
    // The first group is of length sqrt(32): 4 / sqrt(32) is the largest code, and -0.01 is in the cell below
    // 0. Elements 0 and 8 share byte 2, elements 7 and 15 byte 9.
    assert_eq!((bytes[2], bytes[3], bytes[9]), (0x7f, 0x77, 0xf7));
    // Elements 0, 4, 8 and 12 of the second group share byte 10, and the last is in the high bits of byte 13.
    assert_eq!((bytes[10], bytes[11], bytes[13]), (0b01_01_01_11, 0b01_01_01_01, 0b11_01_01_01));
    // |y|^2 / <y, c> with c the largest centroid of 16 dimensions, over sqrt(16), in steps of 1/30.
    for (group, bits, of, one) in [(0, 4, 4.0, 91.0), (1, 2, 8.0, 151.0)] {
        let book = Codebook::new(16, bits);
        let (least, most) = (book.centroids()[book.centroids().len() / 2], *book.centroids().last().unwrap());
        let (square, product) = (2.0 * of * of + 14.0 * 1e-4, 2.0 * of * most + 14.0 * 0.01 * least);
        let want = (30.0 * (square / product / 4.0_f64).log2() + one).round();
        assert_eq!(f64::from(bytes[group]), want, "group {group}");
    }
}

#[test]
fn scales_are_powers_in_steps_of_a_thirtieth() {
    for group in 0..2 {
        let scale = LogScale::of_group(64, group);
        let one = scale.one();
        assert_eq!((scale.decode(0), scale.decode(one), scale.decode(one + 30)), (0.0, 8.0, 16.0));
        assert_eq!((scale.encode(0.0), scale.encode(f64::MIN_POSITIVE)), ((0, false), (0, false)));
        for code in 0..=255 {
            assert_eq!(scale.encode(f64::from(scale.decode(code))), (code, false));
        }
        let (least, most) = (f64::from(scale.decode(1)), f64::from(scale.decode(255)));
        assert_eq!([0.45, 0.55].map(|part| scale.encode(part * least).0), [0, 1]);
        assert_eq!((scale.encode(1.01 * most), scale.encode(1.02 * most)), ((255, false), (255, true)));
        assert_eq!(scale.encode(f64::INFINITY), (255, true));
    }
}

/// `f` and groups of 16 pairs, computed by hand.
#[test]
fn a_basis_is_what_its_definition_says() {
    let (dim, n) = (32, 16);
    // Keys are 256 times as strong in pair 3, queries 16 times in pair 5, and pairs 0 to 5 contribute at
    // least as much as any other. Pair 9 has no keys, and so the floor of them.
    let (mut keys, mut queries) = (vec![1.0; n], vec![1.0; n]);
    (keys[3], queries[5], keys[9]) = (256.0, 16.0, 0.0);
    let basis = KeyBasis::of(&KeyVariances { pairs: halves(dim), keys, queries }).unwrap();
    let first: Vec<u16> = (0..8).chain(16..24).collect();
    assert_eq!(basis.elements()[..16], first, "pairs of equal parts in their order");
    assert_eq!(basis.elements()[16..], [(8..16).collect::<Vec<_>>(), (24..32).collect()].concat());

    // With the floors 0.001 x 270 / 16 of keys and 0.001 x 31 / 16 of queries.
    let (of_keys, of_queries) = (0.001 * 270.0 / 16.0, 0.001 * 31.0 / 16.0);
    let vk = |pair: usize| -> f64 {
        [1.0, 256.0, 0.0][usize::from(pair == 3) + 2 * usize::from(pair == 9)] + of_keys
    };
    let vq = |pair: usize| -> f64 { (if pair == 5 { 16.0 } else { 1.0 }) + of_queries };
    // The root mean square of scaled keys: six of about 1, one of 16 and one of 4 give 1.8, nearest to 2.
    for pair in 0..n {
        let want = (8.0 * ((vq(pair) / vk(pair)).log2() / 4.0 - 1.0)).round();
        for element in [pair, pair + 16] {
            assert_eq!(f64::from(basis.exponents()[element]), want, "pair {pair}");
        }
    }
    assert_eq!([3, 5, 9].map(|i| basis.exponents()[i]), [-24, 0, 4]);
    let place = basis.elements().iter().position(|&element| element == 3).unwrap();
    assert_eq!((basis.key_factors()[place], basis.query_factors()[place]), (0.125, 8.0));

    assert_eq!(basis.first_group(), (0..dim).map(|i| i % 16 < 8).collect::<Vec<_>>());
    let same = KeyBasis::from_parts(basis.exponents().to_vec(), &basis.first_group()).unwrap();
    assert_eq!((same.elements(), same.key_factors()), (basis.elements(), basis.key_factors()));
    assert!(KeyBasis::from_parts(vec![0; 32], &[true; 32]).is_err());

    // Without anything to measure, nothing is scaled.
    let zeros = KeyVariances { pairs: halves(dim), keys: vec![0.0; n], queries: vec![0.0; n] };
    assert_eq!(KeyBasis::of(&zeros).unwrap().exponents(), [0; 32]);
}

#[test]
fn other_head_lengths_are_refused_by_name() {
    for dim in [0, 8, 16, 80, 96, 512] {
        let refused = KeyBasis::plain(dim).unwrap_err();
        assert!(matches!(refused, QuantError::Shape { .. }));
        assert!(refused.to_string().contains(&format!("from 32 to 256, found {dim}")), "{refused}");
    }
}

/// Keys whose first pairs are stronger than the last, and queries the other way round, by less.
fn skewed(dim: usize) -> KeyVariances {
    let part = |i: usize| i as f64 / (dim / 2) as f64;
    let of = |octaves: f64| (0..dim / 2).map(|i| (octaves * part(i)).exp2()).collect();
    KeyVariances { pairs: halves(dim), keys: of(-8.0), queries: of(5.0) }
}

/// Variance of errors of scores, relative to the variance of scores, of keys and queries with these
/// variances.
fn score_error(variances: &KeyVariances, basis: &KeyBasis) -> f64 {
    let dim = basis.dim();
    let (codec, mut random) = (Split::new(dim), Normal(11));
    let mut draw = |of: &[f64]| -> Vec<f32> {
        (0..dim).map(|i| (random.next() * of[i % (dim / 2)].sqrt()) as f32).collect()
    };
    let (mut error, mut whole) = (0.0, 0.0);
    for _ in 0..1000 {
        let (k, q) = (draw(&variances.keys), draw(&variances.queries));
        let (mut y, mut p) = (k.clone(), q.clone());
        basis.apply_to_key(&mut y);
        basis.apply_to_query(&mut p);
        let want = dot(&wide(&q), &wide(&k));
        error += (dot(&wide(&p), &coded(&codec, &y).1) - want).powi(2);
        whole += want * want;
    }
    error / whole
}

/// Groups by contribution and balanced shapes both pay off, and without them the error is what it should not
/// be.
#[test]
fn a_basis_reduces_the_errors_of_scores() {
    for dim in [32, 64, 128] {
        let variances = skewed(dim);
        let right = score_error(&variances, &KeyBasis::of(&variances).unwrap());
        let basis = KeyBasis::of(&variances).unwrap();
        let reversed: Vec<bool> = basis.first_group().into_iter().map(|first| !first).collect();
        let reversed = KeyBasis::from_parts(basis.exponents().to_vec(), &reversed).unwrap();
        let unscaled = KeyBasis::from_parts(vec![0; dim], &basis.first_group()).unwrap();
        let [reversed, unscaled] = [reversed, unscaled].map(|basis| score_error(&variances, &basis));
        // A quarter of the scores is from the second group, whose errors are a seventh of that.
        assert!(right < 0.05, "{dim}: {right}");
        assert!(reversed > 2.0 * right, "{dim}, the other order: {reversed}, {right}");
        assert!(unscaled > 1.2 * right, "{dim}, not balanced: {unscaled}, {right}");
    }
}

/// Keys and queries of a head have the same shape in its basis, and keys a size of about 1.
#[test]
fn keys_and_queries_have_the_same_shape() {
    let variances = skewed(128);
    let basis = KeyBasis::of(&variances).unwrap();
    let mean = |v: &[f64]| 0.001 * v.iter().sum::<f64>() / v.len() as f64;
    let (of_keys, of_queries) = (mean(&variances.keys), mean(&variances.queries));
    let scaled = |place: usize| {
        let pair = usize::from(basis.elements()[place]) % 64;
        let k = (variances.keys[pair] + of_keys) * f64::from(basis.key_factors()[place]).powi(2);
        let q = (variances.queries[pair] + of_queries) * f64::from(basis.query_factors()[place]).powi(2);
        (k, q)
    };
    let ratios: Vec<f64> = (0..128).map(|place| scaled(place).0 / scaled(place).1).collect();
    // Half a step of 1/8 in the exponent of f, in f^4.
    let (least, most) = ratios.iter().fold((f64::MAX, 0.0_f64), |(a, b), r| (a.min(*r), b.max(*r)));
    assert!(most / least <= 2f64.sqrt() + 1e-9, "{least} to {most}");
    let square = (0..64).map(|place| scaled(place).0).sum::<f64>() / 64.0;
    assert!((0.45..=2.2).contains(&square), "{square}");
    let weakest = |places: std::ops::Range<usize>| {
        places.map(scaled).map(|(k, q)| k * q).fold((f64::MAX, 0.0_f64), |(a, b), x| (a.min(x), b.max(x)))
    };
    assert!(weakest(0..64).0 >= weakest(64..128).1);
}

#[test]
fn hostile_keys_do_no_harm() {
    let codec = Split::new(64);
    for (bad, clamped) in [(0.0, false), (f32::NAN, true), (f32::INFINITY, true), (f32::NEG_INFINITY, true)] {
        let mut y = [0.5; 64];
        (y[9], y[60]) = (bad, bad);
        let (_, decoded, whole) = coded(&codec, &y);
        assert_eq!(whole, !clamped, "{bad}");
        assert!(decoded.iter().all(|x| x.is_finite() && x.abs() < 2.0), "{bad}");
    }
    let (bytes, decoded, whole) = coded(&codec, &[0.0; 64]);
    assert!(whole && bytes[..2] == [0, 0] && decoded.iter().all(|x| *x == 0.0));
    // One huge element is counted and keeps its sign, and the other group does not notice it.
    let mut y = [0.5; 64];
    y[3] = -65_504.0;
    let (bytes, decoded, whole) = coded(&codec, &y);
    assert!(!whole && bytes[0] == 255 && decoded[3] < -32.0, "{decoded:?}");
    y[3] = 0.5;
    assert_eq!(coded(&codec, &y).1[32..], decoded[32..]);
}

proptest! {
    /// Scores are the same in any basis.
    #[test]
    fn products_are_kept(power in 5u32..9, seed in any::<u64>(), spread in 0.0..12.0_f64) {
        let (dim, mut random) = (1 << power, Normal(seed));
        let mut variances = || (0..dim / 2).map(|_| (spread * random.next()).exp2()).collect::<Vec<f64>>();
        let (keys, queries) = (variances(), variances());
        let pairs = (0..dim as u16 / 2).map(|i| [2 * i, 2 * i + 1]).collect();
        let basis = KeyBasis::of(&KeyVariances { pairs, keys, queries }).unwrap();
        let mut random = Normal(!seed);
        let [k, q] = [0, 1].map(|_| narrow(&random.vector(dim)));
        let (mut y, mut p) = (k.clone(), q.clone());
        basis.apply_to_key(&mut y);
        basis.apply_to_query(&mut p);
        // Seven roundings of sums of products whose factors cancel.
        let size: f64 = dot(&wide(&y), &wide(&y)).sqrt() * dot(&wide(&p), &wide(&p)).sqrt();
        prop_assert!((dot(&wide(&p), &wide(&y)) - dot(&wide(&q), &wide(&k))).abs() <= 1e-6 * size);
        basis.undo_key(&mut y);
        let most = k.iter().zip(basis.exponents()).map(|(k, e)| k.abs() * (f32::from(*e) / 8.0).exp2());
        let most = most.fold(0.0, f32::max);
        for ((y, k), e) in y.iter().zip(&k).zip(basis.exponents()) {
            prop_assert!((y - k).abs() <= 1e-5 * most / (f32::from(*e) / 8.0).exp2());
        }
    }

    #[test]
    fn any_bits_decode_to_finite_numbers(bytes in prop::collection::vec(any::<u8>(), 50)) {
        let (codec, mut out) = (Split::new(128), [0.0; 128]);
        codec.decode(&bytes, &mut out);
        prop_assert!(out.iter().all(|x| x.is_finite()));
        // Codes and scales come apart into what is decoded.
        let mut codes = [0; 128];
        let scales = codec.split(&bytes, &mut codes);
        for (i, code) in codes.iter().enumerate() {
            let group = i / 64;
            let centroid = codec.codebook(group).centroids()[usize::from(*code)];
            let want = f64::from(codec.scale(group).decode(scales[group])) * centroid;
            prop_assert_eq!(out[i], want as f32);
        }
    }
}
