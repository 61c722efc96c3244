//! The Jinja environment that templates expect: Hugging Face's settings and Python's methods, with charges.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, functions, tests};

use super::budget::Budget;
use super::python::Object;
use super::rewrite;
use super::{Extras, filters, macros, message, methods, names, operators, python, time};

/// Deepest nesting of blocks, loops and macros; minijinja counts a macro as several.
const MAX_RECURSION: usize = 100;
/// A namespace can be nested in another without a literal; this bounds their number.
const NAMESPACE_BYTES: u64 = 32 << 10;

/// Creates an environment for one rendering, with the template `source` under `name`.
///
/// # Errors
/// If the source is not valid Jinja, or its cost cannot be bounded.
pub fn with_template(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    let budget = Arc::new(Budget::default());
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let mut env = Environment::empty();
    env.set_syntax(syntax.clone());
    env.set_recursion_limit(MAX_RECURSION);
    filters::add(&mut env, &budget);
    add_tests(&mut env);
    add_functions(&mut env, &budget);
    let spent = budget.clone();
    env.set_formatter(move |out, _, value| {
        spent.charge(value)?;
        match value.as_str() {
            Some(text) => out.write_str(text)?,
            None => out.write_str(&python::text(value))?,
        }
        Ok(())
    });
    let rewritten = rewrite::rewritten(&without_generation_blocks(source), syntax)?;
    env.set_fuel(Some(Budget::fuel(rewritten.longest_text)));
    env.add_template_owned(name, rewritten.source)?;
    Ok(env)
}

pub fn context(
    messages: Vec<Value>,
    extras: &Extras,
    [bos, eos]: [&str; 2],
    add_generation_prompt: bool,
) -> Value {
    let tools: Vec<Value> = extras.tools.iter().map(message::value).collect();
    let variables = extras.variables.iter().map(|(key, json)| (key.clone(), message::value(json)));
    let given = [
        ("messages", Value::from(messages)),
        ("bos_token", Value::from(bos)),
        ("eos_token", Value::from(eos)),
        ("add_generation_prompt", Value::from(add_generation_prompt)),
        // Templates check whether it is none.
        ("tools", if tools.is_empty() { Value::from(()) } else { Value::from(tools) }),
        ("documents", Value::from(())),
    ];
    // The last of several equal keys wins.
    Value::from_pairs(variables.chain(given.map(|(key, value)| (key.to_owned(), value))))
}

/// Removes `{% generation %}` blocks, which mark text for training and have no effect here.
fn without_generation_blocks(source: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(at) = rest.find("{%") {
        out += &rest[..at];
        rest = &rest[at..];
        let (tag, after) = match word_of_generation(rest) {
            Some((open, word, close)) => {
                out += &rest[..open];
                (word, close)
            }
            None => ("{%", &rest[2..]),
        };
        out += tag;
        rest = after;
    }
    out + rest
}

/// If `tag` starts with `{% generation %}` or `{% endgeneration %}`: position of the word, its replacement,
/// and the text after it.
fn word_of_generation(tag: &str) -> Option<(usize, &'static str, &str)> {
    let inside = without_sign(&tag[2..]).trim_start();
    let (word, after) = match inside.strip_prefix("end") {
        Some(inside) => ("endwith", inside),
        None => ("with", inside),
    };
    let after = after.strip_prefix("generation")?;
    let is_closed = without_sign(after.trim_start()).starts_with("%}");
    is_closed.then_some((tag.len() - inside.len(), word, after))
}

/// Strips the whitespace control sign of `{%-` and `{%+`.
fn without_sign(text: &str) -> &str {
    text.strip_prefix(['-', '+']).unwrap_or(text)
}

type OfOne = fn(&Value) -> bool;
/// Test that compares a value with another.
type OfTwo = fn(&Value, &Value) -> bool;

