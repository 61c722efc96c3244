//! Flags of vLLM's commands.

use super::Value::{Maybe, None, One};
use super::common::{SCALING, TEXT};
use super::programs::{CORS, PIPED, REQUEST, RUNS_ITSELF};
use super::{Flag, Verdict, by, flag, refused, taken};

const LAYERS: &str = "--split-mode layer divides the layers among the GPUs that --device lists, as in 0,1";
const REPLICAS: &str =
    "start a server per GPU, each with its --device, and put a proxy or router before them";
const WEIGHTS: &str = "weights are used in the types of the GGUF file; `sterna quantize` writes other types";
const CACHE_TYPE: &str = "--kv-cache-type sets the type, as in q8_0; leave it out for f16";
const DRAFTS: &str = "--spec-type ngram-simple drafts from the text, --model-draft FILE with a draft model";
const FOLDER: &str = "HF_HUB_CACHE sets the folder of downloads";
const IN_FILE: &str = "the GGUF file contains it; leave it out";
const REVISION: &str = "the name of a model may end in a revision: --hf-repo user/repo@REVISION";
const RECOMMENDED: &str =
    "the file's recommended sampling is the default; --temp, --top-p and others change it";
const FIXED: &str = "this server has no such setting; leave it out";
const OFFLOAD: &str = "--gpu-layers limits the layers in VRAM; the others stay in host memory";
const POOLS: &str = "an embedding model embeds; --pooling sets how, --reranking scores documents";
const FORMAT: &str = "the model's template decides it; leave it out";
const LOGS: &str = "prompts are not logged; --verbose logs debug messages";
const SAMPLING: &str = "fields of requests set sampling: temperature, top_p, min_p, penalties, logit_bias";
const SECURE: &str = "a proxy can check the certificates of clients";

fn alone(n: &str) -> Option<&'static str> {
    (n != "1").then_some(LAYERS)
}

fn only_one(n: &str) -> Option<&'static str> {
    (n != "1").then_some(REPLICAS)
}

