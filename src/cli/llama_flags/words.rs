//! Commands of llama.cpp, ollama and vLLM with another name here, and words where no word is expected, such
//! as the name of a model.

use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::cli::hub_args::is_name;

const CREATE: &str = "a Modelfile is not read: pass its FROM with -m, its SYSTEM with -sys, its PARAMETERs \
                      as flags; `sterna convert` and `sterna quantize` write GGUF files";
const HUB: &str = "models come from the Hugging Face hub, whose own `hf` command uploads to it; HF_TOKEN or \
                   `hf auth login` signs in";
const LOADED: &str = "GET /api/ps of `sterna serve` lists its loaded models";
const UNLOAD: &str =
    "ctrl-C or SIGTERM stops `sterna serve`; POST /models/unload unloads one of several models";
const COPY: &str = "copy the file, or name it with `sterna serve --models NAME=FILE`";
const CHATS: &str = "use `sterna chat` for conversations, `sterna run` to continue a text";
const MEASURES: &str = "`sterna bench` measures the engine, `sterna batched-bench` many sequences at a time";
const MEDIA: &str = "only text models are supported";
const TRAIN: &str = "training is not supported";

/// Commands of other programs, without `llama-`, and the commands to use instead.
const COMMANDS: &[(&str, &str)] = &[
    // llama.cpp
    ("cli", CHATS),
    ("completion", "use `sterna run`"),
    ("simple", "use `sterna run`"),
    ("simple-chat", "use `sterna chat`"),
    ("server", "use `sterna serve`"),
    ("bench", "use `sterna bench`"),
    ("batched-bench", "use `sterna batched-bench`"),
    ("perplexity", "use `sterna perplexity`"),
    ("quantize", "use `sterna quantize`"),
    ("imatrix", "use `sterna imatrix`"),
    ("tokenize", "use `sterna tokenize`"),
    ("embedding", "use `sterna embed`"),
    ("gguf-split", "use `sterna split` and `sterna merge`"),
    ("gguf", "use `sterna inspect`"),
    ("gguf-hash", "use `sterna verify` for files of the hub, `sha256sum` for others"),
    ("fit-params", "use `sterna plan`"),
    ("parallel", "use `sterna run -np N`, or `sterna serve`"),
    ("batched", "use `sterna run -np N`"),
    ("speculative", "use `sterna run --model-draft FILE`"),
    ("speculative-simple", "use `sterna run --model-draft FILE`"),
    ("lookup", "use `sterna run --spec-type ngram-simple`"),
    ("lookahead", "use `sterna run --spec-type ngram-simple`"),
    ("passkey", "`sterna kv-report` has a needle test"),
    ("export-lora", "use `sterna convert --lora ADAPTER MODEL.gguf OUT.gguf`"),
    ("cvector-generator", "steering vectors are not supported"),
    ("rpc-server", "a model runs on one machine"),
    ("mtmd-cli", MEDIA),
    ("tts", MEDIA),
    ("finetune", TRAIN),
    ("convert-hf-to-gguf", "use `sterna convert`"),
    ("convert_hf_to_gguf.py", "use `sterna convert`"),
    // ollama
    ("create", CREATE),
    ("push", HUB),
    ("signin", HUB),
    ("signout", HUB),
    ("login", HUB),
    ("logout", HUB),
    ("upload", HUB),
    ("cp", COPY),
    ("ps", LOADED),
    ("stop", UNLOAD),
    ("start", "use `sterna serve`"),
    (
        "launch",
        "start `sterna serve`, and give the program its address as that of an OpenAI or ollama server",
    ),
    // vLLM
    ("complete", "use `sterna run`"),
    ("run-batch", "send the requests to `sterna serve`, which batches them"),
    ("collect-env", "`sterna devices` lists backends and devices"),
    // Others
    ("version", "`sterna --version` prints it"),
    ("info", "use `sterna inspect`"),
    ("download", "use `sterna pull`"),
    ("models", "use `sterna list`"),
    ("remove", "use `sterna rm`"),
    ("delete", "use `sterna rm`"),
    ("generate", "use `sterna run`"),
    ("demo", "`sterna run`, `sterna chat` and `sterna serve` use the demo model if no model is given"),
];

/// An error of clap, with the command or flag to use instead in place of its guess.
pub fn explained(err: Error, sterna: &Command, command: Option<&str>) -> Error {
    let word = |kind| match err.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let said = match err.kind() {
        ErrorKind::InvalidSubcommand => word(ContextKind::InvalidSubcommand).and_then(unknown_command),
        ErrorKind::UnknownArgument => word(ContextKind::InvalidArg).and_then(|word| {
            match command.and_then(|command| sterna.find_subcommand(command)) {
                Some(command) => misplaced(command, word),
                None => before_command(word),
            }
        }),
        _ => None,
    };
    said.map_or(err, |said| Error::raw(ErrorKind::UnknownArgument, said + "\n"))
}

/// The flag that passes a word that looks like a model.
fn of_model(word: &str) -> Option<String> {
    let is_file = word.ends_with(".gguf") || is_name(word) || Path::new(word).is_file();
    let is_of_hub = word.matches('/').count() == 1 && !word.contains(char::is_whitespace);
    match (is_file, is_of_hub) {
        (true, _) => Some(format!("-m {word}")),
        (false, true) => Some(format!("-hf {word}")),
        (false, false) => None,
    }
}

fn unknown_command(word: &str) -> Option<String> {
    if let Some(model) = of_model(word) {
        return Some(format!(
            "'{word}' is not a command: `sterna run {model}` continues a text with it, `sterna chat {model}` \
             chats, `sterna serve {model}` serves it"
        ));
    }
    let name = word.strip_prefix("llama-").unwrap_or(word);
    let (_, instead) = COMMANDS.iter().find(|(command, _)| *command == name)?;
    Some(format!("there is no command '{word}': {instead}"))
}

fn before_command(flag: &str) -> Option<String> {
    let instead = match flag {
        "-v" => "`sterna --version` prints the version",
        _ => "flags follow a command, as in `sterna run -m FILE -p TEXT` and `sterna serve -m FILE`",
    };
    Some(format!("unexpected argument '{flag}': {instead}"))
}

/// The message for a word that is not a flag, in a subcommand without such arguments.
fn misplaced(command: &Command, word: &str) -> Option<String> {
    let has =
        |flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag) && !arg.is_hide_set());
    if word.starts_with('-') || !has("model") {
        return None;
    }
    if command.get_name() == "bench" && ["serve", "latency", "throughput"].contains(&word) {
        return Some(format!("unexpected argument '{word}': {MEASURES}"));
    }
    let mut instead = match of_model(word) {
        Some(model) => format!("pass the model as {model}"),
        None => "pass the model with -m FILE or -hf USER/REPO".to_owned(),
    };
    if has("prompt") {
        instead += ", the prompt with -p TEXT";
    }
    Some(format!("unexpected argument '{word}': {instead}"))
}
