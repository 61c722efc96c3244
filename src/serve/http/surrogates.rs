//! Escapes such as `\ud83d` without the other half of their character. JavaScript writes them for a text that
//! was cut within an emoji. They are not Unicode, and the JSON parser refuses them.

/// Length of an escape.
const LEN: usize = 6;

/// True if there is one.
pub fn has_one(json: &[u8]) -> bool {
    first(json, 0).is_some()
}

/// Replaces them by U+FFFD.
pub fn replace(json: &mut [u8]) {
    let mut from = 0;
    while let Some(at) = first(json, from) {
        from = at + LEN;
        json[at..from].copy_from_slice(br"\ufffd");
    }
}

/// The parser's error, with the escape if that is the reason.
pub fn explained(json: &[u8], err: &serde_json::Error) -> String {
    let err = err.to_string();
    match first(json, 0).filter(|_| err.contains("hex escape")) {
        Some(at) => {
            let escape = String::from_utf8_lossy(&json[at..at + LEN]);
            format!(
                "`{escape}` is a lone surrogate, half of a character, as in a text that was cut within an \
                 emoji; in JavaScript `toWellFormed()` repairs the text: {err}"
            )
        }
        None => err,
    }
}

/// Position of the first one at or after `from`.
fn first(json: &[u8], mut from: usize) -> Option<usize> {
    loop {
        from += json[from..].iter().position(|byte| *byte == b'\\')?;
        from += match (code(&json[from..]), json.get(from + LEN..).and_then(code)) {
            (None, _) => 2.min(json.len() - from),
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * LEN,
            (Some(0xd800..=0xdfff), _) => return Some(from),
            (Some(_), _) => LEN,
        };
    }
}

/// The code of an escape at the start of `json`.
fn code(json: &[u8]) -> Option<u32> {
    let digits = json.strip_prefix(br"\u")?.get(..4)?;
    digits.iter().try_fold(0, |code, digit| Some(code * 16 + char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_are_found_and_replaced() {
        for (json, replaced) in [
            (r#""a\ud83d""#, r#""a\ufffd""#),
            (r#""\ude00\ud83d\ude00\uD83Db""#, r#""\ufffd\ud83d\ude00\ufffdb""#),
            (r#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (r#""\\ud83d \u00e9""#, r#""\\ud83d \u00e9""#),
        ] {
            let mut bytes = json.as_bytes().to_vec();
            replace(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), replaced);
            assert!(serde_json::from_str::<String>(replaced).is_ok());
            if let Err(err) = serde_json::from_str::<String>(json) {
                assert!(explained(json.as_bytes(), &err).contains("lone surrogate"), "{json}: {err}");
            }
        }
        for json in [r#""\u12""#, r"\", r"\u", r#""\x"#] {
            let err = serde_json::from_str::<String>(json).unwrap_err();
            assert_eq!(explained(json.as_bytes(), &err), err.to_string());
        }
    }
}
