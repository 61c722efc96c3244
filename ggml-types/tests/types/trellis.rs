//! Trellis codes: the search against an exhaustive one, errors on Gaussian numbers, and the codecs of keys
//! and values.

use ggml_types::turboquant::{
    TRELLIS_2, TRELLIS_3, TRELLIS_4, Trellis, TrellisSplit, TrellisVector, plain_search,
};
use ggml_types::{KvForm, KvSide, kv_by_name, kv_on};
use half::f16;
use proptest::prelude::*;

use crate::normal::Normal;

const ALL: [&Trellis; 3] = [&TRELLIS_2, &TRELLIS_3, &TRELLIS_4];

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Values of codes by the definition: the window of element `i` are the codes `i`, `i - 1` and so on, modulo
/// the length.
fn values(trellis: &Trellis, codes: &[u8]) -> Vec<f64> {
    let (n, depth) = (codes.len(), trellis.window() / trellis.bits());
    let code = |i: usize, back: u32| usize::from(codes[(i + n - back as usize) % n]);
    let window = |i: usize| (0..depth).map(|back| code(i, back) << (trellis.bits() * back)).sum::<usize>();
    (0..n).map(|i| f64::from(trellis.values()[window(i)]) / f64::from(Trellis::UNIT)).collect()
}

fn searched(trellis: &Trellis, x: &[i16]) -> Vec<u8> {
    let mut codes = vec![0xee; x.len()];
    trellis.search(x, &mut codes);
    codes
}

/// Squared error of codes for elements in steps of 1 / 64.
fn error(trellis: &Trellis, x: &[i16], codes: &[u8]) -> f64 {
    let x = x.iter().map(|x| f64::from(*x) / 64.0);
    x.zip(values(trellis, codes)).map(|(x, v)| (x - v).powi(2)).sum()
}

fn steps(x: &[f64]) -> Vec<i16> {
    let most = f64::from(Trellis::MOST);
    x.iter().map(|x| (64.0 * x).round().clamp(-most, most) as i16).collect()
}

/// The least error of all codes whose last ones are `end`, by trying each.
fn exhaustive(trellis: &Trellis, x: &[i16], end: &[u8]) -> f64 {
    let (n, bits) = (x.len() - end.len(), trellis.bits() as usize);
    let code = |all: usize, i: usize| (all >> (bits * i)) as u8 & ((1 << bits) - 1);
    let codes = |all: usize| (0..n).map(|i| code(all, i)).chain(end.iter().copied()).collect::<Vec<_>>();
    (0..1_usize << (bits * n)).map(|all| error(trellis, x, &codes(all))).fold(f64::MAX, f64::min)
}

/// On vectors short enough to try all codes: for the state at the seam, the codes are the best.
#[test]
fn the_search_finds_the_best_codes() {
    let mut random = Normal(5);
    for (trellis, n) in [(&TRELLIS_2, 6), (&TRELLIS_3, 4), (&TRELLIS_4, 2)] {
        let context = (trellis.window() / trellis.bits()) as usize - 1;
        for _ in 0..40 {
            let x = steps(&random.vector(n));
            let codes = searched(trellis, &x);
            let (got, end) = (error(trellis, &x, &codes), &codes[n - context..]);
            assert!((got - exhaustive(trellis, &x, end)).abs() < 1e-9, "{} bits: {x:?}", trellis.bits());
        }
    }
}

/// Squared error per element of Gaussian vectors, after `spoil` has changed their codes.
fn gaussian_error(trellis: &Trellis, n: usize, elems: usize, spoil: impl Fn(&[i16], &mut Vec<u8>)) -> f64 {
    let (mut random, count) = (Normal(7), elems / n);
    let mut sum = 0.0;
    for _ in 0..count {
        let y = random.vector(n);
        let x = steps(&y);
        let mut codes = searched(trellis, &x);
        spoil(&x, &mut codes);
        sum += y.iter().zip(values(trellis, &codes)).map(|(y, v)| (y - v).powi(2)).sum::<f64>();
    }
    sum / (count * n) as f64
}

