//! `driver/real` on the stand-in CUDA driver (`tests/stand-in`), which uses every freedom that NVIDIA's
//! documentation leaves a driver.
//!
//! The loader finds that driver through the environment at process start. So each test here starts a process:
//! the program, or this binary again with one of the tests in [`child`], or with tests of other files, which
//! then use its card instead of the CUDA kernels on the CPU ([`support::case::simt`]).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod adapters;
mod child;
mod rules;
mod streamed;

/// A folder with the stand-in as `libcuda.so`.
fn folder() -> PathBuf {
    let exe = std::env::current_exe().expect("this binary");
    let library = exe.with_file_name("libstand_in_cuda.so");
    assert!(library.exists(), "{library:?} is not built");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
    std::fs::create_dir_all(&folder).expect("a folder for tests");
    for name in ["libcuda.so", "libcuda.so.1"] {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|to| to == library) {
            continue;
        }
        // Another process or thread may create the same link.
        let own = folder.join(format!("{name}.{}", std::process::id()));
        let _ = std::os::unix::fs::symlink(&library, &own);
        let _ = std::fs::rename(&own, link);
    }
    folder
}

fn on_stand_in(settings: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", folder()).env("STAND_IN_CUDA", settings);
    command
}

/// Runs the program without caches.
fn sterna(settings: &str, args: &[&str]) -> Output {
    sterna_with_cache(settings, Path::new("/dev/null"), args)
}

fn sterna_with_cache(settings: &str, cache: &Path, args: &[&str]) -> Output {
    let mut command = on_stand_in(settings, env!("CARGO_BIN_EXE_sterna"));
    command.env("XDG_CACHE_HOME", cache).args(args).output().expect("sterna runs")
}

