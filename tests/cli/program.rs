//! Runs the program as a user does, and checks its output.
#![cfg(feature = "cli")]

use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;

/// The program, killed after five minutes.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sterna"));
    command.timeout(Duration::from_secs(300));
    command
}

pub fn sterna(args: &[&str]) -> Output {
    command().args(args).output().unwrap()
}

pub fn sterna_in(dir: &Path, args: &[&str]) -> Output {
    command().current_dir(dir).args(args).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Stdout and stderr of a command that has to succeed.
#[track_caller]
pub fn succeeded(output: &Output) -> (String, String) {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    (stdout, stderr)
}

/// Stdout of a command that has to succeed.
#[track_caller]
pub fn ok(output: &Output) -> String {
    succeeded(output).0
}

/// Stderr of a command that has to exit with status 1 and print all `words`.
#[track_caller]
pub fn refused(output: &Output, words: &[&str]) -> String {
    ended_with(output, 1, words)
}

/// Stderr of a command that has to exit with `status` and print all `words`. Wrong flags give status 2.
#[track_caller]
pub fn ended_with(output: &Output, status: i32, words: &[&str]) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    words.iter().for_each(|word| assert!(stderr.contains(word), "`{word}` is not in: {stderr}"));
    stderr
}

/// A folder with `in.gguf`, a small model that `sterna synth` makes with these flags.
pub fn folder_with_model(flags: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    ok(&sterna_in(dir.path(), &[&["synth"], flags, &["in.gguf"]].concat()));
    dir
}

/// The path of a golden file.
pub fn golden(path: &str) -> String {
    support::golden(path).expect("is in tests/data").into_os_string().into_string().unwrap()
}

/// The file names in a folder, sorted.
pub fn files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
