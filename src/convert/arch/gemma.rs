//! Gemma 2, 3, 3n and 4, EmbeddingGemma, and Muse Glimmer, which has the norms of Gemma 2.

use serde_json::Value as Json;

use super::Dim::{
    ExpertFfn, ExpertGateUp, Experts, Head, Hidden, Kv, LaurelRank, LayerInput, LayerInputs, LayerVocab, One,
    Q, StreamPairs, Streams, Vocab,
};
use super::{
    ATTN_HALVES, ATTN_OTHERS, ATTN_PERMUTED, Architecture, Change, ConvertError, GLOBALS, INPUT_NORMS, LLAMA,
    MLP, Rope, Rule, gated, matrix, maybe, maybe_matrix, plain, plus_one,
};
use crate::config::Config;

const GEMMA_GLOBALS: &[Rule] = &[
    Rule { change: Change::CutVocab, ..GLOBALS[0] },
    plus_one(&["model.norm.weight"], "output_norm.weight", &[Hidden]),
];
const GEMMA_NORMS: &[Rule] = &[
    plus_one(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plus_one(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    plus_one(&["pre_feedforward_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plus_one(&["post_feedforward_layernorm.weight"], "post_ffw_norm.weight", &[Hidden]),
    plus_one(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head]),
    plus_one(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head]),
];
/// Gemma 1's, which has none after the projections.
const GEMMA1_NORMS: &[Rule] =
    &[GEMMA_NORMS[0], plus_one(&["post_attention_layernorm.weight"], "ffn_norm.weight", &[Hidden])];
/// Gemma 2's, which has no norms of queries and keys.
const GEMMA2_NORMS: &[Rule] = &[GEMMA_NORMS[0], GEMMA_NORMS[1], GEMMA_NORMS[2], GEMMA_NORMS[3]];
const GEMMA4_GLOBALS: &[Rule] = &[
    GLOBALS[0],
    GLOBALS[1],
    maybe(
        &["model.embed_tokens_per_layer.weight"],
        "per_layer_token_embd.weight",
        &[Vocab, LayerInputs],
        Change::None,
    ),
    maybe_matrix(
        &["model.per_layer_model_projection.weight"],
        "per_layer_model_proj.weight",
        &[LayerInputs, Hidden],
    ),
    maybe(
        &["model.per_layer_projection_norm.weight"],
        "per_layer_proj_norm.weight",
        &[LayerInput],
        Change::None,
    ),
];
/// Norms are stored as they are multiplied. Layers that read another layer's cache have no keys and values;
/// in some models the values of global layers are their keys.
pub const GEMMA4_LAYER: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    plain(&["pre_feedforward_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plain(&["post_feedforward_layernorm.weight"], "post_ffw_norm.weight", &[Hidden]),
    plain(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head]),
    maybe(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head], Change::None),
    matrix(&["self_attn.q_proj.weight"], "attn_q.weight", &[Q, Hidden], Change::None),
    maybe_matrix(&["self_attn.k_proj.weight"], "attn_k.weight", &[Kv, Hidden]),
    maybe_matrix(&["self_attn.v_proj.weight"], "attn_v.weight", &[Kv, Hidden]),
    matrix(&["self_attn.o_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    maybe(&["layer_scalar"], "layer_output_scale.weight", &[One], Change::None),
    maybe(&["router.proj.weight"], "ffn_gate_inp.weight", &[Experts, Hidden], Change::None),
    maybe(&["router.scale"], "ffn_gate_inp.scale", &[Hidden], Change::None),
    maybe(&["router.per_expert_scale"], "ffn_down_exps.scale", &[Experts], Change::None),
    maybe_matrix(&["experts.gate_up_proj"], "ffn_gate_up_exps.weight", &[Experts, ExpertGateUp, Hidden]),
    maybe_matrix(&["experts.down_proj"], "ffn_down_exps.weight", &[Experts, Hidden, ExpertFfn]),
    maybe(&["pre_feedforward_layernorm_2.weight"], "pre_ffw_norm_2.weight", &[Hidden], Change::None),
    maybe(&["post_feedforward_layernorm_1.weight"], "post_ffw_norm_1.weight", &[Hidden], Change::None),
    maybe(&["post_feedforward_layernorm_2.weight"], "post_ffw_norm_2.weight", &[Hidden], Change::None),
    maybe_matrix(&["per_layer_input_gate.weight"], "inp_gate.weight", &[LayerInput, Hidden]),
    maybe_matrix(&["per_layer_projection.weight"], "proj.weight", &[Hidden, LayerInput]),
    maybe(&["post_per_layer_input_norm.weight"], "post_norm.weight", &[Hidden], Change::None),
];

pub const GEMMA3: Architecture = Architecture {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    name: gemma3,
    globals: GEMMA_GLOBALS,
    layer: &[GEMMA_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP, INPUT_NORMS],
    tied: true,
    // Defaults of Gemma3TextConfig: the published configurations of 4B and up omit values equal to these.
    defaults: &[
        ("rms_norm_eps", 1e-6),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
        ("max_position_embeddings", 131072.0),
        ("rope_theta", 1e6),
        ("sliding_window", 4096.0),
        ("query_pre_attn_scalar", 256.0),
    ],
    rope: Rope::Base,
    windows: Some(6),
    ..LLAMA
};

/// Defaults of Gemma4TextConfig.
pub const GEMMA4_DEFAULTS: &[(&str, f64)] = &[
    ("rms_norm_eps", 1e-6),
    ("num_attention_heads", 8.0),
    ("num_key_value_heads", 4.0),
    ("head_dim", 256.0),
    ("global_head_dim", 512.0),
    ("max_position_embeddings", 131072.0),
    ("sliding_window", 512.0),
    ("hidden_size_per_layer_input", 256.0),
];
/// The matrices of all streams but the first become one tensor.
const GEMMA3N_GLOBALS: &[Rule] = &[
    GEMMA_GLOBALS[0],
    GLOBALS[1],
    // Its rows may be fewer than the vocabulary's.
    Rule {
        change: Change::PadVocab,
        reshaped: &[Vocab, LayerInputs],
        ..plain(
            &["model.embed_tokens_per_layer.weight"],
            "per_layer_token_embd.weight",
            &[LayerVocab, LayerInputs],
        )
    },
    matrix(
        &["model.per_layer_model_projection.weight"],
        "per_layer_model_proj.weight",
        &[LayerInputs, Hidden],
        Change::None,
    ),
    plain(&["model.per_layer_projection_norm.weight"], "per_layer_proj_norm.weight", &[LayerInput]),
    matrix(
        &["model.altup_projections.*.weight"],
        "altup_proj.weight",
        &[Hidden, Hidden],
        Change::StackStreams,
    ),
    matrix(
        &["model.altup_unembed_projections.*.weight"],
        "altup_unembd_proj.weight",
        &[Hidden, Hidden],
        Change::StackStreams,
    ),
];
const GEMMA3N_LAYER: &[Rule] = &[
    plain(&["altup.correct_output_scale"], "altup_correct_scale.weight", &[Hidden]),
    plain(&["altup.correction_coefs.weight"], "altup_correct_coef.weight", &[Streams, Streams]),
    plain(&["altup.prediction_coefs.weight"], "altup_predict_coef.weight", &[StreamPairs, Streams]),
    matrix(&["altup.modality_router.weight"], "altup_router.weight", &[Streams, Hidden], Change::None),
    plain(&["altup.router_norm.weight"], "altup_router_norm.weight", &[Hidden]),
    matrix(&["laurel.linear_left.weight"], "laurel_l.weight", &[LaurelRank, Hidden], Change::None),
    matrix(&["laurel.linear_right.weight"], "laurel_r.weight", &[Hidden, LaurelRank], Change::None),
    plain(&["laurel.post_laurel_norm.weight"], "laurel_post_norm.weight", &[Hidden]),
    matrix(&["per_layer_input_gate.weight"], "inp_gate.weight", &[LayerInput, Hidden], Change::None),
    matrix(&["per_layer_projection.weight"], "proj.weight", &[Hidden, LayerInput], Change::None),
    plain(&["post_per_layer_input_norm.weight"], "post_norm.weight", &[Hidden]),
    // Norms, and attention.
    GEMMA4_LAYER[0],
    GEMMA4_LAYER[1],
    GEMMA4_LAYER[2],
    GEMMA4_LAYER[3],
    GEMMA4_LAYER[4],
    GEMMA4_LAYER[5],
    GEMMA4_LAYER[6],
    GEMMA4_LAYER[7],
    GEMMA4_LAYER[8],
    GEMMA4_LAYER[9],
];
const MUSE_GATE: &[Rule] =
    &[matrix(&["self_attn.gate_proj.weight"], "attn_gate.weight", &[Q, Hidden], Change::None)];

/// Every architecture of this kind.
pub static ARCHITECTURES: &[Architecture] = &[
    GEMMA3,
    Architecture {
        classes: &["Gemma3TextModel"],
        name: gemma_embedding,
        head: "",
        encoder: true,
        dense: true,
        ..GEMMA3
    },
    Architecture {
        classes: &["GemmaForCausalLM"],
        // The second is an old name of the first, as transformers reads it.
        name: |config| gated(config, &["gelu_pytorch_tanh", "gelu"], "gemma"),
        globals: GEMMA_GLOBALS,
        layer: &[GEMMA1_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        tied: true,
        // Defaults of GemmaConfig.
        defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 256.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["Gemma2ForCausalLM"],
        name: gemma2,
        layer: &[GEMMA2_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        // Defaults of Gemma2Config.
        defaults: &[
            ("rms_norm_eps", 1e-6),
            ("num_attention_heads", 8.0),
            ("num_key_value_heads", 4.0),
            ("head_dim", 256.0),
            ("max_position_embeddings", 8192.0),
            ("sliding_window", 4096.0),
            ("query_pre_attn_scalar", 256.0),
            ("attn_logit_softcapping", 50.0),
            ("final_logit_softcapping", 30.0),
        ],
        windows: Some(2),
        ..GEMMA3
    },
    Architecture {
        classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
        name: gemma3n,
        globals: GEMMA3N_GLOBALS,
        layer: &[GEMMA3N_LAYER, MLP],
        // Defaults of Gemma3nTextConfig.
        defaults: &[
            ("rms_norm_eps", 1e-6),
            ("head_dim", 256.0),
            ("max_position_embeddings", 32768.0),
            ("sliding_window", 512.0),
            ("hidden_size_per_layer_input", 256.0),
            ("laurel_rank", 64.0),
            ("final_logit_softcapping", 30.0),
        ],
        windows: Some(5),
        ..GEMMA3
    },
    // The form of Gemma 2 with Llama's order of rows, and gates.
    Architecture {
        classes: &["MuseGlimmerForConditionalGeneration"],
        name: muse_glimmer,
        globals: GLOBALS,
        layer: &[GEMMA2_NORMS, ATTN_PERMUTED, ATTN_OTHERS, MUSE_GATE, MLP],
        // Defaults of MuseGlimmerTextConfig.
        defaults: &[
            ("rms_norm_eps", 1e-5),
            ("head_dim", 128.0),
            ("sliding_window", 2048.0),
            ("final_logit_softcapping", 20.0),
            ("output_multiplier", 0.196_116_135_138_184_04),
            ("qk_scale_factor", 3.87),
        ],
        factors: &[("output_multiplier", "logit_scale")],
        query_factor: Some("qk_scale_factor"),
        windows: Some(4),
        ..LLAMA
    },
    Architecture {
        classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        name: gemma4,
        globals: GEMMA4_GLOBALS,
        layer: &[GEMMA4_LAYER, MLP],
        defaults: GEMMA4_DEFAULTS,
        windows: Some(6),
        ..GEMMA3
    },
];

/// GGUF has no key for the scale of scores: only the 27B model, recognised by its number of layers, divides
/// by dim / heads.
fn check_scalar(config: &Config, layers_of_27b: usize) -> Result<(), ConvertError> {
    let head_dim = config.count(&["head_dim"])?.unwrap_or(256);
    let (dim, heads) = (config.require(&["hidden_size"])?, config.require(&["num_attention_heads"])?);
    let layers = config.require(&["num_hidden_layers", "n_layer"])?;
    let want = if layers == layers_of_27b { dim as f64 / heads as f64 } else { head_dim as f64 };
    const SCALAR: &str = "query_pre_attn_scalar";
    match config.positive(&[SCALAR])?.is_some_and(|found| found != want) {
        true => Err(config.wrong(SCALAR, &format!("{want}"), config.get(&[SCALAR]))),
        false => Ok(()),
    }
}

fn gemma2(config: &Config) -> Result<&'static str, ConvertError> {
    check_scalar(config, 46)?;
    gated(config, &["gelu_pytorch_tanh"], "gemma2")
}

/// Files have no keys for other values of these.
fn gemma3n(config: &Config) -> Result<&'static str, ConvertError> {
    const SCALES: &str = "altup_correct_scale";
    for (key, want) in [("altup_num_inputs", 4), ("altup_active_idx", 0)] {
        let found = config.get(&[key]);
        if found.is_some_and(|found| found.as_u64() != Some(want)) {
            return Err(config.wrong(key, &want.to_string(), found));
        }
    }
    if config.bool(&[SCALES]) == Some(false) {
        return Err(config.wrong(SCALES, "true", config.get(&[SCALES])));
    }
    gated(config, &["gelu_pytorch_tanh"], "gemma3n")
}

/// Files have no keys for other values of these.
fn muse_glimmer(config: &Config) -> Result<&'static str, ConvertError> {
    const EPS: &str = "post_norm_eps";
    const BASES: &str = "layer_rope_theta";
    if config.positive(&[EPS])?.is_some_and(|eps| eps != 1e-8) {
        return Err(config.wrong(EPS, "1e-8", config.get(&[EPS])));
    }
    if let Some(bases) = config.get(&[BASES]).and_then(Json::as_array) {
        let base = config.rope()?.base;
        let kinds = config.get(&["layer_types"]).and_then(Json::as_array);
        let slides = |at: usize| match kinds {
            Some(kinds) => kinds.get(at).and_then(Json::as_str) == Some("sliding_attention"),
            None => !(bases.len() - 1 - at).is_multiple_of(4),
        };
        let is_usual =
            |(at, found): (usize, &Json)| found.as_f64() == Some(if slides(at) { base } else { 0.0 });
        if !bases.iter().enumerate().all(is_usual) {
            let want = "the base of RoPE for layers with a window, and 0 for the others";
            return Err(config.wrong(BASES, want, config.get(&[BASES])));
        }
    }
    gated(config, &["silu"], "muse-glimmer")
}

pub fn gemma4(config: &Config) -> Result<&'static str, ConvertError> {
    if config.bool(&["attention_bias"]) == Some(true) {
        return Err(config.wrong("attention_bias", "false", config.get(&["attention_bias"])));
    }
    if config.str(&["use_bidirectional_attention"]) == Some("all") {
        let found = config.get(&["use_bidirectional_attention"]);
        return Err(config.wrong("use_bidirectional_attention", "none or vision", found));
    }
    gated(config, &["gelu_pytorch_tanh"], "gemma4")
}

fn gemma3(config: &Config) -> Result<&'static str, ConvertError> {
    check_scalar(config, 62)?;
    if config.positive(&["attn_logit_softcapping"])?.is_some() {
        let found = config.get(&["attn_logit_softcapping"]);
        return Err(config.wrong("attn_logit_softcapping", "none in Gemma 3", found));
    }
    gated(config, &["gelu_pytorch_tanh"], "gemma3")
}

/// EmbeddingGemma, whose attention is bidirectional within its window, or a decoder for embeddings.
fn gemma_embedding(config: &Config) -> Result<&'static str, ConvertError> {
    let sees_ahead = config.bool(&["use_bidirectional_attention"]) == Some(true);
    gemma3(config).map(|name| if sees_ahead { "gemma-embedding" } else { name })
}
