//! Vision towers and their projectors: the parts of multimodal checkpoints that become mmproj files.

use super::Dim::{
    Channels, Ffn, Frames, Head, Hidden, Joined, One, Patch, PatchElems, Positions, Projector, Q, Qkv,
    Tables, TextHidden,
};
use super::{Change, Rule, matrix, maybe, maybe_matrix, plain, plus_one};

/// The keys that a tower has next to the common ones, by what its projector does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Means of blocks of patches of a square picture: their side, if it is not 4.
    Pool,
    /// The same for pictures of any size; the projector's name is a key of the vision part, as files may also
    /// have an audio tower.
    PoolOfAny,
    /// A network over joined patches, and others after some layers.
    Deepstack,
    /// The same without others; most layers attend within windows.
    Windows,
    /// The same, and all layers see the whole picture. The widths of the tower and of its networks are
    /// `embed_dim` and a multiple of it.
    Ratio,
    /// A network over patches, and a row after each row of tokens.
    RowEnds,
    /// A matrix over joined patches of tiles.
    Tiles,
    /// A network over joined patches of tiles; the last layers may be left out.
    NetworkOfTiles,
}

/// A vision tower with its projector. Names in its rules begin with `tower.` and `projector.`, whatever the
/// checkpoint calls these parts.
#[derive(Debug)]
pub struct Tower {
    /// Class names in `config.json`.
    pub classes: &'static [&'static str],
    /// `clip.projector_type` in the file.
    pub projector: &'static str,
    /// Its further keys.
    pub form: Form,
    /// `model_type` of the vision part, if the class may have others; empty otherwise.
    pub model_type: &'static str,
    /// Activation function of the tower, which is also the default of transformers' class.
    pub act: &'static str,
    /// Prefix of layers, followed by the number and a dot.
    pub layers: &'static str,
    /// Tensors outside of layers.
    pub globals: &'static [Rule],
    /// Tensors of each layer.
    pub layer: &'static [&'static [Rule]],
    /// Tensors of each merger after a layer (deepstack).
    pub deepstack: &'static [Rule],
    /// Values that the configuration of the vision part may omit, from transformers' classes.
    pub defaults: &'static [(&'static str, f64)],
    /// Mean and standard deviation of channels, for processors that do not normalise.
    pub unscaled: bool,
    /// Side of blocks of patches that a projector reads as one, if the configuration does not specify it.
    pub side: usize,
    /// Side of the pictures that a file describes, for towers of pictures of any size.
    pub image_size: Option<usize>,
}

