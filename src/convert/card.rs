//! The front matter of a model card (`README.md`): names, licence, tags, languages, base models, data sets.
//!
//! Reads the subset of YAML that model cards use: unindented keys with a value, a list in brackets or a list
//! of lines. Nested values are left out.

use std::collections::BTreeMap;
use std::path::Path;

use super::names::{self, Components};
use sterna_gguf::{Array, Metadata};

/// Unindented keys with their values.
pub type Front = BTreeMap<String, Vec<String>>;

/// Reads the front matter of a folder's model card; empty without one.
pub fn read(folder: &Path) -> Front {
    std::fs::read_to_string(folder.join("README.md")).map_or_else(|_| Front::new(), |text| front(&text))
}

/// The first value of a key.
pub fn first(front: &Front, key: &str) -> Option<String> {
    front.get(key).and_then(|values| values.first()).cloned()
}

/// Writes a model card's keys, except names, for a model of `n_weights` weights.
pub fn write(front: &Front, n_weights: u64, metadata: &mut Metadata) {
    let first = |key: &str| first(front, key);
    for (key, name) in [
        ("license", "general.license"),
        ("license_name", "general.license.name"),
        ("license_link", "general.license.link"),
    ] {
        if let Some(value) = first(key) {
            metadata.set(name, value);
        }
    }
    for (word, keys) in [("base_model", ["base_model", "base_models"]), ("dataset", ["datasets", "dataset"])]
    {
        let sources = keys.iter().find_map(|key| front.get(*key)).cloned().unwrap_or_default();
        if !sources.is_empty() {
            metadata.set(format!("general.{word}.count"), sources.len() as u32);
        }
        for (at, source) in sources.iter().enumerate() {
            let set = |name: &str, value: String| {
                metadata.set(format!("general.{word}.{at}.{name}"), value);
            };
            source_of(source, n_weights, set);
        }
    }
    let mut tags = front.get("tags").cloned().unwrap_or_default();
    tags.extend(first("pipeline_tag").filter(|tag| !tags.contains(tag)));
    let languages = front.get("language").or(front.get("languages")).cloned().unwrap_or_default();
    for (key, values) in [("general.tags", tags), ("general.languages", languages)] {
        if !values.is_empty() {
            metadata.set(key, Array::from_strs(values.iter().map(String::as_str)));
        }
    }
}

/// Writes the keys of a model or data set that a card names.
fn source_of(named: &str, n_weights: u64, mut set: impl FnMut(&str, String)) {
    let address = ["http://", "https://", "ssh://"].iter().find_map(|scheme| named.strip_prefix(scheme));
    let id = match address {
        None => Some(named),
        Some(rest) => rest.strip_prefix("huggingface.co/").filter(|id| id.split('/').count() == 2),
    };
    let Components { name, organization, version, .. } =
        id.map(|id| Components::of(id, n_weights)).unwrap_or_default();
    let url = match (address, &organization, &name) {
        (Some(_), ..) => Some(named.to_owned()),
        (None, Some(organization), Some(name)) => {
            Some(format!("https://huggingface.co/{organization}/{name}"))
        }
        (None, ..) => None,
    };
    let parts = [
        ("name", name.map(|name| names::title(&name))),
        ("version", version),
        ("organization", organization.map(|name| names::title(&name))),
        ("repo_url", url),
    ];
    parts.into_iter().for_each(|(key, value)| value.into_iter().for_each(|value| set(key, value)));
}

/// Parses the text between the first line `---` and the next one.
fn front(text: &str) -> Front {
    let mut out = Front::new();
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return out;
    }
    let mut key: Option<String> = None;
    for line in lines {
        if line.trim_end() == "---" {
            return out;
        }
        let item = line.trim_start().strip_prefix("- ").map(scalar);
        match (item, &key) {
            (Some(Some(value)), Some(key)) => out.entry(key.clone()).or_default().push(value),
            (None, _) if !line.starts_with([' ', '\t', '#', '-']) => {
                key = None;
                let Some((name, rest)) = line.split_once(':') else { continue };
                let rest = rest.trim();
                let values: Vec<String> = match rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'))
                {
                    Some(list) => list.split(',').filter_map(scalar).collect(),
                    None => scalar(rest).into_iter().collect(),
                };
                if !values.is_empty() {
                    out.insert(name.trim().to_owned(), values);
                } else if rest.is_empty() {
                    key = Some(name.trim().to_owned());
                }
            }
            _ => {}
        }
    }
    // Without an end it is not front matter.
    Front::new()
}

/// A plain or quoted value; `None` for an empty one, or one with unsupported syntax.
fn scalar(text: &str) -> Option<String> {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return Some(inner.to_owned());
        }
    }
    let text = text.split(" #").next().unwrap_or_default().trim_end();
    let is_plain = !text.is_empty() && !text.starts_with(['|', '>', '{', '[', '&', '*', '!']);
    let is_map = text.contains(": ") || text.ends_with(':');
    (is_plain && !is_map && text != "null").then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn front_matter_as_cards_have_it() {
        let card = "---\nlicense: mit\nlicense_link: 'https://x/LICENSE' \nlanguage:\n- en\n- \"de\"\n\
                    tags: [chat, bitnet]\npipeline_tag: text-generation\nmodel-index:\n- name: x\n  \
                    results: []\nbase_model: microsoft/bitnet-b1.58-2B-4T # its masters\nempty:\n---\n\
                    # Title\nlicense: not this\n";
        let front = front(card);
        assert_eq!(front["license"], ["mit"]);
        assert_eq!(front["language"], ["en", "de"]);
        assert_eq!(front["tags"], ["chat", "bitnet"]);
        assert_eq!(front["base_model"], ["microsoft/bitnet-b1.58-2B-4T"]);
        assert!(!front.contains_key("model-index") && !front.contains_key("empty"), "{front:?}");
        for hostile in
            ["", "---", "---\nlicense: mit\n", "no front\n---\nlicense: mit\n---\n", "---\n:\n- \n---"]
        {
            assert!(super::front(hostile).values().all(|values| values != &["mit"]), "{hostile}");
        }
    }
}
