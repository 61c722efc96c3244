//! Broken and inconsistent checkpoints: each gives an error that says what is wrong and where.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};
use sterna::convert::ConvertOptions;
use sterna::gguf::Gguf;

use super::folder::{Folder, Raw, llama, read, safetensors, with_header};
use super::{convert, to, values};

#[track_caller]
fn refused(folder: &Path, words: &[&str]) {
    refused_as(folder, &to("f16"), words);
}

#[track_caller]
fn refused_as(folder: &Path, options: &ConvertOptions, words: &[&str]) {
    let said = convert(folder, options).expect_err("it is broken").to_string();
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

/// Checks the error for the small Llama after a change.
#[track_caller]
fn changed(change: impl FnOnce(&mut Folder), words: &[&str]) {
    let mut folder = llama();
    change(&mut folder);
    refused(folder.write().path(), words);
}

#[test]
fn small_llama_converts_from_one_file_and_from_two() {
    let (one, ..) = convert(llama().write().path(), &to("f16")).unwrap();
    let (two, ..) = convert(llama().write_sharded().path(), &to("f16")).unwrap();
    assert_eq!(one.tensors().len(), 11);
    for info in one.tensors() {
        assert!(
            one.raw_bytes(info).unwrap() == two.raw_bytes(two.find(&info.name).unwrap()).unwrap(),
            "{}",
            info.name
        );
    }
    assert_eq!(one.metadata().str("tokenizer.ggml.pre").unwrap(), Some("gpt-2"));
}

#[test]
fn invalid_safetensors_files_are_refused() {
    let dir = llama().write();
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for n in [1, 7, 8, 9, 200, whole.len() - 1] {
        fs::write(&path, &whole[..n]).unwrap();
        refused(dir.path(), &["model.safetensors", "is not a complete safetensors file"]);
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    refused(dir.path(), &["model.safetensors", "bytes of tensors"]);
    // A header length beyond the limit.
    fs::write(&path, [&u64::MAX.to_le_bytes()[..], &whole[8..]].concat()).unwrap();
    refused(dir.path(), &["at most 100000000"]);
    let tensor =
        |from: u64, to: u64, shape: Json| json!({"dtype": "F32", "shape": shape, "data_offsets": [from, to]});
    let one = tensor(0, 16, json!([4]));
    let huge = 1u64 << 61;
    for second in [
        tensor(8, 24, json!([4])),
        tensor(20, 36, json!([4])),
        tensor(16, 28, json!([4])),
        tensor(16, 8, json!([4])),
        tensor(16, u64::MAX, json!([4])),
        tensor(16, 16u64.wrapping_add(huge), json!([huge / 4])),
        tensor(16, 32, json!([u64::MAX, 4])),
        json!("a tensor"),
    ] {
        fs::write(&path, with_header(&json!({"a": one, "b": second}), &[0; 32])).unwrap();
        refused(dir.path(), &["model.safetensors", "is not a complete safetensors file"]);
    }
    fs::write(&path, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n").unwrap();
    refused(dir.path(), &["Git LFS pointer"]);
    fs::write(&path, b"").unwrap();
    refused(dir.path(), &["model.safetensors", "empty"]);
}

#[test]
fn index_must_agree_with_the_files() {
    let dir = llama().write_sharded();
    let index = dir.path().join("model.safetensors.index.json");
    let good: Json = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let write = |json: &Json| fs::write(&index, json.to_string()).unwrap();
    let mut json = good.clone();
    json["weight_map"].as_object_mut().unwrap().remove("model.norm.weight");
    write(&json);
    refused(dir.path(), &["index.json", "does not list tensor model.norm.weight"]);
    let mut json = good.clone();
    json["weight_map"]["lm_head.weight"] = json!("model-00001-of-00002.safetensors");
    write(&json);
    refused(dir.path(), &["lists tensor lm_head.weight in model-00001", "in no file"]);
    for name in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "x.bin", "a\\b.safetensors"]
    {
        let mut json = good.clone();
        json["weight_map"]["model.norm.weight"] = json!(name);
        write(&json);
        refused(dir.path(), &["model.norm.weight", "want the name of a file in the same folder"]);
    }
    write(&json!({"weight_map": {}}));
    refused(dir.path(), &["lists no tensor"]);
    write(&json!([]));
    refused(dir.path(), &["weight_map"]);
    write(&good);
    fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    refused(dir.path(), &["1 of the 2 files", "model-00002-of-00002.safetensors"]);
    // A dangling link into a cache is reported as one.
    #[cfg(unix)]
    {
        let link = dir.path().join("model-00002-of-00002.safetensors");
        std::os::unix::fs::symlink("../blobs/gone", &link).unwrap();
        refused(dir.path(), &["model-00002-of-00002.safetensors: a dangling link"]);
        fs::remove_file(&link).unwrap();
    }
    // Without an index the file names give the number of parts.
    fs::remove_file(&index).unwrap();
    refused(dir.path(), &["want 2 parts", "found 1"]);
    // One tensor in two files.
    let second = dir.path().join("model-00002-of-00002.safetensors");
    fs::copy(dir.path().join("model-00001-of-00002.safetensors"), second).unwrap();
    refused(dir.path(), &["is also in"]);
}

/// The index says which of two copies of a tensor counts.
#[test]
fn index_chooses_between_two_copies() {
    let dir = llama().write_sharded();
    let at = |name: &str| dir.path().join(name);
    let index = at("model.safetensors.index.json");
    let mut json: Json = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let (want, ..) = convert(dir.path(), &to("f16")).unwrap();
    // The right copies of two tensors are in a file of their own, and old ones are still in the first files.
    let (name, other) = ("model.norm.weight", "model.embed_tokens.weight");
    let homes = [name, other].map(|name| json["weight_map"][name].as_str().unwrap().to_owned());
    let mut tensors = read(&at(&homes[0]));
    let mut overlay = llama().tensors;
    overlay.retain(|key, _| [name, other].contains(&key.as_str()));
    fs::write(at("model-overlay.safetensors"), safetensors(&overlay)).unwrap();
    tensors.get_mut(name).unwrap().bytes.fill(0);
    fs::write(at(&homes[0]), safetensors(&tensors)).unwrap();
    for name in [name, other] {
        json["weight_map"][name] = json!("model-overlay.safetensors");
    }
    fs::write(&index, json.to_string()).unwrap();
    let (got, _, notes) = convert(dir.path(), &to("f16")).unwrap();
    let norm = |gguf: &Gguf| values(gguf, "output_norm.weight");
    assert_eq!(norm(&got), norm(&want));
    let note = "other copies of 2 tensors, the first of model.embed_tokens.weight, in files";
    assert!(notes.iter().any(|found| found.starts_with(note)), "{notes:?}");
    // The file that the index names must have the tensor.
    let parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    json["weight_map"][name] = json!(parts.into_iter().find(|part| *part != homes[0]));
    fs::write(&index, json.to_string()).unwrap();
    refused(dir.path(), &["lists tensor model.norm.weight", "but it is in another file"]);
}

#[test]
fn folders_without_a_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    refused(&dir.path().join("nowhere"), &["nowhere", "want a folder"]);
    refused(dir.path(), &["config.json"]);
    fs::write(dir.path().join("adapter_config.json"), "{}").unwrap();
    refused(dir.path(), &["an adapter (LoRA)", "it is converted with the GGUF file of its model"]);
    fs::write(dir.path().join("config.json"), "{").unwrap();
    refused(dir.path(), &["config.json", "is not valid JSON"]);
    fs::write(dir.path().join("config.json"), "[]").unwrap();
    refused(dir.path(), &["config.json", "object"]);
    fs::write(dir.path().join("config.json"), llama().config.to_string()).unwrap();
    refused(dir.path(), &["has no safetensors"]);
    fs::write(dir.path().join("pytorch_model.bin"), "pickle").unwrap();
    refused(dir.path(), &["pytorch_model.bin", "pickles can run code", "save_pretrained"]);
    fs::write(dir.path().join("model.safetensors"), safetensors(&llama().tensors)).unwrap();
    refused(dir.path(), &["none of tokenizer.json, tokenizer.model", "merges.txt"]);
    fs::write(dir.path().join("tokenizer.model"), b"\xff\xff not a protocol buffer").unwrap();
    refused(dir.path(), &["tokenizer.model", "SentencePiece"]);
}

#[test]
fn wrong_tensors_are_named() {
    let q = "model.layers.0.self_attn.q_proj.weight";
    changed(|folder| drop(folder.tensors.remove(q)), &[q, "is missing"]);
    changed(
        |folder| drop(folder.tensors.remove("model.embed_tokens.weight")),
        &["embed_tokens", "is missing"],
    );
    let raw = Raw::f32s(&[2], &[0.0; 2]);
    let add = |name: &'static str| {
        let raw = raw.clone();
        move |folder: &mut Folder| drop(folder.tensors.insert(name.to_owned(), raw))
    };
    changed(
        add("model.layers.0.mlp.extra.weight"),
        &["mlp.extra.weight", "does not belong to LlamaForCausalLM"],
    );
    changed(
        add("model.layers.1.input_layernorm.weight"),
        &["layers.1.input_layernorm", "does not belong to"],
    );
    changed(add("vision_tower.patch.weight"), &["vision_tower.patch.weight", "ConvertOptions::text_only"]);
    changed(add("model.layers.0.mlp.up_proj.norm.weight"), &["norm of a projection's input", "Qwen3"]);
    changed(add("language_model.model.norm.weight"), &["model.norm.weight", "is also stored as"]);
    let shape =
        |shape: Vec<usize>| move |folder: &mut Folder| folder.tensors.get_mut(q).unwrap().shape = shape;
    changed(shape(vec![4, 16]), &[q, "want [8, 8], found [4, 16]"]);
    changed(shape(vec![64]), &[q, "want [8, 8], found [64]"]);
    let embedding =
        |folder: &mut Folder| folder.tensors.get_mut("model.embed_tokens.weight").unwrap().shape = vec![80];
    changed(embedding, &["embed_tokens", "want rows and columns"]);
    let dtype = |folder: &mut Folder| {
        let raw = folder.tensors.get_mut(q).unwrap();
        (raw.dtype, raw.bytes) = ("I32".to_owned(), vec![0; 256]);
    };
    changed(dtype, &[q, "found I32"]);
    // With `text_only` other parts are left out.
    let mut folder = llama();
    add("vision_tower.patch.weight")(&mut folder);
    let options = ConvertOptions { text_only: true, ..to("f16") };
    assert_eq!(convert(folder.write().path(), &options).unwrap().0.tensors().len(), 11);
}

