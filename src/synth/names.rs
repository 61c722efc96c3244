//! Names of the tensors and metadata of each model family.

use super::preset::{Family, Gate, MambaForm, Norms, Spec};
use super::vocab::Vocab;
use super::{Fill, Tensor};
use sterna_gguf::{Array, Metadata, Value, ValueType};

/// Factor by which GPT-OSS extends its trained context.
const YARN_FACTOR: u32 = 32;

/// Rows that the convolution of a delta net reads.
const TAPS: usize = 4;

/// Distance between attention layers if the others have delta nets.
const PERIOD: usize = 4;

/// The layers of LFM2-1.2B that have attention; the others have a convolution over `SHORT_TAPS` rows.
const LFM2_ATTENTION: [usize; 6] = [2, 5, 8, 10, 12, 14];
const SHORT_TAPS: usize = 3;

/// Number of token types of an encoder.
const TOKEN_TYPES: usize = 2;

/// True if a layer has a delta net; every `PERIOD`-th layer has attention.
fn recurs(layer: usize) -> bool {
    layer % PERIOD != PERIOD - 1
}

/// Elements of a head that RoPE rotates.
fn rope_dims(spec: &Spec) -> usize {
    match spec.family {
        Family::Qwen35 { .. } | Family::Qwen3Next { .. } => (spec.head_dim / 4).max(2),
        Family::Glm4 | Family::Glm4Moe { .. } => spec.head_dim / 2,
        Family::Phi3 { rope_dims, .. } => rope_dims.min(spec.head_dim),
        Family::Relative(relative) if relative.rope_dims > 0 => relative.rope_dims.min(spec.head_dim),
        Family::DeepSeek2 { rope_dims, .. } => rope_dims,
        _ => spec.head_dim,
    }
}

/// Residual streams of Gemma 3n, and the distance between its layers without a window.
const STREAMS: usize = 4;
const GEMMA3N_PERIOD: usize = 5;

/// Number of Gemma 4's layers that have a cache: all, if too few layers of both kinds are left for the others
/// to read.
fn layers_with_caches(n_layers: usize, shared: usize, period: usize) -> usize {
    if n_layers >= shared + period { n_layers - shared } else { n_layers }
}

