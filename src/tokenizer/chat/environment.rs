//! The Jinja that templates are written for: Hugging Face's settings, Python's methods, and charges.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::budget::Budget;
use super::rewrite::{self, CHARGE, FACTOR};
use super::{Extras, Message, json, message, time};

/// How deep blocks, loops and macros may be nested; minijinja counts a macro as several.
const MAX_RECURSION: usize = 100;
/// A namespace can be nested in another without any literal; this bounds how many there are.
const NAMESPACE_BYTES: u64 = 32 << 10;

/// An environment that holds the template `source` under `name`, for one rendering.
///
/// # Errors
/// Where the source is not valid Jinja, or cannot be bounded.
pub fn with_template(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    let budget = Arc::new(Budget::default());
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let mut env = Environment::new();
    env.set_syntax(syntax.clone());
    env.set_recursion_limit(MAX_RECURSION);
    add_filters(&mut env, &budget);
    add_functions(&mut env, &budget);
    let spent = budget.clone();
    env.set_formatter(move |out, state, value| {
        spent.charge(value)?;
        minijinja::escape_formatter(out, state, value)
    });
    let rewritten = rewrite::with_charges(&without_generation_blocks(source), syntax)?;
    env.set_fuel(Some(Budget::fuel(rewritten.longest_text)));
    env.add_template_owned(name, rewritten.source)?;
    Ok(env)
}

/// What a template sees.
pub fn context(
    messages: &[Message],
    extras: &Extras,
    [bos, eos]: [&str; 2],
    add_generation_prompt: bool,
) -> Value {
    let messages: Vec<Value> = messages.iter().map(Message::value).collect();
    let tools: Vec<Value> = extras.tools.iter().map(message::value).collect();
    let variables = extras.variables.iter().map(|(key, json)| (key.clone(), message::value(json)));
    let given = [
        ("messages", Value::from(messages)),
        ("bos_token", Value::from(bos)),
        ("eos_token", Value::from(eos)),
        ("add_generation_prompt", Value::from(add_generation_prompt)),
        // Templates ask whether it is none.
        ("tools", if tools.is_empty() { Value::from(()) } else { Value::from(tools) }),
        ("documents", Value::from(())),
    ];
    // The last of equal keys counts.
    Value::from_pairs(variables.chain(given.map(|(key, value)| (key.to_owned(), value))))
}

/// `{% generation %}` marks what a trainer learns from; a reader passes it by.
fn without_generation_blocks(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(at) = rest.find("{%") {
        out += &rest[..at];
        rest = &rest[at..];
        let (tag, behind) = match word_of_generation(rest) {
            Some((open, word, close)) => {
                out += &rest[..open];
                (word, close)
            }
            None => ("{%", &rest[2..]),
        };
        out += tag;
        rest = behind;
    }
    out + rest
}

/// Of a text that begins with `{% generation %}` or `{% endgeneration %}`: where the word begins, what is
/// written in its place, and the text behind it.
fn word_of_generation(tag: &str) -> Option<(usize, &'static str, &str)> {
    let inside = without_sign(&tag[2..]).trim_start();
    let (word, behind) = match inside.strip_prefix("end") {
        Some(inside) => ("endif", inside),
        None => ("if true", inside),
    };
    let behind = behind.strip_prefix("generation")?;
    let is_closed = without_sign(behind.trim_start()).starts_with("%}");
    is_closed.then_some((tag.len() - inside.len(), word, behind))
}

/// `{%-` and `{%+` say what becomes of whitespace.
fn without_sign(text: &str) -> &str {
    text.strip_prefix(['-', '+']).unwrap_or(text)
}

/// The filters that chat templates use and whose result is not much larger than what they are given.
fn add_filters(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    for name in ["batch", "slice", "groupby", "chain", "zip", "pprint", "format", "attr"] {
        env.remove_filter(name);
    }
    let plain = [
        ("capitalize", Value::from_function(filters::capitalize)),
        ("count", Value::from_function(filters::length)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("first", Value::from_function(filters::first)),
        ("float", Value::from_function(filters::float)),
        ("int", Value::from_function(filters::int)),
        ("items", Value::from_function(filters::items)),
        ("last", Value::from_function(filters::last)),
        ("length", Value::from_function(filters::length)),
        ("lines", Value::from_function(filters::lines)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("reverse", Value::from_function(filters::reverse)),
        ("safe", Value::from_function(filters::safe)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("sort", Value::from_function(filters::sort)),
        ("split", Value::from_function(filters::split)),
        ("string", Value::from_function(filters::string)),
        ("sum", Value::from_function(filters::sum)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
    ];
    for (name, filter) in plain {
        let budget = budget.clone();
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            args.iter().try_for_each(|arg| charge_many(&budget, arg))?;
            filter.call(state, &args)
        });
    }
    let spent = budget.clone();
    env.add_filter("replace", move |state: &mut State<'_, '_>, text: Value, from: Value, to: Value| {
        charge_replace(&spent, &[text.clone(), from.clone(), to.clone()])?;
        Value::from_function(filters::replace).call(state, &[text, from, to])
    });
    let spent = budget.clone();
    env.add_filter("join", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        charge_join(&spent, args.first(), args.get(1))?;
        Value::from_function(filters::join).call(state, &args)
    });
    let spent = budget.clone();
    env.add_filter("indent", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        charge_indent(&spent, &args)?;
        Value::from_function(filters::indent).call(state, &args)
    });
    let spent = budget.clone();
    env.add_filter("tojson", move |value: Value, options: Kwargs| {
        let indent: Option<usize> = options.get("indent")?;
        let _: (Option<Value>, Option<Value>) = (options.get("ensure_ascii")?, options.get("sort_keys")?);
        options.assert_all_used()?;
        // Escapes make a character six, and lines are indented.
        (0..6 + indent.unwrap_or(0).min(16)).try_for_each(|_| spent.charge(&value))?;
        json::to_json(&value, indent)
    });
    let spent = budget.clone();
    env.add_filter(CHARGE, move |value: Value| spent.charge(&value).map(|()| value));
    env.add_filter(FACTOR, |value: Value| {
        // Repeating text is the one product that grows, and no template needs it.
        if value.is_number() || value.is_undefined() {
            return Ok(value);
        }
        Err(Error::new(ErrorKind::InvalidOperation, "`*` is for numbers in chat templates"))
    });
}

