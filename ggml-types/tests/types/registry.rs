//! Rules that hold for every weight type and every KV codec.

use std::collections::BTreeSet;
use std::path::Path;

use ggml_types::{
    CodeValues, KvCodec, KvForm, KvSide, QuantError, QuantType, Ternary, by_id, by_name, kv, kv_by_name,
    kv_on, types::REGISTRY,
};
use proptest::prelude::*;

/// File names without `.rs` in a folder of `src`.
fn files(dir: &str) -> BTreeSet<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(dir);
    let entries = std::fs::read_dir(dir).expect("a folder of src");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
    names.filter_map(|name| Some(name.strip_suffix(".rs")?.to_owned())).filter(|name| name != "mod").collect()
}

/// Types that can be encoded.
fn encoded() -> impl Iterator<Item = &'static dyn QuantType> {
    REGISTRY.iter().copied().filter(|ty| ty.encodes())
}

fn decode(ty: &dyn QuantType, bytes: &[u8], rows: usize, row: usize, cols: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; cols];
    ty.decode_row(bytes, rows, row, &mut out).expect("a whole tensor");
    out
}

#[test]
fn every_file_is_registered_under_its_name() {
    let names: BTreeSet<String> = REGISTRY.iter().map(|ty| ty.name().to_owned()).collect();
    assert_eq!(names.len(), REGISTRY.len(), "a name is used twice");
    assert_eq!(names, files("types"));
    let codecs: BTreeSet<String> = kv::REGISTRY.iter().map(|codec| codec.name().to_owned()).collect();
    assert_eq!(codecs.len(), kv::REGISTRY.len(), "a name is used twice");
    assert_eq!(codecs, files("kv"));
}

#[test]
fn every_type_is_checked_against_hand_written_bytes() {
    for name in files("types") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/types/{name}.rs"));
        let source = std::fs::read_to_string(path).expect("a source file");
        assert!(source.contains("#[test]\n    fn hand_written_bytes()"), "{name}.rs has no such test");
    }
}

#[test]
fn ids_are_unique_and_names_are_found() {
    let mut seen = Vec::new();
    for ty in REGISTRY {
        for id in ty.ids() {
            assert!(!seen.contains(id), "{id:?} is used twice");
            seen.push(*id);
            assert_eq!(by_id(id.0, id.1).map(|found| found.name()), Some(ty.name()));
        }
        assert_eq!(by_name(ty.name()).map(|found| found.ids()), Some(ty.ids()));
        assert_eq!(ty.name(), ty.name().to_lowercase());
    }
    assert!(by_name("no such type").is_none());
    let unknown = "no such codec".parse::<&'static dyn KvCodec>().unwrap_err().to_string();
    assert!(unknown.starts_with("want one of f16, f32, q8_0") && unknown.ends_with(", got no such codec"));
    assert_eq!(kv_by_name("turboquant-prod").map(|codec| codec.name()), Some("tq3_0"));
    for codec in kv::REGISTRY {
        assert_eq!(codec.name().parse(), Ok(*codec));
        for side in [KvSide::Keys, KvSide::Values] {
            assert!(
                kv_on(side, *codec).instead(side).is_none() && kv_on(side, *codec).open(side, 64).is_ok()
            );
            assert_eq!(codec.open(side, 64).is_err(), codec.instead(side).is_some(), "{}", codec.name());
        }
    }
}

#[test]
fn byte_arithmetic_is_checked() {
    for ty in REGISTRY {
        let (name, block) = (ty.name(), ty.block_elems());
        let (row_bytes, tail) = (ty.row_bytes(2 * block).unwrap(), ty.byte_len(0, 2 * block).unwrap());
        for rows in 1..9 {
            match rows % ty.rows_together() {
                0 => assert_eq!(ty.byte_len(rows, 2 * block), Ok(row_bytes * rows + tail), "{name}"),
                _ => assert!(matches!(ty.byte_len(rows, block), Err(QuantError::Shape { .. })), "{name}"),
            }
        }
        let together = ty.rows_together();
        let widest = usize::MAX / block * block;
        let most = usize::MAX / together * together;
        assert!(matches!(ty.byte_len(most, widest), Err(QuantError::Overflow { .. })), "{name}");
        assert!(matches!(ty.byte_len(most, block * 8), Err(QuantError::Overflow { .. })), "{name}");
        if block > 1 {
            assert!(matches!(ty.row_bytes(block + 1), Err(QuantError::Shape { .. })), "{name}");
            assert!(matches!(ty.encode(&vec![0.0; block + 1], 1, block + 1), Err(QuantError::Shape { .. })));
        }
        let few = ty.encode(&vec![0.0; block], 2 * together, block);
        assert!(matches!(few, Err(QuantError::Shape { .. })), "{name}");
        let none = ty.encode(&[], most, widest);
        assert!(matches!(none, Err(QuantError::Shape { .. } | QuantError::Overflow { .. })), "{name}");
        let all = ty.encode(&vec![0.0; together * block], together, block);
        assert_eq!(all == Err(QuantError::ReadOnly { ty: name }), !ty.encodes(), "{name}");
        assert_eq!(all.is_ok(), ty.encodes(), "{name}");
    }
}

