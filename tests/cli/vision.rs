//! `sterna run` with images, as a user types it.
#![cfg(feature = "cli")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::program::{command, text};

fn folder() -> Option<PathBuf> {
    support::golden("vision-gemma3")
}

fn run(folder: &Path, args: &[&str]) -> Output {
    let model = folder.join("text.gguf");
    let fixed = ["--temp", "0", "-n", "16", "-t", "2", "--kv-cache-type", "f32", "--backend", "cpu"];
    let mut command = command();
    command.args(["run", "-m"]).arg(model).args(fixed).args(args).current_dir(folder);
    command.output().unwrap()
}

fn refused(output: &Output, words: &[&str]) {
    let stderr = super::program::refused(output, words);
    assert!(output.stdout.is_empty() && stderr.starts_with("error: "), "{stderr}");
}

/// The texts are those of transformers, and of llama.cpp for images before the text.
#[test]
fn run_reads_images() {
    let Some(folder) = folder() else { return };
    let prompts: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.join("prompts.json")).unwrap()).unwrap();
    let marked = prompts["run"]["prompt"].as_str().unwrap();
    for image in ["square", "wide"] {
        let want = &prompts["images"][image];
        let file = format!("{image}.png");
        for (prompt, want) in [(marked, want), (want["front"]["prompt"].as_str().unwrap(), &want["front"])] {
            // The mmproj file is named, as the folder has two.
            let output = run(&folder, &["--mmproj", "mmproj.gguf", "--image", &file, "-p", prompt]);
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert_eq!(text(&output.stdout).trim_end(), want["greedy_text"].as_str().unwrap().trim_end());
        }
    }
}

#[test]
fn an_mmproj_file_next_to_the_model_is_found() {
    let Some(golden) = folder() else { return };
    let dir = tempfile::tempdir().unwrap();
    for (file, name) in
        [("text.gguf", "text.gguf"), ("mmproj.gguf", "mmproj-F16.gguf"), ("square.png", "a.png")]
    {
        fs::copy(golden.join(file), dir.path().join(name)).unwrap();
    }
    let args = ["--image", "a.png", "-p", "It is"];
    let output = run(dir.path(), &args);
    assert!(output.status.success() && !output.stdout.is_empty(), "{}", text(&output.stderr));
    let output = run(dir.path(), &[args.as_slice(), &["--no-mmproj"]].concat());
    refused(&output, &["mmproj file", "--mmproj gives the file"]);
    // An mmproj file for another model is not considered.
    let other = support::golden("vision-qwen35/mmproj.gguf").expect("next to vision-gemma3");
    fs::copy(other, dir.path().join("mmproj-other.gguf")).unwrap();
    assert!(run(dir.path(), &args).status.success());
}

#[test]
fn what_is_wrong_with_an_image_is_said() {
    let Some(folder) = folder() else { return };
    let with = |mmproj: &str, args: &[&str]| run(&folder, &[&["--mmproj", mmproj, "-p", "a"], args].concat());
    let image = ["--image", "square.png"];
    refused(&with("mmproj.gguf", &["--image", "absent.png"]), &["absent.png"]);
    refused(&with("mmproj.gguf", &["--image", "README.md"]), &["README.md", "PNG, JPEG, WebP, GIF or BMP"]);
    refused(&with("text.gguf", &image), &["general.architecture", "clip"]);
    refused(
        &with("../vision-qwen35/mmproj.gguf", &image),
        &["projection_dim", "96, the width of the text model"],
    );
    refused(
        &run(&folder, &["--mmproj", "mmproj.gguf", "--image", "square.png", "-p", "<__media__> <__media__>"]),
        &["2 markers <__media__>", "1 images"],
    );
    refused(&with("mmproj.gguf", &["--image", "square.png", "-b", "8"]), &["16 rows", "--batch-size"]);
}