/// Runs the tests of this binary whose names contain `filter`, and asserts that at least `least` of them ran.
fn tests(settings: &str, filter: &str, least: usize) {
    let exe = std::env::current_exe().expect("this binary");
    let args = ["--include-ignored", "--test-threads", "1", "--skip", "stand_in::on_the_stand_in"];
    let output = on_stand_in(settings, exe).arg(filter).args(args).output().expect("this binary runs");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{settings}:\n{text}");
    let passed = text.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    assert!(passed.is_some_and(|passed: usize| passed >= least), "{settings}:\n{text}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Greedy, so that the card picks and steps are queued ahead.
const RUN: [&str; 11] =
    ["run", "-p", "Once upon a time", "-n", "6", "--temp", "0", "--repeat-penalty", "1", "-t", "2"];

/// Greedy text of the demo model, or the error.
fn greedy(settings: &str, backend: &str, more: &[&str]) -> Result<String, String> {
    let output = sterna(settings, &[&RUN[..], &["--no-self-test", "--backend", backend], more].concat());
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn has_demo() -> bool {
    let has = sterna::demo::model().is_some();
    if !has {
        support::print_note(format_args!("not run: this build has no demo model (feature demo)"));
    }
    has
}

/// Settings of the stand-in, the reference backend, flags of both, and flags only of the card.
type CardCase = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

/// Block caches are compared with the same kernels without a driver, because these round queries and the CPU
/// does not.
const BLOCKS: &[&str] = &["--kv-cache-type", "q8_0"];

#[test]
fn texts_match_the_cpu() {
    compare_texts(&[
        ("card=rtx-5080", "cpu", &[], &[]),
        ("card=small", "cuda-simt", BLOCKS, &[]),
        ("card=small card=rtx-3060", "cpu", &[], &["--split-mode", "layer"]),
        ("card=rtx-3060 seed=4", "cpu", &[], &["-ngl", "0", "--stream-slots", "1"]),
    ]);
}

/// On cards that start kernels early and one that does not, with threads in another order, and with a driver
/// that works at once.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn texts_match_the_cpu_on_every_card() {
    compare_texts(&[
        ("card=h100 seed=3", "cpu", &[], &[]),
        ("card=rtx-3060", "cpu", &[], &[]),
        ("card=small prompt ordered", "cpu", &[], &[]),
        ("card=rtx-5080 card=rtx-3060 card=h100", "cpu", &[], &["--split-mode", "layer"]),
        ("card=small card=small card=small apart", "cpu", &[], &["-ts", "1,0,2"]),
        ("card=rtx-3060", "cpu", &[], &["-ngl", "1"]),
        ("card=h100 seed=5", "cpu", &[], &["-ngl", "0", "--op-offload-min-batch", "1"]),
        ("card=h100 seed=6", "cpu", &[], &["-ngl", "0", "--op-offload-min-batch", "4"]),
        ("card=small prompt", "cpu", &[], &["-ngl", "1", "--op-offload-min-batch", "off"]),
    ]);
}

fn compare_texts(cases: &[CardCase]) {
    if !has_demo() {
        return;
    }
    for &(settings, reference, both, on_card) in cases {
        let want = greedy("", reference, both).expect("a backend of this build");
        assert!(want.len() > 10, "{want}");
        let got = greedy(settings, "cuda", &[both, on_card].concat());
        assert_eq!(got.as_deref(), Ok(want.as_str()), "{settings} {both:?} {on_card:?}");
    }
}

/// A feed-forward layer as wide as Mistral Small's: its rows do not fit in the card's shared memory.
#[test]
fn models_with_long_rows_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("long.gguf").display().to_string();
    let shape = ["--dim", "256", "--ffn-dim", "32768", "--heads", "4", "--kv-heads", "2", "--vocab", "640"];
    let file = ["--layers", "1", "--type", "q4_k", "--head-type", "q6_k", &model];
    let made = sterna("", &[&["synth", "--preset", "llama-3.2-1b"], &shape[..], &file].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
    let floats = ["-m", &model, "--act-type", "f32"];
    let want = greedy("", "cpu", &floats).expect("a backend of this build");
    assert_eq!(greedy("card=rtx-5080", "cuda", &floats), Ok(want));
}

/// A wrong size of shared memory per block, as some drivers have reported; the card has 99 KiB.
#[test]
fn impossible_shared_memory_sizes_are_ignored() {
    if !has_demo() {
        return;
    }
    let want = greedy("", "cpu", &[]);
    for bytes in ["0", "2147483647"] {
        assert_eq!(greedy(&format!("card=rtx-5080 optin={bytes}"), "cuda", &[]), want, "{bytes}");
    }
}

#[test]
fn cards_are_listed_and_selected_by_number() {
    let listed = text(&sterna("card=h100 card=rtx-3060 driver=13.1", &["devices"]).stdout);
    for line in [
        "cuda: 0: NVIDIA H100 80GB HBM3, 81920 MiB, compute capability 9.0, driver for CUDA 13.1: ",
        "cuda: 1: NVIDIA GeForce RTX 3060, 12288 MiB, compute capability 8.6, driver for CUDA 13.1: ",
    ] {
        assert!(listed.contains(line), "{listed}");
    }
    if has_demo() {
        let both = "card=h100 card=rtx-3060";
        assert!(greedy(both, "cuda", &["--device", "1"]).is_ok());
        let stderr = greedy(both, "cuda", &["--device", "2"]).unwrap_err();
        assert!(stderr.contains("there is no GPU 2; this machine has 2"), "{stderr}");
        let stderr = greedy(both, "cuda", &["-sm", "layer", "--device", "0,2"]).unwrap_err();
        assert!(stderr.contains("there is no GPU 2; this machine has 2"), "{stderr}");
        let stderr = greedy(both, "cuda", &["--device", "0,1"]).unwrap_err();
        assert!(stderr.contains("--device: several GPUs need a split mode of layer"), "{stderr}");
    }
}

/// By timestamps in graphs and by events around stages.
#[test]
fn stages_are_timed_on_a_card() {
    if !has_demo() {
        return;
    }
    for how in ["--profile", "--profile=events"] {
        let args = ["bench", "--backend", "cuda", "--no-self-test", "-p", "0", "-n", "1", "-r", "1", how];
        let output = sterna("card=h100", &args);
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{how}: {stderr}");
        for kind in ["embed", "attn_in", "attend", "proj_add", "ffn_in", "logits"] {
            assert!(stderr.contains(kind), "{how}: no {kind} in {stderr}");
        }
    }
}

#[test]
fn drivers_without_cards_are_reported() {
    let stderr = greedy("card=none", "cuda", &[]).unwrap_err();
    assert!(stderr.contains("the NVIDIA driver finds no GPU"), "{stderr}");
}

/// Without the stand-in. A machine with an NVIDIA driver finds that one.
#[test]
fn machines_without_a_driver_are_reported() {
    let own = Command::new(env!("CARGO_BIN_EXE_sterna")).arg("devices").output().expect("sterna runs");
    let listed = text(&own.stdout);
    let has_own = listed.lines().any(|line| line.starts_with("cuda: 0: "));
    assert!(has_own || listed.contains("cuda: "), "{listed}");
    assert!(has_own || listed.contains("libcuda was not found") || listed.contains("no GPU"), "{listed}");
}

/// Too little device memory for the model is an error before anything is uploaded.
#[test]
fn out_of_memory_errors_suggest_a_flag() {
    if !has_demo() {
        return;
    }
    let stderr = greedy("memory=20", "cuda", &["-c", "100000"]).unwrap_err();
    for part in ["free", "-c"] {
        assert!(stderr.contains(part), "`{part}` is not in: {stderr}");
    }
    // It fits on two such cards.
    let long = ["-c", "60000"];
    assert!(greedy("card=small memory=250", "cuda", &long).unwrap_err().contains("free"));
    let two = greedy("card=small card=small memory=250", "cuda", &[&long[..], &["-sm", "layer"]].concat());
    assert!(two.is_ok(), "{two:?}");
    // It fits with the suggested flag.
    let stderr = greedy("memory=20", "auto", &[]).unwrap_err();
    assert!(stderr.contains("20.0 MiB free; a smaller --ctx-size takes less"), "{stderr}");
    let passed = greedy("memory=20", "auto", &["-c", "256"]);
    assert!(passed.is_ok(), "{passed:?}");
}

/// A lost card ends the run with an error that names the failed call, in any phase.
#[test]
fn lost_cards_end_the_run() {
    if !has_demo() {
        return;
    }
    for call in ["cuMemAlloc_v2@3", "cuGraphLaunch@4", "cuEventSynchronize@6", "cuStreamEndCapture@1"] {
        let stderr = greedy(&format!("fail={call}"), "cuda", &[]).unwrap_err();
        let (name, _) = call.split_once('@').expect("a call");
        let name = name.trim_end_matches("_v2");
        assert!(stderr.contains(name) && stderr.contains("CUDA_ERROR_UNKNOWN"), "{call}: {stderr}");
        assert!(!stderr.contains("panicked"), "{call}: {stderr}");
    }
}

/// If the driver is older than the kernels' toolkit, the error contains both versions, and `auto` uses the
/// CPU.
#[test]
fn old_drivers_are_reported_with_a_remedy() {
    let listed = text(&sterna("driver=11.8", &["devices"]).stdout);
    if listed.contains("the test driver") {
        support::print_note(format_args!(
            "not run: the kernels were built without a toolkit (scripts/setup-cuda)"
        ));
        return;
    }
    let stderr = greedy("driver=11.8", "cuda", &[]).unwrap_err();
    for part in ["the driver is for CUDA 11.8, older than the CUDA ", "install a driver for CUDA "] {
        assert!(stderr.contains(part) && listed.contains(part), "{stderr}\n{listed}");
    }
    assert!(greedy("driver=11.8", "auto", &["-n", "1"]).is_ok());
}

/// The first run on a card begins with a self-test; the next one does not. A different driver, cache or type
/// of layer is tested again.
#[test]
fn self_test_runs_once_per_card_and_configuration() {
    if !has_demo() {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let tested = |settings: &str, more: &[&str]| {
        let output = sterna_with_cache(
            settings,
            dir.path(),
            &[&RUN[..], &["--backend", "cuda", "-n", "1"], more].concat(),
        );
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        stderr.contains("passed a self-test")
    };
    assert!(tested("card=small ordered", &[]));
    assert!(!tested("card=small ordered", &[]));
    assert!(tested("card=small ordered driver=13.1", &[]));
    assert!(tested("card=small ordered", &["--kv-cache-type", "q8_0"]));
    assert!(!tested("card=h100 ordered", &["--no-self-test"]));
    // The head in another type, and another model.
    assert!(tested("card=small ordered", &["--head-type", "q8_0"]));
    let model = dir.path().join("q4_k.gguf").display().to_string();
    make(&model, "q4_k", "q6_k");
    assert!(tested("card=small ordered", &["-m", &model]));
    assert!(!tested("card=small ordered", &["-m", &model]));
    // Two sets of kernels were timed with the usual ones for each of these two.
    let listed = sterna_with_cache("card=small ordered", dir.path(), &["devices", "--verbose"]);
    let choices = text(&listed.stdout);
    let choices: Vec<_> = choices.lines().filter(|line| line.contains("kernels of octets ")).collect();
    let (prompts, few): (Vec<_>, Vec<_>) =
        choices.into_iter().partition(|choice| choice.contains("kernels of octets for prompts "));
    assert_eq!((few.len(), prompts.len()), (2, 2), "{few:?}, {prompts:?}");
    for choice in few {
        assert!(choice.contains("used: 8 rows ") && choice.contains("; 32 rows "), "{choice}");
    }
    assert!(prompts.iter().all(|choice| choice.contains("used: 128 rows ")), "{prompts:?}");
}

/// Kernels of octets that are wrong on a card are named and not used there; `--octets on` uses them
/// nevertheless.
#[test]
fn wrong_kernels_of_octets_are_not_chosen() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("q4_k.gguf").display().to_string();
    make(&model, "q4_k", "q6_k");
    let run = |wrong: &str, more: &[&str]| {
        let wrong = &format!("card=small ordered wrong=proj_add__q4_k__{wrong}");
        let output = sterna(wrong, &[&RUN[..], &["--backend", "cuda", "-m", &model], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (tested, stderr) = run("octets16", &[]);
    let want = "kernels of octets not used: stage proj_add over 16 rows of this model differs by ";
    assert!(stderr.contains(want), "{stderr}");
    let no_test = ["--no-self-test"];
    assert_eq!(run("octets16", &no_test).0, tested, "without a self-test the usual kernels run");
    assert_ne!(run("octets16", &[&no_test[..], &["--octets", "on"]].concat()).0, tested);
    let (_, stderr) = run("octets_many", &[]);
    let want =
        "kernels of octets for prompts not used: stage proj_add over 128 rows of this model differs by ";
    assert!(stderr.contains(want), "{stderr}");
}

/// Writes a model of two layers with matrices of type `ty` and an embedding and head of type `head_ty`.
fn make(model: &str, ty: &str, head_ty: &str) {
    let shape = ["synth", "--preset", "tiny-moe", "--ffn-dim", "256"];
    let made = sterna("", &[&shape[..], &["--type", ty, "--head-type", head_ty, model]].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
}

/// Wrong kernels that the demo model does not use, in models that do: for a type, experts, a head, and for a
/// few rows.
#[test]
fn self_test_covers_the_layers_of_the_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("q4_k.gguf").display().to_string();
    make(&model, "q4_k", "q6_k");
    let hybrid = dir.path().join("hybrid.gguf").display().to_string();
    let made = sterna("", &["synth", "--preset", "tiny-hybrid", &hybrid]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    for (wrong, stage) in [
        ("wrong=attn_in__q4_k__dp4a", "attn_in over 1 rows"),
        ("wrong=proj_add__q4_k__few", "proj_add over 4 rows"),
        ("wrong=proj_add__q4_k__codes", "proj_add over 65 rows"),
        ("wrong=experts__q4_k__dp4a", "experts over 1 rows"),
        ("wrong=experts__q4_k__tiles", "experts over 4 rows"),
        ("wrong=logits__q6_k__few", "logits over 4 rows"),
        ("wrong=embed__q6_k", "embed over 1 rows"),
        ("wrong=delta_scan__64", "delta over 32 rows"),
    ] {
        let model = if stage.starts_with("delta") { &hybrid } else { &model };
        let settings = format!("card=small {wrong}");
        let refused = sterna(&settings, &[&RUN[..], &["--backend", "cuda", "-m", model]].concat());
        let stderr = text(&refused.stderr);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{wrong}: {stderr}");
        let want = format!("self-test: stage {stage} of this model differs by ");
        assert!(stderr.contains(&want), "{wrong}: {stderr}");
    }
    let passed =
        sterna("card=small ordered", &[&RUN[..], &["--backend", "cuda", "-m", &hybrid, "-n", "1"]].concat());
    assert!(text(&passed.stderr).contains("passed a self-test"), "{}", text(&passed.stderr));
    if has_demo() {
        let passed =
            sterna("card=small wrong=proj_add__q4_k__dp4a", &[&RUN[..], &["--backend", "cuda"]].concat());
        assert!(passed.status.success(), "{}", text(&passed.stderr));
    }
}

/// One kernel is wrong, always or only in graphs: the error names the stage, and `auto` continues without the
/// card.
#[test]
fn cards_with_wrong_results_are_not_used() {
    if !has_demo() {
        return;
    }
    for (wrong, error) in [
        ("card=small wrong=attend__f16", "self-test: stage attend over 1 rows of this model differs by "),
        ("card=small wrong=ffn_in__i2_s@graph", " after whole steps: "),
    ] {
        let run = |backend| sterna(wrong, &[&RUN[..], &["--backend", backend]].concat());
        let refused = run("cuda");
        let stderr = text(&refused.stderr);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{stderr}");
        assert!(stderr.contains(error) && stderr.contains("--no-self-test"), "{stderr}");
        let passed_over = run("auto");
        let stderr = text(&passed_over.stderr);
        assert!(passed_over.status.success(), "{stderr}");
        assert!(stderr.contains(error) && stderr.contains("trying the next backend"), "{stderr}");
        let want = greedy("", "cpu", &[]).expect("the CPU runs it");
        assert_eq!(text(&passed_over.stdout), want);
        assert_ne!(greedy(wrong, "cuda", &[]).as_ref(), Ok(&want), "--no-self-test uses the card");
    }
}

/// Runs tests of other files with the stand-in's card instead of the CUDA kernels on the CPU.
#[test]
fn on_the_stand_in_other_tests_pass() {
    tests("card=rtx-3060 seed=5", "stage_diff::cuda", 1);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn on_the_stand_in_kernels_of_codes_pass() {
    tests("card=rtx-3060 prompt", "kv_codes::kernels", 1);
}

#[test]
fn on_the_stand_in_replays_match_the_stages() {
    tests("card=rtx-3060 card=rtx-3060 seed=1", "stand_in::child::", 4);
}

/// On cards that start kernels early.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn on_the_stand_in_replays_with_early_kernels_match_the_stages() {
    tests("card=h100 card=h100 seed=1", "stand_in::child::", 4);
}

#[test]
fn on_the_stand_in_rules_are_enforced() {
    tests("card=h100 card=rtx-3060 card=small pinned=64", "stand_in::rules::", 10);
}

/// A small card gets a shorter context or a smaller KV cache that fits, and a line on stderr describes it.
#[test]
fn fit_shrinks_the_context_or_the_cache() {
    if !has_demo() {
        return;
    }
    let run = |memory: u32, more: &[&str]| {
        let common = ["--no-self-test", "--backend", "cuda", "--fit-target", "0", "--fit-ctx", "64", "-v"];
        let common = [&common[..], &["-n", "2"]].concat();
        let output = sterna(&format!("memory={memory}"), &[&RUN[..], &common[..], more].concat());
        let stderr = text(&output.stderr);
        assert!(output.status.success(), "{memory} MiB, {more:?}: {stderr}");
        (text(&output.stdout), stderr)
    };
    let (usual, stderr) = run(4096, &[]);
    assert!(!stderr.contains("--fit"), "{stderr}");
    // Buffers of 2048 positions and the graphs take 318 MiB.
    let (fitted, stderr) = run(305, &["--fit-codecs", "f16"]);
    assert!(stderr.contains("--fit chose a context of") && stderr.contains("instead of 2048: "), "{stderr}");
    assert_eq!(fitted, usual);
    let (_, stderr) = run(309, &["-c", "1024"]);
    assert!(stderr.contains("--fit chose a KV cache of q8_0 instead of f16"), "{stderr}");
    assert!(stderr.contains("keys q8_0, values q8_0"), "{stderr}");
    // Explicit flags are not changed; with `off` nothing is.
    let (_, stderr) = run(309, &["-c", "1024", "--kv-cache-type", "f16"]);
    assert!(stderr.contains("--fit: a KV cache of 1024 positions does not fit on this device"), "{stderr}");
    assert!(stderr.contains("with its memory reserve; -c "), "{stderr}");
    let (_, stderr) = run(274, &["--fit", "off"]);
    assert!(!stderr.contains("--fit") && stderr.contains("keys f16"), "{stderr}");
}

/// A model that does not fit on a card runs there with streamed layers, and generates the same text.
#[test]
fn fit_streams_models_that_do_not_fit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    let file = file.to_str().unwrap();
    let shape = ["--layers", "8", "--dim", "256", "--ffn-dim", "1024", "--heads", "4", "--kv-heads", "2"];
    let ty = ["--head-dim", "64", "--type", "q8_0"];
    let made = sterna("memory=64", &[&["synth", "--preset", "tiny"][..], &shape, &ty, &[file]].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
    let run = |memory: u32, more: &[&str]| {
        let what = ["run", "-m", file, "-p", "Once", "-n", "2", "--temp", "0", "-b", "32", "-c", "64", "-v"];
        let how = ["--backend", "cuda", "--no-self-test", "--fit-target", "0"];
        sterna(&format!("memory={memory}"), &[&what[..], &how, more].concat())
    };
    let [whole, streamed, off] = [run(64, &[]), run(8, &[]), run(8, &["--fit", "off"])];
    assert!(whole.status.success() && streamed.status.success(), "{}", text(&streamed.stderr));
    let stderr = text(&streamed.stderr);
    assert!(
        stderr.contains("--fit chose -ngl auto") && stderr.contains("of 8 layers stay on the GPU"),
        "{stderr}"
    );
    assert!(!text(&whole.stderr).contains("-ngl"));
    assert_eq!(streamed.stdout, whole.stdout);
    assert!(!off.status.success() && text(&off.stderr).contains("8.0 MiB free"), "{}", text(&off.stderr));
}
