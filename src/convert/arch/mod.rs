//! Tables of the supported architectures: tensors with their names, shapes and conversions, in Hugging Face's
//! order. The forms of Llama and its relatives are here, others in files of their own.

mod drafts;
mod encoders;
mod latent;
mod mamba;

use serde_json::Value as Json;

use super::ConvertError;
use super::config::Config;
use super::drafts::DraftKind;
use super::recurrent::Recurrent;

/// Change to a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Reorders the rows of each query head, from RoPE's halves to adjacent pairs: new row `2i + j` is row
    /// `j d / 2 + i`.
    PermuteQ,
    /// The same for each key head.
    PermuteK,
    /// `[in, out]` becomes `[out, in]`.
    Transpose,
    /// Adds 1: Gemma's norms multiply by 1 + w, and GGUF stores that sum.
    AddOne,
    /// Joins one matrix per expert into one tensor.
    Stack,
    /// Drops the rows beyond the vocabulary.
    CutVocab,
    /// The first half of each expert's rows, which are the gate's; the other rows become another tensor.
    FirstHalf,
    /// The second half of each expert's rows.
    SecondHalf,
    /// Reorders the rows of a delta net's value heads: from grouped by key head, as in Hugging Face's files,
    /// to alternating between key heads.
    TileRows,
    /// The same for columns.
    TileCols,
    /// The same for rows `a`, which become `-exp(a)`.
    TileDecay,
    /// `a` becomes `-exp(a)`.
    Decay,
    /// The rows of each head's keys, transposed: a matrix per head, for queries. The other rows become
    /// another tensor.
    KeysOfHeads,
    /// The rows of each head's values.
    ValuesOfHeads,
    /// The rows of each key head's queries, reordered as by [`PermuteQ`](Self::PermuteQ). The other rows
    /// become other tensors.
    QueriesOfGroups,
    /// The rows of each key head, reordered likewise.
    KeysOfGroups,
    /// The rows of each value head.
    ValuesOfGroups,
}

/// A dimension by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Rows of the embedding.
    Vocab,
    /// Width of the residual stream.
    Hidden,
    /// An embedding and a row of the residual stream, one after the other.
    EmbeddingAndHidden,
    /// Width of the residual stream of the model that a checkpoint drafts for.
    ModelHidden,
    /// An embedding and a row of that model.
    TwoModelHidden,
    /// Rows of three layers of that model.
    ThreeModelHidden,
    /// Rows of the head of a checkpoint that drafts.
    DraftVocab,
    /// Query heads x head length.
    Q,
    /// KV heads x head length.
    Kv,
    /// Q, K and V together.
    Qkv,
    /// Head length.
    Head,
    /// Width of the feed-forward network.
    Ffn,
    /// Gate and up of the feed-forward network together.
    GateUp,
    /// Experts.
    Experts,
    /// Width of an expert.
    ExpertFfn,
    /// Gate and up of an expert together.
    ExpertGateUp,
    /// Width of the shared expert.
    SharedFfn,
    /// Gate and up of the shared expert, or of the network that every row uses, together.
    SharedGateUp,
    /// Queries and their gates together.
    QGate,
    /// Value heads of a delta net.
    DeltaHeads,
    /// Length of a value head.
    DeltaHead,
    /// Value heads x their length.
    DeltaValues,
    /// Queries, keys and values of a delta net together, the channels of its convolution.
    DeltaChannels,
    /// Queries, keys, values and gates of a delta net together.
    DeltaInputs,
    /// Beta and alpha of a delta net's value heads together.
    DeltaRates,
    /// Inputs of a short convolution and its gates together.
    ConvInputs,
    /// Heads of a Mamba-2 layer.
    MambaHeads,
    /// Heads of a Mamba-2 layer x their length.
    MambaValues,
    /// Channels of its convolution: values, B and C.
    MambaChannels,
    /// B, or C.
    MambaState,
    /// Gates, channels and time steps together.
    MambaInputs,
    /// Groups of its norm, and the values of each.
    MambaGroups,
    MambaGroup,
    /// Latent vector of queries.
    QueryRank,
    /// Latent vector of keys and values.
    Rank,
    /// The same with the rotated elements, which all heads share.
    RankAndRotated,
    /// Query heads x the length of a query, with multi-head latent attention.
    LatentQ,
    /// Query heads x the unrotated elements of a key and a value.
    LatentKv,
    /// Query heads x the length of a value.
    LatentValues,
    /// Query heads.
    Heads,
    /// Unrotated elements of a key.
    LatentKey,
    /// Length of a head's value.
    LatentValue,
    /// Kernel size of the convolution.
    Taps,
    /// 1.
    One,
    /// Learned positions.
    Positions,
    /// Token types of one input.
    TokenTypes,
    /// Classes of a classifier.
    Labels,
    /// Width of an embedding per layer.
    LayerInput,
    /// Such embeddings of all layers together.
    LayerInputs,
}

