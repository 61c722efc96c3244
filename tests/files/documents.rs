//! Tables of the documents, compared with the registries of architectures, weight types and KV codecs, and
//! with the versions of published clients.

use std::collections::BTreeSet;
use std::fs;

use ggml_types::{kv, types};
use sterna::model;
use support::root;

/// Rows of a document's tables that begin with one of `heads`.
fn rows(path: &str, heads: &[&str]) -> Vec<String> {
    let text = fs::read_to_string(root().join(path)).expect(path);
    let begins = |line: &&str| heads.iter().any(|head| line.starts_with(&format!("| {head}")));
    text.lines().filter(begins).map(str::to_owned).collect()
}

#[test]
fn readme_lists_the_architectures() {
    let rows = rows("README.md", &["architectures", "encoders", "hybrids"]);
    let listed: BTreeSet<_> = rows.iter().flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    let known: BTreeSet<_> = model::REGISTRY.iter().flat_map(|of| of.names).copied().collect();
    assert_eq!(listed, known, "README.md and model::REGISTRY");
}

#[test]
fn support_matrix_lists_the_types_and_codecs() {
    let lists = |head: &str, name: &str| {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let rows = rows("docs/support.md", &[head]).join(" ").to_lowercase();
        rows.split(|c| !is_name(c)).any(|word| word == name)
    };
    for ty in types::REGISTRY {
        assert!(lists("weights ", ty.name()), "docs/support.md has no weights {}", ty.name());
    }
    for codec in kv::REGISTRY {
        assert!(lists("KV cache ", codec.name()), "docs/support.md has no KV cache {}", codec.name());
    }
}

#[test]
fn clients_table_has_the_pinned_versions() {
    let pins = |name: &str| fs::read_to_string(root().join("scripts/serve/published").join(name)).unwrap();
    let python = pins("requirements.txt");
    let node: serde_json::Value = serde_json::from_str(&pins("package.json")).unwrap();
    let node = node["dependencies"].as_object().unwrap();
    let rows = rows("docs/clients.md", &["PyPI ", "npm "]);
    for row in &rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1].split('`').nth(1).unwrap();
        let pinned = match cells[1].starts_with("npm ") {
            true => node.get(name).and_then(|version| version.as_str()),
            false => {
                python.lines().filter_map(|line| line.split_once("==")).find(|of| of.0 == name).map(|of| of.1)
            }
        };
        assert_eq!(pinned, Some(cells[2]), "docs/clients.md and scripts/serve/published: {name}");
    }
    for name in node.keys().filter(|name| !["esbuild", "playwright-core"].contains(&name.as_str())) {
        assert!(
            rows.iter().any(|row| row.starts_with(&format!("| npm `{name}`"))),
            "docs/clients.md lacks {name}"
        );
    }
}
