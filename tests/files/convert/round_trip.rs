//! Architectures without a folder in the golden data: a golden GGUF is written back as a checkpoint, by a
//! second copy of the mapping, and converting that must give the same file again. This cannot show that the
//! mapping itself is Hugging Face's; its names are those that transformers documents.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value as Json, json};
use sterna::gguf::{FileTensor, Gguf};
use sterna::model::{self, Model, Options};
use sterna::program::Limits;
use support::golden;

use super::folder::{Folder, Raw, llama, numbers};
use super::{convert, to, values};

/// A GGUF tensor in the form of the checkpoint.
pub(super) fn raw(gguf: &Gguf, name: &str) -> Raw {
    let info = gguf.find(name).unwrap();
    let dtype = if info.type_name == "f16" { "F16" } else { "F32" };
    Raw { dtype: dtype.to_owned(), shape: info.dims.clone(), bytes: gguf.raw_bytes(info).unwrap().to_vec() }
}

fn tokenizer() -> Option<Json> {
    let path = golden("hf/bitnet-packed/tokenizer.json")?;
    Some(serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
}

/// Converts the folder, and compares tensors bit for bit, and the keys of the architecture.
fn assert_round_trip(folder: &Folder, gguf: &Gguf) {
    let architecture = gguf.metadata().str("general.architecture").unwrap().unwrap();
    let theirs = |key: &&str| key.starts_with(architecture);
    let n = |gguf: &Gguf| gguf.metadata().iter().map(|(key, _)| key).filter(theirs).count();
    assert_eq!(n(&assert_has_all(folder, gguf)), n(gguf));
}

/// Likewise, but the converted file may have more keys.
pub(super) fn assert_has_all(folder: &Folder, gguf: &Gguf) -> Gguf {
    let dir = folder.write();
    let (ours, ..) = convert(dir.path(), &to("f16")).unwrap();
    assert_eq!(ours.tensors().len(), gguf.tensors().len());
    for want in gguf.tensors() {
        let got = ours.find(&want.name).unwrap_or_else(|| panic!("{} is missing", want.name));
        if want.name == "per_layer_model_proj.weight" {
            // f32 in every file here, as `quantize` keeps it; llama.cpp writes f16.
            assert!(values(&ours, &want.name) == values(gguf, &want.name));
            continue;
        }
        assert_eq!((&got.dims, got.type_id), (&want.dims, want.type_id), "{}", want.name);
        assert!(ours.raw_bytes(got).unwrap() == gguf.raw_bytes(want).unwrap(), "{}: other values", want.name);
    }
    let architecture = gguf.metadata().str("general.architecture").unwrap().unwrap();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| key.starts_with(architecture)) {
        assert_eq!(ours.metadata().get(key), Some(value), "{key}");
    }
    ours
}

const ATTENTION: [(&str, &str); 4] =
    [("q_proj", "attn_q"), ("k_proj", "attn_k"), ("v_proj", "attn_v"), ("o_proj", "attn_output")];

#[test]
fn gemma3_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("gemma3/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let mut tensors = BTreeMap::new();
    // Multimodal repositories hold the text model under this prefix.
    let mut add = |name: String, raw: Raw| drop(tensors.insert(format!("language_model.model.{name}"), raw));
    let norm = |name: &str| {
        let values: Vec<f32> = values(&gguf, name).iter().map(|value| value - 1.0).collect();
        Raw::f32s(&[values.len()], &values)
    };
    add("embed_tokens.weight".into(), raw(&gguf, "token_embd.weight"));
    add("norm.weight".into(), norm("output_norm.weight"));
    for layer in 0..6 {
        let (to, from) = (format!("layers.{layer}."), format!("blk.{layer}."));
        for (name, ours) in ATTENTION {
            add(format!("{to}self_attn.{name}.weight"), raw(&gguf, &format!("{from}{ours}.weight")));
        }
        for name in ["gate", "up", "down"] {
            add(format!("{to}mlp.{name}_proj.weight"), raw(&gguf, &format!("{from}ffn_{name}.weight")));
        }
        for (name, ours) in [
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
        ] {
            add(format!("{to}{name}.weight"), norm(&format!("{from}{ours}.weight")));
        }
    }
    let text = json!({
        "hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512, "sliding_window": 24,
        "query_pre_attn_scalar": 32, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window_pattern": 6,
    });
    let config = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text});
    let mut folder = Folder { config, tokenizer, tensors };
    assert_round_trip(&folder, &gguf);
    // The same in the spelling of transformers 5.
    let text = &mut folder.config["text_config"];
    text.as_object_mut().unwrap().remove("rope_scaling");
    text.as_object_mut().unwrap().remove("sliding_window_pattern");
    text["rope_parameters"] = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    });
    let kinds = ["sliding_attention", "full_attention"];
    text["layer_types"] = (0..6).map(|layer| kinds[usize::from(layer == 5)]).collect();
    assert_round_trip(&folder, &gguf);
    // An attention scale that no reader of GGUF would use.
    folder.config["text_config"]["query_pre_attn_scalar"] = json!(24);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("query_pre_attn_scalar") && said.contains("want 32"), "{said}");
}

