//! Texts of the command line, as readable files in `tests/snapshots`: `--help` of every subcommand, and the
//! errors of wrong commands.
#![cfg(all(
    target_os = "linux",
    feature = "convert",
    feature = "cuda",
    feature = "demo",
    feature = "serve",
    feature = "hub",
    feature = "wgpu"
))]

use std::fmt::Write as _;
use std::fs;

use super::program::{command, ok, sterna, text};

/// Without blanks at the ends of lines.
fn trimmed(text: &str) -> String {
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn help_texts_match_snapshots() {
    let help = ok(&sterna(&["--help"]));
    let (_, listed) = help.split_once("Commands:\n").unwrap();
    let names = listed.lines().take_while(|line| !line.is_empty());
    let names = names.map(|line| line.split_whitespace().next().unwrap()).filter(|name| *name != "help");
    for name in names {
        let help = ok(&sterna(&[name, "--help"]));
        support::snapshot(&format!("help/{name}.txt"), &trimmed(&help));
    }
    support::snapshot("help/sterna.txt", &trimmed(&help));
}

/// Wrong commands in a folder with `empty.gguf`, `text.gguf` and `text.txt`.
const WRONG: &[&str] = &[
    "nonsense",
    "run --nope",
    "run -p",
    "run -n many",
    "run -t 0",
    "run --temp cold",
    "run --top-p 2",
    "run --min-p -1",
    "run --device 7 --backend cpu",
    "run --gpu-layers some",
    "run --split-mode row",
    "run --tensor-split 1,x",
    "run --int8 fast",
    "run --numa near",
    "run --resident-layers few",
    "run --op-offload-min-batch 0",
    "run --stream-slots 99",
    "run --kv-cache-type q3",
    "run --head-type q3",
    "run --act-type i4",
    "run -b 0",
    "run -m missing.gguf",
    "run -m empty.gguf",
    "run -m text.gguf",
    "run -m .",
    "run -hf model",
    "run -hf a/b --offline",
    "run -m a.gguf -hf a/b",
    "run --json-schema {",
    "run --grammar root",
    "run --grammar-file missing.gbnf",
    "run -f missing.txt",
    "run --lora a.gguf",
    "run --mirostat 1",
    "run --spec-type magic",
    "chat --chat-template nonsense",
    "serve --port 99999",
    "serve --api-key-file missing.txt",
    "serve --model-dir missing",
    "serve --ssl-key-file key.pem",
    "serve --slot-save-path missing",
    "pull",
    "pull model",
    "pull a/b --offline",
    "rm a/b",
    "bench -p x",
    "batched-bench -npp 0",
    "logits",
    "embed",
    "perplexity",
    "perplexity -f missing.txt",
    "perplexity -f text.txt -c 64",
    "kv-report -f missing.txt",
    "inspect missing.gguf",
    "inspect text.gguf",
    "plan --vram lots",
    "synth --preset nonsense out.gguf",
    "synth --type q3 out.gguf",
    "synth text.gguf",
    "imatrix -f missing.txt -o out.gguf",
    "convert missing out.gguf",
    "convert . out.gguf",
    "quantize missing.gguf out.gguf q8_0",
    "quantize text.gguf out.gguf",
    "quantize text.gguf out.gguf q3",
    "split text.gguf out",
    "merge text.gguf out.gguf",
    "edit text.gguf out.gguf",
    "edit text.gguf text.gguf --set a=b",
    "export-card text.gguf",
    "completions nonsense",
];

#[test]
fn error_messages_match_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in [("empty.gguf", ""), ("text.gguf", "text\n"), ("text.txt", "hello\n")] {
        fs::write(dir.path().join(name), content).unwrap();
    }
    let mut all = String::new();
    for wrong in WRONG {
        let mut command = command();
        command.current_dir(dir.path()).env("HF_HOME", "cache").args(wrong.split(' '));
        let output = command.output().unwrap();
        writeln!(all, "$ sterna {wrong}\nstatus {}", output.status.code().unwrap()).unwrap();
        for line in text(&output.stderr).lines().filter(|line| !line.is_empty()) {
            let is_noise = line.starts_with("note: using ") || line.starts_with("For more information");
            if !is_noise {
                writeln!(all, "  {line}").unwrap();
            }
        }
        assert!(!output.status.success(), "{wrong}");
        all.push('\n');
    }
    support::snapshot("errors.txt", &trimmed(&all));
}
