//! Checkpoints that draft for another model: the files that they become are those of `scripts/golden/drafts`,
//! bit for bit.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;

use serde_json::{Value as Json, json};
use sterna::gguf::{Gguf, Value};
use sterna::quantize::{QuantizeOptions, Quantizer, Recipe};
use support::golden;

use super::folder::{Folder, Raw};
use super::{convert, to};

/// The tensors of a file under the names of a checkpoint. Rows of queries and keys are in RoPE's halves
/// there, and each row of `d2t` has the distance to its token.
fn tensors(gguf: &Gguf, name_of: impl Fn(&str) -> Option<String>) -> BTreeMap<String, Raw> {
    let mut out = BTreeMap::new();
    for info in gguf.tensors() {
        let Some(name) = name_of(&info.name) else { continue };
        let mut bytes = gguf.raw_bytes(info).unwrap().to_vec();
        let dtype = match info.type_id {
            0 => "F32",
            1 => "F16",
            27 => "I64",
            other => panic!("type {other}"),
        };
        if info.name.contains("attn_q.") || info.name.contains("attn_k.") {
            bytes = halves(&bytes, info.rows(), 32);
        }
        if dtype == "I64" {
            let distances = bytes.as_chunks().0.iter().enumerate();
            let distances = distances.map(|(row, token)| i64::from_le_bytes(*token) - row as i64);
            bytes = distances.flat_map(i64::to_le_bytes).collect();
        }
        out.insert(name, Raw { dtype: dtype.to_owned(), shape: info.dims.clone(), bytes });
    }
    out
}

/// Rows of heads of `head_dim`, from adjacent pairs to halves.
fn halves(bytes: &[u8], rows: usize, head_dim: usize) -> Vec<u8> {
    let row_bytes = bytes.len() / rows;
    let row = |at: usize| &bytes[at * row_bytes..(at + 1) * row_bytes];
    let from = |at: usize| {
        let (head, i) = (at / head_dim, at % head_dim);
        head * head_dim + 2 * (i % (head_dim / 2)) + i / (head_dim / 2)
    };
    (0..rows).flat_map(|at| row(from(at)).to_vec()).collect()
}

fn eagle3_name(name: &str, layer: &str) -> Option<String> {
    let name = match name {
        // Computed from the configuration.
        "rope_freqs.weight" => return None,
        "token_embd.weight" => "embed_tokens.weight".to_owned(),
        "output_norm.weight" => "norm.weight".to_owned(),
        "output.weight" => "lm_head.weight".to_owned(),
        "enc.output_norm.weight" => "input_norm.weight".to_owned(),
        other => match other.strip_prefix("blk.0.") {
            None => other.to_owned(),
            Some(of_layer) => {
                let of_layer = of_layer
                    .replace("attn_norm_2", "hidden_norm")
                    .replace("attn_norm", "input_layernorm")
                    .replace("ffn_norm", "post_attention_layernorm")
                    .replace("attn_output", "self_attn.o_proj");
                let mut of_layer = of_layer;
                for which in ["q", "k", "v"] {
                    let to = format!("self_attn.{which}_proj.");
                    of_layer = of_layer.replace(&format!("attn_{which}."), &to);
                }
                for which in ["gate", "up", "down"] {
                    of_layer = of_layer.replace(&format!("ffn_{which}"), &format!("mlp.{which}_proj"));
                }
                format!("{layer}{of_layer}")
            }
        },
    };
    Some(name)
}

/// Checks that `got` has the tensors of `want` bit for bit, but for the RoPE factors, and its keys.
fn same(got: &Gguf, want: &Gguf, arch: &str) {
    for info in want.tensors().iter().filter(|info| info.name != "rope_freqs.weight" || arch != "eagle3") {
        let own = got.find(&info.name).unwrap_or_else(|| panic!("{} is missing", info.name));
        assert_eq!((&own.dims, own.type_id), (&info.dims, info.type_id), "{}", info.name);
        assert!(got.raw_bytes(own).unwrap() == want.raw_bytes(info).unwrap(), "{}", info.name);
    }
    let numbers = |value: &Value| -> Vec<String> {
        match value {
            Value::Array(array) => array.values().map(|value| format!("{:?}", value.as_int())).collect(),
            Value::Bool(truth) => vec![truth.to_string()],
            value => vec![format!("{:?} {:?}", value.as_int(), value.as_f32())],
        }
    };
    for (key, value) in want.metadata().iter().filter(|(key, _)| key.starts_with(arch)) {
        let own = got.metadata().get(key).unwrap_or_else(|| panic!("{key} is missing"));
        assert_eq!(numbers(own), numbers(value), "{key}");
    }
}

fn config(class: &str, nested: bool) -> Json {
    let layer = json!({
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": 256, "vocab_size": 640, "hidden_act": "silu", "model_type": "llama",
    });
    let own = json!({
        "architectures": [class], "draft_vocab_size": 200, "norm_before_residual": true,
        "norm_before_fc": true, "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "tie_word_embeddings": false,
    });
    let mut whole = own.as_object().unwrap().clone();
    match nested {
        true => drop(whole.insert("transformer_layer_config".to_owned(), layer)),
        false => whole.extend(layer.as_object().unwrap().clone()),
    }
    Json::Object(whole)
}

