//! `tojson` as Python's `json.dumps` writes it, which is what templates were trained with.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// How deep lists and maps may be nested.
const MAX_DEPTH: usize = 32;

/// `value` as JSON, with a space after each comma and colon; on lines of their own, where `indent` is given.
///
/// # Errors
/// For what is neither text, number, truth value, none, list nor map, or is nested too deep.
pub fn to_json(value: &Value, indent: Option<usize>) -> Result<String, Error> {
    let mut out = String::new();
    append(value, indent.map(|indent| indent.min(16)), 0, &mut out)?;
    Ok(out)
}

fn append(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) -> Result<(), Error> {
    let wrong = |what: &str| Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}")));
    if depth > MAX_DEPTH {
        return wrong("lists and maps are nested too deep");
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool | ValueKind::Number => out.push_str(&value.to_string().to_lowercase()),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?;
            list(items, ['[', ']'], indent, depth, out, |item, out| append(&item, indent, depth + 1, out))?;
        }
        ValueKind::Map => {
            let keys = value.try_iter()?;
            list(keys, ['{', '}'], indent, depth, out, |key, out| {
                quote(&key.to_string(), out);
                out.push_str(": ");
                append(&value.get_item(&key)?, indent, depth + 1, out)
            })?;
        }
        other => return wrong(&format!("cannot write {other}")),
    }
    Ok(())
}

fn list(
    items: impl Iterator<Item = Value>,
    [open, close]: [char; 2],
    indent: Option<usize>,
    depth: usize,
    out: &mut String,
    mut append_item: impl FnMut(Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    out.push(open);
    let mut empty = true;
    for item in items {
        if !empty {
            out.push_str(if indent.is_some() { "," } else { ", " });
        }
        empty = false;
        new_line(out, depth + 1);
        append_item(item, out)?;
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            char if char < ' ' => out.push_str(&format!("\\u{:04x}", char as u32)),
            char => out.push(char),
        }
    }
    out.push('"');
}
