//! A template whose control tokens count, with texts in it whose words are text.

use super::{Special, Tokenizer};

impl Tokenizer {
    /// The tokens of `template` with values in place of names, as in `("{query}", "how tall")`. A control
    /// token counts where the template spells it; one that a value spells, or a part of, is text. No BOS or
    /// EOS is added.
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
