//! `sterna kv-report` as a user types it, and bounds on how much a quantised cache changes the next token.
#![cfg(feature = "cli")]

use std::path::Path;

use serde_json::Value;

use super::program::{ok, sterna};

fn report(args: &[&str]) -> Value {
    let output = sterna(&[&["kv-report", "--json", "-t", "1"], args].concat());
    serde_json::from_str(&ok(&output)).unwrap()
}

fn number(line: &Value, path: &str) -> f64 {
    line.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {line}"))
}

fn write(dir: &Path, text: &str) -> String {
    let path = dir.join("text.txt");
    std::fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

fn tiny() -> String {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    path.into_os_string().into_string().unwrap()
}

/// Words that do not repeat in the same order.
fn words(n: usize) -> String {
    const WORDS: [&str; 7] = ["the ", "king ", "saw ", "a ", "small ", "fox ", "again "];
    (0..n).map(|i| WORDS[(i * i + i / 7) % 7]).collect()
}

#[test]
fn kv_report_agrees_with_perplexity() {
    let dir = tempfile::tempdir().unwrap();
    let (file, model) = (write(dir.path(), &words(900)), tiny());
    let common = ["-m", &model, "-f", &file, "-c", "384", "--chunks", "2"];
    let report = report(&[&common[..], &["--types", "f32,q4_0,turboquant"]].concat());
    let lines = report["caches"].as_array().unwrap();
    let names: Vec<&str> = lines.iter().map(|line| line["cache"].as_str().unwrap()).collect();
    assert_eq!(names, ["f16", "f32", "q4_0", "turboquant"]);
    assert!(lines[0].get("mean_kl").is_none());
    // Both chunks, from the token after the middle on.
    assert_eq!(number(&report, "/scored"), 2.0 * 191.0);
    for (line, name) in lines.iter().zip(names) {
        let output = sterna(&[&["perplexity", "-t", "1", "--kv-cache-type", name], &common[..]].concat());
        let printed = String::from_utf8(output.stdout).unwrap();
        let ppl = format!("PPL = {:.4} +/-", number(line, "/perplexity/value"));
        assert!(printed.starts_with(&ppl), "{name}: {ppl}, {printed}");
    }
    // Rounding to f16 changes an int8 activation now and then; 3 and 4 bits change more.
    let kl = |i: usize| number(&lines[i], "/mean_kl/value");
    assert!(kl(1) < 0.005 && kl(2) > 5.0 * kl(1) && kl(3) > 5.0 * kl(1), "{report}");
    let bytes = |i: usize| number(&lines[i], "/bytes_a_token");
    assert_eq!(bytes(1), 2.0 * bytes(0));
    assert!(bytes(3) < bytes(2) && bytes(2) < bytes(0), "{report}");

    let table = sterna(&[&["kv-report", "-t", "1", "--types", "f32"], &common[..]].concat());
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("| cache | bytes per token |") && table.contains("| f32 |"), "{table}");
}

