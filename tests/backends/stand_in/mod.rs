//! `driver/real` on the CUDA driver of `tests/stand-in`, which does to it what a card may.
//!
//! The loader finds that driver by the environment that a process starts with. So each test here starts one:
//! the program, or this binary again with one of the tests in [`child`], or with tests of other files, where
//! its card takes the place of the CUDA kernels on the processor ([`support::case::simt`]).

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

mod child;
mod rules;
mod streamed;

/// The folder where a program looks for `libcuda.so` and finds the stand-in.
fn folder() -> PathBuf {
    let exe = std::env::current_exe().expect("this binary");
    let library = exe.with_file_name("libstand_in_cuda.so");
    assert!(library.exists(), "{library:?} is built with the tests");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
    std::fs::create_dir_all(&folder).expect("a folder for tests");
    for name in ["libcuda.so", "libcuda.so.1"] {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|to| to == library) {
            continue;
        }
        // Another process or thread may be making the same.
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

/// What the program says, whose caches are in no folder.
fn sterna(settings: &str, args: &[&str]) -> Output {
    sterna_with_cache(settings, Path::new("/dev/null"), args)
}

fn sterna_with_cache(settings: &str, cache: &Path, args: &[&str]) -> Output {
    let mut command = on_stand_in(settings, env!("CARGO_BIN_EXE_sterna"));
    command.env("XDG_CACHE_HOME", cache).args(args).output().expect("sterna runs")
}

/// Runs tests of this binary whose names hold that: `least` of them or more.
fn tests(settings: &str, of: &str, least: usize) {
    let exe = std::env::current_exe().expect("this binary");
    let args = ["--include-ignored", "--test-threads", "1", "--skip", "stand_in::on_the_stand_in"];
    let output = on_stand_in(settings, exe).arg(of).args(args).output().expect("this binary runs");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{settings}:\n{said}");
    let passed = said.split("test result: ok. ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    assert!(passed.is_some_and(|passed: usize| passed >= least), "{settings}:\n{said}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Greedy, so that the card picks and runs ahead.
const RUN: [&str; 11] =
    ["run", "-p", "Once upon a time", "-n", "6", "--temp", "0", "--repeat-penalty", "1", "-t", "2"];

/// Greedy text of the demo model, or what was wrong.
fn greedy(settings: &str, backend: &str, more: &[&str]) -> Result<String, String> {
    let output = sterna(settings, &[&RUN[..], &["--no-self-test", "--backend", backend], more].concat());
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn has_demo() -> bool {
    let has = sterna::demo::model().is_some();
    if !has {
        support::say(format_args!("not run: this build has no demo model (feature demo)"));
    }
    has
}

/// Settings of the stand-in, the backend whose text it is, flags of both, and flags of the card.
type OnACard = (&'static str, &'static str, &'static [&'static str], &'static [&'static str]);

/// A cache of blocks has the text of the same kernels without a driver, because they round queries where the
/// CPU does not.
const BLOCKS: &[&str] = &["--kv-cache-type", "q8_0"];

#[test]
fn texts_are_those_of_the_cpu() {
    say_the_same(&[
        ("card=rtx-5080", "cpu", &[], &[]),
        ("card=small", "cuda-simt", BLOCKS, &[]),
        ("card=small card=rtx-3060", "cpu", &[], &["--split-mode", "layer"]),
        ("card=rtx-3060 seed=4", "cpu", &[], &["-ngl", "0", "--stream-slots", "1"]),
    ]);
}

/// On cards that start kernels early and on one that does not, with threads in another order, and with a
/// driver that works at once.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn texts_are_those_of_the_cpu_on_every_card() {
    say_the_same(&[
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

fn say_the_same(cases: &[OnACard]) {
    if !has_demo() {
        return;
    }
    for &(settings, like, both, on_card) in cases {
        let want = greedy("", like, both).expect("a backend of this build");
        assert!(want.len() > 10, "{want}");
        let got = greedy(settings, "cuda", &[both, on_card].concat());
        assert_eq!(got.as_deref(), Ok(want.as_str()), "{settings} {both:?} {on_card:?}");
    }
}

/// A feed-forward layer as wide as Mistral Small's, in front of a card that has no room for such a row.
#[test]
fn a_model_of_long_rows_runs() {
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

/// Cards that misreport the shared memory of a block, as drivers have: this one has 99 KiB.
#[test]
fn shared_memory_that_no_card_has_is_not_believed() {
    if !has_demo() {
        return;
    }
    let want = greedy("", "cpu", &[]);
    for bytes in ["0", "2147483647"] {
        assert_eq!(greedy(&format!("card=rtx-5080 optin={bytes}"), "cuda", &[]), want, "{bytes}");
    }
}

#[test]
fn cards_are_listed_and_chosen_by_number() {
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
        let said = greedy(both, "cuda", &["--device", "2"]).unwrap_err();
        assert!(said.contains("there is no GPU 2; this machine has 2"), "{said}");
        let said = greedy(both, "cuda", &["-sm", "layer", "--device", "0,2"]).unwrap_err();
        assert!(said.contains("there is no GPU 2; this machine has 2"), "{said}");
        let said = greedy(both, "cuda", &["--device", "0,1"]).unwrap_err();
        assert!(said.contains("--device: several GPUs need a split mode of layer"), "{said}");
    }
}

/// By stamps in recordings and by events around stages, each kind of stage of a step is timed.
#[test]
fn stages_are_timed_on_a_card() {
    if !has_demo() {
        return;
    }
    for how in ["--profile", "--profile=events"] {
        let args = ["bench", "--backend", "cuda", "--no-self-test", "-p", "0", "-n", "1", "-r", "1", how];
        let output = sterna("card=h100", &args);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{how}: {said}");
        for kind in ["embed", "attn_in", "attend", "proj_add", "ffn_in", "logits"] {
            assert!(said.contains(kind), "{how}: no {kind} in {said}");
        }
    }
}

#[test]
fn a_driver_without_cards_is_said_to_find_none() {
    let said = greedy("card=none", "cuda", &[]).unwrap_err();
    assert!(said.contains("the NVIDIA driver finds no GPU"), "{said}");
}

/// The machine's own driver would be found otherwise.
#[test]
fn a_machine_without_a_driver_is_said_to_have_none() {
    let own = Command::new(env!("CARGO_BIN_EXE_sterna")).arg("devices").output().expect("sterna runs");
    let listed = text(&own.stdout);
    let has_own = listed.lines().any(|line| line.starts_with("cuda: 0: "));
    assert!(has_own || listed.contains("cuda: "), "{listed}");
    assert!(has_own || listed.contains("libcuda was not found") || listed.contains("no GPU"), "{listed}");
}

/// What the driver gives out is too little for the model, which is known before anything is uploaded.
#[test]
fn too_little_memory_is_said_with_the_way_out() {
    if !has_demo() {
        return;
    }
    let said = greedy("memory=20", "cuda", &["-c", "100000"]).unwrap_err();
    for part in ["free", "-c"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    // Two such cards have room together.
    let long = ["-c", "60000"];
    assert!(greedy("card=small memory=250", "cuda", &long).unwrap_err().contains("free"));
    let two = greedy("card=small card=small memory=250", "cuda", &[&long[..], &["-sm", "layer"]].concat());
    assert!(two.is_ok(), "{two:?}");
    // With the way out that was said there is room.
    let said = greedy("memory=20", "auto", &[]).unwrap_err();
    assert!(said.contains("20.0 MiB free; a smaller --ctx-size takes less"), "{said}");
    let passed = greedy("memory=20", "auto", &["-c", "256"]);
    assert!(passed.is_ok(), "{passed:?}");
}

/// A card that is lost ends the run with the call that found it gone, wherever that happens.
#[test]
fn a_lost_card_ends_the_run() {
    if !has_demo() {
        return;
    }
    for call in ["cuMemAlloc_v2@3", "cuGraphLaunch@4", "cuEventSynchronize@6", "cuStreamEndCapture@1"] {
        let said = greedy(&format!("fail={call}"), "cuda", &[]).unwrap_err();
        let (name, _) = call.split_once('@').expect("a call");
        let name = name.trim_end_matches("_v2");
        assert!(said.contains(name) && said.contains("CUDA_ERROR_UNKNOWN"), "{call}: {said}");
        assert!(!said.contains("panicked"), "{call}: {said}");
    }
}

/// A driver older than the kernels' toolkit is named with both versions, and `auto` does without the card.
#[test]
fn an_old_driver_is_named_with_the_way_out() {
    let listed = text(&sterna("driver=11.8", &["devices"]).stdout);
    if listed.contains("the test driver") {
        support::say(format_args!("not run: the kernels are of no toolkit (scripts/setup-cuda)"));
        return;
    }
    let said = greedy("driver=11.8", "cuda", &[]).unwrap_err();
    for part in ["the driver is for CUDA 11.8, older than the CUDA ", "install a driver for CUDA "] {
        assert!(said.contains(part) && listed.contains(part), "{said}\n{listed}");
    }
    assert!(greedy("driver=11.8", "auto", &["-n", "1"]).is_ok());
}

/// The first run of a card begins with a self-test, and the next one does not; another driver, cache or kind
/// of layer is tested again.
#[test]
fn a_card_is_trusted_after_it_has_proven_itself() {
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
    // The same head re-encoded, and another model.
    assert!(tested("card=small ordered", &["--head-type", "q8_0"]));
    let model = dir.path().join("q4_k.gguf").display().to_string();
    make(&model, "q4_k", "q6_k");
    assert!(tested("card=small ordered", &["-m", &model]));
    assert!(!tested("card=small ordered", &["-m", &model]));
}

/// A model of two layers whose matrices have that type, and its embedding and head.
fn make(model: &str, ty: &str, head_ty: &str) {
    let shape = ["synth", "--preset", "tiny-moe", "--ffn-dim", "256"];
    let made = sterna("", &[&shape[..], &["--type", ty, "--head-type", head_ty, model]].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
}

/// Kernels that the demo model does not have, in a model that has them: of a type, of experts, of a head, and
/// for a few rows alone.
#[test]
fn a_card_is_tried_with_the_layers_of_the_model() {
    let dir = tempfile::tempdir().expect("a folder");
    let model = dir.path().join("q4_k.gguf").display().to_string();
    make(&model, "q4_k", "q6_k");
    let hybrid = dir.path().join("hybrid.gguf").display().to_string();
    let made = sterna("", &["synth", "--preset", "tiny-hybrid", &hybrid]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    for (wrong, stage) in [
        ("wrong=attn_in__q4_k__dp4a", "attn_in over 1 rows"),
        ("wrong=proj_add__q4_k__codes", "proj_add over 32 rows"),
        ("wrong=experts__q4_k__dp4a", "experts over 1 rows"),
        ("wrong=experts__q4_k__tiles", "experts over 4 rows"),
        ("wrong=logits__q6_k__few", "logits over 4 rows"),
        ("wrong=embed__q6_k", "embed over 1 rows"),
        ("wrong=delta_scan__64", "delta over 32 rows"),
    ] {
        let model = if stage.starts_with("delta") { &hybrid } else { &model };
        let settings = format!("card=small {wrong}");
        let refused = sterna(&settings, &[&RUN[..], &["--backend", "cuda", "-m", model]].concat());
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{wrong}: {said}");
        let says = format!("self-test: stage {stage} of this model differs by ");
        assert!(said.contains(&says), "{wrong}: {said}");
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

/// One kernel computes something else, always or in recordings alone: the run says which stage it is, and
/// `auto` goes on without the card.
#[test]
fn a_card_that_computes_something_else_is_not_used() {
    if !has_demo() {
        return;
    }
    for (wrong, says) in [
        ("card=small wrong=attend__f16", "self-test: stage attend over 1 rows of this model differs by "),
        ("card=small wrong=ffn_in__i2_s@graph", " after whole steps: "),
    ] {
        let run = |backend| sterna(wrong, &[&RUN[..], &["--backend", backend]].concat());
        let refused = run("cuda");
        let said = text(&refused.stderr);
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{said}");
        assert!(said.contains(says) && said.contains("--no-self-test"), "{said}");
        let passed_over = run("auto");
        let said = text(&passed_over.stderr);
        assert!(passed_over.status.success(), "{said}");
        assert!(said.contains(says) && said.contains("trying the next backend"), "{said}");
        let want = greedy("", "cpu", &[]).expect("the CPU runs it");
        assert_eq!(text(&passed_over.stdout), want);
        assert_ne!(greedy(wrong, "cuda", &[]).as_ref(), Ok(&want), "--no-self-test uses it");
    }
}

/// Tests that hold for every backend, with the stand-in's card in the place of CUDA on the processor.
#[test]
fn on_the_stand_in_other_tests_pass() {
    tests("card=rtx-3060 seed=5", "stage_diff::cuda", 1);
    tests("card=rtx-3060 prompt", "kv_codes::kernels", 1);
}

#[test]
fn on_the_stand_in_replays_are_the_stages() {
    tests("card=rtx-3060 card=rtx-3060 seed=1", "stand_in::child::", 4);
}

/// The same on cards that start kernels early.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn on_the_stand_in_replays_of_early_kernels_are_the_stages() {
    tests("card=h100 card=h100 seed=1", "stand_in::child::", 4);
}

#[test]
fn on_the_stand_in_rules_are_enforced() {
    tests("card=h100 card=rtx-3060 card=small pinned=64", "stand_in::rules::", 10);
}

/// A card that is too small for what is usual gets a context or a cache that fits, and a line says so.
#[test]
fn what_does_not_fit_a_card_is_chosen_smaller() {
    if !has_demo() {
        return;
    }
    let run = |memory: u32, more: &[&str]| {
        let common = ["--no-self-test", "--backend", "cuda", "--fit-target", "0", "--fit-ctx", "64", "-v"];
        let common = [&common[..], &["-n", "2"]].concat();
        let output = sterna(&format!("memory={memory}"), &[&RUN[..], &common[..], more].concat());
        let said = text(&output.stderr);
        assert!(output.status.success(), "{memory} MiB, {more:?}: {said}");
        (text(&output.stdout), said)
    };
    let (usual, said) = run(4096, &[]);
    assert!(!said.contains("--fit"), "{said}");
    // Buffers of 2048 positions and the graphs take 174 MiB.
    let (fitted, said) = run(161, &["--fit-codecs", "f16"]);
    assert!(said.contains("--fit chose a context of") && said.contains("instead of 2048: "), "{said}");
    assert_eq!(fitted, usual);
    let (_, said) = run(165, &["-c", "1024"]);
    assert!(said.contains("--fit chose a KV cache of q8_0 instead of f16"), "{said}");
    assert!(said.contains("keys q8_0, values q8_0"), "{said}");
    // What the user chose stays, whatever it takes; so does everything with `off`.
    let (_, said) = run(165, &["-c", "1024", "--kv-cache-type", "f16"]);
    assert!(said.contains("--fit: a KV cache of 1024 positions does not fit on this device"), "{said}");
    assert!(said.contains("with its memory reserve; -c "), "{said}");
    let (_, said) = run(130, &["--fit", "off"]);
    assert!(!said.contains("--fit") && said.contains("keys f16"), "{said}");
}

/// A model that a card has no room for at all runs there with its layers streamed, with the text that it has
/// whole.
#[test]
fn a_model_without_room_has_its_layers_streamed() {
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
    let said = text(&streamed.stderr);
    assert!(
        said.contains("--fit chose -ngl auto") && said.contains("of 8 layers stay on the card"),
        "{said}"
    );
    assert!(!text(&whole.stderr).contains("-ngl"));
    assert_eq!(streamed.stdout, whole.stdout);
    assert!(!off.status.success() && text(&off.stderr).contains("8.0 MiB free"), "{}", text(&off.stderr));
}
