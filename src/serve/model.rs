//! The model that a server has: its engine, its template, and what it is called.

use crate::engine::{Engine, Error, SamplerOptions};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::chat::{ChatError, ChatTemplate};

use super::options::ServeOptions;

/// A model that has been loaded, and how it is sampled if a request says nothing.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The engine, whose batch nobody has.
    pub engine: Engine,
    /// How tokens are picked by default.
    pub sampler: SamplerOptions,
}

/// Where a chat template comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateSource {
    /// The operator chose it.
    Chosen,
    /// The model's file has it.
    File,
    /// Nobody knows how to talk with this model: it gets ChatML, as llama-server has it.
    Fallback,
}

/// What requests are answered with.
pub struct Served {
    /// The engine.
    pub engine: Engine,
    /// How tokens are picked by default.
    pub sampler: SamplerOptions,
    /// What the model is called.
    pub name: String,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Where that comes from.
    pub template_source: TemplateSource,
    /// Seconds since 1970 when it was loaded.
    pub created: u64,
}

impl Served {
    /// A loaded model under the name and the template that `options` say.
    ///
    /// # Errors
    /// [`Error::Chat`] for a template that is no Jinja; [`Error::Tokenizer`].
    pub fn new(loaded: Loaded, options: &ServeOptions, fallback_name: &str) -> Result<Self, Error> {
        let Loaded { engine, sampler } = loaded;
        let tokenizer = engine.tokenizer()?;
        let metadata = engine.gguf().metadata();
        let chosen = options.template.as_deref();
        let (template, template_source) = match ChatTemplate::choose(metadata, tokenizer, chosen) {
            Ok(template) if chosen.is_some() => (template, TemplateSource::Chosen),
            Ok(template) => (template, TemplateSource::File),
            Err(ChatError::Missing) => {
                let template = ChatTemplate::choose(metadata, tokenizer, Some("chatml"))?;
                tracing::warn!("the model has no chat template: conversations are written as ChatML");
                (template, TemplateSource::Fallback)
            }
            Err(err) => return Err(err.into()),
        };
        let name = options.alias.clone().or_else(|| engine.hyper().name.clone());
        let name = name.filter(|name| !name.trim().is_empty()).unwrap_or_else(|| fallback_name.to_owned());
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let created = created.map_or(0, |since| since.as_secs());
        Ok(Self { engine, sampler, name, template, template_source, created })
    }

    /// The vocabulary.
    ///
    /// # Panics
    /// Never: it was built when the model was loaded.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer().expect("it was built before")
    }

    /// Whether the model was made for turns: its file says how they are written, and by whom each is.
    pub fn chats(&self) -> bool {
        self.template_source != TemplateSource::Fallback && self.template.source().contains("role")
    }

    /// Positions of a sequence.
    pub fn n_ctx(&self) -> usize {
        self.engine.n_ctx()
    }

    /// Sequences that run at a time.
    pub fn n_slots(&self) -> usize {
        self.engine.program().limits.seqs
    }
}
