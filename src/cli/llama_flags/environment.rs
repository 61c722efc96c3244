//! Environment variables that llama.cpp's programs read, and the flags that they stand for.

use std::ffi::OsString;

use clap::Command;

use super::{Verdict, lacking, long_names};

/// The subcommands whose programs read the environment.
const READERS: &[&str] = &["run", "chat", "serve", "perplexity", "imatrix", "tokenize", "batched-bench"];

/// What the environment says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The command line, with the flags of the environment before the user's own, which override them.
    pub args: Vec<OsString>,
    /// The variables that count.
    pub counted: Vec<&'static str>,
    /// Those that do not count, each with the reason.
    pub ignored: Vec<String>,
}

impl Environment {
    /// What the environment says to a command line. `command` has the subcommands without llama.cpp's flags.
    pub fn read(command: &Command, args: Vec<OsString>, get: impl Fn(&str) -> Option<OsString>) -> Self {
        let name = args.get(1).and_then(|name| name.to_str()).filter(|name| READERS.contains(name));
        let Some(subcommand) = name.and_then(|name| command.find_subcommand(name)) else {
            return Self { args, ..Self::default() };
        };
        let is_server = subcommand.get_name() == "serve";
        let mut env = Self { args, ..Self::default() };
        let typed = env.args.split_off(2);
        // A model of the hub that is typed goes before a file of the environment; both at once is an error.
        let is_of_hub = |arg: &OsString| arg.to_str().is_some_and(|arg| arg.starts_with("--hf-repo"));
        let has_model = typed.iter().any(is_of_hub);
        // That a server answers several requests at a time says nothing of texts.
        let is_meant = |flag: &str| (flag != "model" || !has_model) && (flag != "parallel" || is_server);
        for (variable, flag) in VARIABLES.iter().filter(|(_, flag)| is_meant(flag)) {
            let Some((flag, value)) = said(subcommand, variable, flag, &get) else { continue };
            let other = lacking(subcommand).into_iter().find(|other| other.names.contains(&&*flag));
            let instead = other.and_then(|other| match other.verdict {
                Verdict::Taken => None,
                Verdict::Refused(instead) => Some(instead),
                Verdict::By(judge) => judge(value.as_ref().and_then(|value| value.to_str()).unwrap_or("")),
            });
            if let Some(instead) = instead.filter(|_| !is_server) {
                env.ignored.push(format!("{variable} does not count: --{flag} is not supported: {instead}"));
                continue;
            }
            let mut arg = OsString::from(format!("--{flag}"));
            if let Some(value) = value {
                arg.push("=");
                arg.push(value);
            }
            env.args.push(arg);
            env.counted.push(variable);
        }
        env.args.extend(typed);
        env
    }
}

/// The flag that a variable stands for in a subcommand, with its value if it takes one. A switch that is off
/// is the flag that says so. `None` where the variable is not set, or the subcommand has no such flag.
fn said(
    subcommand: &Command,
    variable: &str,
    flag: &str,
    get: impl Fn(&str) -> Option<OsString>,
) -> Option<(String, Option<OsString>)> {
    let one_of = |words: [&str; 4], value: &OsString| words.iter().any(|word| value == word);
    let is_on = |value: &OsString| one_of(["1", "true", "on", "enabled"], value);
    let value = get(variable).filter(|value| !value.is_empty());
    match takes_value(subcommand, flag)? {
        true => Some((flag.to_owned(), Some(value?))),
        false => {
            let off = format!("no-{flag}");
            let is_off = |value: &OsString| one_of(["0", "false", "off", "disabled"], value);
            let says_no = get(&variable.replacen("_ARG_", "_ARG_NO_", 1)).is_some_and(|value| is_on(&value));
            match value {
                _ if says_no => takes_value(subcommand, &off).map(|_| (off, None)),
                Some(value) if is_on(&value) => Some((flag.to_owned(), None)),
                Some(value) if is_off(&value) => takes_value(subcommand, &off).map(|_| (off, None)),
                // Parsing refuses it.
                value => Some((flag.to_owned(), Some(value?))),
            }
        }
    }
}

