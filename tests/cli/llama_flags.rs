//! The flags of llama.cpp's programs, from its source in llama-cpp-python 0.3.36: each works, or is refused
//! with what to use instead. The lists hold names, and after `=` the arguments that the test passes.
#![cfg(feature = "cli")]

use std::process::Output;

use clap::error::ErrorKind;
use sterna::cli::LineParser;

use super::program::{command, golden};

/// Flags of all programs.
const COMMON: &str = "\
    --version; -cl --cache-list; --completion-bash; -t --threads = 2; -tb --threads-batch = 1; \
    -C --cpu-mask = 1; -Cr --cpu-range = 1; --cpu-strict = 1; --prio = 1; --poll = 1; \
    -Cb --cpu-mask-batch = 1; -Crb --cpu-range-batch = 1; --cpu-strict-batch = 1; --prio-batch = 1; \
    --poll-batch = 1; -c --ctx-size = 64; -n --predict --n-predict = 1; -b --batch-size = 1; \
    -ub --ubatch-size = 1; --keep = 1; --swa-full; -fa --flash-attn = on; -p --prompt = 1; --perf --no-perf; \
    -f --file = x; -bf --binary-file = 1; -e --escape --no-escape; --samplers = 1; -s --seed = 1; \
    --sampler-seq --sampling-seq = 1; --ignore-eos; --temp --temperature = 1; --top-k = 4; --top-p = 1; \
    --min-p = 1; --top-nsigma --top-n-sigma = 1; --xtc-probability = 1; --xtc-threshold = 1; \
    --typical --typical-p = 1; --repeat-last-n = 1; --repeat-penalty = 1; --presence-penalty = 1; \
    --frequency-penalty = 1; --dry-multiplier = 1; --dry-base = 1; --dry-allowed-length = 1; \
    --dry-penalty-last-n = 1; --dry-sequence-breaker = 1; --adaptive-target = 1; --adaptive-decay = 1; \
    --dynatemp-range = 1; --dynatemp-exp = 1; --mirostat = 2; --mirostat-lr = 1; --mirostat-ent = 1; \
    -l --logit-bias = 5+1; --grammar = 1; --grammar-file = 1; -j --json-schema = 1; \
    -jf --json-schema-file = 1; -bs --backend-sampling; --rope-scaling = 1; --rope-scale = 1; \
    --rope-freq-base = 1; --rope-freq-scale = 1; --yarn-orig-ctx = 1; --yarn-ext-factor = 1; \
    --yarn-attn-factor = 1; --yarn-beta-slow = 1; --yarn-beta-fast = 1; \
    -kvo --kv-offload -nkvo --no-kv-offload; --repack -nr --no-repack; --no-host; -ctk --cache-type-k = f16; \
    -ctv --cache-type-v = f16; -dt --defrag-thold = 1; -np --parallel = 1; -mm --mmproj = 1; \
    -mmu --mmproj-url = 1; --mmproj-offload --no-mmproj-offload; --image-min-tokens = 1; \
    --image-max-tokens = 1; --video-fps = 1; --video-timestamp-interval = 1; --video-ffmpeg-dir = 1; \
    --rpc = 1; -lm --load-mode = mmap; -lzm --lazy-mode = 1; --numa = isolate; -dev --device = 1; \
    --list-devices; -ot --override-tensor = 1; -cmoe --cpu-moe; -ncmoe --n-cpu-moe = 1; \
    -ncffn --n-cpu-ffn = 1; \
    -ngl --gpu-layers --n-gpu-layers = 1; -sm --split-mode = layer; -ts --tensor-split = 1; \
    -mg --main-gpu = 1; -fit --fit = on; -fitt --fit-target = 512; -fitc --fit-ctx = 1; --check-tensors; \
    --override-kv = 1; --op-offload --no-op-offload; --lora = 1; --lora-scaled = 1; --control-vector = 1; \
    --control-vector-scaled = 1; --control-vector-layer-range = 1 2; -m --model = 1; -mu --model-url = 1; \
    -dr --docker-repo = 1; -hf -hfr --hf-repo = 1; -hff --hf-file = 1; -hft --hf-token = 1; --log-disable; \
    --log-file = 1; --log-jsonl --no-log-jsonl; --log-colors = 1; -v --verbose --log-verbose; --offline; \
    -lv --verbosity --log-verbosity = 1; --log-prefix --no-log-prefix; --log-timestamps --no-log-timestamps; \
    --spec-draft-type-k -ctkd --cache-type-k-draft = 1; --spec-draft-type-v -ctvd --cache-type-v-draft = 1; \
    --usage; -dio --direct-io -ndio --no-direct-io; --tfs = 0.9; --penalize-nl --no-penalize-nl; \
    --memory-f32;";

