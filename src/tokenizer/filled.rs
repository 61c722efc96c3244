//! Encodes a template with control tokens, filled with texts in which they are plain text.

use super::{Special, Tokenizer};

impl Tokenizer {
    /// Encodes `template` with names replaced by values, as in `("{query}", "how tall")`. Control tokens are
    /// parsed only where the template spells them; in a value, or partly in one, they are text. No BOS or EOS
    /// is added.
    pub fn encode_filled(&self, template: &str, values: &[(&str, &str)]) -> Vec<u32> {
        let (mut text, mut plain) = (String::new(), Vec::new());
        let mut rest = template;
        let next = |rest: &str| {
            let found = values.iter().filter_map(|(name, value)| Some((rest.find(name)?, *name, *value)));
            found.min_by_key(|(at, ..)| *at)
        };
        while let Some((at, name, value)) = next(rest) {
            text += &rest[..at];
            rest = &rest[at + name.len()..];
            if !value.is_empty() {
                let start = text.len();
                plain.push(start);
                plain.extend(self.spelled(value).into_iter().map(|inside| start + inside));
                text += value;
                plain.push(text.len() - 1);
            }
        }
        text += rest;
        let mut ids = Vec::new();
        self.encode_but(&text, Special::Parse, &plain, &mut ids);
        ids
    }
}