#[test]
fn truncated_tensors_and_wrong_rows_are_errors() {
    for ty in REGISTRY {
        let (name, cols, rows) = (ty.name(), 2 * ty.block_elems(), 3 * ty.rows_together());
        let bytes = vec![0; ty.byte_len(rows, cols).unwrap()];
        if ty.encodes() {
            assert_eq!(ty.encode(&vec![0.5; rows * cols], rows, cols).unwrap().len(), bytes.len(), "{name}");
        }
        let mut out = vec![0.0; cols];
        for len in 0..bytes.len() {
            let result = ty.decode_row(&bytes[..len], rows, 0, &mut out);
            assert_eq!(result, Err(QuantError::Truncated { ty: name, want: bytes.len(), got: len }));
        }
        let beyond = ty.decode_row(&bytes, rows, rows, &mut out);
        assert!(matches!(beyond, Err(QuantError::Shape { .. })), "{name}");
        if cols > 2 {
            let odd = &mut out[..cols - 1];
            assert!(matches!(ty.decode_row(&bytes, rows, 0, odd), Err(QuantError::Shape { .. })), "{name}");
        }
    }
}

/// A ternary type has one magnitude per scale, and no other type does.
#[test]
fn ternary_types_say_so() {
    for ty in encoded() {
        let (name, cols, rows) = (ty.name(), ty.block_elems().max(32), 2 * ty.rows_together());
        let first = (0..cols).map(|at| at as f32 - 3.0);
        let values: Vec<f32> =
            (0..rows).flat_map(|row| first.clone().map(move |value| value * [1.0, 0.5][row % 2])).collect();
        let bytes = ty.encode(&values, rows, cols).unwrap();
        let magnitudes: BTreeSet<u32> = (0..rows)
            .flat_map(|row| decode(ty, &bytes, rows, row, cols))
            .filter(|value| *value != 0.0)
            .map(|value| value.abs().to_bits())
            .collect();
        let has_tail = ty.byte_len(0, cols).unwrap() > 0;
        match ty.ternary() {
            Some(Ternary::PerTensor) => assert!(magnitudes.len() == 1 && has_tail, "{name}"),
            Some(Ternary::PerBlock | Ternary::PerRow) => {
                assert!(magnitudes.len() == 2 && !has_tail, "{name}")
            }
            // One bit per weight, and no zero.
            None if name == "q1_0" => assert!(magnitudes.len() == 2 && !has_tail),
            None => assert!(magnitudes.len() > 4, "{name}"),
        }
    }
}

/// A row decodes to the same values at any position in a tensor.
#[test]
fn rows_decode_from_anywhere() {
    for ty in encoded() {
        let together = ty.rows_together();
        let (rows, cols) = (5_usize.next_multiple_of(together), 3 * ty.block_elems().max(8));
        // All rows have the same largest magnitude, so that a scale per tensor equals every row's own.
        let value = |at: usize| [1.0, 0.0, -1.0, 0.25, -0.75][(at * at + at / 7) % 5];
        let values: Vec<f32> = (0..rows * cols).map(value).collect();
        let whole = ty.encode(&values, rows, cols).unwrap();
        for (row, values) in values.chunks_exact(cols).enumerate() {
            let alone = ty.encode(&values.repeat(together), together, cols).unwrap();
            assert_eq!(
                decode(ty, &whole, rows, row, cols),
                decode(ty, &alone, together, 0, cols),
                "{}",
                ty.name()
            );
        }
    }
}

