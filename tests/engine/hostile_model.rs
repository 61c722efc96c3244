//! Broken models: for any file contents, loading and running ends with a result or an error.

use bytes::Bytes;
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::{Array, Gguf, GgufWriter, Metadata, Value, ValueType};

fn model() -> Vec<u8> {
    std::fs::read(support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data")).unwrap()
}

/// Loads a model, and if that succeeds, runs it and opens the tokenizer.
fn try_all(bytes: Vec<u8>) -> Result<(), sterna::Error> {
    let options = EngineOptions { threads: Some(1), n_ctx: Some(8), ..EngineOptions::default() };
    let engine = Engine::from_bytes(Bytes::from(bytes), &options)?;
    engine.session()?.logits(&[0, 1])?;
    engine.tokenizer()?;
    Ok(())
}

#[test]
fn changed_header_bytes_do_not_panic() {
    let good = model();
    try_all(good.clone()).unwrap();
    // Metadata and tensor descriptions end at the first tensor.
    let gguf = Gguf::from_bytes(Bytes::from(good.clone())).unwrap();
    let end = gguf.tensors().iter().map(|tensor| tensor.start as usize).min().unwrap();
    let mut failed = 0;
    let mut state = 1u64;
    for _ in 0..400 {
        // A linear congruential generator (Knuth's MMIX constants), for offsets and values.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mut bytes = good.clone();
        let at = (state >> 33) as usize % end;
        bytes[at] = (state >> 24) as u8;
        failed += usize::from(try_all(bytes).is_err());
    }
    assert!(failed > 0, "no change was detected");
}

#[test]
fn truncated_files_are_refused() {
    let good = model();
    let cuts = (0..64).map(|at| at * good.len() / 64).chain(good.len() - 40..good.len());
    for len in cuts {
        assert!(try_all(good[..len].to_vec()).is_err(), "cut to {len} bytes");
    }
}

/// The model with one metadata value replaced.
fn with(key: &str, value: Value) -> Vec<u8> {
    with_in(model(), key, value)
}

/// A file with one metadata value replaced.
fn with_in(file: Vec<u8>, key: &str, value: Value) -> Vec<u8> {
    changed(&file, |metadata| metadata.set(key, value), str::to_owned)
}

fn changed<T>(
    file: &[u8],
    change: impl FnOnce(&mut Metadata) -> T,
    named: impl Fn(&str) -> String,
) -> Vec<u8> {
    let gguf = Gguf::from_bytes(Bytes::from(file.to_vec())).unwrap();
    let mut metadata = gguf.metadata().clone();
    change(&mut metadata);
    let mut writer = GgufWriter::new(metadata).unwrap();
    for info in gguf.tensors() {
        writer.tensor(&named(&info.name), &info.dims, info.type_id, info.n_bytes).unwrap();
    }
    let mut data = writer.begin(Vec::new()).unwrap();
    for info in gguf.tensors() {
        data.tensor([gguf.raw_bytes(info).unwrap()]).unwrap();
    }
    data.finish().unwrap()
}

/// A file without a metadata value.
pub(super) fn without(file: Vec<u8>, key: &str) -> Vec<u8> {
    changed(&file, |metadata| metadata.remove(key), str::to_owned)
}

/// A file with one tensor renamed.
pub(super) fn renamed(file: &[u8], name: &str, other: &str) -> Vec<u8> {
    changed(file, |_| (), |found| if found == name { other } else { found }.to_owned())
}

#[test]
fn metadata_that_contradicts_tensors_is_refused() {
    for (key, value, word) in [
        ("embedding_length", 768u32, "token_embd.weight: want [640, 768], file has [640, 384] f16"),
        ("feed_forward_length", 4096, "blk.0.ffn_gate.weight: want [4096, 384]"),
        ("attention.head_count", 6, "rope.dimension_count"),
        ("block_count", 4_000_000, "blk.3.attn_norm.weight: want [384], file has no tensor of that name"),
        ("attention.head_count_kv", 0, "attention.head_count_kv"),
        ("context_length", 0, "context_length"),
        ("attention.key_length", 1 << 29, "blk.0"),
    ] {
        let message = try_all(with(&format!("bitnet-b1.58.{key}"), value.into())).unwrap_err().to_string();
        assert!(message.contains(word), "{key} = {value}: {message}");
    }
}

/// Keys of some architectures: the error names the key, and a huge number of layers allocates no memory.
#[test]
fn invalid_metadata_is_refused_by_key() {
    for (file, key, values) in [
        ("gemma3/tiny-f16.gguf", "attention.sliding_window", vec![Value::from(0u32)]),
        ("gemma3/tiny-f16.gguf", "attention.sliding_window_pattern", vec![Value::from(0u32)]),
        ("gemma3/tiny-f16.gguf", "block_count", vec![Value::from(1u32 << 30)]),
        (
            "gemma3/tiny-f16.gguf",
            "final_logit_softcapping",
            [0.0, -1.0, f32::NAN, f32::INFINITY].map(Value::from).to_vec(),
        ),
        ("gemma3/tiny-f16.gguf", "rope.freq_base_swa", [0.0, 1.0, -1e6, f32::NAN].map(Value::from).to_vec()),
        ("minicpm/tiny-points.gguf", "embedding_scale", [0.0, -1.0, f32::NAN].map(Value::from).to_vec()),
        ("minicpm/tiny-points.gguf", "residual_scale", [0.0, f32::INFINITY].map(Value::from).to_vec()),
        ("minicpm/tiny-points.gguf", "logit_scale", [0.0, 1e9].map(Value::from).to_vec()),
        ("minicpm/tiny-points.gguf", "rope.scaling.type", vec![Value::from("longrope")]),
        ("gpt-oss/tiny-mxfp4.gguf", "expert_count", vec![Value::from(0u32), Value::from(1u32 << 31)]),
        ("gpt-oss/tiny-mxfp4.gguf", "expert_used_count", vec![Value::from(0u32), Value::from(7u32)]),
        ("gpt-oss/tiny-mxfp4.gguf", "expert_feed_forward_length", vec![Value::from(0u32)]),
        ("gpt-oss/tiny-mxfp4.gguf", "attention.sliding_window", vec![Value::from(0u32)]),
        (
            "gpt-oss/tiny-mxfp4.gguf",
            "rope.scaling.factor",
            [0.0, -1.0, f32::NAN, 1e-9].map(Value::from).to_vec(),
        ),
    ] {
        let Some(path) = support::golden(file) else { continue };
        let good = std::fs::read(path).unwrap();
        let architecture = file.split('/').next().expect("a folder");
        for value in values {
            let shown = format!("{value:?}");
            let broken = with_in(good.clone(), &format!("{architecture}.{key}"), value);
            let message = try_all(broken).unwrap_err().to_string();
            let named = if key == "block_count" { "blk." } else { key };
            assert!(message.contains(named), "{file}, {key} = {shown}: {message}");
        }
    }
}

/// The error names the key or the tensor.
#[test]
fn invalid_delta_nets_are_refused() {
    let good = super::recurrent::file();
    try_all(good.clone()).unwrap();
    let of = |key: &str, value: Value| with_in(good.clone(), &format!("qwen35.{key}"), value);
    let truths = |truths: &[Value]| Value::Array(Array::from_values(ValueType::Bool, truths));
    for (key, values) in [
        ("ssm.time_step_rank", [0, 1 << 17, 1 << 20, u32::MAX]),
        ("ssm.group_count", [0, 3, 8, u32::MAX]),
        ("ssm.state_size", [0, 33, 1 << 12, u32::MAX]),
        ("ssm.inner_size", [0, 64, 129, u32::MAX]),
        ("ssm.conv_kernel", [0, 1, 9, u32::MAX]),
        ("nextn_predict_layers", [5, 6, 1 << 20, u32::MAX]),
    ] {
        for value in values {
            let message = try_all(of(key, value.into())).unwrap_err().to_string();
            assert!(message.contains(&format!("qwen35.{key}: want ")), "{key} = {value}: {message}");
        }
    }
    for (key, value) in [
        ("rope.dimension_sections", Value::Array(Array::from_i32s([1, 1, 0, 0]))),
        ("attention.recurrent_layers", truths(&[true; 4].map(Value::Bool))),
        ("attention.recurrent_layers", Value::Array(Array::from_strs(["a"; 5]))),
        ("attention.recurrent_layers", Value::from(1u32)),
        ("ssm.state_size", Value::from("many")),
    ] {
        let message = try_all(of(key, value)).unwrap_err().to_string();
        assert!(message.contains(&format!("qwen35.{key}")), "{key}: {message}");
    }
    let without_list = |file: Vec<u8>| without(file, "qwen35.attention.recurrent_layers");
    for every in [0, 6, u32::MAX] {
        let broken = without_list(of("full_attention_interval", every.into()));
        let message = try_all(broken).unwrap_err().to_string();
        assert!(message.contains("full_attention_interval: want 1 to the 5 blocks"), "{every}: {message}");
    }
    try_all(without_list(good.clone())).unwrap();
    // The maximum number of blocks in a file does not allocate memory.
    let message = try_all(without_list(of("block_count", (1u32 << 30).into()))).unwrap_err().to_string();
    assert!(message.contains("tensor blk.5."), "{message}");
    // If other layers are recurrent, their tensors are missing.
    let flipped = truths(&[true, true, true, true, true].map(Value::Bool));
    let message = try_all(of("attention.recurrent_layers", flipped)).unwrap_err().to_string();
    assert!(message.contains("tensor blk.3.attn_qkv.weight"), "{message}");
    for (name, as_another) in [("blk.0.ssm_a", "blk.0.ssm_b"), ("blk.3.attn_q_norm.weight", "blk.3.q.weight")]
    {
        let message = try_all(renamed(&good, name, as_another)).unwrap_err().to_string();
        assert!(message.contains(&format!("tensor {name}: want")), "{message}");
    }
    let message = try_all(renamed(&good, "output_norm.weight", "v.blk.0.weight")).unwrap_err().to_string();
    assert!(message.contains("tensor output_norm.weight: want"), "{message}");
}

/// The error names the key; an unsupported rotation would give wrong results.
#[test]
fn invalid_rotated_bases_are_refused() {
    let Some(path) = support::golden("qwen35/tiny-rot-pq2_0.gguf") else { return };
    let good = std::fs::read(path).unwrap();
    try_all(good.clone()).unwrap();
    let texts = |texts: &[&str]| Value::Array(Array::from_strs(texts.iter().copied()));
    let ints = |n: usize, value: i32| Value::Array(Array::from_i32s(vec![value; n]));
    for (key, value) in [
        ("version", Value::from(3u32)),
        ("version", Value::from(2u32)),
        ("block_size", Value::from(0u32)),
        ("block_size", Value::from(96u32)),
        ("block_size", Value::from(256u32)),
        ("block_size", Value::from(1u32 << 31)),
        ("transform", Value::from("walsh")),
        ("axis", Value::from("output")),
        ("sign_mode", Value::from("random")),
        ("sign_widths", ints(3, 128)),
        ("sign_widths", Value::Array(Array::from_i32s([-128, 384, 1024]))),
        ("sign_values", ints(1280, 0)),
        ("sign_values", ints(1281, 1)),
        ("sign_values", ints(1279, 1)),
        ("weight_names", texts(&["output.weight", "blk.9.attn_q.weight"])),
        ("weight_names", texts(&["output.weight", "blk.0.ssm_norm.weight"])),
        ("weight_names", Value::from("output.weight")),
        ("inverse_weight_names", texts(&["output.weight"])),
        ("gdn_v_grouped", Value::from(1u32)),
        ("tied_output", Value::Bool(true)),
        ("seed", Value::from(1u32)),
    ] {
        let shown = format!("{value:?}");
        let message = try_all(with_in(good.clone(), &format!("prism.hadamard.{key}"), value)).unwrap_err();
        assert!(message.to_string().contains("metadata prism.hadamard."), "{key} = {shown}: {message}");
    }
    for key in ["version", "block_size", "axis", "sign_mode", "sign_widths", "weight_names"] {
        let message = try_all(without(good.clone(), &format!("prism.hadamard.{key}"))).unwrap_err();
        assert!(message.to_string().contains(&format!("prism.hadamard.{key}: want")), "{key}: {message}");
    }
}

/// Blocks for multi-token prediction, and tensors for images.
#[test]
fn tensors_besides_the_text_model_are_ignored() {
    let good = super::recurrent::file();
    let options = EngineOptions { threads: Some(1), n_ctx: Some(8), ..EngineOptions::default() };
    let logits = |file: Vec<u8>| {
        let engine = Engine::from_bytes(Bytes::from(file), &options).unwrap();
        let warnings = engine.warnings().join(" ");
        (engine.session().unwrap().logits(&[5, 6]).unwrap().to_vec(), warnings)
    };
    // Four layers, and the fifth for multi-token prediction.
    let four = with_in(good, "qwen35.nextn_predict_layers", 1u32.into());
    let (want, _) = logits(four.clone());
    let with_images = renamed(&four, "blk.4.attn_norm.weight", "v.patch_embd.weight");
    let (got, warnings) = logits(with_images);
    assert!(got == want && warnings.contains("images are ignored"), "{warnings}");
}

#[test]
fn invalid_ternary_codes_are_refused_by_tensor_and_row() {
    let good = model();
    let gguf = Gguf::from_bytes(Bytes::from(good.clone())).unwrap();
    let mut tensors = 0;
    for info in gguf.tensors().iter().filter(|info| info.ty.is_some_and(|ty| ty.name() == "i2_s")) {
        let (rows, row_bytes) = (info.rows(), info.cols() / 4);
        for row in [0, rows / 2, rows - 1] {
            let mut bytes = good.clone();
            bytes[info.start as usize + row * row_bytes + row_bytes - 1] |= 0b0000_1100;
            let message = try_all(bytes).unwrap_err().to_string();
            let want =
                format!("tensor {}: want valid i2_s codes, file has an invalid code in row {row}", info.name);
            assert_eq!(message, want);
        }
        // The bytes after the scale are unused.
        let mut bytes = good.clone();
        bytes[info.start as usize + rows * row_bytes + 31] = 0xff;
        try_all(bytes).unwrap();
        tensors += 1;
    }
    assert!(tensors > 7, "{tensors} tensors");
}
