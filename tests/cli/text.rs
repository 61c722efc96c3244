//! `sterna tokenize` and `sterna chat` as a user types them, and what they see.
#![cfg(feature = "cli")]

use std::process::Output;

use super::program::{command, golden};

fn tokenize(args: &[&str], stdin: &[u8]) -> Output {
    let vocab = golden("tokenizer/tiny-vocab.gguf");
    command().args(["tokenize", "-m", &vocab]).args(args).write_stdin(stdin).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn tokenize_reads_argument_file_or_stdin() {
    let want = text(&tokenize(&["--ids", "You may copy\n"], b"").stdout);
    assert!(want.starts_with("[636, ") && want.ends_with("]\n"), "{want}");
    assert_eq!(text(&tokenize(&["--ids"], b"You may copy\n").stdout), want);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text");
    std::fs::write(&file, "You may copy\n").unwrap();
    assert_eq!(text(&tokenize(&["--ids", "-f", file.to_str().unwrap()], b"").stdout), want);
    assert_ne!(text(&tokenize(&["--ids"], b"You may copy").stdout), want, "the final newline is tokenised");
}

#[test]
fn tokenize_parses_special_tokens_on_request() {
    assert_eq!(text(&tokenize(&["--ids", "--no-bos", "--special", "<|eot_id|>"], b"").stdout), "[638]\n");
    assert!(text(&tokenize(&["--ids", "--no-bos", "<|eot_id|>"], b"").stdout).matches(',').count() > 2);
    assert_eq!(text(&tokenize(&["--ids", "--no-bos"], b"").stdout), "[]\n");
}

#[test]
fn tokenize_prints_one_token_per_line() {
    let output = tokenize(&["--special", "the<|eot_id|>"], b"");
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("   636 -> '<|begin_of_text|>'\n"), "{stdout}");
    assert!(stdout.ends_with("   638 -> '<|eot_id|>'\n"), "{stdout}");
    assert!(output.stderr.is_empty());
}

#[test]
fn tokenize_errors_are_one_message() {
    let cases: [(i32, &[&str], &[u8], &str); 4] = [
        (1, &["--ids"], b"a\xffb", "stdin is not UTF-8 text: invalid utf-8 sequence of 1 bytes from index 1"),
        (1, &["-f", "/nowhere/text"], b"", "/nowhere/text"),
        (2, &["--tokenizer-pre", "superbpe", "x"], b"", "want one of llama-bpe, gpt-2, tekken"),
        (1, &["-m", "/nowhere/model", "x"], b"", "/nowhere/model"),
    ];
    for (code, args, stdin, want) in cases {
        let output = tokenize(args, stdin);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        assert!(text(&output.stderr).contains(want), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty());
    }
}

fn chat(args: &[&str], stdin: &str) -> Output {
    let model = golden("bitnet/tiny-i2_s.gguf");
    let fixed = ["chat", "-t", "1", "-m", &model, "--temp", "0"];
    command().args(fixed).args(args).write_stdin(stdin).output().unwrap()
}

#[test]
fn chat_works_through_a_pipe() {
    let output =
        chat(&["-n", "8", "-sys", "Be brief.", "-c", "256"], "Hello\n/help\nYou may\\\ncopy\n/exit\nnever\n");
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    for word in ["using `bitnet`", "/clear", "prompt:", "generation: 16 tokens"] {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
    // Only new tokens are prefilled: the second turn does not compute the first again.
    let fed: usize =
        stderr.split("prompt:").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    assert!(fed < 100, "{fed} tokens were prefilled");
}

/// A byte order mark before the first line, and CRLF line ends.
#[test]
fn chat_accepts_windows_line_ends() {
    let output = chat(&["-n", "4"], "\u{feff}/exit\r\nnever\r\n");
    let stderr = text(&output.stderr);
    assert!(output.status.success() && !stderr.contains("generation"), "{stderr}");
}

#[test]
fn full_context_drops_the_oldest_messages() {
    let turns = "What may I copy, and what may I not copy?\n".repeat(4);
    let output = chat(&["-n", "16", "-c", "128"], &turns);
    let stderr = text(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("oldest messages are forgotten"), "{stderr}");
    let output = chat(&["-n", "16", "-c", "64"], &("word ".repeat(100) + "\nHi\n"));
    assert!(
        text(&output.stderr).contains("error: the text is too long: it needs "),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn chat_uses_the_given_template() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("template");
    std::fs::write(&file, "{{ raise_exception('not today') }}").unwrap();
    let output = chat(&["--chat-template", file.to_str().unwrap()], "Hello\n");
    assert!(text(&output.stderr).contains("refuses the conversation: not today"), "{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "no message was answered");
    // One answered message is enough for status 0.
    let picky = "{% for message in messages %}{% if message.content == 'No' %}\
                 {{ raise_exception('not today') }}{% endif %}{% endfor %}Hi:";
    std::fs::write(&file, picky).unwrap();
    for (messages, code) in [("No\nHello\n", 0), ("No\n", 1), ("/help\n", 0)] {
        let output = chat(&["-n", "2", "--chat-template", file.to_str().unwrap()], messages);
        assert_eq!(output.status.code(), Some(code), "{messages}: {}", text(&output.stderr));
    }
    // A template without a system role gets the system's words in the user's message.
    let no_system = "{% if messages[0].role == 'system' or 'Be brief.' not in messages[0].content %}\
                     {{ raise_exception('no system') }}{% endif %}Hi:";
    std::fs::write(&file, no_system).unwrap();
    let output =
        chat(&["-n", "2", "-sys", "Be brief.", "--chat-template", file.to_str().unwrap()], "Hello\n");
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (name, want) in [("llama4", "bitnet, chatml, llama3"), ("", "built-in")] {
        let output = chat(&["--chat-template", name], "Hello\n");
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(want), "{}", text(&output.stderr));
    }
}
