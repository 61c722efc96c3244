use super::*;

/// Values -1, 0 and 1 without a pattern that could hide a wrong layout.
fn codes(n: usize) -> Vec<i8> {
    (0..n as u64).map(|at| ((at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 3) as i8 - 1).collect()
}

fn f32_tensor(values: &[f32], cols: usize) -> HostTensor {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let rows = values.len() / cols;
    HostTensor { name: "w".to_owned(), ty: &types::F32, rows, cols, bytes: bytes.into() }
}

#[test]
fn pack_and_unpack_give_the_values_back() {
    for (rows, cols) in [(4, 1), (8, 3), (64, 128), (128, 7)] {
        let values = codes(rows * cols);
        let packed = pack(&values, cols);
        assert_eq!(packed.len(), rows * cols / 4);
        assert_eq!(unpack(&packed, cols), Ok(values));
    }
}

#[test]
fn a_byte_holds_rows_a_quarter_apart_from_its_low_bits_up() {
    // Codes 2, 1, 0, 1 from the low bits: rows 0, 2, 4 and 6 of eight, column 1.
    let packed = [0x55, 0b01_00_01_10, 0x55, 0x55];
    let values = unpack(&packed, 2).unwrap();
    assert_eq!((values[1], values[2 * 2 + 1], values[4 * 2 + 1], values[6 * 2 + 1]), (1, 0, -1, 0));
    assert_eq!(values.iter().filter(|value| **value != 0).count(), 2);
}

#[test]
fn code_3_is_found_where_it_is() {
    let mut packed = pack(&codes(8 * 5), 5);
    packed[7] = packed[7] & 0b1100_1111 | 0b0011_0000;
    assert_eq!(unpack(&packed, 5), Err((5, 2)));
}

#[test]
fn a_scale_multiplies_or_divides_and_must_make_sense() {
    let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let of = |values: &[f32], meaning| scales(Elem::F32, &bytes(values), 4, meaning);
    assert_eq!(of(&[0.25], ScaleMeaning::Multiply), Ok(vec![0.25]));
    assert_eq!(of(&[0.25], ScaleMeaning::Divide), Ok(vec![4.0]));
    // Rows that share a scale to a step of bf16, and rows that do not.
    assert_eq!(of(&[2.0; 4], ScaleMeaning::Multiply), Ok(vec![2.0]));
    let near = of(&[1.0, 1.001, 1.0, 1.001], ScaleMeaning::Multiply).unwrap();
    assert!(near.len() == 1 && (near[0] - 1.0005).abs() < 1e-6, "{near:?}");
    assert_eq!(of(&[1.0, 1.1, 1.0, 1.0], ScaleMeaning::Multiply).unwrap().len(), 4);
    for wrong in [&[f32::NAN][..], &[f32::INFINITY], &[-1.0], &[1.0; 3], &[]] {
        assert!(of(wrong, ScaleMeaning::Multiply).is_err(), "{wrong:?}");
    }
    assert!(of(&[0.0], ScaleMeaning::Divide).is_err());
    // A matrix of zeros is not an error here: it is counted when the file is written.
    assert_eq!(of(&[0.0], ScaleMeaning::Multiply), Ok(vec![0.0]));
}

#[test]
fn masters_round_half_to_even_by_the_mean_of_all() {
    // Mean 4 / 8 = 0.5, so s = 2: 0.25 s is 1/2, which rounds to the even 0; 0.75 s is 3/2.
    let mut weights = [0.25, -0.25, 0.75, -0.75, 0.2500001, -0.2500001, 0.0, 1.5];
    absmean(&mut weights);
    assert_eq!(weights, [0.0, 0.0, 0.5, -0.5, 0.5, -0.5, 0.0, 0.5]);
    // A smaller mean is raised to 1e-5.
    let mut small = [1e-6, -1e-7, 8e-6];
    absmean(&mut small);
    assert_eq!(small, [0.0, 0.0, 1e-5]);
}

#[test]
fn forms_of_matrices() {
    let ternary = |scale: &dyn Fn(usize, usize) -> f32| {
        let values: Vec<f32> =
            (0..4 * 512).map(|at| [0.0, -1.0, 1.0][at * at % 7 % 3] * scale(at / 512, at % 512)).collect();
        ScaleSpan::of(&f32_tensor(&values, 512))
    };
    assert_eq!(ternary(&|_, _| 0.37), ScaleSpan::Tensor);
    assert_eq!(ternary(&|_, _| 0.0), ScaleSpan::Tensor);
    assert_eq!(ternary(&|row, _| 1.0 + row as f32), ScaleSpan::Row);
    assert_eq!(ternary(&|_, col| 1.0 + (col / 256) as f32), ScaleSpan::Block256);
    assert_eq!(ternary(&|_, col| 1.0 + (col / 64) as f32), ScaleSpan::Block64);
    assert_eq!(ternary(&|_, col| 1.0 + (col / 32) as f32), ScaleSpan::Real);
    assert_eq!(ternary(&|_, _| f32::NAN), ScaleSpan::Real);
}

#[test]
fn the_rule_of_types() {
    let types = |matrices: &[(ScaleSpan, usize)]| -> Vec<(&'static str, String)> {
        let matrix = |(at, (form, cols)): (usize, &(ScaleSpan, usize))| Matrix {
            name: format!("blk.{at}.w"),
            form: *form,
            cols: *cols,
        };
        let matrices: Vec<Matrix> = matrices.iter().enumerate().map(matrix).collect();
        packing(&matrices).into_iter().map(|(ty, why)| (ty.name(), why)).collect()
    };
    let names = |matrices: &[(ScaleSpan, usize)]| -> Vec<&'static str> {
        types(matrices).into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(names(&[(ScaleSpan::Tensor, 2560), (ScaleSpan::Tensor, 6912)]), ["i2_s", "i2_s"]);
    // bitnet_b1_58-3B: 8640 columns are not a multiple of 128, so no matrix is I2_S.
    assert_eq!(names(&[(ScaleSpan::Tensor, 3200), (ScaleSpan::Tensor, 8640)]), ["q2_0", "q2_0"]);
    assert_eq!(names(&[(ScaleSpan::Row, 2560), (ScaleSpan::Tensor, 2560)]), ["tq2_0", "tq2_0"]);
    assert_eq!(names(&[(ScaleSpan::Block256, 512), (ScaleSpan::Block64, 512)]), ["tq2_0", "q2_0"]);
    assert_eq!(names(&[(ScaleSpan::Row, 96), (ScaleSpan::Row, 192)]), ["f16", "q2_0"]);
    let why = &types(&[(ScaleSpan::Tensor, 256), (ScaleSpan::Row, 256)])[0].1;
    assert!(why.contains("blk.1.w") && why.contains("has its own scale"), "{why}");
}

/// Row scales in blocks with f16 scales, on which the rule relies.
#[test]
fn tq2_0_and_q2_0_hold_row_scales_to_a_rounding_of_f16() {
    for ty in [&types::Tq2_0 as &dyn QuantType, &types::Q2_0] {
        let (rows, cols) = (6, 256);
        let scale = |row: usize| 0.013 * (1.0 + row as f32);
        let values: Vec<f32> =
            codes(rows * cols).iter().enumerate().map(|(at, c)| f32::from(*c) * scale(at / cols)).collect();
        let bytes = ty.encode(&values, rows, cols).unwrap();
        let mut out = vec![0.0; cols];
        for row in 0..rows {
            ty.decode_row(&bytes, rows, row, &mut out).unwrap();
            for (got, want) in out.iter().zip(&values[row * cols..]) {
                // Half a step of f16's eleven bits.
                assert!((got - want).abs() <= want.abs() * 4.9e-4, "{}: {got} of {want}", ty.name());
                assert_eq!(got.signum() * f32::from(*got != 0.0), want.signum() * f32::from(*want != 0.0));
            }
        }
    }
}