/// Finite numbers of similar magnitude, from subnormal ones to the largest.
fn block_of(elems: usize) -> impl Strategy<Value = Vec<f32>> {
    (-149..128_i32, prop::collection::vec(-1.0..=1.0_f64, elems))
        .prop_map(|(exponent, values)| values.iter().map(|v| (v * 2f64.powi(exponent)) as f32).collect())
}

/// Numbers whose largest is within a few percent of f16's largest, times a factor that a scale may have.
fn block_at_the_end_of_f16(elems: usize) -> impl Strategy<Value = Vec<f32>> {
    (1..4096_u32, 0.9..1.1_f32, prop::collection::vec(-1.0..=1.0_f32, elems)).prop_map(
        |(levels, near, values)| {
            let absmax = values.iter().fold(f32::MIN_POSITIVE, |max, value| max.max(value.abs()));
            let scale = near * 65504.0 * levels as f32 / absmax;
            values.iter().map(|value| value * scale).collect()
        },
    )
}

fn errors_are_within_the_bound(values: &[f32]) -> Result<(), TestCaseError> {
    for ty in encoded() {
        let (values, together) = (&values[..ty.block_elems()], ty.rows_together());
        let absmax = values.iter().fold(0f32, |max, value| max.max(value.abs()));
        let bytes = ty.encode(&values.repeat(together), together, values.len()).unwrap();
        let bound = ty.error_bound(absmax);
        prop_assert!(bound >= 0.0);
        for (got, want) in decode(ty, &bytes, together, together - 1, values.len()).iter().zip(values) {
            let error = (got - want).abs();
            let within = error <= bound || bound.is_infinite();
            prop_assert!(within, "{}: {got} for {want}, bound {bound}", ty.name());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn errors_stay_within_the_stated_bound(values in block_of(256)) {
        errors_are_within_the_bound(&values)?;
    }

    #[test]
    fn errors_stay_within_the_stated_bound_at_the_end_of_f16(values in block_at_the_end_of_f16(256)) {
        errors_are_within_the_bound(&values)?;
    }

    #[test]
    fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 1100)) {
        for ty in REGISTRY {
            decode(*ty, &bytes, ty.rows_together(), 0, ty.block_elems());
        }
    }

    #[test]
    fn codecs_keep_what_they_promise(values in block_of(64), head_dim in 0_usize..64) {
        let values = &values[..head_dim];
        for codec in kv::REGISTRY {
            let Ok(vec_bytes) = codec.vec_bytes(head_dim) else {
                prop_assert!(!head_dim.is_power_of_two() || head_dim < 32, "{}: {head_dim}", codec.name());
                prop_assert!(codec.open(KvSide::Keys, head_dim).is_err());
                continue;
            };
            let of_page = [KvSide::Keys, KvSide::Values].map(|side| codec.page_bytes(side, head_dim, 64));
            let mean = if codec.windowed() { (head_dim + 2).next_multiple_of(16) } else { 0 };
            prop_assert_eq!(of_page, [Ok(64 * vec_bytes + mean), Ok(64 * vec_bytes)]);
            let mut bytes = vec![0xee; vec_bytes];
            let mut back = vec![f32::NAN; head_dim];
            let vectors = codec.open(KvSide::Keys, head_dim).unwrap();
            vectors.encode(values, &mut bytes);
            vectors.decode(&bytes, &mut back);
            // A codec named after a weight type has that type's error.
            let bound = by_name(codec.name()).map(|ty| ty.error_bound(1.0));
            if let (Some(bound), true) = (bound, values.iter().all(|value| value.abs() <= 1.0)) {
                let within = back.iter().zip(values).all(|(a, b)| (a - b).abs() <= bound);
                prop_assert!(within, "{}", codec.name());
            }
        }
        prop_assert!(kv::REGISTRY.iter().all(|codec| codec.vec_bytes(usize::MAX).is_err()));
    }
}

/// Backends only see a codec's form, so no two codecs share one, and it agrees with the codec.
#[test]
fn every_codec_has_a_form_of_its_own() {
    let mut seen = Vec::new();
    for codec in kv::REGISTRY {
        let (name, form) = (codec.name(), codec.form());
        assert!(form != KvForm::Opaque && !seen.contains(&form), "{name}: {form:?}");
        assert_eq!((codec.rotates(), codec.windowed()), (form.rotates(), form.windowed()), "{name}");
        seen.push(form);
        assert!(kv::names_with_notes().contains(name));
    }
}

