//! `sterna convert` as a user types it.
#![cfg(all(feature = "cli", feature = "convert"))]

use std::fs;
use std::path::Path;

use serde_json::json;
use sterna::gguf::Gguf;

use super::program::{ended_with, files, refused, sterna_in as sterna, succeeded};

/// Writes a folder `tiny` with a packed BitNet of one layer. If `zero`, its up projection is all zeros.
fn checkpoint(dir: &Path, zero: bool) {
    let folder = dir.join("tiny");
    fs::create_dir_all(&folder).unwrap();
    let (dim, ffn, vocab) = (128usize, 256usize, 300usize);
    let config = json!({
        "architectures": ["BitNetForCausalLM"], "hidden_act": "relu2", "hidden_size": dim,
        "intermediate_size": ffn, "max_position_embeddings": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "vocab_size": vocab, "rope_theta": 500000.0, "eos_token_id": 299,
        "quantization_config": {
            "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"
        },
    });
    // The alphabet of byte-level BPE: printable ASCII, and letters for the other bytes.
    let ascii = (33u8..127).map(|byte| char::from(byte).to_string());
    let letters = ascii.chain((0..162u32).map(|at| char::from_u32(0x100 + at).unwrap().to_string()));
    let tokens = letters.chain((256..vocab).map(|id| format!("t{id}")));
    let entries: serde_json::Map<_, _> = tokens.enumerate().map(|(id, text)| (text, json!(id))).collect();
    let tokenizer = json!({
        "added_tokens": [{"id": 299, "content": "t299", "special": true}], "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "model": {"type": "BPE", "vocab": entries, "merges": []},
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    let mut add = |name: String, dtype: &str, shape: &[usize], bytes: Vec<u8>| {
        let start = data.len();
        data.extend(bytes);
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}));
    };
    let one = half::bf16::from_f32(1.0).to_le_bytes();
    let norm = |n: usize| one.repeat(n);
    let noise = |n: usize, seed: usize| (0..n).map(move |at| (at * at * 31 + at * 7 + seed) % 251);
    let table =
        noise(vocab * dim, 1).flat_map(|x| half::bf16::from_f32(x as f32 / 125.0 - 1.0).to_le_bytes());
    add("model.embed_tokens.weight".into(), "BF16", &[vocab, dim], table.collect());
    add("model.norm.weight".into(), "BF16", &[dim], norm(dim));
    let layer = "model.layers.0.";
    for (name, n) in [
        ("input_layernorm", dim),
        ("post_attention_layernorm", dim),
        ("self_attn.attn_sub_norm", dim),
        ("mlp.ffn_sub_norm", ffn),
    ] {
        add(format!("{layer}{name}.weight"), "BF16", &[n], norm(n));
    }
    for (name, rows, cols) in [
        ("self_attn.q_proj", dim, dim),
        ("self_attn.k_proj", dim / 2, dim),
        ("self_attn.v_proj", dim / 2, dim),
        ("self_attn.o_proj", dim, dim),
        ("mlp.gate_proj", ffn, dim),
        ("mlp.up_proj", ffn, dim),
        ("mlp.down_proj", dim, ffn),
    ] {
        let is_zero = zero && name == "mlp.up_proj";
        let code = |x: usize| if is_zero { 1 } else { (x % 3) as u8 };
        let bytes = noise(rows / 4 * cols, rows + cols);
        let bytes = bytes.map(|x| code(x) | code(x / 3) << 2 | code(x / 9) << 4 | code(x / 27) << 6);
        add(format!("{layer}{name}.weight"), "U8", &[rows / 4, cols], bytes.collect());
        add(format!("{layer}{name}.weight_scale"), "BF16", &[1], one.to_vec());
    }
    let header = serde_json::Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
}

