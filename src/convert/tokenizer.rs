//! The vocabulary: from `tokenizer.model` or `tokenizer.json` to `tokenizer.ggml.*`.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value as Json;

use super::config::Config;
use super::sentencepiece::Model;
use super::{ConvertError, TOKENIZER_PRE, metaspace, pre, read_json, two_files, wordpiece};
use sterna_gguf::{Array, Metadata};
use sterna_tokenizer::PreTokenizer;

/// Token types of the file format.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Kinds of vocabularies (`tokenizer.ggml.model`).
const SENTENCEPIECE: &str = "llama";
const RANKED: &str = "gemma4";
const BYTE_LEVEL: &str = "gpt2";
const WORDPIECE: &str = "bert";

/// Spellings that end a turn of a chat, for lists of end tokens.
const TURN_ENDS: [&str; 6] =
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>", "<|return|>"];

/// Prefixes of `*_token` keys in a configuration, and GGUF's names for them.
const SPECIALS: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];

/// Source of the vocabulary and further facts about it.
#[derive(Debug)]
pub struct Request<'a> {
    /// The checkpoint's folder.
    pub folder: &'a Path,
    /// Its configuration.
    pub config: &'a Config,
    /// Rows of the embedding.
    pub rows: usize,
    /// True if rows beyond the vocabulary are left out instead of padded.
    pub cut: bool,
    /// Name of the pre-tokenizer, if the caller sets it.
    pub pre: Option<PreTokenizer>,
}

/// A vocabulary that is being converted to metadata.
#[derive(Debug, Default)]
struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<i32>,
    scores: Vec<f32>,
}

impl Vocabulary {
    /// Sets a token, padding with unused tokens up to it.
    fn set(&mut self, id: usize, text: String, kind: i32, score: f32) {
        self.pad(id + 1);
        (self.tokens[id], self.kinds[id], self.scores[id]) = (text, kind, score);
    }

    fn pad(&mut self, n: usize) {
        while self.tokens.len() < n {
            self.tokens.push(format!("[PAD{}]", self.tokens.len()));
            self.kinds.push(UNUSED);
            self.scores.push(-10000.0);
        }
    }

    /// Pads to the rows of the embedding and writes the vocabulary; only SentencePiece vocabularies have
    /// scores.
    fn write(&mut self, request: &Request<'_>, metadata: &mut Metadata, model: &str, pre: &str) {
        if !request.cut {
            self.pad(request.rows);
        }
        metadata.set("tokenizer.ggml.model", model);
        metadata.set("tokenizer.ggml.pre", pre);
        metadata.set("tokenizer.ggml.tokens", Array::from_strs(self.tokens.iter().map(String::as_str)));
        if model == SENTENCEPIECE {
            metadata.set("tokenizer.ggml.scores", Array::from_f32s(self.scores.iter().copied()));
        }
        metadata.set("tokenizer.ggml.token_type", Array::from_i32s(self.kinds.iter().copied()));
    }
}

