//! Parses a call with bracketed arguments, `f(a="b", c=[1, None])` or `call:f{a:<escape>b<escape>}`, and
//! converts it to JSON.

use serde_json::{Value, json};

use super::head::is_name;
use super::scan::{Body, Read, escaped};
use super::{Format, Tool};

/// Longest name of a tool or an argument, in bytes; anything longer is not a call.
const MAX_NAME_BYTES: usize = 256;

#[derive(Debug)]
pub struct Notation {
    /// Before the name.
    pub call: &'static str,
    /// Optional wrappers around the name, ignored unless a tool has that name.
    pub wrappers: &'static [&'static str],
    /// Brackets around the arguments.
    pub around: [char; 2],
    /// Separator between the name of an argument and its value.
    pub assign: char,
    /// Separator between arguments.
    pub comma: &'static str,
    /// Quotes around strings, and whether a backslash in them is an escape.
    pub quotes: &'static [(&'static str, bool)],
    /// Brackets around lists and dicts: opening ones, closing ones.
    pub brackets: [&'static str; 2],
    /// Characters that end a word, besides whitespace; a colon only ends a key.
    pub word_ends: &'static str,
}

/// Python notation.
pub const PYTHON: Notation = Notation {
    call: "",
    wrappers: &[],
    around: ['(', ')'],
    assign: '=',
    comma: ", ",
    quotes: &[("\"", true), ("'", true)],
    brackets: ["([{", ")]}"],
    word_ends: ",()[]{}\"' \n\t\r",
};

/// Gemma 3's `tool_code`: Python notation; the call may be wrapped in `print(` and the function may have a
/// module.
///
/// Source: LiteRT-LM, `runtime/conversation/model_data_processor/gemma3_data_processor_config.h`.
pub const TOOL_CODE: Notation = Notation { wrappers: &["print(", "default_api."], ..PYTHON };

/// FunctionGemma notation.
///
/// Source: <https://ai.google.dev/gemma/docs/functiongemma/formatting-and-best-practices>.
pub const FUNCTION_GEMMA: Notation = Notation {
    call: "call:",
    wrappers: &[],
    around: ['{', '}'],
    assign: ':',
    comma: ",",
    quotes: &[("<escape>", false), ("\"", true)],
    brackets: ["[{", "]}"],
    word_ends: ",[]{}",
};

/// Gemma 4's notation.
pub const GEMMA4: Notation = Notation { quotes: &[("<|\"|>", false), ("\"", true)], ..FUNCTION_GEMMA };

/// Marks around a call in a notation.
pub struct Marked {
    pub marks: [&'static str; 2],
    pub notation: &'static Notation,
}

impl Format {
    /// Marks and notation of the format, if a call is between marks and not in JSON.
    pub(super) fn marked(self) -> Option<Marked> {
        match self {
            Self::FunctionGemma => Some(Marked {
                marks: ["<start_function_call>", "<end_function_call>"],
                notation: &FUNCTION_GEMMA,
            }),
            Self::Gemma4 => Some(Marked { marks: ["<|tool_call>", "<tool_call|>"], notation: &GEMMA4 }),
            _ => None,
        }
    }
}

/// Parser of one call, starting before its name.
#[derive(Debug)]
pub struct Bracketed {
    notation: &'static Notation,
    state: State,
    has_arguments: bool,
    /// Open brackets in the current value.
    open: Vec<char>,
    /// True if a comma is pending; JSON allows one only between two items.
    comma: bool,
    /// True if the next item is a key of a dict.
    key: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Name,
    Key,
    Value,
    /// Inside a string that ends with this quote; whether a backslash in it is an escape.
    Text(&'static str, bool),
}

/// True if a text starts with a list of calls; `None` if more text is needed to tell.
pub fn is_list(text: &str) -> Option<bool> {
    let Some(inside) = text.strip_prefix('[') else { return Some(false) };
    let inside = inside.trim_start();
    match inside.find(|c: char| !is_name(c.encode_utf8(&mut [0; 4]))) {
        Some(end) => Some(end > 0 && end <= MAX_NAME_BYTES && inside[end..].starts_with('(')),
        None if inside.len() > MAX_NAME_BYTES => Some(false),
        None => None,
    }
}

impl Body for Bracketed {
    fn read(&mut self, rest: &str, tools: &[Tool]) -> Read {
        match self.state {
            State::Name => self.name(rest, tools),
            State::Key => self.key(rest),
            State::Value | State::Text(..) => self.value(rest),
        }
    }
}

impl Bracketed {
    pub fn new(notation: &'static Notation) -> Self {
        Self {
            notation,
            state: State::Name,
            has_arguments: false,
            open: Vec::new(),
            comma: false,
            key: false,
        }
    }