/// Presence of a tensor in checkpoints.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// Every checkpoint has it.
    Always,
    /// Some checkpoints lack it.
    Maybe,
    /// Checkpoints with such a configuration have it.
    If(fn(&Config) -> bool),
}

/// Reads factors of the configuration that are folded into a tensor.
pub type ReadFactors = fn(&Config) -> Result<Vec<f64>, ConvertError>;

/// One tensor of a checkpoint and of the file.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Name after the layer's prefix, with alternatives.
    pub from: &'static [&'static str],
    /// GGUF name after `blk.N.`.
    pub to: &'static str,
    /// Shape in the checkpoint.
    pub shape: &'static [Dim],
    /// Shape in the file, if it has other dimensions for another reason than its conversion; empty otherwise.
    pub reshaped: &'static [Dim],
    /// Factors folded into it.
    pub factors: Option<ReadFactors>,
    /// Rows of each factor; empty if one is for all rows.
    pub runs: &'static [Dim],
    /// Conversion.
    pub change: Change,
    /// Presence in checkpoints.
    pub need: Need,
    /// True for a linear layer's weight, which ternary models round.
    pub linear: bool,
}

/// Reads which layers of a checkpoint are recurrent.
pub type ReadRecurrent = fn(&Config) -> Result<Recurrent, ConvertError>;

/// A transformers architecture that can be converted.
#[derive(Debug)]
pub struct Architecture {
    /// Class names in `config.json`.
    pub classes: &'static [&'static str],
    /// Name in GGUF.
    pub name: fn(&Config) -> Result<&'static str, ConvertError>,
    /// Prefix of layers, followed by the number and a dot.
    pub layers: &'static str,
    /// Tensors outside of layers.
    pub globals: &'static [Rule],
    /// Tensors of each layer.
    pub layer: &'static [&'static [Rule]],
    /// Tensors of a layer with a delta net, or of a [`recurrent`](Self::recurrent) one; empty if the
    /// architecture has no such layers.
    pub delta: &'static [&'static [Rule]],
    /// Reads which layers have a short convolution or Mamba-2, if the architecture has such layers.
    pub recurrent: Option<ReadRecurrent>,
    /// Tensors of the first layers if these have no experts, or of layers that are only a feed-forward
    /// network; empty if there are none.
    pub dense_first: &'static [&'static [Rule]],
    /// True if attention has latent vectors of queries, and of keys and values (MLA).
    pub latent: bool,
    /// True if the activation function of each layer has numbers of its own (xIELU).
    pub xielu: bool,
    /// True if the router of experts is a softmax unless the configuration says otherwise.
    pub softmax: bool,
    /// Key of the width of an expert.
    pub expert_width: &'static str,
    /// Rules that replace those with [`Change::Stack`] if all experts of a layer are already one tensor.
    pub fused: &'static [Rule],
    /// Prefixes of multi-token prediction (MTP) tensors.
    pub mtp: &'static [&'static str],
    /// Tensors of the MTP block outside of its layer, which is `mtp.layers.0.` and one of
    /// [`layer`](Self::layer); empty if MTP tensors are left out.
    pub mtp_block: &'static [Rule],
    /// Prefixes of tensors that are not converted.
    pub unused: &'static [&'static str],
    /// Name of the output head, which a tied model lacks; empty for an encoder.
    pub head: &'static str,
    /// Factors folded into the head.
    pub head_factors: Option<ReadFactors>,
    /// True if the head is the embedding unless the configuration says otherwise.
    pub tied: bool,
    /// Values that a configuration may omit, from transformers' classes.
    pub defaults: &'static [(&'static str, f64)],
    /// Factors of the configuration, 1 unless given, and their keys in GGUF.
    pub factors: &'static [(&'static str, &'static str)],
    /// True if GGUF has tables of RoPE factors for it.
    pub long_rope: bool,
    /// True if RoPE has sections for images.
    pub sections: bool,
    /// RoPE keys, and keys for head length and vocabulary.
    pub rope: Rope,
    /// True if the norms are LayerNorms, which have a bias.
    pub layer_norm: bool,
    /// Distance between layers without a sliding window, if a file does not specify it; `None` if GGUF has no
    /// keys for windows with this architecture.
    pub windows: Option<usize>,
    /// True if attention is bidirectional.
    pub encoder: bool,
    /// True if files contain the dense layers after the pooling.
    pub dense: bool,
    /// True if the linear weights are always master weights, although the configuration does not say so.
    pub masters: bool,
    /// Set if a checkpoint drafts for another model.
    pub drafts: Option<DraftKind>,
}

