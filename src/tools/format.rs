//! The formats of calls, and which one a template wants.

use serde_json::{Value, json};

use super::Tool;
use crate::tokenizer::chat::Message;

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Llama 3: the message is one `{"name": …, "parameters": {…}}`, possibly behind `<|python_tag|>`.
    Llama3,
    /// Hermes, Qwen2.5, Qwen3: `<tool_call>` and `{"name": …, "arguments": {…}}` and `</tool_call>`.
    Hermes,
    /// Mistral: `[TOOL_CALLS]` and a list of `{"name": …, "arguments": {…}, "id": …}`.
    Mistral,
    /// Qwen3-Coder: `<function=name>` with a `<parameter=key>` for each argument, as plain text.
    Qwen3Coder,
    /// For templates that know no tools: the tools stand in a system message, and the message is
    /// `{"tool_calls": […]}` or `{"response": …}`.
    Generic,
}

impl Format {
    /// All of them, with their names.
    pub const ALL: &[(&'static str, Self)] = &[
        ("llama3", Self::Llama3),
        ("hermes", Self::Hermes),
        ("mistral", Self::Mistral),
        ("qwen3-coder", Self::Qwen3Coder),
        ("generic", Self::Generic),
    ];

    /// The format that is named so.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, format)| *format == self).map_or("", |(name, _)| name)
    }

    /// The format of a template, by the words that it writes.
    pub fn of_template(source: &str) -> Self {
        let has = |word: &str| source.contains(word);
        if has("<function=") && has("<parameter=") {
            Self::Qwen3Coder
        } else if has("<tool_call>") {
            Self::Hermes
        } else if has("[TOOL_CALLS]") && !has("[ARGS]") {
            Self::Mistral
        } else if has("<|python_tag|>") || has("ipython") && has("\"parameters\"") {
            Self::Llama3
        } else {
            Self::Generic
        }
    }

    /// Whether a message may hold several calls.
    pub fn is_parallel(self) -> bool {
        self != Self::Llama3
    }

    /// Whether calls begin with a token that steers the model, so that its spelling must be shown
    /// (`GenerateOptions::show_special`) to a [`Parser`](super::Parser).
    pub fn needs_special(self) -> bool {
        matches!(self, Self::Llama3 | Self::Mistral)
    }

    /// The messages as the template can show them. Only [`Generic`](Self::Generic) changes them: the tools
    /// become a system text, calls and answers ordinary messages.
    pub fn messages(self, messages: &[Message], tools: &[Tool]) -> Vec<Message> {
        if self != Self::Generic {
            return messages.to_vec();
        }
        let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
        for message in messages {
            match out.last_mut() {
                // Answers of several tools are one turn.
                Some(last) if message.role == "tool" && is_answer(last) => {
                    last.content += "\n";
                    last.content += &answer(message);
                }
                _ => out.push(plain(message)),
            }
        }
        if !tools.is_empty() {
            let text = introduce(tools);
            match out.first_mut().filter(|first| first.role == "system") {
                Some(system) => system.content = format!("{}\n\n{text}", system.content),
                None => out.insert(0, Message::new("system", text)),
            }
        }
        out
    }
}

const ANSWER: &str = "{\"tool_response\": ";

fn is_answer(message: &Message) -> bool {
    message.role == "user" && message.content.starts_with(ANSWER)
}

fn answer(message: &Message) -> String {
    let name = message.name.as_ref().map_or(String::new(), |name| format!(", \"name\": {}", json!(name)));
    format!("{ANSWER}{}{name}}}", json!(message.content))
}

fn plain(message: &Message) -> Message {
    match message.role.as_str() {
        "tool" => Message::new("user", answer(message)),
        "assistant" if !message.tool_calls.is_empty() => {
            let calls = message.tool_calls.iter().map(|call| {
                let arguments = serde_json::from_str::<Value>(&call.arguments);
                json!({ "name": call.name, "arguments": arguments.unwrap_or_else(|_| json!(call.arguments)) })
            });
            Message::new("assistant", json!({ "tool_calls": calls.collect::<Vec<_>>() }).to_string())
        }
        _ => message.clone(),
    }
}

fn introduce(tools: &[Tool]) -> String {
    let list: Vec<String> = tools.iter().map(|tool| tool.to_json().to_string()).collect();
    format!(
        "These tools can be called:\n{}\n\nAnswer in JSON. To call tools: {{\"tool_calls\": \
         [{{\"name\": NAME, \"arguments\": {{…}}}}]}}. To answer with text: {{\"response\": TEXT}}.",
        list.join("\n")
    )
}
