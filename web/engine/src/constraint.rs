//! Constraints on generated text: JSON, a regular expression, a grammar, or a list of texts.

use std::sync::Arc;

use sterna::engine::Grammar;
use sterna::tokenizer::Tokenizer;
use wasm_bindgen::JsValue;

use crate::fault::error;
use crate::options::Fields;

#[cfg(feature = "grammar")]
pub use with_grammar::Constraints;
#[cfg(not(feature = "grammar"))]
pub use without_grammar::Constraints;

#[cfg(feature = "grammar")]
mod with_grammar {
    use std::cell::OnceCell;

    use serde_json::Value;
    use sterna::grammar::{Grammars, Source};

    use super::*;

    /// Compiler of constraints for one vocabulary.
    #[derive(Default)]
    pub struct Constraints {
        grammars: OnceCell<Grammars>,
    }

    impl Constraints {
        /// The constraint in the options, if any.
        ///
        /// # Errors
        /// The grammar cannot be used.
        pub fn take(
            &self,
            fields: &mut Fields,
            tokenizer: &Tokenizer,
        ) -> Result<Option<Arc<dyn Grammar>>, JsValue> {
            let Some(source) = source(fields)? else { return Ok(None) };
            let grammars = self.grammars.get_or_init(|| Grammars::new(tokenizer));
            Ok(Some(Arc::new(grammars.compile(&source).map_err(error)?)))
        }
    }

    /// The grammar of the constraint, if any.
    fn source(fields: &mut Fields) -> Result<Option<Source>, JsValue> {
        let json = fields.read("json", "true, or a schema", |value| match value {
            Value::Bool(false) => Some(None),
            Value::Bool(true) => Some(Some(Source::JsonObject)),
            Value::Object(_) => Some(Some(Source::JsonSchema { schema: value.clone(), strict: true })),
            _ => None,
        })?;
        let sources = [
            json.flatten(),
            fields.text("regex")?.map(Source::Regex),
            fields.text("grammar")?.map(Source::Gbnf),
            fields.texts("choices")?.map(Source::Choice),
        ];
        let mut sources = sources.into_iter().flatten();
        match (sources.next(), sources.next()) {
            (source, None) => Ok(source),
            _ => Err(error("json, regex, grammar, choices: want at most one of these")),
        }
    }
}

#[cfg(not(feature = "grammar"))]
mod without_grammar {
    use super::*;

    /// Stub without constraints.
    #[derive(Default)]
    pub struct Constraints {}

    impl Constraints {
        /// Checks that the options contain no constraint.
        ///
        /// # Errors
        /// The options contain one.
        pub fn take(&self, fields: &mut Fields, _: &Tokenizer) -> Result<Option<Arc<dyn Grammar>>, JsValue> {
            match ["json", "regex", "grammar", "choices"].iter().find(|name| fields.take(name).is_some()) {
                Some(name) => Err(error(format!("{name}: load the model with structured: true for this"))),
                None => Ok(None),
            }
        }
    }
}