    fn name(&mut self, rest: &str, tools: &[Tool]) -> Read {
        let Notation { call, wrappers, around, .. } = self.notation;
        let Some(mut named) = rest.strip_prefix(call) else {
            return if call.starts_with(rest) { Read::More } else { Read::Wrong };
        };
        let is_tool = |name: &str| tools.iter().any(|tool| tool.name == name);
        let wrapper = |named: &str| {
            wrappers
                .iter()
                .find(|wrapper| named.starts_with(**wrapper) && !is_tool(&wrapper[..wrapper.len() - 1]))
        };
        while let Some(wrapper) = wrapper(named) {
            named = named[wrapper.len()..].trim_start();
        }
        match named.find(around[0]) {
            Some(end) if end <= MAX_NAME_BYTES && is_name(named[..end].trim()) => {
                self.state = State::Key;
                Read::Begun(rest.len() - named.len() + end + 1, named[..end].trim().to_owned())
            }
            None if rest.len() <= MAX_NAME_BYTES => Read::More,
            _ => Read::Wrong,
        }
    }

    fn key(&mut self, rest: &str) -> Read {
        let Notation { around: [_, close], assign, .. } = *self.notation;
        let blanks = rest.len() - rest.trim_start_matches([' ', '\n', '\t', '\r', ',']).len();
        let word = &rest[blanks..];
        if word.starts_with(close) {
            return Read::Ended(blanks + 1, (if self.has_arguments { "}" } else { "{}" }).to_owned());
        }
        match word.find([assign, close, ',']).filter(|end| *end <= MAX_NAME_BYTES) {
            Some(end) if word[end..].starts_with(assign) && self.is_key(word[..end].trim()) => {
                let open = if self.has_arguments { ", " } else { "{" };
                self.has_arguments = true;
                self.state = State::Value;
                Read::Arguments(blanks + end + 1, format!("{open}{}: ", json!(word[..end].trim())))
            }
            None if word.len() <= MAX_NAME_BYTES => Read::More,
            // The call has begun, so skip anything that is not a named argument.
            Some(end) if end > 0 => Read::Arguments(blanks + end, String::new()),
            _ => Read::Arguments(blanks + word.chars().next().map_or(0, char::len_utf8), String::new()),
        }
    }

    /// True if a text can be the name of an argument, which a schema may choose freely.
    fn is_key(&self, text: &str) -> bool {
        let Notation { quotes, brackets: [open, close], .. } = self.notation;
        let has_bracket = text.contains(|c| open.contains(c) || close.contains(c));
        !text.is_empty()
            && !text.contains('\n')
            && !has_bracket
            && !quotes.iter().any(|(mark, _)| text.contains(mark))
    }

    /// Parses as much of a value as is available.
    fn value(&mut self, rest: &str) -> Read {
        let (mut at, mut out) = (0, String::new());
        while let Some(c) = rest[at..].chars().next() {
            let used = if let State::Text(mark, has_escapes) = self.state {
                if rest[at..].starts_with(mark) {
                    self.state = State::Value;
                    out.push('"');
                    mark.len()
                } else if mark.starts_with(&rest[at..]) {
                    break;
                } else if !has_escapes {
                    out += &escaped(c.encode_utf8(&mut [0; 4]));
                    c.len_utf8()
                } else {
                    let Some((text, used)) = character(&rest[at..]) else { break };
                    out += &text;
                    used
                }
            } else if self.open.is_empty() && (c == ',' || c == self.notation.around[1]) {
                self.state = State::Key;
                return Read::Arguments(at, out);
            } else {
                let Some(used) = self.token(c, &rest[at..], &mut out) else { break };
                used
            };
            at += used;
        }
        if at == 0 { Read::More } else { Read::Arguments(at, out) }
    }