/// Writes the vocabulary's keys; returns the number of tokens.
///
/// # Errors
/// [`ConvertError::File`] for a missing or corrupt file, for tokens beyond the rows of the embedding, and for
/// an unknown pre-tokenizer.
pub fn write(
    request: &Request<'_>,
    metadata: &mut Metadata,
    notes: &mut Vec<String>,
) -> Result<usize, ConvertError> {
    let folder = request.folder;
    let (model, json) = (folder.join("tokenizer.model"), folder.join("tokenizer.json"));
    let settings = optional(&folder.join("tokenizer_config.json"))?;
    let vocab = folder.join("vocab.json");
    let lines = folder.join("vocab.txt");
    let is_older = !json.is_file() && !model.is_file();
    let tokenizer = if is_older && vocab.is_file() {
        let is_known = request.pre.is_some() || request.config.class()? == "GPT2LMHeadModel";
        two_files::tokenizer(folder, &settings, is_known)?
    } else if is_older && lines.is_file() {
        wordpiece::tokenizer_json(&lines, &settings)?
    } else {
        optional(&json)?
    };
    let of_words = wordpiece::is_wordpiece(&tokenizer);
    let of_sentencepiece = model.is_file() || metaspace::is_metaspace(&tokenizer);
    if let Some(pre) = request.pre.filter(|_| of_sentencepiece || of_words) {
        let path = if model.is_file() { &model } else { &json };
        let kind = if of_words { "WordPiece" } else { "SentencePiece" };
        let detail = format!("is a {kind} vocabulary, which needs no pre-tokenizer such as `{pre}`");
        return Err(ConvertError::file(path, detail).avoided_by([": leave ", TOKENIZER_PRE, " out"]));
    }
    let vocabulary = if of_words {
        word_pieces(request, if json.is_file() { &json } else { &lines }, &tokenizer, &settings, metadata)?
    } else if model.is_file() {
        scored(request, &model, &settings, metadata)?
    } else if of_sentencepiece {
        ranked(request, &json, &tokenizer, metadata, notes)?
    } else if json.is_file() {
        byte_level(request, &json, &tokenizer, metadata, notes)?
    } else if vocab.is_file() {
        byte_level(request, &vocab, &tokenizer, metadata, notes)?
    } else {
        let detail = "has none of tokenizer.json, tokenizer.model, vocab.txt, and vocab.json with merges.txt";
        return Err(ConvertError::file(folder, detail));
    };
    let n_tokens = vocabulary.tokens.len();
    specials(request, &vocabulary, &tokenizer, &settings, metadata)?;
    if let Some(template) = chat_template(folder, &settings, notes)? {
        metadata.set("tokenizer.chat_template", template);
    }
    Ok(n_tokens)
}

/// A JSON file, or null if it is missing.
pub fn optional(path: &Path) -> Result<Json, ConvertError> {
    if path.is_file() { read_json(path) } else { Ok(Json::Null) }
}

/// Converts a SentencePiece vocabulary.
fn scored(
    request: &Request<'_>,
    path: &Path,
    settings: &Json,
    metadata: &mut Metadata,
) -> Result<Vocabulary, ConvertError> {
    let model = Model::read(path)?;
    let mut out = Vocabulary::default();
    for (id, piece) in model.pieces.iter().enumerate().take(request.rows) {
        let kind = piece.kind.filter(|kind| (1..=6).contains(kind)).unwrap_or(NORMAL);
        out.set(id, piece.piece.clone().unwrap_or_default(), kind, piece.score.unwrap_or(0.0));
    }
    let beyond = |id: usize| ConvertError::file(path, beyond(id, request.rows));
    let added = optional(&request.folder.join("added_tokens.json"))?;
    for (text, id) in added.as_object().into_iter().flatten() {
        let id = id.as_u64().unwrap_or(u64::MAX) as usize;
        if id >= request.rows {
            return Err(beyond(id));
        }
        out.set(id, text.clone(), USER_DEFINED, -1000.0);
    }
    for (id, text, special) in added_tokens(settings, &Json::Null) {
        if id >= request.rows {
            // The list of a shared tokenizer may contain more tokens than a model's vocabulary.
            continue;
        }
        if special || looks_special(&text) {
            out.set(id, text, CONTROL, -1000.0);
        } else {
            out.set(id, text.replace('\u{2581}', " "), USER_DEFINED, -1000.0);
        }
    }
    out.write(request, metadata, SENTENCEPIECE, "default");
    let prefix = settings.get("add_prefix_space").and_then(Json::as_bool);
    if prefix == Some(false) || !model.adds_prefix() {
        metadata.set("tokenizer.ggml.add_space_prefix", false);
    }
    Ok(out)
}

