//! Checkpoints of classes that transformers does not have: their names are those of published checkpoints.

use std::collections::BTreeMap;

use serde_json::json;
use sterna::gguf::Gguf;
use support::golden;

use super::folder::{Folder, Raw};
use super::round_trip::{assert_has_all, halves, raw};
use super::{convert, to};

/// InternLM2's class is not in transformers: queries, keys and values of each key head follow each other.
#[test]
fn internlm2_round_trips() {
    let Some(path) = golden("tiny/internlm2.gguf") else { return };
    let gguf = Gguf::open(&path).unwrap();
    let (n_heads, n_kv_heads, head_dim) = (2, 1, 16);
    let mut tensors = BTreeMap::new();
    for (to, from) in [("model.tok_embeddings", "token_embd"), ("model.norm", "output_norm")] {
        tensors.insert(format!("{to}.weight"), raw(&gguf, &format!("{from}.weight")));
    }
    for layer in 0..2 {
        let of = |name: &str| raw(&gguf, &format!("blk.{layer}.{name}.weight"));
        for (to, from) in [
            ("attention_norm", "attn_norm"),
            ("ffn_norm", "ffn_norm"),
            ("attention.wo", "attn_output"),
            ("feed_forward.w1", "ffn_gate"),
            ("feed_forward.w3", "ffn_up"),
            ("feed_forward.w2", "ffn_down"),
        ] {
            tensors.insert(format!("model.layers.{layer}.{to}.weight"), of(from));
        }
        let mut all = of("attn_q");
        let [q, k, v] = [
            halves(&all.bytes, n_heads, head_dim),
            halves(&of("attn_k").bytes, n_kv_heads, head_dim),
            of("attn_v").bytes,
        ];
        let parts = [&q, &k, &v].map(|part| part.chunks(part.len() / n_kv_heads));
        let [mut q, mut k, mut v] = parts;
        all.shape[0] += 2 * n_kv_heads * head_dim;
        all.bytes = (0..n_kv_heads)
            .flat_map(|_| [q.next(), k.next(), v.next()].into_iter().flatten().flatten().copied())
            .collect();
        tensors.insert(format!("model.layers.{layer}.attention.wqkv.weight"), all);
    }
    let meta = |key: &str| gguf.metadata().f32(&format!("internlm2.{key}")).unwrap().unwrap();
    let config = json!({
        "architectures": ["InternLM2ForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
        "intermediate_size": 32, "max_position_embeddings": 32, "num_attention_heads": n_heads,
        "num_hidden_layers": 2, "num_key_value_heads": n_kv_heads, "head_dim": head_dim,
        "rms_norm_eps": meta("attention.layer_norm_rms_epsilon"), "rope_theta": meta("rope.freq_base"),
        "rope_scaling": {"type": "dynamic", "factor": 2.0},
    });
    let folder = Folder { config, tokenizer: super::folder::tokenizer(64), tensors };
    let ours = assert_has_all(&folder, &gguf);
    assert_eq!(ours.metadata().str("internlm2.rope.scaling.type").unwrap(), None);
    let (_, _, notes) = convert(folder.write().path(), &to("f16")).unwrap();
    assert!(notes.iter().any(|note| note.contains("dynamic scaling of RoPE")), "{notes:?}");
}

/// The class of Ling and Ring 2.0 is not in transformers: names and keys of their published checkpoints, in
/// which queries, keys and values are one matrix, as in files.
#[test]
fn bailingmoe2_round_trips() {
    let Some(path) = golden("transformers/bailingmoe2.gguf") else { return };
    let gguf = Gguf::open(&path).unwrap();
    let mut tensors = BTreeMap::new();
    for (to, from) in
        [("model.word_embeddings", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")]
    {
        tensors.insert(format!("{to}.weight"), raw(&gguf, &format!("{from}.weight")));
    }
    let qkv = |layer: usize| {
        let parts = ["q", "k", "v"].map(|which| raw(&gguf, &format!("blk.{layer}.attn_{which}.weight")));
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        let bytes = parts.iter().flat_map(|part| part.bytes.clone()).collect();
        Raw { dtype: parts[0].dtype.clone(), shape: vec![rows, parts[0].shape[1]], bytes }
    };
    for layer in 0..2 {
        let blk = |name: &str| format!("blk.{layer}.{name}");
        tensors.insert(format!("model.layers.{layer}.attention.query_key_value.weight"), qkv(layer));
        for (to, from) in [
            ("input_layernorm.weight", "attn_norm.weight"),
            ("post_attention_layernorm.weight", "ffn_norm.weight"),
            ("attention.dense.weight", "attn_output.weight"),
            ("attention.query_layernorm.weight", "attn_q_norm.weight"),
            ("attention.key_layernorm.weight", "attn_k_norm.weight"),
            ("mlp.gate_proj.weight", "ffn_gate.weight"),
            ("mlp.up_proj.weight", "ffn_up.weight"),
            ("mlp.down_proj.weight", "ffn_down.weight"),
            ("mlp.gate.weight", "ffn_gate_inp.weight"),
            ("mlp.gate.expert_bias", "exp_probs_b.bias"),
            ("mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"),
            ("mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"),
            ("mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"),
        ] {
            if gguf.find(&blk(from)).is_some() {
                tensors.insert(format!("model.layers.{layer}.{to}"), raw(&gguf, &blk(from)));
            }
        }
        for which in ["gate", "up", "down"] {
            let name = blk(&format!("ffn_{which}_exps.weight"));
            let Some(info) = gguf.find(&name) else { continue };
            let all = raw(&gguf, &name);
            let each = all.bytes.len() / info.dims[0];
            for (expert, bytes) in all.bytes.chunks(each).enumerate() {
                let (dtype, shape) = (all.dtype.clone(), all.shape[1..].to_vec());
                let to = format!("model.layers.{layer}.mlp.experts.{expert}.{which}_proj.weight");
                tensors.insert(to, Raw { dtype, shape, bytes: bytes.to_vec() });
            }
        }
    }
    let config = json!({
        "architectures": ["BailingMoeV2ForCausalLM"], "hidden_act": "silu", "hidden_size": 32,
        "intermediate_size": 64, "max_position_embeddings": 32, "num_attention_heads": 4,
        "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0, "partial_rotary_factor": 0.5, "num_experts": 8, "num_experts_per_tok": 3,
        "num_shared_experts": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_group": 4,
        "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "score_function": "sigmoid",
        "use_qk_norm": true, "use_qkv_bias": false, "use_bias": false, "num_nextn_predict_layers": 0,
    });
    let mut folder = Folder { config, tokenizer: super::folder::tokenizer(64), tensors };
    let (ours, ..) = convert(folder.write().path(), &to("f16")).unwrap();
    for want in gguf.tensors() {
        let of_attention = ["attn_q.", "attn_k.", "attn_v."].iter().any(|part| want.name.contains(part));
        if of_attention {
            assert!(ours.find(&want.name).is_none(), "{}", want.name);
            continue;
        }
        let got = ours.find(&want.name).unwrap_or_else(|| panic!("{} is missing", want.name));
        assert_eq!((&got.dims, got.type_id), (&want.dims, want.type_id), "{}", want.name);
        assert!(ours.raw_bytes(got).unwrap() == gguf.raw_bytes(want).unwrap(), "{}: other values", want.name);
    }
    for layer in 0..2 {
        let got = ours.find(&format!("blk.{layer}.attn_qkv.weight")).expect("one matrix");
        assert!(ours.raw_bytes(got).unwrap() == qkv(layer).bytes, "rows of layer {layer}");
    }
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| key.starts_with("bailingmoe2")) {
        assert_eq!(ours.metadata().get(key), Some(value), "{key}");
    }
    folder.config["use_qkv_bias"] = json!(true);
    let said = convert(folder.write().path(), &to("f16")).unwrap_err().to_string();
    assert!(said.contains("use_qkv_bias"), "{said}");
}
