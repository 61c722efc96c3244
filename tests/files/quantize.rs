//! Quantising models, compared with upstream's bytes and with a plain version of BitNet's rule, and errors.

use std::ops::ControlFlow;

use ggml_types::{QuantType, by_name, types::REGISTRY};
use sterna::gguf::{Gguf, GgufWriter, Metadata, type_id};
use sterna::quantize::{QuantizeError, QuantizeOptions, Quantizer, Recipe, TensorReport};
use support::{golden, npy};

fn ty(name: &str) -> &'static dyn QuantType {
    by_name(name).unwrap()
}

fn options(name: &str) -> QuantizeOptions {
    QuantizeOptions::new(Recipe::Type(ty(name)))
}

/// Name, dimensions, type and values of a tensor.
type Given<'a> = (&'a str, &'a [usize], &'a str, &'a [f32]);

fn file(metadata: Metadata, tensors: &[Given<'_>]) -> Vec<u8> {
    let mut writer = GgufWriter::new(metadata).unwrap();
    let encoded: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(name, dims, type_name, values)| {
            let cols = *dims.last().unwrap();
            let bytes = ty(type_name).encode(values, values.len() / cols, cols).unwrap();
            writer.tensor(name, dims, type_id(ty(type_name)).unwrap(), bytes.len() as u64).unwrap();
            bytes
        })
        .collect();
    let mut data = writer.begin(Vec::new()).unwrap();
    encoded.into_iter().for_each(|bytes| data.tensor([bytes]).unwrap());
    data.finish().unwrap()
}

fn model(tensors: &[Given<'_>]) -> Gguf {
    Gguf::from_bytes(file(Metadata::default(), tensors).into()).unwrap()
}

fn quantize(gguf: &Gguf, options: &QuantizeOptions) -> Result<(Gguf, Vec<TensorReport>), QuantizeError> {
    let quantizer = Quantizer::new(gguf, options.clone())?;
    let (mut out, bytes) = (Vec::new(), quantizer.file_bytes());
    let reports = quantizer.write(&mut out, |_| ControlFlow::Continue(()))?;
    assert_eq!(out.len() as u64, bytes, "the size of the file differs from `file_bytes`");
    Ok((Gguf::from_bytes(out.into()).unwrap(), reports))
}

/// All values of a tensor.
fn values(gguf: &Gguf, name: &str) -> Vec<f32> {
    let tensor = gguf.tensor(name).unwrap();
    let mut values = vec![f32::NAN; tensor.rows * tensor.cols];
    for (row, out) in values.chunks_exact_mut(tensor.cols).enumerate() {
        tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, out).unwrap();
    }
    values
}

