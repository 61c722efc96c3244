//! `sterna run` as a user types it, and what they see.
#![cfg(feature = "cli")]

use std::process::{Output, Stdio};

use super::program::{command, ended_with, golden, text};

fn model() -> String {
    golden("bitnet/tiny-i2_s.gguf")
}

fn run(args: &[&str]) -> Output {
    command().args(["run", "-t", "1", "-c", "128", "-m", &model()]).args(args).output().unwrap()
}

/// The command has to fail with one message on stderr and nothing on stdout.
#[track_caller]
fn refused(output: &Output, words: &[&str]) {
    let stderr = super::program::refused(output, words);
    assert!(output.stdout.is_empty());
    assert!(stderr.starts_with("error: "), "{stderr}");
}

#[test]
fn run_prints_text_to_stdout_and_timings_to_stderr() {
    let output = run(&["-p", "You may copy", "-n", "12", "--seed", "3"]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(!stdout.is_empty() && !stdout.contains("tokens/s"));
    for word in ["prompt:", "first token after", "generation: 12 tokens", " GB/s", "seed 3"] {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
    assert_eq!(output.stdout, run(&["-p", "You may copy", "-n", "12", "--seed", "3"]).stdout);
}

#[test]
fn control_vectors_change_the_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.gguf");
    let direction: Vec<f32> = (0..384).map(|i: u16| f32::from(i * 37 % 29) / 14.0 - 1.0).collect();
    let keys = [("general.architecture", "controlvector")];
    std::fs::write(&path, support::lora::file(&keys, &[("direction.1", &[384], &direction)])).unwrap();
    let path = path.to_str().unwrap();
    let scaled = format!("{path}:-40");
    let with = |args: &[&str]| run(&[&["-p", "You may copy", "-n", "12", "--temp", "0"], args].concat());
    let text_of = |args: &[&str]| {
        let output = with(args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let plain = text_of(&[]);
    let steered = text_of(&["--control-vector-scaled", &scaled]);
    assert_ne!(steered, plain);
    assert_eq!(
        text_of(&["--control-vector", path, "--control-vector-scaled", &format!("{path}:-41")]),
        steered
    );
    // Layers out of the range have no direction.
    let none = ["--control-vector-scaled", &scaled, "--control-vector-layer-range", "0", "0"];
    assert_eq!(text_of(&none), plain);
    let range = ["--control-vector", path, "--control-vector-layer-range", "3", "1"];
    refused(&with(&range), &["--control-vector-layer-range", "3 to 1"]);
    refused(&with(&["--control-vector-scaled", path]), &["want FILE:SCALE"]);
    refused(
        &with(&["--control-vector", &model()]),
        &["control vector", "general.architecture", "controlvector"],
    );
}

/// As with `sterna run > log 2>&1`.
#[cfg(unix)]
#[test]
fn statistics_start_on_a_new_line_in_a_shared_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = std::fs::File::create(&path).unwrap();
    let args = ["run", "-t", "1", "-m", &model(), "-p", "You may copy", "-n", "12", "--seed", "3"];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sterna"));
    let status = command.args(args).stdout(log.try_clone().unwrap()).stderr(log).status().unwrap();
    let said = std::fs::read_to_string(&path).unwrap();
    assert!(status.success() && said.lines().any(|line| line.starts_with("prompt:     ")), "{said}");
}

#[test]
fn printed_seed_reproduces_the_text() {
    let first = run(&["-p", "You may", "-n", "8", "--temp", "2"]);
    let stderr = text(&first.stderr);
    let seed = stderr.rsplit("seed ").next().unwrap().trim();
    assert_eq!(first.stdout, run(&["-p", "You may", "-n", "8", "--temp", "2", "-s", seed]).stdout);
}

#[test]
fn prompt_comes_from_flag_file_or_stdin() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "You may\ncopy\n").unwrap();
    let greedy = ["-n", "6", "--temp", "0"];
    let flag = run(&[&["-p", r"You may\ncopy"], &greedy[..]].concat());
    let from_file = run(&[&["-f", file.to_str().unwrap()], &greedy[..]].concat());
    let piped = command()
        .args(["run", "-t", "1", "-m", &model()])
        .args(greedy)
        .write_stdin("You may\ncopy\n")
        .output()
        .unwrap();
    assert!(flag.status.success());
    assert_eq!((&flag.stdout, &flag.stdout), (&from_file.stdout, &piped.stdout));
    let verbatim = run(&[&["-p", r"You may\ncopy", "--no-escape"], &greedy[..]].concat());
    assert!(text(&verbatim.stderr).contains("prompt:") && verbatim.stdout != flag.stdout);
}

