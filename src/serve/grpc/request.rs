//! A gRPC request as the job of the equivalent HTTP request: its fields are read under the names of vLLM's
//! HTTP API, by the same code, so that ranges, defaults and messages are the same.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use vllm_proto::candidate_tokens::Select;
use vllm_proto::decoding_parameters::StructuredOutput;
use vllm_proto::generate_request::Prompt;
use vllm_proto::{
    CandidateTokens, DecodingParameters, GenerateRequest, KvCacheParameters, RandomSampling, ResponseOptions,
    StoppingCriteria,
};

use super::kv_transfer::{self, Source, Transfer, Wanted};
use sterna_serve::companion::{
    ApiError, App, Client, Constraints, Fields, Job, Served, TOP_LOGPROBS, generation, n, salt,
};
use sterna_tokenizer::Special;
use sterna_tokenizer::chat::Prompt as NoPrompt;

/// Error for a request that needs the transfer.
const NO_TRANSFER: &str = "`kv_transfer_params`: this server does not transfer computed prompts: its option \
                           `GrpcOptions::kv_transfer` is not set";

/// A parsed request.
pub struct ParsedRequest {
    /// The job.
    pub job: Job,
    /// Parts to include in the answer.
    pub shows: ResponseOptions,
    /// True if the answer includes the text.
    pub text: bool,
    /// Transfer that keeps the prompt's pages.
    pub keep: Option<Arc<Transfer>>,
    /// Transfer and source from which the prompt's pages are fetched first.
    pub fetch: Option<(Arc<Transfer>, Source)>,
}

impl ParsedRequest {
    /// Parses `request` for `served`.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn of(
        app: &App,
        served: &Served,
        client: &Client,
        sender: &Arc<str>,
        transfer: Option<Arc<Transfer>>,
        mut request: GenerateRequest,
    ) -> Result<Self, ApiError> {
        refuse_what_is_not_here(&request)?;
        let shows = request.response.take().unwrap_or_default();
        let kv = request.kv.take().unwrap_or_default();
        let prompt = prompt(request.prompt.take(), served)?;
        let adapters = match request.lora_name.as_str() {
            "" => None,
            name => Some(served.adapter_called(name).ok_or_else(|| {
                ApiError::bad(format!(
                    "`lora_name`: want the name of an adapter of this server, got {name:?}"
                ))
            })?),
        };
        let max_tokens = request.stopping.as_ref().map_or(0, |stopping| stopping.max_new_tokens);
        let fields = fields(&request, &shows)?;
        let mut options = generation(&Fields::of(&fields), served)?;
        let no_prompt = NoPrompt { text: String::new(), ids: Vec::new(), images: Vec::new() };
        Constraints::of_text(&Fields::of(&fields))?.apply(served, &no_prompt, &mut options)?;
        options.sampler.seed.get_or_insert_with(|| app.seed());
        options.max_tokens = match max_tokens {
            0 => app.options.max_tokens,
            most => Some(most as usize),
        };
        options.logprobs = shows.output_logprobs.then(|| top(&shows.output_candidates)).transpose()?;
        let score_prompt = shows.prompt_logprobs.then(|| top(&shows.prompt_candidates)).transpose()?;
        let n = n(&Fields::of(&fields), served)?;
        let KvCacheParameters { bypass_prefix_cache, cache_salt, kv_transfer_params, .. } = kv;
        let cache_prompt = app.options.cache_prompt && !bypass_prefix_cache;
        let wanted = kv_transfer::wanted(kv_transfer_params.as_ref())?;
        let transfer = match (&wanted, transfer) {
            (None, _) => None,
            (Some(_), Some(transfer)) => Some(transfer),
            (Some(_), None) => return Err(ApiError::bad(NO_TRANSFER)),
        };
        let (keep, fetch) = match (wanted, transfer) {
            (Some(Wanted::Keep), Some(_)) if n > 1 => {
                return Err(ApiError::bad("`num_sequences`: want 1 with `do_remote_decode`"));
            }
            (Some(Wanted::Keep), Some(transfer)) => (Some(transfer), None),
            // Prompt scores need the whole prompt to be computed.
            (Some(Wanted::Fetch(source)), Some(transfer)) if cache_prompt && score_prompt.is_none() => {
                (None, Some((transfer, source)))
            }
            _ => (None, None),
        };
        let job = Job {
            export_to: keep.as_ref().map(|transfer| Arc::clone(&transfer.exported)),
            transferred: None,
            prompts: vec![prompt],
            options,
            n,
            client: Arc::clone(&client.0),
            sender: Arc::clone(sender),
            salt: salt(&client.0, &cache_salt),
            adapters,
            cache_prompt,
            score_prompt,
            pooled: None,
            progress: false,
            time_limit: None,
            slot: None,
            images: Vec::new(),
        };
        Ok(Self { job, text: shows.output_text.unwrap_or(true), shows, keep, fetch })
    }
}

fn refuse_what_is_not_here(request: &GenerateRequest) -> Result<(), ApiError> {
    let decoding = request.decoding.as_ref();
    let has = |wanted: fn(&DecodingParameters) -> bool| decoding.is_some_and(wanted);
    let structural = |decoding: &DecodingParameters| match &decoding.structured_output {
        Some(StructuredOutput::StructuralTag(tag)) => !tag.is_empty(),
        _ => false,
    };
    let asked = [
        ("media", !request.media.is_empty()),
        ("truncate_prompt_tokens", request.truncate_prompt_tokens > 0),
        ("decoding.allowed_token_ids", has(|decoding| !decoding.allowed_token_ids.is_empty())),
        ("decoding.bad_words_token_ids", has(|decoding| !decoding.bad_words_token_ids.is_empty())),
        ("decoding.structural_tag", has(structural)),
    ];
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((name, _)) => Err(ApiError::unsupported(*name)),
        None => Ok(()),
    }
}

