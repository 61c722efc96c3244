//! The program as a user starts it, and what came of it.
#![cfg(feature = "cli")]

use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;

/// The program, which is ended after five minutes.
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

/// What a command that succeeded wrote to stdout and to stderr.
#[track_caller]
pub fn succeeded(output: &Output) -> (String, String) {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    (stdout, stderr)
}

/// What a command that succeeded wrote to stdout.
#[track_caller]
pub fn ok(output: &Output) -> String {
    succeeded(output).0
}

/// The message of a command that ended with 1.
#[track_caller]
pub fn refused(output: &Output, words: &[&str]) -> String {
    ended_with(output, 1, words)
}

/// The message of a command that failed: with 1, or with 2 for a flag that is wrong.
#[track_caller]
pub fn ended_with(output: &Output, status: i32, words: &[&str]) -> String {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    words.iter().for_each(|word| assert!(stderr.contains(word), "`{word}` is not in: {stderr}"));
    stderr
}

/// The path of a golden file.
pub fn golden(path: &str) -> String {
    support::golden(path).expect("is in tests/data").into_os_string().into_string().unwrap()
}

/// The names in a folder, in order.
pub fn files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
