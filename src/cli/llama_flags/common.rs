//! Flags of all llama.cpp programs.

use super::Value::{Maybe, None, One, Two};
use super::{Flag, Verdict, by, flag, refused, taken};

// Hints that several flags share.
const SEES: &str = "`sterna run`, `sterna chat` and `sterna serve` read images";
pub const TEXT: &str = "only text models are supported";
const DOWNLOAD: &str = "-hf downloads from the Hugging Face hub; from elsewhere, download the file first";
const WHOLE: &str = "the whole model runs on one backend; --backend selects it";
const PLACE: &str = "taskset pins a program to CPUs";
const NICE: &str = "nice sets the priority of a program";
const POLL: &str = "the wait mode of threads is fixed; leave it out";
pub const ADAPTER: &str = "merge the adapter into the model's file";
const STEERING: &str = "only subcommands that run a model have control vectors; leave it out";
const SAMPLERS: &str = "supported are --temp, --top-k, --top-p, --min-p, --typical and penalties";
const SILENCE: &str = "the log goes to stderr; 2>/dev/null drops it";
const MORE: &str = "`run`, `chat` and `serve` print more with -v; 2>/dev/null drops all of it";
const LOG: &str = "the log format cannot be chosen here; `sterna serve --log-format json` writes JSON";
const FIXED: &str = "the context length follows from the input; leave it out";
const NO_TEXT: &str = "this command generates no text; `sterna run` does";
const NO_CARD: &str = "this command runs on the CPU; leave it out";
pub const SCALING: &str = "write it into the file: `sterna edit IN OUT --set A.rope.scaling.type=yarn --set \
                       A.rope.scaling.factor=f32:4 --set A.rope.scaling.original_context_length=u32:N`, with \
                       the file's architecture for A";
const BASE: &str = "write it into the file: `sterna edit IN OUT --set A.rope.freq_base=f32:N`, with the \
                    file's architecture for A";
const DRAFT_CACHE: &str = "the KV cache of a draft model is always f16; leave it out";
/// For flags of speculative decoding.
pub const DRAFT: &str = "a draft model uses the settings of the model; leave it out";
/// For flags that extend a text beyond its context.
pub const LONGER: &str = "generation stops when the context is full; -c makes it larger";
/// For flags that override metadata.
pub const EDIT: &str = "`sterna edit IN OUT --set KEY=VALUE` writes it into a file";

/// Accepts zero, which switches the sampler off.
fn sampler(n: &str) -> Option<&'static str> {
    (n.parse::<f64>() != Ok(0.0)).then_some(SAMPLERS)
}

/// The same for samplers that are also off below zero.
fn sampler_above_zero(n: &str) -> Option<&'static str> {
    (!n.parse::<f64>().is_ok_and(|n| n <= 0.0)).then_some(SAMPLERS)
}

fn on_host(switch: &str) -> Option<&'static str> {
    (switch != "0").then_some(WHOLE)
}

fn no_offload(switch: &str) -> Option<&'static str> {
    (switch != "0").then_some("--op-offload-min-batch off computes on the CPU")
}

fn colour(when: &str) -> Option<&'static str> {
    (!["off", "auto", "0", "false", "disabled"].contains(&when)).then_some("the log has no colors")
}