/// The tokens of the prompt. Checks that the context has room for an answer.
fn prompt(prompt: Option<Prompt>, served: &Served) -> Result<Vec<u32>, ApiError> {
    let n_vocab = served.engine.hyper().n_vocab;
    let tokens = match prompt {
        Some(Prompt::TokenIds(tokens)) => tokens.ids,
        Some(Prompt::Text(text)) if served.exceeds(text.len(), served.n_ctx()).is_some() => {
            return Err(ApiError::too_long(served.tokenizer().min_tokens(text.len()), served.n_ctx()));
        }
        Some(Prompt::Text(text)) => served.tokenizer().encode(&text, Special::Parse, true),
        None => Vec::new(),
    };
    if tokens.is_empty() {
        return Err(ApiError::missing("prompt", "at least one token in `token_ids`, or a `text`"));
    }
    if let Some(id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
        return Err(ApiError::field("token_ids", &format!("tokens below {n_vocab}"), &(*id).into()));
    }
    if tokens.len() >= served.n_ctx() {
        return Err(ApiError::too_long(tokens.len(), served.n_ctx()));
    }
    Ok(tokens)
}

/// Number of candidate tokens to return besides the picked one.
fn top(candidates: &Option<CandidateTokens>) -> Result<usize, ApiError> {
    match candidates.as_ref().and_then(|candidates| candidates.select.as_ref()) {
        None => Ok(0),
        Some(Select::TopN(n)) if *n as usize <= TOP_LOGPROBS => Ok(*n as usize),
        Some(Select::TopN(n)) => {
            Err(ApiError::field("top_n", &format!("at most {TOP_LOGPROBS}"), &(*n).into()))
        }
        Some(Select::TokenIds(_)) => Err(ApiError::unsupported("candidates.token_ids")),
        Some(Select::All(false)) => Ok(0),
        Some(Select::All(true)) => Err(ApiError::unsupported("candidates.all")),
    }
}

/// The fields that HTTP also has, by vLLM's names there. Zero counts as absent, like in older clients, except
/// where it is a valid value.
fn fields(request: &GenerateRequest, shows: &ResponseOptions) -> Result<Map<String, Value>, ApiError> {
    let mut map = Map::new();
    let mut set = |name: &str, value: Value| drop(map.insert(name.to_owned(), value));
    let number = |name: &'static str, value: f32| match value.is_finite() {
        true => Ok(Value::from(f64::from(value))),
        false => Err(ApiError::field(name, "a number", &value.to_string().into())),
    };
    if let Some(temperature) = request.temperature {
        set("temperature", number("temperature", temperature)?);
    }
    if request.priority != 0 {
        set("priority", request.priority.into());
    }
    if let Some(RandomSampling { num_sequences, top_k, top_p, min_p, seed }) = &request.sampling {
        if *num_sequences > 0 {
            set("n", (*num_sequences).into());
        }
        if let Some(top_k) = top_k {
            set("top_k", (*top_k).into());
        }
        if let Some(top_p) = top_p.filter(|top_p| *top_p != 0.0) {
            set("top_p", number("top_p", top_p)?);
        }
        if let Some(min_p) = min_p {
            set("min_p", number("min_p", *min_p)?);
        }
        if let Some(seed) = seed {
            set("seed", (*seed).into());
        }
    }
    if let Some(decoding) = &request.decoding {
        let penalties = [
            ("presence_penalty", decoding.presence_penalty),
            ("frequency_penalty", decoding.frequency_penalty),
            ("repetition_penalty", decoding.repetition_penalty),
        ];
        for (name, value) in penalties.into_iter().filter(|(_, value)| *value != 0.0) {
            set(name, number(name, value)?);
        }
        if !decoding.logit_bias.is_empty() {
            let bias = |(id, bias): (&u32, &f32)| Ok((id.to_string(), number("logit_bias", *bias)?));
            let biases: Result<Map<String, Value>, ApiError> = decoding.logit_bias.iter().map(bias).collect();
            set("logit_bias", biases?.into());
        }
        if let Some(wanted) = &decoding.structured_output {
            let (kind, value): (&str, Value) = match wanted {
                StructuredOutput::Json(schema) => ("json", schema.as_str().into()),
                StructuredOutput::Regex(regex) => ("regex", regex.as_str().into()),
                StructuredOutput::Choice(choices) => ("choice", choices.choices.clone().into()),
                StructuredOutput::Grammar(grammar) => ("grammar", grammar.as_str().into()),
                StructuredOutput::JsonObject(true) => ("json_object", true.into()),
                StructuredOutput::JsonObject(false) | StructuredOutput::StructuralTag(_) => ("", Value::Null),
            };
            if !value.is_null() {
                set("structured_outputs", json!({ kind: value }));
            }
        }
    }
    if let Some(StoppingCriteria {
        min_new_tokens,
        stop_token_ids,
        stop_strings,
        include_stop_strings,
        ignore_eos,
        thinking_token_budget,
        ..
    }) = &request.stopping
    {
        set("min_tokens", (*min_new_tokens).into());
        set("stop_token_ids", stop_token_ids.clone().into());
        set("stop", stop_strings.clone().into());
        set("include_stop_str_in_output", (*include_stop_strings).into());
        set("ignore_eos", (*ignore_eos).into());
        if let Some(budget) = thinking_token_budget.filter(|budget| *budget != -1) {
            set("thinking_token_budget", budget.into());
        }
    }
    if let Some(skip) = shows.skip_special_tokens {
        set("skip_special_tokens", skip.into());
    }
    Ok(map)
}