fn squared_error(values: &[f32], of: &[f32]) -> f64 {
    values.iter().zip(of).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

/// Pseudorandom numbers from -1 to 1.
fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn plainly_rounded_types_match_upstream_bytes() {
    let Some(dir) = golden("dequant") else { return };
    let source = npy(&dir.join("source_f32.npy")).f32s();
    let gguf = model(&[("blk.0.ffn_up.weight", &[5, 768], "f32", &source)]);
    for (name, file) in [("q8_0", "08_q8_0"), ("tq1_0", "34_tq1_0"), ("tq2_0", "35_tq2_0"), ("f16", "01_f16")]
    {
        let (made, reports) = quantize(&gguf, &options(name)).unwrap();
        let want = npy(&dir.join(format!("{file}.bytes.npy"))).bytes;
        assert!(
            made.tensor("blk.0.ffn_up.weight").unwrap().bytes == want,
            "{name}: other bytes than upstream's"
        );
        let values = values(&made, "blk.0.ffn_up.weight");
        let zeros = vec![0.0; source.len()];
        let error = (squared_error(&values, &source) / squared_error(&zeros, &source)).sqrt();
        assert!((reports[0].error / error - 1.0).abs() < 1e-5, "{name}: {} is not {error}", reports[0].error);
    }
}

/// Whole models that llama-quantize made with `--pure` from the f16 model.
#[test]
fn models_match_those_of_llama_quantize() {
    let Some(path) = golden("llama/tiny-f16.gguf") else { return };
    let source = Gguf::open(&path).unwrap();
    for name in ["q8_0", "tq1_0", "tq2_0", "q4_0", "q6_k"] {
        let Some(path) = golden(&format!("llama/tiny-{name}.gguf")) else { return };
        let want = Gguf::open(&path).unwrap();
        let pure = QuantizeOptions { token_embd: Some(ty(name)), output: Some(ty(name)), ..options(name) };
        let (made, _) = quantize(&source, &pure).unwrap();
        let entries = |gguf: &Gguf| {
            gguf.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect::<Vec<_>>()
        };
        let (mut made_entries, mut want_entries) = (entries(&made), entries(&want));
        made_entries.sort_by(|a, b| a.0.cmp(&b.0));
        want_entries.sort_by(|a, b| a.0.cmp(&b.0));
        assert!(made_entries == want_entries, "{name}: other metadata than llama-quantize's");
        assert_eq!(made.tensors().len(), want.tensors().len());
        for info in want.tensors() {
            let (got, theirs) = (made.tensor(&info.name).unwrap(), want.tensor(&info.name).unwrap());
            assert_eq!((got.ty.name(), got.rows, got.cols), (theirs.ty.name(), theirs.rows, theirs.cols));
            // For these two types upstream searches for scales, and ours may be others that are not worse.
            if ["q4_0", "q6_k"].contains(&name) && got.rows > 1 {
                let original = values(&source, &info.name);
                let ours = squared_error(&values(&made, &info.name), &original);
                let theirs = squared_error(&values(&want, &info.name), &original);
                assert!(ours <= theirs, "{name}, {}: squared error {ours}, upstream's {theirs}", info.name);
            } else {
                assert!(got.bytes == theirs.bytes, "{name}, {}: other bytes", info.name);
            }
        }
    }
}

/// The values of a model that bitnet.cpp has packed give the same packed bytes.
#[test]
fn ternary_packing_matches_bitnet_cpp() {
    let packed = Gguf::open(&golden("bitnet/tiny-i2_s.gguf").expect("it is in tests/data")).unwrap();
    let all: Vec<_> = packed.tensors().iter().map(|info| (info, values(&packed, &info.name))).collect();
    let tensors: Vec<Given<'_>> = all
        .iter()
        .map(|(info, values)| {
            let real = if info.type_name == "i2_s" { "f32" } else { info.type_name.as_str() };
            (info.name.as_str(), info.dims.as_slice(), real, values.as_slice())
        })
        .collect();
    let bytes = file(packed.metadata().clone(), &tensors);
    let (made, reports) = quantize(&Gguf::from_bytes(bytes.into()).unwrap(), &options("i2_s")).unwrap();
    assert!(reports.iter().all(|report| report.error == 0.0 && report.notes.is_empty()), "{reports:?}");
    assert_eq!(made.metadata().require_u32("general.file_type").unwrap(), 40);
    let mut n_packed = 0;
    for info in packed.tensors() {
        let (got, want) = (made.tensor(&info.name).unwrap(), packed.tensor(&info.name).unwrap());
        assert_eq!(got.ty.name(), want.ty.name(), "{}", info.name);
        // The scale is followed by unused padding.
        let is_packed = got.ty.name() == "i2_s";
        let len = if is_packed { got.bytes.len() - 28 } else { got.bytes.len() };
        assert!(got.bytes[..len] == want.bytes[..len], "{}", info.name);
        n_packed += usize::from(is_packed);
    }
    assert_eq!(n_packed, 3 * 7);
}

/// Enough rows for several tasks, compared with the rule in exact arithmetic: half of the mean is the border.
#[test]
fn real_weights_are_rounded_by_their_mean() {
    const SHAPE: [usize; 2] = [3000, 256];
    let weights: Vec<f32> = noise(SHAPE[0] * SHAPE[1]);
    // All are multiples of 2^-23, so this sum is exact.
    let sum: i64 = weights.iter().map(|weight| (weight.abs() * (1 << 23) as f32) as i64).sum();
    let mean = (sum as f64 / f64::from(1 << 23) / weights.len() as f64) as f32;
    let gguf = model(&[("blk.0.attn_q.weight", &SHAPE, "f32", &weights)]);
    let (made, reports) = quantize(&gguf, &options("i2_s")).unwrap();
    let got = values(&made, "blk.0.attn_q.weight");
    let mut counts = [0; 3];
    for (at, (weight, got)) in weights.iter().zip(&got).enumerate() {
        let code = match f64::from(weight.abs()) * 2.0 > f64::from(mean) {
            true => weight.signum(),
            false => 0.0,
        };
        assert_eq!(*got, code * mean, "weight {at}, {weight}");
        counts[(code + 1.0) as usize] += 1;
    }
    assert!(counts.iter().all(|count| *count > weights.len() / 8), "{counts:?}");
    let zeros = vec![0.0; weights.len()];
    let error = (squared_error(&got, &weights) / squared_error(&zeros, &weights)).sqrt();
    assert!((reports[0].error / error - 1.0).abs() < 1e-5 && error > 0.2, "{reports:?}");

    // With `absmean` block types have the same values, up to the rounding of their scale to f16.
    let absmean = QuantizeOptions { absmean: true, ..options("tq2_0") };
    let (made, _) = quantize(&gguf, &absmean).unwrap();
    let scale = half::f16::from_f32(mean).to_f32();
    let blocks = values(&made, "blk.0.attn_q.weight");
    assert!(blocks.iter().zip(&got).all(|(block, got)| *block == got / mean * scale));
    // f32 has the same values exactly, although the type does not change.
    let (made, _) = quantize(&gguf, &QuantizeOptions { absmean: true, ..options("f32") }).unwrap();
    assert!(values(&made, "blk.0.attn_q.weight") == got);
}

#[test]
fn number_of_threads_changes_nothing() {
    let weights = noise(2100 * 256);
    let gguf = model(&[("blk.0.ffn_down.weight", &[2100, 256], "f32", &weights)]);
    for name in ["i2_s", "q6_k"] {
        let (one, reports) = quantize(&gguf, &options(name)).unwrap();
        for threads in [2, 3, 64] {
            let (many, more) = quantize(&gguf, &QuantizeOptions { threads, ..options(name) }).unwrap();
            let tensor = |gguf: &Gguf| gguf.tensor("blk.0.ffn_down.weight").unwrap().bytes;
            assert!(tensor(&one) == tensor(&many), "{name}, {threads} threads");
            assert_eq!(reports[0].error.to_bits(), more[0].error.to_bits(), "{name}, {threads} threads");
        }
    }
}

/// A row can be longer than a task.
#[test]
fn long_rows_are_encoded_as_a_whole() {
    const COLS: usize = (3 << 18) + 256;
    let ternary: Vec<f32> = noise(2 * COLS).iter().map(|weight| (weight * 1.5).round() * 0.25).collect();
    let mut gguf = model(&[("blk.0.ffn_up.weight", &[2, COLS], "f32", &ternary)]);
    for name in ["i2_s", "q8_0", "tq1_0", "iq2_bn", "f16"] {
        let (made, _) = quantize(&gguf, &QuantizeOptions { threads: 2, ..options(name) }).unwrap();
        let want = ty(name).encode(&ternary, 2, COLS).unwrap();
        assert!(made.tensor("blk.0.ffn_up.weight").unwrap().bytes == want, "{name}");
    }
    let mut weights = ternary;
    weights[COLS + 700_000] = f32::INFINITY;
    gguf = model(&[("blk.0.ffn_up.weight", &[2, COLS], "f32", &weights)]);
    let error = quantize(&gguf, &options("q8_0")).unwrap_err().to_string();
    assert!(error.contains("row 1, column 700000: inf"), "{error}");
}

/// Ternary weights are the same in every ternary type that can store their scales. If a type cannot, the
/// error names the weight.
#[test]
fn ternary_types_convert_to_each_other_exactly() {
    let weights: Vec<f32> = noise(8 * 256).iter().map(|weight| (weight * 1.5).round() * 0.375).collect();
    const NAME: &str = "blk.0.ffn_up.weight";
    let names = ["i2_s", "tq2_0", "tq1_0", "iq2_bn", "iq1_bn", "iq2_bn_r4"];
    for from in names {
        let gguf = model(&[(NAME, &[8, 256], from, &weights)]);
        for to in names {
            let (made, reports) = quantize(&gguf, &options(to)).unwrap();
            assert_eq!((values(&made, NAME), reports[0].error), (weights.clone(), 0.0), "{from} to {to}");
            let whole = ty(to).encode(&weights, 8, 256).unwrap();
            assert!(made.tensor(NAME).unwrap().bytes == whole, "{from} to {to}");
        }
    }
    // One scale per row, which a type with one scale per tensor cannot store.
    let rows: Vec<f32> = weights.iter().enumerate().map(|(at, w)| w * (at / 256 + 1) as f32).collect();
    let gguf = model(&[(NAME, &[8, 256], "iq2_bn", &rows)]);
    assert_eq!(values(&quantize(&gguf, &options("tq2_0")).unwrap().0, NAME), rows);
    let said = quantize(&gguf, &options("i2_s")).unwrap_err().to_string();
    assert!(said.contains("cannot be stored as i2_s"), "{said}");
    // A scale that f16 cannot store.
    let fine: Vec<f32> = weights.iter().map(|w| w * 1.000_01).collect();
    let gguf = model(&[(NAME, &[8, 256], "iq2_bn", &fine)]);
    assert_eq!(values(&quantize(&gguf, &options("i2_s")).unwrap().0, NAME), fine);
    let said = quantize(&gguf, &options("iq1_bn")).unwrap_err().to_string();
    assert!(said.contains("cannot be stored as iq1_bn"), "{said}");
}

#[test]
fn types_without_an_encoder_are_refused() {
    let gguf = model(&[("blk.0.ffn_up.weight", &[4, 256], "f32", &noise(4 * 256))]);
    for made in REGISTRY.iter().filter(|ty| !ty.encodes()) {
        let said = quantize(&gguf, &options(made.name())).unwrap_err().to_string();
        let want = [
            made.name(),
            "blk.0.ffn_up.weight",
            "quantise to q2_k or q3_k, or use llama.cpp's llama-quantize",
        ];
        assert!(want.iter().all(|want| said.contains(want)), "{said}");
    }
}

#[test]
fn tensor_role_decides_the_type() {
    let (matrix, vector) = (noise(4 * 256), noise(256));
    let tensors: [Given<'_>; 8] = [
        ("token_embd.weight", &[4, 256], "f32", &matrix),
        ("position_embd.weight", &[4, 256], "f16", &matrix),
        ("blk.0.attn_norm.weight", &[256], "f16", &vector),
        ("blk.0.attn_q.weight", &[4, 256], "bf16", &matrix),
        ("blk.0.attn_q.bias", &[1, 256], "f32", &vector),
        ("blk.0.ffn_up_exps.weight", &[2, 2, 256], "f32", &matrix),
        ("blk.0.ffn_down.weight", &[8, 128], "bf16", &matrix),
        ("output.weight", &[4, 256], "f16", &matrix),
    ];
    let gguf = model(&tensors);
    let types = |options: &QuantizeOptions| {
        let (made, reports) = quantize(&gguf, options).unwrap();
        let got: Vec<&str> = reports.iter().map(|report| report.to.0).collect();
        for (info, report) in made.tensors().iter().zip(&reports) {
            assert_eq!((&info.type_name[..], &info.dims), (report.to.0, &report.dims), "{}", info.name);
            assert_eq!(info.n_bytes, report.to.1 as u64);
        }
        let notes = reports.iter().filter(|report| !report.notes.is_empty()).count();
        (got.join(" "), notes)
    };
    let none = 0;
    assert_eq!(types(&options("i2_s")), ("f16 f32 f32 i2_s f32 i2_s i2_s f16".into(), none));
    // Rows of 128 are half a block of this type.
    assert_eq!(types(&options("tq2_0")), ("f16 f32 f32 tq2_0 f32 tq2_0 f16 f16".into(), 1));
    assert_eq!(types(&options("q8_0")), ("q8_0 f32 f32 q8_0 f32 q8_0 q8_0 q8_0".into(), none));
    let heads = QuantizeOptions { token_embd: Some(ty("q6_k")), output: Some(ty("q8_0")), ..options("i2_s") };
    assert_eq!(types(&heads), ("q6_k f32 f32 i2_s f32 i2_s i2_s q8_0".into(), none));
    assert_eq!(types(&options("f32")).0, "f32 f32 f32 f32 f32 f32 f32 f32");
    for made in REGISTRY.iter().filter(|ty| ty.encodes()) {
        let file_type = quantize(&gguf, &options(made.name())).unwrap().0;
        let file_type = file_type.metadata().require_u32("general.file_type").unwrap();
        let of_floats = [("f32", 0), ("f16", 1), ("bf16", 32)];
        let of_blocks = [("q4_0", 2), ("q8_0", 7), ("q5_0", 8), ("q4_k", 14), ("q5_k", 16), ("q6_k", 18)];
        let of_uneven =
            [("q4_1", 3), ("q5_1", 9), ("q2_k", 10), ("q3_k", 11), ("iq4_nl", 25), ("iq4_xs", 30)];
        let others =
            [("tq1_0", 36), ("mxfp4", 38), ("q1_0", 40), ("q2_0", 41), ("pq2_0", 141), ("ptq1_0", 143)];
        let of_rows = [("nvfp4", 39), ("iq1_bn", 136), ("iq2_bn", 137), ("iq2_bn_r4", 337)];
        let want = [&of_floats[..], &of_blocks, &of_uneven, &others, &of_rows].concat();
        match want.iter().find(|(name, _)| *name == made.name()) {
            Some((name, want)) => assert_eq!(file_type, *want, "{name}"),
            None => assert!(["tq2_0", "i2_s"].contains(&made.name()), "{} is not checked", made.name()),
        }
    }
}

#[test]
fn metadata_is_copied_and_file_type_is_set() {
    let mut metadata = Metadata::default();
    metadata.set("general.architecture", "llama");
    metadata.set("general.file_type", 1_u32);
    metadata.set("general.alignment", 64_u32);
    metadata.set("split.count", 1_u32);
    metadata.set("tokenizer.ggml.model", "gpt2");
    let gguf = Gguf::from_bytes(file(metadata, &[("a.weight", &[2, 32], "f32", &noise(64))]).into()).unwrap();
    let (made, _) = quantize(&gguf, &options("q8_0")).unwrap();
    let keys: Vec<&str> = made.metadata().iter().map(|(key, _)| key).collect();
    let (file_type, version) = ("general.file_type", "general.quantization_version");
    assert_eq!(
        keys,
        ["general.architecture", "general.alignment", "tokenizer.ggml.model", file_type, version]
    );
    assert_eq!(made.metadata().require_u32(file_type).unwrap(), 7);
    assert_eq!(made.metadata().require_u32(version).unwrap(), 2);
    assert_eq!(made.find("a.weight").unwrap().start % 64, 0);
}

#[test]
fn quantised_tensors_are_copied_or_refused() {
    let weights = noise(4 * 256);
    let gguf = model(&[
        ("blk.0.attn_q.weight", &[4, 256], "q8_0", &weights),
        ("blk.0.attn_k.weight", &[4, 256], "f16", &weights),
    ]);
    let (made, reports) = quantize(&gguf, &QuantizeOptions { absmean: true, ..options("q8_0") }).unwrap();
    let tensor = |gguf: &Gguf| gguf.tensor("blk.0.attn_q.weight").unwrap().bytes;
    assert!(tensor(&made) == tensor(&gguf) && reports[0].error == 0.0);
    for name in ["f32", "f16", "bf16"] {
        let mut weights = weights.clone();
        weights[2 * 256 + 7] = f32::NAN;
        let broken = model(&[("blk.0.attn_q.weight", &[4, 256], name, &weights)]);
        let error = quantize(&broken, &options(name)).unwrap_err().to_string();
        assert!(error.contains("blk.0.attn_q.weight, row 2, column 7: NaN"), "{error}");
    }
    let error = quantize(&gguf, &options("i2_s")).unwrap_err().to_string();
    assert!(error.contains("blk.0.attn_q.weight is already q8_0") && error.contains("i2_s"), "{error}");
}

/// With `requantize` quantised weights give the same as their dequantised values.
#[test]
fn quantised_tensors_are_requantised_on_request() {
    let gguf = model(&[("blk.0.attn_q.weight", &[4, 256], "q8_0", &noise(4 * 256))]);
    let of = |gguf: &Gguf| gguf.tensor("blk.0.attn_q.weight").unwrap();
    let weights = of(&gguf);
    let mut floats = vec![0.0; 4 * 256];
    for (row, floats) in floats.chunks_exact_mut(256).enumerate() {
        weights.ty.decode_row(&weights.bytes, 4, row, floats).unwrap();
    }
    let plain = model(&[("blk.0.attn_q.weight", &[4, 256], "f32", &floats)]);
    for ty in ["q4_k", "i2_s", "f16"] {
        let again = QuantizeOptions { requantize: true, ..options(ty) };
        let (made, want) = (quantize(&gguf, &again).unwrap().0, quantize(&plain, &options(ty)).unwrap().0);
        assert!(of(&made).ty.name() == ty && of(&made).bytes == of(&want).bytes, "{ty}");
    }
}

#[test]
fn weights_that_cannot_be_stored_are_named() {
    let with = |weight: f32| {
        let mut weights = noise(2000 * 256);
        weights[1500 * 256 + 255] = weight;
        model(&[("blk.0.ffn_up.weight", &[2000, 256], "f32", &weights)])
    };
    let refused = |gguf: &Gguf, name: &str| {
        let error = quantize(gguf, &QuantizeOptions { threads: 2, ..options(name) }).unwrap_err().to_string();
        assert!(error.contains("blk.0.ffn_up.weight, row 1500, column ") && error.contains(name), "{error}");
    };
    for name in ["i2_s", "q6_k", "tq1_0", "bf16"] {
        refused(&with(f32::NAN), name);
        refused(&with(f32::NEG_INFINITY), name);
    }
    // Beyond the range of f16, which is the type of some scales.
    let large = with(1e30);
    ["f16", "q8_0", "q6_k", "tq1_0"].into_iter().for_each(|name| refused(&large, name));
    for name in ["bf16", "i2_s"] {
        let (made, _) = quantize(&large, &options(name)).unwrap();
        assert!(values(&made, "blk.0.ffn_up.weight").iter().all(|value| value.is_finite()), "{name}");
    }
}

#[test]
fn interruption_and_output_errors_are_returned() {
    let gguf = model(&[("blk.0.ffn_up.weight", &[2000, 256], "f32", &noise(2000 * 256))]);
    let quantizer = Quantizer::new(&gguf, options("q8_0")).unwrap();
    let mut calls = 0;
    let stopped = quantizer.write(Vec::new(), |written| {
        calls += 1;
        if written > 100_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(QuantizeError::Interrupted)) && calls > 2);
    let quantizer = Quantizer::new(&gguf, options("q8_0")).unwrap();
    let mut small = [0; 100_000];
    let full = quantizer.write(&mut small[..], |_| ControlFlow::Continue(()));
    assert!(matches!(full, Err(QuantizeError::Gguf(_))));
}
