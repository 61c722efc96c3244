//! One call as tags with plain text between them, which becomes JSON.

use serde_json::{Value, json};

use super::scan::{Body, Found, Read, escaped, find};
use super::{Format, Tool};

/// Longest name of a tool or an argument, in bytes. What is longer is no call.
const MOST_NAME_BYTES: usize = 256;

/// The tags of a format.
#[derive(Debug)]
pub struct Tags {
    /// Around a call.
    pub outer: [&'static str; 2],
    /// True if several calls stand between one pair of them.
    pub holds_several: bool,
    /// Before the name of the tool; empty if that is `outer`.
    pub call: &'static str,
    /// Behind the name. The others end it, too, and are read again.
    pub name_ends: &'static [&'static str],
    /// Behind the arguments; that of `outer` if there is no other.
    pub close: &'static str,
    /// Around the name of an argument.
    pub key: [&'static str; 2],
    /// Before its value, on a line of its own; empty if the name's end is followed by the value.
    pub value: &'static str,
    /// Behind the value.
    pub close_value: &'static str,
    /// True if the value stands on lines of its own.
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
    /// Its tags, if calls are written with tags.
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

/// A call behind the tag before its name.
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
    /// Behind this key: the tag of its value comes.
    Value {
        key: String,
    },
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
                // The call has begun: a name that is none is passed over.
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
                // A key without a value is passed over.
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
                // A line end before the mark may be none of the text.
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
    /// A call with these tags.
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

/// The name before the first of `ends`, which is read with it, or before another of them; an error if it is
/// too long, or goes over a line.
fn name<'r>(rest: &'r str, ends: &[&str]) -> Option<Result<(&'r str, usize), ()>> {
    let head = &rest[..rest.floor_char_boundary(MOST_NAME_BYTES)];
    let (at, used) = match find(head, ends) {
        Found::Mark(at, 0) => (at, at + ends[0].len()),
        Found::Mark(at, _) => (at, at),
        Found::None(safe) if rest.len() >= MOST_NAME_BYTES || head[..safe].contains('\n') => {
            return Some(Err(()));
        }
        Found::None(_) => return None,
    };
    let name = &rest[..at];
    let is_none = name.contains('\n') || name.trim().is_empty();
    Some(if is_none { Err(()) } else { Ok((name.trim(), used)) })
}

/// A value as it is written if that is JSON, and a text otherwise.
fn typed(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(_) => text.to_owned(),
        Err(_) => json!(text).to_string(),
    }
}
