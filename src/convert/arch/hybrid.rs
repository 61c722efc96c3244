//! Models with short convolutions or delta nets: LFM2, Qwen3.5, Qwen3-Next.

use super::Dim::{
    ConvInputs, DeltaChannels, DeltaHead, DeltaHeads, DeltaInputs, DeltaRates, DeltaValues,
    EmbeddingAndHidden, ExpertFfn, ExpertGateUp, Experts, Ffn, Head, Hidden, Kv, One, Q, QGate, Taps,
};
use super::{
    ATTN_HALVES, ATTN_OTHERS, Architecture, Change, ConvertError, Dim, EXPERTS, GLOBALS, LLAMA, MLP, Rope,
    Rule, SHARED_EXPERT, all_experts, gated, matrix, plain, plus_one, sums_to_one,
};
use crate::config::Config;
use crate::recurrent::Recurrent;

const fn delta(from: &'static [&'static str], to: &'static str, shape: &'static [Dim]) -> Rule {
    matrix(from, to, shape, Change::TileRows)
}

const LFM2_EXPERTS: &[Rule] = &[
    plain(&["feed_forward.gate.weight"], "ffn_gate_inp.weight", &[Experts, Hidden]),
    plain(&["feed_forward.expert_bias"], "exp_probs_b.bias", &[Experts]),
    matrix(
        &["feed_forward.experts.*.w1.weight"],
        "ffn_gate_exps.weight",
        &[ExpertFfn, Hidden],
        Change::Stack,
    ),
    matrix(&["feed_forward.experts.*.w3.weight"], "ffn_up_exps.weight", &[ExpertFfn, Hidden], Change::Stack),
    matrix(
        &["feed_forward.experts.*.w2.weight"],
        "ffn_down_exps.weight",
        &[Hidden, ExpertFfn],
        Change::Stack,
    ),
];
const FUSED_EXPERTS: &[Rule] = &[
    matrix(
        &["mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj.weight"],
        "ffn_gate_exps.weight",
        &[Experts, ExpertGateUp, Hidden],
        Change::FirstHalf,
    ),
    matrix(
        &["mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj.weight"],
        "ffn_up_exps.weight",
        &[Experts, ExpertGateUp, Hidden],
        Change::SecondHalf,
    ),
    matrix(
        &["mlp.experts.down_proj", "mlp.experts.down_proj.weight"],
        "ffn_down_exps.weight",
        &[Experts, Hidden, ExpertFfn],
        Change::None,
    ),
];
const QWEN35_GLOBALS: &[Rule] =
    &[GLOBALS[0], plus_one(&["model.norm.weight"], "output_norm.weight", &[Hidden])];
const QWEN35_NORMS: &[Rule] = &[
    plus_one(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plus_one(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
];
const QWEN35_MTP: &[Rule] = &[
    matrix(&["fc.weight"], "nextn.eh_proj.weight", &[Hidden, EmbeddingAndHidden], Change::None),
    plus_one(&["pre_fc_norm_embedding.weight"], "nextn.enorm.weight", &[Hidden]),
    plus_one(&["pre_fc_norm_hidden.weight"], "nextn.hnorm.weight", &[Hidden]),
    plus_one(&["norm.weight"], "nextn.shared_head_norm.weight", &[Hidden]),
];
/// The rows of each query head are followed by its gate's, in both formats.
const GATED_ATTENTION: &[Rule] = &[
    matrix(&["self_attn.q_proj.weight"], "attn_q.weight", &[QGate, Hidden], Change::None),
    matrix(&["self_attn.k_proj.weight"], "attn_k.weight", &[Kv, Hidden], Change::None),
    plus_one(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head]),
    plus_one(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head]),
];
/// Only this norm is stored without subtracting 1.
const DELTA_NET: &[Rule] = &[
    delta(&["linear_attn.in_proj_qkv.weight"], "attn_qkv.weight", &[DeltaChannels, Hidden]),
    delta(&["linear_attn.in_proj_z.weight"], "attn_gate.weight", &[DeltaValues, Hidden]),
    delta(&["linear_attn.in_proj_a.weight"], "ssm_alpha.weight", &[DeltaHeads, Hidden]),
    delta(&["linear_attn.in_proj_b.weight"], "ssm_beta.weight", &[DeltaHeads, Hidden]),
    Rule {
        linear: false,
        ..delta(&["linear_attn.conv1d.weight"], "ssm_conv1d.weight", &[DeltaChannels, One, Taps])
    },
    Rule { change: Change::TileDecay, ..plain(&["linear_attn.A_log"], "ssm_a", &[DeltaHeads]) },
    Rule { change: Change::TileRows, ..plain(&["linear_attn.dt_bias"], "ssm_dt.bias", &[DeltaHeads]) },
    plain(&["linear_attn.norm.weight"], "ssm_norm.weight", &[DeltaHead]),
    matrix(&["linear_attn.out_proj.weight"], "ssm_out.weight", &[Hidden, DeltaValues], Change::TileCols),
];
/// Qwen3-Next's, whose value heads stay grouped by key head.
const GROUPED_DELTA_NET: &[Rule] = &[
    matrix(&["linear_attn.in_proj_qkvz.weight"], "ssm_in.weight", &[DeltaInputs, Hidden], Change::None),
    matrix(&["linear_attn.in_proj_ba.weight"], "ssm_ba.weight", &[DeltaRates, Hidden], Change::None),
    plain(&["linear_attn.conv1d.weight"], "ssm_conv1d.weight", &[DeltaChannels, One, Taps]),
    Rule { change: Change::Decay, ..plain(&["linear_attn.A_log"], "ssm_a", &[DeltaHeads]) },
    plain(&["linear_attn.dt_bias"], "ssm_dt.bias", &[DeltaHeads]),
    plain(&["linear_attn.norm.weight"], "ssm_norm.weight", &[DeltaHead]),
    matrix(&["linear_attn.out_proj.weight"], "ssm_out.weight", &[Hidden, DeltaValues], Change::None),
];
const LFM2_GLOBALS: &[Rule] =
    &[GLOBALS[0], plain(&["model.embedding_norm.weight"], "token_embd_norm.weight", &[Hidden])];