    /// Parses a token between strings, or the start of a string. `None` if more text is needed.
    fn token(&mut self, c: char, rest: &str, out: &mut String) -> Option<usize> {
        let Notation { quotes, brackets: [opening, closing], .. } = self.notation;
        if let Some((mark, has_escapes)) = quotes.iter().find(|(mark, _)| rest.starts_with(mark)) {
            self.item(out);
            self.state = State::Text(mark, *has_escapes);
            out.push('"');
            return Some(mark.len());
        }
        match c {
            _ if quotes.iter().any(|(mark, _)| mark.starts_with(rest)) => return None,
            ' ' | '\n' | '\t' | '\r' => {}
            ',' => (self.comma, self.key) = (true, self.open.last() == Some(&'{')),
            ':' => {
                if std::mem::take(&mut self.key) {
                    *out += ": ";
                }
            }
            c if opening.contains(c) => {
                self.item(out);
                self.open.push(c);
                self.key = c == '{';
                out.push(if c == '{' { '{' } else { '[' });
            }
            c if closing.contains(c) => {
                (self.comma, self.key) = (false, false);
                out.extend(self.open.pop().map(|open| if open == '{' { '}' } else { ']' }));
            }
            _ => {
                let Notation { word_ends, .. } = self.notation;
                let colon_ends = self.key || word_ends.contains(' ');
                let ends = |c: char| word_ends.contains(c) || c == ':' && colon_ends;
                let most = &rest[..rest.floor_char_boundary(MAX_NAME_BYTES)];
                let end = match most.find(ends) {
                    None if most.len() == rest.len() => return None,
                    end => end.unwrap_or(most.len()),
                };
                self.item(out);
                *out += &literal(rest[..end].trim_end(), self.key);
                return Some(end);
            }
        }
        Some(c.len_utf8())
    }

    fn item(&mut self, out: &mut String) {
        if std::mem::take(&mut self.comma) {
            *out += ", ";
        }
    }
}
/// Converts a word to JSON; a key of a dict becomes a string.
fn literal(word: &str, is_key: bool) -> String {
    let json = match word {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        word if serde_json::from_str::<Value>(word).is_ok() => word,
        word => return json!(word).to_string(),
    };
    if is_key { json!(json).to_string() } else { json.to_owned() }
}

/// Converts the next character of a Python string to JSON. Returns it with the number of bytes read; `None`
/// if more text is needed.
fn character(rest: &str) -> Option<(String, usize)> {
    let mut chars = rest.chars();
    let first = chars.next()?;
    if first != '\\' {
        return Some((escaped(first.encode_utf8(&mut [0; 4])), first.len_utf8()));
    }
    let escape = chars.next()?;
    let digits = match escape {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        '\n' => return Some((String::new(), 2)),
        'n' | 't' | 'r' | 'b' | 'f' | '"' | '\\' => return Some((format!("\\{escape}"), 2)),
        '\'' | '/' => return Some((escape.to_string(), 2)),
        // As in Python, a backslash before any other character is literal.
        _ => return Some(("\\\\".to_owned(), 1)),
    };
    let code: String = chars.take(digits).collect();
    if code.chars().count() < digits {
        return None;
    }
    let value = u32::from_str_radix(&code, 16).ok().filter(|_| code.bytes().all(|byte| byte != b'+'));
    let text = match (value, value.and_then(char::from_u32)) {
        // Half of a surrogate pair is copied as written.
        (Some(_), None) if escape == 'u' => format!("\\u{code}"),
        (_, Some(c)) => escaped(c.encode_utf8(&mut [0; 4])),
        _ => return Some(("\\\\".to_owned(), 1)),
    };
    Some((text, 2 + digits))
}
