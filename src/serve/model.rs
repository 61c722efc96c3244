//! A model of a server: where it comes from, its engine, its template, and what it is called.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use schemars::JsonSchema;
use serde::Serialize;
use sterna_engine::{Engine, Error, Pooling, SamplerOptions, Speculation};
use sterna_grammar::Grammars;
use sterna_quantize as quantize;
use sterna_tokenizer::Tokenizer;
use sterna_tokenizer::chat::{Abilities, ChatError, ChatTemplate};
use sterna_tools::Syntax;

/// Error of loading a model.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// A model that a server may load, more than once if it gives way to others.
pub struct ModelSource {
    /// Name in requests.
    pub name: String,
    /// Bytes of its file, for lists; 0 if it has none.
    pub file_bytes: u64,
    /// Opens its file. It is loaded on the same thread.
    pub open: Box<dyn Fn() -> Result<Opened, LoadError> + Send + Sync>,
}

impl ModelSource {
    /// A model of which nothing is known before it is loaded, and which is loaded once.
    pub fn once(name: &str, load: impl FnOnce() -> Result<Loaded, LoadError> + Send + 'static) -> Self {
        let load = Mutex::new(Some(load));
        let open = move || {
            let load = load.lock().unwrap_or_else(PoisonError::into_inner).take();
            let load = load.ok_or("the model was loaded before")?;
            Ok(Opened { bytes: 0, load: Box::new(load) })
        };
        Self { name: name.to_owned(), file_bytes: 0, open: Box::new(open) }
    }
}

/// A model whose file has been read as far as its descriptions.
pub struct Opened {
    /// Bytes that it will take: weights, KV cache and buffers.
    pub bytes: u64,
    /// Loads it.
    pub load: Box<dyn FnOnce() -> Result<Loaded, LoadError>>,
}

/// A model that has been loaded, and how it is sampled if a request says nothing.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The engine, whose batch is free.
    pub engine: Engine,
    /// Default sampling.
    pub sampler: SamplerOptions,
    /// How tokens are drafted, if they are.
    pub speculation: Option<Arc<dyn Speculation>>,
}

/// Origin of a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateSource {
    /// The operator chose it.
    Chosen,
    /// The model's file has it.
    File,
    /// Neither says how to talk with this model: it gets ChatML, as llama-server has it.
    Fallback,
}

/// A loaded model as requests see it: engine, template, defaults.
pub struct Served {
    /// The engine.
    pub engine: Engine,
    /// Default sampling.
    pub sampler: SamplerOptions,
    /// How tokens are drafted, if they are.
    pub speculation: Option<Arc<dyn Speculation>>,
    /// Name of the model.
    pub name: String,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Origin of the template.
    pub template_source: TemplateSource,
    /// Syntax of its messages.
    pub syntax: Syntax,
    /// Parts of a conversation that the template shows to the model.
    pub abilities: Abilities,
    /// Type of its weights, in a word.
    pub quantization: String,
    /// Seconds since 1970 when it was loaded.
    pub created: u64,
    chats: bool,
    grammars: OnceLock<Grammars>,
}

impl Served {
    /// A loaded model that is called `name`, with the template that was chosen for it or its file's.
    ///
    /// # Errors
    /// [`Error::Chat`] for a template that is no Jinja; [`Error::Tokenizer`].
    pub fn new(loaded: Loaded, name: String, chosen: Option<&str>) -> Result<Self, Error> {
        let Loaded { engine, sampler, speculation } = loaded;
        let tokenizer = engine.tokenizer()?;
        let metadata = engine.gguf().metadata();
        let (template, template_source) = match ChatTemplate::choose(metadata, tokenizer, chosen) {
            Ok(template) if chosen.is_some() => (template, TemplateSource::Chosen),
            Ok(template) => (template, TemplateSource::File),
            Err(ChatError::Missing) => {
                let template = ChatTemplate::choose(metadata, tokenizer, Some("chatml"))?;
                if engine.generates() {
                    tracing::warn!("the model has no chat template: conversations are written as ChatML");
                }
                (template, TemplateSource::Fallback)
            }
            Err(err) => return Err(err.into()),
        };
        let created = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let created = created.map_or(0, |since| since.as_secs());
        Ok(Self {
            chats: engine.generates()
                && template_source != TemplateSource::Fallback
                && template.source().contains("role"),
            syntax: Syntax::of_model(template.source(), |token| tokenizer.token_id(token).is_some()),
            abilities: Abilities::of(&template),
            quantization: quantization(&engine),
            engine,
            sampler,
            speculation,
            name,
            template,
            template_source,
            created,
            grammars: OnceLock::new(),
        })
    }

    /// The vocabulary.
    ///
    /// # Panics
    /// Never: it was built when the model was loaded.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer().expect("it was built before")
    }

    /// Compiler of grammars for the vocabulary; made when the first grammar is asked for.
    pub fn grammars(&self) -> &Grammars {
        self.grammars.get_or_init(|| Grammars::new(self.tokenizer()))
    }

    /// True for a model made for turns: its file says how they are written, and by whom each is.
    pub fn chats(&self) -> bool {
        self.chats
    }

    /// What can be asked of it, in ollama's words, and `rerank`: clients offer tools, a switch for thoughts,
    /// or no conversation at all by them.
    pub fn capabilities(&self) -> Vec<&'static str> {
        let (engine, generates) = (&self.engine, self.engine.generates());
        let ranks = engine.pooling() == Pooling::Rank;
        let key = format!("{}.pooling_type", engine.hyper().architecture);
        let is_made_to_embed = !generates || engine.gguf().metadata().get(&key).is_some();
        let all = [
            ("completion", generates),
            ("tools", self.chats()),
            ("thinking", generates && self.syntax.thoughts.is_some()),
            ("embedding", is_made_to_embed && !ranks),
            ("rerank", ranks),
        ];
        all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }

    /// Weights of its file, of all tensors.
    pub fn n_params(&self) -> usize {
        self.engine.gguf().tensors().iter().map(|info| info.n_elems()).sum()
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

/// The mix of types that a model's file follows, or the type of most of its weights.
fn quantization(engine: &Engine) -> String {
    let gguf = engine.gguf();
    if let Some(mix) = quantize::mix_of(gguf) {
        return mix.name.to_owned();
    }
    let mut of_types = BTreeMap::new();
    for info in gguf.tensors() {
        *of_types.entry(&info.type_name).or_insert(0) += info.n_elems();
    }
    let most = of_types.into_iter().max_by_key(|(_, n)| *n);
    most.map_or_else(String::new, |(name, _)| name.to_uppercase())
}
