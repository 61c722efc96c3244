//! TurboQuant's codecs on random unit vectors, compared with the theoretical figures. All errors are sums
//! over a vector of 128 elements; `q` is a unit vector with `<q, x> = rho`.

use ggml_types::turboquant::{KeyMean, Lloyd, Planes, Prod, Projection, Qjl, Rotation, ScaleRule};
use half::f16;
use proptest::prelude::*;

use crate::normal::Normal;

const DIM: usize = 128;
const VECTORS: usize = 6000;

fn unit(random: &mut Normal) -> Vec<f64> {
    let x = random.vector(DIM);
    scaled(&x, 1.0 / dot(&x, &x).sqrt())
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn scaled(x: &[f64], by: f64) -> Vec<f64> {
    x.iter().map(|x| x * by).collect()
}

/// Errors of a codec on unit vectors.
#[derive(Debug, Default)]
struct Errors {
    /// `E |x' - x|^2`.
    decode: f64,
    /// `dim E (<q, x'> - <q, x>)^2` for a `q` orthogonal to `x`.
    at_0: f64,
    /// `E <q, x'> - <q, x>` for `<q, x> = 0.9`.
    bias_at_9: f64,
    /// `dim E (<q, x'> - <q, x>)^2` for the same `q`.
    at_9: f64,
}

fn errors(mut codec: impl FnMut(usize, &[f32], &mut [f32])) -> Errors {
    let mut random = Normal(7);
    let mut sums = Errors::default();
    let mut decoded = vec![0.0; DIM];
    for i in 0..VECTORS {
        let x = unit(&mut random);
        let other = unit(&mut random);
        let along = dot(&other, &x);
        let across: Vec<f64> = other.iter().zip(&x).map(|(o, x)| o - along * x).collect();
        let across = scaled(&across, 1.0 / dot(&across, &across).sqrt());
        let q: Vec<f64> = x.iter().zip(&across).map(|(x, a)| 0.9 * x + 0.19f64.sqrt() * a).collect();

        let x32: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        codec(i, &x32, &mut decoded);
        let d: Vec<f64> = decoded.iter().zip(&x).map(|(d, x)| f64::from(*d) - x).collect();
        sums.decode += dot(&d, &d);
        sums.at_0 += dot(&d, &across).powi(2) * DIM as f64;
        sums.bias_at_9 += dot(&d, &q);
        sums.at_9 += dot(&d, &q).powi(2) * DIM as f64;
    }
    let mean = |sum: f64| sum / VECTORS as f64;
    Errors {
        decode: mean(sums.decode),
        at_0: mean(sums.at_0),
        bias_at_9: mean(sums.bias_at_9),
        at_9: mean(sums.at_9),
    }
}

/// The errors of a codec on vectors that are rotated first.
fn rotated(encode: impl Fn(&[f32]) -> Vec<f32>) -> Errors {
    let rotation = Rotation::new(DIM).unwrap();
    errors(|_, x, out| {
        let mut y = x.to_vec();
        rotation.apply(&mut y);
        out.copy_from_slice(&encode(&y));
        rotation.undo(out);
    })
}

fn lloyd(bits: u32, rule: ScaleRule) -> Errors {
    let codec = Lloyd::new(DIM, bits, rule);
    rotated(|y| {
        let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; DIM]);
        assert!(codec.encode(y, &mut bytes));
        codec.decode(&bytes, &mut out);
        out
    })
}

fn prod(qjl: Qjl) -> Errors {
    let codec = Prod::new(DIM, qjl);
    rotated(|y| {
        let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; DIM]);
        assert!(codec.encode(y, &mut bytes));
        codec.decode(&bytes, &mut out);
        out
    })
}

#[track_caller]
fn near(have: f64, want: f64, share: f64) {
    assert!((have - want).abs() <= share * want.abs(), "have {have}, want {want} within {share}");
}

