//! The block for multi-token prediction (MTP) of a model, as a user types it.
#![cfg(feature = "cli")]

use std::path::Path;

use serde_json::Value as Json;
use support::golden;

use super::program::{ended_with, ok, refused, sterna_in as sterna, succeeded};

const SHAPE: [&str; 7] = ["synth", "--preset", "tiny-hybrid", "--type", "f16", "--head-type", "f16"];

fn write_models(dir: &Path) {
    ok(&sterna(dir, &[&SHAPE[..], &["--mtp", "with.gguf"]].concat()));
    ok(&sterna(dir, &[&SHAPE[..], &["without.gguf"]].concat()));
}

#[test]
fn drafts_by_a_block_do_not_change_the_text() {
    let dir = tempfile::tempdir().unwrap();
    write_models(dir.path());
    let run = |model: &str, flags: &[&str]| {
        let base = ["run", "-m", model, "-t", "1", "-c", "128", "-p", "Once", "-n", "40", "--ignore-eos"];
        sterna(dir.path(), &[&base[..], &["--seed", "3"], flags].concat())
    };
    let (want, stderr) = succeeded(&run("with.gguf", &[]));
    assert!(!stderr.contains("drafted"), "{stderr}");
    for flags in [
        &["--spec-type", "draft-mtp"][..],
        &["--spec-type", "auto", "--draft-max", "2", "--p-min", "0"],
        &["--spec-type", "draft-mtp", "--spec-draft-n-max", "4", "--draft-min", "1"],
    ] {
        let (got, stderr) = succeeded(&run("with.gguf", flags));
        assert!(
            got == want && stderr.contains("drafted tokens accepted (by position"),
            "{flags:?}: {stderr}"
        );
    }
    // The trunk's weights do not depend on the block.
    let (got, stderr) = succeeded(&run("without.gguf", &["--spec-type", "auto"]));
    assert!(!got.is_empty() && !stderr.contains("drafted"), "{stderr}");
    refused(&run("without.gguf", &["--spec-type", "draft-mtp"]), &["--spec-type", "MTP block"]);
    refused(&run("with.gguf", &["--spec-type", "draft-mtp", "-md", "with.gguf"]), &["draft-simple"]);
}

#[test]
fn blocks_are_planned_measured_and_written() {
    let dir = tempfile::tempdir().unwrap();
    write_models(dir.path());
    let plan = |flags: &[&str]| -> Json {
        let base = ["plan", "-m", "with.gguf", "--json", "--backend", "cpu"];
        serde_json::from_str(&ok(&sterna(dir.path(), &[&base[..], flags].concat()))).unwrap()
    };
    let bytes = |plan: &Json, what: &str| plan["devices"][0][what].as_u64().unwrap();
    let (plain, drafting) = (plan(&[]), plan(&["--spec-type", "draft-mtp"]));
    for what in ["weights_bytes", "kv_bytes", "buffers_bytes"] {
        assert!(bytes(&drafting, what) > bytes(&plain, what), "{what}");
    }
    let file = std::fs::metadata(dir.path().join("with.gguf")).unwrap().len();
    assert!(bytes(&drafting, "weights_bytes") <= file, "the embedding is counted once");

    let base = ["bench", "-m", "with.gguf", "-t", "1", "-p", "0", "-n", "40", "-r", "1", "-o", "json"];
    let flags = ["--spec-type", "draft-mtp", "--draft-max", "2", "--acceptance", "1"];
    let rows: Json = serde_json::from_str(&ok(&sterna(dir.path(), &[&base[..], &flags].concat()))).unwrap();
    assert_eq!((&rows[0]["test"], &rows[0]["accepted"]), (&"tg40".into(), &Json::Null));
    assert_eq!((&rows[1]["test"], &rows[1]["n_draft"]), (&"tg40 mtp2".into(), &2.into()));
    assert_eq!(rows[1]["accepted"], 1.0);

    std::fs::write(dir.path().join("ids.txt"), "1 2 3 4 5\n6 7\n").unwrap();
    let logits = |model: &str, flags: &[&str]| {
        let base = ["logits", "-m", model, "-t", "1", "--tokens", "ids.txt", "-o", "out.npy"];
        sterna(dir.path(), &[&base[..], flags].concat())
    };
    let read = || std::fs::read(dir.path().join("out.npy")).unwrap();
    ok(&logits("with.gguf", &["--mtp"]));
    let of_block = read();
    ok(&logits("with.gguf", &[]));
    let of_model = read();
    assert!(of_block.len() == of_model.len() && of_block != of_model);
    refused(&logits("without.gguf", &["--mtp"]), &["MTP block"]);
    ended_with(&logits("with.gguf", &["--mtp", "--each"]), 2, &["--each"]);
}