/// As written on Windows, with a byte order mark and CRLF line ends.
#[test]
fn windows_prompt_files_give_the_same_text() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let greedy = ["-n", "6", "--temp", "0"];
    let plain = run(&[&["-p", r"You may\ncopy"], &greedy[..]].concat());
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    for (name, bytes) in [("crlf", "You may\r\ncopy\r\n"), ("mark", "\u{feff}You may\ncopy")] {
        let file = write(name, bytes);
        let n_tokens = |stderr: &[u8]| {
            let of_prompt = text(stderr).split("prompt:").nth(1).map(str::to_owned);
            of_prompt.and_then(|said| said.split_whitespace().next().map(str::to_owned))
        };
        let said = run(&[&["-f", &file], &greedy[..]].concat());
        assert_eq!(said.stdout, plain.stdout, "{name}");
        assert_eq!(n_tokens(&said.stderr), n_tokens(&plain.stderr), "{name}");
    }
    let piped = command()
        .args(["run", "-t", "1", "-c", "128", "-m", &model()])
        .args(greedy)
        .write_stdin("\u{feff}You may\r\ncopy\r\n")
        .output()
        .unwrap();
    assert_eq!(piped.stdout, plain.stdout);
    // `perplexity` and `tokenize` take the text as it is, and print a warning.
    let long = write("long", &format!("\u{feff}{}", "You may copy and distribute it.\r\n".repeat(20)));
    for args in [&["perplexity", "-c", "16", "--chunks", "2", "-t", "1"][..], &["tokenize"]] {
        let said = command().args(args).args(["-m", &model(), "-f", &long]).output().unwrap();
        let stderr = text(&said.stderr);
        assert!(
            said.status.success() && stderr.contains("begins with a byte order mark and has"),
            "{stderr}"
        );
    }
    let utf16 = dir.path().join("utf16");
    std::fs::write(&utf16, b"\xff\xfeY\0o\0").unwrap();
    refused(&run(&["-f", utf16.to_str().unwrap()]), &["UTF-16", "save it as UTF-8"]);
}

#[test]
fn prompt_cache_skips_prefill() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.cache");
    let file = file.to_str().unwrap();
    let prompt = "You may copy it, give it away or re-use it";
    let greedy = ["-p", prompt, "-n", "12", "--temp", "0"];
    let plain = run(&greedy);
    let cached = |more: &[&str]| run(&[&greedy[..], &["--prompt-cache", file], more].concat());
    refused(&cached(&["--prompt-cache-ro"]), &[file, "No such file"]);
    assert!(!text(&cached(&[]).stderr).contains("prompt cache:"), "the cache file did not exist");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let kept = std::fs::read(file).unwrap();
    let again = cached(&[]);
    let stderr = text(&again.stderr);
    let fed = stderr.split("prompt: ").nth(1).unwrap();
    assert!(stderr.contains("prompt cache: reused") && fed.trim().starts_with("1 token,"), "{stderr}");
    assert_eq!((&plain.stdout, &kept), (&again.stdout, &std::fs::read(file).unwrap()));

    // A longer prompt with the same prefix: first the cache file is read-only, then it is updated.
    let longer =
        |how| run(&["-p", &format!("{prompt} under"), "-n", "4", "--temp", "0", "--prompt-cache", file, how]);
    let uncached = run(&["-p", &format!("{prompt} under"), "-n", "4", "--temp", "0"]);
    assert_eq!(longer("--prompt-cache-ro").stdout, uncached.stdout);
    assert_eq!(kept, std::fs::read(file).unwrap());
    assert_eq!(longer("--prompt-cache-all").stdout, uncached.stdout);
    assert!(std::fs::read(file).unwrap().len() > kept.len(), "the new tokens are added");

    refused(&cached(&["--kv-cache-type", "q8_0"]), &[file, "keys as f16, and this engine has q8_0"]);
    std::fs::write(file, &kept[..kept.len() - 1]).unwrap();
    refused(&cached(&[]), &[file, "it ends early"]);
    assert_eq!(run(&["-p", "You", "--prompt-cache-all"]).status.code(), Some(2));
    refused(
        &run(&["-p", "You may", "--prompt-cache", dir.path().to_str().unwrap()]),
        &["is not a regular file"],
    );
}

