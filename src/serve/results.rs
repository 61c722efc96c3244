//! Results of tools as text for the model. The client that calls tools cannot know in advance what they
//! return, and an error would end the conversation: what is neither text nor an image that the model can see
//! becomes words or a note.

use serde_json::Value;

use super::images::{self, ImageFile, Images};

/// Text in place of an image that the model cannot see.
const UNSEEN: &str = "[There is an image here, which this model cannot see.]";
/// Text in place of a sound.
const UNHEARD: &str = "[There is a sound here, which this model cannot hear.]";
/// Text in place of a file.
const UNOPENED: &str = "[There is a file here, which this model cannot read.]";
/// Text in place of content that only its author's servers can decrypt.
const ENCRYPTED: &str = "[There is an encrypted text here, which this model cannot read.]";

/// How a part is read.
#[derive(Clone, Copy)]
enum Part {
    /// Its words are those of these fields, one line per field.
    Words(&'static [&'static str]),
    /// This note replaces it.
    Note(&'static str),
}

/// Types of parts, from the specifications of OpenAI, Anthropic and MCP.
const PARTS: &[(&str, Part)] = &[
    ("audio", Part::Note(UNHEARD)),
    ("base64", Part::Note(UNOPENED)),
    ("bash_code_execution_result", Part::Words(&["stdout", "stderr"])),
    ("code_execution_result", Part::Words(&["stdout", "stderr"])),
    ("computer_screenshot", Part::Note(UNSEEN)),
    ("content", Part::Words(&["content"])),
    ("document", Part::Words(&["title", "context", "source"])),
    ("encrypted_content", Part::Note(ENCRYPTED)),
    ("file", Part::Note(UNOPENED)),
    ("image", Part::Note(UNSEEN)),
    ("image_url", Part::Note(UNSEEN)),
    ("input_audio", Part::Note(UNHEARD)),
    ("input_file", Part::Note(UNOPENED)),
    ("input_image", Part::Note(UNSEEN)),
    ("input_text", Part::Words(&["text"])),
    ("logs", Part::Words(&["logs"])),
    ("output_text", Part::Words(&["text"])),
    ("refusal", Part::Words(&["refusal"])),
    ("resource", Part::Words(&["resource"])),
    ("resource_link", Part::Words(&["title", "name", "description", "uri"])),
    ("search_result", Part::Words(&["title", "source", "content"])),
    ("text", Part::Words(&["text", "data"])),
    ("tool_reference", Part::Words(&["tool_name"])),
    ("tool_search_tool_search_result", Part::Words(&["tool_references"])),
    ("url", Part::Note(UNOPENED)),
    ("web_fetch_result", Part::Words(&["url", "content"])),
    ("web_search_result", Part::Words(&["title", "url"])),
];

fn note(name: &str, kind: &str, note: &'static str) -> &'static str {
    tracing::warn!(field = name, kind, "a tool's result has a part that is not text: the model gets a note");
    note
}

/// The mark of an image at `name` of a request, in base64, or the text that replaces it.
pub fn image(name: &str, data: &str, images: &mut Images) -> &'static str {
    match images.sees_results() {
        true => images.add(name.to_owned(), ImageFile::Base64(data.to_owned())),
        false => note(name, "image", UNSEEN),
    }
}

/// The text of a tool's result at `name` of a request: texts as they are, one line per part of a list, marks
/// of images, words or notes in place of other parts, and JSON for values that are not parts.
pub fn text(name: &str, value: Option<&Value>, images: &mut Images) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let parts = parts.iter().enumerate();
            let texts: Vec<String> =
                parts.map(|(at, part)| text(&format!("{name}[{at}]"), Some(part), images)).collect();
            images::joined(texts)
        }
        Some(part) => part_text(name, part, images),
    }
}

fn part_text(name: &str, part: &Value, images: &mut Images) -> String {
    let Some(kind) = part.get("type").and_then(Value::as_str) else {
        return match (part.get("text"), part.get("blob")) {
            (Some(Value::String(text)), _) => text.clone(),
            // A resource of MCP.
            (_, Some(Value::String(_))) => note(name, "blob", UNOPENED).to_owned(),
            _ => part.to_string(),
        };
    };
    match PARTS.iter().find(|(known, _)| *known == kind) {
        Some((_, Part::Words(fields))) => {
            let words = fields.iter().map(|field| text(&format!("{name}.{field}"), part.get(field), images));
            images::joined(words.filter(|words| !words.is_empty()).collect::<Vec<_>>())
        }
        Some((kind, Part::Note(text))) => {
            let mark = if *text == UNSEEN { images.add_result(name, part) } else { None };
            mark.unwrap_or_else(|| note(name, kind, text)).to_owned()
        }
        None => match part.get("text").or_else(|| part.get("error_code")) {
            Some(Value::String(text)) => text.clone(),
            _ => {
                let kind: String = kind.escape_debug().take(80).collect();
                let note = format!("[There is a part of type `{kind}` here, which this model cannot read.]");
                tracing::warn!(field = name, kind, "a tool's result has a part of an unknown type: {note}");
                note
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_become_text() {
        assert!(PARTS.is_sorted_by(|one, other| one.0 < other.0));
        let words = json!({ "type": "text", "text": "b" });
        let document = |source: Value| json!({ "type": "document", "title": "a", "source": source });
        for (value, want) in [
            (json!(null), ""),
            (json!([]), ""),
            (json!(7), "7"),
            (json!(false), "false"),
            (json!({ "a": [1] }), r#"{"a":[1]}"#),
            (json!(["a", 1, null, { "b": 2 }, words]), "a\n1\n\n{\"b\":2}\nb"),
            (json!([{ "type": "text", "text": null }]), ""),
            (json!([{ "type": "tool_reference", "tool_name": "mcp__sky__weather" }]), "mcp__sky__weather"),
            (
                json!([{ "type": "search_result", "source": "s", "title": "t", "content": [words, words] }]),
                "t\ns\nb\nb",
            ),
            (document(json!({ "type": "text", "media_type": "text/plain", "data": "b" })), "a\nb"),
            (document(json!({ "type": "content", "content": [words] })), "a\nb"),
            (document(json!({ "type": "base64", "data": "AA==" })), &format!("a\n{UNOPENED}")),
            (json!({ "type": "resource", "resource": { "uri": "u", "text": "b" } }), "b"),
            (json!({ "type": "resource", "resource": { "uri": "u", "blob": "AA==" } }), UNOPENED),
            (
                json!([{ "type": "video" }]),
                "[There is a part of type `video` here, which this model cannot read.]",
            ),
            (json!({ "type": "image", "data": "AA==" }), UNSEEN),
        ] {
            assert_eq!(text("content", Some(&value), &mut Images::default()), want, "{value}");
        }
        assert_eq!(text("content", None, &mut Images::default()), "");
    }
}
