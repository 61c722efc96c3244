//! Images in `sterna run` and `chat`, and in `plan`, as a user types it.
#![cfg(feature = "cli")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use sterna::gguf::Gguf;

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

/// A black picture.
fn bmp(width: u32, height: u32) -> Vec<u8> {
    let n_pixels = height * (3 * width).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    for number in [54 + n_pixels, 0, 54, 40, width, height, 1 | 24 << 16, 0, n_pixels, 0, 0, 0, 0] {
        file.extend(number.to_le_bytes());
    }
    file.resize(file.len() + n_pixels as usize, 0);
    file
}

#[test]
fn what_is_wrong_with_an_image_is_said() {
    let Some(folder) = folder() else { return };
    let with = |mmproj: &str, args: &[&str]| run(&folder, &[&["--mmproj", mmproj, "-p", "a"], args].concat());
    let image = ["--image", "square.png"];
    refused(&with("mmproj.gguf", &["--image", "absent.png"]), &["absent.png"]);
    refused(&with("mmproj.gguf", &["--image", "README.md"]), &["README.md", "PNG, JPEG, WebP, GIF or BMP"]);
    let dir = tempfile::tempdir().unwrap();
    let narrow = dir.path().join("narrow.bmp");
    fs::write(&narrow, bmp(201, 1)).unwrap();
    let narrow = narrow.to_str().unwrap();
    refused(&with("mmproj.gguf", &["--image", narrow]), &["narrow.bmp", "201 x 1", "200 times"]);
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

/// The answers of a chat to these lines.
fn chat(folder: &Path, mmproj: &[&str], lines: &str) -> Output {
    let fixed = ["--temp", "0", "-n", "8", "-t", "2", "-c", "256", "--backend", "cpu"];
    let mut command = command();
    command.args(["chat", "-m"]).arg(folder.join("text.gguf")).args(fixed).args(mmproj).current_dir(folder);
    command.write_stdin(lines).output().unwrap()
}

/// An image by its command and by its path, in the first turn and in a later one, which reuses the first.
#[test]
fn chat_shows_images() {
    let Some(folder) = folder() else { return };
    let mmproj = ["--mmproj", "mmproj.gguf"];
    let said = |lines: &str| {
        let output = chat(&folder, &mmproj, lines);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).to_owned()
    };
    let by_command = said("/image square.png\nWhat is this?\nAnd now?\n");
    assert_eq!(said("square.png What is this?\nAnd now?\n"), by_command);
    assert_ne!(said("wide.png What is this?\nAnd now?\n"), by_command);
    assert_ne!(said("What is this?\nAnd now?\n"), by_command);
    let later = said("What is this?\n'square.png' And now?\nAnd then?\n");
    assert_ne!(said("What is this?\nAnd now?\nAnd then?\n"), later);
    let output = chat(&folder, &["--no-mmproj"], "/image square.png\n/image absent.png\n");
    refused(&output, &["--mmproj gives the file", "absent.png", "no message was answered"]);
}

/// The weights are those of the file, with two matrices in f32; the host has the positions and the last norm.
#[test]
fn plan_counts_the_tower() {
    let Some(folder) = folder() else { return };
    let plan = |mmproj: &[&str]| -> serde_json::Value {
        let mut command = command();
        command.args(["plan", "--json", "--backend", "cpu", "-m"]).arg(folder.join("text.gguf")).args(mmproj);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let file = folder.join("mmproj.gguf");
    let [with, without] = [plan(&["--mmproj", file.to_str().unwrap()]), plan(&["--no-mmproj"])];
    let parts = |plan: &serde_json::Value| plan["devices"][0]["parts"].as_array().unwrap().clone();
    let named = |name: &str| {
        let found = parts(&with).into_iter().find(|part| part["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {with}"))["bytes"].as_u64().unwrap()
    };
    let tensors = Gguf::open(&file).unwrap();
    let bytes = tensors.tensors().iter().map(|tensor| match tensor.name.as_str() {
        "v.position_embd.weight" | "v.post_ln.weight" | "v.post_ln.bias" => 0,
        "v.patch_embd.weight" | "mm.input_projection.weight" => 4 * tensor.n_elems() as u64,
        _ => tensor.n_bytes,
    });
    assert_eq!(named("vision tower"), bytes.sum::<u64>());
    assert!(named("keys and values of the vision tower") > 0 && named("buffers of the vision tower") > 0);
    assert_eq!(parts(&without).len() + 3, parts(&with).len());
}

/// A checkpoint becomes a text model and an mmproj file, which is found next to it.
#[cfg(feature = "convert")]
#[test]
fn a_converted_checkpoint_reads_images() {
    let golden = |name: &str| support::root().join("tests/data/golden/vision").join(name);
    let dir = tempfile::tempdir().unwrap();
    let convert = |checkpoint: &Path, args: &[&str]| {
        let mut command = command();
        command.arg("convert").arg(checkpoint).args(args).current_dir(dir.path()).output().unwrap()
    };
    for (out, part) in [("text.gguf", "--text-only"), ("mmproj.gguf", "--mmproj")] {
        let output = convert(&golden("idefics3"), &[out, part]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    fs::copy(golden("idefics3.png"), dir.path().join("a.png")).unwrap();
    let output = run(dir.path(), &["--image", "a.png", "-p", "ab"]);
    assert!(output.status.success() && !output.stdout.is_empty(), "{}", text(&output.stderr));
    let both = convert(&golden("idefics3"), &["a.gguf", "--mmproj", "--text-only"]);
    super::program::ended_with(&both, 2, &["--text-only"]);
    refused(&convert(&golden("idefics3"), &["a.gguf", "--mmproj", "--outtype", "q4_k_m"]), &["q8_0"]);
    let text = support::root().join("tests/data/golden/checkpoints/youtu");
    refused(
        &convert(&text, &["a.gguf", "--mmproj"]),
        &["YoutuForCausalLM", "Gemma3ForConditionalGeneration"],
    );
}
