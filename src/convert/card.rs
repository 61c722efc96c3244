//! The front matter of a model card (`README.md`): licence, tags, languages, base models.
//!
//! Of YAML it reads what model cards use: keys at the margin with a value, a list in brackets or a list of
//! lines. Anything deeper is left out.

use std::collections::BTreeMap;
use std::path::Path;

use super::names;
use crate::gguf::{Array, Metadata};

/// Keys at the margin, each with its values.
type Front = BTreeMap<String, Vec<String>>;

/// Writes what a folder's model card says of the model.
pub fn write(folder: &Path, metadata: &mut Metadata) {
    let Ok(text) = std::fs::read_to_string(folder.join("README.md")) else { return };
    let front = front(&text);
    let first = |key: &str| front.get(key).and_then(|values| values.first()).cloned();
    for (key, name) in [
        ("license", "general.license"),
        ("license_name", "general.license.name"),
        ("license_link", "general.license.link"),
    ] {
        if let Some(value) = first(key) {
            metadata.set(name, value);
        }
    }
    let bases = front.get("base_model").or(front.get("base_models")).cloned().unwrap_or_default();
    if !bases.is_empty() {
        metadata.set("general.base_model.count", bases.len() as u32);
    }
    for (at, base) in bases.iter().enumerate() {
        let key = |name: &str| format!("general.base_model.{at}.{name}");
        let (organization, name) = base.split_once('/').unwrap_or(("", base));
        metadata.set(key("name"), names::title(name));
        if !organization.is_empty() {
            metadata.set(key("organization"), names::title(organization));
            metadata.set(key("repo_url"), format!("https://huggingface.co/{base}"));
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

/// What stands between the first line `---` and the next one.
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
    // No end: not front matter at all.
    Front::new()
}

/// A plain or quoted value; nothing for an empty one, and for one that goes on in a way not read here.
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
