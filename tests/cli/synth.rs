//! `sterna synth` and `sterna inspect` as a user types them.
#![cfg(feature = "cli")]

use std::fs;

use sterna::gguf::Gguf;
use sterna::synth::PRESETS;
use sterna::tokenizer::{Special, Tokenizer, TokenizerOptions};

use super::program::{files, ok, refused, sterna_in as sterna};

#[test]
fn synth_is_reproducible_by_seed() {
    let dir = tempfile::tempdir().unwrap();
    let make = |out: &str, more: &[&str]| {
        ok(&sterna(dir.path(), &[&["synth", "--preset", "tiny", out], more].concat()));
        fs::read(dir.path().join(out)).unwrap()
    };
    let first = make("a.gguf", &[]);
    assert!(first == make("b.gguf", &["--seed", "1"]));
    assert!(first != make("c.gguf", &["--seed", "2"]));
    // FNV-1a of the file as first written on x86-64. Other machines must write the same.
    const HASH: u64 = 0x6f16_4ccb_bc1d_b15b;
    let hash = first.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    assert_eq!(hash, HASH, "{hash:#x}");
}

#[test]
fn every_preset_and_type_makes_a_model() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--layers", "1", "--dim", "256", "--ffn-dim", "128", "--heads", "4", "--vocab", "640"];
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let (kv_heads, head_dim) = match preset {
            "gpt2" | "tiny-bert" => ("4", "64"),
            // One latent head, and more than its 64 rotated elements.
            "glm-4.7-flash" => ("1", "80"),
            _ => ("2", "64"),
        };
        if preset == "gemma-3-mmproj" {
            continue;
        }
        let more = ["--kv-heads", kv_heads, "--head-dim", head_dim, "--ctx", "64", "--force"];
        ok(&sterna(dir.path(), &[&["synth", "--preset", preset, "m.gguf"], &small[..], &more].concat()));
        let gguf = Gguf::open(&dir.path().join("m.gguf")).unwrap();
        let architecture = gguf.metadata().require_str("general.architecture").unwrap();
        assert_eq!(gguf.metadata().require_u32(&format!("{architecture}.block_count")).unwrap(), 1);
        assert_eq!(gguf.find("token_embd.weight").unwrap().dims, [640, 256]);
        if preset == "tiny" {
            let inspected = ok(&sterna(dir.path(), &["inspect", "m.gguf"]));
            assert!(inspected.contains("cpu: yes"), "{preset}: {inspected}");
        }
        let runs = if ["tiny-bert", "bitnet-embedding-0.6b"].contains(&preset) {
            &["embed"][..]
        } else {
            &["run", "-n", "2"]
        };
        ok(&sterna(dir.path(), &[runs, &["--backend", "cpu", "-m", "m.gguf", "-p", "a"]].concat()));
    }
    for ty in ggml_types::types::REGISTRY.iter().filter(|ty| ty.encodes()).map(|ty| ty.name()) {
        ok(&sterna(dir.path(), &["synth", "--type", ty, "--head-type", "q6_k", "--force", "m.gguf"]));
        let gguf = Gguf::open(&dir.path().join("m.gguf")).unwrap();
        let tensor = gguf.tensor("blk.1.ffn_down.weight").unwrap();
        assert_eq!((tensor.ty.name(), tensor.rows, tensor.cols), (ty, 256, 512));
        let mut row = vec![f32::NAN; tensor.cols];
        tensor.ty.decode_row(&tensor.bytes, tensor.rows, 7, &mut row).unwrap();
        let mean_square = row.iter().map(|value| value * value).sum::<f32>() / 512.0;
        // The scale that keeps activations near 1, within the error of 512 samples and 4 bits. One-bit codes
        // have no 0, which half of the ternary values are: with the mean magnitude instead, half of the mean
        // square is left.
        let kept = if ty == "q1_0" { 0.5 } else { 1.0 };
        assert!((0.7..1.4).contains(&(mean_square * 512.0 / kept)), "{ty}: {mean_square}");
    }
}

/// A tower of Gemma 3 is an mmproj file that engines read.
#[test]
fn a_tower_is_an_mmproj_file() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--layers", "1", "--dim", "64", "--ffn-dim", "96", "--heads", "2", "--kv-heads", "2"];
    let small = [&["synth", "--preset", "gemma-3-mmproj", "m.gguf"], &small[..]].concat();
    ok(&sterna(dir.path(), &small));
    let gguf = Gguf::open(&dir.path().join("m.gguf")).unwrap();
    let vision = sterna::model::vision::Vision::read(&gguf, Default::default()).unwrap();
    assert_eq!((vision.projector.as_str(), vision.text_dim, vision.max_patches()), ("gemma3", 2560, 4096));
    let uneven = [&small[..], &["--head-dim", "16", "--force"]].concat();
    refused(&sterna(dir.path(), &uneven), &["equal numbers of heads"]);
}

