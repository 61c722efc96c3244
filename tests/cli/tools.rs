//! `sterna logits`, `perplexity`, `bench`, `devices`, `completions` and `man` as a user types them.
#![cfg(feature = "cli")]

use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use sterna::backend::NAMES;
use sterna::gguf::Gguf;
use sterna::tokenizer::{Special, Tokenizer, TokenizerOptions};

use super::program::{ended_with, golden, ok, refused, sterna, sterna_in};

fn model() -> String {
    golden("bitnet/tiny-i2_s.gguf")
}

fn with_model(subcommand: &str, args: &[&str]) -> Output {
    sterna(&[&[subcommand, "-m", &model()], args].concat())
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path.into_os_string().into_string().unwrap()
}

#[test]
fn logits_are_written_for_every_position() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = write(dir.path(), "tokens.txt", "636 1 2 3\n\n636, 9,8\n");
    let out = dir.path().join("out.npy");
    let each = dir.path().join("each.npy");
    let common = ["-t", "1", "--kv-cache-type", "f32", "--tokens", &tokens, "-o"];
    ok(&with_model("logits", &[&common[..], &[out.to_str().unwrap()]].concat()));
    ok(&with_model("logits", &[&common[..], &[each.to_str().unwrap(), "--each"]].concat()));
    let (batch, single) = (support::npy(&out), support::npy(&each));
    assert_eq!(batch.shape, [7, 640]);
    assert!(batch.bytes == single.bytes, "single-token steps give different logits");
    // Both sequences start with the same token.
    let rows = batch.f32s();
    assert_eq!(rows[..640], rows[4 * 640..5 * 640]);
}

#[test]
fn logits_rejects_bad_input() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.npy");
    let out = out.to_str().unwrap();
    let good = write(dir.path(), "good.txt", "1 2 3");
    let words = write(dir.path(), "words.txt", "1 2\n3 four");
    let beyond = write(dir.path(), "beyond.txt", "1 640");
    let none = write(dir.path(), "none.txt", "\n \n");
    refused(&with_model("logits", &["--tokens", "/nowhere/ids", "-o", out]), &["/nowhere/ids"]);
    refused(&with_model("logits", &["--tokens", &words, "-o", out]), &["words.txt, line 2", "`four`"]);
    refused(&with_model("logits", &["--tokens", &beyond, "-o", out]), &["token 640", "640 tokens"]);
    refused(&with_model("logits", &["--tokens", &none, "-o", out]), &["no token ids"]);
    refused(&with_model("logits", &["--tokens", &good, "-o", "/nowhere/out.npy"]), &["/nowhere/out.npy"]);
    if Path::new("/dev/full").exists() {
        refused(&with_model("logits", &["--tokens", &good, "-o", "/dev/full"]), &["/dev/full", "No space"]);
    }
    let folder = dir.path().to_str().unwrap();
    refused(&with_model("logits", &["--tokens", &good, "-o", folder]), &[folder, "is a folder"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "a partial file is left");
    // A run that fails keeps an older result.
    std::fs::write(out, "old").unwrap();
    refused(&with_model("logits", &["--tokens", &beyond, "-o", out]), &["token 640"]);
    assert_eq!(std::fs::read(out).unwrap(), b"old");
}

