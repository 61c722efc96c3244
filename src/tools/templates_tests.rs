//! Conversations of agents, rendered by templates in the style of published ones.

use std::path::Path;

use super::*;
use sterna_tokenizer::chat::{ChatTemplate, Extras, Message, ToolCall};

/// Conversations whose words must all be in the prompt.
fn talks() -> Vec<Vec<Message>> {
    let turns = |list: &[(&str, &str)]| -> Vec<Message> {
        list.iter().map(|(role, text)| Message::new(*role, *text)).collect()
    };
    let call = |name: &str, id: &str| ToolCall {
        id: Some(id.into()),
        name: name.into(),
        arguments: "{\"x\": \"a\"}".into(),
    };
    let result = |id: &str, name: &str, text: &str| Message {
        tool_call_id: Some(id.into()),
        name: Some(name.into()),
        ..Message::new("tool", text)
    };
    let agent = vec![
        Message::new("system", "word-1"),
        Message::new("system", "word-2"),
        Message::new("user", "word-3"),
        Message {
            tool_calls: vec![call("first_tool", "call_00000001")],
            ..Message::new("assistant", "word-4")
        },
        result("call_00000001", "first_tool", "word-5"),
    ];
    let more = vec![
        Message::new("assistant", "word-6"),
        Message::new("user", "word-7"),
        Message::new("developer", "word-8"),
        Message::new("user", "word-9"),
    ];
    let short = [("developer", "word-1"), ("user", "word-2"), ("user", "word-3"), ("assistant", "word-4")];
    vec![[turns(&short), turns(&[("system", "word-5")])].concat(), agent.clone(), [agent, more].concat()]
}

#[test]
fn every_template_shows_every_word_of_agents() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/templates");
    let bare = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "jinja") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let source = std::fs::read_to_string(&path).unwrap();
        let template = ChatTemplate::with_tokens(&source, "<s>".into(), "</s>".into()).unwrap();
        let syntax = Syntax::of_template(&template, |_| true);
        assert_eq!(syntax, Syntax::of_model(&source, |_| true), "{name}");
        let tools = if syntax.shows_tools { vec![bare.clone()] } else { Vec::new() };
        let extras = Extras { tools, ..Extras::default() };
        for talk in talks() {
            // Its turns alternate, and it omits the text before a call.
            let may_lose = if name == "mistral-v3-tools" && talk.len() == 9 { "word-4" } else { "" };
            match template.render_with(&syntax.calls.messages(&talk, &[]), &extras, true) {
                Ok(text) => {
                    let words = talk.iter().map(|message| message.content.as_str());
                    let lost = words.filter(|word| *word != may_lose && !text.contains(word));
                    wrong.extend(lost.map(|word| format!("{name}: {word} in {text}")));
                }
                Err(err) => wrong.push(format!("{name}: {err}: {talk:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