#[test]
fn synth_vocabulary_encodes_any_text() {
    let dir = tempfile::tempdir().unwrap();
    ok(&sterna(dir.path(), &["synth", "tiny.gguf"]));
    let gguf = Gguf::open(&dir.path().join("tiny.gguf")).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).unwrap();
    let every_char: String = (0..0x3000).filter_map(char::from_u32).collect();
    for text in ["the cat sat on the mat", "Grüße, 世界! 🦀\r\n\t", &every_char] {
        let ids = tokenizer.encode(text, Special::AsText, false);
        assert!(tokenizer.decode(&ids, false) == text.as_bytes(), "{text}");
    }
    let words = tokenizer.encode("the cat sat on the mat", Special::AsText, false);
    assert!(words.len() < 22, "merges are used: {words:?}");
    assert_eq!(tokenizer.encode("<|eot_id|>", Special::Parse, false), [638]);
}

#[test]
fn failed_synth_leaves_no_files() {
    let dir = tempfile::tempdir().unwrap();
    ok(&sterna(dir.path(), &["synth", "tiny.gguf"]));
    let before = fs::read(dir.path().join("tiny.gguf")).unwrap();
    refused(
        &sterna(dir.path(), &["synth", "--seed", "2", "tiny.gguf"]),
        &["tiny.gguf already exists", "--force"],
    );
    let vast = [
        "synth",
        "--dim",
        "1048576",
        "--ffn-dim",
        "4194304",
        "--head-dim",
        "128",
        "--layers",
        "99",
        "vast.gguf",
    ];
    refused(&sterna(dir.path(), &vast), &["bytes needed in .", "bytes free there"]);
    refused(
        &sterna(dir.path(), &["synth", "--heads", "3", "--head-dim", "128", "--kv-heads", "2", "x.gguf"]),
        &["kv-heads"],
    );
    refused(&sterna(dir.path(), &["synth", "--heads", "0", "x.gguf"]), &["heads: want 1 to"]);
    refused(&sterna(dir.path(), &["synth", "--vocab", "259", "x.gguf"]), &["vocab: want at least 260"]);
    refused(&sterna(dir.path(), &["synth", "--layers", "5000", "x.gguf"]), &["layers: want 1 to 4096"]);
    refused(
        &sterna(dir.path(), &["synth", "--dim", "192", "--head-dim", "128", "x.gguf"]),
        &["blk.0.attn_q.weight", "blocks of 128"],
    );
    refused(&sterna(dir.path(), &["synth", "--type", "q9", "x.gguf"]), &["type: want one of", "tq2_0"]);
    refused(&sterna(dir.path(), &["synth", "--preset", "gpt5", "x.gguf"]), &["preset: want one of tiny"]);
    refused(&sterna(dir.path(), &["synth", "none/x.gguf"]), &["none"]);
    assert_eq!(files(dir.path()), ["tiny.gguf"]);
    assert!(fs::read(dir.path().join("tiny.gguf")).unwrap() == before, "the file has changed");
    ok(&sterna(dir.path(), &["synth", "--seed", "2", "--force", "tiny.gguf"]));
    assert!(fs::read(dir.path().join("tiny.gguf")).unwrap() != before);
    assert_eq!(files(dir.path()), ["tiny.gguf"]);
}

#[test]
fn inspect_shows_metadata_and_tensors() {
    let dir = tempfile::tempdir().unwrap();
    ok(&sterna(dir.path(), &["synth", "tiny.gguf"]));
    let text = ok(&sterna(dir.path(), &["inspect", "tiny.gguf"]));
    for line in [
        "dialect   bitnet",
        "640 string: [\"!\"",
        ", ...]",
        "blk.0.attn_k.weight",
        "8224 bytes at 0x",
        "cpu: yes",
    ] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
    let program = ok(&sterna(dir.path(), &["inspect", "tiny.gguf", "--program"]));
    assert!(program.starts_with("program ") && program.contains("\n1.ffn_out: "), "{program}");
    let json = ok(&sterna(dir.path(), &["inspect", "tiny.gguf", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["tensors"].as_array().unwrap().len(), 25);
    assert_eq!(json["metadata"]["tokenizer.ggml.merges"]["len"], 380);
    assert_eq!(json["types"]["i2_s"]["tensors"], 14);
    assert_eq!(json["backends"]["cpu"]["runs"], true);
}

#[test]
fn inspect_opens_files_that_cannot_run() {
    let dir = tempfile::tempdir().unwrap();
    // No model, but a tensor of an unknown type and names that would clear the screen.
    let mut metadata = sterna::gguf::Metadata::default();
    metadata.set("\u{1b}[2Jkey", "\u{1b}[2Jvalue");
    let mut writer = sterna::gguf::GgufWriter::new(metadata).unwrap();
    writer.tensor("\u{1b}[2Jname", &[4], 77, 16).unwrap();
    let mut data = writer.begin(Vec::new()).unwrap();
    data.tensor([[0; 16]]).unwrap();
    fs::write(dir.path().join("odd.gguf"), data.finish().unwrap()).unwrap();
    let text = ok(&sterna(dir.path(), &["inspect", "odd.gguf"]));
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(
        text.contains("type 77") && text.contains("no implementation") && text.contains("cpu: no: "),
        "{text}"
    );
    ok(&sterna(dir.path(), &["inspect", "odd.gguf", "--json", "--dialect", "bitnet"]));
    refused(&sterna(dir.path(), &["inspect", "."]), &["found a directory"]);
    refused(&sterna(dir.path(), &["inspect", "none.gguf"]), &["none.gguf: cannot open"]);
}
