//! Flags of single llama.cpp programs, in addition to the common ones.

use super::Value::{Maybe, None, One, Two};
use super::common::{DRAFT, EDIT, LONGER};
use super::{Flag, by, refused, taken};

// Hints that several flags share.
const TALKS: &str = "use `sterna chat` for conversations";
const CONTINUES: &str = "use `sterna run` to continue a text";
pub const PIPED: &str = "pipe the message into `sterna chat`, which ends with its input";
pub const RUNS_ITSELF: &str = "`sterna chat` runs the model itself; use a client to talk to a server";
const FRAME: &str = "the chat template formats messages; --chat-template selects another one";
const MEDIA: &str = "only text models are supported";
pub const REQUEST: &str = "set it in each request";
const THINKING: &str = "requests to `sterna serve` set it: reasoning_format, reasoning_effort and \
                        chat_template_kwargs";
const ONE_PAGE: &str = "the web page is fixed; use a file server for another one";
const TOOLS: &str = "clients call tools; this server only returns the calls that the model requests";
pub const CORS: &str = "only --cors-origins can be set";
const CACHE: &str = "the prefix cache has no such setting; leave it out";
const SHARED: &str = "slots share the pages of one cache; --kv-positions sets its size";
const BY_NAME: &str = "-hf selects the model, other flags its settings";
const ANSWERS: &str = "benchmarks of questions are not supported; `sterna perplexity` scores a text";

const NGRAM: &str = "--spec-type ngram-simple drafts from the prompt and the output; configure it with \
                     --spec-ngram-size-n and --draft-max";
const PULL: &str = "download the file with `sterna pull` and pass it with --model-draft";
const MEASURED: &str = "the acceptance rate cannot be simulated; leave it out";

fn unless_one(hits: &str) -> Option<&'static str> {
    (hits != "1").then_some(NGRAM)
}

fn unless_none(mebibytes: &str) -> Option<&'static str> {
    (mebibytes.parse::<f64>() != Ok(0.0)).then_some(CACHE)
}

fn colour(when: &str) -> Option<&'static str> {
    (!["off", "auto"].contains(&when)).then_some("leave it out: the output has no colours")
}

fn gguf(format: &str) -> Option<&'static str> {
    (format != "gguf").then_some("the file is always GGUF, which llama-quantize also reads")
}

fn embeddings(switch: &str) -> Option<&'static str> {
    (switch != "0").then_some("embeddings cannot be measured")
}

/// Flags that llama-completion and llama-cli share.
pub const TALK: &[Flag] = &[
    taken(&["jinja", "LLAMA_ARG_JINJA"]),
    refused(&["no-jinja"], None, "templates are always Jinja"),
    taken(&["simple-io"]),
    taken(&["no-context-shift"]),
    taken(&["no-display-prompt"]),
    refused(&["display-prompt"], None, "the prompt is never printed; `cat` prints it"),
    refused(&["verbose-prompt"], None, "`sterna tokenize` shows a prompt's tokens"),
    refused(&["context-shift", "LLAMA_ARG_CONTEXT_SHIFT"], None, LONGER),
    by(&["color", "-co"], Maybe, colour),
    refused(
        &["multiline-input", "-mli"],
        None,
        "end a line with \\ to continue the message on the next line",
    ),
    refused(&["reasoning-format", "LLAMA_ARG_THINK"], One, THINKING),
    refused(&["reasoning", "-rea", "LLAMA_ARG_REASONING"], One, THINKING),
    refused(&["reasoning-effort", "LLAMA_ARG_REASONING_EFFORT"], One, THINKING),
    refused(&["reasoning-budget", "LLAMA_ARG_THINK_BUDGET"], One, THINKING),
    refused(&["reasoning-budget-message", "LLAMA_ARG_THINK_BUDGET_MESSAGE"], One, THINKING),
    refused(&["reasoning-preserve", "LLAMA_ARG_REASONING_PRESERVE"], None, THINKING),
    refused(&["no-reasoning-preserve"], None, THINKING),
    taken(&["skip-chat-parsing"]),
    refused(&["no-skip-chat-parsing"], None, "`sterna serve` parses tool calls"),
];

