//! The shapes of known models.

use super::{Family, LLAMA_3, MambaForm, Preset, Tower, relatives};
use crate::SynthError;

/// BitNet b1.58.
const BITNET: Preset = Preset { family: Family::BitNet, types: ["i2_s", "f16"], ..LLAMA_3 };

/// Falcon 3 in 1.58 bits.
const FALCON_3: Preset = Preset {
    n_vocab: 131_072,
    n_ctx: 32_768,
    rope_base: 1_000_042.0,
    norm_eps: 1e-6,
    tied: false,
    types: ["i2_s", "f16"],
    ..LLAMA_3
};

/// Qwen 3.
const QWEN_3: Preset = Preset {
    family: Family::Qwen3,
    n_vocab: 151_936,
    n_ctx: 40_960,
    rope_base: 1_000_000.0,
    norm_eps: 1e-6,
    pre: Some("qwen2"),
    ..LLAMA_3
};

/// Qwen 3.5. The family has the heads of the delta nets.
const QWEN_35: Preset =
    Preset { n_vocab: 248_320, n_ctx: 262_144, rope_base: 10_000_000.0, pre: Some("qwen35"), ..QWEN_3 };

/// Gemma 4. The family has the layers of the other kind.
const GEMMA_4: Preset = Preset { n_vocab: 262_144, rope_base: 1_000_000.0, norm_eps: 1e-6, ..LLAMA_3 };

/// Gemma 3n. The family has what its layers have.
const GEMMA_3N: Preset = Preset { heads: [8, 2, 256], n_ctx: 32_768, ..GEMMA_4 };

/// OLMo 2 and 3 with 7 billion parameters.
const OLMO_2: Preset = Preset {
    family: Family::Olmo2 { long: None },
    size: [32, 4096, 11_008],
    heads: [32, 32, 128],
    n_vocab: 100_352,
    n_ctx: 65_536,
    norm_eps: 1e-6,
    tied: false,
    pre: Some("dbrx"),
    ..LLAMA_3
};

/// Ministral 3.
const MINISTRAL_3: Preset = Preset {
    family: Family::Mistral3 { original_ctx: 16_384 },
    heads: [32, 8, 128],
    n_vocab: 131_072,
    n_ctx: 262_144,
    rope_base: 1_000_000.0,
    tied: false,
    pre: Some("tekken"),
    ..LLAMA_3
};

/// GPT-OSS, in the types of its published GGUF files.
const GPT_OSS: Preset = Preset {
    n_vocab: 201_088,
    rope_base: 150_000.0,
    tied: false,
    types: ["mxfp4", "q8_0"],
    pre: Some("gpt-4o"),
    ..LLAMA_3
};