/// Flags of llama-completion.
const COMPLETION: &str = "\
    --verbose-prompt; --display-prompt --no-display-prompt; -co --color = on; \
    --context-shift --no-context-shift; -sys --system-prompt = 1; -sysf --system-prompt-file = 1; \
    -ptc --print-token-count = 1; --prompt-cache = 1; --prompt-cache-all = --prompt-cache x; \
    --prompt-cache-ro = --prompt-cache x; -r --reverse-prompt = 1; -sp --special; \
    -cnv --conversation -no-cnv --no-conversation; -st --single-turn; -i --interactive; \
    -if --interactive-first; -mli --multiline-input; --in-prefix-bos; --in-prefix = 1; --in-suffix = 1; \
    --warmup --no-warmup; -gan --grp-attn-n = 1; -gaw --grp-attn-w = 1; --jinja --no-jinja; \
    --reasoning-format = 1; -rea --reasoning = 1; --reasoning-effort = 1; --reasoning-budget = 1; \
    --reasoning-budget-message = 1; --reasoning-preserve --no-reasoning-preserve; --chat-template = 1; \
    --chat-template-file = 1; --skip-chat-parsing --no-skip-chat-parsing; --simple-io; -ins --instruct; \
    -cml --chatml; --embedding;";

/// Flags for speculative decoding of llama-cli, llama-completion and llama-server, including older names.
const SPECULATION: &str = "\
    --spec-draft-ctx-size -cd --ctx-size-draft = 64; --spec-draft-replace --spec-replace = a b; \
    -lcs --lookup-cache-static = 1; -lcd --lookup-cache-dynamic = 1; \
    --spec-draft-hf -hfd -hfrd --hf-repo-draft = 1; --spec-draft-threads -td --threads-draft = 1; \
    --spec-draft-threads-batch -tbd --threads-batch-draft = 1; \
    --spec-draft-cpu-mask -Cd --cpu-mask-draft = 1; --spec-draft-cpu-range -Crd --cpu-range-draft = 1; \
    --spec-draft-cpu-strict --cpu-strict-draft = 1; --spec-draft-prio --prio-draft = 1; \
    --spec-draft-poll --poll-draft = 1; --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft = 1; \
    --spec-draft-cpu-strict-batch --cpu-strict-batch-draft = 1; \
    --spec-draft-prio-batch --prio-batch-draft = 1; --spec-draft-poll-batch --poll-batch-draft = 1; \
    --spec-draft-override-tensor -otd --override-tensor-draft = 1; \
    --spec-draft-cpu-moe -cmoed --cpu-moe-draft; \
    --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed --n-cpu-moe-draft = 1; --spec-draft-n-max = 1; \
    --spec-draft-n-min = 1; --spec-synth-len = 1; --spec-synth-rates = 1; \
    --spec-draft-p-split --draft-p-split = 1; --spec-draft-p-min --draft-p-min = 1; \
    --spec-draft-backend-sampling --no-spec-draft-backend-sampling; \
    --spec-draft-device -devd --device-draft = 1; \
    --spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft = 1; \
    --spec-draft-model -md --model-draft = 1; --spec-type = none; --spec-ngram-mod-n-min = 1; \
    --spec-ngram-mod-n-max = 1; --spec-ngram-mod-n-match = 1; --spec-ngram-simple-size-n = 1; \
    --spec-ngram-simple-size-m = 1; --spec-ngram-simple-min-hits = 1; --spec-ngram-map-k-size-n = 1; \
    --spec-ngram-map-k-size-m = 1; --spec-ngram-map-k-min-hits = 1; --spec-ngram-map-k4v-size-n = 1; \
    --spec-ngram-map-k4v-size-m = 1; --spec-ngram-map-k4v-min-hits = 1; --draft --draft-n --draft-max = 1; \
    --draft-min --draft-n-min = 1; --spec-default;";

