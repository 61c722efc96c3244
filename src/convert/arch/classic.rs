//! Older relatives of Llama: EXAONE 3, Phi-2, Nemotron-4, GPT-NeoX and Falcon.

use super::Dim::{Ffn, Hidden, Kv, Q, Qkv, Vocab};
use super::{
    ATTN_HALVES, ATTN_OTHERS, Architecture, Change, ConvertError, GLOBALS, LLAMA, MLP, QKV_BIASES, Rule,
    gated, matrix, maybe, plain, plus_one,
};
use crate::config::Config;

const EXAONE_GLOBALS: &[Rule] = &[
    plain(&["wte.weight"], "token_embd.weight", &[Vocab, Hidden]),
    plain(&["ln_f.weight"], "output_norm.weight", &[Hidden]),
];
const EXAONE_LAYER: &[Rule] = &[
    plain(&["ln_1.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["ln_2.weight"], "ffn_norm.weight", &[Hidden]),
    matrix(&["attn.attention.q_proj.weight"], "attn_q.weight", &[Q, Hidden], Change::None),
    matrix(&["attn.attention.k_proj.weight"], "attn_k.weight", &[Kv, Hidden], Change::None),
    matrix(&["attn.attention.v_proj.weight"], "attn_v.weight", &[Kv, Hidden], Change::None),
    matrix(&["attn.attention.out_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    matrix(&["mlp.c_fc_0.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.c_fc_1.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.c_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
];
const PHI_GLOBALS: &[Rule] = &[
    GLOBALS[0],
    plain(&["model.final_layernorm.weight"], "output_norm.weight", &[Hidden]),
    plain(&["model.final_layernorm.bias"], "output_norm.bias", &[Hidden]),
    plain(&["lm_head.bias"], "output.bias", &[Vocab]),
];
const PHI_LAYER: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["input_layernorm.bias"], "attn_norm.bias", &[Hidden]),
    ATTN_OTHERS[0],
    matrix(&["self_attn.dense.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    plain(&["self_attn.dense.bias"], "attn_output.bias", &[Hidden]),
    matrix(&["mlp.fc1.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    plain(&["mlp.fc1.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["mlp.fc2.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["mlp.fc2.bias"], "ffn_down.bias", &[Hidden]),
];
const NEMOTRON_GLOBALS: &[Rule] = &[
    GLOBALS[0],
    plus_one(&["model.norm.weight"], "output_norm.weight", &[Hidden]),
    plain(&["model.norm.bias"], "output_norm.bias", &[Hidden]),
];
const NEMOTRON_NORMS: &[Rule] = &[
    plus_one(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["input_layernorm.bias"], "attn_norm.bias", &[Hidden]),
    plus_one(&["post_attention_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.bias"], "ffn_norm.bias", &[Hidden]),
];
const NEOX_GLOBALS: &[Rule] = &[
    plain(&["gpt_neox.embed_in.weight"], "token_embd.weight", &[Vocab, Hidden]),
    plain(&["gpt_neox.final_layer_norm.weight"], "output_norm.weight", &[Hidden]),
    plain(&["gpt_neox.final_layer_norm.bias"], "output_norm.bias", &[Hidden]),
];
const NEOX_LAYER: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["input_layernorm.bias"], "attn_norm.bias", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.bias"], "ffn_norm.bias", &[Hidden]),
    matrix(&["attention.query_key_value.weight"], "attn_qkv.weight", &[Qkv, Hidden], Change::Ungroup),
    Rule { change: Change::Ungroup, ..plain(&["attention.query_key_value.bias"], "attn_qkv.bias", &[Qkv]) },
    matrix(&["attention.dense.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    plain(&["attention.dense.bias"], "attn_output.bias", &[Hidden]),
    matrix(&["mlp.dense_h_to_4h.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    plain(&["mlp.dense_h_to_4h.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["mlp.dense_4h_to_h.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["mlp.dense_4h_to_h.bias"], "ffn_down.bias", &[Hidden]),
];
const FALCON_GLOBALS: &[Rule] = &[
    plain(&["word_embeddings.weight"], "token_embd.weight", &[Vocab, Hidden]),
    plain(&["ln_f.weight"], "output_norm.weight", &[Hidden]),
    plain(&["ln_f.bias"], "output_norm.bias", &[Hidden]),
];
/// The 40B and 180B models have a norm for the feed-forward network, and one for attention.
const FALCON_LAYER: &[Rule] = &[
    plain(&["input_layernorm.weight", "ln_mlp.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["input_layernorm.bias", "ln_mlp.bias"], "attn_norm.bias", &[Hidden]),
    maybe(&["ln_attn.weight"], "attn_norm_2.weight", &[Hidden], Change::None),
    maybe(&["ln_attn.bias"], "attn_norm_2.bias", &[Hidden], Change::None),
    matrix(&["self_attention.query_key_value.weight"], "attn_qkv.weight", &[Qkv, Hidden], Change::Ungroup),
    matrix(&["self_attention.dense.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    matrix(&["mlp.dense_h_to_4h.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.dense_4h_to_h.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
];

/// Every architecture of this kind.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        classes: &["ExaoneForCausalLM"],
        name: |config| gated(config, &["silu"], "exaone"),
        layers: "h.",
        globals: EXAONE_GLOBALS,
        layer: &[EXAONE_LAYER],
        // Defaults of ExaoneConfig.
        defaults: &[("layer_norm_epsilon", 1e-5)],
        ..LLAMA
    },
    Architecture {
        classes: &["PhiForCausalLM"],
        name: |config| {
            are(config, &[("qk_layernorm", false)])?;
            gated(config, &["gelu_new", "gelu_pytorch_tanh"], "phi2")
        },
        globals: PHI_GLOBALS,
        layer: &[PHI_LAYER, ATTN_HALVES, QKV_BIASES],
        // Defaults of PhiConfig.
        defaults: &[("layer_norm_eps", 1e-5), ("partial_rotary_factor", 0.5)],
        layer_norm: true,
        ..LLAMA
    },
    Architecture {
        classes: &["NemotronForCausalLM"],
        name: |config| gated(config, &["relu2"], "nemotron"),
        globals: NEMOTRON_GLOBALS,
        layer: &[NEMOTRON_NORMS, ATTN_HALVES, ATTN_OTHERS, &[MLP[1], MLP[2]]],
        // Defaults of NemotronConfig.
        defaults: &[("norm_eps", 1e-5), ("partial_rotary_factor", 0.5)],
        layer_norm: true,
        ..LLAMA
    },
    Architecture {
        classes: &["GPTNeoXForCausalLM"],
        // Readers of GGUF have one function for all models.
        name: |config| gated(config, &["gelu"], "gptneox"),
        layers: "gpt_neox.layers.",
        globals: NEOX_GLOBALS,
        layer: &[NEOX_LAYER],
        // Defaults of GPTNeoXConfig.
        defaults: &[("layer_norm_eps", 1e-5), ("rotary_pct", 0.25)],
        layer_norm: true,
        ..LLAMA
    },
    Architecture {
        classes: &["FalconForCausalLM"],
        name: falcon,
        layers: "h.",
        globals: FALCON_GLOBALS,
        layer: &[FALCON_LAYER],
        tied: true,
        // Defaults of FalconConfig.
        defaults: &[("layer_norm_epsilon", 1e-5), ("max_position_embeddings", 2048.0)],
        layer_norm: true,
        ..LLAMA
    },
];

fn falcon(config: &Config) -> Result<&'static str, ConvertError> {
    const ACT: &str = "activation";
    are(config, &[("alibi", false), ("bias", false), ("parallel_attn", true)])?;
    match config.str(&[ACT]) {
        None | Some("gelu") => Ok("falcon"),
        Some(_) => Err(config.wrong(ACT, "gelu", config.get(&[ACT]))),
    }
}

/// Checks that these switches have these values, if the configuration has them.
fn are(config: &Config, switches: &[(&'static str, bool)]) -> Result<(), ConvertError> {
    let other = switches.iter().find(|(key, want)| config.bool(&[*key]) == Some(!want));
    other.map_or(Ok(()), |(key, want)| Err(config.wrong(key, &want.to_string(), config.get(&[*key]))))
}