#[test]
fn three_bits_with_each_scale() {
    let norm = lloyd(3, ScaleRule::Norm);
    near(norm.decode, 0.0340, 0.01);
    near(norm.bias_at_9, -0.0305, 0.02);

    let inner = lloyd(3, ScaleRule::InnerProduct);
    near(inner.decode, 0.0347, 0.02);
    assert!(inner.bias_at_9.abs() <= 2e-4, "{inner:?}");
    // Variances over 6000 vectors have an accuracy of 2 %.
    assert!(inner.at_0 <= 0.036, "{inner:?}");
    near(inner.at_9, 0.0066, 0.06);

    let least = lloyd(3, ScaleRule::LeastSquares);
    near(least.decode, 0.0335, 0.01);
    near(least.bias_at_9, -0.0301, 0.02);
}

#[test]
fn four_bits() {
    let least = lloyd(4, ScaleRule::LeastSquares);
    near(least.decode, 0.0092, 0.01);
    near(least.at_0, 0.0091, 0.06);
}

#[test]
fn two_bits_and_the_signs_of_the_residual() {
    let srht = prod(Qjl::srht(DIM).unwrap());
    near(srht.decode, 0.0654, 0.05);
    near(srht.at_0, 0.0655, 0.05);
    assert!(srht.bias_at_9.abs() < 0.003, "{srht:?}");

    let gaussian = prod(Qjl::gaussian(DIM, 3));
    near(gaussian.decode, 0.1843, 0.05);
    near(gaussian.at_0, 0.1853, 0.05);
    assert!(gaussian.bias_at_9.abs() < 0.003, "{gaussian:?}");
}

/// Mistakes that the figures above must detect.
#[test]
fn negative_controls() {
    // Without the rotation a vector with one large element has a large error.
    let codec = Lloyd::new(DIM, 3, ScaleRule::LeastSquares);
    let mut spike = vec![0.01f32; DIM];
    spike[5] = 1.0;
    let error = |y: &[f32]| {
        let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; DIM]);
        codec.encode(y, &mut bytes);
        codec.decode(&bytes, &mut out);
        let parts = out.iter().zip(y).map(|(a, b)| f64::from(a - b).powi(2));
        parts.sum::<f64>() / y.iter().map(|y| f64::from(*y).powi(2)).sum::<f64>()
    };
    let plain = error(&spike);
    Rotation::new(DIM).unwrap().apply(&mut spike);
    assert!(plain > 0.3 && error(&spike) < 0.06, "{plain}, {}", error(&spike));

    // Without the signs, the error of two bits and its bias remain.
    let codec = Prod::new(DIM, Qjl::srht(DIM).unwrap());
    let dropped = rotated(|y| {
        let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; DIM]);
        codec.encode(y, &mut bytes);
        bytes[34..36].fill(0);
        codec.decode(&bytes, &mut out);
        out
    });
    near(dropped.decode, 0.1160, 0.01);
    near(dropped.bias_at_9, -0.104, 0.02);

    // Without sqrt(pi / 2) the correction is too small: the residual's share of the product keeps a bias of a
    // fifth.
    let factor = Qjl::srht(DIM).unwrap().factor();
    near(factor, (std::f64::consts::PI / 2.0).sqrt() / DIM as f64, 1e-12);
    let weak = rotated(|y| {
        let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; DIM]);
        codec.encode(y, &mut bytes);
        let length = half::f16::from_le_bytes([bytes[34], bytes[35]]).to_f64();
        let less = half::f16::from_f64(length / (std::f64::consts::PI / 2.0).sqrt());
        bytes[34..36].copy_from_slice(&less.to_le_bytes());
        codec.decode(&bytes, &mut out);
        out
    });
    assert!(weak.bias_at_9 < -0.015, "{weak:?}");
}