/// Whether a value follows a flag; `None` if a subcommand and its program do not have it.
fn takes_value(subcommand: &Command, flag: &str) -> Option<bool> {
    let ours = subcommand.get_arguments().find(|arg| long_names(arg).iter().any(|name| name == flag));
    let other = || lacking(subcommand).into_iter().find(|other| other.names.contains(&flag));
    let arg = ours.cloned().or_else(|| other().map(super::Flag::arg))?;
    Some(arg.get_action().takes_values())
}

/// The variables, and the flags without dashes.
const VARIABLES: &[(&str, &str)] = &[
    ("LLAMA_API_KEY", "api-key"),
    ("LLAMA_ARG_AGENT", "agent"),
    ("LLAMA_ARG_ALIAS", "alias"),
    ("LLAMA_ARG_API_KEY_FILE", "api-key-file"),
    ("LLAMA_ARG_API_PREFIX", "api-prefix"),
    ("LLAMA_ARG_BACKEND_SAMPLING", "backend-sampling"),
    ("LLAMA_ARG_BATCH", "batch-size"),
    ("LLAMA_ARG_CACHE_IDLE_SLOTS", "cache-idle-slots"),
    ("LLAMA_ARG_CACHE_PROMPT", "cache-prompt"),
    ("LLAMA_ARG_CACHE_RAM", "cache-ram"),
    ("LLAMA_ARG_CACHE_REUSE", "cache-reuse"),
    ("LLAMA_ARG_CACHE_TYPE_K", "cache-type-k"),
    ("LLAMA_ARG_CACHE_TYPE_V", "cache-type-v"),
    ("LLAMA_ARG_CHAT_TEMPLATE", "chat-template"),
    ("LLAMA_ARG_CHAT_TEMPLATE_FILE", "chat-template-file"),
    ("LLAMA_ARG_CHAT_TEMPLATE_KWARGS", "chat-template-kwargs"),
    ("LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT", "checkpoint-min-step"),
    ("LLAMA_ARG_CONTEXT_SHIFT", "context-shift"),
    ("LLAMA_ARG_CONT_BATCHING", "cont-batching"),
    ("LLAMA_ARG_CORS_CREDENTIALS", "cors-credentials"),
    ("LLAMA_ARG_CORS_HEADERS", "cors-headers"),
    ("LLAMA_ARG_CORS_METHODS", "cors-methods"),
    ("LLAMA_ARG_CORS_ORIGINS", "cors-origins"),
    ("LLAMA_ARG_CPU_MOE", "cpu-moe"),
    ("LLAMA_ARG_CTX_CHECKPOINTS", "ctx-checkpoints"),
    ("LLAMA_ARG_CTX_SIZE", "ctx-size"),
    ("LLAMA_ARG_DEFRAG_THOLD", "defrag-thold"),
    ("LLAMA_ARG_DEVICE", "device"),
    ("LLAMA_ARG_DOCKER_REPO", "docker-repo"),
    ("LLAMA_ARG_DRAFT_MAX", "draft"),
    ("LLAMA_ARG_DRAFT_MIN", "draft-min"),
    ("LLAMA_ARG_EMBEDDINGS", "embedding"),
    ("LLAMA_ARG_ENDPOINT_METRICS", "metrics"),
    ("LLAMA_ARG_ENDPOINT_PROPS", "props"),
    ("LLAMA_ARG_ENDPOINT_SLOTS", "slots"),
    ("LLAMA_ARG_FIT", "fit"),
    ("LLAMA_ARG_FIT_CTX", "fit-ctx"),
    ("LLAMA_ARG_FIT_TARGET", "fit-target"),
    ("LLAMA_ARG_FLASH_ATTN", "flash-attn"),
    ("LLAMA_ARG_FREQUENCY_PENALTY", "frequency-penalty"),
    ("LLAMA_ARG_GRP_ATTN_N", "grp-attn-n"),
    ("LLAMA_ARG_GRP_ATTN_W", "grp-attn-w"),
    ("LLAMA_ARG_HOST", "host"),
    ("LLAMA_ARG_IMAGE_MAX_TOKENS", "image-max-tokens"),
    ("LLAMA_ARG_IMAGE_MIN_TOKENS", "image-min-tokens"),
    ("LLAMA_ARG_JINJA", "jinja"),
    ("LLAMA_ARG_KV_OFFLOAD", "kv-offload"),
    ("LLAMA_ARG_KV_UNIFIED", "kv-unified"),
    ("LLAMA_ARG_KV_UNIFIED_PER_SLOT", "kv-unified-per-slot"),
    ("LLAMA_ARG_LAZY_MODE", "lazy-mode"),
    ("LLAMA_ARG_LOAD_MODE", "load-mode"),
    ("LLAMA_ARG_LOG_COLORS", "log-colors"),
    ("LLAMA_ARG_LOG_FILE", "log-file"),
    ("LLAMA_ARG_LOG_JSONL", "log-jsonl"),
    ("LLAMA_ARG_LOG_PREFIX", "log-prefix"),
    ("LLAMA_ARG_LOG_TIMESTAMPS", "log-timestamps"),
    ("LLAMA_ARG_LOG_VERBOSITY", "verbosity"),
    ("LLAMA_ARG_MAIN_GPU", "main-gpu"),
    ("LLAMA_ARG_MCP_SERVERS_CONFIG", "mcp-servers-config"),
    ("LLAMA_ARG_MCP_SERVERS_JSON", "mcp-servers-json"),
    ("LLAMA_ARG_MIN_P", "min-p"),
    ("LLAMA_ARG_MMPROJ", "mmproj"),
    ("LLAMA_ARG_MMPROJ_AUTO", "mmproj-auto"),
    ("LLAMA_ARG_MMPROJ_OFFLOAD", "mmproj-offload"),
    ("LLAMA_ARG_MMPROJ_URL", "mmproj-url"),
    ("LLAMA_ARG_MODEL", "model"),
    ("LLAMA_ARG_MODELS_AUTOLOAD", "models-autoload"),
    ("LLAMA_ARG_MODELS_DIR", "models-dir"),
    ("LLAMA_ARG_MODELS_MAX", "models-max"),
    ("LLAMA_ARG_MODELS_PRESET", "models-preset"),
    ("LLAMA_ARG_MODEL_URL", "model-url"),
    ("LLAMA_ARG_MTMD_BATCH_MAX_TOKENS", "mtmd-batch-max-tokens"),
    ("LLAMA_ARG_NO_HOST", "no-host"),
    ("LLAMA_ARG_NUMA", "numa"),
    ("LLAMA_ARG_N_CPU_FFN", "n-cpu-ffn"),
    ("LLAMA_ARG_N_CPU_MOE", "n-cpu-moe"),
    ("LLAMA_ARG_N_GPU_LAYERS", "gpu-layers"),
    ("LLAMA_ARG_N_GPU_LAYERS_DRAFT", "spec-draft-ngl"),
    ("LLAMA_ARG_N_PARALLEL", "parallel"),
    ("LLAMA_ARG_N_PREDICT", "n-predict"),
    ("LLAMA_ARG_OVERRIDE_TENSOR", "override-tensor"),
    ("LLAMA_ARG_PERF", "perf"),
    ("LLAMA_ARG_POOLING", "pooling"),
    ("LLAMA_ARG_PORT", "port"),
    ("LLAMA_ARG_PREFILL_ASSISTANT", "prefill-assistant"),
    ("LLAMA_ARG_PRESENCE_PENALTY", "presence-penalty"),
    ("LLAMA_ARG_REASONING", "reasoning"),
    ("LLAMA_ARG_REASONING_EFFORT", "reasoning-effort"),
    ("LLAMA_ARG_REASONING_PRESERVE", "reasoning-preserve"),
    ("LLAMA_ARG_REPACK", "repack"),
    ("LLAMA_ARG_REPEAT_PENALTY", "repeat-penalty"),
    ("LLAMA_ARG_RERANKING", "reranking"),
    ("LLAMA_ARG_REUSE_PORT", "reuse-port"),
    ("LLAMA_ARG_ROPE_FREQ_BASE", "rope-freq-base"),
    ("LLAMA_ARG_ROPE_FREQ_SCALE", "rope-freq-scale"),
    ("LLAMA_ARG_ROPE_SCALE", "rope-scale"),
    ("LLAMA_ARG_ROPE_SCALING_TYPE", "rope-scaling"),
    ("LLAMA_ARG_RPC", "rpc"),
    ("LLAMA_ARG_SHOW_TIMINGS", "show-timings"),
    ("LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING", "spec-draft-backend-sampling"),
    ("LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", "spec-draft-type-k"),
    ("LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", "spec-draft-type-v"),
    ("LLAMA_ARG_SPEC_DRAFT_CPU_MOE", "spec-draft-cpu-moe"),
    ("LLAMA_ARG_SPEC_DRAFT_HF_REPO", "spec-draft-hf"),
    ("LLAMA_ARG_SPEC_DRAFT_MODEL", "model-draft"),
    ("LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE", "spec-draft-n-cpu-moe"),
    ("LLAMA_ARG_SPEC_DRAFT_N_MAX", "spec-draft-n-max"),
    ("LLAMA_ARG_SPEC_DRAFT_N_MIN", "spec-draft-n-min"),
    ("LLAMA_ARG_SPEC_DRAFT_P_MIN", "spec-draft-p-min"),
    ("LLAMA_ARG_SPEC_DRAFT_P_SPLIT", "spec-draft-p-split"),
    ("LLAMA_ARG_SPEC_SYNTH_LEN", "spec-synth-len"),
    ("LLAMA_ARG_SPEC_SYNTH_RATES", "spec-synth-rates"),
    ("LLAMA_ARG_SPEC_TYPE", "spec-type"),
    ("LLAMA_ARG_SPLIT_MODE", "split-mode"),
    ("LLAMA_ARG_SSE_PING_INTERVAL", "sse-ping-interval"),
    ("LLAMA_ARG_SSL_CERT_FILE", "ssl-cert-file"),
    ("LLAMA_ARG_SSL_KEY_FILE", "ssl-key-file"),
    ("LLAMA_ARG_STATIC_PATH", "path"),
    ("LLAMA_ARG_SWA_FULL", "swa-full"),
    ("LLAMA_ARG_TAGS", "tags"),
    ("LLAMA_ARG_TEMPERATURE", "temp"),
    ("LLAMA_ARG_TENSOR_SPLIT", "tensor-split"),
    ("LLAMA_ARG_THINK", "reasoning-format"),
    ("LLAMA_ARG_THINK_BUDGET", "reasoning-budget"),
    ("LLAMA_ARG_THINK_BUDGET_MESSAGE", "reasoning-budget-message"),
    ("LLAMA_ARG_THREADS", "threads"),
    ("LLAMA_ARG_THREADS_HTTP", "threads-http"),
    ("LLAMA_ARG_TIMEOUT", "timeout"),
    ("LLAMA_ARG_TOOLS", "tools"),
    ("LLAMA_ARG_TOOLS_RUNTIME", "tools-runtime"),
    ("LLAMA_ARG_TOP_K", "top-k"),
    ("LLAMA_ARG_TOP_P", "top-p"),
    ("LLAMA_ARG_UBATCH", "batch-size"),
    ("LLAMA_ARG_UI", "ui"),
    ("LLAMA_ARG_UI_CONFIG", "ui-config"),
    ("LLAMA_ARG_UI_CONFIG_FILE", "ui-config-file"),
    ("LLAMA_ARG_UI_MCP_PROXY", "ui-mcp-proxy"),
    ("LLAMA_ARG_VIDEO_FFMPEG_DIR", "video-ffmpeg-dir"),
    ("LLAMA_ARG_VIDEO_FPS", "video-fps"),
    ("LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL", "video-timestamp-interval"),
    ("LLAMA_ARG_YARN_ATTN_FACTOR", "yarn-attn-factor"),
    ("LLAMA_ARG_YARN_BETA_FAST", "yarn-beta-fast"),
    ("LLAMA_ARG_YARN_BETA_SLOW", "yarn-beta-slow"),
    ("LLAMA_ARG_YARN_EXT_FACTOR", "yarn-ext-factor"),
    ("LLAMA_ARG_YARN_ORIG_CTX", "yarn-orig-ctx"),
    // Of earlier versions.
    ("LLAMA_ARG_MLOCK", "mlock"),
    ("LLAMA_ARG_MODEL_DRAFT", "model-draft"),
    ("LLAMA_ARG_NO_MMAP", "no-mmap"),
    ("LLAMA_ARG_SEED", "seed"),
    ("LLAMA_ARG_SLOT_SAVE_PATH", "slot-save-path"),
    ("LLAMA_ARG_THREADS_BATCH", "threads-batch"),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::super::Cli;
    use super::*;

    fn args(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    fn read(typed: &[&str], variables: &[(&str, &str)]) -> Environment {
        let get =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        Environment::read(&Cli::command(), args(typed), get)
    }

    #[test]
    fn every_variable_names_a_flag_of_a_subcommand() {
        let cli = Cli::command();
        for (variable, flag) in VARIABLES {
            let has =
                |name: &&str| cli.find_subcommand(name).is_some_and(|sub| takes_value(sub, flag).is_some());
            assert!(!cfg!(feature = "serve") || READERS.iter().any(has), "{variable}: {flag}");
        }
    }

    #[test]
    #[cfg(feature = "serve")]
    fn the_environment_stands_before_what_is_typed() {
        let variables = [
            ("LLAMA_ARG_PORT", "9000"),
            ("LLAMA_ARG_ENDPOINT_METRICS", "1"),
            ("LLAMA_ARG_NO_ENDPOINT_SLOTS", "0"),
            ("LLAMA_ARG_HOST", ""),
        ];
        let env = read(&["sterna", "serve", "--port", "1"], &variables);
        assert_eq!(env.args, args(&["sterna", "serve", "--metrics", "--port=9000", "--port", "1"]));
        assert_eq!(env.counted, ["LLAMA_ARG_ENDPOINT_METRICS", "LLAMA_ARG_PORT"]);
        // A program that reads none.
        let bench = read(&["sterna", "bench", "-p", "serve"], &[("LLAMA_ARG_MODEL", "a")]);
        assert_eq!(bench.args, args(&["sterna", "bench", "-p", "serve"]));
    }

    #[test]
    fn each_subcommand_reads_what_it_has() {
        let variables = [
            ("LLAMA_ARG_MODEL", "a.gguf"),
            ("LLAMA_ARG_CTX_SIZE", "16"),
            ("LLAMA_ARG_N_PARALLEL", "4"),
            ("LLAMA_ARG_MAIN_GPU", "1"),
            ("LLAMA_ARG_PORT", "1"),
            ("LLAMA_ARG_KV_OFFLOAD", "off"),
        ];
        let run = read(&["sterna", "run"], &variables);
        assert_eq!(run.args, args(&["sterna", "run", "--ctx-size=16", "--model=a.gguf"]));
        assert_eq!(run.counted, ["LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_MODEL"]);
        assert_eq!(run.ignored.len(), 2, "{:?}", run.ignored);
        assert!(
            run.ignored
                .iter()
                .any(|said| said.starts_with("LLAMA_ARG_MAIN_GPU") && said.contains("--device"))
        );
        assert!(run.ignored.iter().any(|said| said.contains("--no-kv-offload is not supported")));
        // A model of the hub that is typed is the model.
        let hub = read(&["sterna", "run", "--hf-repo", "a/b"], &variables[..1]);
        assert_eq!(hub.args, args(&["sterna", "run", "--hf-repo", "a/b"]));
    }
}