#[test]
fn convert_makes_a_model_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), false);
    let (plan, _) = succeeded(&sterna(dir.path(), &["convert", "--dry-run", "tiny"]));
    assert!(
        plan.lines().any(|line| line.starts_with("blk.0.attn_q.weight") && line.contains("i2_s")),
        "{plan}"
    );
    assert_eq!(files(dir.path()), ["tiny"]);
    let to_file = ["convert", "tiny", "--outfile", "tiny.gguf", "-t", "2"];
    let (report, notes) = succeeded(&sterna(dir.path(), &to_file));
    assert!(report.contains("13 tensors"), "{report}");
    assert!(
        notes.contains("note: 7 of 7 ternary matrices become i2_s: each matrix has one scale"),
        "{notes}"
    );
    assert!(!notes.contains("WARNING"), "{notes}");
    succeeded(&sterna(dir.path(), &["run", "-m", "tiny.gguf", "-p", "t", "-n", "4", "-t", "1"]));
    let (inspected, _) = succeeded(&sterna(dir.path(), &["inspect", "tiny.gguf"]));
    assert!(inspected.contains("bitnet-b1.58") && inspected.contains("cpu: yes"), "{inspected}");
    refused(&sterna(dir.path(), &["convert", "tiny", "tiny.gguf"]), &["already exists", "--force"]);
    ended_with(&sterna(dir.path(), &[&to_file[..], &["b.gguf"]].concat()), 2, &["--outfile", "OUT.gguf"]);
    ended_with(&sterna(dir.path(), &["convert", "tiny"]), 2, &["OUT.gguf"]);
    // A folder of symlinks, as in the hub's cache, gives the same file, apart from the organisation.
    #[cfg(unix)]
    {
        let snapshot = dir.path().join("models--org--tiny/snapshots/0123");
        fs::create_dir_all(&snapshot).unwrap();
        for name in files(&dir.path().join("tiny")) {
            std::os::unix::fs::symlink(dir.path().join("tiny").join(&name), snapshot.join(&name)).unwrap();
        }
        succeeded(&sterna(dir.path(), &["convert", "models--org--tiny/snapshots/0123", "org.gguf"]));
        let gguf = Gguf::open(&dir.path().join("org.gguf")).unwrap();
        assert_eq!(gguf.metadata().str("general.organization").unwrap(), Some("Org"));
        succeeded(&sterna(
            dir.path(),
            &["edit", "org.gguf", "linked.gguf", "--remove", "general.organization"],
        ));
        let same = fs::read(dir.path().join("linked.gguf")).unwrap()
            == fs::read(dir.path().join("tiny.gguf")).unwrap();
        assert!(same, "symlinks give a different file");
    }
}

#[test]
fn convert_flags_choose_types_and_scales() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), false);
    for (outtype, want) in
        [("f32", "f32"), ("BF16", "bf16"), ("q8_0", "q8_0"), ("Q2_0", "q2_0"), ("f16", "f16")]
    {
        succeeded(&sterna(dir.path(), &["convert", "tiny", "out.gguf", "--force", "--outtype", outtype]));
        let gguf = Gguf::open(&dir.path().join("out.gguf")).unwrap();
        assert_eq!(gguf.find("blk.0.attn_q.weight").unwrap().type_name, want);
    }
    let convert = |args: &[&str]| sterna(dir.path(), &[&["convert", "tiny", "x.gguf"], args].concat());
    ended_with(&convert(&["--outtype", "q9_z"]), 2, &["--outtype", "i2_s", "q4_k_m".to_uppercase().as_str()]);
    ended_with(&convert(&["--scale", "add"]), 2, &["--scale", "multiply", "divide"]);
    ended_with(&convert(&["--ternary", "median"]), 2, &["--ternary", "absmean"]);
    let config = dir.path().join("tiny/config.json");
    let text = fs::read_to_string(&config).unwrap().replace("offline", "online");
    fs::write(&config, text).unwrap();
    refused(&convert(&[]), &["tiny", "q_proj", "--scale"]);
    succeeded(&convert(&["--scale", "multiply"]));
    fs::remove_file(dir.path().join("tiny/model.safetensors")).unwrap();
    refused(&sterna(dir.path(), &["convert", "tiny", "y.gguf"]), &["safetensors"]);
    assert_eq!(files(dir.path()), ["out.gguf", "tiny", "x.gguf"]);
}

