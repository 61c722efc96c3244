//! Metadata of a converted file, except for its vocabulary.

use std::path::Path;

use serde_json::Value as Json;

use super::arch::{Architecture, Dim, Rope};
use super::card::Front;
use super::config::{Config, RopeScaling};
use super::names::Components;
use super::pooling::{self, Pooling};
use super::recurrent::Recurrent;
use super::shape::Shape;
use super::{ConvertError, card, names};
use sterna_gguf::{Array, Metadata, TensorInfo, Value, ValueType};

/// Writes `general.*` and the keys with the architecture's prefix; notes list properties that GGUF cannot
/// express.
///
/// # Errors
/// [`ConvertError::File`] for invalid values in the configuration.
pub fn write(
    folder: &Path,
    config: &Config,
    arch: &Architecture,
    shape: &Shape,
    tensors: &[TensorInfo],
    metadata: &mut Metadata,
    notes: &mut Vec<String>,
) -> Result<(), ConvertError> {
    let name = (arch.name)(config)?;
    metadata.set("general.architecture", name);
    metadata.set("general.type", "model");
    sampling(&super::tokenizer::optional(&folder.join("generation_config.json"))?, metadata, notes);
    let n_weights = tensors.iter().map(|info| info.n_elems() as u64).sum();
    let front = card::read(folder);
    identity(folder, config, &front, n_weights, metadata);
    card::write(&front, n_weights, metadata);
    let mut set = |key: &str, value: Value| metadata.set(format!("{name}.{key}"), value);
    let count = |n: usize| Value::U32(n as u32);
    let n_mtp = usize::from(shape.has_mtp);
    set("block_count", count(shape.n_layers + n_mtp));
    // Readers want the key for architectures that may have such a block.
    if shape.has_mtp || shape.sparse.is_some_and(|sparse| sparse.n_shared > 0) {
        set("nextn_predict_layers", count(n_mtp));
    }
    set("context_length", count(shape.n_ctx));
    set("embedding_length", count(shape.hidden));
    if let Some(ffn) = shape.ffn {
        set("feed_forward_length", count(ffn));
    }
    let attends = shape.recurrent.as_ref().is_none_or(Recurrent::is_hybrid);
    set("attention.head_count", count(if attends { shape.n_heads } else { 0 }));
    if arch.rope != Rope::None || shape.n_kv_heads != shape.n_heads {
        set("attention.head_count_kv", count(shape.n_kv_heads));
    }
    let epsilon = match arch.layer_norm {
        true => "attention.layer_norm_epsilon",
        false => "attention.layer_norm_rms_epsilon",
    };
    set(epsilon, Value::F32(shape.eps as f32));
    if name.starts_with("nemotron_h") {
        // llama.cpp requires this one, and takes it for RMS norms only if the other is missing.
        set("attention.layer_norm_epsilon", Value::F32(shape.eps as f32));
    }
    // Some models of a class are bidirectional, others are not.
    let sees_ahead = arch.encoder && name != "gemma3";
    if sees_ahead {
        set("attention.causal", Value::Bool(false));
    }
    let ranks = arch.globals.iter().any(|rule| rule.to == "cls.output.weight");
    let pooling = if ranks { Some(Pooling::Rank) } else { pooling::read_folder(folder)? };
    if let Some(pooling) = pooling {
        set("pooling_type", Value::U32(pooling as u32));
    } else if sees_ahead {
        notes.push("there is no modules.json with a pooling mode: the file has no pooling_type".to_owned());
    }
    let is_named = shape.labels.iter().enumerate().any(|(at, name)| *name != format!("LABEL_{at}"));
    if ranks && is_named && shape.labels.iter().all(|name| !name.is_empty()) {
        let names = Array::from_strs(shape.labels.iter().map(String::as_str));
        set("classifier.output_labels", names.into());
    }
    if arch.rope == Rope::Whole || shape.has_head_dim {
        set("attention.key_length", count(shape.head_dim));
        set("attention.value_length", count(shape.head_dim));
    }
    if arch.rope == Rope::Whole {
        set("vocab_size", count(shape.vocab));
        set("rope.dimension_count", count(config.rotated(shape.head_dim)?));
    }
    if let Some((n_experts, n_used, ffn)) = shape.experts {
        set("expert_count", count(n_experts));
        set("expert_used_count", count(n_used));
        set("expert_feed_forward_length", count(ffn));
    }
    if shape.token_types > 0 {
        metadata.set("tokenizer.ggml.token_type_count", shape.token_types as u32);
    }
    let mut set = |key: &str, value: Value| metadata.set(format!("{name}.{key}"), value);
    if let Some(latent) = &shape.latent {
        latent.write(&mut set);
    }
    if arch.rope != Rope::None {
        let rope = config.rope()?;
        let head_dim = shape.head_dim as f64;
        let base = match rope.scaling {
            RopeScaling::Alpha(alpha) => rope.base * alpha.powf(head_dim / (head_dim - 2.0)),
            _ => rope.base,
        };
        set("rope.freq_base", Value::F32(base as f32));
        match rope.scaling.clone() {
            // Llama 3's scaling and Gemma 4's are a separate tensor.
            RopeScaling::None
            | RopeScaling::Dynamic
            | RopeScaling::Alpha(_)
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Partial(_) => {}
            RopeScaling::Linear(factor) => {
                set("rope.scaling.type", Value::from("linear"));
                set("rope.scaling.factor", Value::F32(factor as f32));
            }
            RopeScaling::Long { short, long, original, attention } if arch.long_rope => {
                let pairs = config.rotated(shape.head_dim)? / 2;
                if [&short, &long].iter().any(|table| table.len() != pairs) {
                    let want = format!("tables of {pairs} factors");
                    return Err(config.wrong("rope_scaling", &want, None));
                }
                set("rope.scaling.original_context_length", Value::U32(original));
                set("rope.scaling.attn_factor", Value::F32(attention as f32));
            }
            RopeScaling::Long { .. } => {
                let want = format!("no longrope in architecture {name}");
                return Err(config.wrong("rope_scaling", &want, config.get(&["rope_scaling"])));
            }
            RopeScaling::Yarn { factor, original, attention } => {
                set("rope.scaling.type", Value::from("yarn"));
                set("rope.scaling.factor", Value::F32(factor as f32));
                set("rope.scaling.original_context_length", Value::U32(original));
                if let Some(attention) = attention.filter(|_| name != "mistral3" && !arch.latent) {
                    // Readers also multiply by YaRN's own factor.
                    let attn_factor = attention / (1.0 + 0.1 * factor.ln());
                    set("rope.scaling.attn_factor", Value::F32(attn_factor as f32));
                }
            }
        }
        if rope.scaling == RopeScaling::Dynamic {
            notes.push(
                "the dynamic scaling of RoPE, which begins beyond the trained context, is left out: GGUF has \
                 no key for it"
                    .to_owned(),
            );
        }
        // The default is 10000 with Gemma 3, and the base of the other layers elsewhere.
        let usual = if arch.windows == Some(6) { 10000.0 } else { rope.base };
        let is_written = |base: &f64| *base != usual || shape.layered.is_some();
        if arch.windows.is_some()
            && let Some(base) = rope.local_base.filter(is_written)
        {
            set("rope.freq_base_swa", Value::F32(base as f32));
        }
    }
    for (from, to) in arch.factors {
        set(to, Value::F32(config.positive(&[*from])?.unwrap_or(1.0) as f32));
    }
    if let Some(sparse) = &shape.sparse {
        sparse.write(&mut set);
        if sparse.n_shared > 0 {
            set("expert_shared_feed_forward_length", count(shape.len(Dim::SharedFfn)));
        }
    }
    if let Some(ffn) = shape.shared_ffn {
        set("expert_shared_feed_forward_length", count(ffn));
    }
    if let Some(hybrid) = &shape.hybrid {
        hybrid.write(shape.has_mtp, &mut set);
    }
    if arch.sections && shape.hybrid.is_none() {
        // GGUF has a fourth section, which these models do not use.
        let sections = config.sections(shape.head_dim)?.into_iter().chain([0]).map(|n| n as i32);
        set("rope.dimension_sections", Value::Array(Array::from_i32s(sections)));
        let deepstack = config.part("vision_config", &[])?;
        if let Some(layers) = deepstack.get(&["deepstack_visual_indexes"]).and_then(Json::as_array) {
            set("n_deepstack_layers", count(layers.len()));
        }
    }
    if let Some(recurrent) = &shape.recurrent {
        let sizes = [shape.n_kv_heads, shape.ffn.unwrap_or(0), shape.vocab];
        recurrent.write(sizes, shape.has_mtp, &mut set);
    }
    if name == "gptneox" {
        const PARALLEL: &str = "use_parallel_residual";
        set(PARALLEL, Value::Bool(config.bool(&[PARALLEL]) != Some(false)));
    }
    if let Some(bound) = config.positive(&["clip_qkv"])?.filter(|_| name == "olmo") {
        set("attention.clamp_kqv", Value::F32(bound as f32));
    }
    if name == "minimax-m2" {
        // A sigmoid.
        set("expert_gating_func", count(2));
    }
    if name == "starcoder" && config.str(&["activation_function"]) == Some("gelu") {
        notes.push(
            "readers of GGUF compute GELU of StarCoder by its approximation with tanh, the model exactly"
                .to_owned(),
        );
    }
    if name == "mistral3" {
        for (from, to) in config.rope_numbers(&[
            ("beta_fast", "rope.scaling.yarn_beta_fast"),
            ("beta_slow", "rope.scaling.yarn_beta_slow"),
            ("mscale_all_dim", "rope.scaling.yarn_log_multiplier"),
            ("llama_4_scaling_beta", "attention.temperature_scale"),
        ]) {
            set(to, Value::F32(from as f32));
        }
    }
    if let Some(drafts) = &shape.drafts {
        drafts.write(config, shape.n_layers, notes, &mut set)?;
    }
    if let Some(altup) = &shape.altup {
        altup.write(&mut set);
    }
    if let Some(gates) = &shape.gates {
        gates.write(&mut set);
    }
    if let Some(layered) = &shape.layered {
        layered.write([shape.ffn.unwrap_or(0), shape.n_kv_heads, shape.head_dim], &mut set);
    }
    if let Some(period) = arch.windows {
        windows((name, period), config, shape, metadata)?;
    } else if config.bool(&["use_sliding_window"]) != Some(false)
        && let Some(window) = config.count(&["sliding_window"])?.filter(|window| *window < shape.n_ctx)
    {
        notes.push(format!(
            "the model has a sliding window of {window} positions, but GGUF has no key for it with \
             architecture {name}: attention sees the whole context, as in llama.cpp"
        ));
    }
    Ok(())
}

