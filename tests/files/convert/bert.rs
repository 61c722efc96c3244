//! Encoders: BERT, its classifiers and NomicBert, with their vocabulary and pooling.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};
use sterna::gguf::Gguf;
use sterna::tokenizer::{Special, Tokenizer, TokenizerOptions};

use super::folder::{Folder, Raw, llama, numbers};
use super::{convert, to, values};

const TOKENS: [&str; 12] =
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "!", "run", "##ning", "##s", "the", "[unused1]", "##"];

fn tokenizer() -> Json {
    let special = TOKENS[..5].iter().enumerate();
    let added: Vec<Json> =
        special.map(|(id, text)| json!({"id": id, "content": text, "special": true})).collect();
    let vocab: serde_json::Map<String, Json> =
        TOKENS.iter().enumerate().map(|(id, text)| ((*text).to_owned(), json!(id))).collect();
    let around = |text: &str| json!({"SpecialToken": {"id": text, "type_id": 0}});
    json!({
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [around("[CLS]"), {"Sequence": {"id": "A", "type_id": 0}}, around("[SEP]")]},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    })
}

/// Tensors of these shapes, each with other values.
fn tensors(shapes: &[(&str, &[usize])]) -> BTreeMap<String, Raw> {
    let one = |(at, (name, shape)): (usize, &(&str, &[usize]))| {
        ((*name).to_owned(), Raw::f32s(shape, &numbers(shape.iter().product(), at as u64 + 7)))
    };
    shapes.iter().enumerate().map(one).collect()
}

/// Names in a checkpoint and in a file.
const BERT: [(&str, &str, &[usize]); 21] = [
    ("embeddings.word_embeddings.weight", "token_embd.weight", &[12, 8]),
    ("embeddings.token_type_embeddings.weight", "token_types.weight", &[2, 8]),
    ("embeddings.position_embeddings.weight", "position_embd.weight", &[20, 8]),
    ("embeddings.LayerNorm.weight", "token_embd_norm.weight", &[8]),
    ("embeddings.LayerNorm.bias", "token_embd_norm.bias", &[8]),
    ("encoder.layer.0.attention.self.query.weight", "blk.0.attn_q.weight", &[8, 8]),
    ("encoder.layer.0.attention.self.query.bias", "blk.0.attn_q.bias", &[8]),
    ("encoder.layer.0.attention.self.key.weight", "blk.0.attn_k.weight", &[8, 8]),
    ("encoder.layer.0.attention.self.key.bias", "blk.0.attn_k.bias", &[8]),
    ("encoder.layer.0.attention.self.value.weight", "blk.0.attn_v.weight", &[8, 8]),
    ("encoder.layer.0.attention.self.value.bias", "blk.0.attn_v.bias", &[8]),
    ("encoder.layer.0.attention.output.dense.weight", "blk.0.attn_output.weight", &[8, 8]),
    ("encoder.layer.0.attention.output.dense.bias", "blk.0.attn_output.bias", &[8]),
    ("encoder.layer.0.attention.output.LayerNorm.weight", "blk.0.attn_output_norm.weight", &[8]),
    ("encoder.layer.0.attention.output.LayerNorm.bias", "blk.0.attn_output_norm.bias", &[8]),
    ("encoder.layer.0.intermediate.dense.weight", "blk.0.ffn_up.weight", &[16, 8]),
    ("encoder.layer.0.intermediate.dense.bias", "blk.0.ffn_up.bias", &[16]),
    ("encoder.layer.0.output.dense.weight", "blk.0.ffn_down.weight", &[8, 16]),
    ("encoder.layer.0.output.dense.bias", "blk.0.ffn_down.bias", &[8]),
    ("encoder.layer.0.output.LayerNorm.weight", "blk.0.layer_output_norm.weight", &[8]),
    ("encoder.layer.0.output.LayerNorm.bias", "blk.0.layer_output_norm.bias", &[8]),
];

