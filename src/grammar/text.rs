//! A source in the parser's form: Lark with embedded schemas, or a single schema.

use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use super::numbers::Digits;
use super::schema::{Owner, Schema};
use super::{GrammarError, Limits, Space, at_most, effort};
use sterna_host::clock::Instant;

/// Lark with embedded schemas, or one schema.
#[derive(Clone, Debug)]
pub struct Text {
    parts: Vec<Fragment>,
    space: Space,
    is_lark: bool,
}

#[derive(Clone, Debug)]
enum Fragment {
    Lark(String),
    Schema(Schema),
}

impl Fragment {
    fn n_bytes_of_lark(&self) -> usize {
        match self {
            Self::Lark(text) => text.len(),
            Self::Schema(_) => 0,
        }
    }
}

impl Text {
    /// Lark without schemas.
    pub fn plain(lark: String) -> Self {
        Self { parts: vec![Fragment::Lark(lark)], space: Space::default(), is_lark: true }
    }

    /// A schema.
    ///
    /// # Errors
    /// [`GrammarError`] if it cannot be enforced as it must be.
    pub fn schema(schema: &Value, strict: bool, space: Space, limits: &Limits) -> Result<Self, GrammarError> {
        let schema = Schema::read(schema, Owner::alone(strict), limits)?;
        Ok(Self { parts: vec![Fragment::Schema(schema)], space, is_lark: false })
    }

    /// Lark with schemas after `%json`. A schema with `"x-guidance": {"lenient": true}` is not strict; the
    /// keys `tool` and `at` next to it name its tool and position. Only a tool's schema is lenient.
    ///
    /// # Errors
    /// [`GrammarError`] if a schema cannot be enforced as it must be.
    pub fn lark(text: &str, space: Space, limits: &Limits) -> Result<Self, GrammarError> {
        const WORD: &str = "%json";
        let (mut parts, mut before, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(WORD) {
            let (text, after) = rest.split_at(at + WORD.len());
            before += text;
            rest = after;
            let mut found = serde_json::Deserializer::from_str(after).into_iter::<Value>();
            // Invalid JSON is left for the parser to reject.
            if let Some(Ok(schema)) = found.next() {
                let schema = Schema::read(&schema, Owner::of(&schema), limits)?;
                parts.extend([Fragment::Lark(std::mem::take(&mut before)), Fragment::Schema(schema)]);
                rest = &after[found.byte_offset()..];
            }
        }
        parts.push(Fragment::Lark(before + rest));
        Ok(Self { parts, space, is_lark: true })
    }

    fn schemas(&self) -> impl Iterator<Item = &Schema> {
        self.parts.iter().filter_map(|part| match part {
            Fragment::Schema(schema) => Some(schema),
            Fragment::Lark(_) => None,
        })
    }

    fn schemas_mut(&mut self) -> impl Iterator<Item = &mut Schema> {
        self.parts.iter_mut().filter_map(|part| match part {
            Fragment::Schema(schema) => Some(schema),
            Fragment::Lark(_) => None,
        })
    }

    pub fn has_schemas(&self) -> bool {
        self.schemas().next().is_some()
    }

    pub fn space(&self) -> Space {
        self.space
    }

    /// Maximum digits of numbers in its schemas; `None` without a schema.
    pub fn digits(&self) -> Option<Digits> {
        self.schemas().next()?;
        let roots = self.schemas().map(|schema| &schema.root);
        let defs = self.schemas().flat_map(|schema| schema.defs.iter().map(|(_, def)| def));
        Some(roots.chain(defs).fold(Digits::default(), Digits::with))
    }

    /// Parts that are not enforced, one sentence each.
    pub fn notes(&self) -> Vec<String> {
        self.schemas().flat_map(|schema| schema.notes.iter().cloned()).collect()
    }

    /// The grammar for the parser.
    ///
    /// # Errors
    /// [`GrammarError::TooLarge`].
    pub fn grammar(&self, limits: &Limits) -> Result<TopLevelGrammar, GrammarError> {
        effort::check_classes(self.parts.iter().filter_map(|part| match part {
            Fragment::Lark(text) => Some(text.as_str()),
            Fragment::Schema(_) => None,
        }))?;
        if self.has_schemas() {
            let lark: usize = self.parts.iter().map(Fragment::n_bytes_of_lark).sum();
            let constants: usize = self.schemas().map(Schema::n_bytes_of_constants).sum();
            at_most("bytes in constants and patterns", lark + constants, limits.bytes)?;
            at_most("bytes in schemas", self.schemas().map(Schema::n_bytes).sum(), limits.schema_bytes)?;
        }
        if let ([Fragment::Schema(schema)], false) = (&self.parts[..], self.is_lark) {
            return Ok(TopLevelGrammar::from_json_schema(schema.to_value(self.space)));
        }
        let text = self.parts.iter().map(|part| match part {
            Fragment::Lark(text) => text.clone(),
            Fragment::Schema(schema) => format!(" {}", schema.to_value(self.space)),
        });
        Ok(TopLevelGrammar::from_lark(text.collect()))
    }

    /// Drops what does not compile from every schema; after `time`, everything but the type.
    ///
    /// # Errors
    /// [`GrammarError`] for what must be enforced.
    pub fn mend(&mut self, time: Duration) -> Result<(), GrammarError> {
        let begun = Instant::now();
        for schema in self.schemas_mut() {
            match schema.mend(begun, time) {
                Err(err) if schema.owner.is_lenient() => schema.keep_only_type(&err.to_string()),
                mended => mended?,
            }
        }
        Ok(())
    }

    /// Reduces every lenient schema to its type. Returns true if there is one.
    pub fn keep_only_type(&mut self, why: &GrammarError) -> bool {
        let mut any = false;
        for schema in self.schemas_mut().filter(|schema| schema.owner.is_lenient()) {
            schema.keep_only_type(&why.to_string());
            any = true;
        }
        any
    }
}
