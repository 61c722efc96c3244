//! Arguments as typed to arguments as they are meant: llama.cpp's single-dash words, and escapes in text.

use std::ffi::OsString;

/// llama.cpp's flags of one dash and several letters, and the long flag that each stands for.
const WORDS: &[(&str, &str)] = &[
    ("-ag", "--agent"),
    ("-bf", "--binary-file"),
    ("-bs", "--backend-sampling"),
    ("-Cb", "--cpu-mask-batch"),
    ("-cb", "--cont-batching"),
    ("-Cbd", "--cpu-mask-batch-draft"),
    ("-Cd", "--cpu-mask-draft"),
    ("-cl", "--cache-list"),
    ("-cmoe", "--cpu-moe"),
    ("-cmoed", "--cpu-moe-draft"),
    ("-cms", "--checkpoint-min-step"),
    ("-cnv", "--conversation"),
    ("-co", "--color"),
    ("-Cr", "--cpu-range"),
    ("-cram", "--cache-ram"),
    ("-Crb", "--cpu-range-batch"),
    ("-Crbd", "--cpu-range-batch-draft"),
    ("-Crd", "--cpu-range-draft"),
    ("-ctk", "--cache-type-k"),
    ("-ctkd", "--cache-type-k-draft"),
    ("-ctv", "--cache-type-v"),
    ("-ctvd", "--cache-type-v-draft"),
    ("-ctxcp", "--ctx-checkpoints"),
    ("-dev", "--device"),
    ("-devd", "--device-draft"),
    ("-dr", "--docker-repo"),
    ("-dt", "--defrag-thold"),
    ("-embd", "--embeddings"),
    ("-fa", "--flash-attn"),
    ("-fit", "--fit"),
    ("-fitc", "--fit-ctx"),
    ("-fitt", "--fit-target"),
    ("-gan", "--grp-attn-n"),
    ("-gaw", "--grp-attn-w"),
    ("-hf", "--hf-repo"),
    ("-hfd", "--hf-repo-draft"),
    ("-hff", "--hf-file"),
    ("-hfr", "--hf-repo"),
    ("-hfrd", "--hf-repo-draft"),
    ("-hft", "--hf-token"),
    ("-if", "--interactive-first"),
    ("-jf", "--json-schema-file"),
    ("-kvo", "--kv-offload"),
    ("-kvu", "--kv-unified"),
    ("-lcd", "--lookup-cache-dynamic"),
    ("-lcs", "--lookup-cache-static"),
    ("-lm", "--load-mode"),
    ("-lv", "--verbosity"),
    ("-lzm", "--lazy-mode"),
    ("-md", "--model-draft"),
    ("-mg", "--main-gpu"),
    ("-mli", "--multiline-input"),
    ("-mm", "--mmproj"),
    ("-mmp", "--mmap"),
    ("-mmu", "--mmproj-url"),
    ("-mu", "--model-url"),
    ("-ncffn", "--n-cpu-ffn"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-ncmoed", "--n-cpu-moe-draft"),
    ("-ngl", "--gpu-layers"),
    ("-ngld", "--gpu-layers-draft"),
    ("-nkvo", "--no-kv-offload"),
    ("-no-ag", "--no-agent"),
    ("-no-cnv", "--no-conversation"),
    ("-no-kvu", "--no-kv-unified"),
    ("-nocb", "--no-cont-batching"),
    ("-nopo", "--no-op-offload"),
    ("-np", "--parallel"),
    ("-npl", "--n-parallel"),
    ("-npp", "--n-prompt"),
    ("-nr", "--no-repack"),
    ("-ntg", "--n-gen"),
    ("-oe", "--output-err"),
    ("-ofreq", "--output-frequency"),
    ("-ot", "--override-tensor"),
    ("-otd", "--override-tensor-draft"),
    ("-pg", "--prompt-gen"),
    ("-pps", "--prompt-shared"),
    ("-ptc", "--print-token-count"),
    ("-rea", "--reasoning"),
    ("-rpc", "--rpc"),
    ("-sm", "--split-mode"),
    ("-sp", "--special"),
    ("-sps", "--slot-prompt-similarity"),
    ("-st", "--single-turn"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
    ("-tb", "--threads-batch"),
    ("-tbd", "--threads-batch-draft"),
    ("-td", "--threads-draft"),
    ("-tgs", "--tg-separate"),
    ("-to", "--timeout"),
    ("-ts", "--tensor-split"),
    ("-ub", "--batch-size"),
];

/// Rewrites `-pg X` and `-pg=X` to the long flag. What follows `--` is left alone.
pub fn normalise(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    args.into_iter()
        .map(|arg| {
            literal |= arg == "--";
            if literal { arg } else { rewrite(arg) }
        })
        .collect()
}

fn rewrite(arg: OsString) -> OsString {
    let Some(text) = arg.to_str() else { return arg };
    for (short, long) in WORDS {
        match text.strip_prefix(short) {
            Some("") => return (*long).into(),
            Some(value) if value.starts_with('=') => return format!("{long}{value}").into(),
            _ => {}
        }
    }
    arg
}

/// Text with its escapes resolved, as llama.cpp does: `\n`, `\r`, `\t`, `\\`, `\"`, `\'`, and `\xHH` below
/// 0x80. Any other backslash stays.
pub fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let (meant, len) = escape(&rest[at + 1..]);
        out.push(meant);
        rest = &rest[at + 1 + len..];
    }
    out + rest
}

/// The character that an escape stands for, and its length in bytes without the backslash.
fn escape(rest: &str) -> (char, usize) {
    match rest.as_bytes() {
        [b'n', ..] => ('\n', 1),
        [b'r', ..] => ('\r', 1),
        [b't', ..] => ('\t', 1),
        [b'\\', ..] => ('\\', 1),
        [b'"', ..] => ('"', 1),
        [b'\'', ..] => ('\'', 1),
        [b'x', high @ b'0'..=b'7', low, ..] if low.is_ascii_hexdigit() => {
            let digit = |byte: u8| (byte as char).to_digit(16).expect("a hex digit") as u8;
            ((digit(*high) * 16 + digit(*low)) as char, 3)
        }
        _ => ('\\', 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalised(args: &[&str]) -> Vec<String> {
        let args = args.iter().map(OsString::from);
        normalise(args).into_iter().map(|arg| arg.into_string().unwrap()).collect()
    }

    #[test]
    fn single_dash_words_become_long_flags() {
        assert_eq!(normalised(&["bench", "-pg", "512,128"]), ["bench", "--prompt-gen", "512,128"]);
        assert_eq!(normalised(&["run", "-ctk=f32"]), ["run", "--cache-type-k=f32"]);
        assert_eq!(normalised(&["chat", "-sys", "Be brief"]), ["chat", "--system-prompt", "Be brief"]);
        assert_eq!(normalised(&["run", "-np", "4", "-npp=1"]), ["run", "--parallel", "4", "--n-prompt=1"]);
    }

    #[test]
    fn escapes_in_text() {
        assert_eq!(unescape(r#"a\nb\t\\n\x41\'\""#), "a\nb\t\\nA'\"");
        assert_eq!(unescape(r"\d \x9z \xff \é end\"), r"\d \x9z \xff \é end\");
    }

    #[test]
    fn everything_else_stays() {
        let args = ["run", "-p", "-pgx", "-s1", "--", "-pg"];
        assert_eq!(normalised(&args), args);
    }
}