#[test]
fn convert_and_inspect_warn_of_zero_matrices() {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), true);
    let warning = "WARNING: 1 matrices are all zeros (blk.0.ffn_up.weight)";
    let (_, stderr) = succeeded(&sterna(dir.path(), &["convert", "tiny", "tiny.gguf"]));
    assert!(stderr.contains(warning), "{stderr}");
    let (_, stderr) = succeeded(&sterna(dir.path(), &["inspect", "tiny.gguf"]));
    assert!(stderr.contains(warning), "{stderr}");
    let (json, _) = succeeded(&sterna(dir.path(), &["inspect", "tiny.gguf", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["zero_matrices"], json!([{"tensor": "blk.0.ffn_up.weight", "matrices": 1}]));
}

/// Writes a Llama whose weights are a hole in a sparse file, all zeros. Returns their bytes.
#[cfg(target_os = "linux")]
fn sparse_llama(folder: &Path, n_layers: usize, dim: usize) -> u64 {
    fs::create_dir_all(folder).unwrap();
    let vocab = 300;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": dim,
        "intermediate_size": dim, "max_position_embeddings": 64, "num_attention_heads": 8,
        "num_hidden_layers": n_layers, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "vocab_size": vocab, "rope_theta": 500000.0,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    checkpoint(folder.parent().unwrap(), false);
    let tokenizer = folder.parent().unwrap().join("tiny/tokenizer.json");
    fs::copy(tokenizer, folder.join("tokenizer.json")).unwrap();
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    let mut add = |name: String, shape: &[usize]| {
        let start = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}));
    };
    add("model.embed_tokens.weight".into(), &[vocab, dim]);
    add("model.norm.weight".into(), &[dim]);
    for layer in 0..n_layers {
        let of = |name: &str| format!("model.layers.{layer}.{name}.weight");
        ["input_layernorm", "post_attention_layernorm"].iter().for_each(|name| add(of(name), &[dim]));
        for name in ["q", "k", "v", "o"] {
            add(of(&format!("self_attn.{name}_proj")), &[dim, dim]);
        }
        for name in ["gate", "up", "down"] {
            add(of(&format!("mlp.{name}_proj")), &[dim, dim]);
        }
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = fs::File::create(folder.join("model.safetensors")).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::io::Write::write_all(&mut file, &[&length, header.as_bytes()].concat()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    end as u64
}

/// Peak memory depends on the largest tensor, not on the size of the checkpoint.
#[cfg(target_os = "linux")]
#[test]
fn convert_holds_one_tensor_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = sparse_llama(&dir.path().join("hollow"), 16, 1024);
    assert!(bytes > 224 << 20, "{bytes}");
    for outtype in ["q8_0", "f32"] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_sterna"))
            .current_dir(dir.path())
            .args(["convert", "hollow", "hollow.gguf", "--force", "--outtype", outtype, "-t", "2"])
            .stderr(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let (path, mut peak) = (format!("/proc/{}/status", child.id()), 0);
        let status = loop {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            peak = peak.max(kib.unwrap_or(0) << 10);
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None => std::thread::sleep(std::time::Duration::from_millis(2)),
            }
        };
        assert!(status.success());
        let written = fs::metadata(dir.path().join("hollow.gguf")).unwrap().len();
        assert!(written > bytes / 2, "{written} bytes");
        support::print_note(format_args!(
            "convert to {outtype}: {} of {} MiB at the peak",
            peak >> 20,
            bytes >> 20
        ));
        // Most of it is the program itself.
        assert!((4 << 20..96 << 20).contains(&peak), "{outtype}: {peak} bytes at the peak");
    }
}