/// A codec named after a weight type stores vectors as rows of it; values that no block can hold are clamped.
#[test]
fn codecs_of_weight_types_have_their_bytes() {
    let values: Vec<f32> = (0..128).map(|i| (i * 37 % 101) as f32 / 7.0 - 7.0).collect();
    let mut names = Vec::new();
    for codec in kv::REGISTRY {
        let Some(ty) = by_name(codec.name()) else { continue };
        let vectors = codec.open(KvSide::Values, values.len()).unwrap();
        let (mut bytes, mut back) =
            (vec![0xee; codec.vec_bytes(values.len()).unwrap()], vec![0.0; values.len()]);
        assert!(vectors.encode(&values, &mut bytes), "{}", codec.name());
        assert_eq!(bytes, ty.encode(&values, 1, values.len()).unwrap(), "{}", codec.name());
        vectors.decode(&bytes, &mut back);
        assert_eq!(back, decode(ty, &bytes, 1, 0, values.len()), "{}", codec.name());
        if let Some(codes) = vectors.codes() {
            let (mut split, mut scales) = ([0; 128], [0; 8]);
            codes.split(&bytes, &mut split, &mut scales);
            let scales = [0, 2, 4, 6].map(|at| half::f16::from_le_bytes([scales[at], scales[at + 1]]));
            let value = |code: u8| match codes.values() {
                CodeValues::Table4(values) => values[usize::from(code)],
                CodeValues::Int8 => f32::from(code.cast_signed()),
                other => panic!("{}: {other:?}", codec.name()),
            };
            let of_codes = |i: usize| value(split[i]) * scales[i / codes.block()].to_f32();
            assert!((0..128).all(|i| of_codes(i) == back[i]), "{}", codec.name());
        }
        if codec.rotates() {
            let mut wild = values.clone();
            (wild[3], wild[5], wild[6]) = (1e30, f32::NAN, -1e30);
            assert!(!vectors.encode(&wild, &mut bytes), "{}", codec.name());
            vectors.decode(&bytes, &mut back);
            assert!(
                back.iter().all(|x| x.is_finite()) && back[3] > 6e4 && back[6] < -6e4,
                "{}",
                codec.name()
            );
        }
        names.push(codec.name());
    }
    let mut want = ["f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"];
    want.sort_unstable();
    names.sort_unstable();
    assert_eq!(names, want);
}

#[test]
fn scales_of_tensors_are_those_that_were_encoded() {
    for ty in encoded() {
        let (rows, cols) = (3 * ty.rows_together(), ty.block_elems());
        let values: Vec<f32> = (0..rows * cols).map(|i| 0.25 * (i % 3) as f32 - 0.25).collect();
        let bytes = ty.encode(&values, rows, cols).unwrap();
        let want = if ty.ternary() == Some(Ternary::PerTensor) { 0.25 } else { 1.0 };
        assert_eq!(ty.tensor_scale(&bytes, rows, cols), Ok(want), "{}", ty.name());
        let cut = ty.tensor_scale(&bytes[..bytes.len() - 1], rows, cols);
        assert_eq!(cut.is_err(), want != 1.0, "{}", ty.name());
        assert!(ty.is(ty) && REGISTRY.iter().filter(|other| ty.is(**other)).count() == 1);
    }
}

/// Rows with their own scale, in groups of four or not, are restored to the bit if they are ternary, for any
/// scales.
#[test]
fn ternary_rows_come_back_exactly() {
    for ty in encoded().filter(|ty| ty.ternary() == Some(Ternary::PerRow)) {
        let (rows, cols) = (8, 3 * ty.block_elems());
        // Scales that f16 can hold.
        let value = |at: usize| [0.0, -1.0, 1.0][at * at % 11 % 3] * (at / cols + 1) as f32 * 0.375;
        let values: Vec<f32> = (0..rows * cols).map(value).collect();
        let bytes = ty.encode(&values, rows, cols).unwrap();
        for (row, values) in values.chunks_exact(cols).enumerate() {
            assert_eq!(decode(ty, &bytes, rows, row, cols), values, "{}", ty.name());
        }
    }
}