fn add_functions(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    for name in ["dict", "debug"] {
        env.remove_global(name);
    }
    env.add_function("raise_exception", |message: String| -> Result<(), Error> { Err(raise(message)) });
    env.add_function("strftime_now", |format: String| time::strftime_now(&format));
    let spent = budget.clone();
    let namespace = Value::from_function(functions::namespace);
    env.add_function("namespace", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        spent.spend(NAMESPACE_BYTES)?;
        args.iter().try_for_each(|arg| spent.charge(arg))?;
        namespace.call(state, &args)
    });
    let spent = budget.clone();
    env.set_unknown_method_callback(move |state, value, method, args| {
        charge_many(&spent, value)?;
        args.iter().try_for_each(|arg| spent.charge(arg))?;
        match method {
            "replace" => charge_replace(&spent, &[std::slice::from_ref(value), args].concat())?,
            "join" => charge_join(&spent, args.first(), Some(value))?,
            "format" => return fill_in(&spent, value, args),
            // Widths make text out of numbers.
            "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => {
                return Err(Error::from(ErrorKind::UnknownMethod));
            }
            _ => {}
        }
        unknown_method_callback(state, value, method, args)
    });
}

/// For what may make a list of a text: one value a character.
fn charge_many(budget: &Budget, value: &Value) -> Result<(), Error> {
    budget.spend(value.as_str().map_or(0, |text| 32 * text.len() as u64))?;
    budget.charge(value)
}

/// For `text.replace(from, to)`.
fn charge_replace(budget: &Budget, args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(|arg| budget.charge(arg))?;
    let [text, from, to, ..] = args else { return Ok(()) };
    let len = |value: &Value| value.as_str().map_or(64, str::len) as u64;
    let n_found = match (text.as_str(), from.as_str()) {
        (Some(text), Some(from)) => text.matches(from).count() as u64,
        _ => len(text) + 1,
    };
    budget.spend(n_found.saturating_mul(len(to)))
}

/// For `separator.join(items)`.
fn charge_join(budget: &Budget, items: Option<&Value>, separator: Option<&Value>) -> Result<(), Error> {
    let Some(items) = items else { return Ok(()) };
    budget.charge(items)?;
    let n_items = items.len().or_else(|| items.as_str().map(str::len)).unwrap_or(0) as u64;
    let separator_bytes = separator.and_then(Value::as_str).map_or(0, str::len) as u64;
    budget.spend(n_items.saturating_mul(separator_bytes + 32))
}

/// For `text | indent(width)`: each line grows by the width, which is the first argument or one by name.
fn charge_indent(budget: &Budget, args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(|arg| budget.charge(arg))?;
    let lines = args.first().and_then(Value::as_str).map_or(1, |text| text.matches('\n').count() + 1);
    let named = args.last().and_then(|last| last.get_attr("width").ok()).and_then(|width| width.as_usize());
    let width = args.get(1).and_then(Value::as_usize).or(named).unwrap_or(4);
    budget.spend((lines as u64).saturating_mul(width as u64))
}

/// Python's `text.format(…)` as far as templates need it: `{}` and `{0}`, and `{{` for a bracket. What says
/// how a value is written, as `{:>9}`, is refused.
fn fill_in(budget: &Budget, format: &Value, args: &[Value]) -> Result<Value, Error> {
    let wrong = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("format: {what}"));
    let mut rest = format.as_str().ok_or_else(|| Error::from(ErrorKind::UnknownMethod))?;
    let (mut out, mut next) = (String::new(), 0);
    while let Some(at) = rest.find(['{', '}']) {
        out += &rest[..at];
        let bracket = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(more) = rest.strip_prefix(bracket) {
            out += bracket;
            rest = more;
            continue;
        }
        let end = rest.find('}').filter(|_| bracket == "{").ok_or_else(|| wrong("a single bracket"))?;
        let index = match &rest[..end] {
            "" => {
                next += 1;
                next - 1
            }
            digits => digits.parse().map_err(|_| wrong("only {} and {0} are supported"))?,
        };
        let value = args.get(index).ok_or_else(|| wrong("more places than values"))?;
        budget.charge(value)?;
        out += &value.to_string();
        rest = &rest[end + 1..];
    }
    Ok(Value::from(out + rest))
}

/// Marks the errors that a template raises itself.
const RAISED: &str = "raise_exception: ";

fn raise(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}"))
}

/// The message, where the template raised the error itself.
pub fn raised(err: &Error) -> Option<String> {
    err.detail()?.strip_prefix(RAISED).map(str::to_owned)
}