/// If each projection has an input norm, the weights are masters, whatever the configuration says.
#[test]
fn bitnet_embedding_is_converted_from_masters() {
    let Some(tokenizer) = tokenizer() else { return };
    let dim = 128;
    let mut tensors = BTreeMap::new();
    let mut add = |name: &str, shape: &[usize]| {
        let values = numbers(shape.iter().product(), name.len() as u64);
        tensors.insert(name.to_owned(), Raw::f32s(shape, &values));
    };
    add("embed_tokens.weight", &[640, dim]);
    add("norm.weight", &[dim]);
    add("layers.0.input_layernorm.weight", &[dim]);
    add("layers.0.post_attention_layernorm.weight", &[dim]);
    let ffn = 256;
    let mut norms = vec!["attn_q_norm.weight".to_owned(), "attn_k_norm.weight".to_owned()];
    for (name, ours, rows, cols) in [
        ("self_attn.q_proj", "attn_q", 256, dim),
        ("self_attn.k_proj", "attn_k", 64, dim),
        ("self_attn.v_proj", "attn_v", 64, dim),
        ("self_attn.o_proj", "attn_output", dim, 256),
        ("mlp.gate_proj", "ffn_gate", ffn, dim),
        ("mlp.up_proj", "ffn_up", ffn, dim),
        ("mlp.down_proj", "ffn_down", dim, ffn),
    ] {
        add(&format!("layers.0.{name}.weight"), &[rows, cols]);
        add(&format!("layers.0.{name}.norm.weight"), &[cols]);
        norms.push(format!("{ours}_norm_in.weight"));
    }
    add("layers.0.self_attn.q_norm.weight", &[64]);
    add("layers.0.self_attn.k_norm.weight", &[64]);
    let config = json!({
        "architectures": ["Qwen3Model"], "hidden_size": dim, "intermediate_size": ffn, "head_dim": 64,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_act": "silu",
        "max_position_embeddings": 512, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "vocab_size": 640,
        "tie_word_embeddings": true,
    });
    let folder = Folder { config, tokenizer, tensors };
    let (gguf, ..) = convert(folder.write().path(), &to("auto")).unwrap();
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("qwen3"));
    for name in &norms {
        assert_eq!(gguf.find(&format!("blk.0.{name}")).unwrap().type_name, "f32", "{name}");
    }
    let (up, norm) = ("layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.norm.weight");
    assert_eq!(values(&gguf, "blk.0.ffn_up_norm_in.weight"), folder.tensors[norm].values());
    assert_eq!(gguf.find("blk.0.ffn_up.weight").unwrap().type_name, "i2_s");
    let masters = folder.tensors[up].values();
    let mean = masters.iter().map(|w| f64::from(w.abs())).sum::<f64>() / masters.len() as f64;
    for (got, master) in values(&gguf, "blk.0.ffn_up.weight").iter().zip(masters) {
        let want = (f64::from(master) / mean).round_ties_even().clamp(-1.0, 1.0) * mean;
        assert!((f64::from(*got) - want).abs() < 1e-6 * mean, "got {got}, want {want} for {master}");
    }
}

#[test]
fn qwen3moe_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("qwen3moe/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, raw: Raw| drop(tensors.insert(name, raw));
    add("model.embed_tokens.weight".into(), raw(&gguf, "token_embd.weight"));
    add("model.norm.weight".into(), raw(&gguf, "output_norm.weight"));
    add("lm_head.weight".into(), raw(&gguf, "output.weight"));
    for layer in 0..2 {
        let (to, from) = (format!("model.layers.{layer}."), format!("blk.{layer}."));
        for (name, ours) in ATTENTION {
            add(format!("{to}self_attn.{name}.weight"), raw(&gguf, &format!("{from}{ours}.weight")));
        }
        for (name, ours) in [
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("mlp.gate", "ffn_gate_inp"),
        ] {
            add(format!("{to}{name}.weight"), raw(&gguf, &format!("{from}{ours}.weight")));
        }
        for name in ["gate", "up", "down"] {
            let all = raw(&gguf, &format!("{from}ffn_{name}_exps.weight"));
            let (n_experts, shape) = (all.shape[0], all.shape[1..].to_vec());
            for (expert, bytes) in all.bytes.chunks_exact(all.bytes.len() / n_experts).enumerate() {
                let one = Raw { dtype: all.dtype.clone(), shape: shape.clone(), bytes: bytes.to_vec() };
                add(format!("{to}mlp.experts.{expert}.{name}_proj.weight"), one);
            }
        }
    }
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 128, "intermediate_size": 384,
        "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "max_position_embeddings": 512, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false, "decoder_sparse_step": 1, "mlp_only_layers": [],
    });
    let mut folder = Folder { config, tokenizer, tensors };
    assert_round_trip(&folder, &gguf);
    folder.config["norm_topk_prob"] = json!(false);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("norm_topk_prob"), "{said}");
    folder.config["norm_topk_prob"] = json!(true);
    folder.tensors.remove("model.layers.1.mlp.experts.3.up_proj.weight");
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("experts.3.up_proj.weight") && said.contains("missing"), "{said}");
}

/// The converted folder, whose tensors are Llama's.
fn like_llama(folder: &Folder, architecture: &str) -> Gguf {
    let (of_llama, ..) = convert(llama().write().path(), &to("f16")).unwrap();
    let (gguf, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some(architecture));
    for want in of_llama.tensors() {
        let got = gguf.find(&want.name).unwrap();
        assert!(gguf.raw_bytes(got).unwrap() == of_llama.raw_bytes(want).unwrap(), "{}", want.name);
    }
    gguf
}

/// SmolLM3 has Llama's tensors. The file does not store which layers have no RoPE.
#[test]
fn smollm3_is_written_like_llama() {
    let mut folder = llama();
    folder.config["architectures"] = json!(["SmolLM3ForCausalLM"]);
    folder.config["no_rope_layers"] = json!([1]);
    like_llama(&folder, "smollm3");
    folder.config["no_rope_layers"] = json!([0]);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("no_rope_layers") && said.contains("every fourth layer"), "{said}");
}