/// A BERT of one layer: dim 8, two heads, FFN dim 16, 20 positions.
fn bert() -> Folder {
    let mut shapes: Vec<(&str, &[usize])> = BERT.iter().map(|(name, _, shape)| (*name, *shape)).collect();
    shapes.extend([("pooler.dense.weight", &[8, 8][..]), ("pooler.dense.bias", &[8][..])]);
    shapes.push(("embeddings.position_ids", &[1, 20]));
    let config = json!({
        "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 8, "intermediate_size": 16,
        "max_position_embeddings": 20, "num_attention_heads": 2, "num_hidden_layers": 1,
        "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "type_vocab_size": 2,
        "vocab_size": 12,
    });
    Folder { config, tokenizer: tokenizer(), tensors: tensors(&shapes) }
}

/// Writes the modules of sentence-transformers, with these keys in the pooling configuration.
fn add_pooling(dir: &Path, keys: &Json) {
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]);
    fs::write(dir.join("modules.json"), modules.to_string()).unwrap();
    fs::create_dir_all(dir.join("1_Pooling")).unwrap();
    fs::write(dir.join("1_Pooling/config.json"), keys.to_string()).unwrap();
}

fn number(gguf: &Gguf, key: &str) -> Option<u32> {
    gguf.metadata().u32(key).unwrap()
}

