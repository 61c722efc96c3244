//! Encoders: BERT, its classifiers, and NomicBert.

use super::Dim::{Ffn, Hidden, Labels, Positions, Qkv, TokenTypes, Vocab};
use super::{Architecture, Change, ConvertError, LLAMA, Rope, Rule, gated, matrix, plain};
use crate::config::Config;

/// Every encoder of these forms.
pub static ARCHITECTURES: &[Architecture] = &[
    BERT,
    Architecture {
        classes: &["BertForSequenceClassification"],
        globals: BERT_RANKING,
        unused: &["embeddings.position_ids"],
        ..BERT
    },
    Architecture {
        classes: &["NomicBertModel"],
        name: nomic_bert,
        layers: "encoder.layers.",
        globals: NOMIC_EMBEDDING,
        layer: &[NOMIC_LAYER],
        rope: Rope::Base,
        ..BERT
    },
];

const BERT: Architecture = Architecture {
    classes: &["BertModel", "BertForMaskedLM"],
    name: bert,
    layers: "encoder.layer.",
    globals: BERT_EMBEDDING,
    layer: &[BERT_LAYER],
    // The heads for masked tokens and next sentences, and the pooler, which embeddings do not use.
    unused: &["embeddings.position_ids", "pooler.", "cls."],
    head: "",
    // Defaults of BertConfig.
    defaults: &[("layer_norm_eps", 1e-12), ("type_vocab_size", 2.0)],
    rope: Rope::None,
    layer_norm: true,
    encoder: true,
    ..LLAMA
};

/// Older checkpoints call a LayerNorm's weight and bias gamma and beta.
const BERT_EMBEDDING: &[Rule] = &[
    plain(&["embeddings.word_embeddings.weight"], "token_embd.weight", &[Vocab, Hidden]),
    plain(&["embeddings.token_type_embeddings.weight"], "token_types.weight", &[TokenTypes, Hidden]),
    plain(&["embeddings.position_embeddings.weight"], "position_embd.weight", &[Positions, Hidden]),
    plain(
        &["embeddings.LayerNorm.weight", "embeddings.LayerNorm.gamma"],
        "token_embd_norm.weight",
        &[Hidden],
    ),
    plain(&["embeddings.LayerNorm.bias", "embeddings.LayerNorm.beta"], "token_embd_norm.bias", &[Hidden]),
];
const BERT_RANKING: &[Rule] = &[
    BERT_EMBEDDING[0],
    BERT_EMBEDDING[1],
    BERT_EMBEDDING[2],
    BERT_EMBEDDING[3],
    BERT_EMBEDDING[4],
    matrix(&["pooler.dense.weight"], "cls.weight", &[Hidden, Hidden], Change::None),
    plain(&["pooler.dense.bias"], "cls.bias", &[Hidden]),
    matrix(&["classifier.weight"], "cls.output.weight", &[Labels, Hidden], Change::None),
    plain(&["classifier.bias"], "cls.output.bias", &[Labels]),
];
const BERT_LAYER: &[Rule] = &[
    matrix(&["attention.self.query.weight"], "attn_q.weight", &[Hidden, Hidden], Change::None),
    plain(&["attention.self.query.bias"], "attn_q.bias", &[Hidden]),
    matrix(&["attention.self.key.weight"], "attn_k.weight", &[Hidden, Hidden], Change::None),
    plain(&["attention.self.key.bias"], "attn_k.bias", &[Hidden]),
    matrix(&["attention.self.value.weight"], "attn_v.weight", &[Hidden, Hidden], Change::None),
    plain(&["attention.self.value.bias"], "attn_v.bias", &[Hidden]),
    matrix(&["attention.output.dense.weight"], "attn_output.weight", &[Hidden, Hidden], Change::None),
    plain(&["attention.output.dense.bias"], "attn_output.bias", &[Hidden]),
    plain(
        &["attention.output.LayerNorm.weight", "attention.output.LayerNorm.gamma"],
        "attn_output_norm.weight",
        &[Hidden],
    ),
    plain(
        &["attention.output.LayerNorm.bias", "attention.output.LayerNorm.beta"],
        "attn_output_norm.bias",
        &[Hidden],
    ),
    matrix(&["intermediate.dense.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    plain(&["intermediate.dense.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["output.dense.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["output.dense.bias"], "ffn_down.bias", &[Hidden]),
    plain(&["output.LayerNorm.weight", "output.LayerNorm.gamma"], "layer_output_norm.weight", &[Hidden]),
    plain(&["output.LayerNorm.bias", "output.LayerNorm.beta"], "layer_output_norm.bias", &[Hidden]),
];
const NOMIC_EMBEDDING: &[Rule] = &[
    BERT_EMBEDDING[0],
    BERT_EMBEDDING[1],
    plain(&["emb_ln.weight"], "token_embd_norm.weight", &[Hidden]),
    plain(&["emb_ln.bias"], "token_embd_norm.bias", &[Hidden]),
];
/// The activation function is applied to `fc12`, the second half of the input projections.
const NOMIC_LAYER: &[Rule] = &[
    matrix(&["attn.Wqkv.weight"], "attn_qkv.weight", &[Qkv, Hidden], Change::None),
    matrix(&["attn.out_proj.weight"], "attn_output.weight", &[Hidden, Hidden], Change::None),
    plain(&["norm1.weight"], "attn_output_norm.weight", &[Hidden]),
    plain(&["norm1.bias"], "attn_output_norm.bias", &[Hidden]),
    matrix(&["mlp.fc11.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.fc12.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.fc2.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["norm2.weight"], "layer_output_norm.weight", &[Hidden]),
    plain(&["norm2.bias"], "layer_output_norm.bias", &[Hidden]),
];

fn bert(config: &Config) -> Result<&'static str, ConvertError> {
    const POSITIONS: &str = "position_embedding_type";
    if config.str(&[POSITIONS]).is_some_and(|kind| kind != "absolute") {
        return Err(config.wrong(POSITIONS, "absolute", config.get(&[POSITIONS])));
    }
    for key in ["is_decoder", "add_cross_attention"] {
        if config.bool(&[key]) == Some(true) {
            return Err(config.wrong(key, "false", config.get(&[key])));
        }
    }
    gated(config, &["gelu"], "bert")
}

fn nomic_bert(config: &Config) -> Result<&'static str, ConvertError> {
    for key in
        ["causal", "prenorm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved"]
    {
        if config.bool(&[key]) == Some(true) {
            return Err(config.wrong(key, "false", config.get(&[key])));
        }
    }
    for (key, want) in [("rotary_emb_fraction", 1.0), ("moe_every_n_layers", 0.0)] {
        let found = config.get(&[key]);
        if found.is_some_and(|found| found.as_f64() != Some(want)) {
            return Err(config.wrong(key, &want.to_string(), found));
        }
    }
    for key in ["rotary_emb_scale_base", "rotary_scaling_factor"] {
        if let Some(found) = config.get(&[key]) {
            return Err(config.wrong(key, "none", Some(found)));
        }
    }
    config.require(&["n_inner", "intermediate_size"])?;
    // The second is transformers' own name for it; only this class has this activation function gated.
    gated(config, &["swiglu", "silu"], "nomic-bert")
}
