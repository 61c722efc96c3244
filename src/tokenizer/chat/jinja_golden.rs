//! Compares templates in the style of published ones with Jinja2 under the settings of transformers. The
//! expected texts are written by `scripts/compare/templates --write`.

use std::path::PathBuf;

use serde_json::Value as Json;

use super::*;

const BOS: &str = "<s>";
const EOS: &str = "</s>";

fn data(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "data", path].iter().collect()
}

fn json(path: &str) -> Json {
    serde_json::from_slice(&std::fs::read(data(path)).unwrap()).unwrap()
}

/// Renders messages as clients send them, without normalising them first.
fn render(source: &str, messages: &Json, tools: &Json, add_generation_prompt: bool) -> Option<String> {
    let variables = serde_json::json!({ "messages": messages, "tools": tools, "documents": null,
        "bos_token": BOS, "eos_token": EOS, "add_generation_prompt": add_generation_prompt });
    rendered(source, &variables)
}

/// Text that a template renders; `None` if rendering fails.
fn rendered(source: &str, variables: &Json) -> Option<String> {
    let env = environment::with_template(NAME, source).ok()?;
    env.get_template(NAME).ok()?.render(message::value(variables)).ok()
}

#[test]
fn shapes_of_published_templates_render_as_in_jinja2() {
    let shared = json("templates/conversations.json");
    let conversations = shared["conversations"].as_array().unwrap();
    let mut names: Vec<String> = std::fs::read_dir(data("templates"))
        .unwrap()
        .filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.strip_suffix(".jinja")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() >= 40, "{names:?}");
    let mut wrong = Vec::new();
    for name in &names {
        let source = std::fs::read_to_string(data(&format!("templates/{name}.jinja"))).unwrap();
        let expected = json(&format!("golden/templates/{name}.json"));
        let expected = expected.as_array().unwrap();
        assert_eq!(expected.len(), 2 * conversations.len(), "{name}");
        for (case, want) in expected.iter().enumerate() {
            let (conversation, has_tools) = (case / 2, case % 2 == 1);
            let tools = if has_tools { &shared["tools"] } else { &Json::Null };
            // Every other conversation ends in a generation prompt, and so do all with tools.
            let prompt = has_tools || conversation % 2 == 0;
            let got = render(&source, &conversations[conversation], tools, prompt);
            if got.as_deref() != want.as_str() {
                wrong.push(format!("{name}, case {case}: want {want:?}, got {got:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// One construct each: how values print, results of tests, filters and methods, and what is refused.
#[test]
fn constructs_render_as_in_jinja2() {
    let shared = json("templates/expressions.json");
    let expected = json("golden/templates/expressions.json");
    let (sources, expected) = (shared["templates"].as_array().unwrap(), expected.as_array().unwrap());
    assert_eq!(sources.len(), expected.len());
    let mut wrong = Vec::new();
    for (source, want) in sources.iter().zip(expected) {
        let got = rendered(source.as_str().unwrap(), &shared["values"]);
        if got.as_deref() != want.as_str() {
            wrong.push(format!("{source}: want {want:?}, got {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} constructs:\n{}", wrong.len(), wrong.join("\n"));
}