/// Flags of llama-cli.
const CLI: &str = "\
    --server-base = 1; --verbose-prompt; --display-prompt --no-display-prompt; -co --color = on; \
    -ctxcp --ctx-checkpoints --swa-checkpoints = 1; -cram --cache-ram = 1; \
    --context-shift --no-context-shift; -sys --system-prompt = 1; --show-timings --no-show-timings; \
    -sysf --system-prompt-file = 1; -r --reverse-prompt = 1; -sp --special; -st --single-turn; \
    -mli --multiline-input; --warmup --no-warmup; --mmproj-auto --no-mmproj --no-mmproj-auto; \
    --image --audio --video = x; -o --output --output-file = 1; --chat-template-kwargs = 1; \
    --jinja --no-jinja; --reasoning-format = 1; -rea --reasoning = 1; --reasoning-effort = 1; \
    --reasoning-budget = 1; --reasoning-budget-message = 1; --reasoning-preserve --no-reasoning-preserve; \
    --chat-template = 1; --chat-template-file = 1; --skip-chat-parsing --no-skip-chat-parsing; --simple-io; \
    --log-prompts-dir = 1; --gpt-oss-20b-default; --gpt-oss-120b-default; --vision-gemma-4b-default; \
    --vision-gemma-12b-default; -ins --instruct; -cml --chatml;";

/// Flags of llama-server.
const SERVER: &str = "\
    --kv-unified-per-slot = 1; \
    -ctxcp --ctx-checkpoints --swa-checkpoints = 1; -cms --checkpoint-min-step = 1; -cram --cache-ram = 1; \
    -kvu --kv-unified -no-kvu --no-kv-unified; --cache-idle-slots --no-cache-idle-slots; \
    --context-shift --no-context-shift; -r --reverse-prompt = 1; -sp --special; --warmup --no-warmup; \
    --spm-infill; --pooling = mean; -cb --cont-batching -nocb --no-cont-batching; \
    --mmproj-auto --no-mmproj --no-mmproj-auto; --mtmd-batch-max-tokens = 1; -a --alias = 1; --tags = 1; \
    --embd-normalize = 1; --host = 1; --port = 8080; --reuse-port; --path = 1; --cors-origins = 1; \
    --cors-methods = 1; --cors-headers = 1; --cors-credentials --no-cors-credentials; --api-prefix = 1; \
    --ui-config --webui-config = 1; --ui-config-file --webui-config-file = 1; \
    --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy; --tools = 1; \
    --tools-runtime = 1; --mcp-servers-config = 1; --mcp-servers-json = 1; -ag --agent -no-ag --no-agent; \
    --ui --webui --no-ui --no-webui; --embedding --embeddings; --rerank --reranking; --api-key = 1; \
    --api-key-file = 1; --ssl-key-file = 1 --ssl-cert-file x; --ssl-cert-file = 1 --ssl-key-file x; \
    --chat-template-kwargs = 1; -to --timeout = 30; --sse-ping-interval = 1; --threads-http = 1; \
    --cache-prompt --no-cache-prompt; --cache-reuse = 1; --metrics; --props; --slots --no-slots; \
    --slot-save-path = 1; --media-path = 1; --models-dir = 1; --models-preset = 1; --models-max = 2; \
    --models-autoload --no-models-autoload; --jinja --no-jinja; --reasoning-format = 1; \
    -rea --reasoning = 1; --reasoning-effort = 1; --reasoning-budget = 1; --reasoning-budget-message = 1; \
    --reasoning-preserve --no-reasoning-preserve; --chat-template = 1; --chat-template-file = 1; \
    --skip-chat-parsing --no-skip-chat-parsing; --prefill-assistant --no-prefill-assistant; \
    -sps --slot-prompt-similarity = 1; --lora-init-without-apply; --sleep-idle-seconds = 1; \
    --log-prompts-dir = 1; --spec-ngram-size-n = 1; --spec-ngram-size-m = 1; --spec-ngram-min-hits = 1; \
    --embd-gemma-default; --embd-bge-small-en-default; \
    --embd-e5-small-en-default; --embd-gte-small-default; -sysf --system-prompt-file = 1; \
    --fim-qwen-1.5b-default; --fim-qwen-3b-default; --fim-qwen-7b-default; \
    --fim-qwen-7b-spec; --fim-qwen-14b-spec; --fim-qwen-30b-default; --gpt-oss-20b-default; \
    --gpt-oss-120b-default; --vision-gemma-4b-default; --vision-gemma-12b-default;";

/// Flags of llama-perplexity.
const PERPLEXITY: &str = "\
    -kvu --kv-unified -no-kvu --no-kv-unified; --context-shift --no-context-shift; --chunks = 1; \
    --warmup --no-warmup; --hellaswag; --hellaswag-tasks = 1; --winogrande; --winogrande-tasks = 1; \
    --multiple-choice; --multiple-choice-tasks = 1; --kl-divergence; \
    --save-all-logits --kl-divergence-base = 1; --ppl-stride = 1; --ppl-output-type = 1;";

