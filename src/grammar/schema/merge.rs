//! Bounds the work of merging schemas, before the parser does it.
//!
//! Schemas that apply to one value are merged: the members of `allOf`, the targets of references, and each
//! of the alternatives with a copy of everything else. Their patterns are intersected.

use std::collections::{BTreeSet, HashMap};

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;
use serde_json::{Map, Value};

use crate::effort::{self, MAX_COMBINATIONS, Work};
use crate::{GrammarError, at_most, caught};

/// Largest number of schemas of a value after merging, with those of its parts.
const MAX_MERGED: f64 = 300e3;
/// Largest number of schemas that are visited to find out.
const MAX_VISITS: usize = 300_000;
/// Deepest nesting of merged schemas and references. The parser has the same limit.
const MAX_LEVELS: usize = 128;
/// Largest number of pairs of patterns of property names: both patterns of a pair must not match one name.
const MAX_NAME_PAIRS: usize = 5000;
/// Largest number of properties of an object with `minProperties` or `maxProperties`, which may be written
/// as one alternative per property.
const MAX_COUNTED_PROPERTIES: usize = 500;
/// Largest product of the number of properties of an object and the number of all schemas: the parser goes
/// through all rules for each optional property.
const MAX_PROPERTIES: usize = 40_000_000;
/// Largest number of different patterns.
const MAX_PATTERNS: usize = 1000;

type Object = Map<String, Value>;

/// Estimates for a merged schema.
#[derive(Clone, Copy, Debug)]
struct Merged {
    /// Number of schemas in it.
    size: f64,
    /// Number of alternatives of the value.
    alternatives: f64,
    /// Combinations of the alternatives of all patterns that apply to the value.
    patterns: f64,
}

/// Checks a schema, whose references are indices into `defs`.
///
/// # Errors
/// [`GrammarError::TooLarge`], [`GrammarError::Invalid`].
pub fn check(root: &Value, defs: &[(String, Value)]) -> Result<(), GrammarError> {
    let mut merge =
        Merge { defs, n_visits: 0, n_name_pairs: 0, most_properties: 0, patterns: HashMap::new() };
    let schemas = defs.iter().map(|(_, def)| def).chain([root]);
    for schema in schemas.filter(|schema| !is_reference(schema)) {
        merge.value(&[schema], 0)?;
    }
    let n_schemas = merge.n_visits + merge.most_properties;
    at_most("properties of one object", merge.most_properties, MAX_PROPERTIES / n_schemas.max(1))
}

struct Merge<'a> {
    defs: &'a [(String, Value)],
    n_visits: usize,
    n_name_pairs: usize,
    most_properties: usize,
    /// Alternatives of each pattern.
    patterns: HashMap<&'a str, f64>,
}