/// The figures are those of an independent implementation in C, with floats, over 640000 numbers.
#[test]
fn gaussian_numbers_have_the_errors_of_the_trellises() {
    for (trellis, want) in ALL.into_iter().zip([[0.0834, 0.0836], [0.0231, 0.0231], [0.0059, 0.0059]]) {
        for (n, want) in [128, 64].into_iter().zip(want) {
            let got = gaussian_error(trellis, n, 60_000, |_, _| ());
            assert!((got / want - 1.0).abs() < 0.02, "{} bits, {n}: {got}, want {want}", trellis.bits());
        }
        // Mistakes that this must detect: the last code is wrong, and with it the context at the seam; each
        // code is the best after the codes before it, without a search.
        let right = gaussian_error(trellis, 32, 4000, |_, _| ());
        let mask = (1 << trellis.bits()) - 1;
        let lost = gaussian_error(trellis, 32, 4000, |_, codes| codes[31] ^= mask);
        let greedy = gaussian_error(trellis, 32, 4000, |x, codes| {
            for i in 0..codes.len() {
                let of_code = |code: u8| {
                    let mut codes = codes.clone();
                    codes[i] = code;
                    (f64::from(x[i]) / 64.0 - values(trellis, &codes)[i]).powi(2)
                };
                codes[i] = (0..=mask).min_by(|a, b| of_code(*a).total_cmp(&of_code(*b))).unwrap();
            }
        });
        assert!(lost > 1.1 * right && greedy > 1.04 * right, "{right}, {lost}, {greedy}");
    }
}

/// Each value is nearly the mean of the numbers that are stored as it, the condition for the least error.
#[test]
fn the_tables_are_fixed_points() {
    for trellis in ALL {
        let (mut random, mut sums) = (Normal(9), vec![(0.0, 0.0); trellis.values().len()]);
        for _ in 0..400 {
            let y = random.vector(128);
            let values = values(trellis, &searched(trellis, &steps(&y)));
            for (y, v) in y.iter().zip(values) {
                // Values occur twice, which does not matter here.
                let i = trellis.values().iter().position(|t| f64::from(*t) == 32.0 * v).unwrap();
                sums[i] = (sums[i].0 + 1.0, sums[i].1 + y - v);
            }
        }
        let off =
            sums.iter().map(|(n, sum)| if *n > 0.0 { sum * sum / n } else { 0.0 }).sum::<f64>() / 51_200.0;
        // The part of the error that other values would save: a tenth of a percent of the variance at most.
        assert!(off < 0.001 * if trellis.bits() == 4 { 0.5 } else { 1.0 }, "{} bits: {off}", trellis.bits());
    }
}

fn keys(y: &[f32]) -> (Vec<u8>, Vec<f64>, usize) {
    let codec = TrellisSplit::new(y.len());
    let (mut bytes, mut out) = (vec![0xee; codec.bytes()], vec![0.0; y.len()]);
    let clamped = codec.encode(y, &mut bytes, plain_search);
    codec.decode(&bytes, &mut out);
    (bytes, out.into_iter().map(f64::from).collect(), clamped)
}

fn narrow(x: &[f64]) -> Vec<f32> {
    x.iter().map(|x| *x as f32).collect()
}

/// Groups of keys have the errors of their trellises and no bias, at any size of the elements.
#[test]
fn keys_have_the_errors_of_their_groups_and_no_bias() {
    const N: usize = 1500;
    let (dim, mut random) = (128, Normal(3));
    for size in [1.0, 0.3, 7.0] {
        let (mut errors, mut biases) = ([0.0; 2], [0.0; 2]);
        for _ in 0..N {
            let y: Vec<f64> = random.vector(dim).iter().map(|y| size * y).collect();
            let (_, decoded, clamped) = keys(&narrow(&y));
            assert_eq!(clamped, 0);
            for group in 0..2 {
                let at = group * dim / 2..(group + 1) * dim / 2;
                let (y, c) = (&y[at.clone()], &decoded[at]);
                errors[group] += 1.0 - dot(y, c).powi(2) / (dot(y, y) * dot(c, c));
                biases[group] += dot(y, c) / dot(y, y) - 1.0;
            }
        }
        for (group, want) in [0.00556, 0.0811].into_iter().enumerate() {
            let (error, bias) = (errors[group] / N as f64, biases[group] / N as f64);
            assert!((error / want - 1.0).abs() < 0.02, "group {group}: {error}, want {want}");
            // Half a step of a scale is 1.2 %, and its rounding has a mean of 0.
            assert!(bias.abs() < 0.001, "group {group}: {bias}");
        }
    }
}

/// Values have the smallest squared error for their codes.
#[test]
fn values_have_the_scale_of_least_squares() {
    let (codec, mut random) = (TrellisVector::new(64), Normal(4));
    let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; 64]);
    let (mut error, mut whole) = (0.0, 0.0);
    for _ in 0..1000 {
        let y = random.vector(64);
        assert_eq!(codec.encode(&narrow(&y), &mut bytes, plain_search), 0);
        codec.decode(&bytes, &mut out);
        let c: Vec<f64> = out.iter().map(|x| f64::from(*x)).collect();
        let along = dot(&y, &c) / dot(&c, &c);
        // The rounding of elements to 1 / 1024 of the largest, and of the scale to f16.
        assert!((along - 1.0).abs() < 2e-3, "{along}");
        error += y.iter().zip(&c).map(|(y, c)| (y - c).powi(2)).sum::<f64>();
        whole += dot(&y, &y);
    }
    assert!((error / whole / 0.0221 - 1.0).abs() < 0.02, "{}", error / whole);
}

