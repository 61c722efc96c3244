//! Metadata keys under an architecture's name that its model has not read. Each may change what the model
//! computes, so a file with one is rejected, unless the key is known to be harmless.

use std::cell::RefCell;
use std::collections::HashSet;

use sterna_gguf::{Metadata, Value};

use super::{ModelError, hyper};

/// Keys that no model needs, and why.
const HARMLESS: [(&str, &str); 13] = [
    ("vocab_size", "given by the rows of the token table"),
    ("rope.scaling.finetuned", "about the training; an architecture that uses it reads it"),
    ("rope.dimension_sections", "the axes of positions, which are equal in text"),
    ("tensor_data_layout", "the architecture implies the order of rows"),
    ("use_parallel_residual", "the tensors show it"),
    ("hidden_activation", "the architecture implies it"),
    ("classifier.output_labels", "names for the host"),
    ("n_deepstack_layers", "for rows of images"),
    ("deepstack_mapping", "for rows of images"),
    ("dense_2_feat_in", "given by the shape of the tensor"),
    ("dense_2_feat_out", "given by the shape of the tensor"),
    ("dense_3_feat_in", "given by the shape of the tensor"),
    ("dense_3_feat_out", "given by the shape of the tensor"),
];

/// Keys with a value that changes nothing in a model that does not read them. Others are without meaning in a
/// model without experts, windows or YaRN.
const NEUTRAL: [(&str, f32); 14] = [
    ("attention.output_scale", 1.0),
    ("attention.value_scale", 1.0),
    ("embedding_scale", 1.0),
    ("expert_group_count", 1.0),
    ("expert_group_used_count", 1.0),
    ("expert_weights_scale", 1.0),
    ("interleave_moe_layer_step", 1.0),
    ("logit_scale", 1.0),
    ("num_loops", 1.0),
    ("residual_scale", 1.0),
    ("rope.scaling.alpha", 1.0),
    ("rope.scaling.yarn_attn_factor", 1.0),
    ("rope.scaling.yarn_beta_slow", 1.0),
    ("rope.scaling.yarn_beta_fast", 32.0),
];

/// Keys for layers with a sliding window, which change nothing if the other layers have the same value.
const OF_WINDOWS: [(&str, &str); 4] = [
    ("attention.key_length_swa", "attention.key_length"),
    ("attention.value_length_swa", "attention.value_length"),
    ("rope.dimension_count_swa", "rope.dimension_count"),
    ("rope.freq_base_swa", "rope.freq_base"),
];

/// Keys of mixtures of experts, besides those that begin with `expert`. Without experts they mean nothing.
const OF_EXPERTS: [&str; 3] =
    ["leading_dense_block_count", "interleave_moe_layer_step", "moe_every_n_layers"];

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

    /// Checks that all keys under the architecture's name were read, or are harmless.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] with the other keys.
    pub fn check(&self, metadata: &Metadata, architecture: &str) -> Result<(), ModelError> {
        let asked = self.0.borrow();
        let other = |name: &str| metadata.get(&format!("{architecture}.{name}"));
        let is_on = |name: &str| other(name).is_some_and(|value| !is_off(value));
        let (has_experts, slides) = (is_on("expert_count"), is_on("attention.sliding_window"));
        let has_yarn = matches!(other("rope.scaling.type"), Some(Value::Str(kind)) if kind == "yarn");
        let is_known = |key: &str| {
            asked.contains(key)
                || hyper::KEYS.contains(&key)
                || HARMLESS.iter().any(|(harmless, _)| *harmless == key)
                || OTHER_MEDIA.iter().any(|prefix| key.starts_with(prefix))
                || !has_experts && (key.starts_with("expert") || OF_EXPERTS.contains(&key))
                || !slides && key == "attention.sliding_window_pattern"
                || !has_yarn && key.starts_with("rope.scaling.yarn_")
        };
        let is_neutral = |key: &str, value: &Value| {
            let is = |(neutral, number): &(&str, f32)| *neutral == key && value.as_f32() == Some(*number);
            let same = OF_WINDOWS.iter().find(|(of_windows, _)| *of_windows == key);
            let same = same.and_then(|(_, of_others)| other(of_others));
            NEUTRAL.iter().any(is) || same.is_some_and(|same| same.as_f32() == value.as_f32())
        };
        let under = metadata.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(architecture)?.strip_prefix('.')?;
            (!is_known(name) && !is_off(value) && !is_neutral(name, value)).then_some((key, text(value)))
        });
        let (keys, values): (Vec<_>, Vec<_>) = under.unzip();
        if keys.is_empty() {
            return Ok(());
        }
        let want = format!(
            "no key that the architecture `{architecture}` does not use (remove it from the file if it does \
             not change what the model computes)"
        );
        Err(ModelError::Metadata { key: keys.join(", "), want, got: values.join(", ") })
    }
}