/// Flags of llama-imatrix.
const IMATRIX: &str = "\
    --context-shift --no-context-shift; --chunks = 1; --in-file = 1; -o --output --output-file = 1; \
    -ofreq --output-frequency = 1; --output-format = gguf; --save-frequency = 1; --process-output; \
    --ppl --no-ppl; --chunk --from-chunk = 1; --show-statistics; --parse-special;";

/// Flags of llama-tokenize.
const TOKENIZE: &str = "\
    --ids; --stdin; --no-bos; --no-parse-special; --show-count;";

/// Flags of llama-embedding.
const EMBEDDING: &str = "\
    --context-shift --no-context-shift; --pooling = mean; --attention = 1; --embd-normalize = 1; \
    --embd-output-format = json; --embd-separator = 1; --cls-separator = 1; --warmup --no-warmup;";

/// Flags of llama-batched-bench.
const BATCHED_BENCH: &str = "\
    -kvu --kv-unified -no-kvu --no-kv-unified; -pps; -tgs; -npp = 1; -ntg = 1; -npl = 1; \
    --output-format = md;";

/// Flags of llama-bench, which has none of `COMMON`.
const BENCH: &str = "\
    --numa = isolate; -r --repetitions = 2; --prio = 1; --delay = 1; -o --output = md; \
    -oe --output-err = md; --list-devices; -v --verbose; --progress; --no-warmup; -fitt --fit-target = 512; \
    -fitc --fit-ctx = 64; --version; -m --model = x; -hf -hfr --hf-repo = a/b; -hff --hf-file = x; \
    -hft --hf-token = x; --offline; -p --n-prompt = 1; -n --n-gen = 1; -pg = 1,1; -d --n-depth = 1; \
    -b --batch-size = 1; -ub --ubatch-size = 1; -ctk --cache-type-k = f16; -ctv --cache-type-v = f16; \
    -t --threads = 2; -C --cpu-mask = 0x1; --cpu-strict = 0; --poll = 50; -ngl --n-gpu-layers = 9; \
    -ncmoe --n-cpu-moe = 1; -sm --split-mode = layer; -mg --main-gpu = 1; -nkvo --no-kv-offload = 0; \
    -fa --flash-attn = on; -dev --device = x; -lm --load-mode = mmap; -lzm --lazy-mode = on; \
    -embd --embeddings = 0; -ts --tensor-split = 1; -ot --override-tensor = a=CPU; \
    -nopo --no-op-offload = 0; --no-host = 0; --repack = 0; -rpc --rpc = x;";

/// Flags of llama-quantize.
const QUANTIZE: &str = "\
    --allow-requantize --leave-output-tensor --pure --dry-run --keep-split; \
    --imatrix --include-weights --exclude-weights --tensor-type-file = x; \
    --output-tensor-type --token-embedding-type = q6_k; --tensor-type = a=q6_k; \
    --prune-layers --max-buffer-size = 1; --override-kv = a=int:1;";

/// Flags of llama-gguf-split.
const SPLIT: &str = "\
    --split --merge --no-tensor-first-split --delete-splits --dry-run; --split-max-size = 1G; \
    --split-max-tensors = 1;";

/// Subcommands with their required arguments, and the flags of the llama.cpp program that each replaces.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("run", &[COMMON, COMPLETION, SPECULATION]),
    ("chat", &[COMMON, CLI, SPECULATION]),
    ("serve", &[COMMON, SERVER, SPECULATION]),
    ("perplexity -f x", &[COMMON, PERPLEXITY]),
    ("imatrix -f x", &[COMMON, IMATRIX]),
    ("tokenize", &[COMMON, TOKENIZE]),
    ("embed", &[COMMON, EMBEDDING]),
    ("batched-bench", &[COMMON, BATCHED_BENCH]),
    ("bench", &[BENCH]),
    ("quantize x y q8_0", &[QUANTIZE]),
    ("split x y", &[SPLIT]),
];

/// The error of a command line that is neither accepted nor refused as not supported.
fn wrong(parser: &mut LineParser, line: &str) -> Option<String> {
    let words = ["sterna"].into_iter().chain(line.split_whitespace());
    match parser.parse(parser.normalise(words.map(Into::into))) {
        Ok(_) => None,
        Err(err)
            if err.kind() == ErrorKind::InvalidValue && err.to_string().contains(" is not supported: ") =>
        {
            None
        }
        Err(err) => Some(format!("{line}: {}", err.to_string().lines().next().unwrap_or_default())),
    }
}

