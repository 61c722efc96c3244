//! Command lines from the documentation of llama.cpp, ollama and vLLM, with `sterna` in place of their
//! programs: each is accepted, or its error says what to do instead.
#![cfg(all(feature = "cli", feature = "serve", feature = "hub"))]

use sterna::cli::LineParser;

/// A line, and a part of its error, which is empty for a line that is accepted.
type Line = (&'static str, &'static str);

const LLAMA_CPP: &[Line] = &[
    ("run -m model.gguf -p 'I believe the meaning of life is' -n 128 -no-cnv", ""),
    ("chat -m model.gguf -cnv --chat-template chatml -sys 'Be brief' -ngl 99 -c 8192 --temp 0.7", ""),
    ("run -hf ggml-org/gemma-3-1b-it-GGUF -p Hi --top_k 40 --ctx_size 4096 --color auto", ""),
    ("run -m model.gguf -n 256 --grammar-file grammars/json.gbnf -p 'Request: at 8pm; Command:'", ""),
    ("run -m model.gguf -md draft.gguf --draft-max 16 --draft-min 5 -ngld 99 -p Once", ""),
    ("run -m model.gguf -md draft.gguf --draft-p-min 2 -p Once", "want 0 to 1"),
    ("run -m model.gguf -md draft.gguf -devd CUDA1 -p Once", "--spec-draft-device is not supported: a draft"),
    ("chat -m model.gguf -hfd user/repo", "download the file with `sterna pull`"),
    ("run -m model.gguf -md draft.gguf -cd 64", "--spec-draft-ctx-size is not supported: a draft model uses"),
    ("llama-cli -m model.gguf", "use `sterna chat` for conversations, `sterna run` to continue"),
    ("serve -m model.gguf --host 0.0.0.0 --port 8080 -c 16384 -np 4 -fa on --jinja --api-key secret", ""),
    ("serve -m model.gguf --embedding --pooling cls -ub 8192 --metrics --slots", ""),
    ("serve -m model.gguf --lora adapter.gguf --lora-init-without-apply", ""),
    ("run -m model.gguf --lora a.gguf,b.gguf --lora-scaled c.gguf:0.5 -p Hi", ""),
    ("imatrix -m model.gguf -f a.txt --lora adapter.gguf", "merge the adapter into the model's file"),
    ("run -m model.gguf --control-vector a.gguf,b.gguf --control-vector-scaled c.gguf:0.5 -p Hi", ""),
    ("serve -m model.gguf --control-vector a.gguf --control-vector-layer-range 10 31", ""),
    ("imatrix -m model.gguf -f a.txt --control-vector a.gguf", "only subcommands that run a model have"),
    ("bench -m model.gguf -p 512 -n 128 -t 4,8 -ngl 99 -fa 1 -r 3 -o md", ""),
    ("perplexity -m model.gguf -f wiki.test.raw --chunks -1 -ngl 99", ""),
    ("perplexity -m model.gguf -p 'a text' -c 4", ""),
    ("perplexity -f wiki.test.raw --chunks 0", "want 1 or more, or -1 for all"),
    ("quantize --imatrix imatrix.gguf model-f16.gguf model-q4_k_m.gguf Q4_K_M 8", ""),
    ("embed -m bge.gguf -p 'Hello' --pooling mean --embd-normalize 2 --embd-output-format json", ""),
    ("tokenize -m model.gguf -p 'Hello world' --ids --no-bos", ""),
    ("split --merge model-00001-of-00002.gguf model.gguf", "use `sterna merge`"),
    ("imatrix -m model-f16.gguf -f calibration.txt -o imatrix.gguf --chunks 100 --no-ppl", ""),
    ("-m model.gguf -p Hi", "flags follow a command, as in `sterna run -m FILE -p TEXT`"),
];

