//! `sterna embed` as a user types it, and what they see.
#![cfg(feature = "cli")]

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::program::{command, ok, refused, sterna_in, succeeded};

fn write_inputs(dir: &Path) {
    ok(&sterna_in(dir, &["synth", "--preset", "tiny-bert", "m.gguf"]));
    let lines = (0..150).map(|at| format!("{}line {at}\n", "the owl ".repeat(at % 7)));
    fs::write(dir.join("lines.txt"), lines.collect::<String>()).unwrap();
}

fn floats(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

#[test]
fn embed_writes_every_format() {
    let dir = tempfile::tempdir().unwrap();
    write_inputs(dir.path());
    let embed = |more: &[&str]| {
        let args = ["embed", "-m", "m.gguf", "--backend", "cpu", "-t", "1"];
        sterna_in(dir.path(), &[&args, more].concat())
    };
    let (lines, said) = succeeded(&embed(&["-f", "lines.txt"]));
    assert!(said.contains("150 texts of ") && !said.contains("similarities"), "{said}");
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().map(|row| row["index"].as_u64().unwrap()).eq(0..150));
    let vectors: Vec<Vec<f32>> = rows.iter().map(|row| floats(&row["embedding"])).collect();
    for vector in &vectors {
        assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5 && vector.len() == 128);
    }
    // A text has the same vector alone and in a batch.
    let text = format!("{}line 5", "the owl ".repeat(5));
    let alone: Value = serde_json::from_str(&ok(&embed(&["-p", &text]))).unwrap();
    assert!(floats(&alone["embedding"]).iter().zip(&vectors[5]).all(|(a, b)| (a - b).abs() < 1e-5));

    let array: Value =
        serde_json::from_str(&ok(&embed(&["-f", "lines.txt", "--output-format", "array"]))).unwrap();
    assert!(array.as_array().unwrap().iter().map(floats).eq(vectors.iter().cloned()));
    let json: Value =
        serde_json::from_str(&ok(&embed(&["-f", "lines.txt", "--output-format", "json"]))).unwrap();
    assert_eq!(json["object"], "list");
    assert_eq!(floats(&json["data"][149]["embedding"]), vectors[149]);
    succeeded(&embed(&["-f", "lines.txt", "-o", "v.npy"]));
    let bytes = fs::read(dir.path().join("v.npy")).unwrap();
    assert!(String::from_utf8_lossy(&bytes[..128]).contains("(150, 128)"));
    let numbers = bytes[128..].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    assert!(numbers.eq(vectors.iter().flatten().copied()));

    let mut piped = command();
    let piped = piped.current_dir(dir.path()).args(["embed", "-m", "m.gguf", "--backend", "cpu", "-t", "1"]);
    let piped = piped.args(["-f", "-", "--dimensions", "4", "--embd-normalize", "0"]);
    let piped = ok(&piped.write_stdin("the owl\r\na tree\r\n").output().unwrap());
    let first: Value = serde_json::from_str(piped.lines().next().unwrap()).unwrap();
    let largest = floats(&first["embedding"]).iter().fold(0.0_f32, |max, x| max.max(x.abs()));
    assert!(piped.lines().count() == 2 && (largest - 32760.0).abs() < 0.1, "{piped}");

    let (_, said) = succeeded(&embed(&["-p", "an owl", "-p", "an owl", "-p", "the tree"]));
    assert!(said.contains("cosine similarities:\n  1.00   1.00 "), "{said}");
    let per_token = ok(&embed(&["-p", "an owl", "--pooling", "none"]));
    let rows: Value = serde_json::from_str(&per_token).unwrap();
    assert!(rows["embedding"].as_array().unwrap().len() > 2 && rows["embedding"][0].is_array());
    let scores = ok(&embed(&["-p", "where\tan owl", "-p", "where\ta tree", "--pooling", "rank"]));
    let score: Value = serde_json::from_str(scores.lines().next().unwrap()).unwrap();
    assert_eq!(score["embedding"].as_array().unwrap().len(), 1);
}

#[test]
fn embed_rejects_bad_input() {
    let dir = tempfile::tempdir().unwrap();
    write_inputs(dir.path());
    fs::write(dir.path().join("gap.txt"), "one\n\nthree\n").unwrap();
    fs::write(dir.path().join("empty.txt"), "").unwrap();
    fs::write(dir.path().join("long.txt"), format!("short\n{}\n", "the owl ".repeat(600))).unwrap();
    let embed = |more: &[&str]| {
        sterna_in(dir.path(), &[&["embed", "-m", "m.gguf", "--backend", "cpu", "-t", "1"], more].concat())
    };
    refused(&embed(&[]), &["no text was given", "-p TEXT"]);
    refused(&embed(&["-f", "gap.txt"]), &["gap.txt, line 2: is empty"]);
    refused(&embed(&["-f", "empty.txt"]), &["no lines"]);
    refused(&embed(&["-p", ""]), &["text 1: is empty"]);
    refused(&embed(&["-f", "no.txt"]), &["no.txt"]);
    refused(&embed(&["-f", "long.txt"]), &["long.txt, line 2", "the context of 256", "--truncate"]);
    refused(&embed(&["-p", "a", "--dimensions", "129"]), &["--dimensions 129", "vectors have 128"]);
    refused(&embed(&["-p", "a", "--output-format", "npy"]), &["-o FILE"]);
    refused(&embed(&["-p", "a", "--pooling", "rank"]), &["text 1", "a tab"]);
    assert_eq!(embed(&["-f", "long.txt", "--truncate"]).status.code(), Some(0));
    let text = ["run", "-m", "m.gguf", "--backend", "cpu", "-p", "a", "-n", "1"];
    refused(&sterna_in(dir.path(), &text), &["`bert` only makes embeddings", "sterna embed"]);
    ok(&sterna_in(dir.path(), &["synth", "tiny.gguf"]));
    let rank = ["embed", "-m", "tiny.gguf", "--backend", "cpu", "-p", "a\tb", "--pooling", "rank"];
    refused(&sterna_in(dir.path(), &rank), &["--pooling: want none, mean, cls or last"]);
    assert!(!dir.path().join("v.npy").exists());
}
