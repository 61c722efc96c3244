//! Relatives of Llama that differ from it in a few properties, and their presets.

use super::{Family, LLAMA_3, MambaForm, Preset};

/// Properties of a relative of Llama.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relative {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// The norms of a layer and of its output.
    pub norms: Norms,
    /// The layers that have biases.
    pub biases: Biases,
    /// True if queries, keys and values are one tensor.
    pub fused_qkv: bool,
    /// True if there are norms of whole rows of queries and keys.
    pub row_norms: bool,
    /// The gate of the feed-forward network.
    pub gate: Gate,
    /// Elements of a head that RoPE rotates, at most its length; 0 for all.
    pub rope_dims: usize,
    /// Number of experts per layer, and number used per row.
    pub experts: Option<(usize, usize)>,
    /// True if texts begin with BOS.
    pub adds_bos: bool,
}

/// Norms of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norms {
    /// RMS norms before attention and the feed-forward network.
    Rms,
    /// LayerNorms with a bias, likewise.
    Layer,
    /// One LayerNorm for both, which are next to each other.
    OneLayer,
    /// A second LayerNorm for attention (Falcon 40B).
    TwoLayer,
    /// LayerNorms without weights.
    Bare,
}

/// Layers with biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Biases {
    /// None.
    None,
    /// Queries, keys and values.
    Qkv,
    /// All but the head.
    All,
    /// All.
    AllAndHead,
}

/// Gate of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// A tensor of its own.
    Own,
    /// In one tensor with the up projection.
    Fused,
    /// None.
    None,
}

impl Relative {
    const PLAIN: Self = Self {
        architecture: "",
        norms: Norms::Rms,
        biases: Biases::None,
        fused_qkv: false,
        row_norms: false,
        gate: Gate::Own,
        rope_dims: 0,
        experts: None,
        adds_bos: false,
    };

    /// True if the norms are LayerNorms.
    pub fn has_layer_norms(&self) -> bool {
        self.norms != Norms::Rms
    }

    /// True if a tensor has a bias, by its name without the suffix.
    pub fn has_bias(&self, name: &str) -> bool {
        let is_of_qkv = || ["attn_q", "attn_k", "attn_v"].iter().any(|part| name.ends_with(part));
        match self.biases {
            _ if name.ends_with("norm") || name.ends_with("norm_2") => self.has_layer_norms(),
            Biases::None => false,
            Biases::Qkv => is_of_qkv(),
            Biases::All => name != "output",
            Biases::AllAndHead => true,
        }
    }
}

const GEMMA: Preset = Preset {
    family: Family::Relative(Relative { architecture: "gemma", adds_bos: true, ..Relative::PLAIN }),
    n_vocab: 256_000,
    n_ctx: 8192,
    rope_base: 10_000.0,
    norm_eps: 1e-6,
    ..LLAMA_3
};

pub(super) const GEMMA_2B: Preset = Preset {
    name: "gemma-2b",
    about: "google/gemma-2b-it",
    size: [18, 2048, 16_384],
    heads: [8, 1, 256],
    ..GEMMA
};

pub(super) const GEMMA_7B: Preset = Preset {
    name: "gemma-7b",
    about: "google/gemma-7b-it",
    size: [28, 3072, 24_576],
    heads: [16, 16, 256],
    ..GEMMA
};

pub(super) const OLMOE: Preset = Preset {
    name: "olmoe-1b-7b",
    about: "allenai/OLMoE-1B-7B-0924-Instruct",
    family: Family::Relative(Relative {
        architecture: "olmoe",
        row_norms: true,
        experts: Some((64, 8)),
        ..Relative::PLAIN
    }),
    size: [16, 2048, 1024],
    heads: [16, 16, 128],
    n_vocab: 50_304,
    n_ctx: 4096,
    rope_base: 10_000.0,
    tied: false,
    pre: Some("olmo"),
    ..LLAMA_3
};

const EXAONE: Preset = Preset {
    family: Family::Relative(Relative { architecture: "exaone", ..Relative::PLAIN }),
    n_vocab: 102_400,
    n_ctx: 32_768,
    rope_base: 1_000_000.0,
    pre: Some("exaone"),
    ..LLAMA_3
};

pub(super) const EXAONE_2B: Preset = Preset {
    name: "exaone-3.5-2.4b",
    about: "LGAI-EXAONE/EXAONE-3.5-2.4B-Instruct",
    size: [30, 2560, 7168],
    heads: [32, 8, 80],
    ..EXAONE
};

pub(super) const EXAONE_8B: Preset = Preset {
    name: "exaone-3.5-7.8b",
    about: "LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct",
    size: [32, 4096, 14_336],
    heads: [32, 8, 128],
    tied: false,
    ..EXAONE
};