#[test]
fn parallel_continuations_match_single_runs() {
    let base = ["-p", "You may copy", "-n", "12"];
    let alone = |seed: &str| text(&run(&[&base[..], &["--seed", seed]].concat()).stdout);
    let three = run(&[&base[..], &["--seed", "3", "-np", "3"]].concat());
    let stderr = text(&three.stderr);
    assert!(three.status.success(), "{stderr}");
    let want = format!(
        "sequence 0:\n\n{}\n\nsequence 1:\n\n{}\n\nsequence 2:\n\n{}\n",
        alone("3"),
        alone("4"),
        alone("5")
    );
    assert_eq!(text(&three.stdout), want);
    assert!(stderr.contains("computed once") && stderr.contains("36 tokens of 3 sequences"), "{stderr}");
    assert_eq!(run(&["-p", "You", "-np", "0"]).status.code(), Some(2));
    assert_eq!(run(&["-p", "You", "-np", "2", "--prompt-cache", "x"]).status.code(), Some(2));
}

/// N-gram drafts and drafts of a model, with llama.cpp's flags.
#[test]
fn drafts_do_not_change_the_text() {
    let model = model();
    let base = ["-p", "You may copy. You may copy. You may", "-n", "60", "--seed", "3", "--ignore-eos"];
    let run = |more: &[&str]| run(&[&base[..], more].concat());
    let want = run(&["--temp", "0"]);
    assert!(!text(&want.stderr).contains("drafted"));
    let drafting: [&[&str]; 4] = [
        &["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "1"],
        &["--spec-type", "ngram-simple", "--spec-ngram-size-n", "2", "--draft-max", "5"],
        &["-md", &model, "-ngld", "0", "--draft-p-min", "0.1"],
        &["-md", &model, "--spec-type", "draft-simple", "--draft", "4", "--draft-min", "2"],
    ];
    for flags in drafting {
        let got = run(&[&["--temp", "0"], flags].concat());
        let stderr = text(&got.stderr);
        assert!(
            got.stdout == want.stdout && stderr.contains("drafted tokens accepted"),
            "{flags:?}: {stderr}"
        );
        assert_eq!(run(&[&["-np", "2"], flags].concat()).stdout, run(&["-np", "2"]).stdout);
    }
    refused(&run(&["--spec-type", "draft-simple"]), &["-md FILE"]);
    refused(&run(&["--spec-type", "none", "-md", &model]), &["--spec-type draft-simple"]);
    let unknown = run(&["--spec-type", "ngram-mod"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("ngram-simple"), "{}", text(&unknown.stderr));
}

#[test]
fn stop_strings_and_limits_end_the_text() {
    let whole = text(&run(&["-p", "You may", "-n", "20", "--seed", "5", "--ignore-eos"]).stdout);
    let middle: String = whole.chars().skip(6).take(4).collect();
    let output =
        run(&["-p", "You may", "-n", "20", "--seed", "5", "--ignore-eos", "--no-escape", "--stop", &middle]);
    assert_eq!(text(&output.stdout), whole[..whole.find(&middle).unwrap()]);
    assert!(text(&output.stderr).contains("a stop string was met"));
    // A model that generates only one control token.
    let control = run(&["-p", "You", "-n", "9", "-l", "636+1000000", "--stop", "<|begin_of_text|>"]);
    let stderr = text(&control.stderr);
    assert!(control.stdout.is_empty() && stderr.contains("a stop string was met"), "{stderr}");
    let none = run(&["-p", "You may", "-n", "0"]);
    assert!(none.status.success() && none.stdout.is_empty());
}

#[test]
fn full_context_ends_the_text_with_a_note() {
    let output = run(&["-p", "You may", "-c", "16", "--ignore-eos"]);
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("the context is full"), "{}", text(&output.stderr));
}

#[test]
fn run_accepts_llama_cpp_sampling_flags() {
    let flags = [
        "--n-predict",
        "4",
        "--temp",
        "0.7",
        "--top-k",
        "20",
        "--top-p",
        "0.9",
        "--min-p",
        "0.1",
        "--typical",
        "0.95",
        "--repeat-penalty",
        "1.1",
        "--repeat-last-n",
        "32",
        "--presence-penalty",
        "0.1",
        "--frequency-penalty",
        "0.1",
        "--logit-bias",
        "5-1.5",
        "-l",
        "7+2",
        "--seed",
        "1",
        "-ctk",
        "f32",
        "--cache-type-v",
        "f16",
        "-b",
        "8",
        "-v",
        "--prompt",
        "You may",
    ];
    let output = run(&flags);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("bitnet-b1.58"));
}

