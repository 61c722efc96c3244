//! Adapters of PEFT: the folders of `golden/lora` become the GGUF files that other converters made of them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sterna::convert::peft;
use sterna::gguf::Gguf;
use support::golden;

/// Adapters, and their models.
const ADAPTERS: [(&str, &str); 9] = [
    ("llama-a", "llama/tiny-f16.gguf"),
    ("llama-b", "llama/tiny-f16.gguf"),
    ("llama-c", "llama/tiny-f16.gguf"),
    ("qwen3-a", "qwen3/tiny-f16.gguf"),
    ("qwen3moe-a", "qwen3moe/tiny-f16.gguf"),
    ("qwen3moe-t", "qwen3moe/tiny-f16.gguf"),
    ("qwen35-a", "qwen35/tiny-f16.gguf"),
    ("bitnet-a", "bitnet/tiny-i2_s.gguf"),
    ("llama-i2_s-a", "llama-i2_s/tiny-i2_s.gguf"),
];

fn decoded(gguf: &Gguf, name: &str) -> Vec<f32> {
    let tensor = gguf.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.rows * tensor.cols];
    for (row, values) in values.chunks_exact_mut(tensor.cols).enumerate() {
        tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, values).unwrap();
    }
    values
}

#[test]
fn folders_become_the_files_of_other_converters() {
    for (name, base) in ADAPTERS {
        let (Some(folder), Some(base)) = (golden(&format!("lora/{name}")), golden(base)) else { return };
        let base = Gguf::open(&base).unwrap();
        let made = Gguf::from_bytes(peft::adapter(&folder, &base).unwrap()).unwrap();
        let want = Gguf::open(&golden(&format!("lora/{name}.gguf")).unwrap()).unwrap();
        for key in ["general.architecture", "general.type", "adapter.type", "adapter.lora.alpha"] {
            assert_eq!(made.metadata().get(key), want.metadata().get(key), "{name}: {key}");
        }
        let names = |gguf: &Gguf| {
            let mut names: Vec<_> =
                gguf.tensors().iter().map(|info| (info.name.clone(), info.dims.clone())).collect();
            names.sort();
            names
        };
        assert_eq!(names(&made), names(&want), "{name}");
        for info in want.tensors() {
            let (made, want) = (decoded(&made, &info.name), decoded(&want, &info.name));
            // Factors that are multiplied into B are rounded once, in f32 or in f64 before.
            let is_same = |a: f32, b: f32| match name {
                "llama-c" => (a - b).abs() <= 2e-7 * b.abs(),
                _ => a.to_bits() == b.to_bits(),
            };
            assert!(made.iter().zip(&want).all(|(a, b)| is_same(*a, *b)), "{name}: {}", info.name);
        }
    }
}

/// Copies an adapter's folder with changed keys of its configuration.
fn changed(from: &Path, to: &Path, change: &Value) {
    let mut config: Value =
        serde_json::from_slice(&fs::read(from.join("adapter_config.json")).unwrap()).unwrap();
    for (key, value) in change.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(to.join("adapter_config.json"), config.to_string()).unwrap();
    let weights = fs::read(from.join("adapter_model.safetensors")).unwrap();
    fs::write(to.join("adapter_model.safetensors"), weights).unwrap();
}

#[test]
fn what_is_not_a_pair_is_refused_by_name() {
    let (Some(folder), Some(base)) = (golden("lora/llama-a"), golden("llama/tiny-f16.gguf")) else { return };
    let base = Gguf::open(&base).unwrap();
    for (change, word) in [
        (json!({ "peft_type": "IA3" }), "peft_type"),
        (json!({ "use_dora": true }), "use_dora"),
        (json!({ "modules_to_save": ["lm_head"] }), "modules_to_save"),
        (json!({ "bias": "all" }), "bias"),
        (json!({ "lora_bias": true }), "lora_bias"),
        (json!({ "layer_replication": [[0, 2]] }), "layer_replication"),
        (json!({ "alora_invocation_tokens": [1] }), "alora_invocation_tokens"),
        (json!({ "alpha_pattern": { "(": 1 } }), "alpha_pattern"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        changed(&folder, dir.path(), &change);
        let err = peft::adapter(dir.path(), &base).unwrap_err().to_string();
        assert!(err.contains(word), "{err}");
    }
    // The model is another one: its name for a tensor, and its shapes.
    for (model, word) in [("qwen3moe/tiny-f16.gguf", "mlp"), ("qwen3/tiny-f16.gguf", "want [")] {
        let Some(base) = golden(model) else { continue };
        let err = peft::adapter(&folder, &Gguf::open(&base).unwrap()).unwrap_err().to_string();
        assert!(err.contains("model.layers.0.") && err.contains(word), "{err}");
    }
    // Factors by pattern: an alpha of its own is multiplied into B.
    let dir = tempfile::tempdir().unwrap();
    changed(&folder, dir.path(), &json!({ "alpha_pattern": { "v_proj": 32 } }));
    let made = Gguf::from_bytes(peft::adapter(dir.path(), &base).unwrap()).unwrap();
    assert!(made.metadata().get("adapter.lora.alpha").is_none());
    let plain = Gguf::from_bytes(peft::adapter(&folder, &base).unwrap()).unwrap();
    for (name, factor) in [("blk.0.attn_v.weight.lora_b", 4.0), ("blk.1.attn_q.weight.lora_b", 2.0)] {
        let (made, plain) = (decoded(&made, name), decoded(&plain, name));
        assert!(made.iter().zip(&plain).all(|(a, b)| *a == factor * b), "{name}");
    }
}