pub(super) const PHI_2: Preset = Preset {
    name: "phi-2",
    about: "microsoft/phi-2",
    family: Family::Relative(Relative {
        architecture: "phi2",
        norms: Norms::OneLayer,
        biases: Biases::AllAndHead,
        gate: Gate::None,
        rope_dims: 32,
        ..Relative::PLAIN
    }),
    size: [32, 2560, 10_240],
    heads: [32, 32, 80],
    n_vocab: 51_200,
    n_ctx: 2048,
    rope_base: 10_000.0,
    tied: false,
    pre: Some("gpt-2"),
    ..LLAMA_3
};

pub(super) const NEMOTRON: Preset = Preset {
    name: "nemotron-mini-4b",
    about: "nvidia/Nemotron-Mini-4B-Instruct",
    family: Family::Relative(Relative {
        architecture: "nemotron",
        norms: Norms::Layer,
        gate: Gate::None,
        rope_dims: 64,
        ..Relative::PLAIN
    }),
    size: [32, 3072, 9216],
    heads: [24, 8, 128],
    n_vocab: 256_000,
    n_ctx: 4096,
    rope_base: 10_000.0,
    tied: false,
    ..LLAMA_3
};

const NEOX: Relative = Relative {
    architecture: "gptneox",
    norms: Norms::Layer,
    biases: Biases::All,
    fused_qkv: true,
    gate: Gate::None,
    ..Relative::PLAIN
};

const PYTHIA: Preset = Preset { n_ctx: 2048, rope_base: 10_000.0, tied: false, pre: Some("olmo"), ..LLAMA_3 };

pub(super) const PYTHIA_1B: Preset = Preset {
    name: "pythia-1.4b",
    about: "EleutherAI/pythia-1.4b",
    family: Family::Relative(Relative { rope_dims: 32, ..NEOX }),
    size: [24, 2048, 8192],
    heads: [16, 16, 128],
    n_vocab: 50_304,
    ..PYTHIA
};

pub(super) const PYTHIA_7B: Preset = Preset {
    name: "pythia-6.9b",
    about: "EleutherAI/pythia-6.9b",
    family: Family::Relative(Relative { rope_dims: 32, ..NEOX }),
    size: [32, 4096, 16_384],
    heads: [32, 32, 128],
    n_vocab: 50_432,
    ..PYTHIA
};

const FALCON: Preset =
    Preset { n_vocab: 65_024, n_ctx: 2048, rope_base: 10_000.0, pre: Some("falcon"), ..LLAMA_3 };

pub(super) const FALCON_7B: Preset = Preset {
    name: "falcon-7b",
    about: "tiiuae/falcon-7b-instruct",
    family: Family::Relative(Relative {
        architecture: "falcon",
        norms: Norms::OneLayer,
        fused_qkv: true,
        gate: Gate::None,
        ..Relative::PLAIN
    }),
    size: [32, 4544, 18_176],
    heads: [71, 1, 64],
    ..FALCON
};

pub(super) const FALCON_40B: Preset = Preset {
    name: "falcon-40b",
    about: "tiiuae/falcon-40b-instruct",
    family: Family::Relative(Relative {
        architecture: "falcon",
        norms: Norms::TwoLayer,
        fused_qkv: true,
        gate: Gate::None,
        ..Relative::PLAIN
    }),
    size: [60, 8192, 32_768],
    heads: [128, 8, 64],
    ..FALCON
};

pub(super) const GLM_4: Preset = Preset {
    name: "glm-4-9b-chat",
    about: "THUDM/glm-4-9b-chat of 2024",
    family: Family::Relative(Relative {
        architecture: "chatglm",
        biases: Biases::Qkv,
        gate: Gate::Fused,
        rope_dims: 64,
        ..Relative::PLAIN
    }),
    size: [40, 4096, 13_696],
    heads: [32, 2, 128],
    n_vocab: 151_552,
    rope_base: 5_000_000.0,
    norm_eps: 1.562_5e-7,
    tied: false,
    pre: Some("chatglm-bpe"),
    ..LLAMA_3
};

pub(super) const OLMO: Preset = Preset {
    name: "olmo-7b",
    about: "allenai/OLMo-7B",
    family: Family::Relative(Relative { architecture: "olmo", norms: Norms::Bare, ..Relative::PLAIN }),
    size: [32, 4096, 11_008],
    heads: [32, 32, 128],
    n_vocab: 50_304,
    n_ctx: 2048,
    rope_base: 10_000.0,
    tied: false,
    pre: Some("olmo"),
    ..LLAMA_3
};

pub(super) const MAMBA_CODESTRAL: Preset = Preset {
    name: "mamba-codestral-7b",
    about: "mistralai/Mamba-Codestral-7B-v0.1",
    family: Family::Mamba { form: MambaForm::Alone, n_heads: 128, n_groups: 8, head_dim: 64, state_dim: 128 },
    size: [64, 4096, 1],
    heads: [1, 1, 4096],
    n_vocab: 32_768,
    n_ctx: 1 << 20,
    tied: false,
    ..LLAMA_3
};