/// The flags of `vllm serve`.
pub const SERVE: &[Flag] = &[
    // The model.
    by(&["dtype"], One, |ty| (ty != "auto").then_some(WEIGHTS)),
    refused(&["quantization"], One, WEIGHTS).short('q'),
    by(&["load-format"], One, |format| (!["auto", "gguf"].contains(&format)).then_some("want a GGUF file")),
    refused(&["tokenizer"], One, IN_FILE),
    refused(&["tokenizer-revision"], One, IN_FILE),
    refused(&["hf-config-path"], One, IN_FILE),
    refused(&["code-revision"], One, IN_FILE),
    by(&["tokenizer-mode"], One, |mode| (mode != "auto").then_some(IN_FILE)),
    refused(&["skip-tokenizer-init"], None, IN_FILE),
    refused(&["revision"], One, REVISION),
    refused(&["hf-overrides"], One, "`sterna edit IN OUT --set KEY=VALUE` changes a file's metadata"),
    refused(&["rope-theta"], One, "`sterna edit IN OUT --set A.rope.freq_base=f32:N` writes it"),
    refused(&["rope-parameters"], One, SCALING),
    refused(&["download-dir"], One, FOLDER),
    taken(&["trust-remote-code"]),
    by(&["model-impl"], One, |name| (name != "auto").then_some(FIXED)),
    refused(&["task"], One, POOLS),
    refused(&["runner"], One, POOLS),
    refused(&["convert"], One, POOLS),
    refused(&["override-pooler-config"], One, POOLS),
    refused(&["pooler-config"], One, POOLS),
    // All adapters are in memory, of any rank, and any number of them may be in a batch.
    by(&["max-loras"], One, |_| Option::None),
    by(&["max-lora-rank"], One, |_| Option::None),
    by(&["max-cpu-loras"], One, |_| Option::None),
    taken(&["enable-lora"]),
    refused(&["limit-mm-per-prompt"], One, TEXT),
    refused(&["mm-processor-kwargs"], One, TEXT),
    refused(&["allowed-local-media-path"], One, TEXT),
    by(&["generation-config"], One, |from| (from != "auto").then_some(RECOMMENDED)),
    refused(&["override-generation-config"], One, RECOMMENDED),
    // Memory and devices.
    refused(&["gpu-memory-utilization"], One, "--fit-target MIB leaves that much memory free"),
    refused(&["kv-cache-memory-bytes"], One, "--kv-positions sets the cache's size"),
    refused(&["num-gpu-blocks-override"], One, "--kv-positions sets the cache's size"),
    by(&["kv-cache-dtype"], One, |ty| (ty != "auto").then_some(CACHE_TYPE)),
    refused(&["calculate-kv-scales"], None, CACHE_TYPE),
    by(&["block-size"], One, |n| (n != "64").then_some("a page of the KV cache has 64 positions")),
    refused(&["cpu-offload-gb"], One, OFFLOAD),
    by(&["tensor-parallel-size", "-tp"], One, alone),
    by(&["pipeline-parallel-size", "-pp"], One, alone),
    by(&["data-parallel-size", "-dp"], One, only_one),
    refused(&["enable-expert-parallel"], None, LAYERS),
    refused(&["distributed-executor-backend"], One, "a model runs on one machine"),
    refused(&["nnodes"], One, "a model runs on one machine"),
    taken(&["disable-custom-all-reduce"]),
    refused(&["enforce-eager"], None, FIXED),
    refused(&["compilation-config"], One, FIXED).short('O'),
    refused(&["max-seq-len-to-capture"], One, FIXED),
    refused(&["attention-backend"], One, FIXED),
    refused(&["cuda-graph-sizes"], One, FIXED),
    refused(&["enable-sleep-mode"], None, "POST /models/unload unloads a model of --models-dir or --models"),
    // Scheduling.
    taken(&["enable-prefix-caching"]),
    taken(&["enable-chunked-prefill"]),
    refused(&["no-enable-chunked-prefill"], None, "--batch-size sets the tokens of a prefill step"),
    taken(&["async-scheduling"]),
    by(&["scheduling-policy"], One, |policy| {
        (policy != "fcfs").then_some("the keys with fewest requests go first")
    }),
    refused(&["speculative-config", "-sc"], One, DRAFTS),
    refused(&["speculative-model"], One, DRAFTS),
    refused(&["num-speculative-tokens"], One, DRAFTS),
    refused(&["kv-transfer-config"], One, "--kv-transfer lets another server take over prompts"),
    refused(&["kv-events-config"], One, "--kv-events sets the address of KV cache events"),
    // Chat, tools and structured output.
    taken(&["enable-auto-tool-choice"]),
    // The template shows which format the model writes.
    flag(&["tool-call-parser"], One, Verdict::Taken),
    flag(&["reasoning-parser"], One, Verdict::Taken),
    taken(&["enable-reasoning"]),
    refused(&["tool-parser-plugin"], One, FORMAT),
    refused(&["reasoning-parser-plugin"], One, FORMAT),
    by(&["chat-template-content-format"], One, |format| (format != "auto").then_some(FORMAT)),
    by(&["response-role"], One, |role| (role != "assistant").then_some("answers have the role assistant")),
    refused(&["default-chat-template-kwargs"], One, REQUEST),
    refused(&["guided-decoding-backend"], One, "all schemas are enforced; leave it out"),
    refused(&["structured-outputs-config"], One, "all schemas are enforced; leave it out"),
    refused(&["logits-processors"], One, SAMPLING),
    refused(&["max-logprobs"], One, FIXED),
    // HTTP and logs.
    refused(&["root-path"], One, "let a proxy strip the prefix"),
    refused(&["middleware"], One, "let a proxy do it"),
    refused(&["allowed-origins"], One, "--cors-origins lists them, comma-separated"),
    refused(&["allowed-methods"], One, CORS),
    refused(&["allowed-headers"], One, CORS),
    refused(&["allow-credentials"], None, CORS),
    refused(&["ssl-ca-certs"], One, SECURE),
    refused(&["ssl-cert-reqs"], One, SECURE),
    refused(&["uvicorn-log-level"], One, LOGS),
    taken(&["disable-log-requests"]),
    taken(&["no-enable-log-requests"]),
    refused(&["enable-log-requests"], None, LOGS),
    refused(&["enable-log-outputs"], None, LOGS),
    refused(&["max-log-len"], One, LOGS),
    refused(&["log-config-file"], One, LOGS),
    taken(&["disable-log-stats"]),
    taken(&["disable-frontend-multiprocessing"]),
    by(&["api-server-count"], One, only_one),
    refused(&["headless"], None, REPLICAS),
    refused(&["uds"], One, "--host and --port set the address"),
    refused(&["config"], One, "variables such as LLAMA_ARG_CTX_SIZE and LLAMA_ARG_PORT set flags"),
    refused(&["otlp-traces-endpoint"], One, "traces are not exported; --metrics serves /metrics"),
];

/// The flags of `vllm chat`, which talks to a server.
pub const CHAT: &[Flag] = &[
    refused(&["url"], One, RUNS_ITSELF),
    refused(&["model-name"], One, RUNS_ITSELF),
    refused(&["api-key"], One, RUNS_ITSELF),
    refused(&["quick"], Maybe, PIPED).short('q'),
];
