//! Replays the corpus of every fuzz target, as found in `fuzz/corpus`, without a fuzzer.

#[path = "../../fuzz/targets.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;

type Target = fn(&[u8]);

/// Name in `fuzz/corpus` and `fuzz/fuzz_targets`, and the function that takes an input.
const TARGETS: &[(&str, Target)] = &[
    ("chat_template", targets::chat_template),
    ("checkpoint", targets::checkpoint),
    ("gbnf", targets::gbnf),
    ("gguf", targets::gguf),
    ("grammar", targets::grammar),
    ("imatrix", targets::imatrix),
    ("request", targets::request),
    ("session", targets::session),
    ("sse", targets::sse),
    ("tokenizer", targets::tokenizer),
    ("tools", targets::tools),
];

#[test]
fn every_target_survives_its_corpus() {
    for (name, target) in TARGETS {
        let dir = support::root().join("fuzz/corpus").join(name);
        let mut n_inputs = 0;
        for entry in fs::read_dir(&dir).unwrap_or_else(|err| panic!("{}: {err}", dir.display())) {
            let path = entry.unwrap().path();
            // Shows the input if the target panics.
            println!("{}", path.display());
            target(&fs::read(path).unwrap());
            n_inputs += 1;
        }
        assert!(n_inputs > 0, "{} is empty", dir.display());
    }
}

#[test]
fn every_target_is_replayed() {
    let files = fs::read_dir(support::root().join("fuzz/fuzz_targets")).unwrap();
    let found: BTreeSet<String> = files
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(found, TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect());
}
