//! Flags that constrain the output to a grammar, with llama.cpp's names.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::{CliError, input};
use crate::engine::{Engine, Grammar};

/// Constraints on the output.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
#[command(next_help_heading = "Grammar")]
pub struct GrammarArgs {
    /// Grammar that the output must follow: GBNF, or Lark if it begins with %llguidance
    #[arg(long, value_name = "GRAMMAR", allow_hyphen_values = true)]
    grammar: Option<String>,
    /// File with the grammar
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
    /// JSON schema that the output must follow; {"type": "object"} is any object
    #[arg(short, long, value_name = "SCHEMA")]
    json_schema: Option<String>,
    /// File with the schema (also -jf)
    #[arg(long, value_name = "FILE")]
    #[arg(alias = "-jf")]
    json_schema_file: Option<PathBuf>,
}

/// Source of a constraint.
enum Given {
    Gbnf(String),
    Schema(String),
}

impl GrammarArgs {
    /// Compiles the grammar for the model's vocabulary; `None` if none was given.
    ///
    /// # Errors
    /// A file that cannot be read; a grammar or schema that cannot be used.
    pub fn compile(&self, engine: &Engine) -> Result<Option<Arc<dyn Grammar>>, CliError> {
        self.given()?.map(|given| compile(given, engine)).transpose()
    }

    fn given(&self) -> Result<Option<Given>, CliError> {
        Ok(match self {
            Self { grammar: Some(text), .. } => Some(Given::Gbnf(text.clone())),
            Self { grammar_file: Some(path), .. } => Some(Given::Gbnf(input::file(path)?)),
            Self { json_schema: Some(text), .. } => Some(Given::Schema(text.clone())),
            Self { json_schema_file: Some(path), .. } => Some(Given::Schema(input::file(path)?)),
            _ => None,
        })
    }
}

#[cfg(feature = "grammar")]
fn compile(given: Given, engine: &Engine) -> Result<Arc<dyn Grammar>, CliError> {
    use crate::grammar::{Grammars, Source};

    let source = match given {
        Given::Gbnf(text) => Source::Gbnf(text),
        Given::Schema(text) => {
            let schema = serde_json::from_str(&text).map_err(|err| format!("the JSON schema: {err}"))?;
            Source::JsonSchema { schema, strict: true }
        }
    };
    let compiled = Grammars::new(engine.tokenizer()?).compile(&source)?;
    compiled.notes().iter().for_each(|note| super::names::note("note", note));
    Ok(Arc::new(compiled))
}

#[cfg(not(feature = "grammar"))]
fn compile(given: Given, _: &Engine) -> Result<Arc<dyn Grammar>, CliError> {
    let (Given::Gbnf(_unread) | Given::Schema(_unread)) = given;
    Err("this build has no grammar support: it was built without the feature `grammar`".into())
}