/// The formats of SpecForge, vLLM and speculators; the file keeps `d2t` when it is quantised.
#[test]
fn eagle3_heads_are_converted() {
    let want = Gguf::open(&golden("drafts/eagle3-own.gguf").unwrap()).unwrap();
    let formats = [
        ("LlamaForCausalLMEagle3", "midlayer.", false),
        ("Eagle3LlamaForCausalLM", "model.layers.0.", false),
        ("Eagle3Speculator", "layers.0.", true),
    ];
    for (class, layer, nested) in formats {
        let mut tensors = tensors(&want, |name| eagle3_name(name, layer));
        tensors.insert("t2d".to_owned(), Raw { dtype: "BOOL".into(), shape: vec![640], bytes: vec![0; 640] });
        let folder = Folder { config: config(class, nested), tokenizer: Json::Null, tensors };
        let dir = folder.write();
        fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
        let (got, _, notes) = convert(dir.path(), &to("f16")).unwrap();
        same(&got, &want, "eagle3");
        assert!(!notes.iter().any(|note| note.contains("layers of the model")), "{notes:?}");

        let options = QuantizeOptions::new(Recipe::named("q8_0").unwrap());
        let quantizer = Quantizer::new(&got, options).unwrap();
        let mut out = Vec::new();
        quantizer.write(&mut out, |_| ControlFlow::Continue(())).unwrap();
        let small = Gguf::from_bytes(out.into()).unwrap();
        let tokens = |gguf: &Gguf| gguf.raw_bytes(gguf.find("d2t").unwrap()).unwrap();
        assert_eq!(tokens(&small)[..1600], tokens(&want)[..1600]);
        assert_eq!(small.find("blk.0.ffn_up.weight").unwrap().type_name, "q8_0");
    }
    let mut tensors = tensors(&want, |name| eagle3_name(name, "midlayer."));
    let d2t = &mut tensors.get_mut("d2t").unwrap().bytes;
    d2t[1592..1600].copy_from_slice(&1000_i64.to_le_bytes());
    let folder = Folder { config: config("Eagle3DraftModel", false), tokenizer: Json::Null, tensors };
    let dir = folder.write();
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    let said = convert(dir.path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("tensor d2t: want different tokens of the 640"), "{said}");
}

#[test]
fn gemma4_assistants_are_converted() {
    let want = Gguf::open(&golden("drafts/gemma4-assistant.gguf").unwrap()).unwrap();
    let name_of = |name: &str| {
        let name = match name {
            "rope_freqs.weight" => return None,
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output_norm.weight" => "model.norm.weight".to_owned(),
            "nextn.pre_projection.weight" => "pre_projection.weight".to_owned(),
            "nextn.post_projection.weight" => "post_projection.weight".to_owned(),
            other => {
                let names = [
                    ("attn_norm.weight", "input_layernorm.weight"),
                    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
                    ("ffn_norm.weight", "pre_feedforward_layernorm.weight"),
                    ("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
                    ("attn_q.weight", "self_attn.q_proj.weight"),
                    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
                    ("attn_output.weight", "self_attn.o_proj.weight"),
                    ("ffn_gate.weight", "mlp.gate_proj.weight"),
                    ("ffn_up.weight", "mlp.up_proj.weight"),
                    ("ffn_down.weight", "mlp.down_proj.weight"),
                    ("layer_output_scale.weight", "layer_scalar"),
                ];
                let (layer, own) = other.strip_prefix("blk.").unwrap().split_once('.').unwrap();
                let (_, to) = names.iter().find(|(from, _)| *from == own).unwrap();
                format!("model.layers.{layer}.{to}")
            }
        };
        Some(name)
    };
    let mut tensors = BTreeMap::new();
    for info in want.tensors() {
        let Some(name) = name_of(&info.name) else { continue };
        let dtype = if info.type_id == 0 { "F32" } else { "F16" }.to_owned();
        let bytes = want.raw_bytes(info).unwrap().to_vec();
        tensors.insert(name, Raw { dtype, shape: info.dims.clone(), bytes });
    }
    tensors.insert("masked_embedding.centroids.weight".to_owned(), Raw::f32s(&[2, 32], &[0.5; 64]));
    // A share of the pairs rotates, as in the model.
    let number = |key: &str| want.metadata().get(&format!("gemma4-assistant.{key}")).unwrap().as_f32();
    let factors = want.tensor("rope_freqs.weight").unwrap().bytes;
    let ones = factors.chunks_exact(4).filter(|factor| factor == &1f32.to_le_bytes()).count();
    let text = json!({
        "model_type": "gemma4_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32,
        "rms_norm_eps": 1e-6, "vocab_size": 640, "max_position_embeddings": 256, "sliding_window": 24,
        "layer_types":
            ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 4, "hidden_size_per_layer_input": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": number("rope.freq_base_swa")},
            "full_attention": {
                "rope_type": "proportional", "partial_rotary_factor": ones as f64 / 16.0,
                "rope_theta": number("rope.freq_base"),
            },
        },
    });
    let config = json!({
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant",
        "backbone_hidden_size": 64, "tie_word_embeddings": true, "text_config": text,
    });
    let folder = Folder { config, tokenizer: Json::Null, tensors };
    let dir = folder.write();
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    let (got, _, _) = convert(dir.path(), &to("f16")).unwrap();
    same(&got, &want, "gemma4-assistant");
}