/// Adds minijinja's tests, and the tests whose result depends on Python's types.
fn add_tests(env: &mut Environment<'static>) {
    let of_one: [(&str, OfOne); 15] = [
        ("boolean", tests::is_boolean),
        ("defined", tests::is_defined),
        ("escaped", tests::is_safe),
        ("even", |value| tests::is_even(value.clone())),
        ("false", tests::is_false),
        ("float", tests::is_float),
        ("integer", tests::is_integer),
        ("lower", tests::is_lower),
        ("none", tests::is_none),
        ("number", tests::is_number),
        ("odd", |value| tests::is_odd(value.clone())),
        ("string", tests::is_string),
        ("true", tests::is_true),
        ("undefined", tests::is_undefined),
        ("upper", tests::is_upper),
    ];
    for (name, test) in of_one {
        env.add_test(name, test);
    }
    let of_two: [(&str, OfTwo); 2] = [("divisibleby", tests::is_divisibleby), ("sameas", tests::is_sameas)];
    for (name, test) in of_two {
        env.add_test(name, test);
    }
    env.add_test("filter", tests::is_filter);
    env.add_test("test", tests::is_test);
    use ValueKind::{Bytes, Iterable, Map, Plain, Seq, String, Undefined};
    // Python requires a length and items by index or key.
    let is_sequence = |value: &Value| {
        let has_items = matches!(value.kind(), Undefined | String | Bytes | Seq | Map | Iterable);
        has_items && Object::of(value).is_none()
    };
    env.add_test("sequence", is_sequence);
    env.add_test("iterable", move |value: &Value| {
        is_sequence(value) || Object::of(value) == Some(Object::Loop)
    });
    env.add_test("mapping", |value: &Value| value.kind() == Map && Object::of(value).is_none());
    for (operator, names) in [
        ("==", &["eq", "equalto", "=="][..]),
        ("!=", &["ne", "!="]),
        ("<", &["lt", "lessthan", "<"]),
        ("<=", &["le", "<="]),
        (">", &["gt", "greaterthan", ">"]),
        (">=", &["ge", ">="]),
        ("in", &["in"]),
    ] {
        for name in names {
            env.add_test(*name, move |a: &Value, b: &Value| operators::holds(operator, a, b));
        }
    }
    env.add_test(names::MISSING, macros::is_missing);
    // Jinja2's undefined is callable; calling it raises the error.
    env.add_test("callable", |value: &Value| {
        matches!(value.kind(), Undefined | Plain) || Object::of(value) == Some(Object::Loop)
    });
}

fn add_functions(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    env.add_function("range", functions::range);
    env.add_function("raise_exception", |message: String| -> Result<(), Error> { Err(raise(message)) });
    env.add_function("strftime_now", |format: String| time::strftime_now(&format));
    let spent = budget.clone();
    let namespace = Value::from_function(functions::namespace);
    env.add_function("namespace", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        spent.spend(NAMESPACE_BYTES)?;
        args.iter().try_for_each(|arg| spent.charge(arg))?;
        let made = Value::from_function(functions::dict).call(state, &args)?;
        namespace.call(state, &[made])
    });
    let spent = budget.clone();
    let dict = Value::from_function(functions::dict);
    env.add_function("dict", move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let mut args = args.into_values();
        args.iter().try_for_each(|arg| spent.charge(arg))?;
        // A list of pairs instead of a map.
        if let Some(pairs) = args.first_mut().filter(|first| first.kind() == ValueKind::Seq) {
            let pair = |pair: Value| Ok((pair.get_item_by_index(0)?, pair.get_item_by_index(1)?));
            *pairs = Value::from_pairs(pairs.try_iter()?.map(pair).collect::<Result<Vec<_>, Error>>()?);
        }
        let made = dict.call(state, &args)?;
        spent.charge(&made).map(|()| made)
    });
    let spent = budget.clone();
    env.set_unknown_method_callback(move |state, value, method, args| {
        methods::call(&spent, state, value, method, args)
    });
}

/// Prefix of errors raised by the template itself.
const RAISED: &str = "raise_exception: ";

fn raise(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}"))
}

/// The message, if the template raised the error itself.
pub fn raised(err: &Error) -> Option<String> {
    err.detail()?.strip_prefix(RAISED).map(str::to_owned)
}
