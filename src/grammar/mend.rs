//! Finds the parts of a schema that do not compile, by trying, and drops those that may be left out.

use std::time::Duration;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use serde_json::{Map, Value, json};

use super::schema::{Owner, Schema, escaped, with_defs};
use super::{GrammarError, Space, caught, effort};
use sterna_host::clock::Instant;

/// Keywords that others depend on come first, so that the dependent ones are dropped. Unlisted ones come
/// last.
const FIRST: &[&str] = &[
    "type",
    "$ref",
    "properties",
    "required",
    "items",
    "prefixItems",
    "additionalProperties",
    "additionalItems",
    "anyOf",
    "allOf",
    "enum",
    "const",
];

impl Schema {
    /// Drops what does not compile, within `time` since `begun`.
    ///
    /// # Errors
    /// [`GrammarError::Keyword`] for a keyword that must be enforced; [`GrammarError::TooSlow`].
    pub fn mend(&mut self, begun: Instant, time: Duration) -> Result<(), GrammarError> {
        let Self { owner, root, defs, notes } = self;
        let whole = |root: &Value, defs: &[(String, Value)]| {
            with_defs(root.clone(), defs.iter().map(|(_, def)| def.clone()), Space::default())
        };
        let mut mender =
            Mender { owner: owner.clone(), defs: Vec::new(), notes, begun, time, checks_effort: true };
        // First each part with references to anything, then with their actual targets.
        for alone in [true, false] {
            let schema = whole(root, defs);
            mender.checks_effort = false;
            mender.checks_effort = mender.compiles(schema.clone())?.is_ok();
            if mender.checks_effort && mender.compiles(schema)?.is_ok() {
                return Ok(());
            }
            mender.defs = defs.iter().map(|(_, def)| if alone { json!({}) } else { def.clone() }).collect();
            mender.mend(root, &owner.at)?;
            defs.iter_mut().try_for_each(|(at, def)| mender.mend(def, at))?;
        }
        Ok(())
    }
}

struct Mender<'a> {
    owner: Owner,
    defs: Vec<Value>,
    notes: &'a mut Vec<String>,
    begun: Instant,
    time: Duration,
    /// True if the lexer is checked, too, which takes longer.
    checks_effort: bool,
}

impl Mender<'_> {
    /// Tries to compile a schema; returns the reason if it does not compile.
    fn compiles(&mut self, schema: Value) -> Result<Result<(), String>, GrammarError> {
        if self.begun.elapsed() > self.time {
            return Err(GrammarError::TooSlow(self.time));
        }
        let grammar = GrammarInit::Serialized(TopLevelGrammar::from_json_schema(schema));
        let limits = ParserLimits::default();
        let read = caught(|| {
            let (_, words) = grammar.to_internal(None, limits.clone()).map_err(|err| err.to_string())?;
            match self.checks_effort {
                true => effort::check(&words, &limits).map_err(|err| err.to_string()),
                false => Ok(()),
            }
        });
        Ok(read.map_err(|err| reason(&err)))
    }

    fn part(&mut self, part: Map<String, Value>) -> Result<Result<(), String>, GrammarError> {
        let schema = with_defs(part.into(), self.defs.iter().cloned(), Space::default());
        self.compiles(schema)
    }

    /// Drops what does not compile from a schema, as deep as possible.
    fn mend(&mut self, schema: &mut Value, at: &str) -> Result<(), GrammarError> {
        let Value::Object(object) = schema else { return Ok(()) };
        if self.part(object.clone())?.is_ok() {
            return Ok(());
        }
        for (key, value) in object.iter_mut() {
            let at = format!("{at}/{key}");
            match (key.as_str(), value) {
                ("properties" | "patternProperties", Value::Object(named)) => {
                    let mut named = named.iter_mut();
                    named.try_for_each(|(name, one)| self.mend(one, &format!("{at}/{}", escaped(name))))?;
                }
                ("allOf" | "anyOf" | "oneOf" | "items" | "prefixItems", Value::Array(list)) => {
                    let mut list = list.iter_mut().enumerate();
                    list.try_for_each(|(i, one)| self.mend(one, &format!("{at}/{i}")))?;
                }
                ("items" | "additionalItems" | "additionalProperties", one) => self.mend(one, &at)?,
                _ => {}
            }
        }
        if self.part(object.clone())?.is_ok() {
            return Ok(());
        }
        let mut keys: Vec<String> = object.keys().cloned().collect();
        keys.sort_by_key(|key| FIRST.iter().position(|first| first == key).unwrap_or(FIRST.len()));
        let mut kept: Vec<String> = Vec::new();
        for key in keys {
            kept.push(key);
            let with = |object: &Map<String, Value>| {
                let of = object.iter().filter(|(key, _)| kept.contains(key));
                of.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>()
            };
            let Err(why) = self.part(with(object))? else { continue };
            let key = kept.pop().expect("it was pushed");
            let why = match key.as_str() {
                "oneOf" if why.starts_with("oneOf ") => "two of its schemas may match one value".to_owned(),
                _ => why,
            };
            self.owner.leave_out(&key, at, &why, self.notes)?;
            let value = object.shift_remove(&key).expect("it is a key of the object");
            // `anyOf` is closer to the meaning of `oneOf` than no constraint.
            if key == "oneOf" && !object.contains_key("anyOf") {
                object.insert("anyOf".to_owned(), value);
                kept.push("anyOf".to_owned());
                let of = object.iter().filter(|(key, _)| kept.contains(key));
                let with = of.map(|(key, value)| (key.clone(), value.clone())).collect();
                match self.part(with)? {
                    Ok(()) => self.notes.push(self.owner.says(&format!("`anyOf` replaces it at {at}"))),
                    Err(why) => {
                        kept.pop();
                        object.shift_remove("anyOf");
                        self.owner.leave_out("anyOf", at, &why, self.notes)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Extracts the reason: for a regex, the parser quotes the text before it.
fn reason(text: &str) -> String {
    let last = text.rsplit("error: ").next().unwrap_or(text);
    last.lines().next().unwrap_or_default().to_owned()
}
