//! Python's methods of strings, lists and maps that minijinja-contrib lacks or implements differently.

use std::fmt;
use std::sync::Arc;

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::Budget;
use super::python;

/// Python's methods of maps. An attribute with one of these names is the method, not an item of the map.
pub const OF_MAPS: &[&str] = &[
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];

/// A method bound to a value.
#[derive(Debug)]
struct Method {
    of: Value,
    name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, &self.name, args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}

/// Attribute `name` of a value: the method, if the value is a map and `name` is in [`OF_MAPS`].
///
/// # Errors
/// If the value is undefined.
pub fn attribute(value: &Value, name: String) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map if python::Object::of(value).is_none() => {
            Ok(Value::from_object(Method { of: value.clone(), name }))
        }
        ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
        _ => value.get_attr(&name),
    }
}

/// Maximum width of one placeholder of a format, in bytes.
const MAX_WIDTH: u64 = 1000;

/// Calls `method` on `value`.
///
/// # Errors
/// If the method does not exist, its arguments are wrong, or the budget is spent.
pub fn call(
    budget: &Budget,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    budget.charge_many(value)?;
    args.iter().try_for_each(|arg| budget.charge(arg))?;
    match value.as_str() {
        Some(text) => of_text(budget, state, text, value, method, args),
        None => match (value.kind(), method) {
            (ValueKind::Seq | ValueKind::Map, "copy") => {
                let () = from_args(args)?;
                Ok(value.clone())
            }
            (ValueKind::Seq, "index") => {
                let (wanted,): (&Value,) = from_args(args)?;
                let at = value.try_iter()?.position(|item| item == *wanted);
                at.map(Value::from).ok_or_else(|| wrong("index: not in the list"))
            }
            _ => unknown_method_callback(state, value, method, args),
        },
    }
}

