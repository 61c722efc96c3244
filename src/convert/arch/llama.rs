//! Llama and its relatives without experts.

use serde_json::Value as Json;

use super::Dim::{Ffn, GateUp, Hidden, Kv, Positions, Q, Qkv, Vocab};
use super::{
    ATTN_HALVES, ATTN_OTHERS, ATTN_PERMUTED, Architecture, Change, ConvertError, GLOBALS, GRANITE_FACTORS,
    HEAD_NORMS, HUNYUAN_NORMS, INPUT_NORMS, LLAMA, MAYBE_QKV_BIASES, MLP, NORMS, QKV_BIASES, Rope, Rule,
    gated, matrix, plain,
};
use crate::config::Config;

/// Gate rows, then up rows.
const FUSED_MLP: &[Rule] = &[
    matrix(&["mlp.gate_up_proj.weight"], "ffn_up.weight", &[GateUp, Hidden], Change::None),
    matrix(&["mlp.down_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
];
const FUSED_ATTENTION: &[Rule] = &[
    matrix(&["self_attn.qkv_proj.weight"], "attn_qkv.weight", &[Qkv, Hidden], Change::None),
    matrix(&["self_attn.o_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
];
const GLM4_NORMS: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["post_self_attn_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plain(&["post_mlp_layernorm.weight"], "post_ffw_norm.weight", &[Hidden]),
];
/// BitNet's sub-norms, with the names of transformers and of 1bitLLM.
const SUB_NORMS: &[Rule] = &[
    plain(
        &["self_attn.attn_sub_norm.weight", "self_attn.inner_attn_ln.weight"],
        "attn_sub_norm.weight",
        &[Q],
    ),
    plain(&["mlp.ffn_sub_norm.weight", "mlp.ffn_layernorm.weight"], "ffn_sub_norm.weight", &[Ffn]),
];
const OLMO2_NORMS: &[Rule] = &[
    plain(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    plain(&["post_feedforward_layernorm.weight"], "post_ffw_norm.weight", &[Hidden]),
    plain(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Q]),
    plain(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Kv]),
];
const APERTUS_NORMS: &[Rule] = &[
    plain(&["attention_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["feedforward_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
];
const INTERNLM2_GLOBALS: &[Rule] =
    &[plain(&["model.tok_embeddings.weight"], "token_embd.weight", &[Vocab, Hidden]), GLOBALS[1]];
/// Queries, keys and values of each key head follow each other.
const INTERNLM2_LAYER: &[Rule] = &[
    plain(&["attention_norm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["ffn_norm.weight"], "ffn_norm.weight", &[Hidden]),
    Rule {
        reshaped: &[Q, Hidden],
        ..matrix(&["attention.wqkv.weight"], "attn_q.weight", &[Qkv, Hidden], Change::QueriesOfGroups)
    },
    Rule {
        reshaped: &[Kv, Hidden],
        ..matrix(&["attention.wqkv.weight"], "attn_k.weight", &[Qkv, Hidden], Change::KeysOfGroups)
    },
    Rule {
        reshaped: &[Kv, Hidden],
        ..matrix(&["attention.wqkv.weight"], "attn_v.weight", &[Qkv, Hidden], Change::ValuesOfGroups)
    },
    matrix(&["attention.wo.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    matrix(&["feed_forward.w1.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
    matrix(&["feed_forward.w3.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    matrix(&["feed_forward.w2.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
];
/// EXAONE 4's, which cover heads.
const EXAONE4_NORMS: &[Rule] = &[OLMO2_NORMS[0], OLMO2_NORMS[1], HEAD_NORMS[0], HEAD_NORMS[1]];
const SEED_NORMS: &[Rule] =
    &[NORMS[0], plain(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden])];
/// Norms that are LayerNorms with a bias.
const NORM_BIASES: &[Rule] = &[
    plain(&["input_layernorm.bias"], "attn_norm.bias", &[Hidden]),
    plain(&["post_attention_layernorm.bias"], "ffn_norm.bias", &[Hidden]),
];
const GLOBALS_WITH_BIAS: &[Rule] =
    &[GLOBALS[0], GLOBALS[1], plain(&["model.norm.bias"], "output_norm.bias", &[Hidden])];
const OUT_BIAS: Rule = plain(&["self_attn.o_proj.bias"], "attn_output.bias", &[Hidden]);
const STARCODER2_MLP: &[Rule] = &[
    matrix(&["mlp.c_fc.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    plain(&["mlp.c_fc.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["mlp.c_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["mlp.c_proj.bias"], "ffn_down.bias", &[Hidden]),
];
const GPT2_GLOBALS: &[Rule] = &[
    plain(&["wte.weight"], "token_embd.weight", &[Vocab, Hidden]),
    plain(&["wpe.weight"], "position_embd.weight", &[Positions, Hidden]),
    plain(&["ln_f.weight"], "output_norm.weight", &[Hidden]),
    plain(&["ln_f.bias"], "output_norm.bias", &[Hidden]),
];
/// GPT-2's matrices are transposed: `[in, out]`.
const GPT2_LAYER: &[Rule] = &[
    plain(&["ln_1.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["ln_1.bias"], "attn_norm.bias", &[Hidden]),
    matrix(&["attn.c_attn.weight"], "attn_qkv.weight", &[Hidden, Qkv], Change::Transpose),
    plain(&["attn.c_attn.bias"], "attn_qkv.bias", &[Qkv]),
    matrix(&["attn.c_proj.weight"], "attn_output.weight", &[Hidden, Hidden], Change::Transpose),
    plain(&["attn.c_proj.bias"], "attn_output.bias", &[Hidden]),
    plain(&["ln_2.weight"], "ffn_norm.weight", &[Hidden]),
    plain(&["ln_2.bias"], "ffn_norm.bias", &[Hidden]),
    matrix(&["mlp.c_fc.weight"], "ffn_up.weight", &[Hidden, Ffn], Change::Transpose),
    plain(&["mlp.c_fc.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["mlp.c_proj.weight"], "ffn_down.weight", &[Ffn, Hidden], Change::Transpose),
    plain(&["mlp.c_proj.bias"], "ffn_down.bias", &[Hidden]),
];
const STARCODER_LAYER: &[Rule] = &[
    GPT2_LAYER[0],
    GPT2_LAYER[1],
    matrix(&["attn.c_attn.weight"], "attn_qkv.weight", &[Qkv, Hidden], Change::None),
    GPT2_LAYER[3],
    matrix(&["attn.c_proj.weight"], "attn_output.weight", &[Hidden, Hidden], Change::None),
    GPT2_LAYER[5],
    GPT2_LAYER[6],
    GPT2_LAYER[7],
    matrix(&["mlp.c_fc.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    GPT2_LAYER[9],
    matrix(&["mlp.c_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    GPT2_LAYER[11],
];

const BITNET: Architecture = Architecture {
    classes: &["BitNetForCausalLM"],
    name: |config| match config.str(&["hidden_act"]) {
        Some("silu") => Ok("bitnet"),
        _ => gated(config, &["relu2"], "bitnet-b1.58"),
    },
    layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, SUB_NORMS, MLP],
    ..LLAMA
};

const QWEN3: Architecture = Architecture {
    classes: &["Qwen3ForCausalLM", "Qwen3Model"],
    name: |config| gated(config, &["silu"], "qwen3"),
    layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, MLP, INPUT_NORMS],
    rope: Rope::Base,
    // Defaults of Qwen3Config.
    defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 128.0)],
    ..LLAMA
};

const OLMO2: Architecture = Architecture {
    classes: &["Olmo2ForCausalLM"],
    name: |config| gated(config, &["silu"], "olmo2"),
    layer: &[OLMO2_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
    rope: Rope::Base,
    // Defaults of Olmo2Config and Olmo3Config.
    defaults: &[("rms_norm_eps", 1e-5)],
    ..LLAMA
};

const COMMAND_R: Architecture = Architecture {
    classes: &["CohereForCausalLM"],
    name: command_r,
    // RoPE rotates adjacent elements in both formats.
    layer: &[&[NORMS[0]], ATTN_HALVES, ATTN_OTHERS, MAYBE_QKV_BIASES, MLP],
    tied: true,
    // Defaults of CohereConfig and Cohere2Config.
    defaults: &[("layer_norm_eps", 1e-5), ("logit_scale", 0.0625)],
    factors: &[("logit_scale", "logit_scale")],
    layer_norm: true,
    ..LLAMA
};

/// Every architecture of this kind.
pub static ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    BITNET,
    // 1bitLLM's class, whose weights are always masters.
    Architecture { classes: &["BitnetForCausalLM"], masters: true, ..BITNET },
    Architecture {
        classes: &["Qwen2ForCausalLM"],
        name: |config| gated(config, &["silu"], "qwen2"),
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, QKV_BIASES, MLP],
        rope: Rope::Base,
        ..LLAMA
    },
    Architecture {
        classes: &["Qwen2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration"],
        name: |config| gated(config, &["silu"], "qwen2vl"),
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, QKV_BIASES, MLP],
        rope: Rope::Base,
        sections: true,
        ..LLAMA
    },
    QWEN3,
    Architecture {
        classes: &["Qwen3VLForConditionalGeneration"],
        name: |config| gated(config, &["silu"], "qwen3vl"),
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, MLP],
        sections: true,
        ..QWEN3
    },
    Architecture {
        classes: &[
            "Idefics3ForConditionalGeneration",
            "SmolVLMForConditionalGeneration",
            "LlavaForConditionalGeneration",
        ],
        name: text_of_images,
        ..LLAMA
    },
    Architecture {
        classes: &["SmolLM3ForCausalLM"],
        name: smollm3,
        tied: true,
        // Defaults of SmolLM3Config.
        defaults: &[("rms_norm_eps", 1e-6), ("rope_theta", 2e6)],
        ..LLAMA
    },
    Architecture {
        classes: &["GraniteForCausalLM"],
        name: |config| gated(config, &["silu"], "granite"),
        factors: GRANITE_FACTORS,
        ..LLAMA
    },
    Architecture {
        classes: &["Glm4ForCausalLM"],
        name: |config| gated(config, &["silu"], "glm4"),
        // RoPE rotates adjacent elements in both formats.
        layer: &[GLM4_NORMS, ATTN_HALVES, ATTN_OTHERS, MAYBE_QKV_BIASES, FUSED_MLP],
        // Defaults of Glm4Config.
        defaults: &[("rms_norm_eps", 1.562_5e-7), ("head_dim", 128.0), ("partial_rotary_factor", 0.5)],
        ..LLAMA
    },
    Architecture {
        classes: &["GlmForCausalLM"],
        name: |config| gated(config, &["silu"], "chatglm"),
        // As with GLM-4 of 2025.
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, MAYBE_QKV_BIASES, FUSED_MLP],
        // Defaults of GlmConfig.
        defaults: &[("rms_norm_eps", 1.562_5e-7), ("head_dim", 128.0), ("partial_rotary_factor", 0.5)],
        ..LLAMA
    },
    Architecture {
        classes: &["Phi3ForCausalLM"],
        name: |config| gated(config, &["silu"], "phi3"),
        layer: &[NORMS, FUSED_ATTENTION, FUSED_MLP],
        // Defaults of Phi3Config.
        defaults: &[("rms_norm_eps", 1e-5), ("original_max_position_embeddings", 4096.0)],
        long_rope: true,
        ..LLAMA
    },
    Architecture {
        classes: &["OlmoForCausalLM"],
        name: |config| gated(config, &["silu"], "olmo"),
        // Norms have no weights.
        globals: &[GLOBALS[0]],
        layer: &[ATTN_PERMUTED, ATTN_OTHERS, MLP],
        // That of transformers' class.
        defaults: &[("layer_norm_eps", 1e-5)],
        layer_norm: true,
        ..LLAMA
    },
    OLMO2,
    Architecture { classes: &["Olmo3ForCausalLM"], windows: Some(4), ..OLMO2 },
    Architecture {
        classes: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
        name: mistral3,
        ..LLAMA
    },
    Architecture {
        classes: &["ArceeForCausalLM"],
        name: |config| gated(config, &["relu2"], "arcee"),
        layer: &[NORMS, ATTN_PERMUTED, ATTN_OTHERS, &[MLP[1], MLP[2]]],
        // Defaults of ArceeConfig.
        defaults: &[("rms_norm_eps", 1e-5)],
        ..LLAMA
    },
    Architecture {
        classes: &["ApertusForCausalLM"],
        name: |config| gated(config, &["xielu"], "apertus"),
        layer: &[APERTUS_NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, &[MLP[1], MLP[2]]],
        xielu: true,
        // Defaults of ApertusConfig.
        defaults: &[("rms_norm_eps", 1e-5)],
        ..LLAMA
    },
    Architecture {
        classes: &["InternLM2ForCausalLM"],
        name: |config| gated(config, &["silu"], "internlm2"),
        globals: INTERNLM2_GLOBALS,
        layer: &[INTERNLM2_LAYER],
        head: "output.weight",
        // Defaults of InternLM2Config.
        defaults: &[("rms_norm_eps", 1e-6)],
        ..LLAMA
    },
    Architecture {
        classes: &["SeedOssForCausalLM"],
        name: |config| gated(config, &["silu"], "seed_oss"),
        layer: &[SEED_NORMS, ATTN_HALVES, ATTN_OTHERS, QKV_BIASES, MLP],
        // Defaults of SeedOssConfig.
        defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 128.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["Ernie4_5ForCausalLM"],
        name: |config| gated(config, &["silu"], "ernie4_5"),
        // RoPE rotates adjacent elements in both formats.
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        tied: true,
        // Defaults of Ernie4_5Config.
        defaults: &[("rms_norm_eps", 1e-5), ("rope_theta", 500_000.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["HunYuanDenseV1ForCausalLM"],
        name: |config| gated(config, &["silu"], "hunyuan-dense"),
        layer: &[NORMS, HUNYUAN_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        // Defaults of HunYuanDenseV1Config.
        defaults: &[("rms_norm_eps", 1e-5)],
        ..LLAMA
    },
    Architecture {
        classes: &["Exaone4ForCausalLM"],
        name: |config| gated(config, &["silu"], "exaone4"),
        layer: &[EXAONE4_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        // Defaults of Exaone4Config.
        defaults: &[("rms_norm_eps", 1e-5)],
        windows: Some(4),
        ..LLAMA
    },
    Architecture { classes: &["Cohere2ForCausalLM"], windows: Some(4), ..COMMAND_R },
    COMMAND_R,
    Architecture {
        classes: &["Starcoder2ForCausalLM"],
        name: |config| gated(config, &["gelu_pytorch_tanh"], "starcoder2"),
        globals: GLOBALS_WITH_BIAS,
        layer: &[NORMS, NORM_BIASES, ATTN_HALVES, ATTN_OTHERS, QKV_BIASES, &[OUT_BIAS], STARCODER2_MLP],
        tied: true,
        // Defaults of Starcoder2Config.
        defaults: &[("norm_epsilon", 1e-5)],
        layer_norm: true,
        ..LLAMA
    },
    Architecture {
        classes: &["StableLmForCausalLM"],
        name: stablelm,
        globals: GLOBALS_WITH_BIAS,
        layer: &[NORMS, NORM_BIASES, ATTN_HALVES, ATTN_OTHERS, MAYBE_QKV_BIASES, MLP],
        // Defaults of StableLmConfig.
        defaults: &[("layer_norm_eps", 1e-5), ("partial_rotary_factor", 0.25)],
        layer_norm: true,
        ..LLAMA
    },
    Architecture {
        classes: &["GPTBigCodeForCausalLM"],
        name: starcoder,
        layers: "h.",
        globals: GPT2_GLOBALS,
        layer: &[STARCODER_LAYER],
        tied: true,
        // Defaults of GPTBigCodeConfig.
        defaults: &[("layer_norm_epsilon", 1e-5)],
        rope: Rope::None,
        layer_norm: true,
        ..LLAMA
    },
    Architecture {
        classes: &["GPT2LMHeadModel"],
        name: gpt2,
        layers: "h.",
        globals: GPT2_GLOBALS,
        layer: &[GPT2_LAYER],
        tied: true,
        defaults: &[("layer_norm_epsilon", 1e-5)],
        rope: Rope::None,
        layer_norm: true,
        ..LLAMA
    },
];

/// StarCoder, whose query heads share one key head.
fn starcoder(config: &Config) -> Result<&'static str, ConvertError> {
    const SHARED: &str = "multi_query";
    if config.bool(&[SHARED]) == Some(false) {
        let want = "true: other checkpoints have the heads' rows in another order";
        return Err(config.wrong(SHARED, want, config.get(&[SHARED])));
    }
    usual_attention(config)?;
    gated(config, &["gelu_pytorch_tanh", "gelu_new", "gelu"], "starcoder")
}

/// GGUF has no key for the layers without RoPE: readers assume every fourth.
fn smollm3(config: &Config) -> Result<&'static str, ConvertError> {
    const LAYERS: &str = "no_rope_layers";
    const INTERVAL: &str = "no_rope_layer_interval";
    if let Some(found) = config.get(&[LAYERS]) {
        let usual = |at: usize| u64::from(!(at + 1).is_multiple_of(4));
        let is_usual = |(at, rotates): (usize, &Json)| rotates.as_u64() == Some(usual(at));
        if !found.as_array().is_some_and(|layers| layers.iter().enumerate().all(is_usual)) {
            return Err(config.wrong(LAYERS, "0 for every fourth layer and 1 for the others", Some(found)));
        }
    } else if config.count(&[INTERVAL])?.is_some_and(|interval| interval != 4) {
        return Err(config.wrong(INTERVAL, "4", config.get(&[INTERVAL])));
    }
    if config.bool(&["use_sliding_window"]) == Some(true) {
        return Err(config.wrong("use_sliding_window", "false", config.get(&["use_sliding_window"])));
    }
    gated(config, &["silu"], "smollm3")
}

/// Command R, or Command R7B and Command A, by the class.
fn command_r(config: &Config) -> Result<&'static str, ConvertError> {
    const NORM: &str = "use_qk_norm";
    if config.bool(&[NORM]) == Some(true) {
        return Err(config.wrong(NORM, "false", config.get(&[NORM])));
    }
    let of_two = config.str(&["model_type"]) == Some("cohere2");
    gated(config, &["silu"], if of_two { "cohere2" } else { "command-r" })
}

fn stablelm(config: &Config) -> Result<&'static str, ConvertError> {
    for key in ["qk_layernorm", "use_parallel_residual"] {
        if config.bool(&[key]) == Some(true) {
            return Err(config.wrong(key, "false", config.get(&[key])));
        }
    }
    gated(config, &["silu"], "stablelm")
}

fn gpt2(config: &Config) -> Result<&'static str, ConvertError> {
    usual_attention(config)?;
    gated(config, &["gelu_new", "gelu_pytorch_tanh"], "gpt2")
}

fn usual_attention(config: &Config) -> Result<(), ConvertError> {
    for (key, usual) in [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("add_cross_attention", false),
    ] {
        if config.bool(&[key]).is_some_and(|found| found != usual) {
            return Err(config.wrong(key, &usual.to_string(), config.get(&[key])));
        }
    }
    Ok(())
}

/// Mistral Small 3 has the same class, with a text model that is Llama's.
fn mistral3(config: &Config) -> Result<&'static str, ConvertError> {
    let of_text = config.str(&["model_type"]);
    gated(config, &["silu"], if of_text == Some("mistral") { "llama" } else { "mistral3" })
}

/// The text of classes that may have others than Llama's.
fn text_of_images(config: &Config) -> Result<&'static str, ConvertError> {
    const TYPE: &str = "model_type";
    match config.str(&[TYPE]) {
        Some("llama" | "mistral") => gated(config, &["silu"], "llama"),
        _ => Err(config.wrong(TYPE, "llama or mistral", config.get(&[TYPE]))),
    }
}