#[test]
fn bert_has_llama_cpps_names() {
    let folder = bert();
    let dir = folder.write();
    add_pooling(dir.path(), &json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}));
    let (gguf, _, notes) = convert(dir.path(), &to("f16")).unwrap();
    assert_eq!(notes, [""; 0]);
    let metadata = gguf.metadata();
    assert_eq!(metadata.str("general.architecture").unwrap(), Some("bert"));
    for (key, want) in [
        ("block_count", 1),
        ("context_length", 20),
        ("embedding_length", 8),
        ("feed_forward_length", 16),
        ("attention.head_count", 2),
        ("pooling_type", 1),
    ] {
        assert_eq!(number(&gguf, &format!("bert.{key}")), Some(want), "{key}");
    }
    assert_eq!(metadata.f32("bert.attention.layer_norm_epsilon").unwrap(), Some(1e-12));
    assert_eq!(metadata.bool("bert.attention.causal").unwrap(), Some(false));
    assert_eq!(number(&gguf, "tokenizer.ggml.token_type_count"), Some(2));
    assert_eq!(gguf.tensors().len(), BERT.len(), "the pooler and position_ids are left out");
    for (from, name, shape) in BERT {
        let tensor = gguf.tensor(name).unwrap();
        let is_matrix = shape.len() > 1 && !name.starts_with("token_types") && !name.starts_with("position");
        assert_eq!(tensor.ty.name(), if is_matrix { "f16" } else { "f32" }, "{name}");
        let want = folder.tensors[from].values();
        let want =
            want.iter().map(|value| if is_matrix { half::f16::from_f32(*value).to_f32() } else { *value });
        assert_eq!(values(&gguf, name), want.collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn wordpiece_tokens_mark_the_start_of_words() {
    let dir = bert().write();
    let (gguf, _, notes) = convert(dir.path(), &to("f32")).unwrap();
    assert!(
        notes[0].contains("no modules.json") && number(&gguf, "bert.pooling_type").is_none(),
        "{notes:?}"
    );
    let metadata = gguf.metadata();
    assert_eq!(metadata.str("tokenizer.ggml.model").unwrap(), Some("bert"));
    let tokens: Vec<&str> = metadata.require_strs("tokenizer.ggml.tokens").unwrap().collect();
    let want = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁!", "▁run", "ning", "s", "▁the"];
    assert_eq!(tokens[..10], want);
    assert_eq!(tokens[10..], ["▁[unused1]", "▁##"]);
    for (word, id) in [("bos", 2), ("eos", 3), ("cls", 2), ("seperator", 3), ("padding", 0), ("mask", 4)] {
        assert_eq!(number(&gguf, &format!("tokenizer.ggml.{word}_token_id")), Some(id), "{word}");
    }
    let tokenizer = Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).unwrap();
    let ids = tokenizer.encode("The RUNNING runs! ran", Special::AsText, true);
    assert_eq!(ids, [2, 9, 6, 7, 6, 8, 5, 1, 3]);
    // The older vocab.txt gives the same, apart from the template.
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    fs::write(dir.path().join("vocab.txt"), TOKENS.join("\n") + "\n").unwrap();
    let (older, _, _) = convert(dir.path(), &to("f32")).unwrap();
    let words = older.metadata().require_strs("tokenizer.ggml.tokens").unwrap();
    assert_eq!(words.collect::<Vec<_>>(), tokens);
    let older = Tokenizer::from_gguf(&older, TokenizerOptions::default()).unwrap();
    assert_eq!(older.encode("The RUNNING runs! ran", Special::AsText, true), ids);
    // A cased vocabulary.
    fs::write(dir.path().join("tokenizer_config.json"), json!({"do_lower_case": false}).to_string()).unwrap();
    let (cased, _, _) = convert(dir.path(), &to("f32")).unwrap();
    let cased = Tokenizer::from_gguf(&cased, TokenizerOptions::default()).unwrap();
    assert_eq!(cased.encode("The running", Special::AsText, false), [1, 6, 7]);
}

/// An older checkpoint, which has a prefix and other names of norms.
#[test]
fn classifier_keeps_its_pooler() {
    let mut folder = bert();
    let older = |name: &str| {
        let name =
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        format!("bert.{name}")
    };
    folder.tensors = folder.tensors.into_iter().map(|(name, raw)| (older(&name), raw)).collect();
    folder.tensors.extend(tensors(&[("classifier.weight", &[1, 8]), ("classifier.bias", &[1])]));
    folder.config["architectures"] = json!(["BertForSequenceClassification"]);
    folder.config["id2label"] = json!({"0": "LABEL_0"});
    let dir = folder.write();
    let (gguf, _, notes) = convert(dir.path(), &to("f32")).unwrap();
    assert_eq!(notes, [""; 0]);
    assert_eq!(number(&gguf, "bert.pooling_type"), Some(4));
    for (from, name) in [
        ("bert.pooler.dense.weight", "cls.weight"),
        ("bert.pooler.dense.bias", "cls.bias"),
        ("classifier.weight", "cls.output.weight"),
        ("classifier.bias", "cls.output.bias"),
        ("bert.embeddings.LayerNorm.gamma", "token_embd_norm.weight"),
        ("bert.encoder.layer.0.output.LayerNorm.beta", "blk.0.layer_output_norm.bias"),
    ] {
        assert_eq!(values(&gguf, name), folder.tensors[from].values(), "{name}");
    }
    assert!(gguf.metadata().get("bert.classifier.output_labels").is_none());
    folder.config["id2label"] = json!({"0": "relevant"});
    folder.write_to(dir.path());
    let (gguf, _, _) = convert(dir.path(), &to("f32")).unwrap();
    let labels = gguf.metadata().require_strs("bert.classifier.output_labels").unwrap();
    assert_eq!(labels.collect::<Vec<_>>(), ["relevant"]);
    folder.config["id2label"] = json!({"0": "a", "1": "b"});
    folder.write_to(dir.path());
    let said = convert(dir.path(), &to("f32")).unwrap_err().to_string();
    assert!(said.contains("classifier.weight") && said.contains("[2, 8]"), "{said}");
}

#[test]
fn nomic_bert_keeps_qkv_fused() {
    let names: [(&str, &str, &[usize]); 13] = [
        ("embeddings.word_embeddings.weight", "token_embd.weight", &[12, 8]),
        ("embeddings.token_type_embeddings.weight", "token_types.weight", &[2, 8]),
        ("emb_ln.weight", "token_embd_norm.weight", &[8]),
        ("emb_ln.bias", "token_embd_norm.bias", &[8]),
        ("encoder.layers.0.attn.Wqkv.weight", "blk.0.attn_qkv.weight", &[24, 8]),
        ("encoder.layers.0.attn.out_proj.weight", "blk.0.attn_output.weight", &[8, 8]),
        ("encoder.layers.0.norm1.weight", "blk.0.attn_output_norm.weight", &[8]),
        ("encoder.layers.0.norm1.bias", "blk.0.attn_output_norm.bias", &[8]),
        ("encoder.layers.0.mlp.fc11.weight", "blk.0.ffn_up.weight", &[16, 8]),
        ("encoder.layers.0.mlp.fc12.weight", "blk.0.ffn_gate.weight", &[16, 8]),
        ("encoder.layers.0.mlp.fc2.weight", "blk.0.ffn_down.weight", &[8, 16]),
        ("encoder.layers.0.norm2.weight", "blk.0.layer_output_norm.weight", &[8]),
        ("encoder.layers.0.norm2.bias", "blk.0.layer_output_norm.bias", &[8]),
    ];
    let shapes: Vec<(&str, &[usize])> = names.iter().map(|(name, _, shape)| (*name, *shape)).collect();
    let config = json!({
        "architectures": ["NomicBertModel"], "activation_function": "swiglu", "n_embd": 8, "n_inner": 16,
        "n_positions": 8192, "max_trained_positions": 2048, "n_head": 2, "n_layer": 1,
        "layer_norm_epsilon": 1e-12, "type_vocab_size": 2, "vocab_size": 12, "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": false, "rotary_emb_scale_base": null,
        "causal": false, "prenorm": false, "qkv_proj_bias": false, "mlp_fc1_bias": false,
        "mlp_fc2_bias": false,
    });
    let mut folder = Folder { config, tokenizer: tokenizer(), tensors: tensors(&shapes) };
    let dir = folder.write();
    let (gguf, _, _) = convert(dir.path(), &to("f32")).unwrap();
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("nomic-bert"));
    assert_eq!(gguf.metadata().f32("nomic-bert.rope.freq_base").unwrap(), Some(1000.0));
    assert_eq!(gguf.metadata().bool("nomic-bert.attention.causal").unwrap(), Some(false));
    assert_eq!(number(&gguf, "nomic-bert.context_length"), Some(2048));
    assert_eq!(number(&gguf, "nomic-bert.feed_forward_length"), Some(16));
    assert_eq!(gguf.tensors().len(), names.len());
    for (from, name, _) in names {
        assert_eq!(values(&gguf, name), folder.tensors[from].values(), "{name}");
    }
    // As transformers writes it, with other key names.
    let other = json!({
        "architectures": ["NomicBertModel"], "hidden_act": "silu", "hidden_size": 8, "head_dim": 4,
        "intermediate_size": 16, "max_position_embeddings": 2048, "num_attention_heads": 2,
        "num_hidden_layers": 1, "layer_norm_eps": 1e-12, "type_vocab_size": 2, "vocab_size": 12,
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
    });
    Folder { config: other, ..folder.clone() }.write_to(dir.path());
    let (again, _, _) = convert(dir.path(), &to("f32")).unwrap();
    for key in ["context_length", "feed_forward_length", "attention.head_count", "embedding_length"] {
        let key = format!("nomic-bert.{key}");
        assert_eq!(number(&again, &key), number(&gguf, &key), "{key}");
    }
    assert_eq!(again.metadata().f32("nomic-bert.rope.freq_base").unwrap(), Some(1000.0));
    folder.config["qkv_proj_bias"] = json!(true);
    folder.write_to(dir.path());
    let said = convert(dir.path(), &to("f32")).unwrap_err().to_string();
    assert!(said.contains("`qkv_proj_bias`: want false"), "{said}");
}

