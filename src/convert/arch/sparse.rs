//! Relatives of Llama with experts.

use serde_json::Value as Json;

use super::Dim::{
    AttnGate, ExpertFfn, ExpertGateUp, Experts, Head, Hidden, Kv, One, Q, Qkv, SharedFfn, Vocab,
};
use super::{
    ATTN_HALVES, ATTN_OTHER_BIASES, ATTN_OTHERS, ATTN_PERMUTED, Architecture, Change, ConvertError, EXPERTS,
    GLOBALS, GRANITE_EXPERTS, GRANITE_FACTORS, HEAD_NORMS, HUNYUAN_NORMS, LLAMA, MAYBE_QKV_BIASES, MLP,
    MTP_LAYER, NORMS, QKV_BIASES, Rope, Rule, SHARED_EXPERT, SHARED_EXPERTS, all_experts, gated, matrix,
    maybe, plain, sums_to_one,
};
use crate::config::Config;

/// The norm before the experts is called after what precedes it, in both formats.
const GLM4_MOE_NORMS: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    maybe(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head], Change::None),
    maybe(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head], Change::None),
];
const ERNIE_BIAS: Rule = maybe(
    &["mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"],
    "exp_probs_b.bias",
    &[One, Experts],
    Change::None,
);
/// The shared experts, without the bias of the router.
const SHARED_ONLY: &[Rule] = &[SHARED_EXPERTS[1], SHARED_EXPERTS[2], SHARED_EXPERTS[3]];
const HUNYUAN_EXPERTS: &[Rule] = &[
    plain(&["mlp.gate.wg.weight"], "ffn_gate_inp.weight", &[Experts, Hidden]),
    EXPERTS[1],
    EXPERTS[2],
    EXPERTS[3],
    matrix(&["mlp.shared_mlp.gate_proj.weight"], "ffn_gate_shexp.weight", &[SharedFfn, Hidden], Change::None),
    matrix(&["mlp.shared_mlp.up_proj.weight"], "ffn_up_shexp.weight", &[SharedFfn, Hidden], Change::None),
    matrix(&["mlp.shared_mlp.down_proj.weight"], "ffn_down_shexp.weight", &[Hidden, SharedFfn], Change::None),
];
const AFMOE_LAYER: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    plain(&["pre_mlp_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plain(&["post_mlp_layernorm.weight"], "post_ffw_norm.weight", &[Hidden]),
    matrix(&["self_attn.gate_proj.weight"], "attn_gate.weight", &[Q, Hidden], Change::None),
];
const AFMOE_EXPERTS: &[Rule] = &[
    plain(&["mlp.router.gate.weight"], "ffn_gate_inp.weight", &[Experts, Hidden]),
    plain(&["mlp.expert_bias"], "exp_probs_b.bias", &[Experts]),
    EXPERTS[1],
    EXPERTS[2],
    EXPERTS[3],
];

/// Names of Ling and Ring 2.0. The rows of queries, keys and values follow each other, in both formats.
const BAILING_GLOBALS: &[Rule] =
    &[plain(&["model.word_embeddings.weight"], "token_embd.weight", &[Vocab, Hidden]), GLOBALS[1]];
const BAILING_ATTENTION: &[Rule] = &[
    matrix(&["attention.query_key_value.weight"], "attn_qkv.weight", &[Qkv, Hidden], Change::None),
    matrix(&["attention.dense.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    plain(&["attention.query_layernorm.weight"], "attn_q_norm.weight", &[Head]),
    plain(&["attention.key_layernorm.weight"], "attn_k_norm.weight", &[Head]),
];
const BAILING_EXPERTS: &[Rule] = &[
    EXPERTS[0],
    plain(&["mlp.gate.expert_bias"], "exp_probs_b.bias", &[Experts]),
    EXPERTS[1],
    EXPERTS[2],
    EXPERTS[3],
];
const LAGUNA_GATE: &[Rule] =
    &[matrix(&["self_attn.g_proj.weight"], "attn_gate.weight", &[AttnGate, Hidden], Change::None)];
/// The second names are those of transformers' modules.
const LAGUNA_EXPERTS: &[Rule] = &[
    EXPERTS[0],
    EXPERTS[1],
    EXPERTS[2],
    EXPERTS[3],
    plain(
        &["mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"],
        "exp_probs_b.bias",
        &[Experts],
    ),
    matrix(
        &["mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_proj.weight"],
        "ffn_gate_shexp.weight",
        &[SharedFfn, Hidden],
        Change::None,
    ),
    matrix(
        &["mlp.shared_expert.up_proj.weight", "mlp.shared_experts.up_proj.weight"],
        "ffn_up_shexp.weight",
        &[SharedFfn, Hidden],
        Change::None,
    ),
    matrix(
        &["mlp.shared_expert.down_proj.weight", "mlp.shared_experts.down_proj.weight"],
        "ffn_down_shexp.weight",
        &[Hidden, SharedFfn],
        Change::None,
    ),
];

const MINIMAX_EXPERTS: &[Rule] = &[
    plain(&["block_sparse_moe.gate.weight"], "ffn_gate_inp.weight", &[Experts, Hidden]),
    plain(&["block_sparse_moe.e_score_correction_bias"], "exp_probs_b.bias", &[Experts]),
    matrix(
        &["block_sparse_moe.experts.*.w1.weight"],
        "ffn_gate_exps.weight",
        &[ExpertFfn, Hidden],
        Change::Stack,
    ),
    matrix(
        &["block_sparse_moe.experts.*.w3.weight"],
        "ffn_up_exps.weight",
        &[ExpertFfn, Hidden],
        Change::Stack,
    ),
    matrix(
        &["block_sparse_moe.experts.*.w2.weight"],
        "ffn_down_exps.weight",
        &[Hidden, ExpertFfn],
        Change::Stack,
    ),
];

/// OLMoE's, which cover all heads.
const OLMOE_NORMS: &[Rule] = &[
    plain(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Q]),
    plain(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Kv]),
];

/// Published checkpoints store the transpose of each matrix, those that transformers 5 writes do not.
const QWEN3VL_EXPERTS: &[Rule] = &[
    EXPERTS[0],
    matrix(
        &["mlp.experts.gate_up_proj"],
        "ffn_gate_exps.weight",
        &[Experts, ExpertGateUp, Hidden],
        Change::EitherFirstHalf,
    ),
    matrix(
        &["mlp.experts.gate_up_proj"],
        "ffn_up_exps.weight",
        &[Experts, ExpertGateUp, Hidden],
        Change::EitherSecondHalf,
    ),
    matrix(&["mlp.experts.down_proj"], "ffn_down_exps.weight", &[Experts, Hidden, ExpertFfn], Change::Either),
];

/// Every architecture of this kind.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        classes: &["Qwen3MoeForCausalLM"],
        name: qwen3moe,
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, EXPERTS],
        rope: Rope::Base,
        ..LLAMA
    },
    Architecture {
        classes: &["OlmoeForCausalLM"],
        name: olmoe,
        layer: &[NORMS, OLMOE_NORMS, ATTN_HALVES, ATTN_OTHERS, EXPERTS],
        expert_width: "intermediate_size",
        // Defaults of OlmoeConfig.
        defaults: &[("rms_norm_eps", 1e-5)],
        ..LLAMA
    },
    Architecture {
        classes: &["MiniMaxM2ForCausalLM"],
        name: minimax,
        layer: &[NORMS, OLMOE_NORMS, ATTN_HALVES, ATTN_OTHERS, MINIMAX_EXPERTS],
        expert_width: "intermediate_size",
        // Defaults of MiniMaxM2Config.
        defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 128.0), ("rope_theta", 5e6)],
        ..LLAMA
    },
    Architecture {
        classes: &["Qwen3VLMoeForConditionalGeneration"],
        // Weights of the chosen experts sum to 1, whatever the configuration says.
        name: |config| all_experts(config, "qwen3vlmoe"),
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, QWEN3VL_EXPERTS],
        rope: Rope::Base,
        sections: true,
        ..LLAMA
    },
    Architecture {
        classes: &["GraniteMoeForCausalLM"],
        name: |config| gated(config, &["silu"], "granitemoe"),
        layer: &[NORMS, ATTN_PERMUTED, ATTN_OTHERS, ATTN_OTHER_BIASES, GRANITE_EXPERTS],
        expert_width: "intermediate_size",
        factors: GRANITE_FACTORS,
        ..LLAMA
    },
    Architecture {
        classes: &["Glm4MoeForCausalLM"],
        name: |config| gated(config, &["silu"], "glm4moe"),
        layer: &[GLM4_MOE_NORMS, ATTN_HALVES, ATTN_OTHERS, MAYBE_QKV_BIASES, EXPERTS, SHARED_EXPERTS],
        dense_first: &[GLM4_MOE_NORMS, ATTN_HALVES, ATTN_OTHERS, MAYBE_QKV_BIASES, MLP],
        // Defaults of Glm4MoeConfig.
        defaults: &[("rms_norm_eps", 1e-5), ("partial_rotary_factor", 0.5)],
        mtp_block: &[MTP_LAYER],
        mtp_is_layer: true,
        ..LLAMA
    },
    Architecture {
        classes: &["Dots1ForCausalLM"],
        name: |config| gated(config, &["silu"], "dots1"),
        layer: &[NORMS, HEAD_NORMS, ATTN_HALVES, ATTN_OTHERS, EXPERTS, SHARED_EXPERTS],
        dense_first: &[NORMS, HEAD_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        // Defaults of Dots1Config.
        defaults: &[("rms_norm_eps", 1e-6)],
        ..LLAMA
    },
    Architecture {
        classes: &["Ernie4_5_MoeForCausalLM"],
        name: ernie4_5_moe,
        // RoPE rotates adjacent elements in both formats.
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, EXPERTS, SHARED_ONLY, &[ERNIE_BIAS]],
        dense_first: &[NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        tied: true,
        // Defaults of Ernie4_5_MoeConfig.
        defaults: &[("rms_norm_eps", 1e-5), ("rope_theta", 500_000.0), ("moe_layer_start_index", 1.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["AfmoeForCausalLM"],
        name: afmoe,
        layer: &[AFMOE_LAYER, HEAD_NORMS, ATTN_HALVES, ATTN_OTHERS, AFMOE_EXPERTS, SHARED_ONLY],
        dense_first: &[AFMOE_LAYER, HEAD_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        // Defaults of AfmoeConfig.
        defaults: &[("rms_norm_eps", 1e-5), ("head_dim", 128.0), ("sliding_window", 1024.0)],
        windows: Some(4),
        ..LLAMA
    },
    Architecture {
        classes: &["Qwen2MoeForCausalLM"],
        name: qwen2moe,
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, QKV_BIASES, EXPERTS, SHARED_EXPERT],
        ..LLAMA
    },
    Architecture {
        // transformers has no such class: the names are those of the published checkpoints.
        classes: &["BailingMoeV2ForCausalLM"],
        name: bailingmoe2,
        globals: BAILING_GLOBALS,
        layer: &[NORMS, BAILING_ATTENTION, BAILING_EXPERTS, SHARED_ONLY],
        dense_first: &[NORMS, BAILING_ATTENTION, MLP],
        // Defaults of BailingMoeV2Config.
        defaults: &[("rms_norm_eps", 1e-6), ("num_shared_experts", 1.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["LagunaForCausalLM"],
        name: laguna,
        layer: &[NORMS, HEAD_NORMS, ATTN_HALVES, ATTN_OTHERS, LAGUNA_GATE, LAGUNA_EXPERTS],
        dense_first: &[NORMS, HEAD_NORMS, ATTN_HALVES, ATTN_OTHERS, LAGUNA_GATE, MLP],
        windows: Some(4),
        // Defaults of LagunaConfig.
        defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 128.0), ("sliding_window", 512.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["MellumForCausalLM"],
        name: mellum,
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, EXPERTS],
        windows: Some(4),
        // Defaults of MellumConfig.
        defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 128.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["HunYuanMoEV1ForCausalLM"],
        name: |config| gated(config, &["silu"], "hunyuan-moe"),
        layer: &[NORMS, HUNYUAN_NORMS, ATTN_HALVES, ATTN_OTHERS, HUNYUAN_EXPERTS],
        // No layer is dense.
        dense_first: &[NORMS],
        expert_width: "intermediate_size",
        // Defaults of HunYuanMoEV1Config, which has no key for the shared expert.
        defaults: &[("rms_norm_eps", 1e-5), ("num_shared_expert", 1.0)],
        ..LLAMA
    },
];

fn minimax(config: &Config) -> Result<&'static str, ConvertError> {
    const SCORES: &str = "scoring_func";
    match config.str(&[SCORES]) {
        None | Some("sigmoid") => gated(config, &["silu"], "minimax-m2"),
        Some(_) => Err(config.wrong(SCORES, "sigmoid", config.get(&[SCORES]))),
    }
}

/// GGUF has no key for a limit of queries, keys and values, and readers do not divide the experts' weights.
fn olmoe(config: &Config) -> Result<&'static str, ConvertError> {
    const CLIP: &str = "clip_qkv";
    const NORM: &str = "norm_topk_prob";
    if let Some(found) = config.get(&[CLIP]) {
        return Err(config.wrong(CLIP, "none", Some(found)));
    }
    if config.bool(&[NORM]) == Some(true) {
        return Err(config.wrong(NORM, "false", config.get(&[NORM])));
    }
    gated(config, &["silu"], "olmoe")
}

fn bailingmoe2(config: &Config) -> Result<&'static str, ConvertError> {
    const SCORES: &str = "score_function";
    if config.str(&[SCORES]).is_some_and(|scores| scores != "sigmoid") {
        return Err(config.wrong(SCORES, "sigmoid", config.get(&[SCORES])));
    }
    for (key, usual) in [("use_qk_norm", true), ("use_qkv_bias", false), ("use_bias", false)] {
        if config.bool(&[key]).is_some_and(|found| found != usual) {
            return Err(config.wrong(key, &usual.to_string(), config.get(&[key])));
        }
    }
    gated(config, &["silu"], "bailingmoe2")
}

