//! Exports a model's Hugging Face files for routers and front ends: tokenizer, chat template, end tokens and
//! context length, without weights.

use std::path::Path;
use std::{fs, io};

use serde_json::{Map, Value as Json, json};

use crate::gguf::{GgufError, Metadata, Value};
use crate::tokenizer::chat::{ChatError, ChatTemplate, Message};
use crate::tokenizer::{PreTokenizer, Special, Tokenizer, TokenizerError, TokenizerOptions, tokenizer_json};

/// Errors of writing a card.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// The file's metadata.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The vocabulary.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The chat template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The folder.
    #[error("{path}: {err}")]
    Io {
        /// The path that could not be written.
        path: String,
        /// The cause.
        err: io::Error,
    },
}

/// Architecture names in GGUF files, with the class and type in Hugging Face's files. Readers of a card use
/// the type at most for tool calls; an architecture that is not listed keeps its name.
const CLASSES: &[(&str, &str, &str)] = &[
    ("afmoe", "AfmoeForCausalLM", "afmoe"),
    ("apertus", "ApertusForCausalLM", "apertus"),
    ("arcee", "ArceeForCausalLM", "arcee"),
    ("bailingmoe2", "BailingMoeV2ForCausalLM", "bailing_moe_v2"),
    ("bitnet", "BitNetForCausalLM", "bitnet"),
    ("bitnet-25", "BitNetForCausalLM", "bitnet"),
    ("bitnet-b1.58", "BitNetForCausalLM", "bitnet"),
    ("chatglm", "GlmForCausalLM", "glm"),
    ("cohere2", "Cohere2ForCausalLM", "cohere2"),
    ("command-r", "CohereForCausalLM", "cohere"),
    ("deepseek2", "DeepseekV2ForCausalLM", "deepseek_v2"),
    ("dots1", "Dots1ForCausalLM", "dots1"),
    ("ernie4_5", "Ernie4_5ForCausalLM", "ernie4_5"),
    ("ernie4_5-moe", "Ernie4_5_MoeForCausalLM", "ernie4_5_moe"),
    ("exaone", "ExaoneForCausalLM", "exaone"),
    ("exaone4", "Exaone4ForCausalLM", "exaone4"),
    ("falcon", "FalconForCausalLM", "falcon"),
    ("falcon-h1", "FalconH1ForCausalLM", "falcon_h1"),
    ("gemma", "GemmaForCausalLM", "gemma"),
    ("gemma2", "Gemma2ForCausalLM", "gemma2"),
    ("gemma3", "Gemma3ForCausalLM", "gemma3_text"),
    ("gemma3n", "Gemma3nForCausalLM", "gemma3n_text"),
    ("gemma4", "Gemma4ForCausalLM", "gemma4_text"),
    ("glm4", "Glm4ForCausalLM", "glm4"),
    ("glm4moe", "Glm4MoeForCausalLM", "glm4_moe"),
    ("gptneox", "GPTNeoXForCausalLM", "gpt_neox"),
    ("gpt-oss", "GptOssForCausalLM", "gpt_oss"),
    ("gpt2", "GPT2LMHeadModel", "gpt2"),
    ("granite", "GraniteForCausalLM", "granite"),
    ("granitehybrid", "GraniteMoeHybridForCausalLM", "granitemoehybrid"),
    ("granitemoe", "GraniteMoeForCausalLM", "granitemoe"),
    ("hunyuan-dense", "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    ("hunyuan-moe", "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe"),
    ("internlm2", "InternLM2ForCausalLM", "internlm2"),
    ("laguna", "LagunaForCausalLM", "laguna"),
    ("lfm2", "Lfm2ForCausalLM", "lfm2"),
    ("lfm2moe", "Lfm2MoeForCausalLM", "lfm2_moe"),
    ("llama", "LlamaForCausalLM", "llama"),
    ("mamba2", "Mamba2ForCausalLM", "mamba2"),
    ("mellum", "MellumForCausalLM", "mellum"),
    ("minicpm", "MiniCPMForCausalLM", "minicpm"),
    ("minimax-m2", "MiniMaxM2ForCausalLM", "minimax_m2"),
    ("mistral3", "Ministral3ForCausalLM", "ministral3"),
    ("muse-glimmer", "MuseGlimmerForConditionalGeneration", "muse_glimmer"),
    ("nemotron", "NemotronForCausalLM", "nemotron"),
    ("nemotron_h", "NemotronHForCausalLM", "nemotron_h"),
    ("nemotron_h_moe", "NemotronHForCausalLM", "nemotron_h"),
    ("olmo", "OlmoForCausalLM", "olmo"),
    ("olmo2", "Olmo2ForCausalLM", "olmo2"),
    ("olmoe", "OlmoeForCausalLM", "olmoe"),
    ("phi2", "PhiForCausalLM", "phi"),
    ("phi3", "Phi3ForCausalLM", "phi3"),
    ("qwen2", "Qwen2ForCausalLM", "qwen2"),
    ("qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe"),
    ("qwen3", "Qwen3ForCausalLM", "qwen3"),
    ("qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe"),
    ("qwen2vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl"),
    ("qwen3vl", "Qwen3VLForConditionalGeneration", "qwen3_vl"),
    ("qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe"),
    ("qwen3next", "Qwen3NextForCausalLM", "qwen3_next"),
    ("seed_oss", "SeedOssForCausalLM", "seed_oss"),
    ("smollm3", "SmolLM3ForCausalLM", "smollm3"),
    ("stablelm", "StableLmForCausalLM", "stablelm"),
    ("starcoder", "GPTBigCodeForCausalLM", "gpt_bigcode"),
    ("starcoder2", "Starcoder2ForCausalLM", "starcoder2"),
];

/// The files of a card: names and contents.
#[derive(Clone, Debug)]
pub struct Card {
    files: [(&'static str, Json); 4],
}

impl Card {
    /// Card of a GGUF file. A model without a template gets ChatML, as in the server. `pre` is the
    /// pre-tokenizer, if the file names none or a wrong one.
    ///
    /// # Errors
    /// [`CardError`] for a file without a usable vocabulary, or with keys of the wrong type.
    pub fn of(metadata: &Metadata, pre: Option<PreTokenizer>) -> Result<Self, CardError> {
        let options = TokenizerOptions { pre };
        let tokenizer = Tokenizer::from_metadata(metadata, options)?;
        let template = match ChatTemplate::choose(metadata, &tokenizer, None) {
            Err(ChatError::Missing) => ChatTemplate::choose(metadata, &tokenizer, Some("chatml"))?,
            chosen => chosen?,
        };
        let template = with_bos(&template, &tokenizer);
        Ok(Self {
            files: [
                ("config.json", config(metadata, &tokenizer)?),
                ("tokenizer.json", tokenizer_json(metadata, options)?),
                ("tokenizer_config.json", tokenizer_config(metadata, &tokenizer, &template)?),
                ("generation_config.json", generation_config(metadata, &tokenizer)?),
            ],
        })
    }

    /// The files: names and contents.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Json)> {
        self.files.iter().map(|(name, json)| (*name, json))
    }

    /// Writes the files to `folder`, creating it if necessary. Other files there are not changed.
    ///
    /// # Errors
    /// [`CardError::Io`].
    pub fn write(&self, folder: &Path) -> Result<(), CardError> {
        let fail = |path: &Path, err| CardError::Io { path: path.display().to_string(), err };
        fs::create_dir_all(folder).map_err(|err| fail(folder, err))?;
        for (name, json) in self.files() {
            let path = folder.join(name);
            fs::write(&path, format!("{json:#}\n")).map_err(|err| {
                // Half a file is of no use.
                let _ = fs::remove_file(&path);
                fail(&path, err)
            })?;
        }
        Ok(())
    }
}

/// Source of a template, with BOS added if texts begin with it: readers of a card encode the template's
/// output without adding tokens.
fn with_bos(template: &ChatTemplate, tokenizer: &Tokenizer) -> String {
    let source = template.source();
    let message = Message { role: "user".into(), content: "Hi".into(), ..Message::default() };
    let spells = |rendered: String| {
        template.encode(tokenizer, &rendered) == tokenizer.encode(&rendered, Special::Parse, false)
    };
    // A template that rejects this conversation is not changed.
    let spelled = template.render(&[message], true).map_or(true, spells);
    if spelled { source.to_owned() } else { format!("{{{{ bos_token }}}}{source}") }
}

/// Trained context length.
fn context(metadata: &Metadata) -> Result<u32, GgufError> {
    let architecture = metadata.str("general.architecture")?.unwrap_or_default();
    Ok(metadata.u32(&format!("{architecture}.context_length"))?.unwrap_or(4096))
}

fn config(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Json, GgufError> {
    let architecture = metadata.str("general.architecture")?.unwrap_or("llama");
    let known = CLASSES.iter().find(|(name, ..)| *name == architecture);
    let (class, kind) = known.map_or((architecture, architecture), |(_, class, kind)| (*class, *kind));
    let mut config = json!({
        "architectures": [class],
        "model_type": kind,
        "vocab_size": tokenizer.n_vocab(),
        "max_position_embeddings": context(metadata)?,
        "bos_token_id": tokenizer.bos(),
        "eos_token_id": tokenizer.eos(),
        "torch_dtype": "float16",
    });
    let numbers = [
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
    ];
    for (of, name) in numbers {
        let number = metadata.get(&format!("{architecture}.{of}")).and_then(one_number);
        if let Some(number) = number.and_then(|number| u32::try_from(number).ok()) {
            config[name] = number.into();
        }
    }
    Ok(config)
}

/// A number, or that of an array with the same number in all layers.
fn one_number(value: &Value) -> Option<i128> {
    let Value::Array(array) = value else { return value.as_int() };
    let mut numbers = array.values().map(|value| value.as_int());
    let first = numbers.next()??;
    numbers.all(|number| number == Some(first)).then_some(first)
}

fn tokenizer_config(metadata: &Metadata, tokenizer: &Tokenizer, template: &str) -> Result<Json, GgufError> {
    let spelled = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    Ok(json!({
        "add_bos_token": tokenizer.add_bos(),
        "add_eos_token": metadata.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
        "bos_token": tokenizer.bos().map(spelled),
        "chat_template": template,
        "clean_up_tokenization_spaces": false,
        "eos_token": tokenizer.eos().map(spelled),
        "model_max_length": context(metadata)?,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }))
}

fn generation_config(metadata: &Metadata, tokenizer: &Tokenizer) -> Result<Json, GgufError> {
    let mut config = Map::new();
    config.insert("bos_token_id".into(), tokenizer.bos().into());
    config.insert("eos_token_id".into(), tokenizer.eog().collect::<Vec<u32>>().into());
    for (of, name) in [("temp", "temperature"), ("top_p", "top_p"), ("min_p", "min_p")] {
        if let Some(number) = metadata.f32(&format!("general.sampling.{of}"))? {
            config.insert(name.into(), f64::from(number).into());
        }
    }
    if let Some(k) = metadata.i64("general.sampling.top_k")? {
        config.insert("top_k".into(), k.into());
    }
    Ok(config.into())
}