#[test]
fn pooling_types_are_mapped_or_refused() {
    let dir = llama().write();
    for (keys, want) in [
        (json!({"pooling_mode_lasttoken": true, "pooling_mode_cls_token": false}), 3),
        (json!({"pooling_mode": "cls"}), 2),
        (json!({"pooling_mode_cls_token": true, "include_prompt": true}), 2),
    ] {
        add_pooling(dir.path(), &keys);
        let (gguf, _, _) = convert(dir.path(), &to("f32")).unwrap();
        assert_eq!(number(&gguf, "llama.pooling_type"), Some(want), "{keys}");
    }
    for (keys, found) in [
        (json!({"pooling_mode_max_tokens": true}), "pooling_mode_max_tokens"),
        (
            json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
            "pooling_mode_cls_token, ",
        ),
        (json!({}), "found none"),
    ] {
        add_pooling(dir.path(), &keys);
        let said = convert(dir.path(), &to("f32")).unwrap_err().to_string();
        assert!(said.contains("want mean, cls or lasttoken") && said.contains(found), "{said}");
    }
    let modules = json!([{"path": "../1_Pooling", "type": "sentence_transformers.models.Pooling"}]);
    fs::write(dir.path().join("modules.json"), modules.to_string()).unwrap();
    assert!(convert(dir.path(), &to("f32")).unwrap_err().to_string().contains("want a subfolder"));
}