/// Writes the keys of the model's name: from its card, then from the name in its configuration, then from its
/// folder, as far as each provides them.
pub fn identity(folder: &Path, config: &Config, front: &Front, n_weights: u64, metadata: &mut Metadata) {
    let of_card = |keys: &[&str]| keys.iter().find_map(|key| card::first(front, key));
    // Not a path on the computer where the checkpoint was created.
    let kept = config.str(&["_name_or_path"]).filter(|name| name.matches('/').count() <= 1);
    let of_folder = names::id_of_folder(folder);
    let ids = kept.into_iter().chain([of_folder.as_str()]);
    let found: Vec<Components> = ids.map(|id| Components::of(id, n_weights)).collect();
    let or_found = |own: Option<String>, of: fn(&Components) -> &Option<String>| {
        own.or_else(|| found.iter().find_map(|found| of(found).clone()))
    };
    let title = |name: &Option<String>| name.as_deref().map(names::title);
    let name = of_card(&["name", "model_name"]).or_else(|| found.iter().find_map(|found| title(&found.name)));
    let organization = of_card(&["organization", "model_organization"])
        .or_else(|| found.iter().find_map(|found| title(&found.organization)));
    let version = or_found(of_card(&["version", "model_version"]), |found| &found.version);
    let finetune = or_found(of_card(&["finetune", "model_finetune"]), |found| &found.finetune);
    let basename = of_card(&["basename", "model_basename", "model_type"]);
    let size = or_found(of_card(&["size_label", "model_size_label"]), |found| &found.size_label);
    for (key, value) in [
        ("name", Some(name.unwrap_or_else(|| "model".to_owned()))),
        ("author", of_card(&["author", "model_author", "model_creator"])),
        ("version", version),
        ("organization", organization),
        ("finetune", finetune),
        ("basename", or_found(basename, |found| &found.basename)),
        ("description", of_card(&["description", "model_description"])),
        // Reserves its place among the first keys; without a name that contains it, the tensors are counted
        // later.
        ("size_label", Some(size.unwrap_or_default())),
    ] {
        if let Some(value) = value {
            metadata.set(format!("general.{key}"), value);
        }
    }
}