#[test]
fn kv_report_has_attention_needles_and_a_plot() {
    let dir = tempfile::tempdir().unwrap();
    let (file, model) = (write(dir.path(), &words(900)), tiny());
    let plot = dir.path().join("plot.svg");
    let common =
        ["-m", &model, "-f", &file, "-c", "384", "--chunks", "2", "--types", "turboquant,q8_0,turboquant-4"];
    let report = report(&[&common[..], &["--plot", plot.to_str().unwrap()]].concat());
    let lines = report["caches"].as_array().unwrap();
    // Fewer bits diverge more; all values are small compared with those of unrelated distributions.
    let kl = |i: usize| number(&lines[i], "/attention_kl/value");
    assert!(kl(2) > 0.0 && kl(3) > 2.0 * kl(2) && kl(1) > 2.0 * kl(3) && kl(1) < 0.1, "{report}");
    assert!(lines[0].get("attention_kl").is_none());

    let layers = report["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 3);
    for (i, layer) in layers.iter().enumerate() {
        assert_eq!(layer["layer"], i);
        for side in ["keys", "values"] {
            assert!(number(layer, &format!("/{side}/kurtosis")) > -2.0, "{layer}");
            assert!(number(layer, &format!("/{side}/channel_mean")) > 0.0, "{layer}");
            assert!((0.2..5.0).contains(&number(layer, &format!("/{side}/sink_norm"))), "{layer}");
        }
    }
    for line in lines {
        let needles = line["needles"].as_array().unwrap();
        let depths: Vec<u64> = needles.iter().map(|needle| needle["depth"].as_u64().unwrap()).collect();
        assert_eq!(depths, (0..=10).map(|i| 10 * i).collect::<Vec<_>>());
        for needle in needles {
            assert!((0.0..=1.0).contains(&number(needle, "/retrieved/value")), "{needle}");
            assert!(number(needle, "/log_prob/value") < 0.0, "{needle}");
        }
    }
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    for what in [">turboquant<", ">q8_0<", ">turboquant-4<", "needles", "bytes per token"] {
        assert!(svg.contains(what), "{what}: {svg}");
    }

    let table = String::from_utf8(sterna(&[&["kv-report", "-t", "1"], &common[..]].concat()).stdout).unwrap();
    assert!(table.contains("| layer | K kurtosis |") && table.contains("| 100 % |"), "{table}");
    // A model with random weights finds no needle.
    assert!(table.contains("With f16 this model finds"), "{table}");
}

/// The baseline is not compared with itself.
#[test]
fn kv_report_lists_the_baseline_once() {
    let dir = tempfile::tempdir().unwrap();
    let (file, model) = (write(dir.path(), &words(400)), tiny());
    let common = ["-m", &model, "-f", &file, "-c", "64", "--chunks", "1"];
    let alone = report(&[&common[..], &["--types", "f16"]].concat());
    let lines = alone["caches"].as_array().unwrap();
    assert_eq!((lines.len(), &lines[0]["cache"]), (1, &Value::from("f16")));
    assert!(number(&lines[0], "/perplexity/value") > 1.0 && lines[0].get("needles").is_none());
    let other = report(&[&common[..], &["--kv-cache-type", "f32", "--types", "f16,f32"]].concat());
    let names: Vec<_> = other["caches"].as_array().unwrap().iter().map(|line| &line["cache"]).collect();
    assert_eq!(names, ["f32", "f16"]);
}

#[test]
fn kv_report_refuses_unknown_cache_types() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), &words(900));
    let output = sterna(&["kv-report", "-m", &tiny(), "-f", &file, "-c", "64", "--types", "q6_k"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("--types") && stderr.contains("one of f16, f32, q8_0") && stderr.contains("q6_k"),
        "{stderr}"
    );
}

/// The demo model on held-out stories of its world (tests/data/README.md). The targets for `turboquant` are
/// a mean KL of .008 and 97 % equal choices. It has .0107 and 96.4 % here, measured on two thousand positions
/// to within .003 and 0.4 % (docs/measurements.md).
#[test]
fn turboquant_cache_keeps_the_next_token() {
    check_next_token("turboquant", 0.962);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn other_caches_keep_the_next_token() {
    check_next_token("turboquant-mse,turboquant-4,q8_0", 0.965);
}

fn check_next_token(types: &str, same_top: f64) {
    if sterna::demo::model().is_none() {
        return support::print_note(format_args!("not run: this build has no demo model (feature demo)"));
    }
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/demo/stories.txt");
    let common = ["-f", file, "--special", "-c", "2048", "--needles", "0"];
    let report = report(&[&common[..], &["--types", types]].concat());
    assert_eq!(number(&report, "/scored"), 2.0 * 1023.0);
    for line in &report["caches"].as_array().unwrap()[1..] {
        // The KL of `turboquant-mse`, .0097 when it was first measured, plus twice its uncertainty.
        assert!(number(line, "/mean_kl/value") <= 0.0127, "{line}");
        assert!(number(line, "/same_top/value") >= same_top, "{line}");
        let (ppl, base) =
            (number(line, "/perplexity/value"), number(&report["caches"][0], "/perplexity/value"));
        assert!((ppl / base - 1.0).abs() < 0.02, "{line}");
    }
}
