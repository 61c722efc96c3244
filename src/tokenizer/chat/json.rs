//! `tojson` as transformers defines it for templates: Python's `json.dumps`, which models were trained with.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::python;

const MAX_DEPTH: usize = 32;
/// Longest indent and separator, in characters.
pub const MAX_SPACE: usize = 16;

pub struct Style {
    /// Escape characters outside ASCII.
    pub ensure_ascii: bool,
    /// Indentation per level; each item is then on its own line.
    pub indent: Option<String>,
    /// Separators between two items, and between a key and its value.
    pub separators: [String; 2],
    pub sort_keys: bool,
}

impl Style {
    /// Builds the style from the arguments of `json.dumps`.
    ///
    /// # Errors
    /// If `json.dumps` would refuse a value, or if a separator or indent is longer than any template needs.
    pub fn of(
        ensure_ascii: Option<&Value>,
        indent: Option<&Value>,
        separators: Option<&Value>,
        sort_keys: Option<&Value>,
    ) -> Result<Self, Error> {
        let is_true = |value: Option<&Value>| value.is_some_and(Value::is_true);
        let bounded = |text: String| match text.chars().count() <= MAX_SPACE {
            true => Ok(text),
            false => Err(wrong(&format!("indent or separator longer than {MAX_SPACE} characters"))),
        };
        let indent = match indent.filter(|indent| !indent.is_none()) {
            None => None,
            Some(indent) if indent.as_str().is_some() => Some(python::text(indent)),
            Some(indent) => {
                let n = i64::try_from(indent.clone())?;
                Some(" ".repeat(usize::try_from(n).unwrap_or(0).min(MAX_SPACE + 1)))
            }
        };
        let indent = indent.map(bounded).transpose()?;
        let separators = match separators.filter(|separators| !separators.is_none()) {
            None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
            Some(pair) => {
                let texts = pair.try_iter()?.map(|text| bounded(python::text(&text)));
                let texts = texts.collect::<Result<Vec<_>, _>>()?;
                <[String; 2]>::try_from(texts).map_err(|_| wrong("expected two separators"))?
            }
        };
        Ok(Self { ensure_ascii: is_true(ensure_ascii), indent, separators, sort_keys: is_true(sort_keys) })
    }
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {what}"))
}

/// Writes `value` as JSON.
///
/// # Errors
/// If a value is not text, number, boolean, none, list or map, or is nested too deep.
pub fn to_json(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    style.append(value, 0, &mut out)?;
    Ok(out)
}

impl Style {
    fn append(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(wrong("lists and maps are nested too deep"));
        }
        match value.kind() {
            _ if python::Object::of(value).is_some() => return Err(wrong("cannot write an object")),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => out.push_str(&scalar(value)),
            ValueKind::String => self.quote(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect();
                self.list(items, ['[', ']'], depth, out, |item, out| self.append(&item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(keys, ['{', '}'], depth, out, |key, out| {
                    match key.as_str() {
                        Some(text) => self.quote(text, out),
                        None => self.quote(&scalar(&key), out),
                    }
                    out.push_str(&self.separators[1]);
                    self.append(&value.get_item(&key)?, depth + 1, out)
                })?;
            }
            other => return Err(wrong(&format!("cannot write {other}"))),
        }
        Ok(())
    }

    fn list(
        &self,
        items: Vec<Value>,
        [open, close]: [char; 2],
        depth: usize,
        out: &mut String,
        mut append_item: impl FnMut(Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |out: &mut String, depth: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(open);
        let is_empty = items.is_empty();
        for (i, item) in items.into_iter().enumerate() {
            if i > 0 {
                out.push_str(&self.separators[0]);
            }
            new_line(out, depth + 1);
            append_item(item, out)?;
        }
        if !is_empty {
            new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn quote(&self, text: &str, out: &mut String) {
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
                char if char < ' ' || (self.ensure_ascii && char > '~') => {
                    // Characters beyond 16 bits become a surrogate pair.
                    let escape = |unit: &u16| format!("\\u{unit:04x}");
                    out.extend(char.encode_utf16(&mut [0; 2]).iter().map(escape));
                }
                char => out.push(char),
            }
        }
        out.push('"');
    }
}

/// Writes a number, boolean or none, also when used as a key.
fn scalar(value: &Value) -> String {
    match (value.kind(), f64::try_from(value.clone())) {
        (ValueKind::None, _) => "null".to_owned(),
        (ValueKind::Number, Ok(number)) if number.is_nan() => "NaN".to_owned(),
        (ValueKind::Number, Ok(number)) if number.is_infinite() => {
            if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
        }
        (ValueKind::Bool, _) => python::text(value).to_lowercase(),
        _ => python::text(value),
    }
}