fn laguna(config: &Config) -> Result<&'static str, ConvertError> {
    const CAP: &str = "moe_router_logit_softcapping";
    const ON_INPUT: &str = "moe_apply_router_weight_on_input";
    if config.get(&[CAP]).and_then(Json::as_f64).is_some_and(|cap| cap != 0.0) {
        return Err(config.wrong(CAP, "0: GGUF has no key for it", config.get(&[CAP])));
    }
    if config.bool(&[ON_INPUT]) == Some(true) {
        return Err(config.wrong(ON_INPUT, "false", config.get(&[ON_INPUT])));
    }
    gated(config, &["silu"], "laguna")
}

fn qwen3moe(config: &Config) -> Result<&'static str, ConvertError> {
    // The default of transformers is false, but the published models set true.
    sums_to_one(config, config.bool(&["norm_topk_prob"]) == Some(true))?;
    all_experts(config, "qwen3moe")
}

/// GGUF's readers do not divide by the sum.
fn qwen2moe(config: &Config) -> Result<&'static str, ConvertError> {
    const KEY: &str = "norm_topk_prob";
    match config.bool(&[KEY]) {
        Some(true) => Err(config.wrong(KEY, "false: readers of GGUF do not normalise", config.get(&[KEY]))),
        _ => all_experts(config, "qwen2moe"),
    }
}