/// `ulimit -f`: an error like a full disk.
#[cfg(target_os = "linux")]
#[test]
fn file_limits_leave_no_output_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for args in [
        &["synth", "--preset", "tiny"][..],
        &["quantize", "--allow-requantize", &model(), "q4_0"],
        &["run", "-n", "1", "-p", "You", "-m", &model(), "--prompt-cache"],
    ] {
        let mut args = args.to_vec();
        // The output is the last argument, but for `quantize`.
        let at = if args[0] == "quantize" { 3 } else { args.len() };
        args.insert(at, out.to_str().unwrap());
        let script = "ulimit -f 1; exec \"$0\" \"$@\"";
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_sterna")]).args(&args);
        refused(&command.output().unwrap(), &["File too large"]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{args:?} left a file");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_no_output_file() {
    let dir = tempfile::tempdir().unwrap();
    let ids = write(dir.path(), "ids.txt", "1 2 3 4 5 6 7 8 ".repeat(3000));
    let words = write(dir.path(), "text.txt", "You may copy and distribute verbatim copies. ".repeat(4000));
    let out = dir.path().join("out");
    let out = out.to_str().unwrap();
    for args in [
        ["logits", "--each", "--tokens", &ids, "-o", out],
        ["perplexity", "-c64", "-f", &words, "--save-logits", out],
    ] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_sterna"))
            .args(args)
            .args(["-t", "1", "-m", &model()])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The unfinished file shows that it has started. The handler of ctrl-C is installed before that.
        let begun = || std::fs::read_dir(dir.path()).unwrap().count() > 2;
        while !begun() {
            assert!(child.try_wait().unwrap().is_none(), "{args:?} ended too soon");
            std::thread::yield_now();
        }
        // Shells start commands in the background with SIGINT ignored; SIGTERM does the same.
        let killed = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(killed.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(130), "{args:?}: {stderr}");
        assert!(stderr.contains("interrupted; no output was written"), "{args:?}: {stderr}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "{args:?} left a file");
    }
}

/// Perplexity over the second halves of the chunks, in plain f64 from the logits.
fn expected_perplexity(logits: &[f32], chunks: &[Vec<u32>]) -> f64 {
    let (mut nll, mut n, mut row) = (0.0, 0, 0);
    for chunk in chunks {
        for at in 0..chunk.len() {
            if at >= chunk.len() / 2 && at + 1 < chunk.len() {
                let logits: Vec<f64> = logits[row * 640..(row + 1) * 640].iter().map(|&x| x.into()).collect();
                let sum: f64 = logits.iter().map(|x| x.exp()).sum();
                nll += sum.ln() - logits[chunk[at + 1] as usize];
                n += 1;
            }
            row += 1;
        }
    }
    (nll / f64::from(n)).exp()
}

/// Checks the perplexity that the command prints against the logits. Returns its output and the number of
/// chunks.
fn checked_perplexity(text: &str, special: Special, flags: &[&str]) -> (String, usize) {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "text.txt", text);
    let gguf = Gguf::open(&support::golden("bitnet/tiny-i2_s.gguf").unwrap()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).unwrap();
    let tokens = tokenizer.encode(text, special, true);
    let mut chunks: Vec<Vec<u32>> = tokens.chunks_exact(16).map(<[u32]>::to_vec).collect();
    if tokenizer.add_bos() {
        chunks.iter_mut().for_each(|chunk| chunk[0] = tokenizer.bos().unwrap());
    }
    let lines: Vec<String> =
        chunks.iter().map(|chunk| chunk.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")).collect();
    let ids = write(dir.path(), "ids.txt", lines.join("\n"));
    let npy = dir.path().join("logits.npy");
    ok(&with_model("logits", &["-t", "1", "--tokens", &ids, "-o", npy.to_str().unwrap()]));
    let want = expected_perplexity(&support::npy(&npy).f32s(), &chunks);

    let stdout = ok(&with_model("perplexity", &[&["-t", "1", "-f", &file, "-c", "16"], flags].concat()));
    let got: f64 = stdout.split(&['=', '+'][..]).nth(1).unwrap().trim().parse().unwrap();
    assert!((got / want - 1.0).abs() < 1e-4, "{got} is not {want}: {stdout}");
    (stdout, chunks.len())
}

#[test]
fn perplexity_parses_special_tokens_on_request() {
    let text = "You may copy and distribute copies.<|eot_id|>".repeat(8);
    let (_, as_text) = checked_perplexity(&text, Special::AsText, &[]);
    let (_, parsed) = checked_perplexity(&text, Special::Parse, &["--special"]);
    assert!(parsed < as_text, "{parsed} chunks and {as_text}");
}

#[test]
fn perplexity_matches_the_logits() {
    let dir = tempfile::tempdir().unwrap();
    let text = "You may copy and distribute verbatim copies of the source form of the package. ".repeat(4);
    let file = write(dir.path(), "text.txt", &text);
    let base = dir.path().join("base.kl");
    let base = base.to_str().unwrap();
    let args = ["-t", "1", "-f", &file, "-c", "16"];
    let (stdout, n_chunks) = checked_perplexity(&text, Special::AsText, &["--save-logits", base]);
    assert!(stdout.contains(" +/- ") && stdout.contains(&format!("{n_chunks} chunks")), "{stdout}");

    let typed = ["-t", "1", "-p", &text, "-c", "16", "--chunks", "-1", "--kl-base", base];
    let same = ok(&with_model("perplexity", &typed));
    assert!(same.contains("mean KL = 0.0000") || same.contains("mean KL = -0.0000"), "{same}");
    assert!(same.contains("same top = 100.000"), "{same}");

    let longer = ["-t", "1", "-f", &file, "-c", "20", "--kl-base", base];
    refused(&with_model("perplexity", &longer), &["base.kl", "--ctx-size 16"]);
    let other = write(dir.path(), "other.txt", text.replace("verbatim", "modified"));
    let chunks = n_chunks.to_string();
    let other = ["-t", "1", "-f", &other, "-c", "16", "--chunks", &chunks, "--kl-base", base];
    refused(&with_model("perplexity", &other), &["base.kl"]);
    refused(
        &with_model("perplexity", &[&args[..], &["--kl-base", &file]].concat()),
        &["written by --save-logits"],
    );
    refused(&with_model("perplexity", &["-f", &file, "-c", "4096"]), &["less than two chunks"]);
}

#[test]
fn bench_prints_the_rows_of_llama_bench() {
    let args = ["-p", "16", "-n", "4", "-pg", "8,2", "-d", "0,32", "-r", "2", "-t", "1"];
    let table = ok(&with_model("bench", &args));
    for row in ["pp16", "tg4", "pp8+tg2", "pp16 @ d32", "tg4 @ d32", "pp8+tg2 @ d32"] {
        assert_eq!(
            table.lines().filter(|line| line.contains(&format!(" {row} |"))).count(),
            1,
            "{row}: {table}"
        );
    }
    assert!(table.starts_with("| model ") && table.contains("| t/s |") | table.contains(" t/s |"));

    let json = ok(&with_model("bench", &[&args[..], &["-o", "json", "--sampling", "default"]].concat()));
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    let sampled: Vec<_> = rows.iter().filter(|row| row["sampling"] == "default").collect();
    let tests: Vec<_> = sampled.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["tg4 sampled", "pp8+tg2 sampled", "tg4 sampled @ d32", "pp8+tg2 sampled @ d32"]);
    assert_eq!(rows.len(), 6 + sampled.len());
    let decode = rows.iter().find(|row| row["test"] == "tg4 @ d32").unwrap();
    assert_eq!(
        (&decode["n_gen"], &decode["n_depth"], &decode["head_type"]),
        (&4.into(), &32.into(), &"f16".into())
    );
    assert_eq!(decode["samples_ts"].as_array().unwrap().len(), 2);
    assert!(decode["bytes_per_s"].as_f64().unwrap() > 0.0);
    // Without a file type in the metadata, the type of the largest matrix is used.
    assert_eq!(decode["model_type"], "bitnet-b1.58 I2_S");

    let csv = ok(&with_model("bench", &[&args[..], &["-o", "csv"]].concat()));
    assert_eq!(csv.lines().count(), 7);
    assert!(csv.lines().next().unwrap().contains("avg_ts"));
}