/// True for the value of a feature that is off: 0, or a list of zeros.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Array(array) => array.values().all(|value| is_off(&value)),
        value => value.as_int() == Some(0) || value.as_f32() == Some(0.0),
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
    use sterna_gguf::Array;

    fn check(metadata: &Metadata, asked: &[&str]) -> Result<(), String> {
        let keys = AskedKeys::default();
        asked.iter().for_each(|key| keys.add(key));
        keys.check(metadata, "llama").map_err(|err| err.to_string())
    }

    /// Keys as llama.cpp's converter and other tools write them.
    #[test]
    fn harmless_keys_are_accepted() {
        let mut metadata = Metadata::default();
        metadata.set("general.author", "an author");
        metadata.set("quantize.imatrix.chunks_count", 128_u32);
        metadata.set("imatrix.chunk_size", 512_u32);
        metadata.set("split.count", 2_u32);
        metadata.set("mradermacher.quantize_version", "2");
        metadata.set("tokenizer.ggml.not_a_key", 2_u32);
        metadata.set("llama2.attn_logit_softcapping", 50_f32);
        metadata.set("llama.block_count", 2_u32);
        metadata.set("llama.vocab_size", 640_u32);
        metadata.set("llama.attention.layer_norm_epsilon", 1e-5_f32);
        metadata.set("llama.final_logit_softcapping", 0_f32);
        metadata.set("llama.swiglu_clamp_exp", Value::Array(Array::from_i32s([0, 0])));
        metadata.set("llama.logit_scale", 1_f32);
        metadata.set("llama.rope.freq_base", 5e5_f32);
        metadata.set("llama.rope.freq_base_swa", 5e5_f32);
        metadata.set("llama.rope.scaling.yarn_log_multiplier", 0.1_f32);
        metadata.set("llama.attention.sliding_window_pattern", 4_u32);
        metadata.set("llama.vision.block_count", 2_u32);
        metadata.set("llama.expert_count", 0_u32);
        metadata.set("llama.expert_gating_func", 2_u32);
        metadata.set("llama.leading_dense_block_count", 1_u32);
        assert_eq!(check(&metadata, &[]), Ok(()));
    }

    #[test]
    fn keys_that_may_change_the_model_are_rejected_by_name() {
        for (key, value, text) in [
            ("attn_logit_softcapping", Value::F32(50.0), "50"),
            ("logit_scale", Value::F32(2.0), "2"),
            ("rope.freq_base_swa", Value::F32(1e4), "10000"),
            ("rope.scaling.yarn_log_multiplier", Value::F32(0.5), "0.5"),
            ("attention.sliding_window_pattern", Value::U32(4), "4"),
            ("expert_group_count", Value::U32(4), "4"),
            ("swin_norm", Value::Bool(true), "true"),
            ("swiglu_clamp_exp", Value::Array(Array::from_i32s([0, 7])), "a list of 2"),
            ("not_a_key", Value::U32(7), "7"),
        ] {
            let mut metadata = Metadata::default();
            metadata.set("llama.expert_count", 4_u32);
            metadata.set("llama.rope.freq_base", 5e5_f32);
            metadata.set("llama.rope.scaling.type", "yarn");
            metadata.set("llama.attention.sliding_window", 64_u32);
            metadata.set(format!("llama.{key}"), value);
            let read = ["expert_count", "attention.sliding_window"];
            let message = check(&metadata, &read).expect_err(key);
            assert!(message.starts_with(&format!("metadata llama.{key}: want no key that")), "{message}");
            assert!(message.ends_with(&format!(", file has {text}")), "{message}");
            assert_eq!(check(&metadata, &[read[0], read[1], key]), Ok(()), "{key} is read");
        }
        let mut metadata = Metadata::default();
        metadata.set("llama.one", 1_u32);
        metadata.set("llama.two", 2_u32);
        let message = check(&metadata, &[]).expect_err("two keys");
        assert!(message.contains("llama.one, llama.two: ") && message.ends_with("1, 2"), "{message}");
    }
}
