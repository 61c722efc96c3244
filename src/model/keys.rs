//! Keys of a file's metadata that a model has not read: each may ask for what the program lacks.

use std::cell::RefCell;
use std::collections::HashSet;

use sterna_gguf::{Metadata, Value};

use super::hyper;

/// Keys under an architecture's name that change nothing here, though no reader asks for them.
const HARMLESS: [(&str, &str); 8] = [
    ("vocab_size", "the rows of the token table say it"),
    ("rope.scaling.finetuned", "about the training"),
    ("tensor_data_layout", "the architecture implies the order of rows"),
    ("classifier.output_labels", "names for the host"),
    ("dense_2_feat_in", "the shape of the tensor says it"),
    ("dense_2_feat_out", "the shape of the tensor says it"),
    ("dense_3_feat_in", "the shape of the tensor says it"),
    ("dense_3_feat_out", "the shape of the tensor says it"),
];

/// Prefixes of keys about images and sound, whose tensors are refused or left out with a note.
const OTHER_MEDIA: [&str; 3] = ["vision.", "mm.", "audio."];

/// The keys under an architecture's name that its model has asked for.
#[derive(Debug, Default)]
pub struct AskedKeys(RefCell<HashSet<String>>);

impl AskedKeys {
    /// Records a key, without the architecture's name.
    pub fn add(&self, key: &str) {
        self.0.borrow_mut().insert(key.to_owned());
    }

    /// A sentence for each key that no reader has asked for, in the order of the file. A value of 0 asks for
    /// nothing.
    pub fn notes(&self, metadata: &Metadata, architecture: &str) -> Vec<String> {
        let asked = self.0.borrow();
        let is_known = |key: &str| {
            asked.contains(key)
                || hyper::KEYS.contains(&key)
                || HARMLESS.iter().any(|(harmless, _)| *harmless == key)
                || OTHER_MEDIA.iter().any(|prefix| key.starts_with(prefix))
        };
        let is_off = |value: &Value| value.as_int() == Some(0) || value.as_f32() == Some(0.0);
        let under = metadata.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(architecture)?.strip_prefix('.')?;
            (!is_known(name) && !is_off(value)).then_some((key, value))
        });
        let note = |(key, value): (&str, &Value)| {
            format!(
                "{key} is {} in the file and is ignored: this architecture has no use for it",
                text(value)
            )
        };
        under.map(note).collect()
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Str(text) => format!("`{}`", text.chars().take(40).collect::<String>().escape_debug()),
        Value::Bool(truth) => truth.to_string(),
        Value::Array(array) => format!("a list of {}", array.len()),
        value => match (value.as_int(), value.as_f32()) {
            (Some(int), _) => int.to_string(),
            (None, Some(float)) => float.to_string(),
            (None, None) => "a value".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_nothing_reads_are_noted_and_harmless_ones_are_not() {
        let mut metadata = Metadata::default();
        metadata.set("llama.block_count", 2_u32);
        metadata.set("llama.vocab_size", 640_u32);
        metadata.set("llama.attn_logit_softcapping", 50_f32);
        metadata.set("llama.final_logit_softcapping", 0_f32);
        metadata.set("llama.logit_scale", 2_f32);
        metadata.set("llama.vision.block_count", 2_u32);
        metadata.set("llama2.attn_logit_softcapping", 50_f32);
        let asked = AskedKeys::default();
        asked.add("logit_scale");
        let want = "llama.attn_logit_softcapping is 50 in the file and is ignored: this architecture has no \
                    use for it";
        assert_eq!(asked.notes(&metadata, "llama"), [want]);
    }
}
