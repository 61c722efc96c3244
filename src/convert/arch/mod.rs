//! Tables of the supported architectures: tensors with their names, shapes and conversions, in Hugging Face's
//! order. What several families share is here; a file per family has the rest.

mod classic;
mod drafts;
mod encoders;
mod gemma;
mod hybrid;
mod latent;
mod llama;
mod mamba;
mod sparse;
pub mod towers;

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
    /// The same for the residual streams of AltUp but the first.
    StackStreams,
    /// Appends rows of zeros up to the vocabulary.
    PadVocab,
    /// Drops the rows beyond the vocabulary.
    CutVocab,
    /// The first half of each expert's rows, which are the gate's; the other rows become another tensor.
    FirstHalf,
    /// The second half of each expert's rows.
    SecondHalf,
    /// Nothing, for matrices of experts that some checkpoints store transposed, as their shape says.
    Either,
    /// The first half of each expert's rows of such matrices.
    EitherFirstHalf,
    /// The second half.
    EitherSecondHalf,
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
    /// The rows of each key head's queries, key and value, reordered: all queries, all keys, all values.
    Ungroup,
    /// The first of three equal parts of the rows. The other ones become other tensors.
    FirstThird,
    /// The second one.
    SecondThird,
    /// The last one.
    LastThird,
    /// The first of the two frames of each channel's kernel, `[dim, channels, frames, height, width]`. The
    /// other one becomes another tensor.
    FirstFrame,
    /// The second one.
    SecondFrame,
    /// The columns of a matrix over patches, from pixel by pixel to channel by channel.
    ChannelsFirst,
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
    /// Length of an expert's input.
    ExpertInput,
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
    /// Rows of their table.
    LayerVocab,
    /// Residual streams of AltUp.
    Streams,
    /// Pairs of them.
    StreamPairs,
    /// Width between the two matrices of LAuReL.
    LaurelRank,
    /// Channels of a picture.
    Channels,
    /// Frames that a kernel over patches reads.
    Frames,
    /// Side of a patch.
    Patch,
    /// Elements of a patch.
    PatchElems,
    /// Tables of positions: columns, and rows.
    Tables,
    /// Patches that become one token, joined.
    Joined,
    /// Width of the text model of a vision tower.
    TextHidden,
    /// Width between the two matrices of a projector.
    Projector,
    /// Outputs of the gate of attention's output: one per head, or per element.
    AttnGate,
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
    /// Key of a factor on normalised queries, for architectures whose norms of heads have no weights; files
    /// have it as the norm's weight.
    pub query_factor: Option<&'static str>,
    /// True if the router of experts is a softmax unless the configuration says otherwise.
    pub softmax: bool,
    /// Key of the width of an expert.
    pub expert_width: &'static str,
    /// Rules that replace those with [`Change::Stack`] if all experts of a layer are already one tensor.
    pub fused: &'static [Rule],
    /// Prefixes of multi-token prediction (MTP) tensors.
    pub mtp: &'static [&'static str],
    /// Tensors of the MTP block outside of its layer, which is one of [`layer`](Self::layer); empty if MTP
    /// tensors are left out.
    pub mtp_block: &'static [&'static [Rule]],
    /// True if the MTP block is the layer after the last one, and all its tensors have that prefix. Otherwise
    /// the block is `mtp.`, and its layer `mtp.layers.0.`.
    pub mtp_is_layer: bool,
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

impl Architecture {
    /// Prefixes of the MTP block's tensors and of those of its layer, in a model with `n_layers` layers.
    pub fn mtp_prefixes(&self, n_layers: usize) -> [String; 2] {
        match self.mtp_is_layer {
            true => [(); 2].map(|()| format!("{}{n_layers}.", self.layers)),
            false => ["mtp.".to_owned(), "mtp.layers.0.".to_owned()],
        }
    }

    /// The tensor that every MTP block of this architecture has, as the rules call it.
    pub fn mtp_tensor(&self, n_layers: usize) -> Option<String> {
        let [block, _] = self.mtp_prefixes(n_layers);
        Some(block + self.mtp_block.first()?[0].from[0])
    }
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
    EmbeddingAndHidden, ExpertFfn, ExpertGateUp, Experts, Ffn, Head, Hidden, Kv, One, Q, SharedFfn, Vocab,
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
const MAYBE_QKV_BIASES: &[Rule] = &[
    maybe(&["self_attn.q_proj.bias"], "attn_q.bias", &[Q], Change::None),
    maybe(&["self_attn.k_proj.bias"], "attn_k.bias", &[Kv], Change::None),
    maybe(&["self_attn.v_proj.bias"], "attn_v.bias", &[Kv], Change::None),
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
const HUNYUAN_NORMS: &[Rule] = &[
    plain(&["self_attn.query_layernorm.weight"], "attn_q_norm.weight", &[Head]),
    plain(&["self_attn.key_layernorm.weight"], "attn_k_norm.weight", &[Head]),
];
/// Tensors of an MTP block that is the layer after the last one, without those that every layer has. In
/// checkpoints it also has the model's embedding and head.
const MTP_LAYER: &[Rule] = &[
    matrix(&["eh_proj.weight"], "nextn.eh_proj.weight", &[Hidden, EmbeddingAndHidden], Change::None),
    plain(&["enorm.weight"], "nextn.enorm.weight", &[Hidden]),
    plain(&["hnorm.weight"], "nextn.hnorm.weight", &[Hidden]),
    maybe(&["shared_head.norm.weight"], "nextn.shared_head_norm.weight", &[Hidden], Change::None),
    maybe_matrix(&["embed_tokens.weight"], "nextn.embed_tokens.weight", &[Vocab, Hidden]),
    maybe_matrix(&["shared_head.head.weight"], "nextn.shared_head_head.weight", &[Vocab, Hidden]),
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
    query_factor: None,
    softmax: false,
    expert_width: "moe_intermediate_size",
    fused: &[],
    mtp: &[],
    mtp_block: &[],
    mtp_is_layer: false,
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

/// Every architecture that can be converted.
fn all() -> impl Iterator<Item = &'static Architecture> {
    let families = [
        latent::ARCHITECTURES,
        mamba::ARCHITECTURES,
        classic::ARCHITECTURES,
        encoders::ARCHITECTURES,
        drafts::ARCHITECTURES,
    ];
    of_llama().chain(families.into_iter().flatten())
}

/// Llama and its relatives, without those of the other families.
fn of_llama() -> impl Iterator<Item = &'static Architecture> {
    [llama::ARCHITECTURES, sparse::ARCHITECTURES, hybrid::ARCHITECTURES, gemma::ARCHITECTURES]
        .into_iter()
        .flatten()
}

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
    of_llama().find(|arch| (arch.name)(&config).is_ok_and(is))
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
