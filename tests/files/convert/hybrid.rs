//! Hybrids (Qwen3.5): the text part of a multimodal checkpoint, separate experts, MTP blocks, and broken
//! configurations.

use std::fs;

use serde_json::{Value as Json, json};
use sterna::convert::ConvertOptions;
use sterna::gguf::{Gguf, Value};
use support::golden;

use super::folder::{Folder, Raw, read};
use super::{convert, to};

/// A golden folder, which tests modify.
fn folder(name: &str) -> Folder {
    let path = golden(&format!("hf/{name}")).expect("it is in tests/data");
    let json = |file: &str| -> Json { serde_json::from_slice(&fs::read(path.join(file)).unwrap()).unwrap() };
    let (config, tokenizer) = (json("config.json"), json("tokenizer.json"));
    Folder { config, tokenizer, tensors: read(&path.join("model.safetensors")) }
}

fn converted(folder: &Folder, options: &ConvertOptions) -> (Gguf, Vec<String>) {
    let (gguf, _, notes) = convert(folder.write().path(), options).unwrap();
    (gguf, notes)
}

/// Checks that the tensors and the keys of the architecture are the same.
fn same(one: &Gguf, other: &Gguf) {
    assert_eq!(one.tensors().len(), other.tensors().len());
    for info in one.tensors() {
        let bytes = other.raw_bytes(other.find(&info.name).unwrap()).unwrap();
        assert!(one.raw_bytes(info).unwrap() == bytes, "{}", info.name);
    }
    let keys = |gguf: &Gguf| -> Vec<(String, Value)> {
        let all = gguf.metadata().iter().filter(|(key, _)| key.starts_with("qwen35"));
        let mut all: Vec<_> = all.map(|(key, value)| (key.to_owned(), value.clone())).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    };
    assert_eq!(keys(one), keys(other));
}

/// As in the published checkpoints, the text part is under `model.language_model.`, its configuration is
/// under `text_config`, where `tie_word_embeddings` is ignored, and there is an MTP block.
#[test]
fn text_part_of_multimodal_checkpoint_is_converted() {
    let plain = folder("qwen35");
    let (want, notes) = converted(&plain, &to("f16"));
    assert!(!notes.iter().any(|note| note.contains("left out")), "{notes:?}");

    let mut whole = plain.clone();
    let mut text = plain.config.clone();
    text["tie_word_embeddings"] = json!(false);
    whole.config = json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "tie_word_embeddings": true, "text_config": text, "vision_config": {"hidden_size": 8, "depth": 1},
    });
    whole.tensors = plain
        .tensors
        .into_iter()
        .map(|(name, raw)| (name.replacen("model.", "model.language_model.", 1), raw))
        .collect();
    let some = Raw::f32s(&[2], &[1.0; 2]);
    whole.tensors.insert("model.visual.pos_embed.weight".to_owned(), some);

    let said = convert(whole.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("model.visual.pos_embed.weight") && said.contains("text_only"), "{said}");
    let (got, notes) = converted(&whole, &ConvertOptions { text_only: true, ..to("f16") });
    same(&got, &want);
    let note = "1 tensors that are not part of a text model";
    assert!(notes.iter().any(|said| said.starts_with(note)), "{notes:?}");
}

/// The block for multi-token prediction is converted as llama.cpp's converter does, and may be missing.
#[test]
fn mtp_block_is_kept() {
    let (Some(path), Some(want)) = (golden("mtp/hf"), golden("mtp/tiny-f16.gguf")) else { return };
    let options = ConvertOptions { tokenizer_pre: Some("qwen35".parse().unwrap()), ..to("f16") };
    let (got, _, notes) = convert(&path, &options).unwrap();
    assert!(!notes.iter().any(|note| note.contains("left out")), "{notes:?}");
    let want = Gguf::open(&want).unwrap();
    assert_eq!(got.tensors().len(), want.tensors().len());
    for info in want.tensors() {
        let own = got.find(&info.name).unwrap_or_else(|| panic!("{} is missing", info.name));
        assert_eq!((&own.dims, &own.type_name), (&info.dims, &info.type_name), "{}", info.name);
        assert!(got.raw_bytes(own).unwrap() == want.raw_bytes(info).unwrap(), "{}", info.name);
    }
    for key in ["block_count", "nextn_predict_layers", "attention.recurrent_layers"] {
        let of = |gguf: &Gguf| gguf.metadata().get(&format!("qwen35.{key}")).cloned();
        assert_eq!(of(&got), of(&want), "{key}");
    }

    let json = |file: &str| -> Json { serde_json::from_slice(&fs::read(path.join(file)).unwrap()).unwrap() };
    let (config, tokenizer) = (json("config.json"), json("tokenizer.json"));
    let mut folder = Folder { config, tokenizer, tensors: read(&path.join("model.safetensors")) };
    folder.tensors.remove("mtp.layers.0.mlp.up_proj.weight");
    let said = convert(folder.write().path(), &options).unwrap_err().to_string();
    assert!(said.contains("mtp.layers.0.mlp.up_proj.weight: is missing"), "{said}");
    folder.tensors.retain(|name, _| !name.starts_with("mtp."));
    let (trunk, _, _) = convert(folder.write().path(), &options).unwrap();
    assert!(trunk.tensors().iter().all(|info| !info.name.starts_with("blk.5.")));
    assert_eq!(trunk.metadata().get("qwen35.nextn_predict_layers"), None);
}

