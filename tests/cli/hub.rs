//! `sterna pull`, `-hf`, `list`, `rm` and `verify` as a user types them, against a local test hub.
#![cfg(all(feature = "cli", feature = "hub"))]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::hub::{HubFault, HubRepo, HubServer, etag};

use super::program::{refused, succeeded, text};

const COMMIT: &str = "a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1";
const NAME: &str = "a/b";

struct Case {
    server: HubServer,
    home: tempfile::TempDir,
    model: Vec<u8>,
}

impl Case {
    /// A hub with the tiny BitNet as `a/b:I2_S`, next to another file.
    fn new() -> Self {
        let (server, model) = (HubServer::start(), std::fs::read(file()).unwrap());
        let files: [(&str, &[u8]); 3] =
            [("README.md", b"text"), ("tiny-Q4_0.gguf", b"not one"), ("tiny-i2_s.gguf", &model)];
        server.add(HubRepo::new(NAME, COMMIT, &files));
        Self { server, home: tempfile::tempdir().unwrap(), model }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sterna"));
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("HF_")
                || name.starts_with("LLAMA_ARG_")
                || name.to_lowercase().ends_with("_proxy")
            {
                command.env_remove(name);
            }
        }
        command.env("HF_ENDPOINT", self.server.endpoint()).env("HF_HOME", self.home.path()).args(args);
        command
    }

    fn sterna(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    fn spawn(&self, args: &[&str]) -> Child {
        self.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn snapshot(&self) -> PathBuf {
        self.home.path().join(format!("hub/models--a--b/snapshots/{COMMIT}/tiny-i2_s.gguf"))
    }

    fn part(&self) -> PathBuf {
        self.home.path().join(format!("hub/models--a--b/blobs/{}.sterna-part", etag(&self.model, true)))
    }

    /// Waits until `n` bytes of the model have been downloaded.
    fn wait_for(&self, n: usize) {
        let begun = Instant::now();
        while std::fs::metadata(self.part()).map_or(0, |part| part.len()) < n as u64 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the part does not grow");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn assert_downloaded(&self) {
        assert!(std::fs::read(self.snapshot()).unwrap() == self.model);
        self.server.no_token_leaked();
    }
}

fn file() -> PathBuf {
    support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data")
}

const GREEDY: [&str; 8] = ["-p", "You may copy", "-n", "8", "--temp", "0", "-t", "1"];

#[test]
fn pulled_model_runs_like_the_local_file() {
    let case = Case::new();
    let (dry, _) = succeeded(&case.sterna(&["pull", NAME, "--dry-run"]));
    assert!(dry.contains(COMMIT) && dry.contains("tiny-i2_s.gguf") && !case.home.path().join("hub").exists());
    let (path, stderr) = succeeded(&case.sterna(&["pull", NAME]));
    assert_eq!(Path::new(path.trim_end()), case.snapshot());
    assert!(stderr.contains("pulling a/b at a1a1a1a1: tiny-i2_s.gguf"), "{stderr}");
    case.assert_downloaded();

    let of_file = case.sterna(&[&["run", "-m", file().to_str().unwrap()], &GREEDY[..]].concat());
    let (said, _) = succeeded(&of_file);
    assert!(!said.is_empty());
    for model in [
        &["-hf", NAME][..],
        &["-hf", "a/b:I2_S", "--offline"],
        &["-hf", NAME, "-hff", "tiny-i2_s.gguf"],
        &["-m", "hf.co/a/b:i2_s"],
        &["-m", "hf://a/b@main/tiny-i2_s.gguf"],
        &["-m", path.trim_end()],
    ] {
        let output = case.sterna(&[&["run"], model, &GREEDY[..]].concat());
        assert_eq!(succeeded(&output).0, said, "{model:?}");
    }
    let by_variable = case.command(&[&["run"], &GREEDY[..]].concat()).env("LLAMA_ARG_HF_REPO", NAME).output();
    assert_eq!(succeeded(&by_variable.unwrap()).0, said);
    // The other commands that take a model.
    let (ids, _) = succeeded(&case.sterna(&["tokenize", "-hf", NAME, "--ids", "You"]));
    assert!(ids.starts_with('['));
    let (shown, _) = succeeded(&case.sterna(&["inspect", "-hf", NAME]));
    assert!(shown.contains("bitnet"));
    let (shown, _) = succeeded(&case.sterna(&["inspect", "hf.co/a/b:i2_s"]));
    assert!(shown.contains("bitnet"));
    let (_, stderr) =
        succeeded(&case.sterna(&["bench", "-hf", NAME, "-p", "4", "-n", "1", "-r", "1", "-t", "1"]));
    assert!(!stderr.contains("pulling"));
}

#[test]
fn killed_pull_resumes() {
    let case = Case::new();
    case.server.fault("/cdn/", HubFault::Stall(5000));
    let mut child = case.spawn(&["pull", NAME]);
    case.wait_for(5000);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!case.snapshot().exists());
    let (_, stderr) = succeeded(&case.sterna(&["pull", NAME]));
    assert!(stderr.contains("resuming at"), "{stderr}");
    case.assert_downloaded();
    let last = case.server.requests().pop().unwrap();
    assert_eq!(last.range.as_deref(), Some("bytes=5000-"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_partial_download() {
    for args in [&["pull", NAME][..], &[&["run", "-hf", NAME], &GREEDY[..]].concat()] {
        let case = Case::new();
        case.server.fault("/cdn/", HubFault::Stall(5000));
        let child = case.spawn(args);
        case.wait_for(5000);
        // Shells start commands in the background with SIGINT ignored; SIGTERM does the same.
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        let stderr = text(&output.stderr);
        assert!(stderr.contains("continues the download"), "{stderr}");
        assert_eq!(std::fs::metadata(case.part()).unwrap().len(), 5000);
        succeeded(&case.sterna(&["pull", NAME]));
        case.assert_downloaded();
    }
}

#[test]
fn two_processes_download_once() {
    let case = Case::new();
    let release = Arc::new(AtomicBool::new(false));
    case.server.fault("/cdn/", HubFault::Until(release.clone()));
    let first = case.spawn(&["pull", NAME]);
    case.wait_for(1);
    let mut second = case.spawn(&["pull", NAME]);
    let mut lines = BufReader::new(second.stderr.take().unwrap()).lines().map(Result::unwrap);
    let waits = lines.any(|line| line.contains("another process"));
    release.store(true, Ordering::Relaxed);
    assert!(waits, "the second process did not wait");
    lines.for_each(drop);
    let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());
    assert_eq!(succeeded(&first).0, succeeded(&second).0);
    assert_eq!(case.server.requests().iter().filter(|request| request.of_cdn).count(), 1);
    case.assert_downloaded();
}

#[test]
fn failures_are_one_message_with_a_remedy() {
    let case = Case::new();
    let gated = HubRepo::new("a/gated", COMMIT, &[("m.gguf", b"GGUF")]);
    case.server.add(HubRepo { token: Some("hf_word".to_owned()), gated: true, ..gated });
    case.server.add(HubRepo::new("a/none", COMMIT, &[("model.safetensors", b"x"), ("config.json", b"{}")]));
    for (args, words) in [
        (&["pull", "a/lacking"][..], &["a/lacking is not on 127.0.0.1", "HF_TOKEN or --hf-token"][..]),
        (&["pull", "a/gated"], &["gated: accept its terms on http", "a/gated"]),
        (&["pull", "a/gated", "-hft", "hf_other"], &["the token that was sent has no access"]),
        (&["pull", "a/none"], &["no GGUF file", "--checkpoint", "sterna convert"]),
        (&["pull", "a/b:Q9_9"], &["no GGUF file with the tag Q9_9", "tiny-Q4_0.gguf", "tiny-i2_s.gguf"]),
        (&["pull", "a/b/x.gguf"], &["no file x.gguf", "tiny-i2_s.gguf"]),
        (&["pull", NAME, "--revision", "v9"], &["no revision `v9`"]),
        (&["pull", "nonsense"], &["USER/REPOSITORY"]),
        (&["pull", NAME, "--offline"], &["not in the cache", "--offline (HF_HUB_OFFLINE)"]),
        (&["run", "-hf", NAME, "--offline", "-p", "x"], &["not in the cache"]),
        (&["run", "-hf", NAME, "-m", "x.gguf", "-p", "x"], &["--hf-repo"]),
        (&["run", "-hff", "x.gguf", "-p", "x"], &["--hf-file needs --hf-repo"]),
        (&["rm", NAME], &["a/b is not in the cache", "sterna list"]),
    ] {
        let stderr = refused(&case.sterna(args), words);
        assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
        assert!(!stderr.contains("hf_other") && !stderr.contains("Signature"), "{stderr}");
    }
    // A file that is corrupted on the way.
    case.server.fault("/cdn/", HubFault::Flip(77));
    refused(&case.sterna(&["pull", NAME]), &["tiny-i2_s.gguf: its hash is", "the file was discarded"]);
    assert!(!case.snapshot().exists());
}

#[test]
fn run_works_from_the_cache_without_a_network() {
    let case = Case::new();
    let offline = |args: &[&str]| {
        let mut command = case.command(args);
        command.env("HF_ENDPOINT", "http://127.0.0.1:9").stdin(Stdio::null()).output().unwrap()
    };
    refused(
        &offline(&["run", "-hf", NAME, "-p", "x"]),
        &["127.0.0.1:9 cannot be reached", "not in the cache"],
    );
    succeeded(&case.sterna(&["pull", NAME]));
    let (_, stderr) = succeeded(&offline(&[&["run", "-hf", NAME], &GREEDY[..]].concat()));
    assert!(stderr.contains("cannot be reached") && stderr.contains("from the cache"), "{stderr}");
    refused(&offline(&["pull", NAME]), &["cannot be reached", "The cache still has"]);
}

#[test]
fn cache_is_listed_verified_and_cleared() {
    let case = Case::new();
    let (stdout, stderr) = succeeded(&case.sterna(&["list"]));
    assert!(stdout.is_empty() && stderr.contains("sterna pull"), "{stderr}");
    succeeded(&case.sterna(&["pull", NAME]));
    succeeded(&case.sterna(&["pull", "a/b:Q4_0"]));
    let (listed, _) = succeeded(&case.sterna(&["ls"]));
    assert!(listed.contains("a/b/tiny-Q4_0.gguf") && listed.contains("a/b/tiny-i2_s.gguf"), "{listed}");
    let (json, _) = succeeded(&case.sterna(&["list", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[1]["size"], case.model.len());
    let (verified, _) = succeeded(&case.sterna(&["verify"]));
    assert_eq!(verified.matches(": ok").count(), 2, "{verified}");
    let mut broken = case.model.clone();
    broken[1000] ^= 1;
    std::fs::write(case.snapshot(), broken).unwrap();
    let output = case.sterna(&["verify", "a/b:I2_S"]);
    assert!(text(&output.stdout).contains("BROKEN"));
    refused(&output, &["1 file(s) are broken", "sterna rm"]);
    succeeded(&case.sterna(&["rm", "a/b:i2_s", "--dry-run"]));
    assert!(case.snapshot().exists());
    let (_, stderr) = succeeded(&case.sterna(&["rm", "a/b:i2_s"]));
    assert!(stderr.contains("1 file(s) removed"), "{stderr}");
    succeeded(&case.sterna(&["pull", NAME]));
    case.assert_downloaded();
    // A link whose target was removed.
    #[cfg(unix)]
    {
        std::fs::remove_file(case.snapshot().canonicalize().unwrap()).unwrap();
        let output = case.sterna(&["verify"]);
        assert!(text(&output.stdout).contains("a/b/tiny-i2_s.gguf: MISSING"), "{}", text(&output.stdout));
        refused(&output, &["1 file(s) are broken or missing", "sterna pull"]);
        succeeded(&case.sterna(&["pull", NAME]));
        case.assert_downloaded();
    }
    succeeded(&case.sterna(&["rm", NAME]));
    assert!(!case.home.path().join("hub/models--a--b").exists());
}

/// A disk of 64 KiB, then a read-only one. It needs the right to mount.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_fails_pull_until_space_is_freed() {
    let case = Case::new();
    let hub = case.home.path().join("hub");
    std::fs::create_dir_all(&hub).unwrap();
    let mount = |options: &str| {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&hub).output();
        mount.is_ok_and(|output| output.status.success())
    };
    assert!(case.model.len() > 100_000, "the model fits a small disk");
    if !mount("size=64k") {
        return support::print_note(format_args!("full disk: not tried, this account may not mount one"));
    }
    let unmounted = UnmountOnDrop(hub.clone());
    let said = refused(&case.sterna(&["pull", NAME]), &["are free; free some space", "HF_HUB_CACHE"]);
    assert!(!case.snapshot().exists(), "{said}");
    assert!(mount("size=64m,remount"));
    // There is room when the download starts, but not when the data arrives.
    case.server.fault("/cdn/", HubFault::Slow(case.model.len() / 60 + 1));
    let child = case.spawn(&["pull", NAME]);
    case.wait_for(1);
    std::fs::write(hub.join("other"), vec![1; 80 << 20]).unwrap_err();
    let output = child.wait_with_output().unwrap();
    refused(&output, &["bytes", "HF_HUB_CACHE"]);
    assert!(!case.snapshot().exists());
    std::fs::remove_file(hub.join("other")).unwrap();
    succeeded(&case.sterna(&["pull", NAME]));
    case.assert_downloaded();
    // A read-only cache works if it has all files.
    assert!(mount("remount,ro"));
    succeeded(&case.sterna(&["pull", NAME]));
    refused(&case.sterna(&["pull", "a/b:Q4_0"]), &["Read-only", "HF_HUB_CACHE"]);
    drop(unmounted);
}

/// Unmounts a disk when the test ends.
#[cfg(target_os = "linux")]
struct UnmountOnDrop(PathBuf);

#[cfg(target_os = "linux")]
impl Drop for UnmountOnDrop {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn plan_reads_only_the_header_from_the_hub() {
    let case = Case::new();
    let plan = |args: &[&str]| {
        let output = case.sterna(&[&["plan", "--json", "--vram", "16G"], args].concat());
        serde_json::from_str::<serde_json::Value>(&succeeded(&output).0).unwrap()
    };
    let remote = plan(&["-hf", NAME]);
    let ranges: Vec<_> = case.server.requests().into_iter().filter_map(|request| request.range).collect();
    assert!(!ranges.is_empty() && ranges.iter().all(|range| range.starts_with("bytes=0-")), "{ranges:?}");
    let asked = |range: &String| range["bytes=0-".len()..].parse::<usize>().unwrap() + 1;
    assert!(ranges.iter().all(|range| asked(range) < case.model.len()), "{ranges:?}");
    assert!(!case.snapshot().exists() && !case.part().exists());
    assert_eq!(remote["model"]["file"], "a/b/tiny-i2_s.gguf", "{remote}");
    let mut local = plan(&["-m", file().to_str().unwrap()]);
    local["model"]["file"] = remote["model"]["file"].clone();
    assert_eq!(remote, local);
}

/// The first commands of a new user: pull, plan, run.
#[test]
fn pull_plan_and_run_give_text() {
    let case = Case::new();
    let (path, _) = succeeded(&case.sterna(&["pull", NAME]));
    let (plan, _) = succeeded(&case.sterna(&["plan", "-hf", NAME, "--vram", "16G"]));
    assert!(plan.contains("free: fits") && plan.contains("best"), "{plan}");
    let story = |args: &[&str]| {
        let common = ["run", "-p", "Once", "-n", "8", "-c", "128", "-t", "1", "--temp", "0"];
        succeeded(&case.sterna(&[&common, args].concat())).0
    };
    let said = story(&["-hf", NAME, "--offline"]);
    assert!(!said.is_empty() && said == story(&["-m", path.trim()]));
}

#[cfg(feature = "convert")]
#[test]
fn hub_checkpoint_converts_like_its_folder() {
    let case = Case::new();
    let folder = support::golden("hf/bitnet-packed").expect("a checkpoint in tests/data");
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let files: Vec<_> =
        names(&folder).into_iter().map(|name| (std::fs::read(folder.join(&name)).unwrap(), name)).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(bytes, name)| (name.as_str(), &**bytes)).collect();
    case.server.add(HubRepo::new("c/d", COMMIT, &files));
    let [remote, local] = ["remote.gguf", "local.gguf"].map(|name| case.home.path().join(name));
    let convert = |from: &str, to: &Path| case.sterna(&["convert", from, to.to_str().unwrap(), "-t", "1"]);
    succeeded(&convert("c/d", &remote));
    succeeded(&convert(folder.to_str().unwrap(), &local));
    let [remote, local] = [remote, local].map(|path| sterna::gguf::Gguf::open(&path).unwrap());
    assert_eq!(remote.tensors().len(), local.tensors().len());
    for (a, b) in remote.tensors().iter().zip(local.tensors()) {
        assert_eq!((&a.name, &a.dims, a.type_id), (&b.name, &b.dims, b.type_id));
        assert!(remote.host_tensor(a).unwrap().bytes == local.host_tensor(b).unwrap().bytes, "{}", a.name);
    }
    refused(&convert("no/where", &case.home.path().join("x.gguf")), &["no such folder", "no/where"]);
}

#[cfg(feature = "serve")]
#[test]
fn server_downloads_its_models_first() {
    use std::io::{BufRead, BufReader, Read, Write};

    for args in [&["-hf", NAME][..], &["--models", "small=hf.co/a/b:I2_S"]] {
        let case = Case::new();
        let mut child = case.spawn(&[&["serve", "--port", "0", "-t", "1"], args].concat());
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address =
            lines.find_map(|line| Some(line.unwrap().strip_prefix("listening on http://")?.to_owned()));
        case.assert_downloaded();
        let address = address.expect("the server listens");
        let ask = || {
            let mut stream = std::net::TcpStream::connect(&address).unwrap();
            let request = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(request).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        // It answers 503 while it loads.
        let mut answers = std::iter::repeat_with(ask);
        let answer = answers.find(|answer| !answer.starts_with("HTTP/1.1 503")).unwrap();
        let name = if args[0] == "-hf" { "tiny" } else { "\"small\"" };
        assert!(answer.contains("200 OK") && answer.contains(name), "{answer}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A model at a URL, whole or split, on servers with and without range requests.
#[test]
fn inspect_and_plan_read_a_model_by_url() {
    let case = Case::new();
    let whole = sterna::gguf::Gguf::from_bytes(case.model.clone().into()).unwrap();
    let parts: Vec<Vec<u8>> =
        sterna::gguf::Rewrite::parts(&whole, sterna::gguf::PartLimit::Tensors(9), false)
            .unwrap()
            .into_iter()
            .map(|part| {
                let mut out = Vec::new();
                part.write(&mut out, |_| std::ops::ControlFlow::Continue(())).unwrap();
                out
            })
            .collect();
    let names: Vec<String> =
        (1..=parts.len()).map(|n| sterna::gguf::part_name("s", n, parts.len())).collect();
    let files: Vec<(&str, &[u8])> =
        names.iter().map(String::as_str).zip(parts.iter().map(Vec::as_slice)).collect();
    case.server.add(HubRepo::new("a/split", COMMIT, &files));
    let at = |path: &str| format!("{}/{path}", case.server.endpoint());
    let (one, split) =
        (at("a/b/resolve/main/tiny-i2_s.gguf"), at(&format!("a/split/resolve/main/{}", names[1])));
    let json = |args: &[&str]| -> serde_json::Value {
        serde_json::from_str(&succeeded(&case.sterna(&[args, &["--json"]].concat())).0).unwrap()
    };
    let path = file();
    let path = path.to_str().unwrap();
    let want = json(&["inspect", path]);
    for ranges in [true, false] {
        if !ranges {
            (0..2).for_each(|_| case.server.fault("tiny-i2_s", HubFault::NoRange));
        }
        let got = json(&["inspect", &one]);
        assert_eq!(got["file"], one.as_str());
        for key in ["tensors", "metadata", "types", "backends", "dialect", "file_bytes"] {
            assert_eq!(got[key], want[key], "{key}");
        }
    }
    assert_eq!(json(&["inspect", &split])["tensors"].as_array().unwrap().len(), whole.tensors().len());
    let planned = |model: &str| {
        let mut plan = json(&["plan", "-m", model, "--vram", "16G"]);
        for key in ["model", "source", "file", "file_bytes"] {
            plan.as_object_mut().unwrap().remove(key);
        }
        plan
    };
    assert_eq!(planned(&one), planned(path));
    assert_eq!(planned(&split), planned(path));
    assert!(!case.home.path().join("hub").exists(), "nothing is cached");
    case.server.no_token_leaked();

    refused(&case.sterna(&["run", "-m", &one, "-p", "You"]), &[&one, "download it", "sterna inspect"]);
    refused(&case.sterna(&["inspect", &at("a/b/resolve/main/none.gguf")]), &["none.gguf"]);
    refused(&case.sterna(&["inspect", &one, "--offline"]), &["--offline"]);
    refused(&case.sterna(&["inspect", &at("a/b/resolve/main/tiny-Q4_0.gguf")]), &["not a GGUF file"]);
}

/// The program retries for a while.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn unreachable_url_is_named_in_the_error() {
    let case = Case::new();
    refused(&case.sterna(&["plan", "-m", "http://127.0.0.1:1/x.gguf", "--vram", "16G"]), &["127.0.0.1:1"]);
}