#[test]
fn run_without_a_model_says_what_to_pass() {
    if sterna::demo::model().is_some() {
        // Then the demo model is used, see tests/cli/demo.rs.
        return;
    }
    let output = command().args(["run", "-p", "Hello"]).output().unwrap();
    refused(&output, &["-m FILE", "GGUF"]);
}

#[test]
fn run_rejects_invalid_model_files() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(model()).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let with = |path: &str| command().args(["run", "-p", "Hello", "-m", path]).output().unwrap();
    refused(&with("/nowhere/model.gguf"), &["/nowhere/model.gguf"]);
    refused(&with(dir.path().to_str().unwrap()), &[dir.path().to_str().unwrap()]);
    refused(&with(&write("empty.gguf", b"")), &["empty.gguf"]);
    refused(&with(&write("text.gguf", b"just some text, and not a model at all")), &["GGUF"]);
    refused(
        &with(&write("short.gguf", &bytes[..bytes.len() - 1000])),
        &["short.gguf: incomplete: ", " bytes; download it again"],
    );
    // The metadata of a truncated file can still be read.
    let short = write("short.gguf", &bytes[..bytes.len() - 1000]);
    for args in [
        &["inspect", &short][..],
        &["plan", "--backend", "cpu", "-m", &short],
        &["tokenize", "-m", &short, "Hi"],
    ] {
        let output = command().args(args).output().unwrap();
        let stderr = text(&output.stderr);
        assert!(output.status.success() && !output.stdout.is_empty(), "{args:?}: {stderr}");
        assert!(
            stderr.contains("warning: ") && stderr.contains("short.gguf: incomplete: "),
            "{args:?}: {stderr}"
        );
    }
    refused(&with(&write("header.gguf", &bytes[..600])), &["header.gguf", "download it again"]);
    // An unknown architecture of the same length.
    let at = bytes.windows(12).position(|window| window == b"bitnet-b1.58").unwrap();
    let mut other = bytes.clone();
    other[at..at + 12].copy_from_slice(b"transformer9");
    refused(&with(&write("other.gguf", &other)), &["transformer9"]);
}

#[test]
fn run_rejects_invalid_flags() {
    for flag in ["--kv-cache-type", "--cache-type-k", "-ctv"] {
        let long = if flag == "-ctv" { "--cache-type-v" } else { flag };
        ended_with(&run(&["-p", "a", flag, "f8"]), 2, &[long, "want one of f16, f32, q8_0", "got f8"]);
    }
    refused(&run(&["-p", "a", "--backend", "tpu"]), &["tpu"]);
    refused(&run(&["-p", "a", "--top-p", "7"]), &["top-p: want 0 to 1, got 7"]);
    refused(&run(&["-p", "a", "-l", "99999+5"]), &["--logit-bias: token 99999 is not among the model's 640"]);
    refused(&run(&["-f", "/nowhere/prompt.txt"]), &["/nowhere/prompt.txt"]);
    if cfg!(feature = "hub") {
        let hub = ["user/repo: no such file; -hf user/repo names a model of the Hugging Face hub"];
        refused(&command().args(["run", "-m", "user/repo", "-p", "a"]).output().unwrap(), &hub);
    }
    let long = "word ".repeat(200);
    refused(
        &run(&["-p", &long]),
        &["the text is too long: it needs ", ", and the context has ", "--ctx-size"],
    );
    for wrong in [
        &["--tempo", "1"][..],
        &["-n", "many"],
        &["-t", "0"],
        &["--logit-bias", "5"],
        &["-p", "a", "-f", "b"],
        &["--fit-codecs", "f8"],
    ] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(text(&output.stderr).contains("--help"), "{wrong:?}");
    }
}

