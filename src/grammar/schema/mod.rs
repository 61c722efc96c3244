//! Normalises JSON schemas before compilation: drops keywords that assert nothing, resolves references within
//! the schema, and closes objects ([`closing`]). Unsupported keywords are reported; some are left out if the
//! schema is not strict.

mod choices;
mod closing;
mod owner;

use std::collections::HashMap;

mod merge;

use serde_json::{Map, Value, json};

use closing::{Around, Place, given};
pub use owner::Owner;

use super::{GrammarError, Limits, Space, at_most};

/// Deepest nesting of lists and objects in a schema, as in `serde_json`.
const MAX_LEVELS: usize = 128;
/// Maximum total depth of a schema and everything it refers to: each level takes stack, less than 5 kB. A
/// browser has less.
const MAX_LEVELS_IN_ALL: usize = if cfg!(target_arch = "wasm32") { 2000 } else { 20_000 };

/// Maximum number of properties of one object: the time to compile them grows with their square.
const MAX_PROPERTIES: usize = 4000;

/// Types of JSON values, as `type` names them.
const TYPES: &[&str] = &["null", "boolean", "number", "integer", "string", "array", "object"];

/// Assertions of JSON Schema that the parser cannot enforce.
const NOT_SUPPORTED: &[&str] = &[
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// Assertions that the parser can enforce. Keywords in neither list are descriptive and are dropped.
const SUPPORTED: &[&str] = &[
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Keywords whose value is a map of schemas, so that its keys are names.
const OF_NAMED_SCHEMAS: &[&str] = &["patternProperties", "properties"];
/// Keywords whose value is a schema or a list of schemas.
const OF_SCHEMAS: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "items",
    "oneOf",
    "patternProperties",
    "prefixItems",
    "properties",
];

/// Formats that the parser supports. Any other is only an annotation.
const FORMATS: &[&str] =
    &["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"];

/// A bound at least this far from 0 excludes nothing: numbers are never that long.
const FARTHEST_BOUND: i64 = 1_000_000_000_000_000_000;

/// A schema in the parser's form.
#[derive(Clone, Debug)]
pub struct Schema {
    pub owner: Owner,
    /// The schema. Its references are indices into `defs`.
    pub root: Value,
    /// Targets of references, each with its position, as a JSON pointer with `#`.
    pub defs: Vec<(String, Value)>,
    /// Parts that are not enforced, one sentence each.
    pub notes: Vec<String>,
}

impl Schema {
    /// Reads a schema. If it is too large but lenient, only its type is kept.
    ///
    /// # Errors
    /// [`GrammarError`] if the schema is not lenient.
    pub fn read(value: &Value, owner: Owner, limits: &Limits) -> Result<Self, GrammarError> {
        match Self::tidied(value, &owner, limits) {
            Err(err) if owner.is_lenient() => {
                let mut schema = Self { owner, root: value.clone(), defs: Vec::new(), notes: Vec::new() };
                schema.keep_only_type(&err.to_string());
                Ok(schema)
            }
            read => read,
        }
    }

    fn tidied(value: &Value, owner: &Owner, limits: &Limits) -> Result<Self, GrammarError> {
        levels(value, 0)?;
        if !(value.is_object() || value.is_boolean()) {
            return Err(GrammarError::Invalid("a JSON schema must be an object or a boolean".to_owned()));
        }
        let (targets, known, notes) = (Vec::new(), HashMap::new(), Vec::new());
        let mut tidy = Tidy { whole: value, owner, targets, known, notes, n_names: 0, n_compared: 0 };
        let root = match tidy.schema(value, &owner.at, &Around::default())? {
            Value::Bool(true) => json!({}),
            root => root,
        };
        let mut defs: Vec<(String, Value)> = Vec::new();
        while let Some((pointer, target, around)) = tidy.targets.get(defs.len()).cloned() {
            at_most("different references", tidy.targets.len(), limits.references)?;
            let at = format!("#{pointer}");
            let def = tidy.schema(target, &at, &around)?;
            defs.push((at, def));
        }
        let parts = || defs.iter().map(|(_, def)| def).chain([&root]);
        let in_all: usize = parts().map(|part| levels(part, 0)).sum::<Result<usize, _>>()?;
        at_most("levels including references", in_all, MAX_LEVELS_IN_ALL)?;
        merge::check(&root, &defs)?;
        Ok(Self { owner: owner.clone(), root, defs, notes: tidy.notes })
    }

    /// Reduces the schema to its type.
    pub fn keep_only_type(&mut self, why: &str) {
        let kind = self.root.get("type").and_then(Value::as_str).filter(|kind| is_type(kind));
        self.root = kind.map_or_else(|| json!({}), |kind| json!({ "type": kind }));
        self.defs.clear();
        self.notes.push(self.owner.says(&format!("only the type of the schema is enforced: {why}")));
    }

    pub fn n_bytes(&self) -> usize {
        let parts = self.defs.iter().map(|(_, def)| def).chain([&self.root]);
        parts.map(|part| part.to_string().len()).sum()
    }

    /// Bytes of the values of `const`, `enum` and `pattern`, which become terminals.
    pub fn n_bytes_of_constants(&self) -> usize {
        let parts = self.defs.iter().map(|(_, def)| def).chain([&self.root]);
        parts.map(of_constants).sum()
    }

    /// Returns the schema with all reference targets, for the parser.
    pub fn to_value(&self, space: Space) -> Value {
        let defs = self.defs.iter().map(|(_, def)| def.clone());
        with_defs(self.root.clone(), defs, space)
    }
}

/// Adds the targets of references to a schema, for the parser.
pub fn with_defs(mut root: Value, defs: impl Iterator<Item = Value>, space: Space) -> Value {
    let Value::Object(object) = &mut root else { return root };
    let defs: Map<String, Value> = defs.enumerate().map(|(i, def)| (i.to_string(), def)).collect();
    object.insert("$defs".to_owned(), defs.into());
    // This key changes the parser's behaviour; only this code may set it.
    let options = match space {
        // Nothing next to brackets, so that `{"name":` is forced as a whole.
        Space::Compact => json!({
            "whitespace_pattern": space.pattern(), "item_separator": ", ?", "key_separator": ": ?",
        }),
        Space::Free => json!({ "whitespace_pattern": space.pattern() }),
    };
    object.insert("x-guidance".to_owned(), options);
    root
}

/// Reads a schema and the parts that it refers to.
struct Tidy<'a> {
    whole: &'a Value,
    owner: &'a Owner,
    /// Targets of references, with their JSON pointers and what is around the references.
    targets: Vec<(String, &'a Value, Around<'a>)>,
    /// Indices of `targets`.
    known: HashMap<(String, Around<'a>), usize>,
    notes: Vec<String>,
    /// Number of names that were read to close objects.
    n_names: usize,
    /// Number of comparisons of schemas of `oneOf`.
    n_compared: usize,
}

impl<'a> Tidy<'a> {
    fn leave_out(&mut self, keyword: &str, at: &str, why: &str) -> Result<Option<Value>, GrammarError> {
        self.owner.leave_out(keyword, at, why, &mut self.notes).map(|()| None)
    }

    fn schema(&mut self, value: &'a Value, at: &str, around: &Around<'a>) -> Result<Value, GrammarError> {
        let object = match value {
            Value::Object(object) => object,
            Value::Bool(_) => return Ok(value.clone()),
            // Null means absent, and some languages write an empty object as an empty list.
            Value::Null => return Ok(json!({})),
            Value::Array(list) if list.is_empty() => return Ok(json!({})),
            _ => {
                let (above, keyword) = at.rsplit_once('/').unwrap_or(("#", at));
                let why = "a schema must be an object or a boolean";
                if !self.owner.is_lenient() {
                    return Err(self.owner.refuses(keyword, above, why));
                }
                self.leave_out(keyword, above, why)?;
                return Ok(json!({}));
            }
        };
        let place = self.place(object, around)?;
        let mut tidied = Map::new();
        if implies_object(object) {
            tidied.insert("type".to_owned(), "object".into());
        }
        for (key, value) in object.iter().filter(|(key, value)| !value.is_null() || *key == "const") {
            let Some(value) = self.keyword(key, value, object, at, &place)? else { continue };
            let key = match (key.as_str(), object.get(key)) {
                ("oneOf", Some(Value::Array(list)))
                    if given(object, "anyOf").is_none()
                        && self.exclude_each_other(list, &place.around(key, 0)) =>
                {
                    "anyOf"
                }
                (key, _) => key,
            };
            tidied.insert(key.to_owned(), value);
        }
        if let Some(names) = place.closed {
            let properties = tidied.entry("properties").or_insert_with(|| json!({}));
            if let Value::Object(properties) = properties {
                for name in names {
                    properties.entry(name).or_insert(Value::Bool(true));
                }
            }
            tidied.insert("additionalProperties".to_owned(), false.into());
        }
        let n_properties = tidied.get("properties").and_then(Value::as_object).map_or(0, Map::len);
        at_most("properties in one object", n_properties, MAX_PROPERTIES)?;
        Ok(tidied.into())
    }

    /// Value of a keyword as it is enforced; `None` if it is dropped.
    fn keyword(
        &mut self,
        key: &str,
        value: &'a Value,
        object: &'a Map<String, Value>,
        at: &str,
        place: &Place<'a>,
    ) -> Result<Option<Value>, GrammarError> {
        if NOT_SUPPORTED.contains(&key) {
            let is_closed = key == "unevaluatedProperties"
                && *value == Value::Bool(false)
                && (place.closed.is_some() || given(object, "additionalProperties").is_some());
            return match is_closed || excludes_nothing(key, value, object) {
                true => Ok(None),
                false => self.leave_out(key, at, "it is not supported"),
            };
        }
        if !SUPPORTED.contains(&key) {
            return Ok(None);
        }
        let fits = |value: &Value| fits(object.get("type"), value);
        Ok(Some(match (key, value) {
            (key, _) if OF_SCHEMAS.contains(&key) => return self.schemas(key, value, at, place),
            ("$ref", _) => {
                let reference = value.as_str().ok_or_else(|| "a reference must be a string".to_owned());
                match reference.and_then(|reference| self.resolve(reference)) {
                    Ok((pointer, target)) => {
                        let around = self.needed(target, place.around(key, 0))?;
                        format!("#/$defs/{}", self.refer(pointer, target, around)).into()
                    }
                    Err(why) => return self.leave_out(key, at, &why),
                }
            }
            ("format", _) if !value.as_str().is_some_and(|format| FORMATS.contains(&format)) => {
                let note = format!("`format` at {at} is an annotation: unknown format {value}");
                self.notes.push(self.owner.says(&note));
                return Ok(None);
            }
            ("enum", _) if value.as_array().is_none_or(Vec::is_empty) && !self.owner.is_lenient() => {
                return Err(self.owner.refuses(key, at, "it must be a list of values"));
            }
            ("enum", Value::Array(list)) if !list.is_empty() && !list.iter().any(fits) => {
                return self.leave_out(key, at, "none of its values has the schema's `type`");
            }
            ("const", value) if !fits(value) => {
                return self.leave_out(key, at, "it does not have the schema's `type`");
            }
            ("minimum" | "exclusiveMinimum", value) if number(value) <= -(FARTHEST_BOUND as f64) => {
                json!(-FARTHEST_BOUND)
            }
            ("maximum" | "exclusiveMaximum", value) if number(value) >= FARTHEST_BOUND as f64 => {
                json!(FARTHEST_BOUND)
            }
            ("multipleOf", value) if !has_few_remainders(value) => {
                let why = format!("it is more than {MAX_REMAINDERS} times its last digit");
                return self.leave_out(key, at, &why);
            }
            (key, Value::Number(_)) if is_count(key) => whole(value),
            (_, value) => value.clone(),
        }))
    }

    fn schemas(
        &mut self,
        key: &str,
        value: &'a Value,
        at: &str,
        place: &Place<'a>,
    ) -> Result<Option<Value>, GrammarError> {
        let at = format!("{at}/{key}");
        Ok(Some(match value {
            // An empty object, as some languages write it.
            Value::Array(list) if list.is_empty() && key == "properties" => json!({}),
            Value::Array(list) if list.is_empty() && OF_NAMED_SCHEMAS.contains(&key) => return Ok(None),
            Value::Array(list) if list.is_empty() && key == "items" => return Ok(None),
            Value::Object(named) if OF_NAMED_SCHEMAS.contains(&key) => {
                let mut tidied = Map::new();
                for (name, schema) in named {
                    let at = format!("{at}/{}", escaped(name));
                    tidied.insert(name.clone(), self.schema(schema, &at, &Around::default())?);
                }
                tidied.into()
            }
            // The error appears when it does not compile.
            _ if OF_NAMED_SCHEMAS.contains(&key) => value.clone(),
            Value::Array(list) if !key.starts_with("additional") => {
                let tidied = list.iter().enumerate();
                tidied
                    .map(|(i, schema)| self.schema(schema, &format!("{at}/{i}"), &place.around(key, i)))
                    .collect::<Result<_, _>>()?
            }
            schema if !matches!(key, "allOf" | "anyOf" | "oneOf" | "prefixItems") => {
                self.schema(schema, &at, &Around::default())?
            }
            other => other.clone(),
        }))
    }

    /// Index of a reference's target among the definitions.
    fn refer(&mut self, pointer: String, target: &'a Value, around: Around<'a>) -> usize {
        let Self { targets, known, .. } = self;
        *known.entry((pointer, around)).or_insert_with_key(|(pointer, around)| {
            targets.push((pointer.clone(), target, around.clone()));
            targets.len() - 1
        })
    }

    /// Target of a reference with its JSON pointer, or the reason why there is none.
    fn resolve(&self, reference: &str) -> Result<(String, &'a Value), String> {
        let within = "only references within the schema are supported, such as `#/$defs/name`";
        // Before the `#`, the schema's own id is allowed.
        let name = self.whole.get("$id").and_then(Value::as_str).unwrap_or_default();
        let local = reference.strip_prefix(name).unwrap_or(reference);
        let pointer = local.strip_prefix('#').ok_or_else(|| format!("`{reference}`: {within}"))?;
        let decoded = unescaped(pointer).unwrap_or_else(|| pointer.to_owned());
        let whole = self.whole;
        let find = |pointer: &str| match pointer {
            "/" => Some((String::new(), whole)),
            pointer => whole.pointer(pointer).map(|target| (pointer.to_owned(), target)),
        };
        let found = find(&decoded).or_else(|| find(pointer));
        found.ok_or_else(|| format!("there is nothing at `{reference}`"))
    }
}

/// True if a schema without `type` describes an object: it has `properties`.
fn implies_object(schema: &Map<String, Value>) -> bool {
    let has = |key| given(schema, key).is_some();
    has("properties") && !has("type") && !has("enum") && !schema.contains_key("const")
}

/// Depth of nested lists and objects.
fn levels(value: &Value, above: usize) -> Result<usize, GrammarError> {
    at_most("levels", above, MAX_LEVELS)?;
    let deeper = |most: usize, value| levels(value, above + 1).map(|n| most.max(n));
    match value {
        Value::Array(items) => Ok(1 + items.iter().try_fold(0, deeper)?),
        Value::Object(object) => Ok(1 + object.values().try_fold(0, deeper)?),
        _ => Ok(0),
    }
}

fn of_constants(schema: &Value) -> usize {
    let size = |(key, value): (&String, &Value)| match key.as_str() {
        "const" | "enum" | "pattern" => value.to_string().len(),
        "properties" => value.as_object().into_iter().flatten().map(|(_, value)| of_constants(value)).sum(),
        "patternProperties" => {
            let all = value.as_object().into_iter().flatten();
            all.map(|(pattern, value)| pattern.len() + of_constants(value)).sum()
        }
        _ => of_constants(value),
    };
    match schema {
        Value::Object(object) => object.iter().map(size).sum(),
        Value::Array(list) => list.iter().map(of_constants).sum(),
        _ => 0,
    }
}

/// True if an unsupported keyword excludes no value in this position.
fn excludes_nothing(key: &str, value: &Value, object: &Map<String, Value>) -> bool {
    let has = |key: &str| object.get(key).is_some_and(|value| !value.is_null());
    let is_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
        _ => false,
    };
    match key {
        "uniqueItems" => *value == Value::Bool(false),
        "not" => *value == Value::Bool(false),
        "if" => !has("then") && !has("else"),
        "then" | "else" => !has("if"),
        "contains" => object.get("minContains").map(number) == Some(0.0) && !has("maxContains"),
        "minContains" | "maxContains" => !has("contains"),
        "propertyNames" => says_nothing(value, Some(&Value::from("string"))),
        "unevaluatedItems" | "unevaluatedProperties" => says_nothing(value, None),
        "dependencies" | "dependentRequired" | "dependentSchemas" => {
            is_empty(value) || value.as_object().is_some_and(|all| all.values().all(is_empty))
        }
        _ => false,
    }
}