/// The same keys as in published files.
pub(super) fn metadata(spec: &Spec) -> Metadata {
    let architecture = spec.family.architecture();
    let mut out = Metadata::default();
    out.set("general.architecture", architecture);
    out.set("general.name", spec.name.as_str());
    let has_layer_norms = match spec.family {
        Family::Relative(relative) => relative.has_layer_norms(),
        family => !family.has_rope(),
    };
    let mut set = |key: &str, value: usize| out.set(format!("{architecture}.{key}"), value as u32);
    set("vocab_size", spec.n_vocab);
    set("context_length", spec.n_ctx);
    set("embedding_length", spec.dim);
    set("block_count", spec.n_layers + usize::from(spec.mtp));
    if spec.mtp {
        set("nextn_predict_layers", 1);
    }
    match spec.family {
        Family::Qwen35 { experts: Some(_), .. } => {}
        family => {
            set("feed_forward_length", family.dense_first().map_or(spec.ffn_dim, |(_, dense_dim)| dense_dim));
        }
    }
    let attends = !matches!(spec.family, Family::Mamba { form: MambaForm::Alone, .. });
    set("attention.head_count", if attends { spec.n_heads } else { 0 });
    if !attends {
        set("feed_forward_length", 0);
        out.set(format!("{architecture}.attention.layer_norm_rms_epsilon"), spec.norm_eps);
    } else if spec.family.has_rope() {
        if !matches!(spec.family, Family::Lfm2 | Family::Lfm2Moe { .. } | Family::Mamba { .. }) {
            set("attention.head_count_kv", spec.n_kv_heads);
        }
        let [key, value] = match spec.family {
            Family::DeepSeek2 { rank, rope_dims, .. } => [rank + rope_dims, rank],
            _ => [spec.head_dim; 2],
        };
        set("attention.key_length", key);
        set("attention.value_length", value);
        set("rope.dimension_count", rope_dims(spec));
        out.set(format!("{architecture}.rope.freq_base"), spec.rope_base);
        if !has_layer_norms {
            out.set(format!("{architecture}.attention.layer_norm_rms_epsilon"), spec.norm_eps);
        }
    }
    // llama.cpp requires it of files of Nemotron-H, too.
    if has_layer_norms || architecture.starts_with("nemotron_h") {
        out.set(format!("{architecture}.attention.layer_norm_epsilon"), spec.norm_eps);
    }
    if let Some((n_experts, n_used)) = spec.family.experts() {
        let mut set = |key: &str, value: usize| out.set(format!("{architecture}.{key}"), value as u32);
        set("expert_count", n_experts);
        set("expert_used_count", n_used);
        if !matches!(spec.family, Family::Mixtral { .. } | Family::Relative(_)) {
            set("expert_feed_forward_length", spec.ffn_dim);
        }
        if spec.family.delta_net().is_some() {
            set("expert_shared_feed_forward_length", spec.ffn_dim);
        }
    }
    if let Family::Gemma2 { window }
    | Family::Gemma3 { window }
    | Family::GptOss { window, .. }
    | Family::Olmo2 { long: Some((window, _)) } = spec.family
    {
        out.set(format!("{architecture}.attention.sliding_window"), window as u32);
    }
    if let Family::Olmo2 { long: Some((_, original)) } | Family::Mistral3 { original_ctx: original } =
        spec.family
    {
        let factor = (spec.n_ctx as f32 / original as f32).max(1.0);
        out.set(format!("{architecture}.rope.scaling.type"), "yarn");
        out.set(format!("{architecture}.rope.scaling.factor"), factor);
        out.set(format!("{architecture}.rope.scaling.original_context_length"), original as u32);
    }
    if let Some([n_key_heads, n_value_heads, state_dim]) = spec.family.delta_net() {
        let mut set = |key: &str, value: usize| out.set(format!("{architecture}.{key}"), value as u32);
        set("full_attention_interval", PERIOD);
        let recurs = (0..spec.n_layers).map(recurs).chain(spec.mtp.then_some(false));
        let recurs: Vec<Value> = recurs.map(Value::Bool).collect();
        let listed = Array::from_values(ValueType::Bool, &recurs);
        set("ssm.conv_kernel", TAPS);
        set("ssm.state_size", state_dim);
        set("ssm.group_count", n_key_heads);
        set("ssm.time_step_rank", n_value_heads);
        set("ssm.inner_size", n_value_heads * state_dim);
        out.set(format!("{architecture}.attention.recurrent_layers"), listed);
    }
    match spec.family {
        Family::MiniCpm => {
            // As in the published models: scale_emb, scale_depth and dim_model_base.
            out.set(format!("{architecture}.embedding_scale"), 12.0_f32);
            out.set(format!("{architecture}.residual_scale"), 1.4 / (spec.n_layers as f32).sqrt());
            out.set(format!("{architecture}.logit_scale"), spec.dim as f32 / 256.0);
        }
        Family::Granite { scores, logits } => {
            out.set(format!("{architecture}.attention.scale"), 1.0 / scores as f32);
            // As in the published models.
            out.set(format!("{architecture}.embedding_scale"), 12.0_f32);
            out.set(format!("{architecture}.residual_scale"), 0.22_f32);
            out.set(format!("{architecture}.logit_scale"), logits as f32);
        }
        Family::Lfm2 | Family::Lfm2Moe { .. } => {
            let heads = |layer| if LFM2_ATTENTION.contains(&layer) { spec.n_kv_heads as i32 } else { 0 };
            let heads = Array::from_i32s((0..spec.n_layers).map(heads));
            out.set(format!("{architecture}.attention.head_count_kv"), heads);
            out.set(format!("{architecture}.shortconv.l_cache"), SHORT_TAPS as u32);
        }
        Family::Mamba { form, n_heads, n_groups, head_dim, state_dim } => {
            let mut set = |key: &str, value: usize| out.set(format!("{architecture}.{key}"), value as u32);
            set("ssm.conv_kernel", TAPS);
            set("ssm.state_size", state_dim);
            set("ssm.group_count", n_groups);
            set("ssm.time_step_rank", n_heads);
            set("ssm.inner_size", n_heads * head_dim);
            let of_layers = |part: usize, n: usize| {
                let number = |layer| if form.parts(layer)[part] { n as i32 } else { 0 };
                Array::from_i32s((0..spec.n_layers).map(number))
            };
            match form {
                MambaForm::Alone => {}
                MambaForm::Falcon => set("attention.head_count_kv", spec.n_kv_heads),
                _ => {
                    out.set(format!("{architecture}.attention.head_count_kv"), of_layers(1, spec.n_kv_heads))
                }
            }
            if form.is_nemotron() {
                out.set(format!("{architecture}.feed_forward_length"), of_layers(2, spec.ffn_dim));
            }
            if form == MambaForm::Granite {
                // As in the published models.
                let factors = [
                    ("attention.scale", 1.0 / spec.head_dim as f32),
                    ("embedding_scale", 12.0),
                    ("residual_scale", 0.22),
                    ("logit_scale", 8.0),
                ];
                for (key, value) in factors {
                    out.set(format!("{architecture}.{key}"), value);
                }
                out.set(format!("{architecture}.rope.scaling.finetuned"), false);
            }
        }
        Family::DeepSeek2 { q_rank, rank, value_dim, .. } => {
            let mut set =
                |key: &str, value: usize| out.set(format!("{architecture}.attention.{key}"), value as u32);
            set("q_lora_rank", q_rank);
            set("kv_lora_rank", rank);
            set("key_length_mla", spec.head_dim);
            set("value_length_mla", value_dim);
            // As in GLM-4.7-Flash.
            out.set(format!("{architecture}.expert_weights_scale"), 1.8_f32);
        }
        Family::Phi3 { original_ctx: Some(original), .. } => {
            out.set(format!("{architecture}.rope.scaling.original_context_length"), original as u32);
            let extension = (spec.n_ctx as f32 / original as f32).max(1.0);
            let factor = (1.0 + extension.ln() / (original as f32).ln()).sqrt();
            out.set(format!("{architecture}.rope.scaling.attn_factor"), factor);
        }
        Family::Gemma2 { .. } => {
            // As in the published models.
            out.set(format!("{architecture}.attn_logit_softcapping"), 50.0_f32);
            out.set(format!("{architecture}.final_logit_softcapping"), 30.0_f32);
        }
        Family::Gemma4 {
            window,
            global: [head_dim, n_kv_heads],
            period,
            shared: (shared, doubles),
            layer_input,
        } => {
            let slides: Vec<bool> = (0..spec.n_layers).map(|at| at % period != period - 1).collect();
            let mut set = |key: &str, value: Value| out.set(format!("{architecture}.{key}"), value);
            let number = |n: usize| Value::U32(n as u32);
            let each = |of: &dyn Fn(usize) -> usize| -> Value {
                let all: Vec<Value> = (0..spec.n_layers).map(|at| number(of(at))).collect();
                Array::from_values(ValueType::U32, &all).into()
            };
            let own = layers_with_caches(spec.n_layers, shared, period);
            if doubles {
                let width = |at| if at < own { spec.ffn_dim } else { 2 * spec.ffn_dim };
                set("feed_forward_length", each(&width));
            }
            if n_kv_heads != spec.n_kv_heads {
                set(
                    "attention.head_count_kv",
                    each(&|at| if slides[at] { spec.n_kv_heads } else { n_kv_heads }),
                );
            }
            for name in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
                set(name, number(head_dim));
                set(&format!("{name}_swa"), number(spec.head_dim));
            }
            set("rope.freq_base_swa", Value::F32(10_000.0));
            set("attention.sliding_window", number(window));
            set("attention.shared_kv_layers", number(spec.n_layers - own));
            set("embedding_length_per_layer_input", number(layer_input));
            set("final_logit_softcapping", Value::F32(30.0));
            let slides: Vec<Value> = slides.into_iter().map(Value::Bool).collect();
            set("attention.sliding_window_pattern", Array::from_values(ValueType::Bool, &slides).into());
        }
        Family::Gemma3n { window, shared, layer_input, .. } => {
            let own = layers_with_caches(spec.n_layers, shared, GEMMA3N_PERIOD);
            let mut set = |key: &str, value: Value| out.set(format!("{architecture}.{key}"), value);
            let number = |n: usize| Value::U32(n as u32);
            // Above these are 5 % of a normal distribution.
            let cutoffs = (0..spec.n_layers).map(|at| if at < 10 { 1.644_853_6 } else { f32::NEG_INFINITY });
            set("activation_sparsity_scale", Array::from_f32s(cutoffs).into());
            set("altup.num_inputs", number(STREAMS));
            set("altup.active_idx", number(0));
            set("rope.freq_base_swa", Value::F32(10_000.0));
            set("attention.sliding_window", number(window));
            set("attention.shared_kv_layers", number(spec.n_layers - own));
            set("embedding_length_per_layer_input", number(layer_input));
            set("final_logit_softcapping", Value::F32(30.0));
            let slides = |at: usize| Value::Bool(at % GEMMA3N_PERIOD != GEMMA3N_PERIOD - 1);
            let slides: Vec<Value> = (0..spec.n_layers).map(slides).collect();
            set("attention.sliding_window_pattern", Array::from_values(ValueType::Bool, &slides).into());
        }
        Family::Mistral3 { .. } => {
            // As in the published models.
            out.set(format!("{architecture}.rope.scaling.yarn_log_multiplier"), 1.0_f32);
            out.set(format!("{architecture}.attention.temperature_scale"), 0.1_f32);
        }
        Family::Qwen35 { .. } => {
            // The sections of a multimodal model, which take the pairs in turn; for text they have no effect.
            let section = (rope_dims(spec) / 2).div_ceil(3) as i32;
            let sections = Array::from_i32s([section, section, section, 0]);
            out.set(format!("{architecture}.rope.dimension_sections"), sections);
        }
        Family::Bert => {
            out.set(format!("{architecture}.attention.causal"), false);
            // The first row.
            out.set(format!("{architecture}.pooling_type"), 2_u32);
            out.set("tokenizer.ggml.token_type_count", TOKEN_TYPES as u32);
            out.set("tokenizer.ggml.add_eos_token", true);
        }
        Family::BitNetEmbedding => {
            // The last row.
            out.set(format!("{architecture}.pooling_type"), 3_u32);
            out.set("tokenizer.ggml.add_eos_token", true);
        }
        Family::GptOss { .. } => {
            let mut set =
                |key: &str, value: u32| out.set(format!("{architecture}.rope.scaling.{key}"), value);
            set("original_context_length", (spec.n_ctx as u32 / YARN_FACTOR).max(1));
            out.set(format!("{architecture}.rope.scaling.type"), "yarn");
            out.set(format!("{architecture}.rope.scaling.factor"), YARN_FACTOR as f32);
        }
        _ => {}
    }
    if let Some((n_dense, _)) = spec.family.dense_first() {
        // As in the published models: sigmoid, normalised.
        out.set(format!("{architecture}.leading_dense_block_count"), n_dense as u32);
        out.set(format!("{architecture}.expert_gating_func"), 2_u32);
        if spec.family.shared_dim(spec.ffn_dim).is_some() {
            out.set(format!("{architecture}.expert_shared_count"), 1_u32);
            out.set(format!("{architecture}.expert_weights_norm"), true);
        }
    }
    if let Family::Mamba { form: MambaForm::NemotronMoe { shared_dim, .. }, .. } = spec.family {
        out.set(format!("{architecture}.expert_shared_feed_forward_length"), shared_dim as u32);
        out.set(format!("{architecture}.expert_weights_norm"), true);
        out.set(format!("{architecture}.expert_weights_scale"), 2.5_f32);
    }
    if let Some(file_type) = spec.ty.file_type() {
        out.set("general.file_type", file_type);
    }
    out.set("general.quantization_version", 2_u32);

    let vocab = Vocab::new(spec);
    out.set("tokenizer.ggml.model", "gpt2");
    if let Some(pre) = spec.pre {
        out.set("tokenizer.ggml.pre", pre);
    }
    out.set("tokenizer.ggml.tokens", Array::from_strs(vocab.tokens.iter().map(String::as_str)));
    out.set("tokenizer.ggml.token_type", Array::from_i32s(vocab.kinds));
    out.set("tokenizer.ggml.merges", Array::from_strs(vocab.merges.iter().map(String::as_str)));
    out.set("tokenizer.ggml.bos_token_id", vocab.bos);
    out.set("tokenizer.ggml.eos_token_id", vocab.eos);
    out.set("tokenizer.ggml.padding_token_id", vocab.pad);
    if spec.family != Family::Gpt2 {
        out.set("tokenizer.ggml.eot_token_id", vocab.eot);
        out.set("tokenizer.ggml.add_bos_token", spec.family.adds_bos());
    }
    out
}