/// Granite has Llama's tensors and four factors, which are 1 unless given.
#[test]
fn granite_is_written_like_llama() {
    let mut folder = llama();
    folder.config["architectures"] = json!(["GraniteForCausalLM"]);
    folder.config["attention_multiplier"] = json!(0.25);
    folder.config["embedding_multiplier"] = json!(12);
    folder.config["residual_multiplier"] = json!(0.5);
    let gguf = like_llama(&folder, "granite");
    for (key, want) in
        [("attention.scale", 0.25), ("embedding_scale", 12.0), ("residual_scale", 0.5), ("logit_scale", 1.0)]
    {
        assert_eq!(gguf.metadata().f32(&format!("granite.{key}")).unwrap(), Some(want), "{key}");
    }
    folder.config["logits_scaling"] = json!(0);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("logits_scaling"), "{said}");
}

/// A checkpoint of the golden file's tensors, under the names of its architecture in layers.
fn renamed(gguf: &Gguf, names: &[(&str, &str)]) -> BTreeMap<String, Raw> {
    let globals =
        [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
    let globals = globals.map(|(to, from)| (format!("{to}.weight"), format!("{from}.weight")));
    let n_layers = gguf.tensors().iter().filter(|info| info.name.ends_with(".ffn_down.weight")).count();
    let layers = (0..n_layers).flat_map(|layer| {
        let name = move |(to, from): &(&str, &str)| {
            (format!("model.layers.{layer}.{to}"), format!("blk.{layer}.{from}"))
        };
        names.iter().map(name)
    });
    let all = globals.into_iter().chain(layers);
    // A tied model has no head.
    let there = all.filter(|(_, from)| from != "output.weight" || gguf.find(from).is_some());
    there.map(|(to, from)| (to, raw(gguf, &from))).collect()
}

/// Names of a Llama's linear layers.
const LINEAR: [(&str, &str); 7] = [
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
];

#[test]
fn gemma2_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("gemma2/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let norms = [
        ("input_layernorm.weight", "attn_norm.weight"),
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
        ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    ];
    let mut tensors = renamed(&gguf, &[&LINEAR[..], &norms[..]].concat());
    for (name, raw) in &mut tensors {
        if name.ends_with("norm.weight") {
            let of_file = raw.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let values: Vec<f32> = of_file.map(|value| value - 1.0).collect();
            *raw = Raw::f32s(&[values.len()], &values);
        }
    }
    let config = json!({
        "architectures": ["Gemma2ForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "head_dim": 32,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 24,
        "max_position_embeddings": 1024, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 8.0, "final_logit_softcapping": 6.0,
    });
    let mut folder = Folder { config, tokenizer, tensors };
    assert_has_all(&folder, &gguf);
    folder.config["query_pre_attn_scalar"] = json!(16);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("query_pre_attn_scalar") && said.contains("want 32"), "{said}");
}

#[test]
fn gemma4_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("gemma4/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let mut tensors = of_gemma4(&gguf, 6);
    // A checkpoint may have keys where they are not used.
    let unused = tensors["model.language_model.layers.0.self_attn.k_proj.weight"].clone();
    tensors.insert("model.language_model.layers.3.self_attn.k_proj.weight".to_owned(), unused);
    let kinds = [true, true, false, true, true, false];
    let kinds = kinds.map(|slides| if slides { "sliding_attention" } else { "full_attention" });
    let text = json!({
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32, "sliding_window": 24,
        "max_position_embeddings": 1024, "layer_types": kinds, "num_kv_shared_layers": 3,
        "hidden_size_per_layer_input": 16, "use_double_wide_mlp": true, "final_logit_softcapping": 8.0,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    });
    let config = json!({"architectures": ["Gemma4ForConditionalGeneration"], "text_config": text});
    let mut folder = Folder { config, tokenizer, tensors };
    assert_round_trip(&folder, &gguf);
    folder.config["text_config"]["num_kv_shared_layers"] = json!(6);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("num_kv_shared_layers") && said.contains("below the 6 layers"), "{said}");
}

/// Experts next to the feed-forward networks, and values from the keys' product in global layers.
#[test]
fn gemma4_with_experts_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("gemma4/tiny-moe-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let text = json!({
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": true, "head_dim": 16,
        "global_head_dim": 32, "sliding_window": 24, "max_position_embeddings": 1024,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 8.0,
        "enable_moe_block": true, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    });
    let config = json!({"architectures": ["Gemma4ForConditionalGeneration"], "text_config": text});
    assert_round_trip(&Folder { config, tokenizer, tensors: of_gemma4(&gguf, 4) }, &gguf);
}