/// Converts a byte-level BPE vocabulary.
fn byte_level(
    request: &Request<'_>,
    path: &Path,
    tokenizer: &Json,
    metadata: &mut Metadata,
    notes: &mut Vec<String>,
) -> Result<Vocabulary, ConvertError> {
    let wrong = |detail: String| ConvertError::file(path, detail);
    let pre = match request.pre {
        Some(pre) => pre,
        None => pre::pre_tokenizer(tokenizer)
            .map_err(|detail| wrong(detail).avoided_by(["; set another one with ", TOKENIZER_PRE, ""]))?,
    };
    let mut out = listed(request, path, tokenizer, "BPE")?;
    for (id, text, special) in added_tokens(&Json::Null, tokenizer) {
        let kind = if special || looks_special(&text) { CONTROL } else { USER_DEFINED };
        out.set(id, text, kind, 0.0);
    }
    let merges = merges(path, tokenizer, merge)?;
    let normalizer = tokenizer.get("normalizer").and_then(|json| json.get("type")).and_then(Json::as_str);
    notes.extend(normalizer.map(pre::lost_normalizer));
    out.write(request, metadata, BYTE_LEVEL, pre.name());
    metadata.set("tokenizer.ggml.merges", Array::from_strs(merges.iter().map(String::as_str)));
    Ok(out)
}

/// Converts a SentencePiece vocabulary whose merges have ranks: its scores join the same pairs.
fn ranked(
    request: &Request<'_>,
    path: &Path,
    tokenizer: &Json,
    metadata: &mut Metadata,
    notes: &mut Vec<String>,
) -> Result<Vocabulary, ConvertError> {
    let wrong = |detail: String| ConvertError::file(path, detail);
    let spaces = metaspace::Spaces::of(tokenizer)
        .map_err(|detail| wrong(format!("{detail}; a tokenizer.model in the same folder is read instead")))?;
    let mut out = listed(request, path, tokenizer, "BPE")?;
    let model = &tokenizer["model"];
    if model["byte_fallback"] != true {
        let detail = "model.byte_fallback is not true, which GGUF requires for a SentencePiece vocabulary";
        return Err(wrong(detail.to_owned()));
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|text| !text.is_empty()) {
            return Err(wrong(format!("model.{key} is {}: want none", model[key])));
        }
    }
    let pairs = merges(path, tokenizer, metaspace::pair)?;
    let merges = metaspace::Merges::new(&pairs);
    let texts: HashSet<&str> = out.tokens.iter().map(String::as_str).collect();
    let is_listed = |id: &usize| out.kinds[*id] == NORMAL;
    let n_doubtful = (0..out.tokens.len())
        .filter(is_listed)
        .filter(|id| merges.is_doubtful(&out.tokens[*id], &texts))
        .count();
    if n_doubtful > 0 {
        notes.push(format!(
            "{n_doubtful} tokens cannot be reached by the tokenizer's merges, but can by their scores in \
             GGUF: texts that contain one may get other ids"
        ));
    }
    let n_across = out.tokens.iter().filter(|text| text.chars().skip(1).any(|char| char == metaspace::SPACE));
    let n_across = n_across.filter(|text| merges.is_made(text)).count();
    if spaces.splits && n_across > 0 {
        notes.push(format!(
            "the tokenizer splits texts before each space, and GGUF has no key for that: {n_across} tokens \
             that contain such a space are used anyway"
        ));
    }
    notes.extend(spaces.notes);
    for id in 0..out.tokens.len() {
        out.scores[id] = merges.score(&out.tokens[id]);
        if is_byte(&out.tokens[id]) {
            out.kinds[id] = BYTE;
        }
    }
    for (id, text, special) in added_tokens(&Json::Null, tokenizer) {
        let score = merges.score(&text);
        if special || looks_special(&text) {
            out.set(id, text, CONTROL, score);
        } else if !merges.is_made(&text) || !text.contains(metaspace::SPACE) {
            out.set(id, text.replace(metaspace::SPACE, " "), USER_DEFINED, score);
        }
    }
    if let Some(unknown) = model["unk_token"].as_str()
        && let Some(id) = out.tokens.iter().position(|text| text == unknown)
    {
        out.kinds[id] = UNKNOWN;
        metadata.set("tokenizer.ggml.unknown_token_id", id as u32);
    }
    if request.config.class()?.starts_with("Gemma4") {
        // Readers take the ranks of this model's merges, and put BOS before every text.
        out.write(request, metadata, RANKED, "default");
        let pairs: Vec<String> = pairs.iter().map(|(left, right)| format!("{left} {right}")).collect();
        metadata.set("tokenizer.ggml.merges", Array::from_strs(pairs.iter().map(String::as_str)));
        metadata.set("tokenizer.ggml.add_bos_token", true);
        return Ok(out);
    }
    out.write(request, metadata, SENTENCEPIECE, "default");
    metadata.set("tokenizer.ggml.add_space_prefix", spaces.prefix);
    // Without a template or a setting in tokenizer_config.json nothing is added, but by default readers add
    // BOS.
    metadata.set("tokenizer.ggml.add_bos_token", false);
    metadata.set("tokenizer.ggml.add_eos_token", false);
    Ok(out)
}