/// The adapter's folder as a file, and merged into its model: the merged weights give the logits that
/// transformers computes.
#[test]
fn adapters_are_converted_and_merged() {
    let [Some(model), Some(adapter), Some(logits), Some(prompts)] =
        ["llama/tiny-f16.gguf", "lora/llama-a", "lora/llama-a.hf-fp32.logits.npy", "prompts.txt"]
            .map(support::golden)
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let [model, adapter] = [&model, &adapter].map(|path| path.to_str().unwrap());
    let (list, _) = succeeded(&sterna(dir.path(), &["convert", "--base", model, adapter, "a.gguf"]));
    assert!(list.contains("blk.0.attn_q.weight.lora_a [8, 256] f32"), "{list}");
    succeeded(&sterna(dir.path(), &["convert", "--lora", "a.gguf", model, "f32.gguf", "--outtype", "f32"]));
    let merged = Gguf::open(&dir.path().join("f32.gguf")).unwrap();
    let prompts = support::logits::sequences(&prompts);
    let engine = support::logits::engine(merged, "f32", sterna::backend::cpu::simd::best(), |_| ());
    let got = support::logits::all_logits(&engine, &prompts);
    let want = support::npy(&logits).f32s();
    let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // f32 sums in another order, as with the adapter at run time.
    assert!(far <= 1e-4, "{far}");
    // Without a type, every tensor keeps its own, and unchanged ones their bytes.
    succeeded(&sterna(dir.path(), &["convert", "--lora-scaled", "a.gguf:0.5", model, "own.gguf"]));
    let (own, base) =
        (Gguf::open(&dir.path().join("own.gguf")).unwrap(), Gguf::open(Path::new(model)).unwrap());
    for (own_info, info) in own.tensors().iter().zip(base.tensors()) {
        assert_eq!((&own_info.name, &own_info.type_name), (&info.name, &info.type_name));
        let is_same = own.raw_bytes(own_info).unwrap() == base.raw_bytes(info).unwrap();
        assert_eq!(
            is_same,
            !(info.name.contains("attn_") || info.name.contains("ffn_")) || info.dims.len() < 2
        );
    }
    assert_eq!(own.metadata().get("general.file_type"), base.metadata().get("general.file_type"));
    // The folder itself, in memory.
    let run = ["run", "-m", model, "--lora", adapter, "-p", "Hi", "-n", "1", "--backend", "cpu"];
    succeeded(&sterna(dir.path(), &run));
    // A file that takes the adapter's model for its own.
    refused(
        &sterna(dir.path(), &["run", "-m", "a.gguf", "-p", "Hi"]),
        &["LoRA adapter", "together with the file of its model"],
    );
    refused(&sterna(dir.path(), &["convert", adapter, "b.gguf"]), &["an adapter (LoRA)", "--base"]);
}

#[test]
fn ternary_weights_are_not_merged_in_their_type() {
    let Some(model) = support::golden("bitnet/tiny-i2_s.gguf") else { return };
    let dir = tempfile::tempdir().unwrap();
    let adapter = support::lora::of_bitnet_bytes(1.0);
    fs::write(dir.path().join("a.gguf"), adapter).unwrap();
    let model = model.to_str().unwrap();
    let merge = ["convert", "--lora", "a.gguf", model, "out.gguf"];
    refused(&sterna(dir.path(), &merge), &["blk.0.ffn_up.weight is i2_s", "--lora", "--outtype"]);
    succeeded(&sterna(dir.path(), &[&merge[..], &["--outtype", "f16"]].concat()));
    // `plan` counts the matrices and the buffers of adapters.
    let plan = ["plan", "-m", model, "--lora", "a.gguf", "--backend", "cpu"];
    let (plan, _) = succeeded(&sterna(dir.path(), &plan));
    assert!(plan.contains("adapters (f32)"), "{plan}");
    let wrong = |args: &[&str], words: &[&str]| {
        refused(&sterna(dir.path(), &[&["run", "-m", model, "-p", "Hi", "-n", "1"], args].concat()), words);
    };
    wrong(&["--lora", "missing.gguf"], &["missing.gguf"]);
    wrong(&["--lora-scaled", "a.gguf"], &["want FILE:SCALE"]);
    wrong(&["--lora-scaled", "a.gguf:much"], &["want FILE:SCALE"]);
    wrong(&["--lora", model], &["general.type", "adapter"]);
}