fn ernie4_5_moe(config: &Config) -> Result<&'static str, ConvertError> {
    const LAST: &str = "moe_layer_end_index";
    let found = config.get(&[LAST]);
    let n_layers = config.require(&["num_hidden_layers"])? as i64;
    match found.and_then(Json::as_i64).is_some_and(|last| last != -1 && last + 1 < n_layers) {
        true => Err(config.wrong(LAST, "the last layer, or -1", found)),
        false => gated(config, &["silu"], "ernie4_5-moe"),
    }
}

/// Files have no key for the factor on the embedding and for the router.
fn afmoe(config: &Config) -> Result<&'static str, ConvertError> {
    const SCORES: &str = "score_func";
    const FACTOR: &str = "mup_enabled";
    if config.bool(&[FACTOR]) != Some(true) {
        return Err(config.wrong(FACTOR, "true", config.get(&[FACTOR])));
    }
    if config.str(&[SCORES]).is_some_and(|scores| scores != "sigmoid") {
        return Err(config.wrong(SCORES, "sigmoid", config.get(&[SCORES])));
    }
    gated(config, &["silu"], "afmoe")
}

fn mellum(config: &Config) -> Result<&'static str, ConvertError> {
    const KINDS: &str = "mlp_layer_types";
    sums_to_one(config, config.bool(&["norm_topk_prob"]) != Some(false))?;
    let kinds = config.get(&[KINDS]).and_then(Json::as_array);
    if kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.as_str() != Some("sparse"))) {
        return Err(config.wrong(KINDS, "only sparse", config.get(&[KINDS])));
    }
    gated(config, &["silu"], "mellum")
}
