//! Tests of schema normalisation.

use super::owner::Strictness;
use super::*;
use crate::Source;
use crate::tests::{assert_texts, compiled};

fn read(schema: Value, strict: bool) -> Result<Schema, GrammarError> {
    Schema::read(&schema, Owner::alone(strict), &Limits::default())
}

/// Reads the schema of a tool, of which anything may be left out.
fn read_leniently(schema: Value) -> Schema {
    let owner = Owner { strictness: Strictness::Lenient, ..Owner::alone(false) };
    Schema::read(&schema, owner, &Limits::default()).unwrap()
}

#[test]
fn a_keyword_that_is_not_supported_is_named_with_its_place() {
    let schema = json!({"properties": {"not": {"items": {"not": {"type": "null"}}}}});
    let err = read(schema.clone(), true).unwrap_err();
    let GrammarError::Keyword { tool: None, keyword, at, .. } = err else { panic!("{err}") };
    assert_eq!((keyword.as_str(), at.as_str()), ("not", "#/properties/not/items"));
    assert!(matches!(read(schema.clone(), false), Err(GrammarError::Keyword { .. })));
    let left = read_leniently(schema);
    assert_eq!(left.root["properties"], json!({"not": {"items": {}}}));
    assert_eq!(left.notes, ["`not` at #/properties/not/items is not enforced: it is not supported"]);
    let odd = read_leniently(json!({"properties": {"a/b~": {"not": {}}}}));
    assert!(odd.notes[0].contains(" at #/properties/a~1b~0 "), "{:?}", odd.notes);
}

#[test]
fn words_of_constants_and_what_asserts_nothing_are_no_keywords() {
    let schema = json!({"const": {"if": 1, "a": null}, "uniqueItems": false, "x-guidance": {"a": 1},
        "description": "what for", "properties": {"a": null}});
    let schema = read(schema, true).unwrap();
    let want = json!({"const": {"if": 1, "a": null}, "properties": {"a": {}}, "additionalProperties": false});
    assert_eq!(schema.root, want);
    let whole = schema.to_value(Space::Free);
    assert_eq!(whole["x-guidance"], json!({"whitespace_pattern": Space::Free.pattern()}));
    assert!(schema.notes.is_empty());
}

#[test]
fn references_lead_into_the_schema() {
    for (reference, why) in [("http://a/b", "only"), ("other.json", "only"), ("#/$defs/x", "nothing")] {
        let err = read(json!({"items": {"$ref": reference}}), true).unwrap_err();
        let text = err.to_string();
        assert!(text.contains(reference) && text.contains("#/items") && text.contains(why), "{text}");
    }
    let named = json!({"$id": "http://a/b", "items": {"$ref": "http://a/b#/$defs/x"}, "$defs": {"x": {}}});
    assert_eq!(read(named, true).unwrap().defs.len(), 1);
    let schema = json!({"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/$defs/x%20y"}},
        "$defs": {"x y": {"$ref": "#/$defs/x y"}}});
    let schema = read(schema, true).unwrap();
    assert_eq!(schema.root["properties"], json!({"a": {"$ref": "#/$defs/0"}, "b": {"$ref": "#/$defs/1"}}));
    let places: Vec<&str> = schema.defs.iter().map(|(at, _)| at.as_str()).collect();
    assert_eq!(places, ["#", "#/$defs/x y"]);
    assert_eq!(schema.defs[0].1, schema.root);
    assert_eq!(schema.defs[1].1, json!({"$ref": "#/$defs/1"}));
}

#[test]
fn many_references_and_levels_are_refused() {
    let chain = |n: usize| -> Value {
        let link = |i: usize| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}));
        let mut defs: Map<String, Value> = (0..n).map(link).collect();
        defs.insert(format!("d{n}"), json!({"type": "null"}));
        json!({"$ref": "#/$defs/d0", "$defs": defs})
    };
    assert!(read(chain(3000), true).is_ok());
    assert!(matches!(read(chain(10_000), true), Err(GrammarError::TooLarge { .. })));
    assert!(matches!(read(chain(10_000), false), Err(GrammarError::TooLarge { .. })));
    let deep = (0..300).fold(json!({"type": "null"}), |inner, _| json!({ "items": inner }));
    assert!(matches!(read(deep, true), Err(GrammarError::TooLarge { what: "levels", .. })));
    let wide: Map<String, Value> = (0..4001).map(|i| (format!("p{i}"), json!({}))).collect();
    let wide = read(json!({"properties": wide}), false);
    assert!(matches!(wide, Err(GrammarError::TooLarge { what: "properties in one object", .. })));
    let mut loose = chain(10_000);
    loose["type"] = json!("object");
    let loose = read_leniently(loose);
    assert_eq!((loose.root, loose.defs.len()), (json!({"type": "object"}), 0));
    assert!(loose.notes[0].contains("references"), "{:?}", loose.notes);
}