/// With the type of the checkpoint and with another type.
#[test]
fn nan_and_infinite_weights_are_named() {
    let norm = "model.norm.weight";
    for value in [f32::NAN, f32::INFINITY] {
        let mut folder = llama();
        for (name, of) in
            [("model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight"), (norm, "output_norm")]
        {
            let shape = folder.tensors[name].shape.clone();
            let mut values = folder.tensors[name].values();
            values[3] = value;
            let whole = folder.tensors.insert(name.to_owned(), Raw::f32s(&shape, &values)).unwrap();
            for outtype in ["auto", "f16"] {
                refused_as(folder.write().path(), &to(outtype), &[of, "row 0, column 3", "cannot be stored"]);
            }
            folder.tensors.insert(name.to_owned(), whole);
        }
    }
}

#[test]
fn invalid_packed_weights_are_refused() {
    let up = "model.layers.0.mlp.up_proj.weight";
    let packed = |codes: u8, scale: Option<Raw>| {
        move |folder: &mut Folder| {
            let spared = ["q_", "k_", "v_", "o_", "gate", "down"];
            folder.config["quantization_config"] =
                json!({"quant_method": "bitnet", "modules_to_not_convert": spared});
            folder.tensors.insert(
                up.to_owned(),
                Raw { dtype: "U8".to_owned(), shape: vec![4, 8], bytes: vec![codes; 32] },
            );
            if let Some(scale) = scale {
                folder.tensors.insert(format!("{up}_scale"), scale);
            }
        }
    };
    let one = |value: f32| Some(Raw::bf16s(&[1], &[value]));
    changed(packed(0x55, None), &["up_proj.weight_scale", "is missing"]);
    changed(packed(0x55, one(f32::NAN)), &["up_proj.weight_scale", "found NaN"]);
    changed(packed(0x55, one(0.0)), &["up_proj.weight_scale", "above 0"]);
    changed(packed(0x55, one(-1.0)), &["up_proj.weight_scale", "above 0"]);
    changed(packed(0x55, Some(Raw::f32s(&[5], &[1.0; 5]))), &["want 1 scale or 16", "found 5"]);
    changed(packed(0x5d, one(1.0)), &[up, "found 3 at row 4, column 0"]);
    let mut folder = llama();
    packed(0x55, one(1.0))(&mut folder);
    assert!(convert(folder.write().path(), &to("f16")).is_ok());
    // An unpacked weight in a checkpoint whose configuration says packed.
    folder.config["quantization_config"] = json!({"quant_method": "bitnet"});
    refused(folder.write().path(), &["q_proj.weight", "ConvertOptions::ternary absmean"]);
    for method in ["gptq", "awq", "fp8", "bitsandbytes"] {
        let set =
            |folder: &mut Folder| folder.config["quantization_config"] = json!({"quant_method": method});
        changed(set, &[method, "bitnet is the only supported one"]);
    }
}