/// Defaults of SiglipVisionConfig.
const SIGLIP: &[(&str, f64)] = &[
    ("hidden_size", 768.0),
    ("intermediate_size", 3072.0),
    ("num_hidden_layers", 12.0),
    ("num_attention_heads", 12.0),
    ("image_size", 224.0),
    ("patch_size", 16.0),
    ("layer_norm_eps", 1e-6),
];
const SIGLIP_LAYER: &[Rule] = &[
    plain(&["layer_norm1.weight"], "ln1.weight", &[Hidden]),
    plain(&["layer_norm1.bias"], "ln1.bias", &[Hidden]),
    matrix(&["self_attn.q_proj.weight"], "attn_q.weight", &[Q, Hidden], Change::None),
    plain(&["self_attn.q_proj.bias"], "attn_q.bias", &[Q]),
    matrix(&["self_attn.k_proj.weight"], "attn_k.weight", &[Q, Hidden], Change::None),
    plain(&["self_attn.k_proj.bias"], "attn_k.bias", &[Q]),
    matrix(&["self_attn.v_proj.weight"], "attn_v.weight", &[Q, Hidden], Change::None),
    plain(&["self_attn.v_proj.bias"], "attn_v.bias", &[Q]),
    matrix(&["self_attn.out_proj.weight"], "attn_out.weight", &[Hidden, Q], Change::None),
    plain(&["self_attn.out_proj.bias"], "attn_out.bias", &[Hidden]),
    plain(&["layer_norm2.weight"], "ln2.weight", &[Hidden]),
    plain(&["layer_norm2.bias"], "ln2.bias", &[Hidden]),
    matrix(&["mlp.fc1.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    plain(&["mlp.fc1.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["mlp.fc2.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["mlp.fc2.bias"], "ffn_down.bias", &[Hidden]),
];
const PATCH_BIAS: Rule = plain(&["tower.embeddings.patch_embedding.bias"], "v.patch_embd.bias", &[Hidden]);
const POSITIONS: Rule =
    plain(&["tower.embeddings.position_embedding.weight"], "v.position_embd.weight", &[Positions, Hidden]);
const POST_NORM: [Rule; 2] = [
    plain(&["tower.post_layernorm.weight"], "v.post_ln.weight", &[Hidden]),
    plain(&["tower.post_layernorm.bias"], "v.post_ln.bias", &[Hidden]),
];
const PATCHES: Rule = plain(
    &["tower.embeddings.patch_embedding.weight"],
    "v.patch_embd.weight",
    &[Hidden, Channels, Patch, Patch],
);

const GEMMA3_GLOBALS: &[Rule] = &[
    PATCHES,
    PATCH_BIAS,
    POSITIONS,
    POST_NORM[0],
    POST_NORM[1],
    plus_one(&["projector.mm_soft_emb_norm.weight"], "mm.soft_emb_norm.weight", &[Hidden]),
    matrix(
        &["projector.mm_input_projection_weight"],
        "mm.input_projection.weight",
        &[Hidden, TextHidden],
        Change::None,
    ),
];

const fn frame(from: &'static [&'static str], to: &'static str, change: Change) -> Rule {
    let plain = plain(from, to, &[Hidden, Channels, Frames, Patch, Patch]);
    Rule { change, reshaped: &[Hidden, Channels, Patch, Patch], ..plain }
}

const FRAMES: [Rule; 2] = [
    frame(&["tower.patch_embed.proj.weight"], "v.patch_embd.weight", Change::FirstFrame),
    frame(&["tower.patch_embed.proj.weight"], "v.patch_embd.weight.1", Change::SecondFrame),
];
const QWEN3_GLOBALS: &[Rule] = &[
    FRAMES[0],
    FRAMES[1],
    plain(&["tower.patch_embed.proj.bias"], "v.patch_embd.bias", &[Hidden]),
    plain(&["tower.pos_embed.weight"], "v.position_embd.weight", &[Positions, Hidden]),
    plain(&["tower.merger.norm.weight"], "v.post_ln.weight", &[Hidden]),
    plain(&["tower.merger.norm.bias"], "v.post_ln.bias", &[Hidden]),
    matrix(&["tower.merger.linear_fc1.weight"], "mm.0.weight", &[Joined, Joined], Change::None),
    plain(&["tower.merger.linear_fc1.bias"], "mm.0.bias", &[Joined]),
    matrix(&["tower.merger.linear_fc2.weight"], "mm.2.weight", &[TextHidden, Joined], Change::None),
    plain(&["tower.merger.linear_fc2.bias"], "mm.2.bias", &[TextHidden]),
];
const QWEN3_LAYER: &[Rule] = &[
    plain(&["norm1.weight"], "ln1.weight", &[Hidden]),
    plain(&["norm1.bias"], "ln1.bias", &[Hidden]),
    matrix(&["attn.qkv.weight"], "attn_qkv.weight", &[Qkv, Hidden], Change::None),
    plain(&["attn.qkv.bias"], "attn_qkv.bias", &[Qkv]),
    matrix(&["attn.proj.weight"], "attn_out.weight", &[Hidden, Q], Change::None),
    plain(&["attn.proj.bias"], "attn_out.bias", &[Hidden]),
    plain(&["norm2.weight"], "ln2.weight", &[Hidden]),
    plain(&["norm2.bias"], "ln2.bias", &[Hidden]),
    matrix(&["mlp.linear_fc1.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    plain(&["mlp.linear_fc1.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["mlp.linear_fc2.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["mlp.linear_fc2.bias"], "ffn_down.bias", &[Hidden]),
];
const DEEPSTACK: &[Rule] = &[
    plain(&["norm.weight"], "norm.weight", &[Joined]),
    plain(&["norm.bias"], "norm.bias", &[Joined]),
    matrix(&["linear_fc1.weight"], "fc1.weight", &[Joined, Joined], Change::None),
    plain(&["linear_fc1.bias"], "fc1.bias", &[Joined]),
    matrix(&["linear_fc2.weight"], "fc2.weight", &[TextHidden, Joined], Change::None),
    plain(&["linear_fc2.bias"], "fc2.bias", &[TextHidden]),
];

const GEMMA4_GLOBALS: &[Rule] = &[
    Rule {
        change: Change::ChannelsFirst,
        reshaped: &[Hidden, Channels, Patch, Patch],
        ..plain(&["tower.patch_embedder.input_proj.weight"], "v.patch_embd.weight", &[Hidden, PatchElems])
    },
    plain(
        &["tower.patch_embedder.position_embedding_table"],
        "v.position_embd.weight",
        &[Tables, Positions, Hidden],
    ),
    maybe(&["tower.std_bias"], "v.std_bias", &[Hidden], Change::None),
    maybe(&["tower.std_scale"], "v.std_scale", &[Hidden], Change::None),
    matrix(
        &["projector.embedding_projection.weight"],
        "mm.input_projection.weight",
        &[TextHidden, Hidden],
        Change::None,
    ),
];
const GEMMA4_LAYER: &[Rule] = &[
    plain(&["input_layernorm.weight"], "ln1.weight", &[Hidden]),
    plain(&["post_attention_layernorm.weight"], "attn_post_norm.weight", &[Hidden]),
    plain(&["pre_feedforward_layernorm.weight"], "ln2.weight", &[Hidden]),
    plain(&["post_feedforward_layernorm.weight"], "ffn_post_norm.weight", &[Hidden]),
    plain(&["self_attn.q_norm.weight"], "attn_q_norm.weight", &[Head]),
    plain(&["self_attn.k_norm.weight"], "attn_k_norm.weight", &[Head]),
    matrix(&["self_attn.q_proj.linear.weight"], "attn_q.weight", &[Q, Hidden], Change::None),
    matrix(&["self_attn.k_proj.linear.weight"], "attn_k.weight", &[Q, Hidden], Change::None),
    matrix(&["self_attn.v_proj.linear.weight"], "attn_v.weight", &[Q, Hidden], Change::None),
    matrix(&["self_attn.o_proj.linear.weight"], "attn_out.weight", &[Hidden, Q], Change::None),
    matrix(&["mlp.gate_proj.linear.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.up_proj.linear.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    matrix(&["mlp.down_proj.linear.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    maybe(&["layer_scalar"], "out_scale.weight", &[One], Change::None),
];

/// A bound on inputs or outputs of a linear layer, one number without dimensions in a checkpoint.
const fn bound(from: &'static [&'static str], to: &'static str) -> Rule {
    Rule { reshaped: &[One], ..maybe(from, to, &[], Change::None) }
}

const GEMMA4_BOUNDS: &[Rule] = &[
    bound(&["self_attn.q_proj.input_min"], "attn_q.input_min"),
    bound(&["self_attn.q_proj.input_max"], "attn_q.input_max"),
    bound(&["self_attn.q_proj.output_min"], "attn_q.output_min"),
    bound(&["self_attn.q_proj.output_max"], "attn_q.output_max"),
    bound(&["self_attn.k_proj.input_min"], "attn_k.input_min"),
    bound(&["self_attn.k_proj.input_max"], "attn_k.input_max"),
    bound(&["self_attn.k_proj.output_min"], "attn_k.output_min"),
    bound(&["self_attn.k_proj.output_max"], "attn_k.output_max"),
    bound(&["self_attn.v_proj.input_min"], "attn_v.input_min"),
    bound(&["self_attn.v_proj.input_max"], "attn_v.input_max"),
    bound(&["self_attn.v_proj.output_min"], "attn_v.output_min"),
    bound(&["self_attn.v_proj.output_max"], "attn_v.output_max"),
    bound(&["self_attn.o_proj.input_min"], "attn_out.input_min"),
    bound(&["self_attn.o_proj.input_max"], "attn_out.input_max"),
    bound(&["self_attn.o_proj.output_min"], "attn_out.output_min"),
    bound(&["self_attn.o_proj.output_max"], "attn_out.output_max"),
    bound(&["mlp.gate_proj.input_min"], "ffn_gate.input_min"),
    bound(&["mlp.gate_proj.input_max"], "ffn_gate.input_max"),
    bound(&["mlp.gate_proj.output_min"], "ffn_gate.output_min"),
    bound(&["mlp.gate_proj.output_max"], "ffn_gate.output_max"),
    bound(&["mlp.up_proj.input_min"], "ffn_up.input_min"),
    bound(&["mlp.up_proj.input_max"], "ffn_up.input_max"),
    bound(&["mlp.up_proj.output_min"], "ffn_up.output_min"),
    bound(&["mlp.up_proj.output_max"], "ffn_up.output_max"),
    bound(&["mlp.down_proj.input_min"], "ffn_down.input_min"),
    bound(&["mlp.down_proj.input_max"], "ffn_down.input_max"),
    bound(&["mlp.down_proj.output_min"], "ffn_down.output_min"),
    bound(&["mlp.down_proj.output_max"], "ffn_down.output_max"),
];

const PIXTRAL_GLOBALS: &[Rule] = &[
    plain(&["tower.patch_conv.weight"], "v.patch_embd.weight", &[Hidden, Channels, Patch, Patch]),
    plain(&["tower.ln_pre.weight"], "v.pre_ln.weight", &[Hidden]),
    maybe(&["projector.norm.weight"], "mm.input_norm.weight", &[Hidden], Change::None),
    maybe_matrix(
        &["projector.patch_merger.merging_layer.weight"],
        "mm.patch_merger.weight",
        &[Hidden, Joined],
    ),
    matrix(&["projector.linear_1.weight"], "mm.1.weight", &[TextHidden, Hidden], Change::None),
    maybe(&["projector.linear_1.bias"], "mm.1.bias", &[TextHidden], Change::None),
    matrix(&["projector.linear_2.weight"], "mm.2.weight", &[TextHidden, TextHidden], Change::None),
    maybe(&["projector.linear_2.bias"], "mm.2.bias", &[TextHidden], Change::None),
    plain(&[IMAGE_BREAK], "v.token_embd.img_break", &[TextHidden]),
];
/// The row of the text model's embedding for the end of a row of tokens, as the rules call it.
pub const IMAGE_BREAK: &str = "[IMG_BREAK]";
const PIXTRAL_LAYER: &[Rule] = &[
    plain(&["attention_norm.weight"], "ln1.weight", &[Hidden]),
    matrix(&["attention.q_proj.weight"], "attn_q.weight", &[Q, Hidden], Change::PermuteQ),
    matrix(&["attention.k_proj.weight"], "attn_k.weight", &[Q, Hidden], Change::PermuteK),
    matrix(&["attention.v_proj.weight"], "attn_v.weight", &[Q, Hidden], Change::None),
    matrix(&["attention.o_proj.weight"], "attn_out.weight", &[Hidden, Q], Change::None),
    plain(&["ffn_norm.weight"], "ln2.weight", &[Hidden]),
    matrix(&["feed_forward.gate_proj.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
    matrix(&["feed_forward.up_proj.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    matrix(&["feed_forward.down_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
];

const QWEN25_GLOBALS: &[Rule] = &[
    FRAMES[0],
    FRAMES[1],
    plain(&["tower.merger.ln_q.weight"], "v.post_ln.weight", &[Hidden]),
    matrix(&["tower.merger.mlp.0.weight"], "mm.0.weight", &[Joined, Joined], Change::None),
    plain(&["tower.merger.mlp.0.bias"], "mm.0.bias", &[Joined]),
    matrix(&["tower.merger.mlp.2.weight"], "mm.2.weight", &[TextHidden, Joined], Change::None),
    plain(&["tower.merger.mlp.2.bias"], "mm.2.bias", &[TextHidden]),
];

/// One of queries, keys and values, which are one matrix in a checkpoint.
const fn third(from: &'static [&'static str], to: &'static str, change: Change) -> Rule {
    Rule { reshaped: &[Q, Hidden], ..matrix(from, to, &[Qkv, Hidden], change) }
}

const fn third_bias(from: &'static [&'static str], to: &'static str, change: Change) -> Rule {
    Rule { change, reshaped: &[Q], ..plain(from, to, &[Qkv]) }
}

const QWEN25_LAYER: &[Rule] = &[
    plain(&["norm1.weight"], "ln1.weight", &[Hidden]),
    third(&["attn.qkv.weight"], "attn_q.weight", Change::FirstThird),
    third_bias(&["attn.qkv.bias"], "attn_q.bias", Change::FirstThird),
    third(&["attn.qkv.weight"], "attn_k.weight", Change::SecondThird),
    third_bias(&["attn.qkv.bias"], "attn_k.bias", Change::SecondThird),
    third(&["attn.qkv.weight"], "attn_v.weight", Change::LastThird),
    third_bias(&["attn.qkv.bias"], "attn_v.bias", Change::LastThird),
    matrix(&["attn.proj.weight"], "attn_out.weight", &[Hidden, Q], Change::None),
    plain(&["attn.proj.bias"], "attn_out.bias", &[Hidden]),
    plain(&["norm2.weight"], "ln2.weight", &[Hidden]),
    matrix(&["mlp.gate_proj.weight"], "ffn_gate.weight", &[Ffn, Hidden], Change::None),
    plain(&["mlp.gate_proj.bias"], "ffn_gate.bias", &[Ffn]),
    matrix(&["mlp.up_proj.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    plain(&["mlp.up_proj.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["mlp.down_proj.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["mlp.down_proj.bias"], "ffn_down.bias", &[Hidden]),
];

const QWEN2_NORM_BIAS: Rule = plain(&["tower.merger.ln_q.bias"], "v.post_ln.bias", &[Hidden]);
const QWEN2_LAYER: &[Rule] = &[
    QWEN25_LAYER[0],
    plain(&["norm1.bias"], "ln1.bias", &[Hidden]),
    QWEN25_LAYER[1],
    QWEN25_LAYER[2],
    QWEN25_LAYER[3],
    QWEN25_LAYER[4],
    QWEN25_LAYER[5],
    QWEN25_LAYER[6],
    QWEN25_LAYER[7],
    QWEN25_LAYER[8],
    QWEN25_LAYER[9],
    plain(&["norm2.bias"], "ln2.bias", &[Hidden]),
    matrix(&["mlp.fc1.weight"], "ffn_up.weight", &[Ffn, Hidden], Change::None),
    plain(&["mlp.fc1.bias"], "ffn_up.bias", &[Ffn]),
    matrix(&["mlp.fc2.weight"], "ffn_down.weight", &[Hidden, Ffn], Change::None),
    plain(&["mlp.fc2.bias"], "ffn_down.bias", &[Hidden]),
];
const QWEN2_GLOBALS: &[Rule] = &[
    QWEN25_GLOBALS[0],
    QWEN25_GLOBALS[1],
    QWEN25_GLOBALS[2],
    QWEN2_NORM_BIAS,
    QWEN25_GLOBALS[3],
    QWEN25_GLOBALS[4],
    QWEN25_GLOBALS[5],
    QWEN25_GLOBALS[6],
];

const IDEFICS3_GLOBALS: &[Rule] = &[
    PATCHES,
    PATCH_BIAS,
    POSITIONS,
    POST_NORM[0],
    POST_NORM[1],
    matrix(
        &["projector.modality_projection.proj.weight"],
        "mm.model.fc.weight",
        &[TextHidden, Joined],
        Change::None,
    ),
];

const LFM2_GLOBALS: &[Rule] = &[
    Rule {
        change: Change::ChannelsFirst,
        reshaped: &[Hidden, Channels, Patch, Patch],
        ..plain(&["tower.embeddings.patch_embedding.weight"], "v.patch_embd.weight", &[Hidden, PatchElems])
    },
    PATCH_BIAS,
    POSITIONS,
    POST_NORM[0],
    POST_NORM[1],
    maybe(&["projector.layer_norm.weight"], "mm.input_norm.weight", &[Joined], Change::None),
    maybe(&["projector.layer_norm.bias"], "mm.input_norm.bias", &[Joined], Change::None),
    matrix(&["projector.linear_1.weight"], "mm.1.weight", &[Projector, Joined], Change::None),
    maybe(&["projector.linear_1.bias"], "mm.1.bias", &[Projector], Change::None),
    matrix(&["projector.linear_2.weight"], "mm.2.weight", &[TextHidden, Projector], Change::None),
    maybe(&["projector.linear_2.bias"], "mm.2.bias", &[TextHidden], Change::None),
];

const GEMMA3: Tower = Tower {
    classes: &["Gemma3ForConditionalGeneration"],
    projector: "gemma3",
    form: Form::Pool,
    model_type: "",
    act: "gelu_pytorch_tanh",
    layers: "tower.encoder.layers.",
    globals: GEMMA3_GLOBALS,
    layer: &[SIGLIP_LAYER],
    deepstack: &[],
    defaults: SIGLIP,
    unscaled: false,
    side: 1,
    image_size: None,
};

/// Every tower that can be converted.
pub static TOWERS: &[Tower] = &[
    GEMMA3,
    Tower {
        classes: &["Gemma4ForConditionalGeneration"],
        projector: "gemma4v",
        form: Form::PoolOfAny,
        globals: GEMMA4_GLOBALS,
        layer: &[GEMMA4_LAYER, GEMMA4_BOUNDS],
        // Defaults of Gemma4VisionConfig.
        defaults: &[
            ("hidden_size", 768.0),
            ("intermediate_size", 3072.0),
            ("num_hidden_layers", 16.0),
            ("num_attention_heads", 12.0),
            ("head_dim", 64.0),
            ("patch_size", 16.0),
            ("position_embedding_size", 10240.0),
            ("rms_norm_eps", 1e-6),
        ],
        unscaled: true,
        image_size: Some(224),
        ..GEMMA3
    },
    Tower {
        classes: &[
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForConditionalGeneration",
        ],
        projector: "qwen3vl_merger",
        form: Form::Deepstack,
        layers: "tower.blocks.",
        globals: QWEN3_GLOBALS,
        layer: &[QWEN3_LAYER],
        deepstack: DEEPSTACK,
        // Defaults of Qwen3VLVisionConfig; its epsilon is not configured.
        defaults: &[
            ("hidden_size", 1152.0),
            ("intermediate_size", 4304.0),
            ("depth", 27.0),
            ("num_heads", 16.0),
            ("patch_size", 16.0),
            ("num_position_embeddings", 2304.0),
            ("layer_norm_eps", 1e-6),
        ],
        side: 2,
        ..GEMMA3
    },
    Tower {
        classes: &["Mistral3ForConditionalGeneration", "LlavaForConditionalGeneration"],
        projector: "pixtral",
        form: Form::RowEnds,
        model_type: "pixtral",
        act: "silu",
        layers: "tower.transformer.layers.",
        globals: PIXTRAL_GLOBALS,
        layer: &[PIXTRAL_LAYER],
        // Defaults of PixtralVisionConfig; its epsilon is not configured.
        defaults: &[
            ("hidden_size", 1024.0),
            ("intermediate_size", 4096.0),
            ("num_hidden_layers", 24.0),
            ("num_attention_heads", 16.0),
            ("image_size", 1024.0),
            ("patch_size", 16.0),
            ("layer_norm_eps", 1e-5),
        ],
        ..GEMMA3
    },
    Tower {
        classes: &["Qwen2_5_VLForConditionalGeneration"],
        projector: "qwen2.5vl_merger",
        form: Form::Windows,
        act: "silu",
        layers: "tower.blocks.",
        globals: QWEN25_GLOBALS,
        layer: &[QWEN25_LAYER],
        // Defaults of Qwen2_5_VLVisionConfig; its epsilon is not configured.
        defaults: &[
            ("hidden_size", 3584.0),
            ("intermediate_size", 3420.0),
            ("depth", 32.0),
            ("num_heads", 16.0),
            ("patch_size", 14.0),
            ("layer_norm_eps", 1e-6),
        ],
        side: 2,
        image_size: Some(560),
        ..GEMMA3
    },
    Tower {
        classes: &["Qwen2VLForConditionalGeneration"],
        projector: "qwen2vl_merger",
        form: Form::Ratio,
        act: "quick_gelu",
        layers: "tower.blocks.",
        globals: QWEN2_GLOBALS,
        layer: &[QWEN2_LAYER],
        // Defaults of Qwen2VLVisionConfig; its epsilon is not configured.
        defaults: &[
            ("embed_dim", 1280.0),
            ("mlp_ratio", 4.0),
            ("depth", 32.0),
            ("num_heads", 16.0),
            ("patch_size", 14.0),
            ("layer_norm_eps", 1e-6),
        ],
        side: 2,
        image_size: Some(560),
        ..GEMMA3
    },
    Tower {
        classes: &["Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"],
        projector: "idefics3",
        form: Form::Tiles,
        globals: IDEFICS3_GLOBALS,
        // Defaults of Idefics3VisionConfig.
        defaults: &[
            ("hidden_size", 1152.0),
            ("intermediate_size", 3072.0),
            ("num_hidden_layers", 12.0),
            ("num_attention_heads", 16.0),
            ("image_size", 224.0),
            ("patch_size", 32.0),
            ("layer_norm_eps", 1e-6),
        ],
        side: 2,
        ..GEMMA3
    },
    Tower {
        classes: &["Lfm2VlForConditionalGeneration"],
        projector: "lfm2",
        form: Form::NetworkOfTiles,
        globals: LFM2_GLOBALS,
        // Defaults of Siglip2VisionConfig.
        defaults: &[
            ("hidden_size", 768.0),
            ("intermediate_size", 3072.0),
            ("num_hidden_layers", 12.0),
            ("num_attention_heads", 12.0),
            ("num_patches", 256.0),
            ("patch_size", 16.0),
            ("layer_norm_eps", 1e-6),
        ],
        side: 2,
        image_size: Some(256),
        ..GEMMA3
    },
];
