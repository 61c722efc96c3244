//! One call as Python writes it, `f(a="b", c=[1, None])`, which becomes JSON.

use serde_json::{Value, json};

use super::Tool;
use super::head::is_name;
use super::scan::{Body, Read, escaped};

/// Longest name of a tool or an argument, in bytes. What is longer is no call.
const MOST_NAME_BYTES: usize = 256;

/// A call behind the `[` or the comma before it.
#[derive(Debug, Default)]
pub struct Pythonic {
    state: State,
    has_arguments: bool,
    /// Brackets of the value that are open.
    open: Vec<char>,
    /// True if a comma of the value came, which JSON has only between two items.
    comma: bool,
    /// True if a key of a dict is next.
    key: bool,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Name,
    Key,
    Value,
    /// In a text between such quotes.
    Text(char),
}

/// True if a text begins with a list of calls; `None` if it may and is too short.
pub fn is_list(text: &str) -> Option<bool> {
    let Some(inside) = text.strip_prefix('[') else { return Some(false) };
    let inside = inside.trim_start();
    match inside.find(|c: char| !is_name(c.encode_utf8(&mut [0; 4]))) {
        Some(end) => Some(end > 0 && end <= MOST_NAME_BYTES && inside[end..].starts_with('(')),
        None if inside.len() > MOST_NAME_BYTES => Some(false),
        None => None,
    }
}

impl Body for Pythonic {
    fn read(&mut self, rest: &str, _: &[Tool]) -> Read {
        match self.state {
            State::Name => match rest.find('(') {
                Some(end) if end <= MOST_NAME_BYTES && is_name(rest[..end].trim()) => {
                    self.state = State::Key;
                    Read::Begun(end + 1, rest[..end].trim().to_owned())
                }
                None if rest.len() <= MOST_NAME_BYTES => Read::More,
                _ => Read::Wrong,
            },
            State::Key => self.key(rest),
            State::Value | State::Text(_) => self.value(rest),
        }
    }
}

impl Pythonic {
    fn key(&mut self, rest: &str) -> Read {
        let blanks = rest.len() - rest.trim_start_matches([' ', '\n', '\t', '\r', ',']).len();
        let word = &rest[blanks..];
        if word.starts_with(')') {
            return Read::Ended(blanks + 1, (if self.has_arguments { "}" } else { "{}" }).to_owned());
        }
        match word.find(['=', ')', ',']).filter(|end| *end <= MOST_NAME_BYTES) {
            Some(end) if word[end..].starts_with('=') && is_name(word[..end].trim()) => {
                let open = if self.has_arguments { ", " } else { "{" };
                self.has_arguments = true;
                self.state = State::Value;
                Read::Arguments(blanks + end + 1, format!("{open}{}: ", json!(word[..end].trim())))
            }
            None if word.len() <= MOST_NAME_BYTES => Read::More,
            // The call has begun: what is no argument with a name is passed over.
            Some(end) if end > 0 => Read::Arguments(blanks + end, String::new()),
            _ => Read::Arguments(blanks + word.chars().next().map_or(0, char::len_utf8), String::new()),
        }
    }

    /// Reads as much of a value as there is.
    fn value(&mut self, rest: &str) -> Read {
        let (mut at, mut out) = (0, String::new());
        while let Some(c) = rest[at..].chars().next() {
            let used = if let State::Text(quote) = self.state {
                if c == quote {
                    self.state = State::Value;
                    out.push('"');
                    c.len_utf8()
                } else {
                    let Some((text, used)) = character(&rest[at..]) else { break };
                    out += &text;
                    used
                }
            } else if self.open.is_empty() && matches!(c, ',' | ')') {
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

    /// Reads what is between texts, and begins them. `None` if more is wanted.
    fn token(&mut self, c: char, rest: &str, out: &mut String) -> Option<usize> {
        match c {
            ' ' | '\n' | '\t' | '\r' => {}
            ',' => (self.comma, self.key) = (true, self.open.last() == Some(&'{')),
            ':' => {
                self.key = false;
                *out += ": ";
            }
            '[' | '(' | '{' => {
                self.item(out);
                self.open.push(c);
                self.key = c == '{';
                out.push(if c == '{' { '{' } else { '[' });
            }
            ']' | ')' | '}' => {
                (self.comma, self.key) = (false, false);
                out.extend(self.open.pop().map(|open| if open == '{' { '}' } else { ']' }));
            }
            '"' | '\'' => {
                self.item(out);
                self.state = State::Text(c);
                out.push('"');
            }
            _ => {
                let ends = |c: char| c.is_whitespace() || ",:()[]{}\"'".contains(c);
                let most = &rest[..rest.floor_char_boundary(MOST_NAME_BYTES)];
                let end = match most.find(ends) {
                    None if most.len() == rest.len() => return None,
                    end => end.unwrap_or(most.len()),
                };
                self.item(out);
                *out += &literal(&rest[..end], self.key);
                return Some(end);
            }
        }
        Some(c.len_utf8())
    }

    /// The comma before an item.
    fn item(&mut self, out: &mut String) {
        if std::mem::take(&mut self.comma) {
            *out += ", ";
        }
    }
}

/// A word as JSON: a key of a dict is a text.
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

/// The first character of what a text of Python goes on with, as a text of JSON has it, and the bytes that it
/// takes. `None` if more is wanted.
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
        // As in Python, a backslash before any other character is one.
        _ => return Some(("\\\\".to_owned(), 1)),
    };
    let code: String = chars.take(digits).collect();
    if code.chars().count() < digits {
        return None;
    }
    let value = u32::from_str_radix(&code, 16).ok().filter(|_| code.bytes().all(|byte| byte != b'+'));
    let text = match (value, value.and_then(char::from_u32)) {
        // A half of a pair stays as it is written.
        (Some(_), None) if escape == 'u' => format!("\\u{code}"),
        (_, Some(c)) => escaped(c.encode_utf8(&mut [0; 4])),
        _ => return Some(("\\\\".to_owned(), 1)),
    };
    Some((text, 2 + digits))
}
