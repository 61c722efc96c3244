//! The text of `{"response": "…"}`.

use super::{Delta, Parser, Stage, content};

impl Parser {
    /// Parses the text of a JSON string.
    pub(super) fn response(&mut self, out: &mut Vec<Delta>) -> bool {
        let rest = self.rest();
        let end = rest.find(['"', '\\']).unwrap_or(rest.len());
        if end > 0 {
            let text = self.pass(end);
            content(out, &text);
            return true;
        }
        match rest.as_bytes() {
            [b'"', ..] => {
                self.stage = Stage::Rest;
                true
            }
            [b'\\', escape @ ..] => {
                let bytes = match escape {
                    [] => return false,
                    [b'u', digits @ ..] => {
                        let is_pair =
                            matches!(digits, [b'd' | b'D', b'8'..=b'9' | b'a'..=b'b' | b'A'..=b'B', ..]);
                        if is_pair { 12 } else { 6 }
                    }
                    _ => 2,
                };
                // The second hex digit of `\u` tells whether it is a surrogate pair.
                if matches!(escape, [b'u'] | [b'u', _]) || rest.len() < bytes {
                    return false;
                }
                let written = rest.get(..bytes).map(|text| format!("\"{text}\""));
                let text = written.and_then(|text| serde_json::from_str::<String>(&text).ok());
                match text {
                    Some(text) => {
                        self.pass(bytes);
                        content(out, &text);
                    }
                    None => {
                        // Half of a surrogate pair, or an invalid escape.
                        self.pass(1);
                        content(out, "\u{fffd}");
                    }
                }
                true
            }
            _ => false,
        }
    }
}