/// Converts a WordPiece vocabulary.
fn word_pieces(
    request: &Request<'_>,
    path: &Path,
    tokenizer: &Json,
    settings: &Json,
    metadata: &mut Metadata,
) -> Result<Vocabulary, ConvertError> {
    let mut out = listed(request, path, tokenizer, "WordPiece")?;
    wordpiece::normalizer(tokenizer, metadata).map_err(|detail| ConvertError::file(path, detail))?;
    for (id, text, special) in added_tokens(&Json::Null, tokenizer) {
        out.set(id, text, if special { CONTROL } else { USER_DEFINED }, 0.0);
    }
    let names = wordpiece::special(settings);
    let id_of = |name: &String| out.tokens.iter().position(|token| token == name);
    let ids = names.each_ref().map(id_of);
    for id in ids.into_iter().flatten() {
        out.kinds[id] = CONTROL;
    }
    for id in 0..out.tokens.len() {
        if out.kinds[id] == NORMAL {
            out.tokens[id] = wordpiece::spelled(&out.tokens[id]);
        }
    }
    out.write(request, metadata, WORDPIECE, "default");
    let [unk, sep, pad, cls, mask] = ids;
    let (Some(_), Some(_)) = (cls, sep) else {
        let detail = format!("want tokens {} and {}, which enclose each text", names[3], names[1]);
        return Err(ConvertError::file(path, detail));
    };
    // Readers take the beginning and end of a text from either name.
    for (word, id) in [
        ("bos", cls),
        ("eos", sep),
        ("unknown", unk),
        ("seperator", sep),
        ("padding", pad),
        ("cls", cls),
        ("mask", mask),
    ] {
        if let Some(id) = id {
            metadata.set(format!("tokenizer.ggml.{word}_token_id"), id as u32);
        }
    }
    Ok(out)
}

/// Reads the tokens of `model.vocab` and checks that `added_tokens` are also within the embedding.
fn listed(
    request: &Request<'_>,
    path: &Path,
    tokenizer: &Json,
    want: &str,
) -> Result<Vocabulary, ConvertError> {
    let wrong = |detail: String| ConvertError::file(path, detail);
    let model = tokenizer.get("model").unwrap_or(&Json::Null);
    let kind = model.get("type").and_then(Json::as_str).unwrap_or("BPE");
    if kind != want {
        return Err(wrong(format!("model {kind}: want {want}")));
    }
    let vocab = model.get("vocab").and_then(Json::as_object);
    let vocab = vocab.ok_or_else(|| wrong("want model.vocab, an object of ids".to_owned()))?;
    let mut by_id = BTreeMap::new();
    for (text, id) in vocab {
        let id = id.as_u64().ok_or_else(|| wrong(format!("token {}: want an id", text.escape_debug())))?;
        by_id.insert(id as usize, text.clone());
    }
    let added = added_tokens(&Json::Null, tokenizer);
    let last = by_id.keys().copied().chain(added.iter().map(|added| added.0)).max();
    if let Some(id) = last.filter(|id| *id >= request.rows) {
        return Err(wrong(beyond(id, request.rows)));
    }
    let mut out = Vocabulary::default();
    for (id, text) in by_id {
        out.set(id, text, NORMAL, 0.0);
    }
    Ok(out)
}

