//! Closes objects: an object with `properties` has no others, unless its schema opens it, as in llama.cpp.
//!
//! Several schemas may apply to one object (`allOf`, `anyOf`, `oneOf`, `$ref`). Then each choice closes
//! itself, and of the schemas that all apply, one closes the object for all of them: it allows the names that
//! the others have. The target of a reference is a separate definition for each set of names around it.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{GrammarError, Tidy, at_most};

/// Maximum number of names that are read to close the objects of a schema.
const MAX_NAMES: usize = 500_000;

/// Keywords whose schemas apply to the same value, and true if each of them does.
const IN_PLACE: &[(&str, bool)] = &[
    ("$ref", true),
    ("allOf", true),
    ("anyOf", false),
    ("dependentSchemas", false),
    ("else", false),
    ("if", false),
    ("oneOf", false),
    ("then", false),
];

/// The other schemas that apply to the same object as a schema.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Around<'a> {
    /// Names of their properties.
    names: Vec<&'a str>,
    /// True if one of them allows further properties.
    is_open: bool,
    /// True if one of them closes the object.
    is_closed: bool,
}

impl Around<'_> {
    /// True if a schema among these leaves out a property that it does not name.
    pub fn excludes(&self, name: &str) -> bool {
        !self.is_open && !self.names.contains(&name)
    }
}

/// The properties that schemas of one object name.
#[derive(Clone, Debug, Default)]
struct NamedBy<'a> {
    names: Vec<&'a str>,
    is_open: bool,
    /// True if a schema that always applies closes the object.
    closes: bool,
    /// True if a schema that may apply does.
    choice_closes: bool,
}

impl<'a> NamedBy<'a> {
    /// Without the schemas that the keywords of `object` contain.
    fn of(object: &'a Map<String, Value>) -> Self {
        let named = object.get("properties").and_then(Value::as_object).into_iter().flatten();
        let required = object.get("required").and_then(Value::as_array).into_iter().flatten();
        let names = named.map(|(name, _)| name.as_str()).chain(required.filter_map(Value::as_str));
        let adds = |key| given(object, key).is_some_and(|value| *value != Value::Bool(false));
        let is_open = adds("additionalProperties") || adds("unevaluatedProperties") || has_patterns(object);
        Self { names: names.collect(), is_open, closes: closes(object), choice_closes: false }
    }

    fn is_silent(&self) -> bool {
        self.names.is_empty() && !self.is_open && !self.closes
    }
}

/// Schemas that apply to the same value as the schema that contains them.
struct Unit<'a> {
    keyword: &'static str,
    /// Position in `allOf`.
    at: usize,
    parts: Vec<&'a Value>,
    always_applies: bool,
}

/// The place of a schema among those of the same object.
#[derive(Default)]
pub struct Place<'a> {
    /// Names that the object may have besides those of its `properties`, if it is closed.
    pub closed: Option<Vec<&'a str>>,
    /// By keyword and position in `allOf`.
    inner: HashMap<(&'static str, usize), Around<'a>>,
}

impl<'a> Place<'a> {
    /// The surroundings of a schema of this keyword; `at` is its position in `allOf`.
    pub fn around(&self, keyword: &str, at: usize) -> Around<'a> {
        let at = if keyword == "allOf" { at } else { 0 };
        self.inner.get(&(keyword, at)).cloned().unwrap_or_default()
    }
}

