//! Models with Mamba-2 layers: Granite 4 H, Falcon-H1, Nemotron-H, and Mamba-2 itself.

use super::Dim::{
    EmbeddingAndHidden, ExpertFfn, ExpertInput, Experts, Ffn, GateUp, Hidden, Kv, MambaChannels, MambaGroup,
    MambaGroups, MambaHeads, MambaInputs, MambaState, MambaValues, One, Q, SharedFfn, SharedGateUp, Taps,
};
use super::{
    ATTN_HALVES, ATTN_OTHERS, ATTN_PERMUTED, Architecture, Change, ConvertError, GLOBALS, GRANITE_EXPERTS,
    GRANITE_FACTORS, LLAMA, NORMS, ReadFactors, Rope, Rule, gated, matrix, maybe, maybe_matrix, needed_if,
    plain,
};
use crate::config::Config;
use crate::recurrent::{self, Recurrent};

/// Every architecture of this kind.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        classes: &["GraniteMoeHybridForCausalLM"],
        name: |config| gated(config, &["silu"], "granitehybrid"),
        layer: &[NORMS, ATTN_PERMUTED, ATTN_OTHERS, GRANITE_FFN],
        delta: &[NORMS, MAMBA, GRANITE_FFN],
        recurrent: Some(Recurrent::granite),
        expert_width: "intermediate_size",
        factors: GRANITE_FACTORS,
        // Defaults of GraniteMoeHybridConfig.
        defaults: &[("rms_norm_eps", 1e-6)],
        ..LLAMA
    },
    Architecture {
        classes: &["FalconH1ForCausalLM"],
        name: |config| gated(config, &["silu"], "falcon-h1"),
        globals: FALCON_GLOBALS,
        layer: &[FALCON_NORMS, FALCON_ATTENTION, FALCON_MAMBA, FALCON_MLP],
        recurrent: Some(Recurrent::falcon),
        head_factors: Some(|config| product(config, &["lm_head_multiplier"])),
        // Defaults of FalconH1Config.
        defaults: &[("rms_norm_eps", 1e-5)],
        ..LLAMA
    },
    Architecture {
        classes: &["NemotronHForCausalLM"],
        name: nemotron_h,
        layers: "backbone.layers.",
        globals: NEMOTRON_GLOBALS,
        layer: &[NEMOTRON_NORM, NEMOTRON_ATTENTION],
        delta: &[NEMOTRON_NORM, NEMOTRON_MAMBA],
        dense_first: &[NEMOTRON_NORM, NEMOTRON_FFN],
        recurrent: Some(Recurrent::nemotron),
        mtp: &["mtp."],
        mtp_block: &[NEMOTRON_MTP, NEMOTRON_MTP_FFN],
        rope: Rope::None,
        // Defaults of NemotronHConfig.
        defaults: &[("layer_norm_epsilon", 1e-5), ("head_dim", 128.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["Mamba2ForCausalLM"],
        name: |config| gated(config, &["silu"], "mamba2"),
        layers: "backbone.layers.",
        globals: NEMOTRON_GLOBALS,
        delta: &[NEMOTRON_NORM, NEMOTRON_MAMBA],
        layer: &[],
        recurrent: Some(Recurrent::mamba2),
        rope: Rope::None,
        // Defaults of Mamba2Config; the context is llama.cpp's, as there is no limit.
        defaults: &[
            ("layer_norm_epsilon", 1e-5),
            ("conv_kernel", 4.0),
            ("max_position_embeddings", (1 << 20) as f64),
        ],
        ..LLAMA
    },
];

/// Tensors of a Mamba-2 layer, whose names in checkpoints begin with this.
macro_rules! mamba {
    ($prefix:literal) => {
        &[
            matrix(
                &[concat!($prefix, "in_proj.weight")],
                "ssm_in.weight",
                &[MambaInputs, Hidden],
                Change::None,
            ),
            plain(&[concat!($prefix, "conv1d.weight")], "ssm_conv1d.weight", &[MambaChannels, One, Taps]),
            maybe(&[concat!($prefix, "conv1d.bias")], "ssm_conv1d.bias", &[MambaChannels], Change::None),
            plain(&[concat!($prefix, "dt_bias")], "ssm_dt.bias", &[MambaHeads]),
            Rule {
                change: Change::Decay,
                reshaped: &[MambaHeads, One],
                ..plain(&[concat!($prefix, "A_log")], "ssm_a", &[MambaHeads])
            },
            Rule { reshaped: &[MambaHeads, One], ..plain(&[concat!($prefix, "D")], "ssm_d", &[MambaHeads]) },
            Rule {
                reshaped: &[MambaGroups, MambaGroup],
                ..plain(&[concat!($prefix, "norm.weight")], "ssm_norm.weight", &[MambaValues])
            },
            matrix(
                &[concat!($prefix, "out_proj.weight")],
                "ssm_out.weight",
                &[Hidden, MambaValues],
                Change::None,
            ),
        ]
    };
}

const MAMBA: &[Rule] = mamba!("mamba.");
const NEMOTRON_MAMBA: &[Rule] = mamba!("mixer.");

fn has_experts(config: &Config) -> bool {
    config.count_or_none(&["num_local_experts"]).is_ok_and(|n| n.is_some())
}

fn is_dense(config: &Config) -> bool {
    !has_experts(config)
}

/// The network that every row uses, alone or in addition to experts: gate rows, then up rows.
const GRANITE_FFN: &[Rule] = &[
    needed_if(has_experts, GRANITE_EXPERTS[0]),
    needed_if(has_experts, GRANITE_EXPERTS[1]),
    needed_if(has_experts, GRANITE_EXPERTS[2]),
    needed_if(has_experts, GRANITE_EXPERTS[3]),
    needed_if(
        has_experts,
        matrix(&[SHARED_IN], "ffn_gate_shexp.weight", &[SharedGateUp, Hidden], Change::FirstHalf),
    ),
    needed_if(
        has_experts,
        matrix(&[SHARED_IN], "ffn_up_shexp.weight", &[SharedGateUp, Hidden], Change::SecondHalf),
    ),
    needed_if(
        has_experts,
        matrix(&[SHARED_OUT], "ffn_down_shexp.weight", &[Hidden, SharedFfn], Change::None),
    ),
    needed_if(is_dense, matrix(&[SHARED_IN], "ffn_gate.weight", &[GateUp, Hidden], Change::FirstHalf)),
    needed_if(is_dense, matrix(&[SHARED_IN], "ffn_up.weight", &[GateUp, Hidden], Change::SecondHalf)),
    needed_if(is_dense, matrix(&[SHARED_OUT], "ffn_down.weight", &[Hidden, Ffn], Change::None)),
];
const SHARED_IN: &str = "shared_mlp.input_linear.weight";
const SHARED_OUT: &str = "shared_mlp.output_linear.weight";

const fn scaled(rule: Rule, factors: ReadFactors) -> Rule {
    Rule { factors: Some(factors), ..rule }
}

const FALCON_GLOBALS: &[Rule] = &[
    scaled(GLOBALS[0], |config| product(config, &["embedding_multiplier"])),
    plain(&["model.final_layernorm.weight"], "output_norm.weight", &[Hidden]),
];
/// The second has no suffix in files.
const FALCON_NORMS: &[Rule] = &[NORMS[0], plain(&["pre_ff_layernorm.weight"], "ffn_norm", &[Hidden])];
const FALCON_ATTENTION: &[Rule] = &[
    scaled(ATTN_HALVES[0], |config| product(config, &["attention_in_multiplier"])),
    scaled(ATTN_HALVES[1], |config| product(config, &["attention_in_multiplier", "key_multiplier"])),
    scaled(ATTN_OTHERS[0], |config| product(config, &["attention_in_multiplier"])),
    scaled(ATTN_OTHERS[1], |config| product(config, &["attention_out_multiplier"])),
];
const FALCON_MAMBA: &[Rule] = &[
    Rule {
        runs: &[MambaValues, MambaValues, MambaState, MambaState, MambaHeads],
        ..scaled(MAMBA[0], |config| {
            let whole = number(config, "ssm_in_multiplier")?;
            let parts = config.numbers::<5>("ssm_multipliers")?.unwrap_or([1.0; 5]);
            Ok(parts.map(|part| whole * part).into())
        })
    },
    MAMBA[1],
    MAMBA[2],
    MAMBA[3],
    MAMBA[4],
    MAMBA[5],
    needed_if(|config| config.bool(&["mamba_rms_norm"]) == Some(true), MAMBA[6]),
    scaled(MAMBA[7], |config| product(config, &["ssm_out_multiplier"])),
];
const FALCON_MLP: &[Rule] = &[
    scaled(
        matrix(&["feed_forward.gate_proj.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
        |config| Ok(vec![mlp(config)?[0]]),
    ),
    matrix(&["feed_forward.up_proj.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    scaled(
        matrix(&["feed_forward.down_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
        |config| Ok(vec![mlp(config)?[1]]),
    ),
];

fn mlp(config: &Config) -> Result<[f64; 2], ConvertError> {
    Ok(config.numbers::<2>("mlp_multipliers")?.unwrap_or([1.0; 2]))
}

fn number(config: &Config, key: &'static str) -> Result<f64, ConvertError> {
    Ok(config.positive(&[key])?.unwrap_or(1.0))
}

/// The product of these factors, for all rows.
fn product(config: &Config, keys: &[&'static str]) -> Result<Vec<f64>, ConvertError> {
    let factors: Result<Vec<f64>, _> = keys.iter().map(|key| number(config, key)).collect();
    Ok(vec![factors?.into_iter().product()])
}

const NEMOTRON_GLOBALS: &[Rule] = &[
    Rule { from: &["backbone.embeddings.weight", "backbone.embedding.weight"], ..GLOBALS[0] },
    plain(&["backbone.norm_f.weight"], "output_norm.weight", &[Hidden]),
];
const NEMOTRON_NORM: &[Rule] = &[plain(&["norm.weight"], "attn_norm.weight", &[Hidden])];
const NEMOTRON_ATTENTION: &[Rule] = &[
    matrix(&["mixer.q_proj.weight"], "attn_q.weight", &[Q, Hidden], Change::None),
    matrix(&["mixer.k_proj.weight"], "attn_k.weight", &[Kv, Hidden], Change::None),
    matrix(&["mixer.v_proj.weight"], "attn_v.weight", &[Kv, Hidden], Change::None),
    matrix(&["mixer.o_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
];
/// Tensors of a layer that is only a feed-forward network or a mixture, with the prefix of their names.
macro_rules! nemotron_ffn {
    ($prefix:literal) => {
        &[
            needed_if(
                has_no_mixtures,
                matrix(
                    &[concat!($prefix, "mixer.up_proj.weight")],
                    "ffn_up.weight",
                    &[Ffn, Hidden],
                    Change::None,
                ),
            ),
            needed_if(
                has_no_mixtures,
                matrix(
                    &[concat!($prefix, "mixer.down_proj.weight")],
                    "ffn_down.weight",
                    &[Hidden, Ffn],
                    Change::None,
                ),
            ),
            needed_if(
                recurrent::has_mixtures,
                plain(&[concat!($prefix, "mixer.gate.weight")], "ffn_gate_inp.weight", &[Experts, Hidden]),
            ),
            needed_if(
                recurrent::has_mixtures,
                plain(
                    &[concat!($prefix, "mixer.gate.e_score_correction_bias")],
                    "exp_probs_b.bias",
                    &[Experts],
                ),
            ),
            needed_if(
                recurrent::has_mixtures,
                matrix(
                    &[concat!($prefix, "mixer.experts.*.up_proj.weight")],
                    "ffn_up_exps.weight",
                    &[ExpertFfn, ExpertInput],
                    Change::Stack,
                ),
            ),
            needed_if(
                recurrent::has_mixtures,
                matrix(
                    &[concat!($prefix, "mixer.experts.*.down_proj.weight")],
                    "ffn_down_exps.weight",
                    &[ExpertInput, ExpertFfn],
                    Change::Stack,
                ),
            ),
            maybe_matrix(
                &[concat!($prefix, "mixer.fc1_latent_proj.weight")],
                "ffn_latent_down.weight",
                &[ExpertInput, Hidden],
            ),
            maybe_matrix(
                &[concat!($prefix, "mixer.fc2_latent_proj.weight")],
                "ffn_latent_up.weight",
                &[Hidden, ExpertInput],
            ),
            needed_if(
                recurrent::has_mixtures,
                matrix(
                    &[concat!($prefix, "mixer.shared_experts.up_proj.weight")],
                    "ffn_up_shexp.weight",
                    &[SharedFfn, Hidden],
                    Change::None,
                ),
            ),
            needed_if(
                recurrent::has_mixtures,
                matrix(
                    &[concat!($prefix, "mixer.shared_experts.down_proj.weight")],
                    "ffn_down_shexp.weight",
                    &[Hidden, SharedFfn],
                    Change::None,
                ),
            ),
        ]
    };
}

const NEMOTRON_FFN: &[Rule] = nemotron_ffn!("");
/// The MTP block has attention in its first layer, and a mixture in its second.
const NEMOTRON_MTP: &[Rule] = &[
    matrix(&["layers.0.eh_proj.weight"], "nextn.eh_proj.weight", &[Hidden, EmbeddingAndHidden], Change::None),
    plain(&["layers.0.enorm.weight"], "nextn.enorm.weight", &[Hidden]),
    plain(&["layers.0.hnorm.weight"], "nextn.hnorm.weight", &[Hidden]),
    plain(&["layers.1.norm.weight"], "post_attention_norm.weight", &[Hidden]),
    plain(&["layers.1.final_layernorm.weight"], "nextn.shared_head_norm.weight", &[Hidden]),
];
const NEMOTRON_MTP_FFN: &[Rule] = nemotron_ffn!("layers.1.");

fn has_no_mixtures(config: &Config) -> bool {
    !recurrent::has_mixtures(config)
}

fn nemotron_h(config: &Config) -> Result<&'static str, ConvertError> {
    const ACT: &str = "mlp_hidden_act";
    match config.str(&[ACT]) {
        None | Some("relu2") if recurrent::has_mixtures(config) => Ok("nemotron_h_moe"),
        None | Some("relu2") => Ok("nemotron_h"),
        Some(_) => Err(config.wrong(ACT, "relu2", config.get(&[ACT]))),
    }
}