/// Reads `model.merges`, each with `of`.
fn merges<T>(path: &Path, tokenizer: &Json, of: impl Fn(&Json) -> Option<T>) -> Result<Vec<T>, ConvertError> {
    let merges = tokenizer["model"]["merges"].as_array();
    let merges = merges.ok_or_else(|| ConvertError::file(path, "want model.merges, a list"))?;
    let merges: Option<_> = merges.iter().map(of).collect();
    merges.ok_or_else(|| ConvertError::file(path, "want merges of two texts each"))
}

/// True for `<0x41>` and the like, in upper case as written by SentencePiece.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| {
        digits.len() == 2 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F'))
    })
}

fn beyond(id: usize, rows: usize) -> String {
    format!("token {id} is beyond the {rows} rows of the embedding")
}

/// Formats a merge as `"a b"`, from that or from `["a", "b"]`, with spaces spelled as in byte-level BPE.
fn merge(json: &Json) -> Option<String> {
    match json {
        Json::String(text) => Some(text.clone()),
        Json::Array(pair) => match &pair[..] {
            [Json::String(left), Json::String(right)] => {
                Some(format!("{} {}", left.replace(' ', "\u{120}"), right.replace(' ', "\u{120}")))
            }
            _ => None,
        },
        _ => None,
    }
}

/// Id, text and special flag of the tokens in `added_tokens_decoder` and `added_tokens`.
fn added_tokens(settings: &Json, tokenizer: &Json) -> Vec<(usize, String, bool)> {
    let one = |id: Option<usize>, json: &Json| {
        let special = json.get("special").and_then(Json::as_bool).unwrap_or(false);
        Some((id?, json.get("content")?.as_str()?.to_owned(), special))
    };
    let of_settings = settings.get("added_tokens_decoder").and_then(Json::as_object);
    let of_settings = of_settings.into_iter().flatten().filter_map(|(id, json)| one(id.parse().ok(), json));
    let listed = tokenizer.get("added_tokens").and_then(Json::as_array);
    let id = |json: &Json| json.get("id").and_then(Json::as_u64).map(|id| id as usize);
    let listed = listed.into_iter().flatten().filter_map(|json| one(id(json), json));
    of_settings.chain(listed).collect()
}

/// True if the spelling of a token is that of a special one, although it is not marked so.
fn looks_special(text: &str) -> bool {
    let between = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || text.starts_with("<unused")
}

/// Writes the ids of special tokens, and which of them are added to texts.
fn specials(
    request: &Request<'_>,
    vocabulary: &Vocabulary,
    tokenizer: &Json,
    settings: &Json,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    let find = |text: &str| vocabulary.tokens.iter().position(|token| token == text);
    let in_vocabulary = |id: u64| (id as usize) < vocabulary.tokens.len();
    let generation = optional(&request.folder.join("generation_config.json"))?;
    let mut set = BTreeMap::new();
    for (word, key) in SPECIALS {
        let entry = settings.get(format!("{word}_token"));
        let text = entry.and_then(|entry| entry.as_str().or_else(|| entry.get("content")?.as_str()));
        if let Some(id) = text.and_then(find) {
            set.insert(word, id as u32);
            metadata.set(format!("tokenizer.ggml.{key}_token_id"), id as u32);
        }
    }
    for (word, key) in SPECIALS {
        let entry = request.config.get(&[format!("{word}_token_id").as_str()]);
        let id = entry.and_then(|entry| entry.as_u64().or_else(|| entry.get(0)?.as_u64()));
        if let Some(id) = id.filter(|id| in_vocabulary(*id)).filter(|_| !set.contains_key(word)) {
            set.insert(word, id as u32);
            metadata.set(format!("tokenizer.ggml.{key}_token_id"), id as u32);
        }
    }
    // GGUF has one end of text and one end of turn; a list may contain both.
    let lists = [request.config.get(&["eos_token_id"]), generation.get("eos_token_id")];
    let ids = lists.into_iter().flatten().filter_map(Json::as_array).flatten().filter_map(Json::as_u64);
    let turn_ends = ids.filter(|id| {
        let text = vocabulary.tokens.get(*id as usize);
        text.is_some_and(|text| TURN_ENDS.contains(&text.as_str()))
    });
    let mut turn_end = turn_ends.map(|id| id as u32).find(|id| set.get("eos") != Some(id));
    // Readers use one end of text: the template's, for example in Qwen3-Embedding, has priority over that of
    // a turn.
    let end = around(tokenizer).and_then(|[_, end]| find(end?.get("id")?.as_str()?));
    if let Some(id) = end.map(|id| id as u32) {
        metadata.set("tokenizer.ggml.eos_token_id", id);
        turn_end = turn_end.or(set.insert("eos", id));
    }
    if let Some(id) = turn_end.filter(|id| set.get("eos") != Some(id)) {
        metadata.set("tokenizer.ggml.eot_token_id", id);
    }
    for (word, adds) in added(tokenizer, settings) {
        metadata.set(format!("tokenizer.ggml.add_{word}_token"), adds);
    }
    Ok(())
}