/// RoPE keys that are written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rope {
    /// None: the model has no RoPE.
    None,
    /// Only the base.
    Base,
    /// Base, rotated elements, head lengths and vocabulary size.
    Whole,
}

use Dim::{
    ConvInputs, DeltaChannels, DeltaHead, DeltaHeads, DeltaInputs, DeltaRates, DeltaValues,
    EmbeddingAndHidden, ExpertFfn, ExpertGateUp, Experts, Ffn, GateUp, Head, Hidden, Kv, LayerInput,
    LayerInputs, One, Positions, Q, QGate, Qkv, SharedFfn, Taps, Vocab,
};

const fn matrix(
    from: &'static [&'static str],
    to: &'static str,
    shape: &'static [Dim],
    change: Change,
) -> Rule {
    Rule { change, linear: true, ..plain(from, to, shape) }
}

const fn plain(from: &'static [&'static str], to: &'static str, shape: &'static [Dim]) -> Rule {
    let (change, need) = (Change::None, Need::Always);
    Rule { from, to, shape, reshaped: &[], factors: None, runs: &[], change, need, linear: false }
}

const fn delta(from: &'static [&'static str], to: &'static str, shape: &'static [Dim]) -> Rule {
    matrix(from, to, shape, Change::TileRows)
}

const fn maybe(
    from: &'static [&'static str],
    to: &'static str,
    shape: &'static [Dim],
    change: Change,
) -> Rule {
    Rule { need: Need::Maybe, change, ..plain(from, to, shape) }
}

const fn maybe_matrix(from: &'static [&'static str], to: &'static str, shape: &'static [Dim]) -> Rule {
    Rule { need: Need::Maybe, ..matrix(from, to, shape, Change::None) }
}

const fn plus_one(from: &'static [&'static str], to: &'static str, shape: &'static [Dim]) -> Rule {
    Rule { change: Change::AddOne, ..plain(from, to, shape) }
}

/// The output head.
pub const fn head(change: Change) -> Rule {
    Rule { need: Need::Maybe, change, ..plain(&[], "output.weight", &[Vocab, Hidden]) }
}

const fn needed_if(condition: fn(&Config) -> bool, rule: Rule) -> Rule {
    Rule { need: Need::If(condition), ..rule }
}

