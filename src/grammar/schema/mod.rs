//! Normalises JSON schemas before compilation: drops keywords that assert nothing, and resolves references
//! within the schema. Unsupported keywords are reported, and ignored if the schema is not strict.

mod merge;

use serde_json::{Map, Value, json};

use super::{GrammarError, Limits, Space, at_most};

/// Deepest nesting of lists and objects in a schema, as in `serde_json`.
const MOST_LEVELS: usize = 128;
/// Maximum total depth of a schema and everything it refers to: each level takes stack.
const MOST_LEVELS_IN_ALL: usize = 2000;

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

/// Owner of a schema, and how to treat what cannot be enforced.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Name of the tool whose arguments it describes.
    pub tool: Option<String>,
    /// Position in a larger schema, as a JSON pointer with `#`.
    pub at: String,
    pub strict: bool,
}

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

impl Owner {
    /// Owner of a standalone schema.
    pub fn alone(strict: bool) -> Self {
        Self { tool: None, at: "#".to_owned(), strict }
    }

    /// Owner given in the `x-guidance` of a schema within Lark.
    pub fn of(schema: &Value) -> Self {
        let said = schema.get("x-guidance").unwrap_or(&Value::Null);
        let text = |name: &str| said.get(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            tool: text("tool"),
            at: text("at").unwrap_or_else(|| "#".to_owned()),
            strict: said.get("lenient") != Some(&Value::Bool(true)),
        }
    }

    pub fn says(&self, what: &str) -> String {
        match &self.tool {
            Some(tool) => format!("the tool `{tool}`: {what}"),
            None => what.to_owned(),
        }
    }

    /// Records that a keyword is not enforced.
    ///
    /// # Errors
    /// [`GrammarError::Keyword`] if the schema is strict.
    pub fn leave_out(
        &self,
        keyword: &str,
        at: &str,
        why: &str,
        notes: &mut Vec<String>,
    ) -> Result<(), GrammarError> {
        if self.strict {
            let (keyword, at, why) = (keyword.to_owned(), at.to_owned(), why.to_owned());
            return Err(GrammarError::Keyword { tool: self.tool.clone(), keyword, at, why });
        }
        notes.push(self.says(&format!("`{keyword}` at {at} is not enforced: {why}")));
        Ok(())
    }
}

