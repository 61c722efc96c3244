//! Checkpoints of `scripts/golden/transformers`: their configurations and names are transformers' own, or,
//! for what it has under another name, those of published checkpoints.

use std::fs;

use serde_json::{Value as Json, json};
use sterna::gguf::{Gguf, Value};
use support::golden;

use super::folder::{Folder, Raw};
use super::round_trip::{assert_has_all, halves, raw};
use super::{convert, to, values};

/// A checkpoint, and the file that it becomes.
fn checkpoint(name: &str) -> Option<(Folder, Gguf)> {
    let path = golden(&format!("transformers/{name}.gguf"))?;
    let gguf = Gguf::open(&path).unwrap();
    let json: Json = serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
    let of_file = |(to, from): (&String, &Json)| -> Vec<(String, Raw)> {
        let mut raw = raw(&gguf, from.as_str().unwrap());
        if to.contains('*') {
            let Raw { dtype, shape, bytes } = raw;
            let each = bytes.chunks(bytes.len() / shape[0]).enumerate();
            let of_expert = |(at, bytes): (usize, &[u8])| {
                let raw = Raw { dtype: dtype.clone(), shape: shape[1..].to_vec(), bytes: bytes.to_vec() };
                (to.replace('*', &at.to_string()), raw)
            };
            return each.map(of_expert).collect();
        }
        if to.ends_with("conv.conv.weight") {
            raw.shape.insert(1, 1);
        } else if to.contains("moe_statics") {
            raw.shape.insert(0, 1);
        }
        let is_of_heads = to.contains("q_proj.weight") || to.contains("k_proj.weight");
        if json["permuted"] == true && is_of_heads {
            let head_dim = json["config"]["head_dim"].as_u64().unwrap_or(8) as usize;
            raw.bytes = halves(&raw.bytes, raw.shape[0] / head_dim, head_dim);
        }
        if let Some(groups) = json["groups"].as_u64().filter(|_| to.contains("query_key_value")) {
            raw.bytes = grouped(&raw.bytes, groups as usize, raw.shape[0] / 8);
        }
        if ["gemma", "nemotron"].contains(&name) && to.ends_with("norm.weight") {
            // These norms multiply by 1 + w.
            let values: Vec<f32> = values(&gguf, from.as_str().unwrap()).iter().map(|w| w - 1.0).collect();
            raw = Raw::f32s(&[values.len()], &values);
        }
        vec![(to.clone(), raw)]
    };
    let tensors = json["names"].as_object().unwrap().iter().flat_map(of_file).collect();
    let folder = Folder { config: json["config"].clone(), tokenizer: super::folder::tokenizer(64), tensors };
    Some((folder, gguf))
}

#[test]
fn checkpoints_of_transformers_round_trip() {
    for name in [
        "arcee",
        "seed_oss",
        "ernie4_5",
        "hunyuan-dense",
        "exaone4",
        "cohere2",
        "command-r",
        "starcoder2",
        "stablelm",
        "dots1",
        "ernie4_5-moe",
        "hunyuan-moe",
        "afmoe",
        "qwen2moe",
        "lfm2moe",
        "gemma",
        "olmoe",
        "exaone",
        "phi2",
        "nemotron",
        "gptneox",
        "falcon",
        "falcon-40b",
        "chatglm",
        "olmo",
        "olmo-bounded",
        "starcoder",
        "minimax-m2",
    ] {
        let Some((folder, gguf)) = checkpoint(name) else { return };
        assert_has_all(&folder, &gguf);
    }
}

/// The names that published checkpoints of GPT-NeoX have, and a Falcon without a number of key heads, which
/// has one.
#[test]
fn old_configurations_are_read() {
    let Some((mut folder, gguf)) = checkpoint("gptneox") else { return };
    for key in ["rope_parameters", "partial_rotary_factor"] {
        folder.config[key] = Json::Null;
    }
    folder.config["rotary_pct"] = json!(0.25);
    folder.config["rotary_emb_base"] = json!(5000.0);
    assert_has_all(&folder, &gguf);
    let head = folder.tensors.remove("lm_head.weight").unwrap();
    folder.tensors.insert("embed_out.weight".to_owned(), head);
    assert_has_all(&folder, &gguf);
    folder.config["use_parallel_residual"] = json!(false);
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    let parallel = ours.metadata().get("gptneox.use_parallel_residual");
    assert_eq!(parallel, Some(&Value::Bool(false)));
    let Some((mut folder, gguf)) = checkpoint("falcon") else { return };
    folder.config.as_object_mut().unwrap().remove("multi_query");
    assert_has_all(&folder, &gguf);
}

#[test]
fn what_gguf_cannot_express_is_refused() {
    for (name, key, value, want) in [
        ("falcon", "alibi", json!(true), "want false"),
        ("falcon", "bias", json!(true), "want false"),
        ("falcon", "parallel_attn", json!(false), "want true"),
        ("falcon", "activation", json!("relu"), "want gelu"),
        ("gptneox", "hidden_act", json!("gelu_fast"), "want gelu"),
        ("nemotron", "hidden_act", json!("silu"), "want relu2"),
        ("phi2", "qk_layernorm", json!(true), "want false"),
        ("olmoe", "norm_topk_prob", json!(true), "want false"),
        ("olmoe", "clip_qkv", json!(8.0), "want none"),
        ("starcoder", "multi_query", json!(false), "want true"),
        ("minimax-m2", "scoring_func", json!("softmax"), "want sigmoid"),
        ("minimax-m2", "rotary_dim", json!(7), "an even number"),
        ("chatglm", "hidden_act", json!("gelu"), "want silu"),
    ] {
        let Some((mut folder, _)) = checkpoint(name) else { return };
        folder.config[key] = value;
        let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
        assert!(said.contains(key) && said.contains(want), "{name}, {key}: {said}");
    }
}

/// Rows of the heads of all queries, all keys and all values, as those of each group.
fn grouped(bytes: &[u8], groups: usize, n_heads: usize) -> Vec<u8> {
    let heads: Vec<&[u8]> = bytes.chunks(bytes.len() / n_heads).collect();
    let (queries, others) = heads.split_at(n_heads - 2 * groups);
    let (keys, values) = others.split_at(groups);
    let of_group = |group: usize| {
        let own = &queries[group * queries.len() / groups..(group + 1) * queries.len() / groups];
        own.iter().chain([&keys[group], &values[group]]).copied().flatten().copied()
    };
    (0..groups).flat_map(of_group).collect()
}