/// llama-completion's flags.
pub const RUN: &[Flag] = &[
    taken(&["no-conversation", "-no-cnv"]),
    refused(&["conversation", "-cnv"], None, TALKS),
    refused(&["single-turn", "-st"], None, PIPED),
    refused(&["system-prompt"], One, TALKS),
    refused(&["system-prompt-file", "-sysf"], One, TALKS),
    refused(&["chat-template"], One, TALKS),
    refused(&["chat-template-file", "LLAMA_ARG_CHAT_TEMPLATE_FILE"], One, TALKS),
    refused(&["interactive"], None, TALKS).short('i'),
    refused(&["interactive-first", "-if"], None, TALKS),
    refused(&["instruct", "-ins"], None, TALKS),
    refused(&["chatml", "-cml"], None, "`sterna chat --chat-template chatml` uses this template"),
    refused(&["embedding", "embeddings"], None, "`sterna embed` computes embeddings"),
    refused(&["in-prefix"], One, TALKS),
    refused(&["in-suffix"], One, TALKS),
    refused(&["in-prefix-bos"], None, TALKS),
    refused(&["print-token-count", "-ptc"], One, "the number of tokens is printed at the end"),
    refused(&["grp-attn-n", "-gan", "LLAMA_ARG_GRP_ATTN_N"], One, LONGER),
    refused(&["grp-attn-w", "-gaw", "LLAMA_ARG_GRP_ATTN_W"], One, LONGER),
];