const OLLAMA: &[Line] = &[
    ("run llama3.2", "pass the model with -m FILE or -hf USER/REPO, the prompt with -p TEXT"),
    ("run hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF", "pass the model as -m hf.co/bartowski/Llama"),
    ("run ./model.gguf 'Why is the sky blue?'", "pass the model as -m ./model.gguf, the prompt with -p TEXT"),
    ("run -m model.gguf -p Hi --verbose --nowordwrap", ""),
    ("run -m model.gguf -p Hi --format json", "--json-schema '{}' makes `sterna run` write JSON"),
    ("run -m model.gguf -p Hi --keepalive 5m", "the model is loaded for this command only"),
    ("chat -m model.gguf --think=false", "--think is not supported: the model thinks if its template"),
    ("run -m model.gguf -p Hi --hidethinking", "--hidethinking is not supported"),
    ("pull user/repo:Q4_K_M --insecure", "HF_ENDPOINT sets the address of another hub"),
    ("pull user/repo:Q4_K_M", ""),
    ("list", ""),
    ("ls", ""),
    ("ps", "GET /api/ps of `sterna serve` lists its loaded models"),
    ("show model.gguf", ""),
    ("show model.gguf --modelfile", "`sterna inspect FILE --full` shows all metadata"),
    ("cp llama3.2 my-llama", "copy the file, or name it with `sterna serve --models NAME=FILE`"),
    ("rm user/repo", ""),
    ("create mario -f Modelfile", "a Modelfile is not read: pass its FROM with -m"),
    ("push mymodel", "the Hugging Face hub, whose own `hf` command uploads"),
    ("stop llama3.2", "POST /models/unload unloads"),
    ("serve", ""),
    ("-v", "`sterna --version` prints the version"),
    ("model.gguf", "`sterna run -m model.gguf` continues a text"),
];

const VLLM: &[Line] = &[
    ("serve Qwen/Qwen2.5-1.5B-Instruct --port 8000", "pass the model as -hf Qwen/Qwen2.5-1.5B-Instruct"),
    ("serve -hf a/b --host 0.0.0.0 --port 8000 --api-key token-abc123 --max-model-len 8192", ""),
    ("serve -hf a/b --served-model-name gpt --max-num-seqs 64 --max_num_batched_tokens 2048", ""),
    ("serve -hf a/b --dtype auto --trust-remote-code --enable-prefix-caching --generation-config auto", ""),
    ("serve -hf a/b --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3", ""),
    ("serve -hf a/b --chat-template chatml --tensor-parallel-size 1 --disable-log-requests", ""),
    ("serve -hf a/b --ssl-keyfile key.pem --ssl-certfile cert.pem --no-enable-prefix-caching", ""),
    ("serve -hf a/b --gpu-memory-utilization 0.9", "--fit-target MIB leaves that much memory free"),
    ("serve -hf a/b --tensor-parallel-size 4", "--split-mode layer divides the layers among the GPUs"),
    ("serve -hf a/b -tp=2", "--tensor-parallel-size is not supported"),
    ("serve -hf a/b --dtype bfloat16", "`sterna quantize` writes other types"),
    ("serve -hf a/b --quantization awq", "--quantization is not supported"),
    ("serve -hf a/b --kv-cache-dtype fp8", "--kv-cache-type sets the type, as in q8_0"),
    ("serve -hf a/b --enforce-eager", "leave it out"),
    ("serve -hf a/b --swap-space 4", ""),
    ("serve -hf a/b --speculative-config '{\"method\": \"ngram\"}'", "--spec-type ngram-simple drafts"),
    ("serve -hf a/b --enable-lora --max-lora-rank 64 --lora-modules sql=c/d nl=e/f", ""),
    ("serve -hf a/b --generation-config vllm", "the file's recommended sampling is the default"),
    ("serve -hf a/b --limit-mm-per-prompt '{\"image\": 2}'", "only text models are supported"),
    ("serve -hf a/b --allowed-origins '[\"*\"]'", "--cors-origins lists them"),
    ("chat --url http://localhost:8000/v1", "use a client to talk to a server"),
    ("chat -m model.gguf -q Hi", "pipe the message into `sterna chat`"),
    ("complete --quick Once", "there is no command 'complete': use `sterna run`"),
    ("bench serve --model a/b --num-prompts 100", "`sterna batched-bench` many sequences"),
    ("bench latency --input-len 32", "`sterna bench` measures the engine"),
    ("version", "`sterna --version` prints it"),
];

/// The words of a line, as a shell splits them; `'` quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec!["sterna".to_owned()];
    for (at, part) in line.split('\'').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

#[test]
fn lines_of_other_programs_work_or_say_what_to_do_instead() {
    let mut parser = LineParser::new();
    let mut wrong = Vec::new();
    for (line, want) in [LLAMA_CPP, OLLAMA, VLLM].concat() {
        let parsed = parser.parse(parser.normalise(words(line).into_iter().map(Into::into)));
        let said = parsed.err().map_or_else(String::new, |err| err.to_string());
        if said.is_empty() != want.is_empty() || !said.contains(want) {
            wrong.push(format!("{line}: {said}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