#[test]
fn bytes_by_hand() {
    // 52 and 50 bytes for 128 elements, and the places of the first and the last element.
    let (prod, lloyd) =
        (Prod::new(DIM, Qjl::srht(DIM).unwrap()), Lloyd::new(DIM, 3, ScaleRule::InnerProduct));
    assert_eq!((prod.bytes(), lloyd.bytes(), Lloyd::new(DIM, 4, ScaleRule::Norm).bytes()), (52, 50, 66));
    let mut y = vec![-1.0f32; DIM];
    y[0] = 20.0;
    y[127] = 20.0;
    let mut bytes = vec![0; 52];
    assert!(prod.encode(&y, &mut bytes));
    // The norm is sqrt(800 + 126) = 30.43; -1/30.43 is in the cell of code 1, 20/30.43 in that of code 3.
    assert_eq!(half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(), 30.4375);
    assert_eq!((bytes[2], bytes[3], bytes[33]), (0b01_01_01_11, 0b01_01_01_01, 0b11_01_01_01));
    let mut bytes = vec![0; 50];
    assert!(lloyd.encode(&y, &mut bytes));
    // Codes 3 (011) for -1 and 7 (111) for 20.
    assert_eq!((bytes[2], bytes[33], bytes[34], bytes[35], bytes[49]), (0xff, 0xff, 1, 0, 0x80));
}

/// The encoded mean of `n` keys of `dim` elements, and its elements.
fn mean_of(dim: usize, n: usize, key: impl Fn(usize, usize) -> f32) -> (Vec<u8>, Vec<f32>) {
    let mean = KeyMean::new(dim);
    let (mut bytes, mut out) = (vec![0xee; mean.bytes()], vec![f32::NAN; dim]);
    let dims = (0..dim).map(|e| (0..n).map(|pos| f16::from_f32(key(pos, e))).collect::<Vec<_>>());
    mean.encode(dims, &mut bytes);
    mean.decode(&bytes, &mut out);
    (bytes, out)
}

