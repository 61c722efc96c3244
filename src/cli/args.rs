//! Arguments as typed to arguments as clap takes them: llama.cpp's single-dash words.

use std::ffi::OsString;

/// llama.cpp's flags of one dash and several letters, and the long flag that each stands for.
const WORDS: &[(&str, &str)] = &[
    ("-pg", "--prompt-gen"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system-prompt"),
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
    }

    #[test]
    fn everything_else_stays() {
        let args = ["run", "-p", "-pgx", "-s1", "--", "-pg"];
        assert_eq!(normalised(&args), args);
    }
}
