//! Checkpoints of `scripts/golden/checkpoints`, whose logits `tests/engine/golden_hf.rs` compares: the names
//! and dimensions of their tensors are those of llama.cpp's converter, and what GGUF cannot express is
//! refused.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value as Json, json};
use sterna::gguf::{Array, Gguf, Value};
use support::golden;

use super::folder::{Folder, Raw, read};
use super::{convert, to, values};

fn folder(name: &str) -> Folder {
    let path = golden(&format!("checkpoints/{name}")).expect("it is in tests/data");
    let json = |name: &str| serde_json::from_slice(&fs::read(path.join(name)).unwrap()).unwrap();
    let mut tensors = read(&path.join("model.safetensors"));
    tensors.retain(|name, _| !name.starts_with("model.vision_"));
    Folder { config: json("config.json"), tokenizer: json("tokenizer.json"), tensors }
}

/// Names of tensors without the numbers of layers, and their numbers of dimensions; keys of the architecture.
fn names(gguf: &Gguf) -> (BTreeSet<(String, usize)>, BTreeSet<String>) {
    let short =
        |name: &str| name.splitn(3, '.').nth(2).filter(|_| name.starts_with("blk")).map(str::to_owned);
    let tensors = gguf
        .tensors()
        .iter()
        .map(|info| (short(&info.name).unwrap_or_else(|| info.name.clone()), info.dims.len()));
    let arch = gguf.metadata().str("general.architecture").unwrap().unwrap();
    let keys = gguf.metadata().iter().filter_map(|(key, _)| Some(key.strip_prefix(arch)?.to_owned()));
    (tensors.collect(), keys.collect())
}

/// Checkpoint, llama.cpp's file of the architecture, and keys that it does not have.
const CASES: [(&str, &str, &[&str]); 7] = [
    (
        "glm4-moe-lite",
        "deepseek2/tiny-f16.gguf",
        &[".expert_shared_feed_forward_length", ".nextn_predict_layers"],
    ),
    (
        "deepseek-v2",
        "deepseek2/tiny-lite-f16.gguf",
        &[
            ".expert_gating_func",
            ".expert_shared_feed_forward_length",
            ".expert_weights_norm",
            ".nextn_predict_layers",
        ],
    ),
    (
        "granite-h",
        "granitehybrid/tiny-f16.gguf",
        &[".attention.key_length", ".attention.value_length", ".expert_feed_forward_length"],
    ),
    (
        "granite-h-dense",
        "granitehybrid/tiny-dense-f16.gguf",
        &[".attention.key_length", ".attention.value_length"],
    ),
    ("falcon-h1", "falcon-h1/tiny-f16.gguf", &[".rope.dimension_count"]),
    ("gemma3n", "gemma3n/tiny-f16.gguf", &[]),
    (
        "nemotron-h-moe",
        "nemotron_h_moe/tiny-f16.gguf",
        &[
            ".attention.layer_norm_rms_epsilon",
            ".expert_gating_func",
            ".leading_dense_block_count",
            ".nextn_predict_layers",
        ],
    ),
];

#[test]
fn names_and_keys_are_those_of_llama_cpp() {
    for (name, theirs, more) in CASES {
        let Some(path) = golden(theirs) else { continue };
        let (ours, ..) = convert(folder(name).write().path(), &to("f16")).unwrap();
        let (ours, theirs) = (names(&ours), names(&Gguf::open(&path).unwrap()));
        assert_eq!(ours.0, theirs.0, "{name}");
        let added: Vec<&String> = ours.1.difference(&theirs.1).collect();
        assert_eq!(added, more, "{name}");
        // Defaults of readers, and counts of experts that are 0.
        let usual = [
            ".expert_count",
            ".expert_used_count",
            ".expert_gating_func",
            ".rope.scaling.yarn_beta_fast",
            ".rope.scaling.yarn_beta_slow",
        ];
        // Nemotron-H has no RoPE.
        let is_usual =
            |key: &str| usual.contains(&key) || name == "nemotron-h-moe" && key == ".rope.dimension_count";
        let lacks: Vec<&String> =
            theirs.1.difference(&ours.1).filter(|key| !is_usual(key.as_str())).collect();
        assert!(lacks.is_empty(), "{name}: {lacks:?}");
    }
}