#[test]
fn hostile_vectors_do_no_harm() {
    for (bad, clamped) in [(0.0, 0), (f32::NAN, 1), (f32::INFINITY, 1), (f32::NEG_INFINITY, 1)] {
        let mut y = [0.5; 64];
        (y[9], y[60]) = (bad, bad);
        let (_, decoded, got) = keys(&y);
        assert_eq!(got, clamped, "{bad}");
        assert!(decoded.iter().all(|x| x.is_finite() && x.abs() < 2.0), "{bad}");
        let codec = TrellisVector::new(64);
        let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![f32::NAN; 64]);
        assert_eq!(codec.encode(&y, &mut bytes, plain_search), clamped);
        codec.decode(&bytes, &mut out);
        assert!(out.iter().all(|x| x.abs() < 2.0), "{bad}");
    }
    let (bytes, decoded, clamped) = keys(&[0.0; 64]);
    assert!(clamped == 0 && bytes[..2] == [0, 0] && decoded.iter().all(|x| *x == 0.0));
    // One huge element is counted and keeps its sign, and the other group does not notice it.
    let mut y = [0.5; 64];
    y[3] = -65_504.0;
    let (bytes, decoded, clamped) = keys(&y);
    assert!(clamped == 1 && bytes[0] == 255 && decoded[3] < -32.0, "{decoded:?}");
    y[3] = 0.5;
    assert_eq!(keys(&y).1[32..], decoded[32..]);
    // The smallest f32, and the largest.
    for size in [f32::from_bits(1), f32::MAX] {
        assert!(keys(&[size; 32]).1.iter().all(|x| x.is_finite()));
    }
}

#[test]
fn the_type_has_a_codec_per_side() {
    let codec = kv_by_name("turboquant-t").unwrap();
    let values = kv_on(KvSide::Values, codec);
    assert_eq!((codec.name(), values.name()), ("turboquant-t", "turboquant-t"));
    assert_eq!((codec.form(), values.form()), (KvForm::Trellis42, KvForm::Trellis3));
    assert_eq!(
        (kv_on(KvSide::Keys, values).form(), kv_on(KvSide::Keys, codec).form()),
        (codec.form(), codec.form())
    );
    let turboquant = kv_by_name("turboquant").unwrap();
    for dim in [32, 64, 128, 256] {
        assert_eq!(codec.vec_bytes(dim), turboquant.vec_bytes(dim));
        let of_values = kv_on(KvSide::Values, turboquant).vec_bytes(dim);
        assert_eq!(values.vec_bytes(dim), of_values);
    }
    assert!(values.open(KvSide::Keys, 64).unwrap_err().to_string().contains("for values only"));
    assert!(codec.open(KvSide::Values, 64).unwrap_err().to_string().contains("for keys only"));
    assert!(
        [16, 96, 512].iter().all(|dim| codec.vec_bytes(*dim).is_err() && values.vec_bytes(*dim).is_err())
    );
}

proptest! {
    /// Any bytes decode, and codes and scales come apart into what is decoded.
    #[test]
    fn any_bytes_decode_to_their_windows(bytes in prop::collection::vec(any::<u8>(), 50)) {
        let (codec, mut out, mut codes) = (TrellisSplit::new(128), [0.0; 128], [0; 128]);
        codec.decode(&bytes, &mut out);
        let scales = codec.split(&bytes, &mut codes);
        for group in 0..2 {
            let scale = f64::from(TrellisSplit::scale(group).decode(scales[group]));
            let values = values(TrellisSplit::TRELLISES[group], &codes[group * 64..][..64]);
            for (got, v) in out[group * 64..].iter().zip(values) {
                prop_assert!((f64::from(*got) - scale * v).abs() <= 1e-6 * scale * v.abs());
            }
        }
        let codec = TrellisVector::new(128);
        codec.decode(&bytes, &mut out);
        let scale: f16 = codec.split(&bytes, &mut codes);
        if scale.is_finite() {
            let want = values(TrellisVector::TRELLIS, &codes);
            prop_assert!(out.iter().copied().eq(want.into_iter().map(|v| (scale.to_f64() * v) as f32)));
        }
    }

    /// Vectors are encoded one by one as together.
    #[test]
    fn vectors_are_encoded_independently(seed in any::<u64>(), n in 1_usize..40) {
        let y = narrow(&Normal(seed).vector(n * 32));
        let codec = TrellisSplit::new(32);
        let mut together = vec![0; n * codec.bytes()];
        codec.encode(&y, &mut together, plain_search);
        for (y, bytes) in y.chunks_exact(32).zip(together.chunks_exact(codec.bytes())) {
            prop_assert_eq!(&keys(y).0, bytes);
        }
    }
}