/// The tensors of a Gemma 4 file with their names in checkpoints.
fn of_gemma4(gguf: &Gguf, n_layers: usize) -> BTreeMap<String, Raw> {
    let mut tensors = BTreeMap::new();
    let mut add = |to: String, from: String| {
        if gguf.find(&from).is_some() {
            tensors.insert(format!("model.language_model.{to}"), raw(gguf, &from));
        }
    };
    for (to, from) in [
        ("embed_tokens", "token_embd"),
        ("norm", "output_norm"),
        ("embed_tokens_per_layer", "per_layer_token_embd"),
        ("per_layer_model_projection", "per_layer_model_proj"),
        ("per_layer_projection_norm", "per_layer_proj_norm"),
    ] {
        add(format!("{to}.weight"), format!("{from}.weight"));
    }
    let of_layer = [
        ("input_layernorm.weight", "attn_norm.weight"),
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
        ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
        ("self_attn.q_norm.weight", "attn_q_norm.weight"),
        ("self_attn.k_norm.weight", "attn_k_norm.weight"),
        ("layer_scalar", "layer_output_scale.weight"),
        ("per_layer_input_gate.weight", "inp_gate.weight"),
        ("per_layer_projection.weight", "proj.weight"),
        ("post_per_layer_input_norm.weight", "post_norm.weight"),
        ("router.proj.weight", "ffn_gate_inp.weight"),
        ("router.scale", "ffn_gate_inp.scale"),
        ("router.per_expert_scale", "ffn_down_exps.scale"),
        ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("experts.down_proj", "ffn_down_exps.weight"),
        ("pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
        ("post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
        ("post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    ];
    for layer in 0..n_layers {
        for (to, from) in LINEAR.iter().chain(&of_layer) {
            add(format!("layers.{layer}.{to}"), format!("blk.{layer}.{from}"));
        }
    }
    tensors
}

#[test]
fn olmo2_and_olmo3_round_trip() {
    let Some(tokenizer) = tokenizer() else { return };
    let norms = [
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
        ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
        ("self_attn.q_norm.weight", "attn_q_norm.weight"),
        ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ];
    let names = [&LINEAR[..], &norms[..]].concat();
    let config = |class: &str, layers: usize, kv_heads: usize| {
        json!({
            "architectures": [class], "hidden_size": 64, "intermediate_size": 128, "hidden_act": "silu",
            "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": kv_heads,
            "max_position_embeddings": 1024, "rope_theta": 500000.0, "rms_norm_eps": 1e-6,
            "tie_word_embeddings": false,
        })
    };
    let Some(path) = golden("olmo2/tiny-f16.gguf") else { return };
    let gguf = Gguf::open(&path).unwrap();
    let (config2, tensors) = (config("Olmo2ForCausalLM", 3, 4), renamed(&gguf, &names));
    assert_has_all(&Folder { config: config2, tokenizer: tokenizer.clone(), tensors }, &gguf);

    let gguf = Gguf::open(&golden("olmo2/tiny-olmo3-f16.gguf").unwrap()).unwrap();
    let mut config3 = config("Olmo3ForCausalLM", 5, 2);
    config3["sliding_window"] = json!(24);
    let kinds = [true, true, true, false, true];
    let kinds = kinds.map(|slides| if slides { "sliding_attention" } else { "full_attention" });
    config3["layer_types"] = json!(kinds);
    config3["rope_scaling"] = json!({"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 64, "attention_factor": 1.2079441541679836});
    let folder = Folder { config: config3, tokenizer, tensors: renamed(&gguf, &names) };
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    for want in gguf.tensors() {
        let got = ours.find(&want.name).unwrap();
        assert!(ours.raw_bytes(got).unwrap() == gguf.raw_bytes(want).unwrap(), "{}", want.name);
    }
    let key = |key: &str| ours.metadata().get(&format!("olmo2.{key}")).cloned();
    assert_eq!(key("attention.sliding_window"), Some(24_u32.into()));
    // Three of four layers, as readers assume.
    assert_eq!(key("attention.sliding_window_pattern"), None);
    assert_eq!(key("rope.scaling.factor"), Some(8_f32.into()));
    assert_eq!(key("rope.scaling.attn_factor"), Some(1_f32.into()));
}

/// Mistral Small 3, whose text model is Llama's, has the class of Ministral 3.
#[test]
fn mistral3_is_written_like_llama() {
    let mut folder = llama();
    folder.config["architectures"] = json!(["Mistral3ForConditionalGeneration"]);
    folder.config["model_type"] = json!("mistral");
    like_llama(&folder, "llama");
    folder.config["model_type"] = json!("ministral3");
    folder.config["rope_parameters"] = json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0,
        "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
    let gguf = like_llama(&folder, "mistral3");
    for (key, want) in [
        ("rope.scaling.factor", Some(16.0)),
        ("rope.scaling.yarn_beta_fast", Some(32.0)),
        ("rope.scaling.yarn_log_multiplier", Some(1.0)),
        ("attention.temperature_scale", Some(0.1)),
        ("rope.scaling.attn_factor", None),
    ] {
        assert_eq!(gguf.metadata().f32(&format!("mistral3.{key}")).unwrap(), want, "{key}");
    }
}

/// Rows of heads of which RoPE rotates neighbours, in the order in which it rotates halves.
pub(super) fn halves(bytes: &[u8], n_heads: usize, head_dim: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = bytes.chunks(bytes.len() / (n_heads * head_dim)).collect();
    let row = |head, half, pair| rows[head * head_dim + 2 * pair + half];
    let of_head = |head| (0..2).flat_map(move |half| (0..head_dim / 2).map(move |pair| (head, half, pair)));
    (0..n_heads).flat_map(of_head).flat_map(|(head, half, pair)| row(head, half, pair)).copied().collect()
}

/// Hunyuan's "dynamic" RoPE has another base.
#[test]
fn alpha_becomes_the_base() {
    let Some(path) = golden("transformers/hunyuan-dense.json") else { return };
    let mut json: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let gguf = Gguf::open(&path.with_extension("gguf")).unwrap();
    let of_file = |(to, from): (&String, &Json)| (to.clone(), raw(&gguf, from.as_str().unwrap()));
    let tensors = json["names"].as_object().unwrap().iter().map(of_file).collect();
    json["config"]["rope_parameters"] =
        json!({"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0});
    let tokenizer = super::folder::tokenizer(64);
    let folder = Folder { config: json["config"].clone(), tokenizer, tensors };
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    let base = ours.metadata().f32("hunyuan-dense.rope.freq_base").unwrap().unwrap();
    // 10000 x 1000^(16 / 14)
    assert!((base / 2.682_695_8e7 - 1.0).abs() < 1e-6, "{base}");
}

#[test]
fn glm4_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("glm4/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let tensors = renamed(
        &gguf,
        &[
            ("input_layernorm.weight", "attn_norm.weight"),
            ("post_self_attn_layernorm.weight", "post_attention_norm.weight"),
            ("post_attention_layernorm.weight", "ffn_norm.weight"),
            ("post_mlp_layernorm.weight", "post_ffw_norm.weight"),
            ("self_attn.q_proj.weight", "attn_q.weight"),
            ("self_attn.q_proj.bias", "attn_q.bias"),
            ("self_attn.k_proj.weight", "attn_k.weight"),
            ("self_attn.k_proj.bias", "attn_k.bias"),
            ("self_attn.v_proj.weight", "attn_v.weight"),
            ("self_attn.v_proj.bias", "attn_v.bias"),
            ("self_attn.o_proj.weight", "attn_output.weight"),
            ("mlp.gate_up_proj.weight", "ffn_up.weight"),
            ("mlp.down_proj.weight", "ffn_down.weight"),
        ],
    );
    let config = json!({
        "architectures": ["Glm4ForCausalLM"], "hidden_size": 64, "intermediate_size": 128, "head_dim": 32,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
        "max_position_embeddings": 1024, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5, "tie_word_embeddings": false,
    });
    let mut folder = Folder { config, tokenizer, tensors };
    assert_has_all(&folder, &gguf);
    // The spelling of transformers 5.
    let config = folder.config.as_object_mut().unwrap();
    config.remove("rope_theta");
    config.remove("partial_rotary_factor");
    folder.config["rope_parameters"] =
        json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5});
    assert_has_all(&folder, &gguf);
    folder.config["rope_parameters"]["partial_rotary_factor"] = json!(0.1);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("partial_rotary_factor") && said.contains("heads of 32"), "{said}");
}

/// Likewise for a model with a feed-forward network in its first layers, and experts in the others.
fn renamed_sparse(
    gguf: &Gguf,
    n_dense: usize,
    names: &[(&str, &str)],
    sparse: &[(&str, &str)],
) -> BTreeMap<String, Raw> {
    let all = [
        ("input_layernorm.weight", "attn_norm.weight"),
        ("self_attn.v_proj.weight", "attn_v.weight"),
        ("self_attn.o_proj.weight", "attn_output.weight"),
    ];
    let dense = [
        ("mlp.gate_proj.weight", "ffn_gate.weight"),
        ("mlp.up_proj.weight", "ffn_up.weight"),
        ("mlp.down_proj.weight", "ffn_down.weight"),
    ];
    let globals =
        [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
    let globals = globals.map(|(to, from)| (format!("{to}.weight"), format!("{from}.weight")));
    let mut tensors: BTreeMap<String, Raw> = globals
        .into_iter()
        .filter(|(_, from)| gguf.find(from).is_some())
        .map(|(to, from)| (to, raw(gguf, &from)))
        .collect();
    for layer in 0..3 {
        let ffn = if layer < n_dense { &dense[..] } else { sparse };
        for (to, from) in all.iter().chain(names).chain(ffn) {
            tensors.insert(format!("model.layers.{layer}.{to}"), raw(gguf, &format!("blk.{layer}.{from}")));
        }
    }
    tensors
}

/// The rows of each head as in transformers: of pairs `(2i, 2i + 1)` first those at even places, then those
/// at odd ones.
fn unpermuted(raw: Raw, heads: usize) -> Raw {
    let (rows, row_bytes) = (raw.shape[0], raw.bytes.len() / raw.shape[0]);
    let head_dim = rows / heads;
    let row = |at: usize| &raw.bytes[at * row_bytes..][..row_bytes];
    let of_head = |head: usize| {
        let halves = (0..head_dim).step_by(2).chain((1..head_dim).step_by(2));
        halves.flat_map(move |at| row(head * head_dim + at).to_vec())
    };
    let bytes = (0..heads).flat_map(of_head).collect();
    Raw { bytes, ..raw.clone() }
}

#[test]
fn granitemoe_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("granitemoe/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let mut tensors = renamed_sparse(
        &gguf,
        0,
        &[
            ("post_attention_layernorm.weight", "ffn_norm.weight"),
            ("block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight"),
            ("block_sparse_moe.output_linear.weight", "ffn_down_exps.weight"),
        ],
        &[],
    );
    for layer in 0..3 {
        // Queries and keys as in transformers, gates and ups of each expert one after the other.
        for (name, from, heads) in [("q", "attn_q", 4), ("k", "attn_k", 2)] {
            let raw = raw(&gguf, &format!("blk.{layer}.{from}.weight"));
            let name = format!("model.layers.{layer}.self_attn.{name}_proj.weight");
            tensors.insert(name, unpermuted(raw, heads));
        }
        let [gate, up] =
            ["gate", "up"].map(|name| raw(&gguf, &format!("blk.{layer}.ffn_{name}_exps.weight")));
        let each = gate.bytes.len() / 8;
        let both = gate.bytes.chunks(each).zip(up.bytes.chunks(each));
        let bytes = both.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let name = format!("model.layers.{layer}.block_sparse_moe.input_linear.weight");
        tensors.insert(name, Raw { bytes, shape: vec![8, 96, 64], dtype: gate.dtype });
    }
    let config = json!({
        "architectures": ["GraniteMoeForCausalLM"], "hidden_size": 64, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
        "max_position_embeddings": 1024, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true, "num_local_experts": 8, "num_experts_per_tok": 3,
        "attention_multiplier": 0.15, "embedding_multiplier": 3.0, "residual_multiplier": 0.45,
        "logits_scaling": 1.6,
    });
    assert_has_all(&Folder { config, tokenizer, tensors }, &gguf);
}

#[test]
fn glm4moe_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("glm4moe/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let attention = [
        ("post_attention_layernorm.weight", "post_attention_norm.weight"),
        ("self_attn.q_norm.weight", "attn_q_norm.weight"),
        ("self_attn.k_norm.weight", "attn_k_norm.weight"),
        ("self_attn.q_proj.weight", "attn_q.weight"),
        ("self_attn.k_proj.weight", "attn_k.weight"),
        ("self_attn.q_proj.bias", "attn_q.bias"),
        ("self_attn.k_proj.bias", "attn_k.bias"),
        ("self_attn.v_proj.bias", "attn_v.bias"),
    ];
    let experts = [
        ("mlp.gate.weight", "ffn_gate_inp.weight"),
        ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
        ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
        ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
    ];
    let mut tensors = renamed_sparse(&gguf, 1, &attention, &experts);
    for layer in 1..3 {
        tensors.extend(each_expert(&gguf, layer));
    }
    let config = json!({
        "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "head_dim": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_act": "silu", "max_position_embeddings": 1024, "rope_theta": 1e6, "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5, "tie_word_embeddings": false, "n_routed_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "norm_topk_prob": true, "n_group": 1,
        "topk_group": 1, "num_nextn_predict_layers": 1,
    });
    let mut folder = Folder { config, tokenizer, tensors };
    assert_has_all(&folder, &gguf);

    // With the block for multi-token prediction, whose embedding is the model's.
    let block = Gguf::open(&golden("drafts/mtp-glm4moe.gguf").unwrap()).unwrap();
    let others = [
        ("input_layernorm.weight", "attn_norm.weight"),
        ("self_attn.v_proj.weight", "attn_v.weight"),
        ("self_attn.o_proj.weight", "attn_output.weight"),
        ("eh_proj.weight", "nextn.eh_proj.weight"),
        ("enorm.weight", "nextn.enorm.weight"),
        ("hnorm.weight", "nextn.hnorm.weight"),
        ("shared_head.norm.weight", "nextn.shared_head_norm.weight"),
        ("shared_head.head.weight", "nextn.shared_head_head.weight"),
    ];
    for (to, from) in attention.iter().chain(&experts).chain(&others) {
        folder.tensors.insert(format!("model.layers.3.{to}"), raw(&block, &format!("blk.3.{from}")));
    }
    folder.tensors.extend(each_expert(&block, 3));
    let embedding = folder.tensors["model.embed_tokens.weight"].clone();
    folder.tensors.insert("model.layers.3.embed_tokens.weight".to_owned(), embedding);
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    let of_block = block.tensors().iter().filter(|want| want.name.starts_with("blk.3."));
    let of_block = of_block.inspect(|want| {
        let got = ours.find(&want.name).unwrap_or_else(|| panic!("{} is missing", want.name));
        assert_eq!(got.dims, want.dims, "{}", want.name);
        assert!(values(&ours, &want.name) == values(&block, &want.name), "{}", want.name);
    });
    assert_eq!(ours.tensors().len(), gguf.tensors().len() + of_block.count());
    for (key, want) in [("block_count", 4_u32), ("nextn_predict_layers", 1)] {
        assert_eq!(ours.metadata().get(&format!("glm4moe.{key}")), Some(&want.into()), "{key}");
    }
    // A head that is the model's is not stored again either; an embedding of its own is.
    let head = folder.tensors["lm_head.weight"].clone();
    folder.tensors.insert("model.layers.3.shared_head.head.weight".to_owned(), head.clone());
    folder.tensors.insert("model.layers.3.embed_tokens.weight".to_owned(), head);
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    assert!(ours.find("blk.3.nextn.shared_head_head.weight").is_none());
    assert!(ours.find("blk.3.nextn.embed_tokens.weight").is_some());
}

/// The matrices of each of the eight experts of a layer.
fn each_expert(gguf: &Gguf, layer: usize) -> BTreeMap<String, Raw> {
    let mut tensors = BTreeMap::new();
    for name in ["gate", "up", "down"] {
        let Raw { dtype, shape, bytes } = raw(gguf, &format!("blk.{layer}.ffn_{name}_exps.weight"));
        for (expert, bytes) in bytes.chunks(bytes.len() / 8).enumerate() {
            let name = format!("model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight");
            let (dtype, shape) = (dtype.clone(), shape[1..].to_vec());
            tensors.insert(name, Raw { dtype, shape, bytes: bytes.to_vec() });
        }
    }
    tensors
}

#[test]
fn phi3_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("phi3/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let tensors = renamed(
        &gguf,
        &[
            ("input_layernorm.weight", "attn_norm.weight"),
            ("post_attention_layernorm.weight", "ffn_norm.weight"),
            ("self_attn.qkv_proj.weight", "attn_qkv.weight"),
            ("self_attn.o_proj.weight", "attn_output.weight"),
            ("mlp.gate_up_proj.weight", "ffn_up.weight"),
            ("mlp.down_proj.weight", "ffn_down.weight"),
        ],
    );
    let tables = |kind: &str, n: usize| {
        let (short, long) = (vec![1.5; n], vec![3.0; n]);
        json!({"type": kind, "short_factor": short, "long_factor": long})
    };
    let config = json!({
        "architectures": ["Phi3ForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu",
        "max_position_embeddings": 1024, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "original_max_position_embeddings": 256, "rope_scaling": tables("longrope", 8),
    });
    let mut folder = Folder { config, tokenizer, tensors };
    for type_ in ["longrope", "su"] {
        folder.config["rope_scaling"] = tables(type_, 8);
        let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
        assert_eq!(values(&ours, "rope_factors_short.weight"), [1.5; 8]);
        assert_eq!(values(&ours, "rope_factors_long.weight"), [3.0; 8]);
        let key = |key: &str| ours.metadata().get(&format!("phi3.rope.scaling.{key}")).cloned();
        assert_eq!(key("original_context_length"), Some(256_u32.into()));
        // The square root of 1 + ln 4 / ln 256.
        assert_eq!(key("attn_factor"), Some(1.25_f32.sqrt().into()));
        assert_eq!(key("type"), None);
    }
    folder.config["rope_scaling"] = tables("longrope", 7);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("rope_scaling") && said.contains("tables of 8 factors"), "{said}");
    folder.config.as_object_mut().unwrap().remove("rope_scaling");
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    for want in gguf.tensors() {
        let got = ours.find(&want.name).unwrap();
        assert!(ours.raw_bytes(got).unwrap() == gguf.raw_bytes(want).unwrap(), "{}", want.name);
    }
    let mut of_llama = llama();
    of_llama.config["rope_scaling"] = tables("longrope", 2);
    of_llama.config["original_max_position_embeddings"] = json!(16);
    let said = convert(of_llama.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("no longrope in architecture llama"), "{said}");
}

/// LFM2's layers have a short convolution, whose taps have another dimension in checkpoints, or attention.
#[test]
fn lfm2_round_trips() {
    let (Some(path), Some(tokenizer)) = (golden("lfm2/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, raw: Raw| drop(tensors.insert(name, raw));
    add("model.embed_tokens.weight".into(), raw(&gguf, "token_embd.weight"));
    add("model.embedding_norm.weight".into(), raw(&gguf, "token_embd_norm.weight"));
    for layer in 0..5 {
        let (to, from) = (format!("model.layers.{layer}."), format!("blk.{layer}."));
        let of = |name: &str| raw(&gguf, &format!("{from}{name}"));
        let mut names = vec![
            ("operator_norm", "attn_norm"),
            ("ffn_norm", "ffn_norm"),
            ("feed_forward.w1", "ffn_gate"),
            ("feed_forward.w3", "ffn_up"),
            ("feed_forward.w2", "ffn_down"),
        ];
        if [2, 4].contains(&layer) {
            names.extend(&ATTENTION.map(|(name, ours)| match name {
                "q_proj" => ("self_attn.q_proj", ours),
                "k_proj" => ("self_attn.k_proj", ours),
                "v_proj" => ("self_attn.v_proj", ours),
                _ => ("self_attn.out_proj", ours),
            }));
            names
                .extend([("self_attn.q_layernorm", "attn_q_norm"), ("self_attn.k_layernorm", "attn_k_norm")]);
        } else {
            names.extend([("conv.in_proj", "shortconv.in_proj"), ("conv.out_proj", "shortconv.out_proj")]);
            let mut taps = of("shortconv.conv.weight");
            taps.shape.insert(1, 1);
            add(format!("{to}conv.conv.weight"), taps);
        }
        for (name, ours) in names {
            add(format!("{to}{name}.weight"), of(&format!("{ours}.weight")));
        }
    }
    let kinds = ["conv", "conv", "full_attention", "conv", "full_attention"];
    // 2 / 3 of 180 is 120, which is rounded up.
    let config = json!({
        "architectures": ["Lfm2ForCausalLM"], "hidden_size": 64, "intermediate_size": 180,
        "block_multiple_of": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 1024, "rope_theta": 1000000.0, "norm_eps": 1e-5, "layer_types": kinds,
        "conv_L_cache": 3, "conv_bias": false,
    });
    let mut folder = Folder { config, tokenizer, tensors };
    assert_round_trip(&folder, &gguf);
    // Older configurations.
    let config = folder.config.as_object_mut().unwrap();
    config.remove("layer_types");
    config.insert("full_attn_idxs".to_owned(), json!([2, 4]));
    config.insert("block_auto_adjust_ff_dim".to_owned(), json!(false));
    config.insert("block_ff_dim".to_owned(), json!(128));
    assert_round_trip(&folder, &gguf);
    for (key, value, want) in [
        ("full_attn_idxs", json!([5]), "numbers of layers"),
        ("conv_bias", json!(true), "want false"),
        ("layer_types", json!(["conv", "conv"]), "each of 5 layers"),
        ("layer_types", json!(["conv", "conv", "mamba", "conv", "conv"]), "conv or full_attention"),
    ] {
        let mut folder = folder.clone();
        folder.config[key] = value;
        let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
        assert!(said.contains(key) && said.contains(want), "{said}");
    }
}

/// All weights of the program, in order.
fn weights(gguf: &Gguf) -> Vec<(String, Vec<u8>)> {
    let f32s = ggml_types::kv_by_name("f32").unwrap();
    let limits =
        Limits { rows: 8, outputs: 1, seqs: 1, pages: 4, exact_pages: 0, sliding_pages: 0, states: 1 };
    let hyper = model::hyper(gguf).unwrap();
    let model = Model::build(gguf, hyper, &Options::new(limits, f32s, f32s)).unwrap();
    let bytes = |weight: &FileTensor| weight.read().unwrap().bytes.to_vec();
    model.weights.iter().map(|weight| (weight.name.clone(), bytes(weight))).collect()
}

/// The inputs of a delta net are one tensor in checkpoints and two in the golden file; the model's weights
/// are the same.
#[test]
fn qwen3next_has_the_same_weights() {
    let (Some(path), Some(tokenizer)) = (golden("qwen3next/tiny-f16.gguf"), tokenizer()) else { return };
    let gguf = Gguf::open(&path).unwrap();
    let mut tensors = BTreeMap::new();
    let mut add = |name: String, raw: Raw| drop(tensors.insert(name, raw));
    let norm = |name: &str| {
        let values: Vec<f32> = values(&gguf, name).iter().map(|value| value - 1.0).collect();
        Raw::f32s(&[values.len()], &values)
    };
    add("model.embed_tokens.weight".into(), raw(&gguf, "token_embd.weight"));
    add("model.norm.weight".into(), norm("output_norm.weight"));
    add("lm_head.weight".into(), raw(&gguf, "output.weight"));
    let (dim, keys, each, head) = (64, 2, 2, 16);
    for layer in 0..4 {
        let (to, from) = (format!("model.layers.{layer}."), format!("blk.{layer}."));
        let of = |name: &str| raw(&gguf, &format!("{from}{name}"));
        let mut layer_norms =
            vec![("input_layernorm", "attn_norm"), ("post_attention_layernorm", "post_attention_norm")];
        if layer == 3 {
            layer_norms.extend([("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")]);
            for (name, ours) in ATTENTION {
                add(format!("{to}self_attn.{name}.weight"), of(&format!("{ours}.weight")));
            }
        } else {
            let (qkv, z) = (of("attn_qkv.weight").bytes, of("attn_gate.weight").bytes);
            let rows = |bytes: &[u8], at: usize, n: usize| bytes[at * dim * 2..][..n * dim * 2].to_vec();
            let per_key = (0..keys).flat_map(|key| {
                let values = 2 * keys * head + key * each * head;
                [
                    rows(&qkv, key * head, head),
                    rows(&qkv, (keys + key) * head, head),
                    rows(&qkv, values, each * head),
                    rows(&z, key * each * head, each * head),
                ]
            });
            let bytes = per_key.collect::<Vec<_>>().concat();
            let shape = vec![bytes.len() / dim / 2, dim];
            add(format!("{to}linear_attn.in_proj_qkvz.weight"), Raw { dtype: "F16".into(), shape, bytes });
            for (name, ours) in [
                ("in_proj_ba.weight", "ssm_ba.weight"),
                ("dt_bias", "ssm_dt.bias"),
                ("norm.weight", "ssm_norm.weight"),
                ("out_proj.weight", "ssm_out.weight"),
            ] {
                add(format!("{to}linear_attn.{name}"), of(ours));
            }
            let mut taps = of("ssm_conv1d.weight");
            taps.shape.insert(1, 1);
            add(format!("{to}linear_attn.conv1d.weight"), taps);
            let decay = values(&gguf, &format!("{from}ssm_a"));
            let logs: Vec<f32> = decay.iter().map(|a| f64::from(-a).ln() as f32).collect();
            add(format!("{to}linear_attn.A_log"), Raw::f32s(&[logs.len()], &logs));
        }
        for (name, ours) in layer_norms {
            add(format!("{to}{name}.weight"), norm(&format!("{from}{ours}.weight")));
        }
        add(format!("{to}mlp.gate.weight"), of("ffn_gate_inp.weight"));
        add(format!("{to}mlp.shared_expert_gate.weight"), of("ffn_gate_inp_shexp.weight"));
        for name in ["gate", "up", "down"] {
            let shared = of(&format!("ffn_{name}_shexp.weight"));
            add(format!("{to}mlp.shared_expert.{name}_proj.weight"), shared);
            let all = of(&format!("ffn_{name}_exps.weight"));
            let (n_experts, shape) = (all.shape[0], all.shape[1..].to_vec());
            for (expert, bytes) in all.bytes.chunks_exact(all.bytes.len() / n_experts).enumerate() {
                let one = Raw { dtype: all.dtype.clone(), shape: shape.clone(), bytes: bytes.to_vec() };
                add(format!("{to}mlp.experts.{expert}.{name}_proj.weight"), one);
            }
        }
    }
    let config = json!({
        "architectures": ["Qwen3NextForCausalLM"], "hidden_size": dim, "intermediate_size": 128,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 8,
        "num_experts_per_tok": 3, "norm_topk_prob": true, "num_hidden_layers": 4, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "linear_num_key_heads": keys,
        "linear_num_value_heads": keys * each, "linear_key_head_dim": head, "linear_value_head_dim": head,
        "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25, "max_position_embeddings": 1024,
        "rope_theta": 1e7, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
    });
    let mut folder = Folder { config, tokenizer, tensors };
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| key.starts_with("qwen3next.")) {
        if !key.ends_with(".recurrent_layers") {
            assert_eq!(ours.metadata().get(key), Some(value), "{key}");
        }
    }
    let (got, want) = (weights(&ours), weights(&gguf));
    assert_eq!(got.len(), want.len());
    for ((got, ours), (want, theirs)) in got.iter().zip(&want) {
        // 1 was subtracted from norms and added again, and the logarithm of decays was taken.
        let is_rounded = want.ends_with("norm.weight") || want.ends_with(".ssm_a");
        let near = |(a, b): (&[u8; 4], &[u8; 4])| {
            let (a, b) = (f32::from_le_bytes(*a), f32::from_le_bytes(*b));
            (a - b).abs() <= 1e-6 * b.abs().max(1.0)
        };
        let is_near = || ours.as_chunks().0.iter().zip(theirs.as_chunks().0).all(near);
        assert!(ours == theirs || is_rounded && ours.len() == theirs.len() && is_near(), "{got}, {want}");
    }
    folder.config["norm_topk_prob"] = json!(false);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("norm_topk_prob"), "{said}");
}