#[test]
fn invalid_configurations_are_refused() {
    for key in [
        "architectures",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    ] {
        changed(|folder| drop(folder.config.as_object_mut().unwrap().remove(key)), &["config.json", key]);
    }
    for (key, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-8)),
        ("hidden_size", json!(1e300)),
        ("hidden_size", json!(7.5)),
        ("hidden_size", json!("8")),
        ("num_attention_heads", json!(3)),
        ("num_key_value_heads", json!(3)),
        ("num_hidden_layers", json!(1u64 << 40)),
        ("vocab_size", json!(1 << 29)),
        ("rms_norm_eps", json!(0)),
        ("rope_theta", json!(-1.0)),
        ("hidden_act", json!("gelu")),
        ("rope_scaling", json!({"rope_type": "longrope", "original_max_position_embeddings": 64})),
        ("rope_scaling", json!({"rope_type": "linear"})),
    ] {
        changed(
            |folder| folder.config[key] = value.clone(),
            &["config.json", key.trim_end_matches("_scaling")],
        );
    }
    // The first missing layer is an error, however many are declared.
    changed(|folder| folder.config["num_hidden_layers"] = json!(1 << 30), &["layers.1.", "is missing"]);
    changed(
        |folder| folder.config["architectures"] = json!(["MambaForCausalLM"]),
        &["MambaForCausalLM", "want one of LlamaForCausalLM", "Gemma3ForCausalLM"],
    );
    let untied = |folder: &mut Folder| folder.config["tie_word_embeddings"] = json!(false);
    changed(untied, &["lm_head.weight", "is missing, but tie_word_embeddings is false"]);
}

