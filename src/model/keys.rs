//! Metadata keys that a model has not read: each may request an unsupported feature.

use std::cell::RefCell;
use std::collections::HashSet;

use sterna_gguf::{Metadata, Value};

use super::hyper;

/// Keys under an architecture's name that are safe to ignore, and why.
const HARMLESS: [(&str, &str); 8] = [
    ("vocab_size", "given by the rows of the token table"),
    ("rope.scaling.finetuned", "about the training"),
    ("tensor_data_layout", "the architecture implies the order of rows"),
    ("classifier.output_labels", "names for the host"),
    ("dense_2_feat_in", "given by the shape of the tensor"),
    ("dense_2_feat_out", "given by the shape of the tensor"),
    ("dense_3_feat_in", "given by the shape of the tensor"),
    ("dense_3_feat_out", "given by the shape of the tensor"),
];

/// Prefixes of keys for images and audio, whose tensors are rejected or ignored with a note.
const OTHER_MEDIA: [&str; 3] = ["vision.", "mm.", "audio."];

/// The keys under an architecture's name that its model has read.
#[derive(Debug, Default)]
pub struct AskedKeys(RefCell<HashSet<String>>);

impl AskedKeys {
    /// Records a key, without the architecture's name.
    pub fn add(&self, key: &str) {
        self.0.borrow_mut().insert(key.to_owned());
    }

    /// A sentence per key that was not read, in file order. Keys with the value 0 are skipped.
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
            format!("{key} is {} in the file and is ignored: this architecture does not use it", text(value))
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
        let want = "llama.attn_logit_softcapping is 50 in the file and is ignored: this architecture does \
                    not use it";
        assert_eq!(asked.notes(&metadata, "llama"), [want]);
    }
}