const LFM2_NORMS: &[Rule] = &[
    plain(&["operator_norm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["ffn_norm.weight"], "ffn_norm.weight", &[Hidden]),
];
const LFM2_ATTENTION: &[Rule] = &[
    ATTN_OTHERS[0],
    matrix(&["self_attn.out_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    plain(&["self_attn.q_layernorm.weight"], "attn_q_norm.weight", &[Head]),
    plain(&["self_attn.k_layernorm.weight"], "attn_k_norm.weight", &[Head]),
];
const LFM2_MLP: &[Rule] = &[
    matrix(&["feed_forward.w1.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
    matrix(&["feed_forward.w3.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    matrix(&["feed_forward.w2.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
];
const SHORT_CONV: &[Rule] = &[
    matrix(&["conv.in_proj.weight"], "shortconv.in_proj.weight", &[ConvInputs, Hidden], Change::None),
    plain(&["conv.conv.weight"], "shortconv.conv.weight", &[Hidden, One, Taps]),
    matrix(&["conv.out_proj.weight"], "shortconv.out_proj.weight", &[Hidden, Hidden], Change::None),
];

const QWEN35: Architecture = Architecture {
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    name: |config| gated(config, &["silu"], "qwen35"),
    globals: QWEN35_GLOBALS,
    layer: &[QWEN35_NORMS, GATED_ATTENTION, ATTN_OTHERS, MLP],
    delta: &[QWEN35_NORMS, DELTA_NET, MLP],
    mtp: &["mtp.", "model.mtp."],
    mtp_block: &[QWEN35_MTP],
    sections: true,
    rope: Rope::Base,
    // Defaults of Qwen3_5TextConfig.
    defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 256.0)],
    ..LLAMA
};

/// Every architecture of this kind.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        classes: &["Lfm2ForCausalLM", "Lfm2VlForConditionalGeneration"],
        name: |config| gated(config, &["silu"], "lfm2"),
        globals: LFM2_GLOBALS,
        layer: &[LFM2_NORMS, ATTN_HALVES, LFM2_ATTENTION, LFM2_MLP],
        delta: &[LFM2_NORMS, SHORT_CONV, LFM2_MLP],
        recurrent: Some(Recurrent::lfm2),
        tied: true,
        // Defaults of Lfm2Config.
        defaults: &[("norm_eps", 1e-5), ("conv_L_cache", 3.0), ("rope_theta", 1e6)],
        rope: Rope::Base,
        ..LLAMA
    },
    Architecture {
        classes: &["Lfm2MoeForCausalLM"],
        name: lfm2moe,
        globals: LFM2_GLOBALS,
        layer: &[LFM2_NORMS, ATTN_HALVES, LFM2_ATTENTION, LFM2_EXPERTS],
        delta: &[LFM2_NORMS, SHORT_CONV, LFM2_EXPERTS],
        dense_first: &[LFM2_NORMS, SHORT_CONV, LFM2_MLP],
        recurrent: Some(Recurrent::lfm2moe),
        tied: true,
        // Defaults of Lfm2MoeConfig.
        defaults: &[
            ("norm_eps", 1e-5),
            ("conv_L_cache", 3.0),
            ("rope_theta", 1e6),
            ("num_dense_layers", 2.0),
        ],
        ..LLAMA
    },
    QWEN35,
    Architecture {
        classes: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
        name: |config| gated(config, &["silu"], "qwen35moe"),
        layer: &[QWEN35_NORMS, GATED_ATTENTION, ATTN_OTHERS, EXPERTS, SHARED_EXPERT],
        delta: &[QWEN35_NORMS, DELTA_NET, EXPERTS, SHARED_EXPERT],
        fused: FUSED_EXPERTS,
        ..QWEN35
    },
    Architecture {
        classes: &["Qwen3NextForCausalLM"],
        name: qwen3next,
        layer: &[QWEN35_NORMS, GATED_ATTENTION, ATTN_OTHERS, EXPERTS, SHARED_EXPERT],
        delta: &[QWEN35_NORMS, GROUPED_DELTA_NET, EXPERTS, SHARED_EXPERT],
        fused: FUSED_EXPERTS,
        mtp_block: &[],
        sections: false,
        ..QWEN35
    },
];

fn lfm2moe(config: &Config) -> Result<&'static str, ConvertError> {
    for key in ["norm_topk_prob", "use_expert_bias"] {
        if config.bool(&[key]) == Some(false) {
            return Err(config.wrong(key, "true", config.get(&[key])));
        }
    }
    gated(config, &["silu"], "lfm2moe")
}

fn qwen3next(config: &Config) -> Result<&'static str, ConvertError> {
    sums_to_one(config, config.bool(&["norm_topk_prob"]) != Some(false))?;
    all_experts(config, "qwen3next")
}