#[test]
fn fused_experts_equal_separate_experts() {
    let mut folder = folder("qwen35moe");
    let (want, _) = converted(&folder, &to("f16"));
    for layer in 0..2 {
        let experts = format!("model.layers.{layer}.mlp.experts");
        let mut split = |fused: &str, names: &[&str]| {
            let all = folder.tensors.remove(&format!("{experts}.{fused}")).unwrap();
            let shape = [all.shape[1] / names.len(), all.shape[2]];
            let n_bytes = all.bytes.len() / all.shape[0] / names.len();
            for (at, bytes) in all.bytes.chunks_exact(n_bytes).enumerate() {
                let name = format!("{experts}.{}.{}.weight", at / names.len(), names[at % names.len()]);
                let one = Raw { dtype: all.dtype.clone(), shape: shape.to_vec(), bytes: bytes.to_vec() };
                folder.tensors.insert(name, one);
            }
        };
        split("gate_up_proj", &["gate_proj", "up_proj"]);
        split("down_proj", &["down_proj"]);
    }
    same(&converted(&folder, &to("f16")).0, &want);
    // Rounding uses one scale per matrix and expert in both forms.
    let absmean = ConvertOptions { ternary: Some(sterna::convert::Rounding::Absmean), ..to("f32") };
    same(&converted(&folder, &absmean).0, &converted(&self::folder("qwen35moe"), &absmean).0);
    folder.tensors.remove("model.layers.1.mlp.experts.3.up_proj.weight");
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("experts.3.up_proj.weight: is missing"), "{said}");
}

/// Older configurations have the RoPE keys elsewhere, and an interval instead of a list of layer types.
#[test]
fn older_configuration_keys_are_read() {
    let mut folder = folder("qwen35moe");
    let (want, _) = converted(&folder, &to("f16"));
    let config = folder.config.as_object_mut().unwrap();
    config.remove("rope_parameters");
    config.insert("rope_theta".to_owned(), json!(1e7));
    config.insert("partial_rotary_factor".to_owned(), json!(0.25));
    config.insert("rope_scaling".to_owned(), json!({"type": "default", "mrope_section": [2, 1, 1]}));
    same(&converted(&folder, &to("f16")).0, &want);

    // In this folder the linear attention layer is the second one.
    let mut folder = self::folder("qwen35");
    let config = folder.config.as_object_mut().unwrap();
    config.remove("layer_types");
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("layers.0.linear_attn.in_proj_qkv.weight: is missing"), "{said}");
    for (name, raw) in std::mem::take(&mut folder.tensors) {
        let (from, to) =
            if name.contains("layers.0") { ("layers.0", "layers.1") } else { ("layers.1", "layers.0") };
        folder.tensors.insert(name.replacen(from, to, 1), raw);
    }
    folder.config["full_attention_interval"] = json!(2);
    let (got, _) = converted(&folder, &to("f16"));
    assert_eq!(got.metadata().u32("qwen35.full_attention_interval").unwrap(), Some(2));
    assert!(got.metadata().get("qwen35.attention.recurrent_layers").is_none());
    // The default sections of transformers.
    folder.config["rope_parameters"].as_object_mut().unwrap().remove("mrope_section");
    let (got, _) = converted(&folder, &to("f16"));
    let Some(Value::Array(sections)) = got.metadata().get("qwen35.rope.dimension_sections") else { panic!() };
    let sections: Vec<_> = sections.values().filter_map(|value| value.as_int()).collect();
    assert_eq!(sections, [11, 11, 10, 0]);
}