#[test]
fn invalid_vocabularies_are_refused() {
    changed(
        |folder| folder.tokenizer["model"]["vocab"]["far"] = json!(1u64 << 40),
        &["tokenizer.json", "1099511627776", "10 rows"],
    );
    changed(|folder| folder.tokenizer["model"]["vocab"]["a"] = json!("one"), &["tokenizer.json", "token a"]);
    changed(
        |folder| folder.tokenizer["added_tokens"] = json!([{"id": 10, "content": "x"}]),
        &["token 10", "10 rows"],
    );
    changed(|folder| folder.tokenizer["model"]["merges"] = json!([["a"]]), &["merges of two"]);
    changed(|folder| folder.tokenizer["model"]["type"] = json!("Unigram"), &["Unigram", "want BPE"]);
    let split = json!({"type": "Split", "pattern": {"Regex": "\\w+"}, "behavior": "Isolated"});
    changed(|folder| folder.tokenizer["pre_tokenizer"] = split, &["\\w+", "ConvertOptions::tokenizer_pre"]);
    let mut folder = llama();
    folder.tokenizer["pre_tokenizer"] = json!(null);
    let options = ConvertOptions { tokenizer_pre: Some("llama-bpe".parse().unwrap()), ..to("f16") };
    let (gguf, ..) = convert(folder.write().path(), &options).unwrap();
    assert_eq!(gguf.metadata().str("tokenizer.ggml.pre").unwrap(), Some("llama-bpe"));
}

#[test]
fn weights_beyond_the_range_of_f16_are_refused() {
    for value in [f32::NAN, f32::INFINITY, 1e38] {
        let mut folder = llama();
        let mut values = [0.5; 64];
        values[9] = value;
        let raw = Raw::bf16s(&[8, 8], &values);
        folder.tensors.insert("model.layers.0.self_attn.o_proj.weight".to_owned(), raw);
        let dir = folder.write();
        refused(dir.path(), &["blk.0.attn_output.weight", "row 1, column 1", "f16"]);
        if value == 1e38 {
            assert!(convert(dir.path(), &to("bf16")).is_ok());
        }
    }
}