/// A file that was made for the model, with `-md`.
#[test]
fn files_made_for_the_model_draft() {
    let (Some(model), Some(head)) = (golden("qwen3/tiny-f16.gguf"), golden("drafts/eagle3-own.gguf")) else {
        return;
    };
    let (model, head) = (model.to_str().unwrap(), head.to_str().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let run = |flags: &[&str]| {
        let base = ["run", "-m", model, "-t", "1", "-c", "128", "-p", "t5 t7", "-n", "30", "--ignore-eos"];
        sterna(dir.path(), &[&base[..], &["--seed", "3"], flags].concat())
    };
    let (want, _) = succeeded(&run(&[]));
    for flags in [
        &["-md", head][..],
        &["-md", head, "--spec-type", "draft-eagle3", "--draft-max", "2"],
        &["-md", head, "--spec-type", "auto"],
    ] {
        let (got, stderr) = succeeded(&run(flags));
        assert!(got == want && stderr.contains("drafted tokens accepted"), "{flags:?}: {stderr}");
    }
    refused(&run(&["--spec-type", "draft-eagle3"]), &["draft-eagle3 needs an EAGLE-3 head", "-md FILE"]);
    refused(&run(&["-md", head, "--spec-type", "draft-mtp"]), &["is an EAGLE-3 head", "draft-eagle3"]);
    refused(&run(&["-md", "missing.gguf"]), &["missing.gguf"]);
    refused(&sterna(dir.path(), &["run", "-m", head, "-p", "x"]), &["a file that drafts for its model"]);

    let plan = |flags: &[&str]| -> Json {
        let base = ["plan", "-m", model, "--json", "--backend", "cpu"];
        serde_json::from_str(&ok(&sterna(dir.path(), &[&base[..], flags].concat()))).unwrap()
    };
    let weights = |plan: &Json| plan["devices"][0]["weights_bytes"].as_u64().unwrap();
    let of_head = ["--spec-type", "draft-eagle3", "-md", head];
    assert!(weights(&plan(&of_head)) > weights(&plan(&[])) + 200_000);
    refused(&sterna(dir.path(), &["plan", "-m", model, "-md", head]), &["--model-draft works only with"]);

    std::fs::write(dir.path().join("ids.txt"), "1 2 3 4 5\n").unwrap();
    let flags = ["logits", "-m", model, "--mtp", "-md", head, "--tokens", "ids.txt", "-o", "out.npy"];
    ok(&sterna(dir.path(), &flags));
    let logits = support::npy(&dir.path().join("out.npy")).f32s();
    assert_eq!(logits.iter().filter(|logit| logit.is_finite()).count(), 5 * 200);
}

/// The head that drafts may have only some tokens.
#[test]
fn heads_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    write_models(dir.path());
    let run = |flags: &[&str]| {
        let base = ["run", "-m", "with.gguf", "-t", "1", "-c", "128", "-p", "Once", "-n", "20"];
        sterna(dir.path(), &[&base[..], &["--ignore-eos", "--seed", "3"], flags].concat())
    };
    let (want, _) = succeeded(&run(&[]));
    std::fs::write(dir.path().join("ids.txt"), "5\n9 3\n").unwrap();
    for head in ["100", "ids.txt"] {
        let (got, stderr) = succeeded(&run(&["--spec-type", "draft-mtp", "--draft-head", head]));
        assert!(got == want && stderr.contains("drafted tokens accepted"), "{head}: {stderr}");
    }
    refused(&run(&["--draft-head", "100"]), &["--draft-head works only with"]);
    refused(
        &run(&["--spec-type", "draft-mtp", "--draft-head", "0"]),
        &["--draft-head", "at least one token"],
    );
    ended_with(&run(&["--spec-type", "draft-mtp", "--draft-head", "none.txt"]), 2, &["neither a number nor"]);
}