/// Keys of the configuration with values that are refused, and words of the error.
#[test]
fn what_gguf_cannot_express_is_refused() {
    let cases: [(&str, &str, Json, &str); 27] = [
        ("mamba2", "time_step_limit", json!([0.0, 0.5]), "do not limit time steps"),
        ("mamba2", "n_groups", json!(3), "a divisor of the 8 heads"),
        ("glm4-moe-lite", "rope_interleave", json!(false), "want true"),
        ("glm4-moe-lite", "scoring_func", json!("tanh"), "softmax or sigmoid"),
        ("glm4-moe-lite", "mlp_layer_types", json!(["sparse", "dense", "sparse"]), "then sparse ones"),
        ("deepseek-v3", "topk_method", json!("group_limited_greedy"), "noaux_tc"),
        (
            "deepseek-v2",
            "rope_parameters",
            json!({"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5}),
            "the value of `mscale`",
        ),
        ("granite-h", "layer_types", json!(["mamba", "mamba"]), "4 kinds, one per layer"),
        ("granite-h", "layer_types", json!(["mamba", "rnn", "mamba", "mamba"]), "found \"rnn\""),
        ("granite-h", "mamba_n_groups", json!(3), "a divisor of the 4 heads"),
        ("falcon-h1", "time_step_limit", json!([0.0, 0.5]), "do not limit time steps"),
        ("falcon-h1", "mamba_rms_norm", json!(true), "mamba_norm_before_gate"),
        ("falcon-h1", "ssm_multipliers", json!([1.0, 2.0]), "5 numbers above 0"),
        ("nemotron-h", "hybrid_override_pattern", json!("M-*MX"), "only M, *, - and E"),
        ("nemotron-h", "hybrid_override_pattern", json!("M-*ME"), "either mlp or moe"),
        ("nemotron-3-super", "moe_latent_size", json!(8), "want [16, 8]"),
        ("gemma3n", "altup_num_inputs", json!(2), "want 4"),
        ("gemma3n", "activation_sparsity_pattern", json!([0.95]), "for each of 5 layers"),
        ("laguna", "gating", json!(false), "per-head or per-element"),
        ("laguna", "gating_types", json!(["per-head", "per-element"]), "per-head in all layers"),
        ("laguna", "num_attention_heads_per_layer", json!([4, 4]), "a number for each of 4 layers"),
        ("laguna", "moe_router_logit_softcapping", json!(30.0), "GGUF has no key for it"),
        (
            "laguna",
            "layer_types",
            json!(["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]),
            "the first of every four layers",
        ),
        ("muse-glimmer", "post_norm_eps", json!(1e-5), "want 1e-8"),
        ("muse-glimmer", "layer_rope_theta", json!([5000.0, 5000.0, 0, 0]), "0 for the others"),
        ("muse-glimmer", "hidden_activation", json!("gelu"), "want silu"),
        ("nemotron-h", "mlp_hidden_act", json!("silu"), "relu2"),
    ];
    for (name, key, value, want) in cases {
        let mut folder = folder(name);
        let text = folder.config.get("text_config").is_some();
        let config = if text { &mut folder.config["text_config"] } else { &mut folder.config };
        config[key] = value;
        let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
        assert!(said.contains(want), "{name}, {key}: {said}");
    }
    for (name, tensor) in [
        ("glm4-moe-lite", "model.layers.0.self_attn.q_b_proj.weight"),
        ("deepseek-v3", "model.layers.2.self_attn.kv_b_proj.weight"),
        ("granite-h", "model.layers.0.mamba.norm.weight"),
        ("falcon-h1", "model.layers.1.mamba.D"),
        ("nemotron-h", "backbone.layers.2.mixer.q_proj.weight"),
    ] {
        let mut folder = folder(name);
        folder.tensors.remove(tensor).expect("it is there");
        let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
        assert!(said.contains(tensor) && said.contains("is missing"), "{name}: {said}");
    }
}

/// A block for multi-token prediction is a layer after the last one, with latent attention as well.
#[test]
fn latent_blocks_for_drafts_are_converted() {
    let mut folder = folder("glm4-moe-lite");
    let copies: Vec<(String, Raw)> = folder
        .tensors
        .iter()
        .filter_map(|(name, raw)| {
            Some((format!("model.layers.3.{}", name.strip_prefix("model.layers.2.")?), raw.clone()))
        })
        .collect();
    folder.tensors.extend(copies);
    let numbers: Vec<f32> = (0..32 * 64).map(|i| i as f32 / 2048.0).collect();
    let eh_proj = Raw::f32s(&[32, 64], &numbers);
    folder.tensors.insert("model.layers.3.eh_proj.weight".to_owned(), eh_proj);
    for (name, value) in [("enorm", 1.5), ("hnorm", 2.5), ("shared_head.norm", 3.5)] {
        let norm = Raw::f32s(&[32], &[value; 32]);
        folder.tensors.insert(format!("model.layers.3.{name}.weight"), norm);
    }
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    assert_eq!(values(&ours, "blk.3.nextn.eh_proj.weight"), numbers);
    for (name, value) in [("enorm", 1.5), ("hnorm", 2.5), ("shared_head_norm", 3.5)] {
        assert_eq!(values(&ours, &format!("blk.3.nextn.{name}.weight")), [value; 32]);
    }
    let of_layer = ours.tensors().iter().filter(|info| info.name.starts_with("blk.2."));
    let of_layer = of_layer.inspect(|want| {
        let name = want.name.replace("blk.2.", "blk.3.");
        let got = ours.find(&name).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(ours.raw_bytes(got).unwrap() == ours.raw_bytes(want).unwrap(), "{name}");
    });
    assert!(of_layer.count() > 10);
    assert_eq!(ours.metadata().get("deepseek2.nextn_predict_layers"), Some(&1_u32.into()));
}

/// Nemotron 3's block has two layers in checkpoints.
#[test]
fn nemotron_blocks_for_drafts_are_converted() {
    let mut folder = folder("nemotron-3-super");
    for (from, to) in [("backbone.layers.2.", "mtp.layers.0."), ("backbone.layers.3.", "mtp.layers.1.")] {
        let copies = folder.tensors.iter().filter_map(|(name, raw)| {
            Some((name.strip_prefix(from).map(|rest| format!("{to}{rest}"))?, raw.clone()))
        });
        folder.tensors.extend(copies.collect::<Vec<_>>());
    }
    let numbers: Vec<f32> = (0..32 * 64).map(|i| i as f32 / 2048.0).collect();
    let eh_proj = Raw::f32s(&[32, 64], &numbers);
    folder.tensors.insert("mtp.layers.0.eh_proj.weight".to_owned(), eh_proj);
    for (name, value) in [("0.enorm", 1.5), ("0.hnorm", 2.5), ("1.final_layernorm", 3.5)] {
        let norm = Raw::f32s(&[32], &[value; 32]);
        folder.tensors.insert(format!("mtp.layers.{name}.weight"), norm);
    }
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    assert_eq!(values(&ours, "blk.5.nextn.eh_proj.weight"), numbers);
    for (name, value) in [("enorm", 1.5), ("hnorm", 2.5), ("shared_head_norm", 3.5)] {
        assert_eq!(values(&ours, &format!("blk.5.nextn.{name}.weight")), [value; 32]);
    }
    let mut n = 0;
    for want in ours.tensors() {
        let name = match want.name.as_str() {
            "blk.3.attn_norm.weight" => "blk.5.post_attention_norm.weight".to_owned(),
            name if name.starts_with("blk.2.") => name.replace("blk.2.", "blk.5."),
            name if name.starts_with("blk.3.") => name.replace("blk.3.", "blk.5."),
            _ => continue,
        };
        let got = ours.find(&name).unwrap_or_else(|| panic!("{name} is missing"));
        assert!(ours.raw_bytes(got).unwrap() == ours.raw_bytes(want).unwrap(), "{name}");
        n += 1;
    }
    // Attention has 5 tensors, the mixture 9.
    assert_eq!(n, 14);
    for (key, value) in [
        ("attention.head_count_kv", Array::from_i32s([0, 0, 2, 0, 0, 2]).into()),
        ("feed_forward_length", Array::from_i32s([0, 16, 0, 16, 0, 16]).into()),
        ("nextn_predict_layers", Value::U32(1)),
    ] {
        assert_eq!(ours.metadata().get(&format!("nemotron_h_moe.{key}")), Some(&value), "{key}");
    }
}

/// Nemotron's published form of the kinds, and infinity as Python writes it.
#[test]
fn older_configurations_give_the_same_file() {
    let new = folder("nemotron-h");
    let (want, ..) = convert(new.write().path(), &to("f16")).unwrap();
    let mut old = new;
    let config = old.config.as_object_mut().unwrap();
    config.remove("layers_block_type");
    config.insert("hybrid_override_pattern".into(), json!("M-*M-"));
    let dir = old.write();
    let text = old.config.to_string().replace("{\"__float__\":\"Infinity\"}", "Infinity");
    assert!(text.contains("0.0,Infinity"), "{text}");
    fs::write(dir.path().join("config.json"), text).unwrap();
    let (got, ..) = convert(dir.path(), &to("f16")).unwrap();
    for info in want.tensors() {
        let ours = got.find(&info.name).unwrap();
        assert!(got.raw_bytes(ours).unwrap() == want.raw_bytes(info).unwrap(), "{}", info.name);
    }
    let keys = |gguf: &Gguf| -> Vec<(String, String)> {
        let nemotron = gguf.metadata().iter().filter(|(key, _)| key.starts_with("nemotron_h"));
        nemotron.map(|(key, value)| (key.to_owned(), format!("{value:?}"))).collect()
    };
    assert_eq!(keys(&got), keys(&want));
    fs::write(dir.path().join("config.json"), "{\"a\": Infinit}").unwrap();
    let said = convert(dir.path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("not valid JSON"), "{said}");
}