/// llama-cli's flags, including those from before llama-completion was split off.
pub const CHAT: &[Flag] = &[
    taken(&["conversation"]),
    taken(&["interactive"]).short('i'),
    taken(&["interactive-first"]),
    taken(&["instruct"]),
    refused(&["chatml"], None, "--chat-template chatml selects this template"),
    taken(&["no-escape"]),
    refused(&["escape"], None, "messages have no escapes").short('e'),
    refused(&["no-conversation"], None, CONTINUES),
    refused(&["single-turn"], None, PIPED),
    refused(&["prompt"], One, PIPED).short('p'),
    refused(&["file"], One, PIPED).short('f'),
    refused(&["system-prompt-file"], One, "-sys \"$(cat FILE)\" passes the text"),
    refused(&["reverse-prompt"], One, CONTINUES).short('r'),
    refused(&["special"], None, CONTINUES),
    refused(&["ignore-eos"], None, CONTINUES),
    refused(&["parallel"], One, CONTINUES),
    refused(&["grammar"], One, CONTINUES),
    refused(&["grammar-file"], One, CONTINUES),
    refused(&["json-schema"], One, CONTINUES).short('j'),
    refused(&["json-schema-file"], One, CONTINUES),
    refused(&["in-prefix"], One, FRAME),
    refused(&["in-suffix"], One, FRAME),
    refused(&["in-prefix-bos"], None, FRAME),
    refused(&["chat-template-kwargs", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS"], One, THINKING),
    refused(&["server-base"], One, RUNS_ITSELF),
    refused(&["image", "audio", "video"], One, MEDIA),
    refused(&["output", "output-file"], One, "answers go to stdout; use `> FILE`").short('o'),
    taken(&["show-timings", "LLAMA_ARG_SHOW_TIMINGS"]),
    refused(&["no-show-timings"], None, "they go to stderr; 2>/dev/null drops them"),
    refused(&["log-prompts-dir"], One, "prompts are not stored"),
    refused(&["ctx-checkpoints", "swa-checkpoints", "-ctxcp", "LLAMA_ARG_CTX_CHECKPOINTS"], One, CACHE),
    by(&["cache-ram", "-cram", "LLAMA_ARG_CACHE_RAM"], One, unless_none),
    refused(&["gpt-oss-20b-default"], None, BY_NAME),
    refused(&["gpt-oss-120b-default"], None, BY_NAME),
    refused(&["vision-gemma-4b-default"], None, BY_NAME),
    refused(&["vision-gemma-12b-default"], None, BY_NAME),
];

/// Flags of speculative decoding, shared by all programs that generate text.
pub const SPECULATION: &[Flag] = &[
    refused(&["spec-draft-hf", "hf-repo-draft", "-hfd", "-hfrd", "LLAMA_ARG_SPEC_DRAFT_HF_REPO"], One, PULL),
    refused(&["spec-draft-ctx-size", "ctx-size-draft", "-cd", "LLAMA_ARG_SPEC_DRAFT_CTX_SIZE"], One, DRAFT),
    refused(
        &["spec-draft-replace", "spec-replace"],
        Two,
        "the draft model needs the vocabulary of the model",
    ),
    refused(&["spec-draft-threads", "threads-draft", "-td"], One, DRAFT),
    refused(&["spec-draft-threads-batch", "threads-batch-draft", "-tbd"], One, DRAFT),
    refused(&["spec-draft-cpu-mask", "cpu-mask-draft", "-Cd"], One, DRAFT),
    refused(&["spec-draft-cpu-range", "cpu-range-draft", "-Crd"], One, DRAFT),
    refused(&["spec-draft-cpu-strict", "cpu-strict-draft"], One, DRAFT),
    refused(&["spec-draft-prio", "prio-draft"], One, DRAFT),
    refused(&["spec-draft-poll", "poll-draft"], One, DRAFT),
    refused(&["spec-draft-cpu-mask-batch", "cpu-mask-batch-draft", "-Cbd"], One, DRAFT),
    refused(&["spec-draft-cpu-range-batch", "cpu-range-batch-draft", "-Crbd"], One, DRAFT),
    refused(&["spec-draft-cpu-strict-batch", "cpu-strict-batch-draft"], One, DRAFT),
    refused(&["spec-draft-prio-batch", "prio-batch-draft"], One, DRAFT),
    refused(&["spec-draft-poll-batch", "poll-batch-draft"], One, DRAFT),
    refused(&["spec-draft-override-tensor", "override-tensor-draft", "-otd"], One, DRAFT),
    refused(&["spec-draft-cpu-moe", "cpu-moe-draft", "-cmoed", "LLAMA_ARG_SPEC_DRAFT_CPU_MOE"], None, DRAFT),
    refused(
        &[
            "spec-draft-n-cpu-moe",
            "spec-draft-ncmoe",
            "n-cpu-moe-draft",
            "-ncmoed",
            "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE",
        ],
        One,
        DRAFT,
    ),
    refused(&["spec-synth-len", "LLAMA_ARG_SPEC_SYNTH_LEN"], One, MEASURED),
    refused(&["spec-synth-rates", "LLAMA_ARG_SPEC_SYNTH_RATES"], One, MEASURED),
    refused(
        &["spec-draft-p-split", "draft-p-split", "LLAMA_ARG_SPEC_DRAFT_P_SPLIT"],
        One,
        "a draft is a single sequence; leave it out",
    ),
    taken(&["spec-draft-backend-sampling", "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING"]),
    refused(&["no-spec-draft-backend-sampling"], None, DRAFT),
    refused(&["spec-draft-device", "device-draft", "-devd"], One, DRAFT),
    refused(&["spec-ngram-mod-n-min"], One, NGRAM),
    refused(&["spec-ngram-mod-n-max"], One, NGRAM),
    refused(&["spec-ngram-mod-n-match"], One, NGRAM),
    by(&["spec-ngram-simple-min-hits", "spec-ngram-min-hits"], One, unless_one),
    refused(&["spec-ngram-map-k-size-n"], One, NGRAM),
    refused(&["spec-ngram-map-k-size-m"], One, NGRAM),
    refused(&["spec-ngram-map-k-min-hits"], One, NGRAM),
    refused(&["spec-ngram-map-k4v-size-n"], One, NGRAM),
    refused(&["spec-ngram-map-k4v-size-m"], One, NGRAM),
    refused(&["spec-ngram-map-k4v-min-hits"], One, NGRAM),
    refused(&["lookup-cache-static", "-lcs"], One, NGRAM),
    refused(&["lookup-cache-dynamic", "-lcd"], One, NGRAM),
    refused(&["spec-default"], None, NGRAM),
];

/// llama-server's flags.
pub const SERVE: &[Flag] = &[
    taken(&["jinja"]),
    refused(&["no-jinja"], None, "templates are always Jinja"),
    taken(&["kv-unified", "-kvu", "LLAMA_ARG_KV_UNIFIED"]),
    refused(&["no-kv-unified", "-no-kvu"], None, SHARED),
    refused(&["kv-unified-per-slot", "LLAMA_ARG_KV_UNIFIED_PER_SLOT"], One, SHARED),
    taken(&["cont-batching", "-cb", "LLAMA_ARG_CONT_BATCHING"]),
    refused(&["no-cont-batching", "-nocb"], None, "requests always share steps"),
    taken(&["cache-prompt", "LLAMA_ARG_CACHE_PROMPT"]),
    by(&["cache-reuse", "LLAMA_ARG_CACHE_REUSE"], One, unless_none),
    by(&["cache-ram"], One, unless_none),
    refused(&["cache-idle-slots", "LLAMA_ARG_CACHE_IDLE_SLOTS"], None, CACHE),
    taken(&["no-cache-idle-slots"]),
    refused(&["ctx-checkpoints", "swa-checkpoints"], One, CACHE),
    refused(&["checkpoint-min-step", "-cms", "LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"], One, CACHE),
    refused(&["slot-prompt-similarity", "-sps"], One, CACHE),
    taken(&["no-context-shift"]),
    refused(&["context-shift"], None, LONGER),
    taken(&["props", "LLAMA_ARG_ENDPOINT_PROPS"]),
    taken(&["embedding", "embeddings", "LLAMA_ARG_EMBEDDINGS"]),
    refused(&["api-prefix", "LLAMA_ARG_API_PREFIX"], One, "let a proxy strip the prefix"),
    refused(&["reuse-port", "LLAMA_ARG_REUSE_PORT"], None, "only one server can listen on a port"),
    refused(
        &["threads-http", "LLAMA_ARG_THREADS_HTTP"],
        One,
        "threads are started per connection; --connections limits them",
    ),
    refused(
        &["sleep-idle-seconds"],
        One,
        "models of --models-dir are unloaded when others need the memory; leave it out",
    ),
    refused(&["path", "LLAMA_ARG_STATIC_PATH"], One, ONE_PAGE),
    taken(&["ui", "webui", "LLAMA_ARG_UI"]),
    refused(&["no-ui", "no-webui"], None, "the page cannot be switched off; a proxy can block it"),
    refused(&["ui-config", "webui-config", "LLAMA_ARG_UI_CONFIG"], One, ONE_PAGE),
    refused(&["ui-config-file", "webui-config-file", "LLAMA_ARG_UI_CONFIG_FILE"], One, ONE_PAGE),
    refused(&["ui-mcp-proxy", "webui-mcp-proxy", "LLAMA_ARG_UI_MCP_PROXY"], None, TOOLS),
    taken(&["no-ui-mcp-proxy", "no-webui-mcp-proxy"]),
    refused(&["tools", "LLAMA_ARG_TOOLS"], One, TOOLS),
    refused(&["tools-runtime", "LLAMA_ARG_TOOLS_RUNTIME"], One, TOOLS),
    refused(&["mcp-servers-config", "LLAMA_ARG_MCP_SERVERS_CONFIG"], One, TOOLS),
    refused(&["mcp-servers-json", "LLAMA_ARG_MCP_SERVERS_JSON"], One, TOOLS),
    refused(&["agent", "-ag", "LLAMA_ARG_AGENT"], None, TOOLS),
    taken(&["no-agent", "-no-ag"]),
    refused(&["cors-methods", "LLAMA_ARG_CORS_METHODS"], One, CORS),
    refused(&["cors-headers", "LLAMA_ARG_CORS_HEADERS"], One, CORS),
    refused(
        &["cors-credentials", "LLAMA_ARG_CORS_CREDENTIALS"],
        None,
        "requests send their key in a header; --cors-origins allows pages",
    ),
    taken(&["no-cors-credentials"]),
    refused(&["tags", "LLAMA_ARG_TAGS"], One, "use --alias to name the model"),
    refused(
        &["models-preset", "LLAMA_ARG_MODELS_PRESET"],
        One,
        "--models-dir and --models select the models; other flags apply to all of them",
    ),
    taken(&["models-autoload", "LLAMA_ARG_MODELS_AUTOLOAD"]),
    refused(&["no-models-autoload"], None, "a model is loaded on its first request"),
    refused(&["media-path"], One, MEDIA),
    refused(&["mtmd-batch-max-tokens", "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"], One, MEDIA),
    refused(&["chat-template-kwargs"], One, REQUEST),
    refused(&["reasoning-format"], One, REQUEST),
    refused(&["reasoning"], One, REQUEST),
    refused(&["reasoning-effort"], One, REQUEST),
    refused(&["reasoning-budget"], One, REQUEST),
    refused(&["reasoning-budget-message"], One, REQUEST),
    refused(&["reasoning-preserve"], None, REQUEST),
    refused(&["no-reasoning-preserve"], None, REQUEST),
    refused(&["skip-chat-parsing"], None, "/completion returns the text unparsed"),
    taken(&["no-skip-chat-parsing"]),
    refused(
        &["prefill-assistant", "LLAMA_ARG_PREFILL_ASSISTANT"],
        None,
        "set continue_final_message in the request",
    ),
    refused(&["no-prefill-assistant"], None, "set continue_final_message in the request"),
    refused(&["reverse-prompt"], One, REQUEST).short('r'),
    refused(&["special"], None, REQUEST),
    refused(&["ignore-eos"], None, REQUEST),
    refused(&["grammar"], One, REQUEST),
    refused(&["grammar-file"], One, REQUEST),
    refused(&["json-schema"], One, REQUEST).short('j'),
    refused(&["json-schema-file"], One, REQUEST),
    refused(&["spm-infill"], None, "/infill is not supported; send such a prompt to /completion"),
    refused(&["log-prompts-dir"], One, "prompts are not stored"),
    refused(&["system-prompt-file"], One, "send a system message in each request"),
    refused(&["embd-bge-small-en-default"], None, BY_NAME),
    refused(&["embd-e5-small-en-default"], None, BY_NAME),
    refused(&["embd-gte-small-default"], None, BY_NAME),
    refused(&["embd-gemma-default"], None, BY_NAME),
    refused(&["fim-qwen-1.5b-default"], None, BY_NAME),
    refused(&["fim-qwen-3b-default"], None, BY_NAME),
    refused(&["fim-qwen-7b-default"], None, BY_NAME),
    refused(&["fim-qwen-7b-spec"], None, BY_NAME),
    refused(&["fim-qwen-14b-spec"], None, BY_NAME),
    refused(&["fim-qwen-30b-default"], None, BY_NAME),
    refused(&["gpt-oss-20b-default"], None, BY_NAME),
    refused(&["gpt-oss-120b-default"], None, BY_NAME),
    refused(&["vision-gemma-4b-default"], None, BY_NAME),
    refused(&["vision-gemma-12b-default"], None, BY_NAME),
];

/// llama-perplexity's flags.
pub const PERPLEXITY: &[Flag] = &[
    taken(&["no-context-shift"]),
    refused(&["context-shift"], None, "chunks are as long as their context; -c sets it"),
    taken(&["kv-unified"]),
    taken(&["no-kv-unified"]),
    refused(&["kl-divergence"], None, "--kl-base FILE compares with the logits saved by --save-logits FILE"),
    refused(
        &["save-all-logits", "kl-divergence-base"],
        One,
        "--save-logits FILE saves them, and --kl-base FILE compares",
    ),
    refused(&["ppl-stride"], One, "the second half of each chunk is scored"),
    refused(&["ppl-output-type"], One, "one line is printed per chunk"),
    refused(&["hellaswag"], None, ANSWERS),
    refused(&["hellaswag-tasks"], One, ANSWERS),
    refused(&["winogrande"], None, ANSWERS),
    refused(&["winogrande-tasks"], One, ANSWERS),
    refused(&["multiple-choice"], None, ANSWERS),
    refused(&["multiple-choice-tasks"], One, ANSWERS),
];

/// llama-imatrix's flags.
pub const IMATRIX: &[Flag] = &[
    taken(&["no-context-shift"]),
    refused(&["context-shift"], None, "chunks are as long as their context; -c sets it"),
    taken(&["no-ppl"]),
    refused(&["ppl"], None, "`sterna perplexity` computes it"),
    by(&["output-format"], One, gguf),
    refused(&["in-file"], One, "matrices cannot be merged; put all texts into one file"),
    refused(&["output-frequency", "-ofreq"], One, "the file is written at the end"),
    refused(&["save-frequency"], One, "the file is written at the end"),
    refused(&["process-output"], None, "the output head has no entry"),
    refused(&["chunk", "from-chunk"], One, "remove the beginning from the text"),
    refused(&["show-statistics"], None, "`sterna inspect` shows the content of a file"),
];

/// llama-bench's flags.
pub const BENCH: &[Flag] = &[
    by(&["embeddings", "-embd"], Maybe, embeddings),
    refused(&["delay"], One, "tests run without a delay"),
    refused(&["output-err", "-oe"], One, "-o writes to stdout"),
    taken(&["progress"]),
    refused(&["fit-target"], One, "--gpu-layers auto keeps as many layers in VRAM as fit"),
    refused(&["fit-ctx"], One, "the context is as long as the tests need"),
];

/// llama-embedding's flags.
pub const EMBED: &[Flag] = &[
    refused(&["attention"], One, "the model's file specifies the attention mask"),
    refused(&["embd-separator"], One, "pass each text with -p, or as a line of -f"),
    refused(&["cls-separator"], One, "query and document are separated by a tab"),
    refused(&["parallel"], One, "texts are batched automatically"),
    taken(&["kv-unified"]),
    taken(&["no-kv-unified"]),
    taken(&["no-context-shift"]),
    refused(&["context-shift"], None, "--truncate cuts texts that are too long"),
    taken(&["embedding", "embeddings"]),
];

/// llama-batched-bench's flags.
pub const BATCHED_BENCH: &[Flag] = &[
    taken(&["kv-unified"]),
    taken(&["no-kv-unified"]),
    refused(&["ctx-size"], One, "the context is as long as the tests need").short('c'),
    refused(&["tg-separate", "-tgs"], None, "sequences decode together"),
];

/// llama-quantize's flags.
pub const QUANTIZE: &[Flag] = &[
    refused(&["override-kv"], One, EDIT),
    refused(&["keep-split"], None, "the output is one file; `sterna split` splits it"),
    refused(&["include-weights"], One, "an importance matrix applies to all tensors that it names"),
    refused(&["exclude-weights"], One, "an importance matrix applies to all tensors that it names"),
    refused(&["tensor-type-file"], One, "--tensor-type can be repeated"),
    refused(&["prune-layers"], One, "layers cannot be removed"),
    refused(&["max-buffer-size"], One, "only one tensor is in memory at a time; leave it out"),
];

/// llama-gguf-split's flags.
pub const SPLIT: &[Flag] = &[
    refused(&["split"], None, "`sterna split` always splits; leave it out"),
    refused(&["merge"], None, "use `sterna merge`"),
    refused(&["delete-splits"], None, "delete the parts with `rm`"),
];
