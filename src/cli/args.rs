//! Rewrites command-line arguments: llama.cpp's single-dash words to long flags, and escapes in text.

use std::ffi::OsString;

use super::names::Names;

/// Rewrites `-pg X` and `-pg=X` to the long flag. Arguments after `--` are unchanged.
pub fn normalise(args: impl IntoIterator<Item = OsString>, names: &Names) -> Vec<OsString> {
    let mut literal = false;
    args.into_iter()
        .map(|arg| {
            literal |= arg == "--";
            if literal { arg } else { rewrite(arg, names) }
        })
        .collect()
}

fn rewrite(arg: OsString, names: &Names) -> OsString {
    let Some(text) = arg.to_str().filter(|text| text.starts_with('-')) else { return arg };
    let (word, value) = text.split_at(text.find('=').unwrap_or(text.len()));
    match names.flag(word) {
        Some(flag) => format!("--{flag}{value}").into(),
        None => arg,
    }
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

/// The character that an escape represents, and its length in bytes without the backslash.
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
        super::super::normalise(args).into_iter().map(|arg| arg.into_string().unwrap()).collect()
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