impl Schema {
    /// Reads a schema. If it is too large but not strict, only its type is kept.
    ///
    /// # Errors
    /// [`GrammarError`] if the schema is strict.
    pub fn read(value: &Value, owner: Owner, limits: &Limits) -> Result<Self, GrammarError> {
        match Self::tidied(value, &owner, limits) {
            Err(err) if !owner.strict => {
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
        let mut tidy = Tidy { whole: value, owner, targets: Vec::new(), notes: Vec::new() };
        let root = match tidy.schema(value, &owner.at)? {
            Value::Bool(true) => json!({}),
            root => root,
        };
        let mut defs: Vec<(String, Value)> = Vec::new();
        while let Some((pointer, target)) = tidy.targets.get(defs.len()).cloned() {
            at_most("different references", tidy.targets.len(), limits.references)?;
            let at = format!("#{pointer}");
            let def = tidy.schema(target, &at)?;
            defs.push((at, def));
        }
        let parts = || defs.iter().map(|(_, def)| def).chain([&root]);
        let in_all: usize = parts().map(|part| levels(part, 0)).sum::<Result<usize, _>>()?;
        at_most("levels including references", in_all, MOST_LEVELS_IN_ALL)?;
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
    object.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": space.pattern() }));
    root
}

/// Reads a schema and the parts that it refers to.
struct Tidy<'a> {
    whole: &'a Value,
    owner: &'a Owner,
    /// Targets of references, with their JSON pointers.
    targets: Vec<(String, &'a Value)>,
    notes: Vec<String>,
}

impl Tidy<'_> {
    fn leave_out(&mut self, keyword: &str, at: &str, why: &str) -> Result<Option<Value>, GrammarError> {
        self.owner.leave_out(keyword, at, why, &mut self.notes).map(|()| None)
    }

    fn schema(&mut self, value: &Value, at: &str) -> Result<Value, GrammarError> {
        let object = match value {
            Value::Object(object) => object,
            Value::Bool(_) => return Ok(value.clone()),
            // Null means absent, and some languages write an empty object as an empty list.
            Value::Null => return Ok(json!({})),
            Value::Array(list) if list.is_empty() => return Ok(json!({})),
            _ => {
                let (above, keyword) = at.rsplit_once('/').unwrap_or(("#", at));
                self.leave_out(keyword, above, "a schema must be an object or a boolean")?;
                return Ok(json!({}));
            }
        };
        let mut tidied = Map::new();
        for (key, value) in object.iter().filter(|(key, value)| !value.is_null() || *key == "const") {
            if let Some(value) = self.keyword(key, value, object, at)? {
                tidied.insert(key.clone(), value);
            }
        }
        Ok(tidied.into())
    }

    /// Value of a keyword as it is enforced; `None` if it is dropped.
    fn keyword(
        &mut self,
        key: &str,
        value: &Value,
        object: &Map<String, Value>,
        at: &str,
    ) -> Result<Option<Value>, GrammarError> {
        if NOT_SUPPORTED.contains(&key) {
            return match excludes_nothing(key, value, object) {
                true => Ok(None),
                false => self.leave_out(key, at, "it is not supported"),
            };
        }
        if !SUPPORTED.contains(&key) {
            return Ok(None);
        }
        let fits = |value: &Value| fits(object.get("type"), value);
        Ok(Some(match (key, value) {
            (key, _) if OF_SCHEMAS.contains(&key) => return self.schemas(key, value, at),
            ("$ref", _) => {
                let reference = value.as_str().ok_or_else(|| "a reference must be a string".to_owned());
                match reference.and_then(|reference| self.refer(reference)) {
                    Ok(number) => format!("#/$defs/{number}").into(),
                    Err(why) => return self.leave_out(key, at, &why),
                }
            }
            ("format", _) if !value.as_str().is_some_and(|format| FORMATS.contains(&format)) => {
                let note = format!("`format` at {at} is an annotation: unknown format {value}");
                self.notes.push(self.owner.says(&note));
                return Ok(None);
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
                let why = format!("it is more than {MOST_REMAINDERS} times its last digit");
                return self.leave_out(key, at, &why);
            }
            (key, Value::Number(_)) if is_count(key) => whole(value),
            (_, value) => value.clone(),
        }))
    }

    fn schemas(&mut self, key: &str, value: &Value, at: &str) -> Result<Option<Value>, GrammarError> {
        let at = format!("{at}/{key}");
        Ok(Some(match value {
            Value::Array(list) if list.is_empty() && OF_NAMED_SCHEMAS.contains(&key) => return Ok(None),
            Value::Array(list) if list.is_empty() && key == "items" => return Ok(None),
            Value::Object(named) if OF_NAMED_SCHEMAS.contains(&key) => {
                let mut tidied = Map::new();
                for (name, schema) in named {
                    let at = format!("{at}/{}", escaped(name));
                    tidied.insert(name.clone(), self.schema(schema, &at)?);
                }
                tidied.into()
            }
            // The error appears when it does not compile.
            _ if OF_NAMED_SCHEMAS.contains(&key) => value.clone(),
            Value::Array(list) if !key.starts_with("additional") => {
                let tidied = list.iter().enumerate();
                tidied
                    .map(|(i, schema)| self.schema(schema, &format!("{at}/{i}")))
                    .collect::<Result<_, _>>()?
            }
            schema if !matches!(key, "allOf" | "anyOf" | "oneOf" | "prefixItems") => {
                self.schema(schema, &at)?
            }
            other => other.clone(),
        }))
    }

    /// Index of a reference's target, or the reason why there is none.
    fn refer(&mut self, reference: &str) -> Result<usize, String> {
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
        let (pointer, target) = found.ok_or_else(|| format!("there is nothing at `{reference}`"))?;
        let known = self.targets.iter().position(|(one, _)| *one == pointer);
        Ok(known.unwrap_or_else(|| {
            self.targets.push((pointer, target));
            self.targets.len() - 1
        }))
    }
}

/// Depth of nested lists and objects.
fn levels(value: &Value, above: usize) -> Result<usize, GrammarError> {
    at_most("levels", above, MOST_LEVELS)?;
    let deeper = |most: usize, value| levels(value, above + 1).map(|n| most.max(n));
    match value {
        Value::Array(items) => Ok(1 + items.iter().try_fold(0, deeper)?),
        Value::Object(object) => Ok(1 + object.values().try_fold(0, deeper)?),
        _ => Ok(0),
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
    ["null", "boolean", "number", "integer", "string", "array", "object"].contains(&name)
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
const MOST_REMAINDERS: u64 = 1_000_000;

fn has_few_remainders(multiple: &Value) -> bool {
    let digits = multiple.to_string().replace(['.', '-'], "");
    !multiple.is_number() || digits.parse().is_ok_and(|n: u64| n <= MOST_REMAINDERS)
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
