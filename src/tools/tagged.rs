//! One call as tags with plain text between them, which becomes JSON: Qwen3-Coder's form.

use serde_json::{Value, json};

use super::Tool;
use super::scan::{Body, Found, Read, escaped, find};

/// Longest name of a tool or an argument, in bytes. What is longer is no call.
const MOST_NAME_BYTES: usize = 256;

const CLOSE_VALUE: &str = "</parameter>";

/// A call behind `<function=`.
#[derive(Debug, Default)]
pub struct Tagged {
    state: State,
    name: String,
    has_parameters: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Name,
    Between,
    Key,
    /// A value that is a text is passed on as it comes.
    Text {
        is_first: bool,
    },
    /// Another one is read to its end.
    Other {
        text: String,
    },
}

impl Body for Tagged {
    fn read(&mut self, rest: &str, tools: &[Tool]) -> Read {
        match &mut self.state {
            State::Name => match name(rest) {
                Some(Ok((name, used))) => {
                    self.name = name.to_owned();
                    self.state = State::Between;
                    Read::Begun(used, name.to_owned())
                }
                Some(Err(())) => Read::Wrong,
                None => Read::More,
            },
            State::Between => match find(rest, &["<parameter=", "</function>"]) {
                Found::Mark(at, 0) => {
                    self.state = State::Key;
                    Read::Arguments(at + "<parameter=".len(), String::new())
                }
                Found::Mark(at, _) => {
                    let close = if self.has_parameters { "}" } else { "{}" };
                    Read::Ended(at + "</function>".len(), close.to_owned())
                }
                Found::None(0) => Read::More,
                Found::None(passed) => Read::Arguments(passed, String::new()),
            },
            State::Key => {
                let (key, used) = match name(rest) {
                    Some(Ok((key, used))) => (key, used),
                    // The call has begun: a name that is none is passed over.
                    Some(Err(())) => ("", rest.chars().next().map_or(0, char::len_utf8)),
                    None => return Read::More,
                };
                if key.is_empty() {
                    self.state = State::Between;
                    return Read::Arguments(used, String::new());
                }
                let comma = if self.has_parameters { ", " } else { "{" };
                self.has_parameters = true;
                let tool = tools.iter().find(|tool| tool.name == self.name);
                let is_text = tool.is_some_and(|tool| tool.takes_text(key));
                let quote = if is_text { "\"" } else { "" };
                self.state = match is_text {
                    true => State::Text { is_first: true },
                    false => State::Other { text: String::new() },
                };
                Read::Arguments(used, format!("{comma}{}: {quote}", json!(key)))
            }
            State::Text { is_first } => {
                if *is_first {
                    if rest.is_empty() {
                        return Read::More;
                    }
                    *is_first = false;
                    if rest.starts_with('\n') {
                        return Read::Arguments(1, String::new());
                    }
                }
                match find(rest, &[CLOSE_VALUE]) {
                    Found::Mark(at, _) => {
                        self.state = State::Between;
                        let text = rest[..at].strip_suffix('\n').unwrap_or(&rest[..at]);
                        Read::Arguments(at + CLOSE_VALUE.len(), escaped(text) + "\"")
                    }
                    Found::None(passed) => {
                        // A line end before the mark is not of the text.
                        let passed = rest[..passed].strip_suffix('\n').map_or(passed, str::len);
                        if passed == 0 {
                            Read::More
                        } else {
                            Read::Arguments(passed, escaped(&rest[..passed]))
                        }
                    }
                }
            }
            State::Other { text } => match find(rest, &[CLOSE_VALUE]) {
                Found::Mark(at, _) => {
                    *text += &rest[..at];
                    let value = typed(text.trim());
                    self.state = State::Between;
                    Read::Arguments(at + CLOSE_VALUE.len(), value)
                }
                Found::None(0) => Read::More,
                Found::None(passed) => {
                    *text += &rest[..passed];
                    Read::Arguments(passed, String::new())
                }
            },
        }
    }
}

/// The name before `>`, and the bytes with it; an error if it is too long.
fn name(rest: &str) -> Option<Result<(&str, usize), ()>> {
    let head = &rest.as_bytes()[..rest.len().min(MOST_NAME_BYTES)];
    match head.iter().position(|byte| matches!(byte, b'>' | b'\n')) {
        Some(at) if head[at] == b'>' && !rest[..at].trim().is_empty() => {
            Some(Ok((rest[..at].trim(), at + 1)))
        }
        Some(_) => Some(Err(())),
        None if rest.len() >= MOST_NAME_BYTES => Some(Err(())),
        None => None,
    }
}

/// A value as it is written if that is JSON, and a text otherwise.
fn typed(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => text.to_owned(),
        Err(_) => json!(text).to_string(),
    }
}