#[test]
fn every_llama_cpp_flag_works_or_is_refused() {
    let (mut all_wrong, mut parser) = (Vec::new(), LineParser::new());
    for (command, lists) in PROGRAMS {
        if *command == "serve" && !cfg!(feature = "serve") {
            continue;
        }
        for flag in lists.iter().flat_map(|list| list.split(';')).filter(|flag| !flag.trim().is_empty()) {
            let (names, values) = flag.split_once('=').unwrap_or((flag, ""));
            // llama-server takes no prompt.
            if *command == "serve"
                && ["--prompt", "--file", "--binary-file"].iter().any(|n| names.contains(n))
            {
                continue;
            }
            let is_prompt = names.contains("--prompt") && !names.contains("--prompt-");
            let command = if is_prompt { command.trim_end_matches(" -f x") } else { command };
            let lines = names.split_whitespace().map(|name| format!("{command} {name} {values}"));
            all_wrong.extend(lines.filter_map(|line| wrong(&mut parser, &line)));
        }
    }
    assert!(all_wrong.is_empty(), "{}", all_wrong.join("\n"));
}

/// Checks the check: an unknown flag is neither accepted nor refused as not supported.
#[test]
fn unknown_flags_are_errors() {
    let mut parser = LineParser::new();
    for command in ["run", "perplexity -f x", "tokenize", "bench", "quantize x y q8_0"] {
        let said = wrong(&mut parser, &format!("{command} --no-such-flag")).expect("it is refused");
        assert!(said.contains("unexpected argument '--no-such-flag'"), "{said}");
    }
}

fn sterna(args: &[&str], variables: &[(&str, &str)]) -> Output {
    command().args(args).envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn environment_is_used_or_reported_as_ignored() {
    let model = golden("bitnet/tiny-i2_s.gguf");
    let variables = [("LLAMA_ARG_MODEL", &*model), ("LLAMA_ARG_CTX_SIZE", "16"), ("LLAMA_ARG_MAIN_GPU", "1")];
    let typed = ["run", "-t", "1", "-p", "You may", "--ignore-eos"];
    let ran = sterna(&typed, &variables);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("the context is full"), "{said}");
    assert!(said.contains("ignoring LLAMA_ARG_MAIN_GPU: --main-gpu is not supported: --device"), "{said}");
    // Flags override the environment.
    let longer = sterna(&[&typed[..], &["-c", "64", "-n", "20"]].concat(), &variables);
    assert!(!String::from_utf8_lossy(&longer.stderr).contains("the context is full"), "{longer:?}");
    let wrong = sterna(&typed, &[("LLAMA_ARG_CTX_SIZE", "many")]);
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{said}");
    assert!(said.contains("'--ctx-size <N>'") && said.contains("LLAMA_ARG_CTX_SIZE"), "{said}");
}

#[test]
fn tokenize_prompt_parses_specials_and_escapes() {
    let vocab = golden("tokenizer/tiny-vocab.gguf");
    let ids = |more: &[&str]| {
        let args = [&["tokenize", "-m", &vocab, "--ids", "--no-bos"], more].concat();
        String::from_utf8(sterna(&args, &[]).stdout).unwrap()
    };
    assert_eq!(ids(&["-p", "<|eot_id|>"]), "[638]\n");
    assert_eq!(ids(&["-p", "<|eot_id|>", "--show-count"]), "[638]\nTotal number of tokens: 1\n");
    assert_eq!(ids(&["-p", "<|eot_id|>", "--no-parse-special"]), ids(&["<|eot_id|>"]));
    assert_eq!(ids(&["-p", r"copy\n"]), ids(&["copy\n"]));
    assert_eq!(ids(&["-p", r"copy\n", "--no-escape"]), ids(&[r"copy\n"]));
    assert_eq!(ids(&["-e", r"copy\n"]), ids(&["copy\n"]));
    assert_ne!(ids(&[r"copy\n"]), ids(&["copy\n"]));
}

#[test]
fn inspect_takes_the_model_by_flag() {
    let vocab = golden("tokenizer/tiny-vocab.gguf");
    let [by_flag, plain] =
        [&["inspect", "-m", &vocab][..], &["inspect", &vocab]].map(|args| sterna(args, &[]));
    assert!(by_flag.status.success() && by_flag.stdout == plain.stdout, "{by_flag:?}");
}