#[test]
fn mean_by_hand() {
    assert_eq!([8, 64, 128, 256].map(|dim| KeyMean::new(dim).bytes()), [16, 80, 144, 272]);
    // Means of 63.5, -63.5, 0.25, -0.25, 0.24 (as f16 a little less), 1, 0, 0: the scale is 0.5.
    let centre = [63.5, -63.5, 0.25, -0.25, 0.24, 1.0, 0.0, 0.0];
    let (bytes, out) = mean_of(8, 64, |pos, e| centre[e] + if pos % 2 == 0 { 2.0 } else { -2.0 });
    assert_eq!(bytes, [127, 129, 1, 255, 0, 2, 0, 0, 0x00, 0x38, 0, 0, 0, 0, 0, 0]);
    assert_eq!(out, [63.5, -63.5, 0.5, -0.5, 0.0, 1.0, 0.0, 0.0]);
    // Keys of zeros, and keys whose scale rounds to 0.
    for tiny in [0.0, 1.4 / 16_777_216.0] {
        assert_eq!(mean_of(8, 64, |_, _| tiny), (vec![0; 16], vec![0.0; 8]));
    }
    // A scale of 1.4 / 2^24 is stored as 1 / 2^24, so quotients up to 178 are clamped.
    let (bytes, _) = mean_of(8, 64, |_, e| if e == 0 { -178.0 / 16_777_216.0 } else { 0.0 });
    assert_eq!(bytes[..10], [129, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    let (_, out) = mean_of(8, 64, |_, _| f16::MAX.to_f32());
    assert_eq!(out, [65532.0; 8], "the scale 516 is 515.8 rounded up");
}

/// Less their mean, equal keys are zeros if the mean is an integer multiple of its scale in each element.
#[test]
fn equal_keys_are_their_mean() {
    let key = |e: usize| 0.25 * (127.0 - 2.0 * e as f32);
    let (_, mean) = mean_of(DIM, 64, |_, e| key(e));
    let y: Vec<f32> = mean.iter().enumerate().map(|(e, m)| key(e) - m).collect();
    assert_eq!(y, [0.0; DIM]);
    let codec = Lloyd::new(DIM, 3, ScaleRule::InnerProduct);
    let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![f32::NAN; DIM]);
    assert!(codec.encode(&y, &mut bytes));
    codec.decode(&bytes, &mut out);
    assert_eq!(out, y);
}

#[test]
fn what_is_no_number_does_no_harm() {
    let mut bytes = [0; 52];
    let mut out = [0.0; DIM];
    let mut y = [0.5f32; DIM];
    for (bad, clamped) in [(0.0, false), (f32::NAN, true), (f32::INFINITY, true), (f32::NEG_INFINITY, true)] {
        y[9] = bad;
        let lloyds = [ScaleRule::InnerProduct, ScaleRule::LeastSquares, ScaleRule::Norm]
            .map(|r| Lloyd::new(DIM, 3, r));
        for codec in &lloyds {
            assert_eq!(codec.encode(&y, &mut bytes[..50]), !clamped);
            codec.decode(&bytes[..50], &mut out);
            assert!(out.iter().all(|x| x.is_finite()), "{bad}");
        }
        let codec = Prod::new(DIM, Qjl::srht(DIM).unwrap());
        assert_eq!(codec.encode(&y, &mut bytes), !clamped);
        codec.decode(&bytes, &mut out);
        assert!(out.iter().all(|x| x.is_finite()), "{bad}");
    }
    // A scale beyond f16, and one below it.
    let codec = Lloyd::new(DIM, 4, ScaleRule::LeastSquares);
    let mut bytes = vec![0; codec.bytes()];
    assert!(!codec.encode(&[3e4; DIM], &mut bytes));
    codec.decode(&bytes, &mut out);
    assert!(out.iter().all(|x| x.is_finite() && *x > 1e3));
    for tiny in [0.0, f32::MIN_POSITIVE] {
        assert!(codec.encode(&[tiny; DIM], &mut bytes));
        codec.decode(&bytes, &mut out);
        assert!(out.iter().all(|x| *x == 0.0));
    }
}

proptest! {
    #[test]
    fn a_rotation_keeps_lengths_and_turns_back(
        power in 3u32..10,
        seed in any::<u64>(),
    ) {
        let dim = 1 << power;
        let mut random = Normal(seed);
        let x: Vec<f32> = (0..dim).map(|_| random.next() as f32).collect();
        let rotation = Rotation::new(dim).unwrap();
        let mut y = x.clone();
        rotation.apply(&mut y);
        let norm = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        prop_assert!((norm(&x) / norm(&y) - 1.0).abs() < 1e-5);
        rotation.undo(&mut y);
        for (x, y) in x.iter().zip(&y) {
            // Ten roundings of sums that are at most a few times the element.
            prop_assert!((x - y).abs() < 1e-4);
        }
    }

    /// A mean is off by half of its scale at most, and does not depend on the order of the keys.
    #[test]
    fn means_are_near(power in 3_u32..10, seed in any::<u64>(), centre in -900_f64..900.0) {
        let dim = 1 << power;
        let mut random = Normal(seed);
        let keys: Vec<Vec<f32>> = (0..64)
            .map(|_| (0..dim).map(|_| f16::from_f64(centre + 100.0 * random.next()).to_f32()).collect())
            .collect();
        let (bytes, out) = mean_of(dim, 64, |pos, e| keys[pos][e]);
        prop_assert_eq!(&bytes, &mean_of(dim, 64, |pos, e| keys[63 - pos][e]).0);
        let scale = f16::from_le_bytes([bytes[dim], bytes[dim + 1]]).to_f64();
        for (e, out) in out.iter().enumerate() {
            let mean = keys.iter().map(|key| f64::from(key[e])).sum::<f64>() / 64.0;
            // Rounding the scale makes the largest quotient up to 127.03.
            prop_assert!((f64::from(*out) - mean).abs() <= 0.5001 * scale, "{} for {}", out, mean);
        }
    }

    /// The product that kernels compute from bit planes equals that of bytes exactly, including the rule for
    /// the sign plane.
    #[test]
    fn counted_bits_are_the_product_of_bytes(
        (numbers, signs) in (1_usize..300)
            .prop_flat_map(|n| (
                prop::collection::vec(any::<i8>(), n), prop::collection::vec(any::<u32>(), n.div_ceil(32))
            )),
    ) {
        let sign = |i: usize| if signs[i / 32] >> (i % 32) & 1 == 1 { 1 } else { -1 };
        let product = |numbers: &[i8]| -> i32 {
            numbers.iter().enumerate().map(|(i, x)| sign(i) * i32::from(*x)).sum()
        };
        prop_assert_eq!(Planes::new(&numbers).signed_sum(&signs), product(&numbers));
        // Numbers of which only the top plane remains.
        let low: Vec<i8> = numbers.iter().map(|x| x & i8::MIN).collect();
        prop_assert_eq!(Planes::new(&low).signed_sum(&signs), product(&low));
    }

    /// Queries are projected in f32 as residuals are in f64.
    #[test]
    fn queries_are_projected_as_residuals_are(seed in any::<u64>(), gaussian in any::<bool>()) {
        let mut random = Normal(seed);
        let x: Vec<f64> = (0..DIM).map(|_| random.next()).collect();
        let qjl = if gaussian { Qjl::gaussian(DIM, 5) } else { Qjl::srht(DIM).unwrap() };
        prop_assert_eq!(gaussian, matches!(qjl.projection(), Projection::Gaussian(_)));
        let (mut wide, mut narrow) = (x.clone(), x.iter().map(|x| *x as f32).collect::<Vec<_>>());
        qjl.project(&mut wide);
        qjl.project_query(&mut narrow);
        // Seven additions of numbers below 100, and the rounding of each input.
        prop_assert!(wide.iter().zip(&narrow).all(|(a, b)| (a - f64::from(*b)).abs() < 1e-4));
    }

    /// The values that a codec reports for its codes are the ones that it decodes.
    #[test]
    fn two_bits_and_signs_come_apart(seed in any::<u64>()) {
        let mut random = Normal(seed);
        let y: Vec<f32> = (0..DIM).map(|_| random.next() as f32).collect();
        let codec = Prod::new(DIM, Qjl::srht(DIM).unwrap());
        let (mut bytes, mut want, mut codes) = ([0; 52], [0.0; DIM], [0; DIM]);
        codec.encode(&y, &mut bytes);
        codec.decode(&bytes, &mut want);
        let [norm, length] = codec.split(&bytes, &mut codes).map(half::f16::to_f64);
        let mut sum: Vec<f64> = codes.iter().map(|code| if code & 4 == 4 { 1.0 } else { -1.0 }).collect();
        codec.qjl().project_back(&mut sum);
        for ((code, sum), want) in codes.iter().zip(&sum).zip(&want) {
            let centroid = codec.codebook().centroids()[usize::from(code & 3)];
            let got = norm * centroid + codec.qjl().factor() * length * sum;
            prop_assert!((got - f64::from(*want)).abs() < 1e-6);
        }
    }

    #[test]
    fn any_bits_decode_to_finite_numbers(bytes in prop::collection::vec(any::<u8>(), 66)) {
        let mut out = [0.0; DIM];
        let finite_scale = |at: usize| half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).is_finite();
        for (bits, len) in [(3, 50), (4, 66)] {
            Lloyd::new(DIM, bits, ScaleRule::Norm).decode(&bytes[..len], &mut out);
            prop_assert_eq!(out.iter().all(|x| x.is_finite()), finite_scale(0));
        }
    }

    #[test]
    fn scaling_a_vector_by_a_power_of_two_scales_what_is_kept(seed in any::<u64>(), power in -4i32..5) {
        let mut random = Normal(seed);
        let y: Vec<f32> = (0..DIM).map(|_| random.next() as f32).collect();
        let factor = 2f32.powi(power);
        let scaled: Vec<f32> = y.iter().map(|y| y * factor).collect();
        let codec = Lloyd::new(DIM, 3, ScaleRule::InnerProduct);
        let decode = |y: &[f32]| {
            let (mut bytes, mut out) = (vec![0; codec.bytes()], vec![0.0; DIM]);
            codec.encode(y, &mut bytes);
            codec.decode(&bytes, &mut out);
            out
        };
        let want: Vec<f32> = decode(&y).iter().map(|y| y * factor).collect();
        prop_assert_eq!(decode(&scaled), want);
    }
}
