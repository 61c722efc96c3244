//! Parses a call written as tags with plain text between them, and converts it to JSON.

use serde_json::{Value, json};

use super::scan::{Body, Found, Read, escaped, find};
use super::{Format, Tool};

/// Longest name of a tool or an argument, in bytes; anything longer is not a call.
const MAX_NAME_BYTES: usize = 256;

#[derive(Debug)]
pub struct Tags {
    /// Tags around a call.
    pub outer: [&'static str; 2],
    /// True if one pair of them contains several calls.
    pub holds_several: bool,
    /// Tag before the name of the tool; empty if that is `outer`.
    pub call: &'static str,
    /// Ends of the name. The first one is consumed with it; the others are parsed again.
    pub name_ends: &'static [&'static str],
    /// Tag after the arguments; the closing tag of `outer` if there is no other.
    pub close: &'static str,
    /// Tags around the name of an argument.
    pub key: [&'static str; 2],
    /// Tag before its value, on its own line; empty if the value directly follows the name.
    pub value: &'static str,
    pub close_value: &'static str,
    /// True if the value is on its own lines.
    pub in_lines: bool,
}

/// Tags of [`Format::Qwen3Coder`].
pub const QWEN3_CODER: Tags = Tags {
    outer: ["<tool_call>", "</tool_call>"],
    holds_several: false,
    call: "<function=",
    name_ends: &[">"],
    close: "</function>",
    key: ["<parameter=", ">"],
    value: "",
    close_value: "</parameter>",
    in_lines: true,
};

/// Tags of [`Format::SeedOss`].
pub const SEED_OSS: Tags =
    Tags { outer: ["<seed:tool_call>", "</seed:tool_call>"], in_lines: false, ..QWEN3_CODER };

/// Tags of [`Format::MiniMax`].
pub const MINIMAX: Tags = Tags {
    outer: ["<minimax:tool_call>", "</minimax:tool_call>"],
    holds_several: true,
    call: "<invoke name=\"",
    name_ends: &["\">"],
    close: "</invoke>",
    key: ["<parameter name=\"", "\">"],
    in_lines: false,
    ..QWEN3_CODER
};

/// Tags of [`Format::Glm`].
pub const GLM: Tags = Tags {
    call: "",
    name_ends: &["\n", "<arg_key>", "</tool_call>"],
    close: "</tool_call>",
    key: ["<arg_key>", "</arg_key>"],
    value: "<arg_value>",
    close_value: "</arg_value>",
    in_lines: false,
    ..QWEN3_CODER
};

impl Format {
    /// Tags of the format, if it uses tags.
    pub(super) fn tags(self) -> Option<&'static Tags> {
        match self {
            Self::Qwen3Coder => Some(&QWEN3_CODER),
            Self::SeedOss => Some(&SEED_OSS),
            Self::MiniMax => Some(&MINIMAX),
            Self::Glm => Some(&GLM),
            _ => None,
        }
    }
}

/// Parser of a call, starting after the tag before its name.
#[derive(Debug)]
pub struct Tagged {
    tags: &'static Tags,
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
    /// After this key; the tag of its value follows.
    Value {
        key: String,
    },
    /// In a string value, which is passed on as it arrives.
    Text {
        is_first: bool,
    },
    /// In any other value, which is read to its end.
    Other {
        text: String,
    },
}