#[test]
fn bench_profiles_stages_per_weight_type() {
    let out =
        with_model("bench", &["--backend", "cpu", "-p", "0", "-n", "4", "-r", "2", "-t", "1", "--profile"]);
    let profile = String::from_utf8(out.stderr.clone()).unwrap();
    ok(&out);
    assert!(profile.contains("| stage of tg4 | calls | total ms | share | GB/s |"), "{profile}");
    let row = |kind: &str| -> Vec<&str> {
        let line = profile.lines().find(|line| line.starts_with(&format!("| {kind} |"))).expect(kind);
        line.split('|').map(str::trim).collect()
    };
    // Two runs of four steps. The two warm-up steps are left out.
    assert_eq!(row("logits f16")[2], "8");
    assert!(row("ffn_in i2_s")[5].parse::<f64>().unwrap() > 0.0, "{profile}");
    assert_eq!(row("sample")[5], "-");
}

#[test]
fn batched_bench_prints_the_rows_of_llama_cpp() {
    let args = ["-t", "1", "-npp", "20,70", "-ntg", "3", "-npl", "1,3"];
    let table = ok(&with_model("batched-bench", &args));
    let rows: Vec<Vec<&str>> =
        table.lines().skip(2).map(|line| line.split('|').map(str::trim).collect()).collect();
    let counts: Vec<&[&str]> = rows.iter().map(|row| &row[1..5]).collect();
    assert_eq!(
        counts,
        [["20", "3", "1", "23"], ["20", "3", "3", "69"], ["70", "3", "1", "73"], ["70", "3", "3", "219"]]
    );
    assert!(rows.iter().all(|row| row[5..11].iter().all(|x| x.parse::<f64>().unwrap() >= 0.0)), "{table}");
    let shared =
        ok(&with_model("batched-bench", &[&args[..], &["-pps", "--output-format", "jsonl"]].concat()));
    let last: serde_json::Value = serde_json::from_str(shared.lines().last().unwrap()).unwrap();
    assert_eq!((&last["pl"], &last["n_kv"], &last["is_pp_shared"]), (&3.into(), &79.into(), &true.into()));
    let arriving = with_model("batched-bench", &[&args[..], &["-npl", "2", "--arriving", "80"]].concat());
    let said = String::from_utf8(arriving.stderr).unwrap();
    assert!(said.contains("arriving: 80 tokens") && said.contains("longest gap"), "{said}");
    for wrong in [["-npl", "0"], ["-npp", "x"], ["-ntg", "-1"]] {
        assert_eq!(with_model("batched-bench", &wrong).status.code(), Some(2));
    }
}

