//! Broken models: whatever a file says, loading and running it ends in an answer or an error.

use bytes::Bytes;
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::{Gguf, GgufWriter, Value};

fn model() -> Vec<u8> {
    std::fs::read(support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data")).unwrap()
}

/// Loads, and where that succeeds, tokenizes and runs.
fn try_all(bytes: Vec<u8>) -> Result<(), sterna::Error> {
    let options = EngineOptions { threads: Some(1), n_ctx: Some(8), ..EngineOptions::default() };
    let engine = Engine::from_bytes(Bytes::from(bytes), &options)?;
    engine.session()?.logits(&[0, 1])?;
    engine.tokenizer()?;
    Ok(())
}

#[test]
fn every_broken_byte_of_the_description_is_survived() {
    let good = model();
    try_all(good.clone()).unwrap();
    // Metadata and tensor descriptions end where the first tensor begins.
    let gguf = Gguf::from_bytes(Bytes::from(good.clone())).unwrap();
    let end = gguf.tensors().iter().map(|tensor| tensor.start as usize).min().unwrap();
    let mut failed = 0;
    let mut state = 1u64;
    for _ in 0..400 {
        // A linear congruential generator (Knuth's MMIX constants), for places and values.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let mut bytes = good.clone();
        let at = (state >> 33) as usize % end;
        bytes[at] = (state >> 24) as u8;
        failed += usize::from(try_all(bytes).is_err());
    }
    assert!(failed > 0, "no change was noticed");
}

#[test]
fn every_cut_is_refused() {
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
    let gguf = Gguf::from_bytes(Bytes::from(file)).unwrap();
    let mut metadata = gguf.metadata().clone();
    metadata.set(key, value);
    let mut writer = GgufWriter::new(metadata).unwrap();
    for info in gguf.tensors() {
        writer.tensor(&info.name, &info.dims, info.type_id, info.n_bytes).unwrap();
    }
    let mut data = writer.begin(Vec::new()).unwrap();
    for info in gguf.tensors() {
        data.tensor([gguf.raw_bytes(info).unwrap()]).unwrap();
    }
    data.finish().unwrap()
}

#[test]
fn numbers_that_contradict_the_tensors_are_refused_by_tensor_or_key() {
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

/// What only some architectures read: each by its key, and no number of layers takes memory of its own.
#[test]
fn numbers_of_windows_caps_and_experts_that_make_no_sense_are_refused_by_key() {
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
            let said = format!("{value:?}");
            let broken = with_in(good.clone(), &format!("{architecture}.{key}"), value);
            let message = try_all(broken).unwrap_err().to_string();
            let named = if key == "block_count" { "blk." } else { key };
            assert!(message.contains(named), "{file}, {key} = {said}: {message}");
        }
    }
}

#[test]
fn ternary_codes_without_a_meaning_are_refused_by_tensor_and_row() {
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
        // What lies behind the scale means nothing anyway.
        let mut bytes = good.clone();
        bytes[info.start as usize + rows * row_bytes + 31] = 0xff;
        try_all(bytes).unwrap();
        tensors += 1;
    }
    assert!(tensors > 7, "{tensors} tensors");
}
