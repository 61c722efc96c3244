//! Ensures that a new field of a stage or declaration is a compile error in everything that reads it: each
//! reader destructures the struct once without `..`, and never with it.

use std::fs;
use std::path::Path;

use super::graph::code_of;
use super::{relative, rust_files};

/// Structs of a program, and the readers that do not use them, with the reason.
const STRUCTS: &[(&str, &[(&str, &str)])] = &[
    ("Embed", &[]),
    ("AttnIn", &[]),
    ("LatentIn", &[]),
    ("Attend", &[]),
    ("ProjIn", &[]),
    ("Conv", &[]),
    ("Mamba", &[]),
    ("HeadProj", &[]),
    ("Delta", &[]),
    ("ProjAdd", &[]),
    ("AddVector", &[]),
    ("FfnIn", &[]),
    ("Experts", &[]),
    ("Expert", &[]),
    ("Routing", &[("src/backend/cpu/", "routes by its function `choose`")]),
    ("Logits", &[]),
    ("Sample", &[]),
    ("Linear", &[]),
    ("Lora", &[("src/backend/cuda/", "the plan rejects adapters")]),
    ("Norm", &[("src/program/cost.rs", "norms are not counted")]),
    ("KvDecl", &[]),
    (
        "StateDecl",
        &[
            ("src/program/cost.rs", "uses its sizes in bytes and elements"),
            ("src/program/part.rs", "prints the whole declaration"),
        ],
    ),
];

/// Folders of the backends, parts of `program`, and the oracle.
const READERS: &[&str] = &[
    "src/backend/cpu/",
    "src/backend/cuda/",
    "src/backend/wgpu/",
    "src/program/check.rs",
    "src/program/cost.rs",
    "src/program/part.rs",
    "src/program/text.rs",
    "tests/support/oracle/",
];

#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    Whole,
    /// Ends with `..`; with the line, from 1.
    Partial(usize),
}

#[test]
fn readers_of_stages_name_every_field() {
    let mut faults = Vec::new();
    for reader in READERS {
        let files = sources(reader);
        for (name, exempt) in STRUCTS {
            let mut is_whole = exempt.iter().any(|(of, _)| of == reader);
            for (file, code) in &files {
                for pattern in patterns(code, name) {
                    match pattern {
                        Pattern::Whole => is_whole = true,
                        Pattern::Partial(line) => {
                            faults.push(format!("{file}:{line}: `{name} {{ .. }}` hides new fields"));
                        }
                    }
                }
            }
            if !is_whole {
                faults.push(format!("{reader}: nothing destructures all fields of `{name}`"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Rust code of a folder or file, without comments.
fn sources(reader: &str) -> Vec<(String, String)> {
    let text = |file: &Path| code_of(&fs::read_to_string(file).unwrap());
    match reader.ends_with('/') {
        true => rust_files(reader).iter().map(|file| (relative(file), text(file))).collect(),
        false => {
            vec![(reader.to_owned(), text(&Path::new(env!("CARGO_MANIFEST_DIR")).join(reader)))]
        }
    }
}

/// Finds the patterns of a struct: `Name { .. }`, followed by `=`, `=>`, `in` or a closure's `|`. Enum
/// variants (`Kernel::Name`) and expressions do not count.
fn patterns(code: &str, name: &str) -> Vec<Pattern> {
    let head = format!("{name} {{");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&head) {
        let is_part = |c: char| c.is_alphanumeric() || "_:".contains(c);
        let Some(inside) = braced(&code[at + head.len()..]) else { continue };
        if code[..at].ends_with(is_part) {
            continue;
        }
        let after = code[at + head.len() + inside.len() + 1..].trim_start_matches([')', ' ', '\n']);
        let binds = ["= ", "=\n", "=>", "in ", "| "].iter().any(|sign| after.starts_with(sign));
        if inside.trim_end().ends_with("..") {
            found.push(Pattern::Partial(code[..at].lines().count()));
        } else if binds {
            found.push(Pattern::Whole);
        }
    }
    found
}

/// Text up to the closing brace of an open block.
fn braced(text: &str) -> Option<&str> {
    let mut depth = 1;
    let end = text.find(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth == 0
    });
    end.map(|end| &text[..end])
}

#[test]
fn patterns_differ_from_expressions() {
    let whole = [
        "let Norm { kind, weight: _ } = *norm;",
        "    let Norm {\n        kind,\n        weight,\n    } = *norm;",
        "Stage::Norm(Norm { kind, weight }) => {}",
        "norms.map(|Norm { kind, weight }| kind)",
        "for Norm { kind, weight } in norms {}",
    ];
    for code in whole {
        assert_eq!(patterns(code, "Norm"), [Pattern::Whole], "{code}");
    }
    let partial = ["\nlet Norm { kind, .. } = norm;", "\nmatches!(norm, Norm { kind: NormKind::Rms, .. })"];
    for code in partial {
        assert_eq!(patterns(code, "Norm"), [Pattern::Partial(2)], "{code}");
    }
    let others = [
        "let norm = Norm { kind, weight };",
        "let norm = Norm { kind, ..norm.clone() };",
        "let Kernel::Norm { kind, .. } = kernel;",
        "let RowNorm { kind, .. } = norm;",
        "let Normed { kind, .. } = norm;",
    ];
    for code in others {
        assert_eq!(patterns(code, "Norm"), [], "{code}");
    }
}
