//! Tests of schema normalisation.

use super::*;

fn read(schema: Value, strict: bool) -> Result<Schema, GrammarError> {
    Schema::read(&schema, Owner::alone(strict), &Limits::default())
}

#[test]
fn a_keyword_that_is_not_supported_is_named_with_its_place() {
    let schema = json!({"properties": {"not": {"items": {"not": {"type": "null"}}}}});
    let err = read(schema.clone(), true).unwrap_err();
    let GrammarError::Keyword { tool: None, keyword, at, .. } = err else { panic!("{err}") };
    assert_eq!((keyword.as_str(), at.as_str()), ("not", "#/properties/not/items"));
    let left = read(schema, false).unwrap();
    assert_eq!(left.root["properties"], json!({"not": {"items": {}}}));
    assert_eq!(left.notes, ["`not` at #/properties/not/items is not enforced: it is not supported"]);
    let odd = read(json!({"properties": {"a/b~": {"not": {}}}}), false).unwrap();
    assert!(odd.notes[0].contains(" at #/properties/a~1b~0 "), "{:?}", odd.notes);
}

#[test]
fn words_of_constants_and_what_asserts_nothing_are_no_keywords() {
    let schema = json!({"const": {"if": 1, "a": null}, "uniqueItems": false, "x-guidance": {"a": 1},
        "description": "what for", "properties": {"a": null}});
    let schema = read(schema, true).unwrap();
    assert_eq!(schema.root, json!({"const": {"if": 1, "a": null}, "properties": {"a": {}}}));
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
    assert!(read(chain(90), true).is_ok());
    assert!(matches!(read(chain(10_000), true), Err(GrammarError::TooLarge { .. })));
    let deep = (0..300).fold(json!({"type": "null"}), |inner, _| json!({ "items": inner }));
    assert!(matches!(read(deep, true), Err(GrammarError::TooLarge { what: "levels", .. })));
    let mut loose = chain(10_000);
    loose["type"] = json!("object");
    let loose = read(loose, false).unwrap();
    assert_eq!((loose.root, loose.defs.len()), (json!({"type": "object"}), 0));
    assert!(loose.notes[0].contains("references"), "{:?}", loose.notes);
}

#[test]
fn a_schema_is_an_object_or_a_truth_value() {
    assert_eq!(read(json!(true), true).unwrap().root, json!({}));
    assert!(matches!(read(json!([1]), true), Err(GrammarError::Invalid(_))));
    assert_eq!(read(json!([1]), false).unwrap().root, json!({}));
}

#[test]
fn counts_and_bounds_are_as_the_parser_reads_them() {
    let schema = json!({"minLength": 3.0, "maximum": 1e300, "exclusiveMinimum": -1e300, "minimum": 1e3});
    let far = 1_000_000_000_000_000_000i64;
    let want = json!({"minLength": 3, "maximum": far, "exclusiveMinimum": -far, "minimum": 1e3});
    assert_eq!(read(schema, true).unwrap().root, want);
}
