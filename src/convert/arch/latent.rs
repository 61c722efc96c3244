//! DeepSeek-V2 and V3 and models of their form, with multi-head latent attention: GLM-4.7-Flash, Moonlight,
//! Kanana 2, GigaChat 3, Youtu.

use super::Dim::{
    Experts, Heads, Hidden, LatentKey, LatentKv, LatentQ, LatentValue, LatentValues, QueryRank, Rank,
    RankAndRotated,
};
use super::{
    Architecture, Change, EXPERTS, LLAMA, MLP, MTP_LAYER, NORMS, Rope, Rule, SHARED_EXPERTS, gated, matrix,
    maybe, needed_if, plain,
};
use crate::config::Config;

/// Every architecture of this form.
pub static ARCHITECTURES: &[Architecture] = &[
    DEEPSEEK,
    Architecture { classes: &["DeepseekV2ForCausalLM"], softmax: true, ..DEEPSEEK },
    Architecture {
        classes: &["Glm4MoeLiteForCausalLM"],
        // Defaults of Glm4MoeLiteConfig.
        defaults: &[("rms_norm_eps", 1e-5), ("first_k_dense_replace", 1.0)],
        ..DEEPSEEK
    },
    // All layers have a feed-forward network.
    Architecture { classes: &["YoutuForCausalLM"], layer: DENSE, dense_first: &[], ..DEEPSEEK },
];

const DEEPSEEK: Architecture = Architecture {
    classes: &["DeepseekV3ForCausalLM"],
    name: |config| gated(config, &["silu"], "deepseek2"),
    layer: &[NORMS, ATTENTION, EXPERTS, CHOICE_BIAS, SHARED],
    dense_first: DENSE,
    latent: true,
    rope: Rope::Whole,
    // Defaults of DeepseekV2Config and DeepseekV3Config.
    defaults: &[("rms_norm_eps", 1e-6)],
    mtp_block: &[MTP_LAYER],
    mtp_is_layer: true,
    ..LLAMA
};

const DENSE: &[&[Rule]] = &[NORMS, ATTENTION, MLP];
const CHOICE_BIAS: &[Rule] =
    &[maybe(&["mlp.gate.e_score_correction_bias"], "exp_probs_b.bias", &[Experts], Change::None)];
const SHARED: &[Rule] = &[SHARED_EXPERTS[1], SHARED_EXPERTS[2], SHARED_EXPERTS[3]];

/// RoPE rotates adjacent elements in both formats.
const ATTENTION: &[Rule] = &[
    needed_if(has_no_rank, whole(&["self_attn.q_proj.weight"], "attn_q.weight", &[LatentQ, Hidden])),
    needed_if(has_rank, whole(&["self_attn.q_a_proj.weight"], "attn_q_a.weight", &[QueryRank, Hidden])),
    needed_if(has_rank, plain(&["self_attn.q_a_layernorm.weight"], "attn_q_a_norm.weight", &[QueryRank])),
    needed_if(has_rank, whole(&["self_attn.q_b_proj.weight"], "attn_q_b.weight", &[LatentQ, QueryRank])),
    whole(&["self_attn.kv_a_proj_with_mqa.weight"], "attn_kv_a_mqa.weight", &[RankAndRotated, Hidden]),
    plain(&["self_attn.kv_a_layernorm.weight"], "attn_kv_a_norm.weight", &[Rank]),
    Rule {
        reshaped: &[Heads, Rank, LatentKey],
        ..matrix(&[KV_B], "attn_k_b.weight", &[LatentKv, Rank], Change::KeysOfHeads)
    },
    Rule {
        reshaped: &[Heads, LatentValue, Rank],
        ..matrix(&[KV_B], "attn_v_b.weight", &[LatentKv, Rank], Change::ValuesOfHeads)
    },
    whole(&["self_attn.o_proj.weight"], "attn_output.weight", &[Hidden, LatentValues]),
];
const KV_B: &str = "self_attn.kv_b_proj.weight";

const fn whole(from: &'static [&'static str], to: &'static str, shape: &'static [super::Dim]) -> Rule {
    matrix(from, to, shape, Change::None)
}

fn has_rank(config: &Config) -> bool {
    config.get(&["q_lora_rank"]).is_some()
}

fn has_no_rank(config: &Config) -> bool {
    !has_rank(config)
}