const GLOBALS: &[Rule] = &[
    plain(&["model.embed_tokens.weight"], "token_embd.weight", &[Vocab, Hidden]),
    plain(&["model.norm.weight"], "output_norm.weight", &[Hidden]),
];
const NORMS: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
];
/// Query and key weights with permuted rows, as in files of architecture `llama`.
const ATTN_PERMUTED: &[Rule] = &[
    matrix(&["self_attn.q_proj.weight"], "attn_q.weight", &[Q, Hidden], Change::PermuteQ),
    matrix(&["self_attn.k_proj.weight"], "attn_k.weight", &[Kv, Hidden], Change::PermuteK),
    maybe(&["self_attn.q_proj.bias"], "attn_q.bias", &[Q], Change::PermuteQ),
    maybe(&["self_attn.k_proj.bias"], "attn_k.bias", &[Kv], Change::PermuteK),
];
const ATTN_HALVES: &[Rule] = &[
    matrix(&["self_attn.q_proj.weight"], "attn_q.weight", &[Q, Hidden], Change::None),
    matrix(&["self_attn.k_proj.weight"], "attn_k.weight", &[Kv, Hidden], Change::None),
];
const ATTN_OTHERS: &[Rule] = &[
    matrix(&["self_attn.v_proj.weight"], "attn_v.weight", &[Kv, Hidden], Change::None),
    matrix(&["self_attn.o_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
];
const ATTN_OTHER_BIASES: &[Rule] = &[
    maybe(&["self_attn.v_proj.bias"], "attn_v.bias", &[Kv], Change::None),
    maybe(&["self_attn.o_proj.bias"], "attn_output.bias", &[Hidden], Change::None),
];
const QKV_BIASES: &[Rule] = &[
    plain(&["self_attn.q_proj.bias"], "attn_q.bias", &[Q]),
    plain(&["self_attn.k_proj.bias"], "attn_k.bias", &[Kv]),
    plain(&["self_attn.v_proj.bias"], "attn_v.bias", &[Kv]),
];
const HEAD_NORMS: &[Rule] = &[
    plain(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head]),
    plain(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head]),
];
const MLP: &[Rule] = &[
    matrix(&["mlp.gate_proj.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.up_proj.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.down_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
];
const MLP_BIASES: &[Rule] = &[
    maybe(&["mlp.gate_proj.bias"], "ffn_gate.bias", &[Ffn], Change::None),
    maybe(&["mlp.up_proj.bias"], "ffn_up.bias", &[Ffn], Change::None),
    maybe(&["mlp.down_proj.bias"], "ffn_down.bias", &[Hidden], Change::None),
];
/// Gate rows, then up rows.
const FUSED_MLP: &[Rule] = &[
    matrix(&["mlp.gate_up_proj.weight"], "ffn_up.weight", &[GateUp, Hidden], Change::None),
    matrix(&["mlp.down_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
];
const FUSED_ATTENTION: &[Rule] = &[
    matrix(&["self_attn.qkv_proj.weight"], "attn_qkv.weight", &[Qkv, Hidden], Change::None),
    matrix(&["self_attn.o_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
];
/// Gate rows of each expert, then its up rows.
const GRANITE_EXPERTS: &[Rule] = &[
    plain(&["block_sparse_moe.router.layer.weight"], "ffn_gate_inp.weight", &[Experts, Hidden]),
    matrix(
        &["block_sparse_moe.input_linear.weight"],
        "ffn_gate_exps.weight",
        &[Experts, ExpertGateUp, Hidden],
        Change::FirstHalf,
    ),
    matrix(
        &["block_sparse_moe.input_linear.weight"],
        "ffn_up_exps.weight",
        &[Experts, ExpertGateUp, Hidden],
        Change::SecondHalf,
    ),
    matrix(
        &["block_sparse_moe.output_linear.weight"],
        "ffn_down_exps.weight",
        &[Experts, Hidden, ExpertFfn],
        Change::None,
    ),
];
const GRANITE_FACTORS: &[(&str, &str)] = &[
    ("attention_multiplier", "attention.scale"),
    ("embedding_multiplier", "embedding_scale"),
    ("residual_multiplier", "residual_scale"),
    ("logits_scaling", "logit_scale"),
];
/// The norm before the experts is called after what precedes it, in both formats.
const GLM4_MOE_NORMS: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    maybe(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head], Change::None),
    maybe(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head], Change::None),
];
const SHARED_EXPERTS: &[Rule] = &[
    plain(&["mlp.gate.e_score_correction_bias"], "exp_probs_b.bias", &[Experts]),
    matrix(
        &["mlp.shared_experts.gate_proj.weight"],
        "ffn_gate_shexp.weight",
        &[SharedFfn, Hidden],
        Change::None,
    ),
    matrix(&["mlp.shared_experts.up_proj.weight"], "ffn_up_shexp.weight", &[SharedFfn, Hidden], Change::None),
    matrix(
        &["mlp.shared_experts.down_proj.weight"],
        "ffn_down_shexp.weight",
        &[Hidden, SharedFfn],
        Change::None,
    ),
];
const GLM4_NORMS: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["post_self_attn_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plain(&["post_mlp_layernorm.weight"], "post_ffw_norm.weight", &[Hidden]),
];
const MAYBE_QKV_BIASES: &[Rule] = &[
    maybe(&["self_attn.q_proj.bias"], "attn_q.bias", &[Q], Change::None),
    maybe(&["self_attn.k_proj.bias"], "attn_k.bias", &[Kv], Change::None),
    maybe(&["self_attn.v_proj.bias"], "attn_v.bias", &[Kv], Change::None),
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
/// Norms of the inputs of projections, one each, in BitNet-embedding.
const INPUT_NORMS: &[Rule] = &[
    maybe(&["self_attn.q_proj.norm.weight"], "attn_q_norm_in.weight", &[Hidden], Change::None),
    maybe(&["self_attn.k_proj.norm.weight"], "attn_k_norm_in.weight", &[Hidden], Change::None),
    maybe(&["self_attn.v_proj.norm.weight"], "attn_v_norm_in.weight", &[Hidden], Change::None),
    maybe(&["self_attn.o_proj.norm.weight"], "attn_output_norm_in.weight", &[Q], Change::None),
    maybe(&["mlp.gate_proj.norm.weight"], "ffn_gate_norm_in.weight", &[Hidden], Change::None),
    maybe(&["mlp.up_proj.norm.weight"], "ffn_up_norm_in.weight", &[Hidden], Change::None),
    maybe(&["mlp.down_proj.norm.weight"], "ffn_down_norm_in.weight", &[Ffn], Change::None),
];
/// `*` is the number of an expert.
const EXPERTS: &[Rule] = &[
    plain(&["mlp.gate.weight"], "ffn_gate_inp.weight", &[Experts, Hidden]),
    matrix(&["mlp.experts.*.gate_proj.weight"], "ffn_gate_exps.weight", &[ExpertFfn, Hidden], Change::Stack),
    matrix(&["mlp.experts.*.up_proj.weight"], "ffn_up_exps.weight", &[ExpertFfn, Hidden], Change::Stack),
    matrix(&["mlp.experts.*.down_proj.weight"], "ffn_down_exps.weight", &[Hidden, ExpertFfn], Change::Stack),
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
const GEMMA_GLOBALS: &[Rule] = &[
    Rule { change: Change::CutVocab, ..GLOBALS[0] },
    plus_one(&["model.norm.weight"], "output_norm.weight", &[Hidden]),
];
const GEMMA_NORMS: &[Rule] = &[
    plus_one(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plus_one(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    plus_one(&["pre_feedforward_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plus_one(&["post_feedforward_layernorm.weight"], "post_ffw_norm.weight", &[Hidden]),
    plus_one(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head]),
    plus_one(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head]),
];
/// Gemma 2's, which has no norms of queries and keys.
const GEMMA2_NORMS: &[Rule] = &[GEMMA_NORMS[0], GEMMA_NORMS[1], GEMMA_NORMS[2], GEMMA_NORMS[3]];
const GEMMA4_GLOBALS: &[Rule] = &[
    GLOBALS[0],
    GLOBALS[1],
    maybe(
        &["model.embed_tokens_per_layer.weight"],
        "per_layer_token_embd.weight",
        &[Vocab, LayerInputs],
        Change::None,
    ),
    maybe_matrix(
        &["model.per_layer_model_projection.weight"],
        "per_layer_model_proj.weight",
        &[LayerInputs, Hidden],
    ),
    maybe(
        &["model.per_layer_projection_norm.weight"],
        "per_layer_proj_norm.weight",
        &[LayerInput],
        Change::None,
    ),
];
/// Norms are stored as they are multiplied. Layers that read another layer's cache have no keys and values;
/// in some models the values of global layers are their keys.
const GEMMA4_LAYER: &[Rule] = &[
    plain(&["input_layernorm.weight"], "attn_norm.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "post_attention_norm.weight", &[Hidden]),
    plain(&["pre_feedforward_layernorm.weight"], "ffn_norm.weight", &[Hidden]),
    plain(&["post_feedforward_layernorm.weight"], "post_ffw_norm.weight", &[Hidden]),
    plain(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head]),
    maybe(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head], Change::None),
    matrix(&["self_attn.q_proj.weight"], "attn_q.weight", &[Q, Hidden], Change::None),
    maybe_matrix(&["self_attn.k_proj.weight"], "attn_k.weight", &[Kv, Hidden]),
    maybe_matrix(&["self_attn.v_proj.weight"], "attn_v.weight", &[Kv, Hidden]),
    matrix(&["self_attn.o_proj.weight"], "attn_output.weight", &[Hidden, Q], Change::None),
    maybe(&["layer_scalar"], "layer_output_scale.weight", &[One], Change::None),
    maybe(&["router.proj.weight"], "ffn_gate_inp.weight", &[Experts, Hidden], Change::None),
    maybe(&["router.scale"], "ffn_gate_inp.scale", &[Hidden], Change::None),
    maybe(&["router.per_expert_scale"], "ffn_down_exps.scale", &[Experts], Change::None),
    maybe_matrix(&["experts.gate_up_proj"], "ffn_gate_up_exps.weight", &[Experts, ExpertGateUp, Hidden]),
    maybe_matrix(&["experts.down_proj"], "ffn_down_exps.weight", &[Experts, Hidden, ExpertFfn]),
    maybe(&["pre_feedforward_layernorm_2.weight"], "pre_ffw_norm_2.weight", &[Hidden], Change::None),
    maybe(&["post_feedforward_layernorm_1.weight"], "post_ffw_norm_1.weight", &[Hidden], Change::None),
    maybe(&["post_feedforward_layernorm_2.weight"], "post_ffw_norm_2.weight", &[Hidden], Change::None),
    maybe_matrix(&["per_layer_input_gate.weight"], "inp_gate.weight", &[LayerInput, Hidden]),
    maybe_matrix(&["per_layer_projection.weight"], "proj.weight", &[Hidden, LayerInput]),
    maybe(&["post_per_layer_input_norm.weight"], "post_norm.weight", &[Hidden], Change::None),
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
const HUNYUAN_NORMS: &[Rule] = &[
    plain(&["self_attn.query_layernorm.weight"], "attn_q_norm.weight", &[Head]),
    plain(&["self_attn.key_layernorm.weight"], "attn_k_norm.weight", &[Head]),
];
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
const SHARED_EXPERT: &[Rule] = &[
    plain(&["mlp.shared_expert_gate.weight"], "ffn_gate_inp_shexp.weight", &[One, Hidden]),
    matrix(
        &["mlp.shared_expert.gate_proj.weight"],
        "ffn_gate_shexp.weight",
        &[SharedFfn, Hidden],
        Change::None,
    ),
    matrix(&["mlp.shared_expert.up_proj.weight"], "ffn_up_shexp.weight", &[SharedFfn, Hidden], Change::None),
    matrix(
        &["mlp.shared_expert.down_proj.weight"],
        "ffn_down_shexp.weight",
        &[Hidden, SharedFfn],
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

const LLAMA: Architecture = Architecture {
    classes: &["LlamaForCausalLM", "MistralForCausalLM"],
    name: |config| gated(config, &["silu"], "llama"),
    layers: "model.layers.",
    globals: GLOBALS,
    layer: &[NORMS, ATTN_PERMUTED, ATTN_OTHERS, ATTN_OTHER_BIASES, MLP, MLP_BIASES],
    delta: &[],
    recurrent: None,
    dense_first: &[],
    latent: false,
    xielu: false,
    softmax: false,
    expert_width: "moe_intermediate_size",
    fused: &[],
    mtp: &[],
    mtp_block: &[],
    unused: &[],
    head: "lm_head.weight",
    head_factors: None,
    tied: false,
    defaults: &[("rms_norm_eps", 1e-6)],
    factors: &[],
    long_rope: false,
    sections: false,
    rope: Rope::Whole,
    layer_norm: false,
    windows: None,
    encoder: false,
    dense: false,
    masters: false,
    drafts: None,
};

const BITNET: Architecture = Architecture {
    classes: &["BitNetForCausalLM"],
    name: |config| match config.str(&["hidden_act"]) {
        Some("silu") => Ok("bitnet"),
        _ => gated(config, &["relu2"], "bitnet-b1.58"),
    },
    layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, SUB_NORMS, MLP],
    ..LLAMA
};

const QWEN35: Architecture = Architecture {
    classes: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    name: |config| gated(config, &["silu"], "qwen35"),
    globals: QWEN35_GLOBALS,
    layer: &[QWEN35_NORMS, GATED_ATTENTION, ATTN_OTHERS, MLP],
    delta: &[QWEN35_NORMS, DELTA_NET, MLP],
    mtp: &["mtp.", "model.mtp."],
    mtp_block: QWEN35_MTP,
    sections: true,
    rope: Rope::Base,
    // Defaults of Qwen3_5TextConfig.
    defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 256.0)],
    ..LLAMA
};

const GEMMA3: Architecture = Architecture {
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    name: gemma3,
    globals: GEMMA_GLOBALS,
    layer: &[GEMMA_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP, INPUT_NORMS],
    tied: true,
    // Defaults of Gemma3TextConfig: the published configurations of 4B and up omit values equal to these.
    defaults: &[
        ("rms_norm_eps", 1e-6),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
        ("max_position_embeddings", 131072.0),
        ("rope_theta", 1e6),
        ("sliding_window", 4096.0),
        ("query_pre_attn_scalar", 256.0),
    ],
    rope: Rope::Base,
    windows: Some(6),
    ..LLAMA
};

/// Defaults of Gemma4TextConfig.
const GEMMA4_DEFAULTS: &[(&str, f64)] = &[
    ("rms_norm_eps", 1e-6),
    ("num_attention_heads", 8.0),
    ("num_key_value_heads", 4.0),
    ("head_dim", 256.0),
    ("global_head_dim", 512.0),
    ("max_position_embeddings", 131072.0),
    ("sliding_window", 512.0),
    ("hidden_size_per_layer_input", 256.0),
];

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

/// Every architecture that can be converted.
fn all() -> impl Iterator<Item = &'static Architecture> {
    let families = [
        ARCHITECTURES,
        latent::ARCHITECTURES,
        mamba::ARCHITECTURES,
        encoders::ARCHITECTURES,
        drafts::ARCHITECTURES,
    ];
    families.into_iter().flatten()
}

/// Llama and its relatives.
static ARCHITECTURES: &[Architecture] = &[
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
        classes: &["Qwen3ForCausalLM", "Qwen3Model"],
        name: |config| gated(config, &["silu"], "qwen3"),
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, MLP, INPUT_NORMS],
        rope: Rope::Base,
        // Defaults of Qwen3Config.
        defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 128.0)],
        ..LLAMA
    },
    Architecture {
        classes: &["Qwen3MoeForCausalLM"],
        name: qwen3moe,
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, EXPERTS],
        rope: Rope::Base,
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
        classes: &["Glm4ForCausalLM"],
        name: |config| gated(config, &["silu"], "glm4"),
        // RoPE rotates adjacent elements in both formats.
        layer: &[GLM4_NORMS, ATTN_HALVES, ATTN_OTHERS, MAYBE_QKV_BIASES, FUSED_MLP],
        // Defaults of Glm4Config.
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
        classes: &["Lfm2ForCausalLM"],
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
    GEMMA3,
    Architecture {
        classes: &["Gemma3TextModel"],
        name: gemma_embedding,
        head: "",
        encoder: true,
        dense: true,
        ..GEMMA3
    },
    Architecture {
        classes: &["Gemma2ForCausalLM"],
        name: gemma2,
        layer: &[GEMMA2_NORMS, ATTN_HALVES, ATTN_OTHERS, MLP],
        // Defaults of Gemma2Config.
        defaults: &[
            ("rms_norm_eps", 1e-6),
            ("num_attention_heads", 8.0),
            ("num_key_value_heads", 4.0),
            ("head_dim", 256.0),
            ("max_position_embeddings", 8192.0),
            ("sliding_window", 4096.0),
            ("query_pre_attn_scalar", 256.0),
            ("attn_logit_softcapping", 50.0),
            ("final_logit_softcapping", 30.0),
        ],
        windows: Some(2),
        ..GEMMA3
    },
    Architecture {
        classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        name: gemma4,
        globals: GEMMA4_GLOBALS,
        layer: &[GEMMA4_LAYER, MLP],
        defaults: GEMMA4_DEFAULTS,
        windows: Some(6),
        ..GEMMA3
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
        classes: &["MellumForCausalLM"],
        name: mellum,
        layer: &[NORMS, ATTN_HALVES, ATTN_OTHERS, HEAD_NORMS, EXPERTS],
        windows: Some(4),
        // Defaults of MellumConfig.
        defaults: &[("rms_norm_eps", 1e-6), ("head_dim", 128.0)],
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

/// The architecture of a class.
///
/// # Errors
/// [`ConvertError::Unsupported`], with the supported classes.
pub fn by_class(class: &str) -> Result<&'static Architecture, ConvertError> {
    let found = all().find(|arch| arch.classes.contains(&class));
    found.ok_or_else(|| {
        let known: Vec<_> = all().flat_map(|arch| arch.classes).copied().collect();
        let class = class.escape_debug();
        ConvertError::Unsupported(format!("architecture {class}: want one of {}", known.join(", ")))
    })
}

/// The architecture whose checkpoints become files of the GGUF architecture `name`.
pub fn by_file(name: &str) -> Option<&'static Architecture> {
    let config = Config::usual(name);
    let is = |own: &str| own == name || [own, name].iter().all(|name| name.starts_with("bitnet"));
    ARCHITECTURES.iter().find(|arch| (arch.name)(&config).is_ok_and(is))
}

/// Returns `name` if the activation function is one of `acts`.
fn gated(config: &Config, acts: &[&str], name: &'static str) -> Result<&'static str, ConvertError> {
    const KEYS: &[&str] = &["hidden_act", "hidden_activation", "activation_function"];
    match config.str(KEYS) {
        // The first is the default of transformers' class.
        None => Ok(name),
        Some(act) if acts.contains(&act) => Ok(name),
        Some(_) => Err(config.wrong(KEYS[0], &acts.join(" or "), config.get(KEYS))),
    }
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
    for (key, usual) in [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("add_cross_attention", false),
    ] {
        if config.bool(&[key]).is_some_and(|found| found != usual) {
            return Err(config.wrong(key, &usual.to_string(), config.get(&[key])));
        }
    }
    gated(config, &["gelu_new", "gelu_pytorch_tanh"], "gpt2")
}

/// GGUF has no key for the scale of scores: only the 27B model, recognised by its number of layers, divides
/// by dim / heads.
fn check_scalar(config: &Config, layers_of_27b: usize) -> Result<(), ConvertError> {
    let head_dim = config.count(&["head_dim"])?.unwrap_or(256);
    let (dim, heads) = (config.require(&["hidden_size"])?, config.require(&["num_attention_heads"])?);
    let layers = config.require(&["num_hidden_layers", "n_layer"])?;
    let want = if layers == layers_of_27b { dim as f64 / heads as f64 } else { head_dim as f64 };
    const SCALAR: &str = "query_pre_attn_scalar";
    match config.positive(&[SCALAR])?.is_some_and(|found| found != want) {
        true => Err(config.wrong(SCALAR, &format!("{want}"), config.get(&[SCALAR]))),
        false => Ok(()),
    }
}

fn gemma2(config: &Config) -> Result<&'static str, ConvertError> {
    check_scalar(config, 46)?;
    gated(config, &["gelu_pytorch_tanh"], "gemma2")
}

fn gemma4(config: &Config) -> Result<&'static str, ConvertError> {
    if config.bool(&["attention_bias"]) == Some(true) {
        return Err(config.wrong("attention_bias", "false", config.get(&["attention_bias"])));
    }
    if config.str(&["use_bidirectional_attention"]) == Some("all") {
        let found = config.get(&["use_bidirectional_attention"]);
        return Err(config.wrong("use_bidirectional_attention", "none or vision", found));
    }
    gated(config, &["gelu_pytorch_tanh"], "gemma4")
}

