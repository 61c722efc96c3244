//! Ensures plain words: those that were replaced once (`words.txt`) do not come back.

use std::fs;

use super::{files, relative};

/// Folders and files that are searched, and the endings of the files.
const SEARCHED: &[&str] = &[
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "README.md",
    "SECURITY.md",
    "benches",
    "build.rs",
    "cuda",
    "docs",
    "examples",
    "fuzz",
    "ggml-types",
    "packaging",
    "python",
    "scripts",
    "src",
    "tests",
    "training",
    "web",
];
const ENDINGS: &[&str] = &["cpp", "cu", "cuh", "h", "js", "md", "mjs", "py", "rs", "toml", "wgsl"];

/// Texts that are data: results that were printed once, sentences for models, and files of other programs.
const DATA: &[&str] = &[
    "benches/results/",
    "fuzz/corpus/",
    "fuzz/target/",
    "python/.venv/",
    "tests/data/",
    "training/corpus/",
    "web/node_modules/",
];

/// What `words.txt` says: words, first words of doc comments, and phrases that are fine.
#[derive(Default)]
struct Words {
    words: Vec<(String, String)>,
    docs: Vec<(String, String)>,
    fine: Vec<String>,
}

impl Words {
    fn read() -> Self {
        let mut read = Self::default();
        for line in include_str!("words.txt").lines().filter(|line| !line.starts_with('#')) {
            let (word, instead) = line.split_once(": ").expect("`words: instead`");
            match word.strip_prefix("doc ") {
                Some(first) => read.docs.push((format!("{first} "), instead.to_owned())),
                None if word == "fine" => read.fine.push(instead.to_owned()),
                None => read.words.push((word.to_owned(), instead.to_owned())),
            }
        }
        read
    }

    /// The word of a line that was replaced, and what to say instead.
    fn find(&self, line: &str) -> Option<(&str, &str)> {
        let line = line.trim_start();
        let doc = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
        let begins = |(first, _): &&(String, String)| doc.is_some_and(|doc| doc.starts_with(first.as_str()));
        let lower = self.fine.iter().fold(line.to_lowercase(), |line, fine| line.replace(fine, ""));
        let found = self.docs.iter().find(begins);
        let found = found.or_else(|| self.words.iter().find(|(word, _)| has_word(&lower, word)));
        found.map(|(word, instead)| (word.trim_end(), instead.as_str()))
    }
}

fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    line.match_indices(word).any(|(at, _)| {
        !is_letter(line[..at].chars().next_back()) && !is_letter(line[at + word.len()..].chars().next())
    })
}

#[test]
fn replaced_words_stay_away() {
    let words = Words::read();
    let is_searched = |name: &str| {
        let is_own = name.starts_with("tests/layering/words.");
        let is_data = DATA.iter().any(|data| name.starts_with(data));
        let is_command = name.starts_with("scripts/") && !name.contains('.');
        let is_text = is_command || ENDINGS.iter().any(|ending| name.ends_with(&format!(".{ending}")));
        !is_own && !is_data && is_text
    };
    let mut faults = Vec::new();
    for file in SEARCHED.iter().flat_map(|root| files(root)).filter(|file| is_searched(&relative(file))) {
        for (at, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            if let Some((word, instead)) = words.find(line) {
                faults.push(format!("{}:{}: `{word}`; say {instead}", relative(&file), at + 1));
            }
        }
    }
    assert!(faults.is_empty(), "words of tests/layering/words.txt:\n{}", faults.join("\n"));
}

#[test]
fn words_are_found_in_prose_and_names() {
    let words = Words::read();
    let found = |line| words.find(line).map(|(word, _)| word);
    assert_eq!(found("    // Behind it the next one."), Some("behind"));
    assert_eq!(found("fn rows_behind(n: usize)"), Some("behind"));
    assert_eq!(found("/// Whether it is set."), Some("Whether"));
    assert_eq!(found("/// True if the server runs behind a proxy, whatever it is."), None);
    assert_eq!(found("let besides = 1; // nobodys"), None);
}
