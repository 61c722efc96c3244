//! `sterna split`, `merge` and `edit` as a user types them.
#![cfg(feature = "cli")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sterna::gguf::{Gguf, Value};

use super::program::{ended_with, files, folder_with_model, refused, sterna_in as sterna, succeeded};

const I2_S: [&str; 2] = ["--type", "i2_s"];

/// Name, shape, type id and bytes of every tensor, in file order.
fn tensors(path: &Path) -> Vec<(String, Vec<usize>, u32, Vec<u8>)> {
    let gguf = Gguf::open(path).unwrap();
    let all = gguf.tensors().iter().map(|info| {
        (info.name.clone(), info.dims.clone(), info.type_id, gguf.raw_bytes(info).unwrap().to_vec())
    });
    all.collect()
}

fn metadata(path: &Path) -> BTreeMap<String, Value> {
    let gguf = Gguf::open(path).unwrap();
    gguf.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect()
}

#[test]
fn split_model_is_equal_and_merges_back() {
    let dir = folder_with_model(&I2_S);
    let whole = tensors(&dir.path().join("in.gguf"));
    let n = whole.len();
    for (limit, name) in [
        (&["--split-max-tensors", "7"][..], "a"),
        (&["--split-max-size", "1M"], "b"),
        (&["--split-max-tensors", "7", "--no-tensor-first-split"], "c"),
        (&[], "d"),
        (&[], "e.gguf"),
    ] {
        let (stdout, _) = succeeded(&sterna(dir.path(), &[&["split", "in.gguf", name], limit].concat()));
        let name = name.trim_end_matches(".gguf");
        let paths: Vec<&str> = stdout.lines().map(|line| line.split_once(": ").unwrap().0).collect();
        let n_parts = paths.len();
        let want: Vec<String> =
            (1..=n_parts).map(|i| format!("{name}-{i:05}-of-{n_parts:05}.gguf")).collect();
        assert_eq!(paths, want);
        for path in &paths {
            assert_eq!(tensors(&dir.path().join(path)), whole, "{path}");
        }
        let first = metadata(&dir.path().join(paths[0]));
        if n_parts > 1 {
            assert_eq!(first["split.count"], Value::U16(n_parts as u16));
            assert_eq!(
                (&first["split.no"], &first["split.tensors.count"]),
                (&Value::U16(0), &Value::I32(n as i32))
            );
            succeeded(&sterna(dir.path(), &["merge", paths[n_parts - 1], "merged.gguf", "--force"]));
            assert_eq!(tensors(&dir.path().join("merged.gguf")), whole);
            let same = fs::read(dir.path().join("merged.gguf")).unwrap()
                == fs::read(dir.path().join("in.gguf")).unwrap();
            assert!(same, "the merged file differs");
        }
    }
    assert!(dir.path().join("a-00001-of-00004.gguf").is_file(), "{:?}", files(dir.path()));
    // The first part of `c` has only metadata.
    let (stdout, _) = succeeded(&sterna(
        dir.path(),
        &["split", "in.gguf", "c", "--split-max-tensors", "7", "--no-tensor-first-split", "--dry-run"],
    ));
    assert!(stdout.starts_with("c-00001-of-00005.gguf: 0 tensors"), "{stdout}");
}

#[test]
fn split_and_merge_reject_invalid_requests() {
    let dir = folder_with_model(&I2_S);
    succeeded(&sterna(dir.path(), &["split", "in.gguf", "a", "--split-max-tensors", "10"]));
    refused(
        &sterna(dir.path(), &["split", "in.gguf", "a", "--split-max-tensors", "10"]),
        &["already exists", "--force"],
    );
    refused(&sterna(dir.path(), &["merge", "in.gguf", "out.gguf"]), &["whole model"]);
    refused(
        &sterna(dir.path(), &["merge", "a-00001-of-00003.gguf", "a-00002-of-00003.gguf", "--force"]),
        &["is the input"],
    );
    for size in ["0M", "12", "G", "-1M", "99999999999999G"] {
        let split = sterna(dir.path(), &["split", "in.gguf", "b", &format!("--split-max-size={size}")]);
        ended_with(&split, 2, &["--split-max-size"]);
    }
    fs::remove_file(dir.path().join("a-00002-of-00003.gguf")).unwrap();
    refused(&sterna(dir.path(), &["merge", "a-00001-of-00003.gguf", "out.gguf"]), &["a-00002-of-00003.gguf"]);
    assert_eq!(files(dir.path()), ["a-00001-of-00003.gguf", "a-00003-of-00003.gguf", "in.gguf"]);
}