/// Each sequence uses one of two random adapters, and a step without them is measured as well.
#[test]
fn batched_bench_measures_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| sterna_in(dir.path(), args);
    ok(&run(&["synth", "--type", "f16", "m.gguf"]));
    for (seed, file) in [("2", "a.gguf"), ("3", "b.gguf")] {
        ok(&run(&["synth", "--type", "f16", "--lora-rank", "4", "--seed", seed, file]));
    }
    let args = ["batched-bench", "-m", "m.gguf", "-t", "1", "-npp", "4", "-ntg", "3", "-npl", "4"];
    let each = run(&[&args[..], &["--lora", "a.gguf,b.gguf", "--lora-each"]].concat());
    let said = String::from_utf8(each.stderr.clone()).unwrap();
    ok(&each);
    assert!(said.contains("adapters: a step of 4 sequences with 2 adapters takes "), "{said}");
    let ratio = said.split("without: ").nth(1).and_then(|rest| rest.split(' ').next());
    assert!(ratio.is_some_and(|ratio| ratio.parse::<f64>().is_ok_and(|ratio| ratio > 0.0)), "{said}");
    refused(&run(&[&args[..], &["--lora-each"]].concat()), &["--lora-each needs adapters"]);
    refused(&run(&["synth", "--lora-rank", "0", "c.gguf"]), &["--lora-rank: want at least 1"]);
    // The adapters change texts.
    let text = ["run", "-m", "m.gguf", "-t", "1", "-p", "Once", "-n", "12", "--temp", "0", "--ignore-eos"];
    let [plain, with, other] = [&[][..], &["--lora", "a.gguf"], &["--lora", "b.gguf"]]
        .map(|more: &[&str]| ok(&run(&[&text[..], more].concat())));
    assert!(plain != with && with != other, "{plain}");
}

#[test]
fn bench_rejects_bad_input() {
    refused(&with_model("bench", &["-p", "0", "-n", "0"]), &["nothing to measure"]);
    if sterna::demo::model().is_none() {
        refused(&sterna(&["bench"]), &["-m FILE"]);
    }
    refused(&sterna(&["bench", "-m", "/nowhere/model.gguf"]), &["/nowhere/model.gguf"]);
    assert_eq!(with_model("bench", &["-pg", "512"]).status.code(), Some(2));
    assert_eq!(with_model("bench", &["-o", "xml"]).status.code(), Some(2));
}

/// Every cache type has its rows and its bound, on the first adapter if there is one.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn wgpu_selftest_covers_every_cache_type() {
    if !ok(&sterna(&["devices"])).contains("wgpu: 0: ") {
        return support::print_note(format_args!("wgpu: not run: no adapter"));
    }
    let table = ok(&sterna(&["selftest", "--small", "--backend", "wgpu"]));
    assert!(table.ends_with("every stage computes the same as the CPU\n"), "{table}");
    for (codec, most) in [("f16", "2e-3"), ("q8_0", "2e-2"), ("turboquant-4", "2e-2"), ("tq3_0", "2e-2")] {
        let line = format!("| tiny, head f16, KV {codec} | attend | 70 |");
        assert!(
            table.lines().any(|l| l.starts_with(&line) && l.ends_with(&format!("| {most} | ok |"))),
            "{table}"
        );
    }
}

/// The self-test of a GPU before its first model. Captured steps of one row append and attend in one kernel
/// for some cache types.
#[test]
#[cfg(feature = "simt")]
fn cuda_simt_passes_the_quick_selftest() {
    for codec in ["q8_0", "turboquant", "turboquant-4"] {
        let said = ok(&sterna(&["selftest", "--backend", "cuda-simt", "--quick", codec]));
        assert!(said.ends_with("it computes the same as the CPU\n"), "{codec}: {said}");
    }
}

