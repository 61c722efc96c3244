//! The server's OpenAPI document: every answer that a test reads is checked against it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use jsonschema::Validator;
use serde_json::{Map, Value};

/// The document at `/openapi.json`.
pub struct Description {
    document: Value,
    /// The same document, which forbids fields that it does not list.
    closed: Value,
    /// Validators by the JSON pointer of their schema.
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

/// Forbids fields that are not listed. The fields of a `part` are listed in its siblings, too.
fn close(schema: &mut Value, is_part: bool) {
    match schema {
        Value::Object(map) => {
            let lists = map.get("properties").is_some_and(Value::is_object);
            for (name, inner) in map.iter_mut() {
                close(inner, lists && ["allOf", "anyOf", "oneOf"].contains(&name.as_str()));
            }
            if lists && !is_part && !map.contains_key("additionalProperties") {
                map.insert("unevaluatedProperties".into(), false.into());
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|inner| close(inner, is_part)),
        _ => {}
    }
}

/// A validator for the schema at a JSON pointer of `document`.
fn validator(document: &Value, place: &str) -> Validator {
    let mut schema = Map::new();
    let reference = format!("#{}", place.replace('{', "%7B").replace('}', "%7D"));
    schema.insert("$ref".into(), reference.into());
    for name in ["components", "paths"] {
        schema.insert(name.into(), document[name].clone());
    }
    jsonschema::validator_for(&Value::Object(schema)).unwrap()
}

fn assert_valid(validator: &Validator, what: &str, value: &Value) {
    let errors = validator.iter_errors(value).map(|err| format!("{}: {err}", err.instance_path()));
    let errors: Vec<String> = errors.collect();
    assert!(errors.is_empty(), "{what}: {errors:?} in {value}");
}

/// A key, escaped for a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

impl Description {
    pub fn new(document: Value) -> Self {
        let mut closed = document.clone();
        close(&mut closed, false);
        Self { document, closed, validators: Mutex::default() }
    }

    /// Checks a request against the schema of that name.
    pub fn check_request(&self, name: &str, value: &Value) {
        assert_valid(&validator(&self.document, &format!("/components/schemas/{name}")), name, value);
    }

    /// Checks an answer, whole or streamed, against the description of its path.
    pub fn check_response(&self, method: &str, path: &str, status: u16, media: Option<&str>, text: &str) {
        // As the server normalises it.
        let parts = path.split('?').next().unwrap().split('/').filter(|part| !part.is_empty());
        let path = parts.fold(String::new(), |path, part| path + "/" + part);
        let paths = self.document["paths"].as_object().unwrap();
        let fits_template = |template: &&String| match template.split_once('{') {
            Some((head, _)) => path.starts_with(head),
            None => **template == path,
        };
        let exact = paths.keys().find(|template| **template == path);
        let Some(template) = exact.or_else(|| paths.keys().find(fits_template)) else { return };
        let operation = &paths[template][method];
        if operation.is_null() {
            return;
        }
        let mut place = format!("/paths/{}/{method}/responses/{status}", escaped(template));
        let response = &operation["responses"][status.to_string()];
        assert!(!response.is_null(), "{method} {path}: {status} is not described: {text}");
        if let Some(reference) = response["$ref"].as_str() {
            place = reference.trim_start_matches('#').to_owned();
        }
        let media = media.and_then(|media| media.split(';').next()).expect("an answer has a media type");
        let (schema, values): (_, Vec<Value>) = match media {
            "application/json" => ("schema", vec![serde_json::from_str(text).unwrap()]),
            // The last piece may be cut off, and one may be an error.
            "text/event-stream" | "application/x-ndjson" => {
                let data = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
                let pieces = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
                ("x-itemSchema", pieces.filter(|piece| piece.get("error").is_none()).collect())
            }
            _ => return,
        };
        let place = format!("{place}/content/{}/{schema}", escaped(media));
        assert!(self.closed.pointer(&place).is_some(), "{method} {path}: {media} is not described");
        let mut validators = self.validators.lock().unwrap_or_else(PoisonError::into_inner);
        let validator =
            validators.entry(place).or_insert_with_key(|place| Arc::new(validator(&self.closed, place)));
        let validator = Arc::clone(validator);
        values.iter().for_each(|value| assert_valid(&validator, &format!("{method} {path}"), value));
    }
}
