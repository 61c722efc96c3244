//! Python's operators where minijinja's differ.

use std::cmp::Ordering;

use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::budget::Budget;

fn wrong(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

fn not_for(operator: &str, a: &Value, b: &Value) -> Error {
    wrong(&format!("`{operator}` is not supported for {} and {}", a.kind(), b.kind()))
}

/// A number; booleans are numbers in Python.
#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Self::Int(value.is_true().into())),
            ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Self::Int),
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Self::Float),
            _ => None,
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

fn int(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

/// `a * b`.
///
/// # Errors
/// If Python does not define the product, or it is too large.
pub fn times(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            a.checked_mul(b).map(int).ok_or_else(|| wrong("a product is too large"))
        }
        (Some(a), Some(b)) => Ok(Value::from(a.float() * b.float())),
        (None, Some(Number::Int(n))) => repeated(budget, a, n).ok_or_else(|| not_for("*", a, b))?,
        (Some(Number::Int(n)), None) => repeated(budget, b, n).ok_or_else(|| not_for("*", a, b))?,
        _ => Err(not_for("*", a, b)),
    }
}

/// `-value` or `+value`, for a sign of -1 or 1.
///
/// # Errors
/// If the value is not a number.
pub fn signed(value: &Value, sign: i8) -> Result<Value, Error> {
    match Number::of(value) {
        Some(Number::Int(number)) => {
            number.checked_mul(sign.into()).map(int).ok_or_else(|| wrong("a number is too large"))
        }
        Some(Number::Float(number)) => Ok(Value::from(number * f64::from(sign))),
        None => Err(wrong(&format!("no sign allowed before {}", value.kind()))),
    }
}

/// Repeats text or a list `n` times; `None` for anything else.
fn repeated(budget: &Budget, value: &Value, n: i128) -> Option<Result<Value, Error>> {
    let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if !is_list && value.as_str().is_none() {
        return None;
    }
    let each = value.as_str().map_or_else(|| 32 * value.len().unwrap_or(0), str::len) as u64 + 1;
    let charged = budget.spend(each.saturating_mul(n as u64));
    Some(charged.and_then(|()| match value.as_str() {
        Some(text) => Ok(Value::from(text.repeat(n))),
        None => {
            let items: Vec<Value> = value.try_iter()?.collect();
            Ok(listed(value, std::iter::repeat_n(items, n).flatten().collect()))
        }
    }))
}

fn listed(like: &Value, items: Vec<Value>) -> Value {
    if like.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
}

/// `a % b` for numbers.
///
/// # Errors
/// If a value is not a number, or `b` is zero.
pub fn remainder(a: &Value, b: &Value) -> Result<Value, Error> {
    match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            let rest = a.checked_rem(b).ok_or_else(|| wrong("`%` by zero"))?;
            Ok(int(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }))
        }
        (Some(a), Some(b)) if b.float() != 0.0 => {
            let (a, b) = (a.float(), b.float());
            let rest = a % b;
            Ok(Value::from(match rest == 0.0 {
                true => 0_f64.copysign(b),
                false if (rest < 0.0) != (b < 0.0) => rest + b,
                false => rest,
            }))
        }
        _ => Err(not_for("%", a, b)),
    }
}

/// Evaluates `a operator b` for a comparison or membership operator.
///
/// # Errors
/// If Python raises an error.
pub fn holds(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    let order = |wanted: fn(Ordering) -> bool| Ok(order(operator, a, b)?.is_some_and(wanted));
    match operator {
        "==" => Ok(a == b),
        "!=" => Ok(a != b),
        "<" => order(Ordering::is_lt),
        "<=" => order(Ordering::is_le),
        ">" => order(Ordering::is_gt),
        ">=" => order(Ordering::is_ge),
        "in" => contains(b, a),
        "not in" => contains(b, a).map(|is_in| !is_in),
        _ => Err(wrong("unknown operator")),
    }
}

/// Order of two values; `None` if one is NaN.
fn order(operator: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(Some(a.cmp(b)));
    }
    match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => Ok(Some(a.cmp(&b))),
        (Some(a), Some(b)) => Ok(a.float().partial_cmp(&b.float())),
        _ if is_list(a) && is_list(b) && a.is_tuple() == b.is_tuple() => {
            let (mut left, mut right) = (a.try_iter()?, b.try_iter()?);
            loop {
                match (left.next(), right.next()) {
                    (Some(a), Some(b)) if a == b => {}
                    (Some(a), Some(b)) => return self::order(operator, &a, &b),
                    (a, b) => return Ok(Some(a.is_some().cmp(&b.is_some()))),
                }
            }
        }
        _ => Err(not_for(operator, a, b)),
    }
}

fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    match container.kind() {
        ValueKind::Undefined => Ok(false),
        ValueKind::String => match (container.as_str(), value.as_str()) {
            (Some(text), Some(part)) => Ok(text.contains(part)),
            _ => Err(not_for("in", value, container)),
        },
        ValueKind::Map => match value.kind() {
            ValueKind::Map | ValueKind::Iterable => Err(not_for("in", value, container)),
            ValueKind::Seq if !value.is_tuple() => Err(not_for("in", value, container)),
            _ => Ok(container.as_object().is_some_and(|map| map.get_value(value).is_some())),
        },
        ValueKind::Seq | ValueKind::Iterable => Ok(container.try_iter()?.any(|item| item == *value)),
        _ => Err(not_for("in", value, container)),
    }
}

/// `value[start:stop:step]` with these `bounds`; none for an omitted one.
///
/// # Errors
/// If the value cannot be sliced, a bound is not an integer, or the step is 0.
pub fn slice(value: &Value, bounds: &[Value]) -> Result<Value, Error> {
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(bounds) {
        *number = match Number::of(bound) {
            _ if bound.is_none() => None,
            Some(Number::Int(bound)) => Some(i64::try_from(bound).unwrap_or(match bound < 0 {
                true => i64::MIN,
                false => i64::MAX,
            })),
            _ => return Err(wrong("slice bounds must be integers")),
        };
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        return Ok(Value::from(places(chars.len(), numbers)?.map(|at| chars[at]).collect::<String>()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(wrong(&format!("{} cannot be sliced", value.kind())));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    Ok(listed(value, places(items.len(), numbers)?.map(|at| items[at].clone()).collect()))
}

/// Positions in a slice of `n` items, in order.
fn places(n: usize, [start, stop, step]: [Option<i64>; 3]) -> Result<impl Iterator<Item = usize>, Error> {
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(wrong("slice step must not be 0"));
    }
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let place = |at: Option<i64>, otherwise: i64| match at {
        None => otherwise,
        Some(at) => (if at < 0 { at.saturating_add(n) } else { at }).clamp(low, high),
    };
    let (start, stop) = match step > 0 {
        true => (place(start, low), place(stop, high)),
        false => (place(start, high), place(stop, low)),
    };
    let is_before_stop = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    let all = std::iter::successors(Some(start), move |at| at.checked_add(step));
    Ok(all.take_while(is_before_stop).filter_map(|at| usize::try_from(at).ok()))
}