/// Every preset.
pub static PRESETS: &[Preset] = &[
    Preset {
        name: "tiny",
        about: "a miniature BitNet, created instantly",
        size: [2, 256, 512],
        heads: [2, 1, 128],
        n_vocab: 640,
        n_ctx: 512,
        // A tied random head mostly repeats the previous token.
        tied: false,
        ..BITNET
    },
    Preset {
        name: "tiny-moe",
        about: "a miniature of Qwen3's mixture of experts",
        family: Family::Qwen3Moe { n_experts: 8, n_used: 2 },
        size: [2, 256, 128],
        heads: [4, 2, 64],
        n_vocab: 640,
        n_ctx: 512,
        tied: false,
        ..QWEN_3
    },
    Preset {
        name: "tiny-hybrid",
        about: "a miniature of Qwen3.5's delta nets and gated attention",
        family: Family::Qwen35 { n_key_heads: 2, n_value_heads: 4, state_dim: 64, experts: None },
        size: [4, 256, 512],
        heads: [4, 2, 64],
        n_vocab: 640,
        n_ctx: 512,
        tied: false,
        ..QWEN_35
    },
    Preset {
        name: "tiny-bert",
        about: "a miniature BERT, for embedding and reranking",
        family: Family::Bert,
        size: [2, 128, 256],
        heads: [2, 2, 64],
        n_vocab: 640,
        n_ctx: 256,
        rope_base: 10_000.0,
        norm_eps: 1e-12,
        ..LLAMA_3
    },
    Preset {
        name: "bitnet-embedding-0.6b",
        about: "microsoft/bitnet-embedding-0.6b",
        family: Family::BitNetEmbedding,
        size: [28, 1024, 3072],
        heads: [16, 8, 128],
        n_ctx: 32_768,
        types: ["i2_s", "f16"],
        ..QWEN_3
    },
    Preset {
        name: "bitnet-2b-4t",
        about: "microsoft/bitnet-b1.58-2B-4T",
        size: [30, 2560, 6912],
        heads: [20, 5, 128],
        n_ctx: 4096,
        pre: None,
        ..BITNET
    },
    Preset {
        name: "bitnet-8b",
        about: "BitNet with the size of Llama 3 8B, untrained: to measure memory and speed",
        size: [32, 4096, 14_336],
        heads: [32, 8, 128],
        ..BITNET
    },
    Preset {
        name: "falcon3-1b",
        about: "tiiuae/Falcon3-1B-Instruct-1.58bit",
        size: [18, 2048, 8192],
        heads: [8, 4, 256],
        n_ctx: 8192,
        ..FALCON_3
    },
    Preset {
        name: "falcon3-3b",
        about: "tiiuae/Falcon3-3B-Instruct-1.58bit",
        size: [22, 3072, 9216],
        heads: [12, 4, 256],
        ..FALCON_3
    },
    Preset {
        name: "falcon3-7b",
        about: "tiiuae/Falcon3-7B-Instruct-1.58bit",
        size: [28, 3072, 23_040],
        heads: [12, 4, 256],
        ..FALCON_3
    },
    Preset {
        name: "falcon3-10b",
        about: "tiiuae/Falcon3-10B-Instruct-1.58bit",
        size: [40, 3072, 23_040],
        heads: [12, 4, 256],
        ..FALCON_3
    },
    Preset {
        name: "llama3-8b-1.58",
        about: "HF1BitLLM/Llama3-8B-1.58-100B-tokens",
        size: [32, 4096, 14_336],
        heads: [32, 8, 128],
        n_ctx: 8192,
        tied: false,
        types: ["i2_s", "f16"],
        ..LLAMA_3
    },
    Preset {
        name: "llama-3.2-1b",
        about: "meta-llama/Llama-3.2-1B",
        size: [16, 2048, 8192],
        heads: [32, 8, 64],
        ..LLAMA_3
    },
    Preset {
        name: "smollm2-135m",
        about: "HuggingFaceTB/SmolLM2-135M",
        size: [30, 576, 1536],
        heads: [9, 3, 64],
        n_vocab: 49_152,
        n_ctx: 8192,
        rope_base: 100_000.0,
        ..LLAMA_3
    },
    Preset {
        name: "gpt2",
        about: "GPT-2 with 124 million parameters",
        family: Family::Gpt2,
        size: [12, 768, 3072],
        heads: [12, 12, 64],
        n_vocab: 50_257,
        n_ctx: 1024,
        rope_base: 0.0,
        pre: Some("gpt-2"),
        ..LLAMA_3
    },
    Preset {
        name: "qwen2.5-0.5b",
        about: "Qwen/Qwen2.5-0.5B, whose rows are not a multiple of 256-element blocks",
        family: Family::Qwen2,
        size: [24, 896, 4864],
        heads: [14, 2, 64],
        n_ctx: 32_768,
        ..QWEN_3
    },
    Preset {
        name: "qwen3-0.6b",
        about: "Qwen/Qwen3-0.6B",
        size: [28, 1024, 3072],
        heads: [16, 8, 128],
        ..QWEN_3
    },
    Preset {
        name: "qwen3-1.7b",
        about: "Qwen/Qwen3-1.7B, and the Bonsai of the same size",
        size: [28, 2048, 6144],
        heads: [16, 8, 128],
        ..QWEN_3
    },
    Preset {
        name: "qwen35-0.8b",
        about: "Qwen/Qwen3.5-0.8B",
        family: Family::Qwen35 { n_key_heads: 16, n_value_heads: 16, state_dim: 128, experts: None },
        size: [24, 1024, 3584],
        heads: [8, 2, 256],
        ..QWEN_35
    },
    Preset {
        name: "qwen35-4b",
        about: "Qwen/Qwen3.5-4B",
        family: Family::Qwen35 { n_key_heads: 16, n_value_heads: 32, state_dim: 128, experts: None },
        size: [32, 2560, 9216],
        heads: [16, 4, 256],
        ..QWEN_35
    },
    Preset {
        name: "qwen35-27b",
        about: "prism-ml/Ternary-Bonsai-27B, and the Qwen3.5 of the same size",
        family: Family::Qwen35 { n_key_heads: 16, n_value_heads: 48, state_dim: 128, experts: None },
        size: [64, 5120, 17_408],
        heads: [24, 4, 256],
        tied: false,
        types: ["pq2_0", "pq2_0"],
        ..QWEN_35
    },
    Preset {
        name: "qwen35moe-35b-a3b",
        about: "Qwen/Qwen3.5-35B-A3B",
        family: Family::Qwen35 {
            n_key_heads: 16,
            n_value_heads: 32,
            state_dim: 128,
            experts: Some((256, 8)),
        },
        size: [40, 2048, 512],
        heads: [16, 2, 256],
        tied: false,
        ..QWEN_35
    },
    Preset {
        name: "qwen3-next-80b-a3b",
        about: "Qwen/Qwen3-Next-80B-A3B-Instruct",
        family: Family::Qwen3Next {
            n_key_heads: 16,
            n_value_heads: 32,
            state_dim: 128,
            n_experts: 512,
            n_used: 10,
        },
        size: [48, 2048, 512],
        heads: [16, 2, 256],
        n_ctx: 262_144,
        rope_base: 10_000_000.0,
        tied: false,
        ..QWEN_3
    },
    Preset {
        name: "qwen3moe-small",
        about: "Qwen/Qwen3-30B-A3B with a quarter of its layers, half its width, 16 of its 128 experts",
        family: Family::Qwen3Moe { n_experts: 16, n_used: 4 },
        size: [12, 1024, 768],
        heads: [16, 4, 128],
        tied: false,
        ..QWEN_3
    },
    Preset {
        name: "gemma-3-1b",
        about: "google/gemma-3-1b-it",
        family: Family::Gemma3 { window: 512 },
        size: [26, 1152, 6912],
        heads: [4, 1, 256],
        n_vocab: 262_144,
        n_ctx: 32_768,
        rope_base: 1_000_000.0,
        norm_eps: 1e-6,
        ..LLAMA_3
    },
    Preset {
        name: "gemma-3-mmproj",
        about: "the vision tower of google/gemma-3-4b-it, as an mmproj file",
        family: Family::Gemma3Tower(Tower { image: 896, patch: 14, text_dim: 2560 }),
        size: [27, 1152, 4304],
        heads: [16, 16, 72],
        norm_eps: 1e-6,
        ..LLAMA_3
    },
    Preset {
        name: "gemma-2-2b",
        about: "google/gemma-2-2b-it",
        family: Family::Gemma2 { window: 4096 },
        size: [26, 2304, 9216],
        heads: [8, 4, 256],
        n_vocab: 256_000,
        n_ctx: 8192,
        rope_base: 10_000.0,
        norm_eps: 1e-6,
        ..LLAMA_3
    },
    Preset {
        name: "gemma-2-9b",
        about: "google/gemma-2-9b-it",
        family: Family::Gemma2 { window: 4096 },
        size: [42, 3584, 14_336],
        heads: [16, 8, 256],
        n_vocab: 256_000,
        n_ctx: 8192,
        rope_base: 10_000.0,
        norm_eps: 1e-6,
        ..LLAMA_3
    },
    Preset {
        name: "gemma-2-27b",
        about: "google/gemma-2-27b-it",
        family: Family::Gemma2 { window: 4096 },
        size: [46, 4608, 36_864],
        heads: [32, 16, 128],
        n_vocab: 256_000,
        n_ctx: 8192,
        rope_base: 10_000.0,
        norm_eps: 1e-6,
        ..LLAMA_3
    },
    Preset {
        name: "gemma-3n-e2b",
        about: "google/gemma-3n-E2B-it",
        family: Family::Gemma3n { window: 512, shared: 10, layer_input: 256, rank: 64 },
        size: [30, 2048, 8192],
        ..GEMMA_3N
    },
    Preset {
        name: "gemma-3n-e4b",
        about: "google/gemma-3n-E4B-it",
        family: Family::Gemma3n { window: 512, shared: 15, layer_input: 256, rank: 64 },
        size: [35, 2048, 16_384],
        ..GEMMA_3N
    },
    Preset {
        name: "gemma-4-e2b",
        about: "google/gemma-4-E2B-it",
        family: Family::Gemma4 {
            window: 512,
            global: [512, 1],
            period: 5,
            shared: (20, true),
            layer_input: 256,
        },
        size: [35, 1536, 6144],
        heads: [8, 1, 256],
        ..GEMMA_4
    },
    Preset {
        name: "gemma-4-e4b",
        about: "google/gemma-4-E4B-it",
        family: Family::Gemma4 {
            window: 512,
            global: [512, 2],
            period: 6,
            shared: (18, false),
            layer_input: 256,
        },
        size: [42, 2560, 10_240],
        heads: [8, 2, 256],
        ..GEMMA_4
    },
    Preset {
        name: "gemma-4-31b",
        about: "google/gemma-4-31B-it",
        family: Family::Gemma4 {
            window: 1024,
            global: [512, 4],
            period: 6,
            shared: (0, false),
            layer_input: 0,
        },
        size: [60, 5376, 21_504],
        heads: [32, 16, 256],
        n_ctx: 262_144,
        ..GEMMA_4
    },
    Preset {
        name: "olmo-2-1b",
        about: "allenai/OLMo-2-0425-1B-Instruct",
        size: [16, 2048, 8192],
        heads: [16, 16, 128],
        n_ctx: 4096,
        ..OLMO_2
    },
    Preset { name: "olmo-2-7b", about: "allenai/OLMo-2-1124-7B-Instruct", n_ctx: 4096, ..OLMO_2 },
    Preset {
        name: "olmo-2-13b",
        about: "allenai/OLMo-2-1124-13B-Instruct",
        size: [40, 5120, 13_824],
        heads: [40, 40, 128],
        n_ctx: 4096,
        ..OLMO_2
    },
    Preset {
        name: "olmo-2-32b",
        about: "allenai/OLMo-2-0325-32B-Instruct",
        size: [64, 5120, 27_648],
        heads: [40, 8, 128],
        n_ctx: 4096,
        ..OLMO_2
    },
    Preset {
        name: "olmo-3-7b",
        about: "allenai/Olmo-3-7B-Instruct",
        family: Family::Olmo2 { long: Some((4096, 8192)) },
        ..OLMO_2
    },
    Preset {
        name: "olmo-3-32b",
        about: "allenai/Olmo-3-32B-Think",
        family: Family::Olmo2 { long: Some((4096, 8192)) },
        size: [64, 5120, 27_648],
        heads: [40, 8, 128],
        ..OLMO_2
    },
    Preset {
        name: "ministral-3-3b",
        about: "mistralai/Ministral-3-3B-Instruct-2512",
        size: [26, 3072, 9216],
        tied: true,
        ..MINISTRAL_3
    },
    Preset {
        name: "ministral-3-8b",
        about: "mistralai/Ministral-3-8B-Instruct-2512",
        size: [34, 4096, 14_336],
        ..MINISTRAL_3
    },
    Preset {
        name: "ministral-3-14b",
        about: "mistralai/Ministral-3-14B-Instruct-2512",
        size: [40, 5120, 16_384],
        ..MINISTRAL_3
    },
    Preset {
        name: "qwen3-30b-a3b",
        about: "Qwen/Qwen3-30B-A3B",
        family: Family::Qwen3Moe { n_experts: 128, n_used: 8 },
        size: [48, 2048, 768],
        heads: [32, 4, 128],
        tied: false,
        ..QWEN_3
    },
    Preset {
        name: "mixtral-8x7b",
        about: "mistralai/Mixtral-8x7B-Instruct-v0.1",
        family: Family::Mixtral { n_experts: 8, n_used: 2 },
        size: [32, 4096, 14_336],
        heads: [32, 8, 128],
        n_vocab: 32_000,
        n_ctx: 32_768,
        rope_base: 1_000_000.0,
        tied: false,
        ..LLAMA_3
    },
    Preset {
        name: "minicpm-2b",
        about: "openbmb/MiniCPM-2B-sft-bf16",
        family: Family::MiniCpm,
        size: [40, 2304, 5760],
        heads: [36, 36, 64],
        n_vocab: 122_753,
        n_ctx: 4096,
        rope_base: 10_000.0,
        ..LLAMA_3
    },
    Preset {
        name: "granite-4.0-micro",
        about: "ibm-granite/granite-4.0-micro",
        family: Family::Granite { scores: 64, logits: 10 },
        size: [40, 2560, 8192],
        heads: [40, 8, 64],
        n_vocab: 100_352,
        rope_base: 10_000_000.0,
        pre: Some("dbrx"),
        ..LLAMA_3
    },
    Preset {
        name: "glm-4-9b",
        about: "THUDM/GLM-4-9B-0414",
        family: Family::Glm4,
        size: [40, 4096, 13_696],
        heads: [32, 2, 128],
        n_vocab: 151_552,
        n_ctx: 32_768,
        rope_base: 10_000.0,
        norm_eps: 1.562_5e-7,
        tied: false,
        pre: Some("glm4"),
        ..LLAMA_3
    },
    Preset {
        name: "glm-4-32b",
        about: "THUDM/GLM-4-32B-0414",
        family: Family::Glm4,
        size: [61, 6144, 23_040],
        heads: [48, 2, 128],
        n_vocab: 151_552,
        n_ctx: 32_768,
        rope_base: 10_000.0,
        norm_eps: 1e-5,
        tied: false,
        pre: Some("glm4"),
        ..LLAMA_3
    },
    Preset {
        name: "glm-4.5-air",
        about: "zai-org/GLM-4.5-Air",
        family: Family::Glm4Moe { n_experts: 128, n_used: 8, n_dense: 1, dense_dim: 10_944 },
        size: [46, 4096, 1408],
        heads: [96, 8, 128],
        n_vocab: 151_552,
        rope_base: 1_000_000.0,
        tied: false,
        pre: Some("glm4"),
        ..LLAMA_3
    },
    Preset {
        name: "glm-4.7-flash",
        about: "zai-org/GLM-4.7-Flash",
        family: Family::DeepSeek2 {
            n_experts: 64,
            n_used: 4,
            n_dense: 1,
            dense_dim: 10_240,
            q_rank: 768,
            rank: 512,
            rope_dims: 64,
            value_dim: 256,
        },
        size: [47, 2048, 1536],
        heads: [20, 1, 256],
        n_vocab: 154_880,
        n_ctx: 202_752,
        rope_base: 1_000_000.0,
        tied: false,
        pre: Some("glm4"),
        ..LLAMA_3
    },
    Preset {
        name: "phi-4",
        about: "microsoft/phi-4",
        family: Family::Phi3 { rope_dims: 128, original_ctx: None },
        size: [40, 5120, 17_920],
        heads: [40, 10, 128],
        n_vocab: 100_352,
        n_ctx: 16_384,
        rope_base: 250_000.0,
        tied: false,
        pre: Some("dbrx"),
        ..LLAMA_3
    },
    Preset {
        name: "phi-4-mini",
        about: "microsoft/Phi-4-mini-instruct",
        family: Family::Phi3 { rope_dims: 96, original_ctx: Some(4096) },
        size: [32, 3072, 8192],
        heads: [24, 8, 128],
        n_vocab: 200_064,
        rope_base: 10_000.0,
        pre: Some("gpt-4o"),
        ..LLAMA_3
    },
    Preset {
        name: "lfm2-1.2b",
        about: "LiquidAI/LFM2-1.2B",
        family: Family::Lfm2,
        size: [16, 2048, 8192],
        heads: [32, 8, 64],
        n_vocab: 65_536,
        n_ctx: 128_000,
        rope_base: 1_000_000.0,
        pre: Some("lfm2"),
        ..LLAMA_3
    },
    Preset {
        name: "lfm2-8b-a1b",
        about: "LiquidAI/LFM2-8B-A1B, with attention in other layers",
        family: Family::Lfm2Moe { n_experts: 32, n_used: 4, n_dense: 2, dense_dim: 7168 },
        size: [24, 2048, 1792],
        heads: [32, 8, 64],
        n_vocab: 65_536,
        n_ctx: 128_000,
        rope_base: 1_000_000.0,
        pre: Some("lfm2"),
        ..LLAMA_3
    },
    Preset {
        name: "granite-4.0-h-micro",
        about: "ibm-granite/granite-4.0-h-micro",
        family: Family::Mamba {
            form: MambaForm::Granite,
            n_heads: 64,
            n_groups: 1,
            head_dim: 64,
            state_dim: 128,
        },
        size: [40, 2048, 8192],
        heads: [32, 8, 64],
        n_vocab: 100_352,
        rope_base: 10_000.0,
        pre: Some("dbrx"),
        ..LLAMA_3
    },
    Preset {
        name: "falcon-h1-0.5b",
        about: "tiiuae/Falcon-H1-0.5B-Base",
        family: Family::Mamba {
            form: MambaForm::Falcon,
            n_heads: 24,
            n_groups: 1,
            head_dim: 64,
            state_dim: 128,
        },
        size: [36, 1024, 2048],
        heads: [8, 2, 64],
        n_vocab: 32_784,
        n_ctx: 16_384,
        rope_base: 100_000_000_000.0,
        tied: false,
        pre: Some("falcon-h1"),
        ..LLAMA_3
    },
    Preset {
        name: "nemotron-nano-9b-v2",
        about: "nvidia/NVIDIA-Nemotron-Nano-9B-v2, with its layers in another order",
        family: Family::Mamba {
            form: MambaForm::Nemotron,
            n_heads: 128,
            n_groups: 8,
            head_dim: 80,
            state_dim: 128,
        },
        size: [56, 4480, 15_680],
        heads: [40, 8, 128],
        n_vocab: 131_072,
        rope_base: 10_000.0,
        tied: false,
        pre: Some("pixtral"),
        ..LLAMA_3
    },
    Preset {
        name: "nemotron-3-nano-30b-a3b",
        about: "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B, with its layers in another order",
        family: Family::Mamba {
            form: MambaForm::NemotronMoe { n_experts: 128, n_used: 6, shared_dim: 3712 },
            n_heads: 64,
            n_groups: 8,
            head_dim: 64,
            state_dim: 128,
        },
        size: [52, 2688, 1856],
        heads: [32, 2, 128],
        n_vocab: 131_072,
        rope_base: 10_000.0,
        tied: false,
        pre: Some("pixtral"),
        ..LLAMA_3
    },
    relatives::MAMBA_CODESTRAL,
    relatives::GEMMA_2B,
    relatives::GEMMA_7B,
    relatives::OLMO,
    relatives::OLMOE,
    relatives::EXAONE_2B,
    relatives::EXAONE_8B,
    relatives::PHI_2,
    relatives::NEMOTRON,
    relatives::PYTHIA_1B,
    relatives::PYTHIA_7B,
    relatives::FALCON_7B,
    relatives::FALCON_40B,
    relatives::GLM_4,
    Preset {
        name: "gpt-oss-20b",
        about: "openai/gpt-oss-20b, in the types of its published GGUF file",
        family: Family::GptOss { n_experts: 32, n_used: 4, window: 128 },
        size: [24, 2880, 2880],
        heads: [64, 8, 64],
        ..GPT_OSS
    },
    Preset {
        name: "gpt-oss-120b",
        about: "openai/gpt-oss-120b, in the types of its published GGUF file",
        family: Family::GptOss { n_experts: 128, n_used: 4, window: 128 },
        size: [36, 2880, 2880],
        heads: [64, 8, 64],
        ..GPT_OSS
    },
];

impl Preset {
    /// The preset called `name`.
    ///
    /// # Errors
    /// [`SynthError::Spec`] with all known names.
    pub fn by_name(name: &str) -> Result<&'static Self, SynthError> {
        PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| {
            let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
            SynthError::Spec {
                what: "Preset::name",
                detail: format!("want one of {}, found {name}", names.join(", ")),
            }
        })
    }
}