fn of_text(
    budget: &Budget,
    state: &mut State<'_, '_>,
    text: &str,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let one = || -> Result<&str, Error> { from_args(args).map(|(text,): (&str,)| text) };
    Ok(match method {
        "strip" => strip(text, args, true, true)?,
        "lstrip" => strip(text, args, true, false)?,
        "rstrip" => strip(text, args, false, true)?,
        "split" => split(text, args, false)?,
        "rsplit" => split(text, args, true)?,
        "splitlines" => {
            let [keep_ends] = bind(args, ["keepends"])?;
            let lines = python::lines(text, keep_ends.is_some_and(|keep| keep.is_true()));
            lines.into_iter().map(Value::from).collect()
        }
        "removeprefix" => Value::from(text.strip_prefix(one()?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(one()?).unwrap_or(text)),
        "partition" => parts(text, text.split_once(one()?), one()?, [text, "", ""])?,
        "rpartition" => parts(text, text.rsplit_once(one()?), one()?, ["", "", text])?,
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, method, args)?,
        "startswith" | "endswith" => has_end(text, method, args)?,
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |char: char| match char.is_uppercase() {
                true => char.to_lowercase().to_string(),
                false => char.to_uppercase().to_string(),
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "replace" => {
            budget.charge_replace(&[std::slice::from_ref(value), args].concat())?;
            let [from, to, count] = bind(args, ["old", "new", "count"])?;
            replace(text, [&from, &to], count.as_ref())?
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            budget.charge_join(Some(items), Some(value))?;
            let items: Vec<Value> = items.try_iter()?.collect();
            let texts: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
            Value::from(texts.ok_or_else(|| wrong("join: expected texts"))?.join(text))
        }
        "format" => Value::from(fill_in(budget, FormatStyle::StrFormat, text, args)?),
        // A width can make long text from a number.
        "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => {
            return Err(Error::from(ErrorKind::UnknownMethod));
        }
        _ => return unknown_method_callback(state, value, method, args),
    })
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

/// Binds arguments by position or name, as Python does. `None` if an argument is missing.
///
/// # Errors
/// Too many arguments, unknown names, or an argument given twice.
pub fn bind<const N: usize>(args: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let (by_place, by_name): (Rest<Value>, Kwargs) = from_args(args)?;
    if by_place.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut bound = [const { None }; N];
    for (i, name) in names.iter().enumerate() {
        bound[i] = match (by_place.get(i), by_name.has(name)) {
            (Some(_), true) => return Err(Error::from(ErrorKind::TooManyArguments)),
            (Some(value), false) => Some(value.clone()),
            (None, true) => Some(by_name.get::<Value>(name)?),
            (None, false) => None,
        };
    }
    by_name.assert_all_used()?;
    Ok(bound)
}

/// The argument, unless it is none.
fn given(value: &Option<Value>) -> Option<&Value> {
    value.as_ref().filter(|value| !value.is_none())
}

fn strip(text: &str, args: &[Value], start: bool, end: bool) -> Result<Value, Error> {
    let (chars,): (Option<&str>,) = from_args(args)?;
    let goes = |char: char| chars.map_or_else(|| python::is_space(char), |chars| chars.contains(char));
    let text = if start { text.trim_start_matches(goes) } else { text };
    Ok(Value::from(if end { text.trim_end_matches(goes) } else { text }))
}

fn split<'t>(text: &'t str, args: &[Value], from_end: bool) -> Result<Value, Error> {
    let [separator, most] = bind(args, ["sep", "maxsplit"])?;
    let most = most.map_or(Ok(-1), i64::try_from)?;
    let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
    let pieces: Vec<&'t str> = match given(&separator) {
        Some(separator) => match separator.as_str() {
            Some("") => return Err(wrong("split: empty separator")),
            Some(separator) if from_end => text.rsplitn(most + 1, separator).collect(),
            Some(separator) => text.splitn(most + 1, separator).collect(),
            None => return Err(wrong("split: the separator is not a string")),
        },
        // Split at runs of whitespace; the rest keeps its inner whitespace and that at its far end.
        None => {
            let trim = |rest: &'t str| match from_end {
                true => rest.trim_end_matches(python::is_space),
                false => rest.trim_start_matches(python::is_space),
            };
            let (mut pieces, mut rest) = (Vec::new(), trim(text));
            while !rest.is_empty() {
                let found = match from_end {
                    _ if pieces.len() == most => None,
                    true => rest.rsplit_once(python::is_space).map(|(rest, piece)| (piece, rest)),
                    false => rest.split_once(python::is_space),
                };
                let (piece, more) = found.unwrap_or((rest, ""));
                pieces.push(piece);
                rest = trim(more);
            }
            pieces
        }
    };
    let pieces = pieces.into_iter().map(Value::from);
    Ok(if from_end { pieces.rev().collect() } else { pieces.collect() })
}

fn parts(
    text: &str,
    found: Option<(&str, &str)>,
    separator: &str,
    not_found: [&str; 3],
) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(wrong("partition: empty separator"));
    }
    let parts = found.map_or(not_found, |(before, after)| [before, separator, after]);
    debug_assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), text.len());
    Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())))
}

/// Part of `text` from character `start` to `end`, with slice semantics, and its start.
fn part<'t>(
    text: &'t str,
    start: Option<&Value>,
    end: Option<&Value>,
) -> Result<Option<(&'t str, usize)>, Error> {
    let n_chars = text.chars().count();
    let place = |at: Option<&Value>, otherwise: usize| -> Result<usize, Error> {
        let Some(at) = at else { return Ok(otherwise) };
        let at = i64::try_from(at.clone())?;
        let n_chars = i64::try_from(n_chars).unwrap_or(i64::MAX);
        Ok(usize::try_from(if at < 0 { at.saturating_add(n_chars).max(0) } else { at }).unwrap_or(0))
    };
    let (start, end) = (place(start, 0)?, place(end, n_chars)?.min(n_chars));
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    Ok((start <= end).then(|| (&text[byte(start)..byte(end)], start)))
}