#[test]
fn devices_version_help_completions_and_man_work() {
    let devices = ok(&sterna(&["devices"]));
    assert!(devices.starts_with("cpu: "), "{devices}");
    assert_eq!(devices.contains("cuda: this build "), NAMES.contains(&"cuda"), "{devices}");
    // As in a container: driver libraries write nothing to stderr.
    let mut devices = Command::new(env!("CARGO_BIN_EXE_sterna"));
    let devices =
        devices.arg("devices").env_remove("XDG_RUNTIME_DIR").env_remove("NODEVICE_SELECT").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&devices.stderr), "");
    assert!(
        ok(&sterna(&["selftest", "--backend", "cpu"]))
            .ends_with("every stage computes the same as the CPU\n")
    );
    assert_eq!(ok(&sterna(&["--version"])).trim(), format!("sterna {}", env!("CARGO_PKG_VERSION")));
    let help = ok(&sterna(&["--help"]));
    assert!(help.contains("Examples:"), "{help}");
    for subcommand in ["run", "bench", "logits", "perplexity", "quantize", "devices", "completions", "man"] {
        assert!(help.contains(&format!("  {subcommand} ")), "{subcommand}: {help}");
        assert!(ok(&sterna(&[subcommand, "--help"])).contains("Usage:"));
    }
    for subcommand in ["run", "bench", "logits", "perplexity", "quantize", "completions", "man"] {
        assert!(ok(&sterna(&[subcommand, "--help"])).contains("Examples:"), "{subcommand}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(ok(&sterna(&["completions", shell])).contains("perplexity"), "{shell}");
    }
    assert!(ok(&sterna(&["man"])).contains(".TH sterna 1"));
    assert!(ok(&sterna(&["man", "run"])).contains("top\\-k"));
    refused(&sterna(&["man", "walk"]), &["walk"]);
}

/// `sterna` without arguments suggests commands in a terminal (where lines end with CRLF), and is an error
/// otherwise.
#[test]
#[cfg(unix)]
fn bare_command_suggests_commands_in_a_terminal() {
    ended_with(&sterna(&[]), 2, &["Usage: sterna <COMMAND>"]);
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) != 0)";
    let run = Command::new("python3").args(["-c", spawn, env!("CARGO_BIN_EXE_sterna")]).output();
    let run = run.expect("the tests need Python");
    let said = String::from_utf8_lossy(&run.stdout).replace('\r', "");
    assert!(run.status.success(), "{said}");
    let tries: Vec<&str> = said.lines().filter(|line| line.starts_with("  sterna ")).collect();
    assert_eq!(tries.len(), 3, "{said}");
    assert!(tries[0].starts_with("  sterna chat ") && tries[2].contains("port 8080"), "{said}");
    assert!(said.contains("\n  cpu: "), "{said}");
}

/// The example that `cargo test` has built next to this program, if none of its sources is newer.
fn built_example() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.parent()?.join("examples");
    let example = folder.join(format!("generate{}", std::env::consts::EXE_SUFFIX));
    let built = std::fs::metadata(&example).ok()?.modified().ok()?;
    let sources = std::fs::read_to_string(folder.join("generate.d")).ok()?;
    let is_older = |source: &str| std::fs::metadata(source).is_ok_and(|of| of.modified().unwrap() <= built);
    sources.split_once(": ")?.1.split_whitespace().all(is_older).then_some(example)
}

#[test]
fn library_example_runs() {
    // `cargo test --test cli` does not build it.
    let example = built_example().unwrap_or_else(|| {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", profile, "--example", "generate"])
            .args(["--message-format", "json"])
            // `scripts/test` sets it for libtest, and cargo would rebuild all dependencies with it.
            .env_remove("RUSTC_BOOTSTRAP")
            .current_dir(support::root())
            .output()
            .unwrap();
        let messages = ok(&built);
        let example = messages.lines().rev().find_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            Some(PathBuf::from(message["executable"].as_str()?))
        });
        example.expect("cargo names what it has built")
    });
    let output = Command::new(example).args([&model(), "You may copy"]).output().unwrap();
    assert!(!ok(&output).is_empty());
}

/// With a NaN weight, every command that runs the model names the stage that made the logits NaN.
#[test]
fn nan_logits_are_an_error_in_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(model()).unwrap();
    let gguf = Gguf::open(Path::new(&model())).unwrap();
    let at = gguf.find("blk.1.ffn_norm.weight").unwrap().start as usize;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let broken = write(dir.path(), "nan.gguf", bytes);
    let words = write(dir.path(), "words", "You may copy and distribute verbatim copies of it. ".repeat(40));
    let cpu = ["-m", &broken, "-t", "1", "--backend", "cpu"];
    for args in [
        &["run", "-p", "You may", "-n", "4"][..],
        &["run", "-p", "You may", "-n", "4", "--temp", "0", "-np", "2"],
        &["perplexity", "-f", &words, "-c", "64"],
        &["batched-bench", "-npp", "8", "-ntg", "4", "-npl", "2"],
    ] {
        refused(
            &sterna(&[args, &cpu].concat()),
            &["are NaN or infinite", "1.ffn_in", "blk.1.ffn_norm.weight"],
        );
    }
}