/// Windows and soft caps. A period has `period` layers unless the configuration says otherwise.
fn windows(
    (arch, period): (&str, usize),
    config: &Config,
    shape: &Shape,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    let key = |name: &str| format!("{arch}.{name}");
    let is_listed = matches!(arch, "exaone4" | "mellum");
    // Readers assume that each period of Laguna begins with the layer without a window.
    let global_first = arch == "laguna";
    let all_global = |list: &Json| {
        list.as_array().is_some_and(|list| list.iter().all(|kind| kind.as_str() == Some("full_attention")))
    };
    if global_first && config.get(&["layer_types"]).is_none_or(all_global) {
        return Ok(());
    }
    if is_listed && config.count(&["sliding_window"])?.is_none() {
        return Ok(());
    }
    metadata.set(key("attention.sliding_window"), config.require(&["sliding_window"])? as u32);
    for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(value) = config.positive(&[cap])? {
            metadata.set(key(cap), value as f32);
        }
    }
    const PATTERN: &str = "attention.sliding_window_pattern";
    if let Some(list) = config.get(&["layer_types"]) {
        let slides = |kind: &Json| match kind.as_str() {
            Some("sliding_attention") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        };
        let found: Option<Vec<bool>> =
            list.as_array().map(Vec::as_slice).unwrap_or_default().iter().map(slides).collect();
        let found = found.filter(|found| found.len() == shape.n_layers).ok_or_else(|| {
            config.wrong("layer_types", "sliding_attention or full_attention for each layer", Some(list))
        })?;
        // Layers of two kinds are always listed.
        let global = if global_first { 0 } else { period - 1 };
        let is_usual = found.iter().enumerate().all(|(layer, slides)| *slides == (layer % period != global));
        if global_first && !is_usual {
            let want = "full_attention in the first of every four layers: GGUF has no key for others";
            return Err(config.wrong("layer_types", want, Some(list)));
        }
        if shape.layered.is_none() && (is_listed || !is_usual) {
            let values: Vec<Value> = found.into_iter().map(Value::Bool).collect();
            metadata.set(key(PATTERN), Array::from_values(ValueType::Bool, &values));
        }
    } else if let Some(n) = config.count(&["sliding_window_pattern", "_sliding_window_pattern"])?
        && n != period
    {
        metadata.set(key(PATTERN), n as u32);
    }
    Ok(())
}