impl<'a> Tidy<'a> {
    /// Decides where the object of a schema is closed.
    pub fn place(
        &mut self,
        object: &'a Map<String, Value>,
        around: &Around<'a>,
    ) -> Result<Place<'a>, GrammarError> {
        let (own, units) = (NamedBy::of(object), self.units(object));
        if own.is_silent() && units.len() < 2 && *around == Around::default() {
            return Ok(Place::default());
        }
        let named = units.iter().map(|unit| self.named_by(unit)).collect::<Result<Vec<_>, _>>()?;
        // `unevaluatedProperties` closes the object also if it has patterns, and to the names around it.
        let is_sealed = own.closes && given(object, "unevaluatedProperties").is_some();
        let is_open_outside = around.is_open || (own.is_open && !own.closes);
        let n_open = named.iter().filter(|named| named.is_open).count();
        let may_close = !is_open_outside && n_open == 0 && !around.is_closed;
        let closes = if is_sealed { n_open == 0 } else { own.closes && may_close };
        // A schema that is written here is preferred to a reference, whose target may have other users.
        let closers = || (0..units.len()).filter(|i| units[*i].always_applies && named[*i].closes);
        let is_here = |i: &usize| units[*i].parts[0].as_object().is_some_and(self::closes);
        let closer = closers().find(is_here).or_else(|| closers().next());
        let closer = closer.filter(|_| may_close && !closes);
        let mut place = Place::default();
        if closes {
            let all = named.iter().flat_map(|named| &named.names);
            let outer = if is_sealed { &[] } else { &around.names[..] };
            place.closed = Some(self.unique(own.names.iter().chain(all).chain(outer))?);
        }
        for (i, unit) in units.iter().enumerate() {
            let is_open = is_open_outside || n_open > usize::from(named[i].is_open);
            let is_closed = unit.always_applies && Some(i) != closer;
            let mut inner = Around { names: Vec::new(), is_open, is_closed };
            if !is_open && (!is_closed || named[i].choice_closes) {
                self.count_names(units.len())?;
                let others = named.iter().enumerate().filter(|(other, _)| *other != i);
                let others = others.flat_map(|(_, named)| &named.names);
                inner.names = self.unique(own.names.iter().chain(others).chain(&around.names))?;
            }
            place.inner.insert((unit.keyword, unit.at), inner);
        }
        Ok(place)
    }

    /// The surroundings of a reference, as far as its target depends on them.
    pub fn needed(&mut self, target: &'a Value, around: Around<'a>) -> Result<Around<'a>, GrammarError> {
        if around == Around::default() {
            return Ok(around);
        }
        let named =
            self.named_by(&Unit { keyword: "$ref", at: 0, parts: vec![target], always_applies: true })?;
        Ok(match (named.closes, named.choice_closes) {
            (false, false) => Around::default(),
            (_, false) if around.is_closed => Around { names: Vec::new(), ..around },
            _ => around,
        })
    }

    fn units(&self, object: &'a Map<String, Value>) -> Vec<Unit<'a>> {
        let mut units = Vec::new();
        for &(keyword, always_applies) in IN_PLACE {
            let mut add = |at, parts| units.push(Unit { keyword, at, parts, always_applies });
            match (keyword, given(object, keyword)) {
                (_, None) => {}
                ("$ref", Some(reference)) => {
                    let found = reference.as_str().and_then(|reference| self.resolve(reference).ok());
                    found.into_iter().for_each(|(_, target)| add(0, vec![target]));
                }
                ("allOf", Some(Value::Array(list))) => {
                    list.iter().enumerate().for_each(|(at, one)| add(at, vec![one]));
                }
                (_, Some(Value::Array(list))) if !list.is_empty() => add(0, list.iter().collect()),
                ("dependentSchemas", Some(Value::Object(all))) if !all.is_empty() => {
                    add(0, all.values().collect());
                }
                ("if" | "then" | "else", Some(one)) => add(0, vec![one]),
                _ => {}
            }
        }
        units
    }

    /// The properties that the schemas of a unit name, with those that they refer to.
    fn named_by(&mut self, unit: &Unit<'a>) -> Result<NamedBy<'a>, GrammarError> {
        let mut all = NamedBy::default();
        let mut seen: HashSet<(*const Value, bool)> = HashSet::new();
        let mut left: Vec<(&Value, bool)> =
            unit.parts.iter().rev().map(|part| (*part, unit.always_applies)).collect();
        while let Some((schema, applies)) = left.pop() {
            let Value::Object(object) = schema else { continue };
            if !seen.insert((std::ptr::from_ref(schema), applies)) {
                continue;
            }
            let own = NamedBy::of(object);
            self.count_names(1 + own.names.len())?;
            all.names.extend(own.names);
            all.is_open |= own.is_open && !own.closes;
            all.closes |= own.closes && applies;
            all.choice_closes |= own.closes && !applies;
            for inner in self.units(object).iter().rev() {
                let applies = applies && inner.always_applies;
                left.extend(inner.parts.iter().rev().map(|part| (*part, applies)));
            }
        }
        Ok(all)
    }

    fn unique<'n>(&mut self, names: impl Iterator<Item = &'n &'a str>) -> Result<Vec<&'a str>, GrammarError>
    where
        'a: 'n,
    {
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for name in names {
            self.count_names(1)?;
            all.extend(seen.insert(*name).then_some(*name));
        }
        Ok(all)
    }

    fn count_names(&mut self, n: usize) -> Result<(), GrammarError> {
        self.n_names += n;
        at_most("names of properties in schemas that are combined", self.n_names, MAX_NAMES)
    }
}

/// True if an object of this schema has only the properties that are named, although
/// `additionalProperties` does not say so.
pub fn closes(object: &Map<String, Value>) -> bool {
    let has_properties = match given(object, "properties") {
        Some(Value::Object(_)) => true,
        Some(Value::Array(list)) => list.is_empty(),
        _ => false,
    };
    match (given(object, "additionalProperties"), given(object, "unevaluatedProperties")) {
        (Some(_), _) => false,
        (None, Some(unevaluated)) => *unevaluated == Value::Bool(false),
        (None, None) => has_properties && !has_patterns(object),
    }
}

fn has_patterns(object: &Map<String, Value>) -> bool {
    match given(object, "patternProperties") {
        None => false,
        Some(Value::Object(patterns)) => !patterns.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(_) => true,
    }
}

/// Value of a keyword that is present and not null.
pub fn given<'v>(object: &'v Map<String, Value>, keyword: &str) -> Option<&'v Value> {
    object.get(keyword).filter(|value| !value.is_null())
}
