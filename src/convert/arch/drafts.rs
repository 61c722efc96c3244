//! Files that draft for another model: EAGLE-3 heads, in the formats of SpecForge, vLLM and speculators, and
//! Gemma 4's assistant.

use super::Dim::{
    DraftVocab, EmbeddingAndHidden, Hidden, Kv, ModelHidden, Q, ThreeModelHidden, TwoModelHidden, Vocab,
};
use super::gemma::{GEMMA3, GEMMA4_DEFAULTS, GEMMA4_LAYER, gemma4};
use super::{Architecture, Change, LLAMA, MLP, Rule, gated, matrix, maybe, plain};
use crate::drafts::DraftKind;

/// Every architecture of such files.
pub static ARCHITECTURES: &[Architecture] = &[
    Architecture {
        classes: &[
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3Speculator",
            "Eagle3DraftModel",
        ],
        name: |config| gated(config, &["silu"], "eagle3"),
        globals: EAGLE3_GLOBALS,
        layer: &[EAGLE3_LAYER, MLP],
        // The model's token of each row of the head, and the reverse, which follows from the first.
        unused: &["t2d", "verifier_"],
        head: "",
        drafts: Some(DraftKind::Eagle3),
        ..LLAMA
    },
    Architecture {
        classes: &["Gemma4AssistantForCausalLM"],
        name: |config| gemma4(config).map(|_| "gemma4-assistant"),
        globals: ASSISTANT_GLOBALS,
        layer: &[GEMMA4_LAYER, MLP],
        // A choice of tokens before the head, which readers of GGUF do without.
        unused: &["masked_embedding."],
        defaults: GEMMA4_DEFAULTS,
        drafts: Some(DraftKind::Assistant),
        ..GEMMA3
    },
];

const EAGLE3_GLOBALS: &[Rule] = &[
    maybe(&["model.embed_tokens.weight"], "token_embd.weight", &[Vocab, Hidden], Change::None),
    plain(&["model.norm.weight"], "output_norm.weight", &[Hidden]),
    matrix(&["fc.weight"], "fc.weight", &[Hidden, ThreeModelHidden], Change::None),
    maybe(&["input_norm.weight"], "enc.output_norm.weight", &[ThreeModelHidden], Change::None),
    maybe(&["lm_head.weight"], "output.weight", &[DraftVocab, Hidden], Change::None),
];

/// Queries, keys and values are of an embedding and a hidden row. Rows are permuted as in Llama's files.
const EAGLE3_LAYER: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["hidden_norm.weight"], "attn_norm_2.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    matrix(&["self_attn.q_proj.weight"], "attn_q.weight", &[Q, EmbeddingAndHidden], Change::PermuteQ),
    matrix(&["self_attn.k_proj.weight"], "attn_k.weight", &[Kv, EmbeddingAndHidden], Change::PermuteK),
    matrix(&["self_attn.v_proj.weight"], "attn_v.weight", &[Kv, EmbeddingAndHidden], Change::None),
    matrix(&["self_attn.o_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    maybe(&["self_attn.q_proj.bias"], "attn_q.bias", &[Q], Change::PermuteQ),
    maybe(&["self_attn.k_proj.bias"], "attn_k.bias", &[Kv], Change::PermuteK),
    maybe(&["self_attn.v_proj.bias"], "attn_v.bias", &[Kv], Change::None),
];

const ASSISTANT_GLOBALS: &[Rule] = &[
    plain(&["model.embed_tokens.weight"], "token_embd.weight", &[Vocab, Hidden]),
    plain(&["model.norm.weight"], "output_norm.weight", &[Hidden]),
    matrix(
        &["pre_projection.weight"],
        "nextn.pre_projection.weight",
        &[Hidden, TwoModelHidden],
        Change::None,
    ),
    matrix(&["post_projection.weight"], "nextn.post_projection.weight", &[ModelHidden, Hidden], Change::None),
];