/// Tensors in file order. The deviations keep every activation near 1: a matrix of `cols` columns has entries
/// of `1 / sqrt(cols)`, or of `sqrt(2 / cols)` if every second one is 0.
pub(super) fn tensors(spec: &Spec) -> Vec<Tensor> {
    let mut out = Tensors { spec, tensors: Vec::new() };
    out.matrix("token_embd", spec.n_vocab, spec.dim, true);
    let of_rows = Fill::Dense(1.0 / (spec.dim as f32).sqrt());
    if !spec.family.has_rope() {
        out.vector("position_embd.weight", &[spec.n_ctx, spec.dim], of_rows);
    }
    if spec.family == Family::Bert {
        out.vector("token_types.weight", &[TOKEN_TYPES, spec.dim], of_rows);
        out.norm("token_embd_norm", spec.dim);
    }
    if let Family::Phi3 { original_ctx: Some(_), .. } = spec.family {
        for (name, most) in [("long", 64.0), ("short", 2.0)] {
            let name = format!("rope_factors_{name}.weight");
            out.vector(&name, &[rope_dims(spec) / 2], Fill::Between(1.0, most));
        }
    }
    if let Family::Gemma4 { global: [head_dim, _], period, layer_input, .. } = spec.family {
        if spec.n_layers >= period {
            out.vector("rope_freqs.weight", &[head_dim / 2], Fill::Between(1.0, 1e30));
        }
        if layer_input > 0 {
            let of_layers = spec.n_layers * layer_input;
            out.matrix("per_layer_token_embd", spec.n_vocab, of_layers, true);
            out.matrix("per_layer_model_proj", of_layers, spec.dim, false);
            out.norm("per_layer_proj_norm", layer_input);
        }
    }
    if let Family::Gemma3n { layer_input, .. } = spec.family {
        let of_layers = spec.n_layers * layer_input;
        out.matrix("per_layer_token_embd", spec.n_vocab, of_layers, true);
        out.matrix("per_layer_model_proj", of_layers, spec.dim, false);
        out.norm("per_layer_proj_norm", layer_input);
        for name in ["altup_proj", "altup_unembd_proj"] {
            out.linear(name, (STREAMS - 1) * spec.dim, spec.dim);
        }
    }
    for layer in 0..spec.n_layers {
        match spec.family {
            Family::Gemma4 { .. } => out.gemma4_block(layer),
            Family::Gemma3n { .. } => out.gemma3n_block(layer),
            Family::Bert => out.encoder_block(&format!("blk.{layer}")),
            family if family.delta_net().is_some() => {
                out.hybrid_block(&format!("blk.{layer}"), recurs(layer));
            }
            Family::Mamba { .. } => out.mamba_block(&format!("blk.{layer}"), layer),
            Family::Lfm2 | Family::Lfm2Moe { .. } if !LFM2_ATTENTION.contains(&layer) => {
                out.conv_block(layer)
            }
            _ => out.block(layer),
        }
    }
    if spec.mtp {
        let blk = format!("blk.{}", spec.n_layers);
        out.hybrid_block(&blk, false);
        out.linear(&format!("{blk}.nextn.eh_proj"), spec.dim, 2 * spec.dim);
        for name in ["enorm", "hnorm", "shared_head_norm"] {
            out.norm(&format!("{blk}.nextn.{name}"), spec.dim);
        }
    }
    if spec.family == Family::Bert {
        out.linear("cls", spec.dim, spec.dim);
        out.linear("cls.output", 1, spec.dim);
        return out.tensors;
    }
    let of_embedding = matches!(spec.family, Family::Lfm2 | Family::Lfm2Moe { .. });
    out.norm(if of_embedding { "token_embd_norm" } else { "output_norm" }, spec.dim);
    if !spec.tied {
        out.matrix("output", spec.n_vocab, spec.dim, true);
        if let Family::Relative(_) = spec.family {
            out.bias("output", &[spec.n_vocab]);
        }
    }
    out.tensors
}