#[test]
fn edit_sets_copies_and_removes_metadata() {
    let dir = folder_with_model(&I2_S);
    let (input, out) = (dir.path().join("in.gguf"), dir.path().join("out.gguf"));
    let args = [
        "edit",
        "in.gguf",
        "out.gguf",
        "--set",
        "tokenizer.ggml.pre=llama-bpe",
        "--set",
        "new.number=u32:17",
        "--set",
        "new.truth=bool:true",
        "--set",
        "general.name=u32:is text",
        "--remove",
        "general.file_type",
    ];
    let (_, stderr) = succeeded(&sterna(dir.path(), &args));
    assert!(
        stderr.contains("general.file_type is removed") && stderr.contains("new.number is now u32 17, new"),
        "{stderr}"
    );
    let (before, after) = (metadata(&input), metadata(&out));
    assert_eq!(after["tokenizer.ggml.pre"], Value::from("llama-bpe"));
    assert_eq!((&after["new.number"], &after["new.truth"]), (&Value::U32(17), &Value::Bool(true)));
    assert_eq!(after["general.name"], Value::from("u32:is text"));
    assert!(!after.contains_key("general.file_type"));
    let changed = ["tokenizer.ggml.pre", "general.name", "general.file_type"];
    for (key, value) in before.iter().filter(|(key, _)| !changed.contains(&key.as_str())) {
        assert_eq!(after.get(key), Some(value), "{key}");
    }
    assert_eq!(tensors(&out), tensors(&input));
    // A key keeps its type, and arrays are copied whole.
    let context = before.keys().find(|key| key.ends_with("context_length")).unwrap();
    succeeded(&sterna(
        dir.path(),
        &["edit", "in.gguf", "out.gguf", "--force", "--set", &format!("{context}=99")],
    ));
    assert_eq!(metadata(&out)[context], Value::U32(99));
    let copy = [
        "edit",
        "out.gguf",
        "back.gguf",
        "--copy-from",
        "in.gguf",
        "--copy",
        "tokenizer.ggml.tokens",
        "--copy",
        context,
    ];
    succeeded(&sterna(dir.path(), &copy));
    assert_eq!(metadata(&dir.path().join("back.gguf")), before);
}

/// YaRN keys that are ignored are reported, unless they have the default value.
#[test]
fn ignored_yarn_keys_are_reported() {
    let dir = folder_with_model(&I2_S);
    let Value::Str(arch) = metadata(&dir.path().join("in.gguf"))["general.architecture"].clone() else {
        panic!("the architecture is text")
    };
    let set = |key: &str, value: &str| format!("--set={arch}.rope.scaling.{key}={value}");
    let keys = [
        set("type", "yarn"),
        set("factor", "f32:4"),
        set("yarn_beta_fast", "f32:16"),
        set("yarn_beta_slow", "f32:1"),
    ];
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    succeeded(&sterna(dir.path(), &[&["edit", "in.gguf", "yarn.gguf"][..], &keys].concat()));
    let bench = ["bench", "-m", "yarn.gguf", "-p", "1", "-n", "0", "-r", "1", "-t", "1", "--backend", "cpu"];
    let (_, stderr) = succeeded(&sterna(dir.path(), &bench));
    assert!(stderr.contains("rope.scaling.yarn_beta_fast is 16 in the file and is ignored"), "{stderr}");
    assert!(!stderr.contains("yarn_beta_slow"), "{stderr}");
}

#[test]
fn invalid_edits_leave_no_file() {
    let dir = folder_with_model(&I2_S);
    let edit = |args: &[&str]| sterna(dir.path(), &[&["edit", "in.gguf", "out.gguf"], args].concat());
    refused(&edit(&["--remove", "no.such.key"]), &["no key no.such.key"]);
    refused(&edit(&["--set", "novalue"]), &["want KEY=VALUE"]);
    refused(&edit(&["--set", "a=u32:-1"]), &["--set a", "want u32, found -1"]);
    refused(&edit(&["--set", "tokenizer.ggml.tokens=x"]), &["is an array"]);
    refused(&edit(&["--set", "general.alignment=u32:3"]), &["general.alignment"]);
    ended_with(&edit(&["--copy", "a"]), 2, &["--copy-from"]);
    refused(&edit(&["--copy-from", "in.gguf", "--copy", "no.such.key"]), &["no key no.such.key in in.gguf"]);
    refused(&sterna(dir.path(), &["edit", "in.gguf", "in.gguf", "--force"]), &["is the input"]);
    assert_eq!(files(dir.path()), ["in.gguf"]);
}