/// Qwen3-Embedding: texts end with another token than the turns of a chat.
#[test]
fn token_that_ends_a_text_becomes_eos() {
    let mut folder = llama();
    folder.config["eos_token_id"] = json!(7);
    folder.tokenizer["added_tokens"] = json!([
        {"id": 6, "content": "<|endoftext|>", "special": true},
        {"id": 7, "content": "<|im_end|>", "special": true},
    ]);
    let dir = folder.write();
    let ids = |dir: &Path| {
        let (gguf, _, _) = convert(dir, &to("f32")).unwrap();
        let adds = gguf.metadata().bool("tokenizer.ggml.add_eos_token").unwrap();
        (number(&gguf, "tokenizer.ggml.eos_token_id"), number(&gguf, "tokenizer.ggml.eot_token_id"), adds)
    };
    assert_eq!(ids(dir.path()).0, Some(7));
    folder.tokenizer["post_processor"] = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel"},
        {"type": "TemplateProcessing", "single": [
            {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        ]},
    ]});
    folder.write_to(dir.path());
    assert_eq!(ids(dir.path()), (Some(6), Some(7), Some(true)));
}

#[test]
fn unsupported_bert_options_are_errors() {
    let refused = |change: &dyn Fn(&mut Folder), want: &str| {
        let mut folder = bert();
        change(&mut folder);
        let said = convert(folder.write().path(), &to("f32")).unwrap_err().to_string();
        assert!(said.contains(want), "{said}");
    };
    let key = "position_embedding_type";
    refused(&|folder| folder.config[key] = json!("relative_key"), "want absolute");
    refused(&|folder| folder.config["hidden_act"] = json!("relu"), "want gelu");
    refused(&|folder| folder.config["is_decoder"] = json!(true), "`is_decoder`: want false");
    refused(&|folder| folder.tokenizer["normalizer"]["clean_text"] = json!(false), "`clean_text` is false");
    refused(&|folder| folder.tokenizer["pre_tokenizer"] = Json::Null, "`type` is null");
    refused(&|folder| folder.tokenizer["added_tokens"][3]["content"] = json!("x"), "[SEP]");
    let dir = bert().write();
    let options =
        sterna::convert::ConvertOptions { tokenizer_pre: Some("gpt-2".parse().unwrap()), ..to("f32") };
    let said = convert(dir.path(), &options).unwrap_err().to_string();
    assert!(said.contains("is a WordPiece vocabulary, which needs no pre-tokenizer"), "{said}");
}