struct Tensors<'a> {
    spec: &'a Spec,
    tensors: Vec<Tensor>,
}

impl Tensors<'_> {
    fn block(&mut self, layer: usize) {
        let blk = format!("blk.{layer}");
        let Spec { family, dim, ffn_dim, n_heads, n_kv_heads, head_dim, .. } = *self.spec;
        let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
        let relative = if let Family::Relative(relative) = family { Some(relative) } else { None };
        let norms = relative.map(|relative| relative.norms);
        let sub_norms = family == Family::BitNet;
        let pre_norms = !matches!(family, Family::Olmo2 { .. });
        let post_norms =
            !pre_norms || matches!(family, Family::Gemma2 { .. } | Family::Gemma3 { .. } | Family::Glm4);
        let gate = match relative {
            Some(relative) => relative.gate,
            None if family == Family::Gpt2 => Gate::None,
            None if matches!(family, Family::Glm4 | Family::Phi3 { .. }) => Gate::Fused,
            None => Gate::Own,
        };
        if pre_norms {
            self.norm(&format!("{blk}.attn_norm"), dim);
        }
        if norms == Some(Norms::TwoLayer) {
            self.norm(&format!("{blk}.attn_norm_2"), dim);
        }
        let mut outputs = q_dim;
        if let Family::DeepSeek2 { q_rank, rank, rope_dims, value_dim, .. } = family {
            self.linear(&format!("{blk}.attn_q_a"), q_rank, dim);
            self.norm(&format!("{blk}.attn_q_a_norm"), q_rank);
            self.linear(&format!("{blk}.attn_q_b"), q_dim, q_rank);
            self.linear(&format!("{blk}.attn_kv_a_mqa"), rank + rope_dims, dim);
            self.norm(&format!("{blk}.attn_kv_a_norm"), rank);
            self.matrices(&format!("{blk}.attn_k_b"), &[n_heads, rank, head_dim - rope_dims], false);
            self.matrices(&format!("{blk}.attn_v_b"), &[n_heads, value_dim, rank], false);
            outputs = n_heads * value_dim;
        } else if matches!(family, Family::Gpt2 | Family::Phi3 { .. })
            || relative.is_some_and(|relative| relative.fused_qkv)
        {
            self.linear(&format!("{blk}.attn_qkv"), q_dim + 2 * kv_dim, dim);
        } else {
            self.linear(&format!("{blk}.attn_q"), q_dim, dim);
            self.linear(&format!("{blk}.attn_k"), kv_dim, dim);
            self.linear(&format!("{blk}.attn_v"), kv_dim, dim);
        }
        if family.has_head_norms() {
            self.norm(&format!("{blk}.attn_q_norm"), head_dim);
            self.norm(&format!("{blk}.attn_k_norm"), head_dim);
        }
        if !pre_norms || relative.is_some_and(|relative| relative.row_norms) {
            self.norm(&format!("{blk}.attn_q_norm"), q_dim);
            self.norm(&format!("{blk}.attn_k_norm"), kv_dim);
        }
        if sub_norms {
            self.norm(&format!("{blk}.attn_sub_norm"), q_dim);
        }
        self.linear(&format!("{blk}.attn_output"), dim, outputs);
        if post_norms {
            self.norm(&format!("{blk}.post_attention_norm"), dim);
        }
        if let Family::GptOss { .. } = family {
            self.vector(&format!("{blk}.attn_sinks.weight"), &[n_heads], Fill::Dense(1.0));
        }
        match family {
            // The norm before the experts.
            Family::GptOss { .. } | Family::Glm4Moe { .. } => {
                self.norm(&format!("{blk}.post_attention_norm"), dim);
            }
            _ if matches!(norms, Some(Norms::OneLayer | Norms::TwoLayer)) => {}
            _ if pre_norms => self.norm(&format!("{blk}.ffn_norm"), dim),
            _ => {}
        }
        let dense_first = family.dense_first().filter(|(n_dense, _)| layer < *n_dense);
        let ffn_dim = dense_first.map_or(ffn_dim, |(_, dense_dim)| dense_dim);
        if dense_first.is_none() && self.experts(&blk, true) {
            return;
        }
        if gate == Gate::Own {
            self.linear(&format!("{blk}.ffn_gate"), ffn_dim, dim);
        }
        self.linear(&format!("{blk}.ffn_up"), if gate == Gate::Fused { 2 * ffn_dim } else { ffn_dim }, dim);
        if sub_norms {
            self.norm(&format!("{blk}.ffn_sub_norm"), ffn_dim);
        }
        self.linear(&format!("{blk}.ffn_down"), dim, ffn_dim);
        if post_norms {
            self.norm(&format!("{blk}.post_ffw_norm"), dim);
        }
    }

    /// The experts of a block; false if the family has none.
    fn experts(&mut self, blk: &str, gated: bool) -> bool {
        let Spec { family, dim, ffn_dim, .. } = *self.spec;
        let Some((n_experts, _)) = family.experts() else { return false };
        let shared_dim = family.shared_dim(ffn_dim);
        let fill = Fill::Dense(1.0 / (dim as f32).sqrt());
        self.vector(&format!("{blk}.ffn_gate_inp.weight"), &[n_experts, dim], fill);
        self.bias(&format!("{blk}.ffn_gate_inp"), &[n_experts]);
        for part in ["gate", "up", "down"].into_iter().filter(|part| gated || *part != "gate") {
            let shape = |width: usize| if part == "down" { [dim, width] } else { [width, dim] };
            let (name, [rows, cols]) = (format!("{blk}.ffn_{part}_exps"), shape(ffn_dim));
            self.matrices(&name, &[n_experts, rows, cols], false);
            self.bias(&name, &[n_experts, rows]);
            if let Some([rows, cols]) = shared_dim.map(shape) {
                self.linear(&format!("{blk}.ffn_{part}_shexp"), rows, cols);
            }
        }
        if family.dense_first().is_some() || shared_dim.is_some() {
            self.vector(&format!("{blk}.exp_probs_b.bias"), &[n_experts], Fill::Dense(0.02));
        }
        true
    }

    /// A block of Gemma 4, with a window or without.
    fn gemma4_block(&mut self, layer: usize) {
        let Spec { family, n_layers, dim, ffn_dim, n_heads, n_kv_heads, head_dim, .. } = *self.spec;
        let Family::Gemma4 { global, period, shared: (shared, doubles), layer_input, .. } = family else {
            unreachable!("a block of another family")
        };
        let slides = layer % period != period - 1;
        let has_keys = layer < layers_with_caches(n_layers, shared, period);
        let [head_dim, n_kv_heads] = if slides { [head_dim, n_kv_heads] } else { global };
        let ffn_dim = if doubles && !has_keys { 2 * ffn_dim } else { ffn_dim };
        let blk = |name: &str| format!("blk.{layer}.{name}");
        self.norm(&blk("attn_norm"), dim);
        self.linear(&blk("attn_q"), n_heads * head_dim, dim);
        self.norm(&blk("attn_q_norm"), head_dim);
        if has_keys {
            self.linear(&blk("attn_k"), n_kv_heads * head_dim, dim);
            self.norm(&blk("attn_k_norm"), head_dim);
            self.linear(&blk("attn_v"), n_kv_heads * head_dim, dim);
        }
        self.linear(&blk("attn_output"), dim, n_heads * head_dim);
        self.norm(&blk("post_attention_norm"), dim);
        self.norm(&blk("ffn_norm"), dim);
        self.linear(&blk("ffn_gate"), ffn_dim, dim);
        self.linear(&blk("ffn_up"), ffn_dim, dim);
        self.linear(&blk("ffn_down"), dim, ffn_dim);
        self.norm(&blk("post_ffw_norm"), dim);
        if layer_input > 0 {
            self.linear(&blk("inp_gate"), layer_input, dim);
            self.linear(&blk("proj"), dim, layer_input);
            self.norm(&blk("post_norm"), dim);
        }
        self.vector(&blk("layer_output_scale.weight"), &[1], Fill::NearOne);
    }

    /// A block of Gemma 3n.
    fn gemma3n_block(&mut self, layer: usize) {
        let Spec { family, n_layers, dim, ffn_dim, n_heads, n_kv_heads, head_dim, .. } = *self.spec;
        let Family::Gemma3n { shared, layer_input, rank, .. } = family else {
            unreachable!("a block of another family")
        };
        let blk = |name: &str| format!("blk.{layer}.{name}");
        self.linear(&blk("altup_router"), STREAMS, dim);
        self.norm(&blk("altup_router_norm"), dim);
        for (name, rows) in [("predict", STREAMS * STREAMS), ("correct", STREAMS)] {
            let name = blk(&format!("altup_{name}_coef.weight"));
            self.vector(&name, &[rows, STREAMS], Fill::Dense(0.1));
        }
        self.norm(&blk("altup_correct_scale"), dim);
        // Rows of the second are too short for types with blocks of 256.
        self.matrix(&blk("laurel_l"), rank, dim, true);
        self.matrix(&blk("laurel_r"), dim, rank, true);
        self.norm(&blk("laurel_post_norm"), dim);
        self.norm(&blk("attn_norm"), dim);
        self.linear(&blk("attn_q"), n_heads * head_dim, dim);
        self.norm(&blk("attn_q_norm"), head_dim);
        if layer < layers_with_caches(n_layers, shared, GEMMA3N_PERIOD) {
            self.linear(&blk("attn_k"), n_kv_heads * head_dim, dim);
            self.norm(&blk("attn_k_norm"), head_dim);
            self.linear(&blk("attn_v"), n_kv_heads * head_dim, dim);
        }
        self.linear(&blk("attn_output"), dim, n_heads * head_dim);
        self.norm(&blk("post_attention_norm"), dim);
        self.norm(&blk("ffn_norm"), dim);
        self.linear(&blk("ffn_gate"), ffn_dim, dim);
        self.linear(&blk("ffn_up"), ffn_dim, dim);
        self.linear(&blk("ffn_down"), dim, ffn_dim);
        self.norm(&blk("post_ffw_norm"), dim);
        self.linear(&blk("inp_gate"), layer_input, dim);
        self.linear(&blk("proj"), dim, layer_input);
        self.norm(&blk("post_norm"), dim);
    }

    /// A block with norms after the sums.
    fn encoder_block(&mut self, blk: &str) {
        let Spec { dim, ffn_dim, .. } = *self.spec;
        for part in ["q", "k", "v", "output"] {
            self.linear(&format!("{blk}.attn_{part}"), dim, dim);
        }
        self.norm(&format!("{blk}.attn_output_norm"), dim);
        self.linear(&format!("{blk}.ffn_up"), ffn_dim, dim);
        self.linear(&format!("{blk}.ffn_down"), dim, ffn_dim);
        self.norm(&format!("{blk}.layer_output_norm"), dim);
    }

    /// A block with a delta net if it recurs, or else with gated attention.
    fn hybrid_block(&mut self, blk: &str, recurs: bool) {
        let Spec { family, dim, ffn_dim, n_heads, n_kv_heads, head_dim, .. } = *self.spec;
        let Some([n_key_heads, n_value_heads, state_dim]) = family.delta_net() else { return };
        let experts = family.experts();
        self.norm(&format!("{blk}.attn_norm"), dim);
        if recurs {
            let values = n_value_heads * state_dim;
            let channels = 2 * n_key_heads * state_dim + values;
            self.linear(&format!("{blk}.attn_qkv"), channels, dim);
            self.linear(&format!("{blk}.attn_gate"), values, dim);
            if let Family::Qwen3Next { .. } = family {
                self.linear(&format!("{blk}.ssm_ba"), 2 * n_value_heads, dim);
            } else {
                self.linear(&format!("{blk}.ssm_alpha"), n_value_heads, dim);
                self.linear(&format!("{blk}.ssm_beta"), n_value_heads, dim);
            }
            self.vector(&format!("{blk}.ssm_conv1d.weight"), &[channels, TAPS], Fill::Dense(0.5));
            // Some heads forget within a few tokens, others hardly at all.
            self.vector(&format!("{blk}.ssm_a"), &[n_value_heads], Fill::Between(-8.0, -0.25));
            self.vector(&format!("{blk}.ssm_dt.bias"), &[n_value_heads], Fill::Between(-6.0, 0.0));
            self.norm(&format!("{blk}.ssm_norm"), state_dim);
            self.linear(&format!("{blk}.ssm_out"), dim, values);
        } else {
            let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
            self.linear(&format!("{blk}.attn_q"), 2 * q_dim, dim);
            self.linear(&format!("{blk}.attn_k"), kv_dim, dim);
            self.linear(&format!("{blk}.attn_v"), kv_dim, dim);
            self.norm(&format!("{blk}.attn_q_norm"), head_dim);
            self.norm(&format!("{blk}.attn_k_norm"), head_dim);
            self.linear(&format!("{blk}.attn_output"), dim, q_dim);
        }
        self.norm(&format!("{blk}.post_attention_norm"), dim);
        let of_all = if experts.is_some() { "_shexp" } else { "" };
        for (part, rows, cols) in [("gate", ffn_dim, dim), ("up", ffn_dim, dim), ("down", dim, ffn_dim)] {
            self.linear(&format!("{blk}.ffn_{part}{of_all}"), rows, cols);
            if let Some((n_experts, _)) = experts {
                self.matrices(&format!("{blk}.ffn_{part}_exps"), &[n_experts, rows, cols], false);
            }
        }
        if let Some((n_experts, _)) = experts {
            let fill = Fill::Dense(1.0 / (dim as f32).sqrt());
            self.vector(&format!("{blk}.ffn_gate_inp.weight"), &[n_experts, dim], fill);
            self.vector(&format!("{blk}.ffn_gate_inp_shexp.weight"), &[dim], fill);
        }
    }

    /// A block with Mamba-2, attention and a feed-forward network, or some of these.
    fn mamba_block(&mut self, blk: &str, layer: usize) {
        let Spec { family, dim, ffn_dim, n_heads, n_kv_heads, head_dim, .. } = *self.spec;
        let Family::Mamba { form, n_heads: states, n_groups, head_dim: of_state, state_dim } = family else {
            return;
        };
        let [recurs, attends, has_ffn] = form.parts(layer);
        self.norm(&format!("{blk}.attn_norm"), dim);
        if recurs {
            let values = states * of_state;
            let channels = values + 2 * n_groups * state_dim;
            self.linear(&format!("{blk}.ssm_in"), values + channels + states, dim);
            self.vector(&format!("{blk}.ssm_conv1d.weight"), &[channels, TAPS], Fill::Dense(0.5));
            self.vector(&format!("{blk}.ssm_conv1d.bias"), &[channels], Fill::Dense(0.1));
            // Some heads forget within a few tokens, others hardly at all.
            self.vector(&format!("{blk}.ssm_a"), &[states, 1], Fill::Between(-8.0, -0.25));
            self.vector(&format!("{blk}.ssm_d"), &[states, 1], Fill::NearOne);
            self.vector(&format!("{blk}.ssm_dt.bias"), &[states], Fill::Between(-6.0, 0.0));
            if form != MambaForm::Falcon {
                self.vector(&format!("{blk}.ssm_norm.weight"), &[n_groups, values / n_groups], Fill::NearOne);
            }
            self.linear(&format!("{blk}.ssm_out"), dim, values);
        }
        if attends {
            let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
            for (part, rows, cols) in
                [("q", q_dim, dim), ("k", kv_dim, dim), ("v", kv_dim, dim), ("output", dim, q_dim)]
            {
                self.linear(&format!("{blk}.attn_{part}"), rows, cols);
            }
        }
        match form {
            MambaForm::Granite => self.norm(&format!("{blk}.ffn_norm"), dim),
            MambaForm::Falcon => self.vector(&format!("{blk}.ffn_norm"), &[dim], Fill::NearOne),
            MambaForm::Alone | MambaForm::Nemotron | MambaForm::NemotronMoe { .. } => {}
        }
        if has_ffn && !self.experts(blk, false) {
            for (part, rows, cols) in [("gate", ffn_dim, dim), ("up", ffn_dim, dim), ("down", dim, ffn_dim)] {
                if part != "gate" || !form.is_nemotron() {
                    self.linear(&format!("{blk}.ffn_{part}"), rows, cols);
                }
            }
        }
    }

    /// A block with a short convolution.
    fn conv_block(&mut self, layer: usize) {
        let Spec { family, dim, ffn_dim, .. } = *self.spec;
        let blk = &format!("blk.{layer}");
        self.norm(&format!("{blk}.attn_norm"), dim);
        self.linear(&format!("{blk}.shortconv.in_proj"), 3 * dim, dim);
        self.vector(&format!("{blk}.shortconv.conv.weight"), &[dim, SHORT_TAPS], Fill::Dense(0.5));
        self.linear(&format!("{blk}.shortconv.out_proj"), dim, dim);
        self.norm(&format!("{blk}.ffn_norm"), dim);
        let dense_first = family.dense_first().filter(|(n_dense, _)| layer < *n_dense);
        let ffn_dim = dense_first.map_or(ffn_dim, |(_, dense_dim)| dense_dim);
        if dense_first.is_none() && self.experts(blk, true) {
            return;
        }
        for (part, rows, cols) in [("gate", ffn_dim, dim), ("up", ffn_dim, dim), ("down", dim, ffn_dim)] {
            self.linear(&format!("{blk}.ffn_{part}"), rows, cols);
        }
    }

    fn linear(&mut self, name: &str, rows: usize, cols: usize) {
        if self.spec.family == Family::BitNetEmbedding {
            self.norm(&format!("{name}_norm_in"), cols);
        }
        self.matrix(name, rows, cols, false);
        self.bias(name, &[rows]);
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize, head: bool) {
        self.matrices(name, &[rows, cols], head);
    }

    fn matrices(&mut self, name: &str, dims: &[usize], head: bool) {
        let cols = dims[dims.len() - 1];
        let head = head || matches!(self.spec.family, Family::GptOss { .. }) && name.contains(".attn_");
        let ty = if head { self.spec.head_ty } else { self.spec.ty };
        // Ternary values are exact in the ternary types, and ordinary numbers in all others.
        let fill = if head || !self.spec.family.has_rope() {
            Fill::Dense(1.0 / (cols as f32).sqrt())
        } else {
            Fill::Ternary((2.0 / cols as f32).sqrt())
        };
        self.tensors.push(Tensor { name: format!("{name}.weight"), dims: dims.to_vec(), ty, fill });
    }

    fn norm(&mut self, name: &str, len: usize) {
        if let Family::Relative(relative) = self.spec.family
            && relative.norms == Norms::Bare
        {
            return;
        }
        self.vector(&format!("{name}.weight"), &[len], Fill::NearOne);
        self.bias(name, &[len]);
    }

    /// Adds a bias if the family has one.
    fn bias(&mut self, name: &str, dims: &[usize]) {
        let of_attention = || ["attn_q", "attn_k", "attn_v"].iter().any(|part| name.ends_with(part));
        let has_one = match self.spec.family {
            Family::Gpt2 | Family::Bert => true,
            Family::Qwen2 | Family::Glm4 | Family::Glm4Moe { .. } => of_attention(),
            Family::GptOss { .. } => !name.ends_with("_norm"),
            Family::Relative(relative) => relative.has_bias(name),
            _ => false,
        };
        if has_one {
            self.vector(&format!("{name}.bias"), dims, Fill::Dense(0.02));
        }
    }

    fn vector(&mut self, name: &str, dims: &[usize], fill: Fill) {
        let ty: &dyn ggml_types::QuantType = &ggml_types::types::F32;
        self.tensors.push(Tensor { name: name.into(), dims: dims.to_vec(), ty, fill });
    }
}
