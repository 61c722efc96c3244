//! A served model: its source, engine, template and name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::fetch_image::FetchImage;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use sterna_engine::{Adapter, AdapterScale, Engine, Error, Pooling, SamplerOptions, Speculation};
use sterna_grammar::Grammars;
use sterna_quantize as quantize;
use sterna_tokenizer::Tokenizer;
use sterna_tokenizer::chat::{Abilities, ChatError, ChatTemplate};
use sterna_tools::Syntax;

/// Error while loading a model.
pub type LoadError = Box<dyn std::error::Error + Send + Sync>;

/// A model that a server can load; more than once if it is unloaded in between.
pub struct ModelSource {
    /// Name in requests.
    pub name: String,
    /// Further names in requests.
    pub aliases: Vec<String>,
    /// Size of its file in bytes, for lists; 0 if it has no file.
    pub file_bytes: u64,
    /// Identity of its file for ollama's clients, made by [`digest`](Self::digest).
    pub digest: String,
    /// Opens the file. The model is then loaded on the same thread.
    pub open: Box<dyn Fn() -> Result<Opened, LoadError> + Send + Sync>,
}

impl ModelSource {
    /// A model without a file, identified by its name.
    pub fn new(name: &str, open: impl Fn() -> Result<Opened, LoadError> + Send + Sync + 'static) -> Self {
        Self {
            name: name.to_owned(),
            aliases: Vec::new(),
            file_bytes: 0,
            digest: Self::digest([name.as_bytes()]),
            open: Box::new(open),
        }
    }

    /// SHA-256 of what identifies a model, in hexadecimal digits: its path, size and time, for instance.
    pub fn digest<'p>(parts: impl IntoIterator<Item = &'p [u8]>) -> String {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A model that can be loaded once, and whose size is not known before.
    pub fn once(name: &str, load: impl FnOnce() -> Result<Loaded, LoadError> + Send + 'static) -> Self {
        let load = Mutex::new(Some(load));
        let open = move || {
            let load = load.lock().unwrap_or_else(PoisonError::into_inner).take();
            let load = load.ok_or("the model has already been loaded once")?;
            Ok(Opened { bytes: 0, load: Box::new(load) })
        };
        Self::new(name, open)
    }

    /// True if `name` is one of its names.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// A model whose metadata has been read.
pub struct Opened {
    /// Bytes needed for weights, KV cache and buffers.
    pub bytes: u64,
    /// Loads the model.
    pub load: Box<dyn FnOnce() -> Result<Loaded, LoadError>>,
}

/// A loaded model and its default sampling.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The engine, whose batch is not in use.
    pub engine: Engine,
    /// Default sampling.
    pub sampler: SamplerOptions,
    /// Drafting for speculative decoding, if any.
    pub speculation: Option<Arc<dyn Speculation>>,
}

/// Origin of a chat template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TemplateSource {
    /// Chosen by the operator.
    Chosen,
    /// From the model's file.
    File,
    /// ChatML, because the model has no template, as in llama-server.
    Fallback,
}

/// Name and alias of an adapter, and its scale.
pub type NamedScale = (String, Option<String>, f32);

/// A loaded model and what requests need of it: engine, template, defaults.
pub struct Served {
    /// The engine.
    pub engine: Engine,
    /// Default sampling.
    pub sampler: SamplerOptions,
    /// Drafting for speculative decoding, if any.
    pub speculation: Option<Arc<dyn Speculation>>,
    /// Name of the model.
    pub name: String,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Origin of the template.
    pub template_source: TemplateSource,
    /// Format of its messages.
    pub syntax: Syntax,
    /// Parts of a conversation that the template supports.
    pub abilities: Abilities,
    /// Type of its weights.
    pub quantization: String,
    /// Time when it was loaded, in seconds since 1970.
    pub created: u64,
    /// Reads images at URLs in requests, if the operator allows that.
    pub fetch_image: Option<FetchImage>,
    /// Held while a picture is decoded and encoded: a decoded one may take 700 MB.
    pub picture: Mutex<()>,
    chats: bool,
    grammars: OnceLock<Grammars>,
    /// Adapters of requests that choose none.
    adapters: Mutex<Arc<[AdapterScale]>>,
}