/// The steps of `post_processor`, each with its `type`.
fn processors(tokenizer: &Json) -> impl Iterator<Item = (&str, &Json)> {
    let processor = tokenizer.get("post_processor").unwrap_or(&Json::Null);
    let parts = processor.get("processors").and_then(Json::as_array);
    let parts = parts.map_or(std::slice::from_ref(processor), Vec::as_slice);
    parts.iter().map(|json| (json.get("type").and_then(Json::as_str).unwrap_or_default(), json))
}

/// The special tokens that the template of tokenizer.json puts right before and after a text.
fn around(tokenizer: &Json) -> Option<[Option<&Json>; 2]> {
    let (_, template) = processors(tokenizer).find(|(kind, _)| *kind == "TemplateProcessing")?;
    let single = template.get("single")?.as_array()?;
    let text = single.iter().position(|part| part.get("Sequence").is_some()).unwrap_or(0);
    Some([text.wrapping_sub(1), text + 1].map(|at| single.get(at)?.get("SpecialToken")))
}

/// Special tokens that are added around a text: from the template of tokenizer.json, or else from
/// tokenizer_config.json.
fn added(tokenizer: &Json, settings: &Json) -> Vec<(&'static str, bool)> {
    if let Some(around) = around(tokenizer) {
        return vec![("bos", around[0].is_some()), ("eos", around[1].is_some()), ("sep", false)];
    }
    let said = |word: &str| settings.get(format!("add_{word}_token")).and_then(Json::as_bool);
    // Byte-level BPE without a template adds nothing.
    let is_plain = processors(tokenizer).any(|(kind, _)| kind == "ByteLevel");
    let of = |word: &'static str| match said(word) {
        Some(adds) => Some((word, adds)),
        None => is_plain.then_some((word, false)),
    };
    ["bos", "eos"].into_iter().filter_map(of).collect()
}

/// Returns the chat template from any of its possible files; with several, the default one.
fn chat_template(
    folder: &Path,
    settings: &Json,
    notes: &mut Vec<String>,
) -> Result<Option<String>, ConvertError> {
    match settings.get("chat_template") {
        Some(Json::String(template)) => return Ok(Some(template.clone())),
        Some(Json::Array(named)) => {
            let text = |json: &Json, key: &str| json.get(key).and_then(Json::as_str).map(str::to_owned);
            let default = named.iter().find(|json| text(json, "name").as_deref() == Some("default"));
            let chosen = default.or(named.first()).and_then(|json| text(json, "template"));
            if named.len() > 1 {
                notes.push(format!("the default one of {} chat templates is kept", named.len()));
            }
            return Ok(chosen);
        }
        _ => {}
    }
    let file = folder.join("chat_template.jinja");
    if file.is_file() {
        let text = std::fs::read_to_string(&file).map_err(|err| ConvertError::file(&file, err))?;
        return Ok(Some(text));
    }
    let json = optional(&folder.join("chat_template.json"))?;
    Ok(json.get("chat_template").and_then(Json::as_str).map(str::to_owned))
}
