//! JSON schemas before they are compiled: what cannot be enforced is named, and what could take the process
//! down is refused.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{GrammarError, Limits, at_most};

/// Most levels of lists and objects in a schema, as in `serde_json`.
const MOST_LEVELS: usize = 128;
/// Most levels of a schema and of all that it refers to, one under the other: each takes stack.
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

/// Keywords whose value is a schema, a list of schemas, or an object of schemas.
const OF_SCHEMAS: &[&str] = &[
    "$defs",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "definitions",
    "items",
    "oneOf",
    "patternProperties",
    "prefixItems",
    "properties",
];
/// Those of them whose value is an object of schemas, so that its keys are names.
const OF_NAMED_SCHEMAS: &[&str] = &["$defs", "definitions", "patternProperties", "properties"];

/// Between two words of JSON: a space, or one or two line ends and what a line is indented by. Without a
/// bound a small model writes line ends for ever.
const SPACE: &str = r" |\n{1,2}[ \t]{0,20}";

/// A schema as the parser takes it, and what of it is not enforced.
///
/// # Errors
/// [`GrammarError`]. If `strict` is false, keywords that are not supported are left out instead.
pub fn prepare(schema: &Value, strict: bool, limits: &Limits) -> Result<(Value, Vec<String>), GrammarError> {
    check(schema, limits)?;
    let mut notes = Vec::new();
    let mut schema = schema.clone();
    walk(&mut schema, "#", &mut |object, at| {
        // It asserts nothing.
        if object.get("uniqueItems") == Some(&Value::Bool(false)) {
            object.remove("uniqueItems");
        }
        let found = NOT_SUPPORTED.iter().find(|keyword| object.contains_key(**keyword));
        match found {
            Some(keyword) if strict => {
                Err(GrammarError::Keyword { keyword: (*keyword).to_owned(), at: at.to_owned() })
            }
            Some(_) => {
                for keyword in NOT_SUPPORTED.iter().filter(|keyword| object.contains_key(**keyword)) {
                    notes.push(format!("`{keyword}` at {at} is not enforced"));
                }
                object.retain(|key, _| !NOT_SUPPORTED.contains(&key.as_str()));
                Ok(())
            }
            None => Ok(()),
        }
    })?;
    // This key would change what the parser does; nobody but us may.
    match &mut schema {
        Value::Object(object) => {
            object
                .insert("x-guidance".to_owned(), json!({ "whitespace_pattern": SPACE, "lenient": !strict }));
        }
        Value::Bool(_) => {}
        _ => return Err(GrammarError::Invalid("a JSON schema is an object, or true or false".to_owned())),
    }
    Ok((schema, notes))
}

/// A text of Lark with its schemas, which follow `%json`, [prepared](prepare); and what of them is not
/// enforced. A schema with `"x-guidance": {"lenient": true}` may have keywords that are not supported.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_embedded(text: &str, limits: &Limits) -> Result<(String, Vec<String>), GrammarError> {
    const WORD: &str = "%json";
    let (mut out, mut notes, mut rest) = (String::with_capacity(text.len()), Vec::new(), text);
    while let Some(at) = rest.find(WORD) {
        let (before, after) = rest.split_at(at + WORD.len());
        out += before;
        rest = after;
        let mut found = serde_json::Deserializer::from_str(after).into_iter::<Value>();
        // What is no JSON is refused by the parser.
        if let Some(Ok(schema)) = found.next() {
            let lenient = schema.pointer("/x-guidance/lenient") == Some(&Value::Bool(true));
            let (schema, more) = prepare(&schema, !lenient, limits)?;
            out += &format!(" {schema}");
            notes.extend(more);
            rest = &after[found.byte_offset()..];
        }
    }
    Ok((out + rest, notes))
}

/// Checks what could take the parser's stack: the parser follows references one inside the other.
fn check(schema: &Value, limits: &Limits) -> Result<(), GrammarError> {
    let levels = levels(schema, 0)?;
    at_most("bytes", schema.to_string().len(), limits.bytes)?;
    let mut references = BTreeMap::new();
    collect(schema, "#", &mut references);
    at_most("different references", references.len(), limits.references)?;
    let mut in_all = levels;
    for (reference, at) in &references {
        let wrong = |why| GrammarError::Reference { reference: reference.clone(), at: at.clone(), why };
        let pointer = reference.strip_prefix('#').ok_or_else(|| {
            wrong("only references into the schema itself are followed, as in `#/$defs/name`")
        })?;
        let target = match pointer {
            "" | "/" => Some(schema),
            pointer => schema.pointer(pointer),
        };
        in_all += self::levels(target.ok_or_else(|| wrong("there is nothing"))?, 0)?;
    }
    at_most("levels, references included,", in_all, MOST_LEVELS_IN_ALL)
}

/// How deep lists and objects are nested.
fn levels(value: &Value, above: usize) -> Result<usize, GrammarError> {
    at_most("levels", above, MOST_LEVELS)?;
    let deeper = |most: usize, value| levels(value, above + 1).map(|n| most.max(n));
    match value {
        Value::Array(items) => Ok(1 + items.iter().try_fold(0, deeper)?),
        Value::Object(object) => Ok(1 + object.values().try_fold(0, deeper)?),
        _ => Ok(0),
    }
}