/// A Gemma of six layers, of which the last has full attention, with two dense matrices after the pooling.
#[test]
fn dense_layers_after_pooling_are_kept_only_for_gemma() {
    let mut shapes: Vec<(String, Vec<usize>)> =
        vec![("embed_tokens.weight".to_owned(), vec![10, 8]), ("norm.weight".to_owned(), vec![8])];
    for layer in 0..6 {
        let norms = ["input", "post_attention", "pre_feedforward", "post_feedforward"];
        shapes.extend(norms.map(|norm| (format!("layers.{layer}.{norm}_layernorm.weight"), vec![8])));
        for (name, shape) in [
            ("self_attn.q_norm", vec![4]),
            ("self_attn.k_norm", vec![4]),
            ("self_attn.q_proj", vec![8, 8]),
            ("self_attn.k_proj", vec![4, 8]),
            ("self_attn.v_proj", vec![4, 8]),
            ("self_attn.o_proj", vec![8, 8]),
            ("mlp.gate_proj", vec![16, 8]),
            ("mlp.up_proj", vec![16, 8]),
            ("mlp.down_proj", vec![8, 16]),
        ] {
            shapes.push((format!("layers.{layer}.{name}.weight"), shape));
        }
    }
    let shapes: Vec<(&str, &[usize])> =
        shapes.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    let kinds: Vec<&str> =
        (0..6).map(|layer| if layer == 5 { "full_attention" } else { "sliding_attention" }).collect();
    let config = json!({
        "architectures": ["Gemma3TextModel"], "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 8,
        "intermediate_size": 16, "max_position_embeddings": 64, "num_attention_heads": 2,
        "num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 4, "query_pre_attn_scalar": 4,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 16,
        "layer_types": kinds, "use_bidirectional_attention": true, "vocab_size": 10,
    });
    let mut folder = Folder { config, tokenizer: super::folder::tokenizer(10), tensors: tensors(&shapes) };
    let dir = folder.write();
    add_pooling(dir.path(), &json!({"pooling_mode_mean_tokens": true}));
    let modules = json!([
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
        {"path": "3_Dense", "type": "sentence_transformers.models.Dense"},
    ]);
    fs::write(dir.path().join("modules.json"), modules.to_string()).unwrap();
    let dense = |name: &str, n_in: usize, n_out: usize, act: &str| {
        let (path, raw) = (dir.path().join(name), Raw::bf16s(&[n_out, n_in], &numbers(n_in * n_out, 99)));
        fs::create_dir_all(&path).unwrap();
        let config = json!({"in_features": n_in, "out_features": n_out, "bias": false,
            "activation_function": act});
        fs::write(path.join("config.json"), config.to_string()).unwrap();
        let values = raw.values();
        let tensors = BTreeMap::from([("linear.weight".to_owned(), raw)]);
        fs::write(path.join("model.safetensors"), super::folder::safetensors(&tensors)).unwrap();
        values
    };
    let identity = "torch.nn.modules.linear.Identity";
    let (second, third) = (dense("2_Dense", 8, 24, identity), dense("3_Dense", 24, 8, identity));
    let (gguf, _, notes) = convert(dir.path(), &to("f32")).unwrap();
    assert_eq!(notes, [""; 0]);
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("gemma-embedding"));
    for (key, want) in [
        ("pooling_type", 1),
        ("attention.sliding_window", 16),
        ("dense_2_feat_in", 8),
        ("dense_2_feat_out", 24),
        ("dense_3_feat_in", 24),
        ("dense_3_feat_out", 8),
    ] {
        assert_eq!(number(&gguf, &format!("gemma-embedding.{key}")), Some(want), "{key}");
    }
    assert_eq!((values(&gguf, "dense_2.weight"), values(&gguf, "dense_3.weight")), (second, third));
    let norm = folder.tensors["norm.weight"].values();
    let norm: Vec<f32> = norm.iter().map(|value| value + 1.0).collect();
    assert_eq!(values(&gguf, "output_norm.weight"), norm);
    dense("2_Dense", 8, 24, "torch.nn.modules.activation.Tanh");
    let said = convert(dir.path(), &to("f32")).unwrap_err().to_string();
    assert!(said.contains("want Identity"), "{said}");
    // For another architecture they are not read, and a note says so.
    llama().write_to(dir.path());
    let (_, _, notes) = convert(dir.path(), &to("f32")).unwrap();
    assert!(notes[0].contains("type Dense"), "{notes:?}");
    dense("2_Dense", 8, 24, identity);
    // The same class as a decoder.
    folder.config["use_bidirectional_attention"] = json!(false);
    folder.write_to(dir.path());
    let (gguf, ..) = convert(dir.path(), &to("f32")).unwrap();
    assert_eq!(gguf.metadata().str("general.architecture").unwrap(), Some("gemma3"));
    assert!(gguf.metadata().get("gemma3.attention.causal").is_none());
}