/// Each error has the key, the expected value and the found value.
#[test]
fn invalid_delta_net_configurations_are_refused() {
    let refused = |name: &str, change: &dyn Fn(&mut Json), words: &[&str]| {
        let mut folder = folder(name);
        change(&mut folder.config);
        let said = convert(folder.write().path(), &to("f16")).expect_err("it is broken").to_string();
        for word in ["config.json", "want ", "found "].iter().chain(words) {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
    };
    for key in [
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ] {
        refused("qwen35", &|config| drop(config.as_object_mut().unwrap().remove(key)), &[key, "found none"]);
        refused("qwen35", &|config| config[key] = json!(0), &[key, "found 0"]);
        refused("qwen35", &|config| config[key] = json!("two"), &[key, "found \"two\""]);
    }
    for (key, value, words) in [
        ("linear_num_value_heads", json!(5), &["a multiple of the 2 key heads", "found 5"][..]),
        ("linear_value_head_dim", json!(64), &["want 32, as `linear_key_head_dim`", "found 64"]),
        ("linear_conv_kernel_dim", json!(3), &["want 4", "found 3"]),
        ("layer_types", json!(["linear_attention"]), &["want 2 kinds, one per layer", "found 1"]),
        ("layer_types", json!("linear_attention"), &["want 2 kinds", "found \"linear_attention\""]),
        ("layer_types", json!([1, 2]), &["linear_attention or full_attention", "found 1"]),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            &["linear_attention or full_attention", "found \"sliding_attention\""],
        ),
        ("hidden_act", json!("gelu"), &["hidden_act", "want silu"]),
    ] {
        refused("qwen35", &|config| config[key] = value.clone(), &[&[key][..1], words].concat());
    }
    let far = |config: &mut Json| config["num_hidden_layers"] = json!(1 << 30);
    refused("qwen35", &far, &["layer_types", "want 1073741824 kinds", "found 2"]);
    let interval = |config: &mut Json| {
        config.as_object_mut().unwrap().remove("layer_types");
        config["full_attention_interval"] = json!(0);
    };
    refused("qwen35", &interval, &["full_attention_interval", "found 0"]);
    for (key, value, words) in [
        ("partial_rotary_factor", json!(0.1), &["an even share", "heads of 32", "found 0.1"][..]),
        ("partial_rotary_factor", json!(-1), &["a number from 0 to 1", "found -1"]),
        ("mrope_section", json!([2, 1]), &["three numbers", "found [2,1]"]),
        ("mrope_section", json!([1, 1, 1]), &["all 4 pairs, including pair 3", "found [1,1,1]"]),
    ] {
        let change = |config: &mut Json| config["rope_parameters"][key] = value.clone();
        refused("qwen35", &change, &[&[key][..], words].concat());
    }
    for key in ["num_experts", "shared_expert_intermediate_size", "moe_intermediate_size"] {
        refused(
            "qwen35moe",
            &|config| drop(config.as_object_mut().unwrap().remove(key)),
            &[key, "found none"],
        );
    }
}

#[test]
fn wrong_delta_net_tensors_are_named() {
    let layer = "model.layers.1.linear_attn";
    let refused = |change: &dyn Fn(&mut Folder), words: &[&str]| {
        let mut folder = folder("qwen35");
        change(&mut folder);
        let said = convert(folder.write().path(), &to("f16")).expect_err("it is broken").to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    for name in ["A_log", "dt_bias", "conv1d.weight", "norm.weight", "in_proj_a.weight", "out_proj.weight"] {
        let name = format!("{layer}.{name}");
        refused(&|folder| drop(folder.tensors.remove(&name)), &[&name, "is missing"]);
    }
    let reshape = |name: &str, shape: &[usize], words: &[&str]| {
        let name = format!("{layer}.{name}");
        let change = |folder: &mut Folder| {
            let raw = folder.tensors.get_mut(&name).unwrap();
            raw.shape = shape.to_vec();
        };
        refused(&change, &[&[name.as_str()], words].concat());
    };
    reshape("conv1d.weight", &[320, 4], &["want [320, 1, 4], found [320, 4]"]);
    reshape("A_log", &[6, 1], &["want [6], found [6, 1]"]);
    reshape("in_proj_z.weight", &[32, 192], &["want [192, 32], found [32, 192]"]);
    // A q_proj without gates.
    let halved = |folder: &mut Folder| {
        let raw = folder.tensors.get_mut("model.layers.0.self_attn.q_proj.weight").unwrap();
        (raw.shape[0], raw.bytes) = (64, raw.bytes[..raw.bytes.len() / 2].to_vec());
    };
    refused(&halved, &["q_proj.weight", "want [128, 32], found [64, 32]"]);
}