/// The flags. A subcommand's own flag of the same name takes precedence.
pub const FLAGS: &[Flag] = &[
    // Flags that print something and exit.
    refused(&["usage"], None, "--help shows the flags"),
    refused(&["version"], None, "`sterna --version` prints it"),
    refused(&["cache-list", "-cl"], None, "`sterna list` shows the cache"),
    refused(&["completion-bash"], None, "`sterna completions bash` writes them"),
    refused(&["list-devices"], None, "`sterna devices` lists them"),
    // Threads.
    refused(&["threads"], One, "this command has no thread count; leave it out").short('t'),
    refused(&["threads-batch", "-tb", "LLAMA_ARG_THREADS_BATCH"], One, "-t sets the threads of prompts too"),
    refused(&["cpu-mask"], One, PLACE).short('C'),
    refused(&["cpu-range", "-Cr"], One, PLACE),
    refused(&["cpu-strict"], One, PLACE),
    refused(&["cpu-mask-batch", "-Cb"], One, PLACE),
    refused(&["cpu-range-batch", "-Crb"], One, PLACE),
    refused(&["cpu-strict-batch"], One, PLACE),
    refused(&["prio"], One, NICE),
    refused(&["prio-batch"], One, NICE),
    refused(&["poll"], One, POLL),
    refused(&["poll-batch"], One, POLL),
    refused(&["numa"], One, "this command has no thread settings; leave it out"),
    // Context and batches.
    refused(&["ctx-size"], One, FIXED).short('c'),
    refused(&["batch-size", "ubatch-size"], One, "this command chooses its batch size; leave it out")
        .short('b'),
    refused(&["parallel"], One, "this command runs sequences one by one; leave it out"),
    refused(&["keep"], One, LONGER),
    refused(&["fit"], Maybe, FIXED),
    refused(&["fit-target"], One, FIXED),
    refused(&["fit-ctx"], One, FIXED),
    // The KV cache.
    refused(&["cache-type-k"], One, "this command keeps it as f32 or has none; leave it out"),
    refused(&["cache-type-v"], One, "this command keeps it as f32 or has none; leave it out"),
    taken(&["swa-full"]),
    refused(&["memory-f32"], None, "--kv-cache-type f32 does this"),
    flag(&["flash-attn", "-fa", "LLAMA_ARG_FLASH_ATTN"], Maybe, Verdict::Taken),
    flag(&["defrag-thold", "-dt", "LLAMA_ARG_DEFRAG_THOLD"], One, Verdict::Taken),
    taken(&["kv-offload", "-kvo", "LLAMA_ARG_KV_OFFLOAD"]),
    by(&["no-kv-offload", "-nkvo"], Maybe, on_host),
    // Placement of the model.
    refused(&["main-gpu", "-mg", "LLAMA_ARG_MAIN_GPU"], One, "--device selects the GPU"),
    refused(&["device"], One, NO_CARD),
    refused(&["gpu-layers", "n-gpu-layers"], One, NO_CARD),
    refused(&["split-mode"], One, NO_CARD),
    refused(&["tensor-split"], One, NO_CARD),
    refused(&["override-tensor"], One, NO_CARD),
    refused(&["cpu-moe"], None, NO_CARD),
    refused(&["n-cpu-moe"], One, NO_CARD),
    refused(
        &["n-cpu-ffn", "-ncffn", "LLAMA_ARG_N_CPU_FFN"],
        One,
        "-ot 'blk\\.(0|1)\\.ffn_=CPU' does the same with tensor names",
    ),
    taken(&["op-offload"]),
    by(&["no-op-offload", "-nopo"], Maybe, no_offload),
    refused(&["repack", "LLAMA_ARG_REPACK"], Maybe, "weights are used in the file's layout; leave it out"),
    taken(&["no-repack", "-nr"]),
    refused(
        &["no-host", "LLAMA_ARG_NO_HOST"],
        Maybe,
        "--no-mmap reads weights into memory instead of mapping them",
    ),
    refused(&["rpc", "-rpc", "LLAMA_ARG_RPC"], One, "a model runs on one machine"),
    refused(&["lazy-mode", "-lzm", "LLAMA_ARG_LAZY_MODE"], One, "--load-mode selects how weights are loaded"),
    refused(&["direct-io", "-dio", "LLAMA_ARG_DIO"], None, "--load-mode selects how weights are loaded"),
    taken(&["no-direct-io", "-ndio"]),
    refused(&["check-tensors"], None, "`sterna verify` compares files of the hub with their checksums"),
    // Selection of the model.
    refused(&["model-url", "-mu", "LLAMA_ARG_MODEL_URL"], One, DOWNLOAD),
    refused(&["docker-repo", "-dr", "LLAMA_ARG_DOCKER_REPO"], One, DOWNLOAD),
    refused(&["override-kv"], One, EDIT),
    refused(&["lora"], One, ADAPTER),
    refused(&["lora-scaled"], One, ADAPTER),
    refused(&["control-vector"], One, STEERING),
    refused(&["control-vector-scaled"], One, STEERING),
    refused(&["control-vector-layer-range"], Two, STEERING),
    refused(
        &["model-draft", "spec-draft-model", "-md", "LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"],
        One,
        "`sterna run`, `chat` and `serve` draft; leave it out",
    ),
    refused(
        &["spec-draft-type-k", "cache-type-k-draft", "-ctkd", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"],
        One,
        DRAFT_CACHE,
    ),
    refused(
        &["spec-draft-type-v", "cache-type-v-draft", "-ctvd", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"],
        One,
        DRAFT_CACHE,
    ),
    refused(&["mmproj"], One, SEES),
    refused(&["mmproj-url", "-mmu", "LLAMA_ARG_MMPROJ_URL"], One, "download the file, and use --mmproj FILE"),
    taken(&["mmproj-auto", "LLAMA_ARG_MMPROJ_AUTO"]),
    taken(&["no-mmproj", "no-mmproj-auto"]),
    taken(&["mmproj-offload", "LLAMA_ARG_MMPROJ_OFFLOAD"]),
    taken(&["no-mmproj-offload"]),
    refused(&["image-min-tokens"], One, SEES),
    refused(&["image-max-tokens"], One, SEES),
    refused(&["video-fps", "LLAMA_ARG_VIDEO_FPS"], One, TEXT),
    refused(&["video-timestamp-interval", "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL"], One, TEXT),
    refused(&["video-ffmpeg-dir", "LLAMA_ARG_VIDEO_FFMPEG_DIR"], One, TEXT),
    // Position encoding.
    refused(&["rope-scaling", "LLAMA_ARG_ROPE_SCALING_TYPE"], One, SCALING),
    refused(&["rope-scale", "LLAMA_ARG_ROPE_SCALE"], One, SCALING),
    refused(&["rope-freq-base", "LLAMA_ARG_ROPE_FREQ_BASE"], One, BASE),
    refused(&["rope-freq-scale", "LLAMA_ARG_ROPE_FREQ_SCALE"], One, SCALING),
    refused(&["yarn-orig-ctx", "LLAMA_ARG_YARN_ORIG_CTX"], One, SCALING),
    refused(&["yarn-ext-factor", "LLAMA_ARG_YARN_EXT_FACTOR"], One, SCALING),
    refused(&["yarn-attn-factor", "LLAMA_ARG_YARN_ATTN_FACTOR"], One, SCALING),
    refused(&["yarn-beta-slow", "LLAMA_ARG_YARN_BETA_SLOW"], One, SCALING),
    refused(&["yarn-beta-fast", "LLAMA_ARG_YARN_BETA_FAST"], One, SCALING),
    // Generated text and prompt.
    refused(&["prompt"], One, "this command reads no prompt").short('p'),
    refused(&["file"], One, "this command reads no text").short('f'),
    refused(&["binary-file", "-bf"], One, "prompts are UTF-8 text; use -f"),
    taken(&["escape"]).short('e'),
    taken(&["no-escape"]),
    refused(&["n-predict", "predict"], One, NO_TEXT).short('n'),
    refused(&["ignore-eos"], None, NO_TEXT),
    refused(&["grammar"], One, NO_TEXT),
    refused(&["grammar-file"], One, NO_TEXT),
    refused(&["json-schema"], One, NO_TEXT).short('j'),
    refused(&["json-schema-file"], One, NO_TEXT),
    // Sampling.
    refused(&["seed"], One, NO_TEXT).short('s'),
    refused(&["temp", "temperature"], One, NO_TEXT),
    refused(&["top-k"], One, NO_TEXT),
    refused(&["top-p"], One, NO_TEXT),
    refused(&["min-p"], One, NO_TEXT),
    refused(&["typical", "typical-p"], One, NO_TEXT),
    refused(&["repeat-last-n"], One, NO_TEXT),
    refused(&["repeat-penalty"], One, NO_TEXT),
    refused(&["presence-penalty"], One, NO_TEXT),
    refused(&["frequency-penalty"], One, NO_TEXT),
    refused(&["logit-bias"], One, NO_TEXT).short('l'),
    taken(&["backend-sampling", "-bs", "LLAMA_ARG_BACKEND_SAMPLING"]),
    refused(&["samplers"], One, SAMPLERS),
    refused(&["sampling-seq", "sampler-seq"], One, SAMPLERS),
    by(&["top-nsigma", "top-n-sigma"], One, sampler_above_zero),
    by(&["xtc-probability"], One, sampler),
    refused(&["xtc-threshold"], One, SAMPLERS),
    by(&["dry-multiplier"], One, sampler),
    refused(&["dry-base"], One, SAMPLERS),
    refused(&["dry-allowed-length"], One, SAMPLERS),
    refused(&["dry-penalty-last-n"], One, SAMPLERS),
    refused(&["dry-sequence-breaker"], One, SAMPLERS),
    refused(&["adaptive-target"], One, SAMPLERS),
    refused(&["adaptive-decay"], One, SAMPLERS),
    by(&["dynatemp-range"], One, sampler),
    refused(&["dynatemp-exp"], One, SAMPLERS),
    by(&["tfs"], One, |z| (z.parse::<f64>() != Ok(1.0)).then_some(SAMPLERS)),
    refused(&["penalize-nl"], None, SAMPLERS),
    taken(&["no-penalize-nl"]),
    by(&["mirostat"], One, sampler),
    refused(&["mirostat-lr"], One, SAMPLERS),
    refused(&["mirostat-ent"], One, SAMPLERS),
    // Logs and statistics.
    taken(&["perf", "LLAMA_ARG_PERF"]),
    refused(&["no-perf"], None, SILENCE),
    taken(&["warmup"]),
    taken(&["no-warmup"]),
    refused(&["log-disable"], None, SILENCE),
    refused(&["log-file", "LLAMA_ARG_LOG_FILE"], One, "the log goes to stderr; 2>FILE writes it to a file"),
    refused(&["log-jsonl", "LLAMA_ARG_LOG_JSONL"], None, LOG),
    taken(&["no-log-jsonl"]),
    by(&["log-colors", "LLAMA_ARG_LOG_COLORS"], Maybe, colour),
    refused(&["log-prefix", "LLAMA_ARG_LOG_PREFIX"], None, LOG),
    refused(&["no-log-prefix"], None, LOG),
    refused(&["log-timestamps", "LLAMA_ARG_LOG_TIMESTAMPS"], None, LOG),
    refused(&["no-log-timestamps"], None, LOG),
    refused(&["verbose"], None, MORE).short('v'),
    refused(&["log-verbose"], None, MORE),
    refused(&["verbosity", "log-verbosity", "-lv", "LLAMA_ARG_LOG_VERBOSITY"], One, MORE),
];
