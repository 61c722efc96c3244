//! Flags of ollama's commands.

use super::Value::{Maybe, None, One};
use super::{Flag, by, refused, taken};

const LOADED: &str = "the model is loaded for this command only; `sterna serve` keeps models loaded";
const SECURE: &str = "HF_ENDPOINT sets the address of another hub, which may be http";
const SHOWN: &str = "`sterna inspect FILE --full` shows all metadata of a file";
const THINKS: &str = "the model thinks if its template says so; requests to `sterna serve` set `think`";
const DRAWN: &str = "only text models are supported";

fn format(format: &str) -> Option<&'static str> {
    match format {
        "json" => Some("--json-schema '{}' makes `sterna run` write JSON"),
        _ => Some("--json-schema SCHEMA makes `sterna run` write JSON that follows a schema"),
    }
}

/// Flags of `ollama run`.
pub const RUN: &[Flag] = &[
    refused(&["keepalive"], One, LOADED),
    by(&["format"], One, format),
    refused(&["think"], Maybe, THINKS),
    refused(&["hidethinking"], None, THINKS),
    taken(&["nowordwrap"]),
    refused(&["insecure"], None, SECURE),
    refused(&["dimensions"], One, "`sterna embed` computes embeddings"),
    refused(&["truncate"], Maybe, "`sterna embed --truncate` cuts texts"),
    refused(&["experimental"], None, "tools run in clients"),
    refused(&["experimental-websearch"], None, "tools run in clients"),
    refused(&["experimental-yolo"], None, "tools run in clients"),
    refused(&["width"], One, DRAWN),
    refused(&["height"], One, DRAWN),
    refused(&["steps"], One, DRAWN),
    refused(&["negative"], One, DRAWN),
];

/// Flags of `ollama pull`.
pub const PULL: &[Flag] = &[refused(&["insecure"], None, SECURE)];

/// Flags of `ollama show`.
pub const SHOW: &[Flag] = &[
    refused(&["license"], None, SHOWN),
    refused(&["modelfile"], None, SHOWN),
    refused(&["parameters"], None, SHOWN),
    refused(&["system"], None, SHOWN),
    refused(&["template"], None, SHOWN),
    refused(&["verbose"], None, "--full shows arrays and strings in full").short('v'),
];

/// Variables that ollama's and vLLM's servers read, and the flags to use instead.
pub const VARIABLES: &[(&str, &str)] = &[
    ("OLLAMA_HOST", "--host and --port set the address"),
    ("OLLAMA_MODELS", "--models-dir names a folder of GGUF files"),
    ("OLLAMA_KEEP_ALIVE", "models stay loaded until others need the memory"),
    ("OLLAMA_CONTEXT_LENGTH", "--ctx-size sets the context"),
    ("OLLAMA_NUM_PARALLEL", "--parallel sets the number of sequences"),
    ("OLLAMA_MAX_LOADED_MODELS", "--models-max limits the loaded models"),
    ("OLLAMA_MAX_QUEUE", "--queue limits the waiting requests"),
    ("OLLAMA_ORIGINS", "--cors-origins allows pages of other sites"),
    ("OLLAMA_KV_CACHE_TYPE", "--kv-cache-type sets the type of the KV cache"),
    ("OLLAMA_GPU_OVERHEAD", "--fit-target leaves memory free"),
    ("OLLAMA_DEBUG", "--verbose also logs debug messages"),
    ("VLLM_API_KEY", "--api-key or LLAMA_API_KEY sets the key that requests must send"),
];