#[cfg(unix)]
#[test]
fn closed_pipe_is_quiet_and_full_disk_is_an_error() {
    let spawn = |stdout: Stdio| {
        std::process::Command::new(env!("CARGO_BIN_EXE_sterna"))
            .args(["run", "-t", "1", "-c", "128", "--ignore-eos", "-p", "You may", "-m", &model()])
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut piped = spawn(Stdio::piped());
    drop(piped.stdout.take());
    let output = piped.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));

    let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else { return };
    let output = spawn(full.into()).wait_with_output().unwrap();
    refused(&output, &["stdout: No space left"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut help = std::process::Command::new(env!("CARGO_BIN_EXE_sterna"));
    help.arg("--help").stdout(full).stderr(Stdio::piped());
    refused(&help.spawn().unwrap().wait_with_output().unwrap(), &["stdout: No space left"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_run_with_statistics() {
    use std::io::Read;
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_sterna"))
        .args(["run", "-t", "1", "-c", "100000", "--ignore-eos", "-p", "You may", "-m", &model()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first byte shows that generation has started.
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    let drain = std::thread::spawn(move || stdout.read_to_end(&mut Vec::new()));
    // Shells start commands in the background with SIGINT ignored; SIGTERM does the same.
    let killed =
        std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    drain.join().unwrap().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("generation:") && stderr.contains("interrupted"), "{stderr}");
}

/// `-ngl` as in llama.cpp: 0 runs on the CPU, more needs a GPU.
#[test]
fn gpu_layers_choose_the_backend() {
    let [plain, none] = [&["-p", "Once"][..], &["-p", "Once", "-ngl", "0", "-v"]]
        .map(|args| run(&[args, &["-n", "4", "--temp", "0"]].concat()));
    assert!(none.status.success() && text(&none.stderr).contains(" kernels"), "{}", text(&none.stderr));
    assert_eq!(none.stdout, plain.stdout);
    refused(&run(&["-p", "Once", "-ngl", "2", "--backend", "cpu"]), &["backend cpu", "--gpu-layers", "cuda"]);
    if cfg!(feature = "cuda") && sterna::backend::open("cuda", 1).is_err() {
        refused(
            &run(&["-p", "Once", "-ngl", "2"]),
            &["-ngl 2 needs an NVIDIA GPU", "-ngl 0 runs on the CPU"],
        );
    }
}

/// The first run on a wgpu device, also on a software one, begins with a self-test. The next one does not.
#[test]
#[cfg(feature = "wgpu")]
fn wgpu_device_is_self_tested_once() {
    if let Err(err) = sterna::backend::open("wgpu", 1) {
        return support::print_note(format_args!("wgpu: not run: no adapter ({err})"));
    }
    let dir = tempfile::tempdir().unwrap();
    let tested = |more: &[&str]| {
        let args =
            ["run", "-t", "1", "-c", "128", "-m", &model(), "-p", "Once", "-n", "1", "--backend", "wgpu"];
        let output = command().env("XDG_CACHE_HOME", dir.path()).args(args).args(more).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr).contains("passed a self-test")
    };
    assert!(!tested(&["--no-self-test"]));
    assert!(tested(&[]));
    assert!(!tested(&[]));
}

/// The CPU and CUDA have this option, so it works on either default. wgpu does not have it, so its devices
/// are hidden.
#[test]
#[cfg(target_os = "linux")]
fn stream_slots_work_on_the_default_backend() {
    let args = ["run", "-t", "1", "-m", &model(), "-p", "Once", "-n", "2", "--stream-slots", "4"];
    let hidden = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].map(|name| (name, "/nowhere"));
    let output = command().args(args).envs(hidden).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
#[cfg(feature = "grammar")]
fn grammar_constrains_the_text() {
    let grammar = "root ::= \"yes\" | \"no\"";
    let said = run(&["-p", "Well?", "--grammar", grammar, "-n", "20", "-s", "1"]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert!(["yes", "no"].contains(&text(&said.stdout).as_str()), "{}", text(&said.stdout));
    let dir = tempfile::tempdir().unwrap();
    let (gbnf, schema) = (dir.path().join("a.gbnf"), dir.path().join("a.json"));
    // With a byte order mark, as Windows writes them.
    std::fs::write(&gbnf, format!("\u{feff}{grammar}\r\n")).unwrap();
    let booleans = r#"{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}"#;
    std::fs::write(&schema, format!("\u{feff}{booleans}")).unwrap();
    let by_file = run(&["-p", "Well?", "--grammar-file", gbnf.to_str().unwrap(), "-n", "20", "-s", "1"]);
    assert_eq!(by_file.stdout, said.stdout);
    let several = run(&["-p", "Well?", "-jf", schema.to_str().unwrap(), "-n", "60", "-s", "1", "-np", "2"]);
    assert!(several.status.success(), "{}", text(&several.stderr));
    let closed = r#"{"properties": {"a": {"enum": ["x"]}}, "required": ["a"]}"#;
    let object = run(&["-p", "Well?", "-j", closed, "-n", "60", "-s", "1"]);
    assert_eq!(text(&object.stdout).replace(' ', ""), r#"{"a":"x"}"#);
    for sequence in text(&several.stdout).split("sequence").skip(1) {
        let json = sequence.split_once(':').unwrap().1;
        let list: Vec<bool> = serde_json::from_str(json).unwrap_or_else(|err| panic!("{json}: {err}"));
        assert!(list.len() <= 3);
    }
}

#[test]
#[cfg(feature = "grammar")]
fn invalid_grammars_are_refused() {
    let refuses = |args: &[&str], words: &[&str]| refused(&run(&[&["-p", "a"], args].concat()), words);
    refuses(&["--grammar", "root ::= [z-a]"], &["GBNF", "line 1, column 11"]);
    refuses(&["--grammar", "%llguidance {}\nstart: x"], &["unknown name"]);
    refuses(&["-j", "{"], &["JSON schema"]);
    refuses(&["-j", r#"{"type": "string", "not": {"const": "a"}}"#], &["`not`"]);
    refuses(&["-j", r#"{"items": {"pattern": "(?=a)"}}"#], &["`pattern` at #/items", "look-around"]);
    refuses(&["--grammar-file", "/nowhere.gbnf"], &["/nowhere.gbnf"]);
    let both = run(&["-p", "a", "--grammar", "root ::= \"a\"", "-j", "{}"]);
    assert!(!both.status.success() && text(&both.stderr).contains("cannot be used with"));
}

#[test]
fn load_modes_give_the_same_text() {
    let args = ["-p", "You may copy", "-n", "12", "--temp", "0"];
    let mapped = run(&args);
    assert!(mapped.status.success());
    for how in [&["--no-mmap"][..], &["--mmap=0"]] {
        let read = run(&[&args[..], how].concat());
        assert_eq!((read.status.code(), read.stdout), (Some(0), mapped.stdout.clone()), "{how:?}");
    }
    let locked = run(&[&args[..], &["--mlock"]].concat());
    match locked.status.success() {
        true => assert_eq!(locked.stdout, mapped.stdout),
        // The system's limit is below the size of the file.
        false => refused(&locked, &["RLIMIT_MEMLOCK", "--mlock"]),
    }
    for how in ["auto", "none", "mmap"] {
        let loaded = run(&[&args[..], &["-lm", how]].concat());
        assert_eq!((loaded.status.code(), loaded.stdout), (Some(0), mapped.stdout.clone()), "-lm {how}");
    }
    for both in [&["--mlock", "--no-mmap"][..], &["--load-mode", "mmap", "--no-mmap"]] {
        let both = run(&[&args[..], both].concat());
        assert!(text(&both.stderr).contains("cannot be used with"), "{both:?}");
    }
}

/// Weights that are read in every step give the same text, and a note is printed.
#[test]
fn streamed_layers_give_the_same_text() {
    let args = ["-p", "You may copy", "-n", "12", "--temp", "0"];
    let mapped = run(&args);
    for how in [&["--resident-layers", "1"][..], &["--resident-layers", "none", "--stream-slots", "1"]] {
        let streamed = run(&[&args[..], how].concat());
        assert_eq!((streamed.status.code(), streamed.stdout), (Some(0), mapped.stdout.clone()), "{how:?}");
        let said = text(&streamed.stderr);
        assert!(said.contains(" are read from the file in every step, "), "{said}");
    }
    assert!(!text(&mapped.stderr).contains("in every step"), "{}", text(&mapped.stderr));
    let wrong = run(&[&args[..], &["--resident-layers", "some"]].concat());
    assert!(text(&wrong.stderr).contains("want auto, all, none or a number"), "{wrong:?}");
    if cfg!(feature = "cuda") {
        let cuda = run(&[&args[..], &["--resident-layers", "1", "--backend", "cuda"]].concat());
        refused(&cuda, &["--resident-layers"]);
    }
}