/// Every `$ref` of a schema once, with a place where it stands. What looks like one inside of a constant
/// counts too: that can only make the check stricter.
fn collect(value: &Value, at: &str, references: &mut BTreeMap<String, String>) {
    match value {
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(i, item)| collect(item, &format!("{at}/{i}"), references));
        }
        Value::Object(object) => {
            for (key, value) in object {
                if let ("$ref", Value::String(reference)) = (key.as_str(), value) {
                    references.entry(reference.clone()).or_insert_with(|| at.to_owned());
                }
                collect(value, &format!("{at}/{key}"), references);
            }
        }
        _ => {}
    }
}

/// Hands every object of `schema` that is a schema to `each`, with its place.
fn walk(
    schema: &mut Value,
    at: &str,
    each: &mut impl FnMut(&mut Map<String, Value>, &str) -> Result<(), GrammarError>,
) -> Result<(), GrammarError> {
    let Value::Object(object) = schema else { return Ok(()) };
    each(object, at)?;
    for (key, value) in object.iter_mut().filter(|(key, _)| OF_SCHEMAS.contains(&key.as_str())) {
        let at = format!("{at}/{key}");
        match value {
            Value::Object(named) if OF_NAMED_SCHEMAS.contains(&key.as_str()) => {
                named
                    .iter_mut()
                    .try_for_each(|(name, schema)| walk(schema, &format!("{at}/{name}"), each))?;
            }
            Value::Array(list) => {
                let mut list = list.iter_mut().enumerate();
                list.try_for_each(|(i, schema)| walk(schema, &format!("{at}/{i}"), each))?;
            }
            schema => walk(schema, &at, each)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(schema: Value, strict: bool) -> Result<(Value, Vec<String>), GrammarError> {
        prepare(&schema, strict, &Limits::default())
    }

    #[test]
    fn a_keyword_that_is_not_supported_is_named_with_its_place() {
        let schema = json!({"properties": {"not": {"items": {"not": {"type": "null"}}}}});
        let err = prepared(schema.clone(), true).unwrap_err();
        let want = GrammarError::Keyword { keyword: "not".into(), at: "#/properties/not/items".into() };
        assert_eq!(err, want);
        let (left, notes) = prepared(schema, false).unwrap();
        assert_eq!(left["properties"], json!({"not": {"items": {}}}));
        assert_eq!(notes, ["`not` at #/properties/not/items is not enforced"]);
    }

    #[test]
    fn words_of_constants_and_what_asserts_nothing_are_no_keywords() {
        let schema =
            json!({"const": {"if": 1}, "enum": [{"not": 2}], "uniqueItems": false, "x-guidance": {"a": 1}});
        let (schema, notes) = prepared(schema, true).unwrap();
        assert_eq!(schema["const"], json!({"if": 1}));
        assert_eq!(schema["x-guidance"]["whitespace_pattern"], SPACE);
        assert!(notes.is_empty() && schema["x-guidance"].get("a").is_none());
    }

    #[test]
    fn references_lead_into_the_schema() {
        for (reference, why) in [("http://a/b", "only"), ("other.json", "only"), ("#/$defs/x", "nothing")] {
            let err = prepared(json!({"items": {"$ref": reference}}), true).unwrap_err();
            let text = err.to_string();
            assert!(text.contains(reference) && text.contains("#/items") && text.contains(why), "{text}");
        }
        assert!(prepared(json!({"properties": {"a": {"$ref": "#"}}}), true).is_ok());
    }

    #[test]
    fn many_references_bytes_and_levels_are_refused() {
        let chain = |n: usize| -> Value {
            let link = |i: usize| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}));
            let mut defs: Map<String, Value> = (0..n).map(link).collect();
            defs.insert(format!("d{n}"), json!({"type": "null"}));
            json!({"$ref": "#/$defs/d0", "$defs": defs})
        };
        assert!(prepared(chain(90), true).is_ok());
        assert!(matches!(prepared(chain(10_000), true), Err(GrammarError::TooLarge { .. })));
        let text = format!("start: %json {}", chain(200));
        assert!(matches!(prepare_embedded(&text, &Limits::default()), Err(GrammarError::TooLarge { .. })));
        let deep = (0..300).fold(json!({"type": "null"}), |inner, _| json!({ "items": inner }));
        assert!(matches!(prepared(deep, true), Err(GrammarError::TooLarge { what: "levels", .. })));
        let long: Vec<String> = (0..60_000).map(|i| i.to_string()).collect();
        assert!(matches!(
            prepared(json!({"enum": long}), true),
            Err(GrammarError::TooLarge { what: "bytes", .. })
        ));
    }

    #[test]
    fn schemas_in_lark_are_prepared_where_they_stand() {
        let lenient = "b: %json{\"x-guidance\": {\"lenient\": true}, \"not\": {}}\n%json";
        let text = &format!("start: a b\na: %json {{\"type\": \"null\"}}\n{lenient}");
        let (lark, notes) = prepare_embedded(text, &Limits::default()).unwrap();
        assert!(lark.starts_with("start: a b\na: %json {\"type\":\"null\",\"x-guidance\""), "{lark}");
        assert!(lark.ends_with("}\n%json") && lark.contains("\"lenient\":true") && !lark.contains("\"not\""));
        assert_eq!(notes, ["`not` at # is not enforced"]);
        let strict = "start: %json {\"not\": {}}";
        assert!(matches!(prepare_embedded(strict, &Limits::default()), Err(GrammarError::Keyword { .. })));
    }

    #[test]
    fn a_schema_is_an_object_or_a_truth_value() {
        assert!(prepared(json!(true), true).is_ok());
        assert!(matches!(prepared(json!([1]), true), Err(GrammarError::Invalid(_))));
    }
}