/// True if every value matches a schema, or every value of this type.
fn says_nothing(schema: &Value, kind: Option<&Value>) -> bool {
    let asserts = |key: &str| SUPPORTED.contains(&key) || NOT_SUPPORTED.contains(&key);
    match schema {
        Value::Object(object) => object.iter().all(|(key, value)| match key.as_str() {
            "type" => kind == Some(value),
            key => value.is_null() || !asserts(key),
        }),
        Value::Array(list) => list.is_empty(),
        other => *other == Value::Bool(true),
    }
}

/// True if the `type` of a schema, if present, names valid types. Otherwise nothing could be enforced.
pub fn names_types(schema: &Value) -> bool {
    let is_named = |kind: &Value| kind.as_str().is_some_and(is_type);
    match schema.get("type") {
        None | Some(Value::Null) => true,
        Some(Value::Array(kinds)) => kinds.iter().all(is_named),
        Some(kind) => is_named(kind),
    }
}

fn is_type(name: &str) -> bool {
    TYPES.contains(&name)
}

/// True if a value has one of `kinds`, the value of `type`.
fn fits(kinds: Option<&Value>, value: &Value) -> bool {
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => number(value).fract() == 0.0,
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    match kinds {
        Some(Value::String(kind)) => is(kind),
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind.as_str().is_none_or(is)),
        _ => true,
    }
}

/// Numeric value, or NaN.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn is_count(key: &str) -> bool {
    ["maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"].contains(&key)
}

/// Largest `multipleOf`, in units of its last digit: the lexer has a state for each remainder.
const MAX_REMAINDERS: u64 = 1_000_000;

fn has_few_remainders(multiple: &Value) -> bool {
    let digits = multiple.to_string().replace(['.', '-'], "");
    !multiple.is_number() || digits.parse().is_ok_and(|n: u64| n <= MAX_REMAINDERS)
}

/// Converts a count written as 3.0 to an integer.
fn whole(value: &Value) -> Value {
    let n = number(value);
    match n >= 0.0 && n < 2f64.powi(53) && n.fract() == 0.0 {
        true => (n as u64).into(),
        false => value.clone(),
    }
}

/// Escapes a name for a JSON pointer.
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// Decodes percent-encoding such as `%5B`; `None` if it is invalid.
fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests;