impl Body for Tagged {
    fn read(&mut self, rest: &str, tools: &[Tool]) -> Read {
        let tags = self.tags;
        match &mut self.state {
            State::Name => match name(rest, tags.name_ends) {
                Some(Ok((name, used))) if !name.contains(char::is_whitespace) => {
                    self.name = name.to_owned();
                    self.state = State::Between;
                    Read::Begun(used, name.to_owned())
                }
                Some(_) => Read::Wrong,
                None => Read::More,
            },
            State::Between => match find(rest, &[tags.key[0], tags.close]) {
                Found::Mark(at, 0) => {
                    self.state = State::Key;
                    Read::Arguments(at + tags.key[0].len(), String::new())
                }
                Found::Mark(at, _) => {
                    let close = if self.has_parameters { "}" } else { "{}" };
                    Read::Ended(at + tags.close.len(), close.to_owned())
                }
                Found::None(0) => Read::More,
                Found::None(passed) => Read::Arguments(passed, String::new()),
            },
            State::Key => match name(rest, &tags.key[1..]) {
                Some(Ok((key, used))) if tags.value.is_empty() => {
                    let opened = self.open_value(key, tools);
                    Read::Arguments(used, opened)
                }
                Some(Ok((key, used))) => {
                    self.state = State::Value { key: key.to_owned() };
                    Read::Arguments(used, String::new())
                }
                // The call has begun, so skip an invalid name.
                Some(Err(())) => {
                    self.state = State::Between;
                    Read::Arguments(rest.chars().next().map_or(0, char::len_utf8), String::new())
                }
                None => Read::More,
            },
            State::Value { key } => match find(rest, &[tags.value, tags.key[0], tags.close]) {
                Found::Mark(at, 0) => {
                    let key = std::mem::take(key);
                    let opened = self.open_value(&key, tools);
                    Read::Arguments(at + tags.value.len(), opened)
                }
                // Skip a key without a value.
                Found::Mark(at, _) => {
                    self.state = State::Between;
                    Read::Arguments(at, String::new())
                }
                Found::None(0) => Read::More,
                Found::None(passed) => Read::Arguments(passed, String::new()),
            },
            State::Text { is_first } => {
                if *is_first && tags.in_lines {
                    if rest.is_empty() {
                        return Read::More;
                    }
                    *is_first = false;
                    if rest.starts_with('\n') {
                        return Read::Arguments(1, String::new());
                    }
                }
                // A newline before the closing tag may not belong to the text.
                let own = |text: &str| match tags.in_lines {
                    true => text.strip_suffix('\n').map_or(text.len(), str::len),
                    false => text.len(),
                };
                match find(rest, &[tags.close_value]) {
                    Found::Mark(at, _) => {
                        self.state = State::Between;
                        Read::Arguments(
                            at + tags.close_value.len(),
                            escaped(&rest[..own(&rest[..at])]) + "\"",
                        )
                    }
                    Found::None(passed) => match own(&rest[..passed]) {
                        0 => Read::More,
                        passed => Read::Arguments(passed, escaped(&rest[..passed])),
                    },
                }
            }
            State::Other { text } => match find(rest, &[tags.close_value]) {
                Found::Mark(at, _) => {
                    *text += &rest[..at];
                    let value = typed(text.trim());
                    self.state = State::Between;
                    Read::Arguments(at + tags.close_value.len(), value)
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

impl Tagged {
    pub fn new(tags: &'static Tags) -> Self {
        Self { tags, state: State::default(), name: String::new(), has_parameters: false }
    }

    /// JSON before the value of an argument.
    fn open_value(&mut self, key: &str, tools: &[Tool]) -> String {
        let comma = if self.has_parameters { ", " } else { "{" };
        self.has_parameters = true;
        let tool = tools.iter().find(|tool| tool.name == self.name);
        let is_text = tool.is_some_and(|tool| tool.takes_text(key));
        self.state = match is_text {
            true => State::Text { is_first: true },
            false => State::Other { text: String::new() },
        };
        let quote = if is_text { "\"" } else { "" };
        format!("{comma}{}: {quote}", json!(key))
    }
}

/// Parses a name up to the first of `ends`, which is consumed, or up to another one, which is not. Returns an
/// error if the name is too long or spans lines.
fn name<'r>(rest: &'r str, ends: &[&str]) -> Option<Result<(&'r str, usize), ()>> {
    let head = &rest[..rest.floor_char_boundary(MAX_NAME_BYTES)];
    let (at, used) = match find(head, ends) {
        Found::Mark(at, 0) => (at, at + ends[0].len()),
        Found::Mark(at, _) => (at, at),
        Found::None(safe) if rest.len() >= MAX_NAME_BYTES || head[..safe].contains('\n') => {
            return Some(Err(()));
        }
        Found::None(_) => return None,
    };
    let name = &rest[..at];
    let is_none = name.contains('\n') || name.trim().is_empty();
    Some(if is_none { Err(()) } else { Ok((name.trim(), used)) })
}

/// Returns the value as written if it is valid JSON, otherwise as a JSON string.
fn typed(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => text.to_owned(),
        Err(_) => json!(text).to_string(),
    }
}