#[test]
fn a_schema_is_an_object_or_a_truth_value() {
    assert_eq!(read(json!(true), true).unwrap().root, json!({}));
    assert!(matches!(read(json!([1]), true), Err(GrammarError::Invalid(_))));
    assert!(matches!(read(json!([1]), false), Err(GrammarError::Invalid(_))));
    assert_eq!(read_leniently(json!([1])).root, json!({}));
}

#[test]
fn counts_and_bounds_are_as_the_parser_reads_them() {
    let schema = json!({"minLength": 3.0, "maximum": 1e300, "exclusiveMinimum": -1e300, "minimum": 1e3});
    let far = 1_000_000_000_000_000_000i64;
    let want = json!({"minLength": 3, "maximum": far, "exclusiveMinimum": -far, "minimum": 1e3});
    assert_eq!(read(schema, true).unwrap().root, want);
}

/// A schema, texts that fit it, and texts that do not.
type Case = (Value, &'static [&'static str], &'static [&'static str]);

#[test]
fn objects_have_the_properties_that_are_named() {
    let string = json!({"type": "string"});
    let a = json!({"type": "object", "properties": {"a": string}, "required": ["a"]});
    let with = |more: Value| {
        let mut schema = a.clone();
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema
    };
    const ONLY: &str = r#"{"a": "x"}"#;
    const MORE: &str = r#"{"a": "x", "b": 1}"#;
    const NONE: &str = "{}";
    let cases: &[Case] = &[
        (a.clone(), &[ONLY], &[MORE, NONE]),
        (json!({"properties": {"a": string}}), &[ONLY, NONE], &[MORE, "[]", "1"]),
        (json!({"type": ["object", "null"], "properties": {"a": string}}), &[ONLY, "null"], &[MORE, "[]"]),
        (json!({"type": "object", "properties": {}}), &[NONE], &[ONLY]),
        (json!({"type": "object", "properties": []}), &[NONE], &[ONLY]),
        (with(json!({"additionalProperties": null, "patternProperties": {}})), &[ONLY], &[MORE]),
        (with(json!({"additionalProperties": false})), &[ONLY], &[MORE]),
        (with(json!({"unevaluatedProperties": false})), &[ONLY], &[MORE]),
        // A required property need not be described.
        (with(json!({"required": ["a", "b"]})), &[MORE], &[ONLY, r#"{"a": "x", "c": 1}"#]),
        // In a list, in a definition, in a property.
        (json!({"type": "array", "items": a}), &[r#"[{"a": "x"}]"#], &[r#"[{"a": "x", "b": 1}]"#]),
        (json!({"$ref": "#/$defs/a", "$defs": {"a": a}}), &[ONLY], &[MORE]),
        (json!({"additionalProperties": a}), &[r#"{"k": {"a": "x"}}"#], &[r#"{"k": {"a": "x", "b": 1}}"#]),
        // These are open.
        (json!({"type": "object"}), &[ONLY, MORE, NONE], &["[]"]),
        (json!({"type": "object", "required": ["a"]}), &[ONLY, MORE], &[NONE]),
        (with(json!({"additionalProperties": true})), &[ONLY, MORE], &[NONE]),
        (
            with(json!({"additionalProperties": {"type": "integer"}})),
            &[ONLY, MORE],
            &[r#"{"a": "x", "b": ""}"#],
        ),
        (with(json!({"unevaluatedProperties": true})), &[ONLY, MORE], &[NONE]),
        (with(json!({"patternProperties": {"^b": {"type": "integer"}}})), &[ONLY, MORE], &[NONE]),
        (json!({"type": "object", "patternProperties": {"^b": {"type": "integer"}}}), &[ONLY, MORE], &["[]"]),
    ];
    for (schema, good, bad) in cases {
        assert_texts(&compiled(Source::JsonSchema { schema: schema.clone(), strict: true }), good, bad);
    }
}

#[test]
fn schemas_of_one_object_share_their_names() {
    let of =
        |name: &str| json!({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]});
    let refer = |name: &str| json!({"$ref": format!("#/$defs/{name}")});
    let defs = json!({"a": of("a"), "b": of("b"), "ab": {"allOf": [refer("a"), of("b")]},
        "either": {"anyOf": [refer("a"), refer("b")]}, "open": {"additionalProperties": true}});
    let with = |schema: Value, more: Value| {
        let mut schema = schema;
        schema.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        schema["$defs"] = defs.clone();
        schema
    };
    let open = json!({"additionalProperties": true});
    const A: &str = r#"{"a": 1}"#;
    const B: &str = r#"{"b": 1}"#;
    const AB: &str = r#"{"a": 1, "b": 1}"#;
    const BA: &str = r#"{"b": 1, "a": 1}"#;
    const AC: &str = r#"{"a": 1, "c": 1}"#;
    const BC: &str = r#"{"b": 1, "c": 1}"#;
    const CA: &str = r#"{"c": 1, "a": 1}"#;
    const CB: &str = r#"{"c": 1, "b": 1}"#;
    const CBD: &str = r#"{"c": 1, "b": 1, "d": 1}"#;
    const ABC: &str = r#"{"a": 1, "b": 1, "c": 1}"#;
    const CAB: &str = r#"{"c": 1, "a": 1, "b": 1}"#;
    let cases: &[Case] = &[
        (json!({"allOf": [of("a"), of("b")]}), &[AB], &[A, B, ABC]),
        (json!({"allOf": [refer("a"), refer("b")]}), &[AB], &[A, B, ABC]),
        (json!({"allOf": [refer("a"), of("b")]}), &[AB], &[A, B, ABC]),
        (json!({"allOf": [refer("ab"), of("c")]}), &[ABC], &[AB]),
        (with(refer("ab"), of("c")), &[ABC], &[AB, AC]),
        (with(of("c"), refer("ab")), &[CAB], &[CA, CB]),
        (json!({"allOf": [refer("a")]}), &[A], &[AB]),
        // The target is closed where it is alone.
        (
            json!({"type": "array", "items": false,
                "prefixItems": [refer("a"), {"allOf": [refer("a"), of("b")]}]}),
            &[r#"[{"a": 1}, {"a": 1, "b": 1}]"#],
            &[r#"[{"a": 1, "b": 1}]"#, r#"[{"a": 1}, {"a": 1, "b": 1, "c": 1}]"#],
        ),
        // Each choice has its own names and those around it.
        (json!({"anyOf": [of("a"), of("b")]}), &[A, B], &[AB, BA, AC]),
        (json!({"oneOf": [of("a"), of("b")]}), &[A, B], &[AB, BA, AC]),
        (json!({"oneOf": [refer("a"), refer("b")]}), &[A, B], &[AB, BA, AC]),
        (with(of("c"), json!({"anyOf": [of("a"), of("b")]})), &[CA, CB], &[A, B, CAB]),
        (with(of("c"), json!({"oneOf": [refer("a"), refer("b")]})), &[CA, CB], &[A, B, CAB]),
        (json!({"allOf": [refer("either"), of("c")]}), &[AC, BC], &[A, ABC]),
        (json!({"allOf": [refer("either"), refer("ab")]}), &[AB], &[A, B, ABC]),
        // One that is open opens all; a plain type does not.
        (json!({"allOf": [refer("open"), of("a")]}), &[A, AC], &[B]),
        (json!({"allOf": [{"type": "object"}, of("a")]}), &[A], &[AC, B]),
        (with(of("a"), json!({"anyOf": [{"required": ["a"]}, {"required": ["c"]}]})), &[A, AC], &[B, AB]),
        (json!({"anyOf": [{"type": "object"}, of("a")]}), &[A, B, AC], &["1"]),
        (with(of("c"), json!({"anyOf": [with(of("a"), open), of("b")]})), &[CA, CB, CAB], &[CBD, A]),
    ];
    for (schema, good, bad) in cases {
        let schema = with(schema.clone(), json!({}));
        assert_texts(&compiled(Source::JsonSchema { schema, strict: true }), good, bad);
    }
}

/// Unions that name their kind in a property, as pydantic writes them.
#[test]
fn unions_of_definitions_are_told_apart() {
    let kind = |name: &str| {
        json!({"type": "object", "required": ["kind", "n"],
            "properties": {"kind": {"const": name, "type": "string"}, "n": {"type": "integer"}}})
    };
    let either = json!({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]});
    let schema = json!({"type": "array", "items": either, "$defs": {"cat": kind("cat"), "dog": kind("dog")}});
    let grammar = compiled(Source::JsonSchema { schema, strict: true });
    let good = [r#"[{"kind": "dog", "n": 1}, {"kind": "cat", "n": 2}]"#];
    assert_texts(&grammar, &good, &[r#"[{"kind": "cow", "n": 1}]"#]);
    let same = json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": kind("cat")}});
    assert!(read(same, true).unwrap().root.get("oneOf").is_some());
}

/// Definitions in the style of FHIR: each has several references, and a resource is one of many.
#[test]
fn thousands_of_references_are_enforced() {
    const N: usize = 700;
    let refer = |to: usize| json!({"$ref": format!("#/definitions/T{}", to % N)});
    let mut defs: Map<String, Value> = (0..N)
        .map(|i| {
            let mut properties: Map<String, Value> =
                (1..8).map(|k| (format!("p{k}"), refer(i * 7 + k))).collect();
            properties.insert("list".into(), json!({"type": "array", "items": refer(i + 1)}));
            properties.insert("kind".into(), json!({"const": format!("T{i}")}));
            (format!("T{i}"), json!({"properties": properties, "required": ["kind"]}))
        })
        .collect();
    let all: Vec<Value> = (0..100).map(refer).collect();
    defs.insert("Any".into(), json!({"oneOf": all}));
    let schema = json!({"$ref": "#/definitions/Any", "definitions": defs});
    let grammar = compiled(Source::JsonSchema { schema, strict: true });
    let good = [r#"{"p1": {"p2": {"kind": "T58"}, "kind": "T8"}, "kind": "T1"}"#];
    assert_texts(&grammar, &good, &[r#"{"kind": "T100"}"#, r#"{"kind": "T1", "q": 1}"#]);
}