impl Served {
    /// A loaded model called `name`, with the template `chosen` or the one in its file.
    ///
    /// # Errors
    /// [`Error::Chat`] for a template that is not valid Jinja; [`Error::Tokenizer`].
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
                    tracing::warn!("the model has no chat template: using ChatML");
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
            syntax: Syntax::of_template(&template, |token| tokenizer.token_id(token).is_some()),
            abilities: Abilities::of(&template),
            quantization: quantization(&engine),
            adapters: Mutex::new(engine.default_adapters()),
            engine,
            sampler,
            speculation,
            name,
            template,
            template_source,
            created,
            fetch_image: None,
            picture: Mutex::new(()),
            grammars: OnceLock::new(),
        })
    }

    /// The LoRA adapters of requests that choose none.
    pub fn adapters(&self) -> Arc<[AdapterScale]> {
        Arc::clone(&self.adapters.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The LoRA adapter that is called `name`, with scale 1.
    pub fn adapter_called(&self, name: &str) -> Option<Arc<[AdapterScale]>> {
        let at = self.engine.adapters().iter().position(|adapter| adapter.is_called(name))?;
        Some([AdapterScale { adapter: at as u32, scale: 1.0 }].into())
    }

    /// Sets the LoRA adapters of requests that choose none.
    pub fn set_adapters(&self, adapters: Arc<[AdapterScale]>) {
        *self.adapters.lock().unwrap_or_else(PoisonError::into_inner) = adapters;
    }

    /// The scales of adapters in requests that choose none.
    pub fn scales(&self) -> Vec<NamedScale> {
        let adapters = self.engine.adapters();
        let named = |of: &AdapterScale| {
            let Adapter { name, alias, .. } = &adapters[of.adapter as usize];
            (name.clone(), alias.clone(), of.scale)
        };
        self.adapters().iter().map(named).collect()
    }

    /// Sets the scales of the adapters with these names, if there are some.
    pub fn set_scales(&self, scales: &[NamedScale]) {
        if scales.is_empty() {
            return;
        }
        let scale = |(at, adapter): (usize, &Adapter)| {
            let mut all = scales.iter();
            let (_, _, scale) =
                all.find(|(name, alias, _)| *name == adapter.name && *alias == adapter.alias)?;
            Some(AdapterScale { adapter: at as u32, scale: *scale })
        };
        self.set_adapters(self.engine.adapters().iter().enumerate().filter_map(scale).collect());
    }

    /// The vocabulary.
    ///
    /// # Panics
    /// Never: it was built when the model was loaded.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer().expect("it was built before")
    }

    /// Grammar compiler for the vocabulary, created when the first grammar is used.
    pub fn grammars(&self) -> &Grammars {
        self.grammars.get_or_init(|| Grammars::new(self.tokenizer()))
    }

    /// True for a chat model: one with a chat template that uses roles.
    pub fn chats(&self) -> bool {
        self.chats
    }

    /// Capabilities in ollama's terms, and `rerank`. Clients use them to offer tools, a switch for thinking,
    /// or no chat at all.
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
            ("vision", engine.vision().is_some()),
        ];
        all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
    }

    /// Number of weights in its file.
    pub fn n_params(&self) -> usize {
        self.engine.gguf().tensors().iter().map(|info| info.n_elems()).sum()
    }

    /// Maximum positions of a sequence.
    pub fn n_ctx(&self) -> usize {
        self.engine.n_ctx()
    }

    /// The minimum number of tokens of a text of `n_bytes`, if that is more than `most`.
    pub fn exceeds(&self, n_bytes: usize, most: usize) -> Option<usize> {
        Some(self.tokenizer().min_tokens(n_bytes)).filter(|n_tokens| *n_tokens > most)
    }

    /// Maximum tokens of a text that is not generated from.
    pub fn most_text(&self) -> usize {
        16 * self.n_ctx().max(4096)
    }

    /// Maximum sequences at a time.
    pub fn n_slots(&self) -> usize {
        self.engine.program().limits.seqs
    }
}

/// The quantisation mix of a model's file, or the type of most of its weights.
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
