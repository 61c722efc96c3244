//! Finds a `oneOf` that means the same as `anyOf`, since no value fits two of its schemas. The parser finds
//! this without references; here they are followed, as in the unions of pydantic.

use serde_json::{Map, Value};

use super::closing::{Around, closes, given};
use super::{Tidy, number};

/// Maximum number of comparisons of constants and types in a schema. The parser compares the rest.
const MAX_COMPARED: usize = 500_000;
/// Longest chain of references that is followed.
const MAX_LINKS: usize = 16;

impl<'a> Tidy<'a> {
    /// True if no value fits two of these schemas; `around` is what is around each.
    pub fn exclude_each_other(&mut self, list: &'a [Value], around: &Around<'a>) -> bool {
        let followed: Vec<&Value> = list.iter().map(|one| self.follow(one)).collect();
        let mut compared = Count(self.n_compared);
        let excludes = |i: usize| {
            followed[..i].iter().all(|other| self.are_disjoint(followed[i], other, around, &mut compared))
        };
        let all_do = (0..list.len()).all(excludes);
        self.n_compared = compared.0;
        all_do
    }

    /// The target of a schema that is only a reference.
    fn follow(&self, mut schema: &'a Value) -> &'a Value {
        for _ in 0..MAX_LINKS {
            let is_type = |key: &str| ["type", "const", "enum", "properties"].contains(&key);
            let Some(object) = schema.as_object().filter(|object| !object.keys().any(|key| is_type(key)))
            else {
                break;
            };
            let reference = object.get("$ref").and_then(Value::as_str);
            let Some(Ok((_, target))) = reference.map(|reference| self.resolve(reference)) else { break };
            schema = target;
        }
        schema
    }

    fn are_disjoint(
        &self,
        one: &'a Value,
        other: &'a Value,
        around: &Around<'a>,
        compared: &mut Count,
    ) -> bool {
        if *one == Value::Bool(false) || *other == Value::Bool(false) {
            return true;
        }
        let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return false };
        if compared.differ(one, other) {
            return true;
        }
        let are_objects = [one, other].iter().all(|schema| kinds(schema) == ["object"]);
        are_objects
            && (self.tells_apart(one, other, around, compared)
                || self.tells_apart(other, one, around, compared))
    }

    /// True if a property that `one` requires cannot be that of `other`.
    fn tells_apart(
        &self,
        one: &'a Map<String, Value>,
        other: &'a Map<String, Value>,
        around: &Around<'a>,
        compared: &mut Count,
    ) -> bool {
        let property = |of: &'a Map<String, Value>, name: &str| {
            let property = of.get("properties").and_then(|all| all.get(name));
            property.map(|schema| self.follow(schema))
        };
        let is_named = |name: &str| {
            let required = other.get("required").and_then(Value::as_array);
            required.is_some_and(|names| names.iter().any(|required| required == name))
        };
        let cost = 1 + other.get("required").and_then(Value::as_array).map_or(0, Vec::len);
        let required = one.get("required").and_then(Value::as_array).into_iter().flatten();
        for name in required.filter_map(Value::as_str) {
            if !compared.add(cost) {
                return false;
            }
            let is_apart = match (property(one, name), property(other, name)) {
                (Some(Value::Object(one)), Some(Value::Object(other))) => compared.differ(one, other),
                (Some(_), None) => {
                    let combines = |key| other.contains_key(key);
                    let combines = ["$ref", "allOf", "anyOf", "oneOf"].into_iter().any(combines);
                    closes(other) && !combines && !is_named(name) && around.excludes(name)
                }
                _ => false,
            };
            if is_apart {
                return true;
            }
        }
        false
    }
}

/// Number of comparisons so far.
struct Count(usize);

impl Count {
    /// False if there are too many.
    fn add(&mut self, n: usize) -> bool {
        self.0 = self.0.saturating_add(n);
        self.0 <= MAX_COMPARED
    }

    /// True if the types or the constants of two schemas have nothing in common.
    fn differ(&mut self, one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
        let is_same = |one: &Value, other: &Value| {
            one == other || (one.is_number() && other.is_number() && number(one) == number(other))
        };
        let constants = constants(one).zip(constants(other));
        if !self.add(constants.as_ref().map_or(1, |(one, other)| one.len() * other.len())) {
            return false;
        }
        if let Some((one, other)) = constants {
            return !one.iter().any(|one| other.iter().any(|other| is_same(one, other)));
        }
        let plain = |kind: &'static str| if kind == "integer" { "number" } else { kind };
        let (one, other) = (kinds(one), kinds(other));
        let is_common = |kind: &&'static str| other.iter().any(|other| plain(other) == plain(kind));
        !one.is_empty() && !other.is_empty() && !one.iter().any(is_common)
    }
}

fn constants(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (schema.get("const"), given(schema, "enum")) {
        (Some(only), _) => Some(vec![only]),
        (None, Some(Value::Array(list))) => Some(list.iter().collect()),
        _ => None,
    }
}

/// Types of the values of a schema; empty if it does not say.
fn kinds(schema: &Map<String, Value>) -> Vec<&'static str> {
    let known = |name: &Value| super::TYPES.iter().copied().find(|kind| name == kind);
    let of_value = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    match (given(schema, "type"), constants(schema)) {
        (Some(Value::Array(kinds)), _) => kinds.iter().filter_map(known).collect(),
        (Some(kind), _) => known(kind).into_iter().collect(),
        (None, Some(constants)) => constants.into_iter().map(of_value).collect(),
        (None, None) if super::implies_object(schema) => vec!["object"],
        (None, None) => Vec::new(),
    }
}
