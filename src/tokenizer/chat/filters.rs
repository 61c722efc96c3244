//! The filters that chat templates use, as defined by Jinja2, with charges.

use std::sync::Arc;

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters};

use super::budget::Budget;
use super::methods::{self, bind};
use super::names::{
    CHARGE, COMPARED, CYCLED, FILLED, ITERATED, MACRO, METHOD, NEGATIVE, POSITIVE, PRINTED, SLICED, TIMES,
};
use super::python::Object;
use super::{json, macros, operators, python};

/// Filters that require an iterable and refuse `none`. `map`, `select` and the like treat `none`, like any
/// false value, as empty.
const OF_ITEMS: &[&str] = &["groupby", "join", "list", "max", "min", "sort", "sum", "unique"];

/// Adds the filters whose results are not much larger than their arguments.
pub fn add(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    let plain = [
        ("abs", Value::from_function(filters::abs)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("first", Value::from_function(filters::first)),
        ("groupby", Value::from_function(filters::groupby)),
        ("join", Value::from_function(filters::join)),
        ("last", Value::from_function(filters::last)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("reverse", Value::from_function(filters::reverse)),
        ("round", Value::from_function(filters::round)),
        ("safe", Value::from_function(filters::safe)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("sort", Value::from_function(filters::sort)),
        ("sum", Value::from_function(filters::sum)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
    ];
    for (name, filter) in plain {
        let of_items = OF_ITEMS.contains(&name);
        add_one(env, budget, name, move |budget, state, args| {
            if of_items && args.first().is_some_and(Value::is_none) {
                return Err(wrong(&format!("{name}: none has no items")));
            }
            if matches!(name, "first" | "last") && args.first().is_some_and(Value::is_undefined) {
                return Ok(Value::UNDEFINED);
            }
            if name == "last" && args.first().is_some_and(|value| value.kind() == ValueKind::Map) {
                return filter.call(state, &[args[0].try_iter()?.collect()]);
            }
            if matches!(name, "groupby" | "max" | "min" | "sort") {
                let args = in_order(state, name, args)?;
                return filter.call(state, &args);
            }
            if name == "join" {
                budget.charge_join(args.first(), args.get(1))?;
            }
            filter.call(state, args).map_err(|err| with_name(err, name, args))
        });
    }
    add_of_values(env, budget);
    add_of_texts(env, budget);
    for (name, filter) in OPERATORS {
        add_charged(env, budget, name, Budget::charge, Box::new(filter));
    }
}

/// Adds the name to the error for an unknown filter or test that `map`, `select` and the like were to apply.
fn with_name(err: Error, applied_by: &str, args: &[Value]) -> Error {
    let what = match err.kind() {
        ErrorKind::UnknownFilter => "filter",
        ErrorKind::UnknownTest => "test",
        _ => return err,
    };
    let at = if applied_by.ends_with("attr") { 2 } else { 1 };
    match (err.detail(), args.get(at)) {
        (None, Some(name)) => Error::new(err.kind(), format!("{what} {name} is unknown")),
        _ => err,
    }
}

/// Implementation of a filter that replaces an operator.
type Operator = fn(&Budget, &mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// Filters that `rewrite.rs` inserts in place of operators, loops and macros.
const OPERATORS: [(&str, Operator); 11] = [
    (CHARGE, |_, _, args| args.first().cloned().ok_or_else(missing)),
    (PRINTED, |_, _, args| {
        let value = args.first().ok_or_else(missing)?;
        let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable);
        Ok(if is_list { Value::from(python::text(value)) } else { value.clone() })
    }),
    (ITERATED, |budget, _, args| {
        let value = args.first().ok_or_else(missing)?;
        if value.is_none() || Object::of(value).is_some() {
            return Err(wrong(&format!("{} has no items to loop over", python::text(value))));
        }
        if args.len() == 1 || value.as_str().is_some() {
            return Ok(value.clone());
        }
        // The items are unpacked; Python also unpacks strings.
        let item = |item: Value| match item.as_str() {
            Some(text) => budget.charge_many(&item).map(|()| text.chars().map(Value::from).collect()),
            None => Ok(item),
        };
        value.try_iter()?.map(item).collect::<Result<Vec<_>, _>>().map(Value::from)
    }),
    (TIMES, |budget, _, args| match args {
        [a, b] => operators::times(budget, a, b),
        _ => Err(missing()),
    }),
    (NEGATIVE, |_, _, args| operators::signed(args.first().ok_or_else(missing)?, -1)),
    (POSITIVE, |_, _, args| operators::signed(args.first().ok_or_else(missing)?, 1)),
    (COMPARED, |_, _, args| {
        for three in args.windows(3).step_by(2) {
            if !operators::holds(three[1].as_str().unwrap_or_default(), &three[0], &three[2])? {
                return Ok(Value::from(false));
            }
        }
        Ok(Value::from(true))
    }),
    (SLICED, |_, _, args| match args {
        [value, bounds @ ..] if bounds.len() == 3 => operators::slice(value, bounds),
        _ => Err(missing()),
    }),
    (CYCLED, |_, _, args| {
        let (looped, items) = args.split_first().ok_or_else(missing)?;
        let at = looped.get_attr("index0")?.as_usize().ok_or_else(|| wrong("cycle: not a loop"))?;
        let at = at.checked_rem(items.len()).ok_or_else(|| wrong("cycle: nothing to choose from"))?;
        Ok(items[at].clone())
    }),
    (METHOD, |_, _, args| match args {
        [value, name] => methods::attribute(value, name.to_string()),
        _ => Err(missing()),
    }),
    (MACRO, |_, _, args| match args {
        [inner, n_required, specials @ ..] => {
            let specials = specials.iter().map(Value::to_string).collect();
            macros::wrapped(inner, n_required.as_usize().unwrap_or(0), specials)
        }
        _ => Err(missing()),
    }),
];

fn missing() -> Error {
    Error::from(ErrorKind::MissingArgument)
}

/// Checks that the items to sort have an order, and returns the arguments in the form that minijinja takes.
fn in_order(state: &mut State<'_, '_>, name: &str, args: &[Value]) -> Result<Vec<Value>, Error> {
    let (Rest(mut by_place), by_name): (Rest<Value>, Kwargs) = from_args(args)?;
    let option = |name| Ok((name, by_name.get::<Value>(name)?));
    let mut options = by_name.args().map(option).collect::<Result<Vec<_>, Error>>()?;
    let names: &[&str] = match name {
        "groupby" => &["attribute", "default", "case_sensitive"],
        "sort" => &["reverse", "case_sensitive", "attribute"],
        _ => &["case_sensitive", "attribute"],
    };
    if by_place.len() > names.len() + 1 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    options.extend(names.iter().copied().zip(by_place.drain(1.min(by_place.len())..)));
    let mut of_map = Vec::new();
    for (name, value) in options.iter_mut().filter(|(_, value)| !value.is_none()) {
        if *name == "attribute" {
            *value = Value::from(value.to_string());
            of_map.push((*name, value.clone()));
        }
    }
    // Several attributes are separated by commas.
    let is_one = |names: &Value| names.as_str().is_some_and(|names| !names.contains(','));
    let keys = match (by_place.first(), of_map.first()) {
        (Some(items), None) => Some(items.clone()),
        (Some(items), Some((_, names))) if is_one(names) => {
            of_map.extend(options.iter().filter(|(name, _)| *name == "default").cloned());
            let options = Value::from(Kwargs::from_iter(of_map));
            Some(Value::from_function(filters::map).call(state, &[items.clone(), options])?)
        }
        _ => None,
    };
    if let Some(keys) = keys {
        let mut keys: Vec<Value> = keys.try_iter()?.collect();
        if name == "sort" {
            // Python compares keys as one-element lists, which only compare the order of elements that
            // differ.
            keys.dedup();
        }
        check_order(&keys)?;
    }
    by_place.push(Value::from(Kwargs::from_iter(options)));
    Ok(by_place)
}

/// Checks that values have an order.
///
/// # Errors
/// If a value is neither less nor greater than the next one.
fn check_order(keys: &[Value]) -> Result<(), Error> {
    keys.windows(2).try_for_each(|pair| operators::holds("<", &pair[0], &pair[1]).map(|_| ()))
}

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

type Filter = dyn Fn(&Budget, &mut State<'_, '_>, &[Value]) -> Result<Value, Error> + Send + Sync;

/// Adds a filter whose arguments are charged.
fn add_one<F>(env: &mut Environment<'static>, budget: &Arc<Budget>, name: &'static str, filter: F)
where
    F: Fn(&Budget, &mut State<'_, '_>, &[Value]) -> Result<Value, Error> + Send + Sync + 'static,
{
    add_charged(env, budget, name, Budget::charge_many, Box::new(filter));
}

/// Adds a filter with a charge per argument. It is not generic, to keep the WebAssembly package small.
fn add_charged(
    env: &mut Environment<'static>,
    budget: &Arc<Budget>,
    name: &'static str,
    charge: fn(&Budget, &Value) -> Result<(), Error>,
    filter: Box<Filter>,
) {
    let budget = budget.clone();
    env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        args.iter().try_for_each(|arg| charge(&budget, arg))?;
        filter(&budget, state, &args)
    });
}

/// Filters for lists, maps and numbers.
fn add_of_values(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    for name in ["length", "count"] {
        add_one(env, budget, name, |_, _, args| {
            let [value] = bind(args, ["value"])?;
            let value = value.unwrap_or_default();
            match value.is_undefined() {
                true => Ok(Value::from(0)),
                false if Object::of(&value) == Some(Object::Loop) => value.get_attr("length"),
                false => filters::length(&value).map(Value::from),
            }
        });
    }
    for (name, filter) in
        [("batch", Value::from_function(filters::batch)), ("slice", Value::from_function(filters::slice))]
    {
        add_one(env, budget, name, move |budget, state, args| {
            // `n` lists, or `n` items to pad a list.
            budget.spend(args.get(1).and_then(Value::as_usize).map_or(0, |n| 64 * n as u64))?;
            filter.call(state, args)
        });
    }
    for name in ["default", "d"] {
        add_one(env, budget, name, |_, _, args| {
            let [value, default, boolean] = bind(args, ["value", "default_value", "boolean"])?;
            let value = value.unwrap_or_default();
            let is_missing =
                value.is_undefined() || (boolean.is_some_and(|b| b.is_true()) && !value.is_true());
            Ok(if is_missing { default.unwrap_or_else(|| Value::from("")) } else { value })
        });
    }
    let dictsort = Value::from_function(filters::dictsort);
    add_one(env, budget, "dictsort", move |_, state, args| {
        let names = ["case_sensitive", "by", "reverse"];
        let [map, options @ ..] = bind(args, ["value", names[0], names[1], names[2]])?;
        let options = names.into_iter().zip(options).filter_map(|(name, option)| Some((name, option?)));
        let options: Kwargs = options.collect();
        let map = map.unwrap_or_default();
        let by_value = options.get::<Option<&str>>("by")? == Some("value");
        let key = |key: Value| if by_value { map.get_item(&key) } else { Ok(key) };
        check_order(&map.try_iter()?.map(key).collect::<Result<Vec<_>, _>>()?)?;
        dictsort.call(state, &[map, Value::from(options)])
    });
    add_one(env, budget, "items", |_, _, args| {
        let [map] = bind(args, ["value"])?;
        let map = map.unwrap_or_default();
        match map.is_undefined() {
            true => Ok(Value::from(Vec::<Value>::new())),
            false => filters::items(&map),
        }
    });
    for (name, filter, zero) in [
        ("int", Value::from_function(filters::int), Value::from(0)),
        ("float", Value::from_function(filters::float), Value::from(0.0)),
    ] {
        add_one(env, budget, name, move |_, state, args| match filter.call(state, args) {
            // Text that is not a number, without a default argument.
            Err(_) if args.len() == 1 && args[0].as_str().is_some() => Ok(zero.clone()),
            _ if args.first().is_some_and(Value::is_undefined) => Err(wrong("undefined is not a number")),
            result => result,
        });
    }
    add_one(env, budget, "tojson", |budget, _, args| {
        let names = ["value", "ensure_ascii", "indent", "separators", "sort_keys"];
        let [value, ensure_ascii, indent, separators, sort_keys] = bind(args, names)?;
        let (ascii, indent) = (ensure_ascii.as_ref(), indent.as_ref());
        let style = json::Style::of(ascii, indent, separators.as_ref(), sort_keys.as_ref())?;
        let value = value.unwrap_or_default();
        // Escapes make a character six bytes, lines are indented, and items have separators between them.
        let spaces = if style.indent.is_some() || separators.is_some() { json::MAX_SPACE } else { 0 };
        (0..6 + 2 * spaces).try_for_each(|_| budget.charge(&value))?;
        json::to_json(&value, &style).map(Value::from)
    });
}

fn add_of_texts(env: &mut Environment<'static>, budget: &Arc<Budget>) {
    add_one(env, budget, "string", |_, _, args| {
        let [value] = bind(args, ["value"])?;
        Ok(Value::from(python::text(&value.unwrap_or_default())))
    });
    for name in ["e", "escape"] {
        add_one(env, budget, name, |budget, _, args| {
            let [value] = bind(args, ["value"])?;
            let value = value.unwrap_or_default();
            // `&` grows to five bytes.
            (0..5).try_for_each(|_| budget.charge(&value))?;
            let escaped =
                python::text(&value).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            Ok(Value::from(escaped.replace('\'', "&#39;").replace('"', "&#34;")))
        });
    }
    add_one(env, budget, "replace", |budget, _, args| {
        let [text, from, to, count] = bind(args, ["value", "old", "new", "count"])?;
        let [text, from, to] =
            [text, from, to].map(|text| Value::from(python::text(&text.unwrap_or_default())));
        budget.charge_replace(&[text.clone(), from.clone(), to.clone()])?;
        methods::replace(text.as_str().unwrap_or_default(), [&Some(from), &Some(to)], count.as_ref())
    });
    add_one(env, budget, "format", |budget, _, args| {
        let (text, values) = args.split_first().ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
        let text = python::text(text);
        methods::fill_in(budget, FormatStyle::Printf, &text, values).map(Value::from)
    });
    add_one(env, budget, FILLED, |budget, _, args| {
        let [text, values] = bind(args, ["text", "values"])?;
        let (text, values) = (text.unwrap_or_default(), values.unwrap_or_default());
        let Some(text) = text.as_str() else { return operators::remainder(&text, &values) };
        let values = if values.is_tuple() { values.try_iter()?.collect() } else { vec![values] };
        methods::fill_in(budget, FormatStyle::Printf, text, &values).map(Value::from)
    });
    add_one(env, budget, "indent", |budget, _, args| {
        let [text, width, first, blank] = bind(args, ["value", "width", "first", "blank"])?;
        let text = python::text(&text.unwrap_or_default());
        let width = width.unwrap_or_else(|| Value::from(4));
        let lines = python::lines(&text, false);
        let width_bytes = width.as_str().map_or(width.as_usize().unwrap_or(0), str::len);
        budget.spend((lines.len() as u64).saturating_mul(width_bytes as u64))?;
        let space = match width.as_str() {
            Some(space) => space.to_owned(),
            None => " ".repeat(usize::try_from(width)?),
        };
        let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
        let (first, blank) = (is_true(first), is_true(blank));
        let indented = lines.iter().enumerate().map(|(i, line)| {
            let is_indented = if i == 0 { first } else { blank || !line.is_empty() };
            if is_indented { format!("{space}{line}") } else { (*line).to_owned() }
        });
        let indented = indented.collect::<Vec<_>>().join("\n");
        // Python keeps the newline at the end of the text.
        Ok(Value::from(if text.ends_with(['\n', '\r']) { indented + "\n" } else { indented }))
    });
}