impl<'a> Merge<'a> {
    /// Estimates the schema that `schemas` are merged to.
    fn value(&mut self, schemas: &[&'a Value], level: usize) -> Result<Merged, GrammarError> {
        let mut merged = Merged { size: 0.0, alternatives: 1.0, patterns: 1.0 };
        let mut open: Vec<(&'a Value, usize)> = schemas.iter().map(|schema| (*schema, level)).collect();
        let (mut members, mut choices): (Vec<&'a Object>, Vec<&'a Vec<Value>>) = (Vec::new(), Vec::new());
        while let Some((schema, level)) = open.pop() {
            self.n_visits += 1;
            at_most("schemas after merging", self.n_visits, MAX_VISITS)?;
            let Value::Object(object) = schema else { continue };
            if level > MAX_LEVELS {
                continue;
            }
            merged.size += 1.0;
            open.extend(self.target(object).map(|target| (target, level + 1)));
            open.extend(list(object, "allOf").iter().map(|member| (member, level + 1)));
            choices.extend(["anyOf", "oneOf"].into_iter().filter_map(|key| object.get(key)?.as_array()));
            if let Some(Value::String(pattern)) = object.get("pattern") {
                merged.patterns *= self.alternatives(pattern)?;
            }
            members.push(object);
        }
        for part in self.parts(&members)? {
            merged.size += match part[..] {
                [one] if is_reference(one) => 1.0,
                _ => self.value(&part, level + 1)?.size,
            };
        }
        let is_alone = merged.size <= 1.0 && choices.len() == 1;
        let (base, mut of_choices) = (merged.size, Vec::new());
        for choice in choices {
            let (mut size, mut n, mut patterns) = (0.0, 0.0, 1.0_f64);
            for option in choice.iter().filter(|option| !(is_alone && is_reference(option))) {
                let option = self.value(&[option], level + 1)?;
                (size, n) = (size + option.size, n + option.alternatives);
                patterns = patterns.max(option.patterns);
            }
            merged.alternatives *= f64::max(n, 1.0);
            merged.patterns *= patterns;
            of_choices.push((size, f64::max(n, 1.0)));
        }
        // Each combination has the base, and one option of each choice.
        let options: f64 = of_choices.iter().map(|(size, n)| size * merged.alternatives / n).sum();
        merged.size = base * merged.alternatives + options;
        if merged.size > MAX_MERGED {
            at_most("schemas after merging", merged.size as usize, MAX_MERGED as usize)?;
        }
        if merged.patterns > MAX_COMBINATIONS {
            let detail = "too many patterns, or patterns with too many alternatives, apply to one text";
            return Err(GrammarError::Invalid(detail.to_owned()));
        }
        Ok(merged)
    }

    /// Most alternatives of a pattern or a part of it at one position; infinite if it is too complex on its
    /// own.
    fn alternatives(&mut self, pattern: &'a str) -> Result<f64, GrammarError> {
        if let Some(known) = self.patterns.get(pattern) {
            return Ok(*known);
        }
        effort::check_classes(self.patterns.keys().copied().chain([pattern]))?;
        let work = caught(|| {
            let mut builder = RegexBuilder::new();
            builder.mk_regex_for_serach(&regex_to_lark(pattern, "dw")).map_err(|err| err.to_string())?;
            Ok::<Work, String>(Work::of(builder.exprset()))
        });
        let alternatives = match work {
            Ok(work) if work.is_too_much() => f64::INFINITY,
            Ok(work) => work.most_alternatives,
            // The error of a wrong pattern appears when it is compiled.
            Err(_) => 1.0,
        };
        self.patterns.insert(pattern, alternatives);
        at_most("different patterns", self.patterns.len(), MAX_PATTERNS)?;
        Ok(alternatives)
    }

    fn target(&self, object: &Object) -> Option<&'a Value> {
        let number: usize = object.get("$ref")?.as_str()?.rsplit('/').next()?.parse().ok()?;
        self.defs.get(number).map(|(_, def)| def)
    }

    /// Schemas that apply to each part of an object or array. The members of an object without a property
    /// have their `additionalProperties` for it, and likewise for items.
    fn parts(&mut self, members: &[&'a Object]) -> Result<Vec<Vec<&'a Value>>, GrammarError> {
        let mut parts = Vec::new();
        let additional = |member: &&'a Object| member.get("additionalProperties");
        let properties = |member: &&'a Object| member.get("properties").and_then(Value::as_object);
        let patterns = |member: &&'a Object| member.get("patternProperties").and_then(Value::as_object);
        let names: BTreeSet<&String> = members.iter().filter_map(properties).flat_map(Map::keys).collect();
        let required = members.iter().map(|member| list(member, "required").len());
        let n_properties = names.len().max(required.sum());
        self.most_properties = self.most_properties.max(n_properties);
        if members
            .iter()
            .any(|member| member.contains_key("minProperties") || member.contains_key("maxProperties"))
        {
            at_most("properties of an object that are counted", n_properties, MAX_COUNTED_PROPERTIES)?;
        }
        for name in names {
            let own = |member| properties(member).and_then(|named| named.get(name));
            parts.push(members.iter().filter_map(|member| own(member).or(additional(member))).collect());
        }
        let names: BTreeSet<&String> = members.iter().filter_map(patterns).flat_map(Map::keys).collect();
        self.n_name_pairs += names.len() * names.len().saturating_sub(1) / 2;
        at_most("pairs of patterns of property names", self.n_name_pairs, MAX_NAME_PAIRS)?;
        for name in names {
            parts.push(members.iter().filter_map(patterns).filter_map(|named| named.get(name)).collect());
        }
        parts.push(members.iter().filter_map(additional).collect());
        let prefix = |member: &&'a Object| match list(member, "prefixItems") {
            [] => list(member, "items"),
            items => items,
        };
        let rest = |member: &&'a Object| match member.get("items") {
            Some(Value::Array(_)) => member.get("additionalItems"),
            items => items,
        };
        for i in 0..members.iter().map(|member| prefix(member).len()).max().unwrap_or(0) {
            parts.push(members.iter().filter_map(|member| prefix(member).get(i).or(rest(member))).collect());
        }
        parts.push(members.iter().filter_map(rest).collect());
        parts.retain(|part: &Vec<_>| !part.is_empty());
        Ok(parts)
    }
}

/// The list under a key; empty if there is none.
fn list<'a>(object: &'a Object, key: &str) -> &'a [Value] {
    object.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// True for a schema that is only a reference: its target is compiled once.
fn is_reference(schema: &Value) -> bool {
    schema.as_object().is_some_and(|object| object.len() == 1 && object.contains_key("$ref"))
}
