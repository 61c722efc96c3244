//! Limits the number of dependencies: a program that uses the library must not build the command line.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value as Json;

/// Crates that only the command line and the server need.
const COMMAND_LINE: &[&str] = &[
    "axum",
    "clap",
    "clap_builder",
    "clap_complete",
    "clap_derive",
    "clap_mangen",
    "console",
    "ctrlc",
    "fs4",
    "hyper",
    "indicatif",
    "rustyline",
    "tokio",
    "tracing",
    "ureq",
];

/// Maximum number of crates of `examples/generate.rs` without default features, including proc-macros, on
/// Linux, besides those of this workspace. They include crossbeam-utils for cache padding and getrandom for
/// seeds. Eight are serde_json and its preserved key order, for the arguments of tool calls. Two are vectors
/// for the searches of encoders. Three place threads on NUMA nodes.
const MAX_CRATES: usize = 40;

/// Crates built by a program that depends on the library.
fn crates(args: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--offline", "--locked", "-e", "normal", "--prefix", "none", "--format", "{p}"];
    let mut command = Command::new(env!("CARGO"));
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).args(tree).args(args).output().unwrap();
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    // Name and version; the rest of the line differs between occurrences of one crate.
    let name = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    lines.lines().filter(|line| !line.is_empty()).map(name).collect()
}

#[test]
fn library_does_not_depend_on_command_line_crates() {
    let library = crates(&["--no-default-features"]);
    let name = |krate: &String| krate.split(' ').next().unwrap_or_default().to_owned();
    let names: BTreeSet<String> = library.iter().map(name).collect();
    let unwanted: Vec<_> = COMMAND_LINE.iter().filter(|krate| names.contains(**krate)).collect();
    assert!(unwanted.is_empty(), "{unwanted:?}");
    let own = |krate: &&String| krate.starts_with("sterna") || krate.starts_with("ggml-types");
    let others: Vec<_> = library.iter().filter(|krate| !own(krate)).collect();
    assert!(others.len() <= MAX_CRATES, "{} crates:\n{others:?}", others.len());
}

#[test]
fn command_line_depends_on_listed_crates() {
    let names: BTreeSet<String> =
        crates(&[]).iter().map(|krate| krate.split(' ').next().unwrap_or_default().to_owned()).collect();
    let missing: Vec<_> = COMMAND_LINE.iter().filter(|krate| !names.contains(**krate)).collect();
    assert!(missing.is_empty(), "not a dependency any more, so remove it from the list above: {missing:?}");
}

/// The slowest crate to build: an edit of a stage must not rebuild it.
#[test]
fn cpu_kernels_depend_on_no_other_sterna_crate() {
    let all = crates(&["--package", "sterna-cpu-kernels"]);
    let names = all.iter().filter_map(|krate| krate.split(' ').next());
    let own: Vec<_> = names.filter(|name| name.starts_with("sterna")).collect();
    assert_eq!(own, ["sterna-cpu-kernels"]);
}

/// `cargo install` does not know the test crates, and refuses a feature that names one.
#[test]
fn features_name_no_test_crate() {
    let args = ["metadata", "--offline", "--locked", "--no-deps", "--format-version", "1"];
    let output =
        Command::new(env!("CARGO")).current_dir(env!("CARGO_MANIFEST_DIR")).args(args).output().unwrap();
    let metadata: Json = serde_json::from_slice(&output.stdout).unwrap();
    let package = metadata["packages"].as_array().unwrap().iter().find(|p| p["name"] == "sterna").unwrap();
    let (dev, others): (Vec<_>, Vec<_>) =
        package["dependencies"].as_array().unwrap().iter().partition(|found| found["kind"] == "dev");
    let names =
        |crates: &[&Json]| crates.iter().map(|found| found["name"].to_string()).collect::<BTreeSet<_>>();
    let of_tests = &names(&dev) - &names(&others);
    assert!(of_tests.contains("\"support\""), "{of_tests:?}");
    let wanted = package["features"].as_object().unwrap().values().flat_map(|list| list.as_array().unwrap());
    let krate = |wanted: &Json| Json::from(wanted.as_str().unwrap().split('/').next()).to_string();
    let wrong: Vec<_> = wanted.filter(|wanted| of_tests.contains(&krate(wanted))).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
