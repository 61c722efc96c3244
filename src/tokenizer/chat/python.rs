//! Formats values as Python does: `str` for `{{ }}`, and `repr` inside lists and maps.

use minijinja::value::{Value, ValueKind};

use super::super::categories::{self, L, M, N, P, S, Set};

/// Categories of the characters that `repr` does not escape.
const VISIBLE: Set = L | M | N | P | S;

/// `str(value)`.
pub fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => repr(value),
    }
}

/// An object that minijinja represents as a map, but Python does not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Object {
    Loop,
    /// Result of `namespace()`.
    Namespace,
}

impl Object {
    pub fn of(value: &Value) -> Option<Self> {
        let name = value.as_object()?.type_name();
        [("::Loop", Self::Loop), ("::Namespace", Self::Namespace)]
            .into_iter()
            .find_map(|(end, object)| name.ends_with(end).then_some(object))
    }
}

/// `repr(value)`.
fn repr(value: &Value) -> String {
    let listed = |items: Vec<String>| items.join(", ");
    let items = || value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect::<Vec<_>>();
    let attribute = |name| value.get_attr(name).unwrap_or_default();
    match value.kind() {
        _ if Object::of(value) == Some(Object::Loop) => {
            format!("<LoopContext {}/{}>", attribute("index"), attribute("length"))
        }
        ValueKind::Undefined => "Undefined".to_owned(),
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::Seq if value.is_tuple() => match items() {
            one if one.len() == 1 => format!("({},)", one[0]),
            items => format!("({})", listed(items)),
        },
        ValueKind::Seq | ValueKind::Iterable => format!("[{}]", listed(items())),
        ValueKind::Map => {
            let pair = |key: Value| {
                let of_key = value.get_item(&key).unwrap_or_default();
                format!("{}: {}", repr(&key), repr(&of_key))
            };
            let pairs = value.try_iter().into_iter().flatten().map(pair).collect();
            let pairs = format!("{{{}}}", listed(pairs));
            match Object::of(value) {
                Some(_) => format!("<Namespace {pairs}>"),
                None => pairs,
            }
        }
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        _ => value.to_string(),
    }
}

/// `repr` of a string.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for char in text.chars() {
        let code = u32::from(char);
        match char {
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            '\\' => out += "\\\\",
            _ if char == quote => out.extend(['\\', quote]),
            _ if char == ' ' || categories::category(char) & VISIBLE != 0 => out.push(char),
            _ if code < 0x100 => out += &format!("\\x{code:02x}"),
            _ if code < 0x10000 => out += &format!("\\u{code:04x}"),
            _ => out += &format!("\\U{code:08x}"),
        }
    }
    out.push(quote);
    out
}

/// `repr` of a float: the shortest exact digits, with an exponent below 1e-4 and from 1e16 on.
pub fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

/// Whitespace according to Python's `str` methods.
pub fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\x1c'..='\x1f').contains(&char)
}

/// `text.splitlines(keep_ends)`.
pub fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let ends = ['\n', '\r', '\x0b', '\x0c', '\x1c', '\x1d', '\x1e', '\u{85}', '\u{2028}', '\u{2029}'];
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends) {
        let end_bytes = match rest[at..].starts_with("\r\n") {
            true => 2,
            false => rest[at..].chars().next().map_or(1, char::len_utf8),
        };
        lines.push(&rest[..if keep_ends { at + end_bytes } else { at }]);
        rest = &rest[at + end_bytes..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}