/// Writes recommended sampling parameters, unless the model is not to be sampled.
fn sampling(generation: &Json, metadata: &mut Metadata, notes: &mut Vec<String>) {
    let floats = [
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("temperature", "temp"),
        ("repetition_penalty", "penalty_repeat"),
    ];
    let number = |key: &str| generation.get(key).and_then(Json::as_f64);
    if generation.get("do_sample").and_then(Json::as_bool) == Some(false) {
        if floats.iter().any(|(key, _)| number(key).is_some()) || number("top_k").is_some() {
            notes.push(
                "generation_config.json has do_sample false, for which GGUF has no key: its sampling \
                 parameters are left out"
                    .to_owned(),
            );
        }
        return;
    }
    if let Some(k) = generation.get("top_k").and_then(Json::as_i64).and_then(|k| i32::try_from(k).ok()) {
        metadata.set("general.sampling.top_k", k);
    }
    for (key, name) in floats {
        if let Some(value) = number(key) {
            metadata.set(format!("general.sampling.{name}"), value as f32);
        }
    }
}

/// Formats the number of weights as llama.cpp's converter does: `2.4B`, or `128x1.5B` for a mixture, where
/// the weights of one expert are counted.
pub fn size_label(tensors: &[TensorInfo], n_experts: Option<usize>) -> String {
    let n: usize = tensors.iter().map(TensorInfo::n_elems).sum();
    let Some(n_experts) = n_experts else { return rounded(n) };
    let of_experts: usize =
        tensors.iter().filter(|info| info.name.contains("_exps.")).map(TensorInfo::n_elems).sum();
    format!("{n_experts}x{}", rounded(n - of_experts + of_experts / n_experts))
}

fn rounded(n: usize) -> String {
    let (scale, letter) = match n as f64 {
        n if n > 1e12 => (1e-12, "T"),
        n if n > 1e9 => (1e-9, "B"),
        n if n > 1e6 => (1e-6, "M"),
        _ => (1e-3, "K"),
    };
    let scaled = n as f64 * scale;
    let digits = (scaled.round_ties_even() as u64).to_string();
    let fraction = 2usize.saturating_sub(digits.trim_start_matches('0').len());
    format!("{scaled:.fraction$}{letter}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_upstreams() {
        assert_eq!(rounded(2_412_820_480), "2.4B");
        assert_eq!(rounded(291_000), "291K");
        assert_eq!(rounded(8_030_261_312), "8.0B");
        assert_eq!(rounded(900), "0.9K");
    }
}