fn search(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, start, end] = bind(args, ["sub", "start", "end"])?;
    let wanted = wanted.as_ref().and_then(Value::as_str).ok_or_else(|| wrong("expected text to find"))?;
    let part = part(text, given(&start), given(&end))?;
    if method == "count" {
        return Ok(Value::from(part.map_or(0, |(part, _)| part.matches(wanted).count())));
    }
    let from_end = method.starts_with('r');
    let found = part.and_then(|(part, before)| {
        let at = if from_end { part.rfind(wanted) } else { part.find(wanted) };
        Some(part[..at?].chars().count() + before)
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if method.ends_with("index") => Err(wrong("index: not in the text")),
        None => Ok(Value::from(-1)),
    }
}

fn has_end(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [wanted, start, end] = bind(args, ["prefix", "start", "end"])?;
    let wanted = wanted.unwrap_or_default();
    let wanted = match wanted.is_tuple() {
        true => wanted.try_iter()?.collect(),
        false => vec![wanted],
    };
    let part = part(text, given(&start), given(&end))?;
    for wanted in wanted {
        let wanted = wanted.as_str().ok_or_else(|| wrong("expected text or a tuple of texts"))?;
        let has = |(part, _): (&str, usize)| match method {
            "startswith" => part.starts_with(wanted),
            _ => part.ends_with(wanted),
        };
        if part.is_some_and(has) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// Python's `text.replace(from, to, count)`.
///
/// # Errors
/// If the text to replace or its replacement is not text, or the count is not a number.
pub fn replace(text: &str, pair: [&Option<Value>; 2], count: Option<&Value>) -> Result<Value, Error> {
    let [Some(from), Some(to)] = pair.map(|value| value.as_ref().and_then(Value::as_str)) else {
        return Err(wrong("replace: expected two texts"));
    };
    let count = count.filter(|count| !count.is_none()).cloned().map_or(Ok(-1), i64::try_from)?;
    Ok(Value::from(match usize::try_from(count) {
        Ok(count) => text.replacen(from, to, count),
        Err(_) => text.replace(from, to),
    }))
}

/// Capitalises each letter that does not follow a letter.
fn title(text: &str) -> String {
    let (mut out, mut in_word) = (String::with_capacity(text.len()), false);
    for char in text.chars() {
        match in_word {
            true => out.extend(char.to_lowercase()),
            false => out.extend(char.to_uppercase()),
        }
        in_word = char.is_alphabetic();
    }
    out
}

/// Implements `text.format(…)` and `text % …`.
///
/// # Errors
/// As Python's, and if a placeholder may be wider than any template needs.
pub fn fill_in(budget: &Budget, style: FormatStyle, text: &str, args: &[Value]) -> Result<String, Error> {
    let mark = if style == FormatStyle::Printf { '%' } else { '{' };
    let plain = format!("{mark}{mark}");
    let mut n_places = 0;
    for place in text.replace(&plain, "").split(mark).skip(1) {
        n_places += 1;
        let place = match style {
            FormatStyle::Printf => place.split(|c: char| c.is_alphabetic()).next().unwrap_or_default(),
            _ => place.split('}').next().unwrap_or_default(),
        };
        let digits = place.split(|char: char| !char.is_ascii_digit());
        let is_wide = digits.map(str::len).max().unwrap_or(0) > 3;
        if is_wide || (style == FormatStyle::Printf && place.contains('*')) {
            return Err(wrong("format: width is too large"));
        }
    }
    if style != FormatStyle::Printf && has_nested_place(text) {
        return Err(wrong("format: width must be a number"));
    }
    let is_lone = args.len() == 1 && matches!(args[0].kind(), ValueKind::Map | ValueKind::Seq);
    if style == FormatStyle::Printf && n_places < args.len() as u64 && !is_lone {
        return Err(wrong("format: more values than placeholders"));
    }
    // Every placeholder may write a value.
    args.iter().try_for_each(|arg| (0..n_places).try_for_each(|_| budget.charge(arg)))?;
    budget.spend(n_places * MAX_WIDTH + text.len() as u64)?;
    format(style, text, args)
}

/// True if a placeholder is nested in another: `{:{}}`.
fn has_nested_place(text: &str) -> bool {
    let text = text.replace("{{", "").replace("}}", "");
    text.split('{').skip(1).any(|place| !place.contains('}'))
}