/// Mistral Small 3 has the same class, with a text model that is Llama's.
fn mistral3(config: &Config) -> Result<&'static str, ConvertError> {
    let of_text = config.str(&["model_type"]);
    gated(config, &["silu"], if of_text == Some("mistral") { "llama" } else { "mistral3" })
}

fn gemma3(config: &Config) -> Result<&'static str, ConvertError> {
    check_scalar(config, 62)?;
    if config.positive(&["attn_logit_softcapping"])?.is_some() {
        let found = config.get(&["attn_logit_softcapping"]);
        return Err(config.wrong("attn_logit_softcapping", "none in Gemma 3", found));
    }
    gated(config, &["gelu_pytorch_tanh"], "gemma3")
}

/// EmbeddingGemma, whose attention is bidirectional within its window, or a decoder for embeddings.
fn gemma_embedding(config: &Config) -> Result<&'static str, ConvertError> {
    let sees_ahead = config.bool(&["use_bidirectional_attention"]) == Some(true);
    gemma3(config).map(|name| if sees_ahead { "gemma-embedding" } else { name })
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

fn lfm2moe(config: &Config) -> Result<&'static str, ConvertError> {
    for key in ["norm_topk_prob", "use_expert_bias"] {
        if config.bool(&[key]) == Some(false) {
            return Err(config.wrong(key, "true", config.get(&[key])));
        }
    }
    gated(config, &["silu"], "lfm2moe")
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

fn qwen3next(config: &Config) -> Result<&'static str, ConvertError> {
    sums_to_one(config, config.bool(&["norm_topk_prob"]) != Some(false))?;
    all_experts(config, "qwen3next")
}

fn sums_to_one(config: &Config, is_so: bool) -> Result<(), ConvertError> {
    const KEY: &str = "norm_topk_prob";
    let want = "true: readers of GGUF divide by the sum over the chosen experts";
    if is_so { Ok(()) } else { Err(config.wrong(KEY, want, config.get(&[KEY]))) }
}

/// Returns `name` if every layer has experts.
fn all_experts(config: &Config, name: &'static str) -> Result<&'static str, ConvertError> {
    let dense =
        config.get(&["mlp_only_layers"]).filter(|list| list.as_array().is_some_and(|list| !list.is_empty()));
    if dense.is_some() {
        return Err(config.wrong("mlp_only_layers", "no layer without experts", dense));
    }
    if config.count(&["decoder_sparse_step"])?.is_some_and(|step| step != 1) {
        let found = config.get(&["decoder_sparse_step"]);
        return Err(config.wrong("decoder_sparse_step", "1: experts in every layer", found));
    }
    gated(config, &["silu"], name)
}
