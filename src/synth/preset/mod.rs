//! Shapes of known models.

mod relatives;
mod table;

use ggml_types::QuantType;

use super::{SynthError, type_named};
pub use relatives::{Biases, Gate, Norms, Relative};
pub use table::PRESETS;

/// A vision tower next to the numbers of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tower {
    /// Side of pictures in pixels, a multiple of four patches.
    pub image: usize,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Width of the text model.
    pub text_dim: usize,
}

/// A model family: defines the tensors and their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `bitnet-b1.58`: sub-norms, ReLU^2, int8 activations.
    BitNet,
    /// `llama`: also used by the other ternary models.
    Llama,
    /// `llama` with experts instead of the feed-forward network.
    Mixtral {
        /// Number of experts per layer.
        n_experts: usize,
        /// Number of experts used per row.
        n_used: usize,
    },
    /// A relative of Llama with a few other properties.
    Relative(Relative),
    /// `minicpm`: Llama's tensors, with factors that depend on the shape.
    MiniCpm,
    /// `granite`: Llama's tensors, with factors.
    Granite {
        /// Divisor of the attention scores.
        scores: usize,
        /// Divisor of the logits.
        logits: usize,
    },
    /// `glm4`: biases on queries, keys and values, norms after the projections, gate and up in one tensor.
    Glm4,
    /// `glm4moe`: biases on queries, keys and values, and experts with a shared one of the same width after
    /// the first layers.
    Glm4Moe {
        /// Number of experts per layer.
        n_experts: usize,
        /// Number of experts used per row.
        n_used: usize,
        /// Number of layers with a feed-forward network.
        n_dense: usize,
        /// Width of those.
        dense_dim: usize,
    },
    /// `deepseek2`: multi-head latent attention, and experts as in `glm4moe`. The length of a head is that of
    /// a key.
    DeepSeek2 {
        /// Number of experts per layer.
        n_experts: usize,
        /// Number of experts used per row.
        n_used: usize,
        /// Number of layers with a feed-forward network.
        n_dense: usize,
        /// Width of those.
        dense_dim: usize,
        /// Length of the latent vector of queries.
        q_rank: usize,
        /// Length of the latent vector of keys and values.
        rank: usize,
        /// Elements of a key that RoPE rotates, fewer than all.
        rope_dims: usize,
        /// Length of a value.
        value_dim: usize,
    },
    /// `phi3`: queries, keys and values in one tensor, gate and up in another.
    Phi3 {
        /// Elements of a head that RoPE rotates, at most its length.
        rope_dims: usize,
        /// Original context of a model with tables of RoPE factors.
        original_ctx: Option<usize>,
    },
    /// `lfm2`: short convolutions, and attention with norms over heads in some layers.
    Lfm2,
    /// `lfm2moe`: likewise, with experts after the first layers.
    Lfm2Moe {
        /// Number of experts per layer.
        n_experts: usize,
        /// Number of experts used per row.
        n_used: usize,
        /// Number of layers before the first mixture.
        n_dense: usize,
        /// Width of their feed-forward networks.
        dense_dim: usize,
    },
    /// Mamba-2, alone or with attention.
    Mamba {
        /// The form of layers.
        form: MambaForm,
        /// Number of heads.
        n_heads: usize,
        /// Number of groups of heads that share keys and queries.
        n_groups: usize,
        /// Length of a head.
        head_dim: usize,
        /// Length of a key.
        state_dim: usize,
    },
    /// `gpt2`: LayerNorm, biases, learned positions.
    Gpt2,
    /// `bert`: an encoder, with biases, learned positions, token types, and a classifier of one label.
    Bert,
    /// `qwen2`: biases on queries, keys and values.
    Qwen2,
    /// `qwen3`: norms over query and key heads.
    Qwen3,
    /// `qwen3` with a norm of each projection's input and last-token pooling: BitNet-embedding.
    BitNetEmbedding,
    /// `qwen3moe`: norms over heads, with experts instead of the feed-forward network.
    Qwen3Moe {
        /// Number of experts per layer.
        n_experts: usize,
        /// Number of experts used per row.
        n_used: usize,
    },
    /// `qwen35`: three layers with a gated delta net, then one of gated attention. `qwen35moe` with experts
    /// and a shared expert.
    Qwen35 {
        /// Number of query and key heads of the delta net.
        n_key_heads: usize,
        /// Number of its value heads, a multiple of those.
        n_value_heads: usize,
        /// Its head dimension.
        state_dim: usize,
        /// Number of experts per layer, and number used per row.
        experts: Option<(usize, usize)>,
    },
    /// `qwen3next`: likewise with experts, and value heads grouped by key head.
    Qwen3Next {
        /// Number of query and key heads of the delta net.
        n_key_heads: usize,
        /// Number of its value heads, a multiple of those.
        n_value_heads: usize,
        /// Its head dimension.
        state_dim: usize,
        /// Number of experts per layer.
        n_experts: usize,
        /// Number of experts used per row.
        n_used: usize,
    },
    /// `gemma3`: norms over heads, norms after the projections, sliding windows.
    Gemma3 {
        /// Window of most layers, in positions.
        window: usize,
    },
    /// `clip`: an mmproj file with Gemma 3's vision tower. It has no vocabulary.
    Gemma3Tower(Tower),
    /// `gemma2`: norms after the projections, soft caps, a sliding window in every second layer.
    Gemma2 {
        /// Window, in positions.
        window: usize,
    },
    /// `gemma4`: layers with a sliding window and without, which differ in their heads.
    Gemma4 {
        /// Window of most layers, in positions.
        window: usize,
        /// Head dimension, and KV heads of the layers without a window.
        global: [usize; 2],
        /// Distance between these layers.
        period: usize,
        /// Number of last layers that read the caches of earlier ones, and if these have feed-forward
        /// networks of twice the width.
        shared: (usize, bool),
        /// Width of the embedding per layer, or 0.
        layer_input: usize,
    },
    /// `gemma3n`: four residual streams, two matrices of low rank per layer, an embedding per layer, and a
    /// sliding window in four of five layers.
    Gemma3n {
        /// Window, in positions.
        window: usize,
        /// Number of last layers that read the caches of earlier ones.
        shared: usize,
        /// Width of the embedding per layer.
        layer_input: usize,
        /// Width between the two matrices of low rank.
        rank: usize,
    },
    /// `olmo2`: norms after the projections only, norms of whole rows of queries and keys.
    Olmo2 {
        /// Window of three of four layers, in positions, and the context before YaRN (OLMo 3).
        long: Option<(usize, usize)>,
    },
    /// `mistral3`: Llama's tensors, YaRN, a factor on queries by position.
    Mistral3 {
        /// Context before YaRN.
        original_ctx: usize,
    },
    /// `gpt-oss`: biases, attention sinks, experts, sliding windows, YaRN. The attention matrices have the
    /// type of the head.
    GptOss {
        /// Number of experts per layer.
        n_experts: usize,
        /// Number of experts used per row.
        n_used: usize,
        /// Window of every second layer, in positions.
        window: usize,
    },
}

/// Form of layers with Mamba-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MambaForm {
    /// `mamba2`: every layer has Mamba-2 only.
    Alone,
    /// `granitehybrid`: every tenth layer from the sixth on has attention; all have a feed-forward network.
    Granite,
    /// `falcon-h1`: every layer has both, and a feed-forward network.
    Falcon,
    /// `nemotron_h`: each layer has one part, in turn Mamba-2, a feed-forward network, Mamba-2, attention.
    Nemotron,
    /// `nemotron_h_moe`: likewise, with experts without a gate in place of feed-forward networks, and in runs
    /// of seven layers of which one has attention.
    NemotronMoe {
        /// Number of experts per layer.
        n_experts: usize,
        /// Number of experts used per row.
        n_used: usize,
        /// Width of the shared expert.
        shared_dim: usize,
    },
}

impl MambaForm {
    /// True for layers with Mamba-2, attention, and a feed-forward network.
    pub(super) fn parts(self, layer: usize) -> [bool; 3] {
        match self {
            Self::Alone => [true, false, false],
            Self::Granite => [layer % 10 != 5, layer % 10 == 5, true],
            Self::Falcon => [true; 3],
            Self::Nemotron => [layer.is_multiple_of(2), layer % 4 == 3, layer % 4 == 1],
            Self::NemotronMoe { .. } => {
                let at = layer % 7;
                [[0, 2, 4].contains(&at), at == 5, [1, 3, 6].contains(&at)]
            }
        }
    }

    /// True if each layer has one part.
    pub(super) fn is_nemotron(self) -> bool {
        matches!(self, Self::Nemotron | Self::NemotronMoe { .. })
    }
}

impl Family {
    /// `general.architecture`.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::BitNet => "bitnet-b1.58",
            Self::Llama | Self::Mixtral { .. } => "llama",
            Self::Relative(relative) => relative.architecture,
            Self::MiniCpm => "minicpm",
            Self::Granite { .. } => "granite",
            Self::Glm4 => "glm4",
            Self::Glm4Moe { .. } => "glm4moe",
            Self::DeepSeek2 { .. } => "deepseek2",
            Self::Phi3 { .. } => "phi3",
            Self::Lfm2 => "lfm2",
            Self::Lfm2Moe { .. } => "lfm2moe",
            Self::Mamba { form: MambaForm::Alone, .. } => "mamba2",
            Self::Mamba { form: MambaForm::Granite, .. } => "granitehybrid",
            Self::Mamba { form: MambaForm::Falcon, .. } => "falcon-h1",
            Self::Mamba { form: MambaForm::Nemotron, .. } => "nemotron_h",
            Self::Mamba { form: MambaForm::NemotronMoe { .. }, .. } => "nemotron_h_moe",
            Self::Gpt2 => "gpt2",
            Self::Bert => "bert",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 | Self::BitNetEmbedding => "qwen3",
            Self::Qwen3Moe { .. } => "qwen3moe",
            Self::Qwen35 { experts: None, .. } => "qwen35",
            Self::Qwen35 { .. } => "qwen35moe",
            Self::Qwen3Next { .. } => "qwen3next",
            Self::Gemma3 { .. } => "gemma3",
            Self::Gemma3Tower(_) => "clip",
            Self::Gemma2 { .. } => "gemma2",
            Self::Gemma4 { .. } => "gemma4",
            Self::Gemma3n { .. } => "gemma3n",
            Self::Olmo2 { .. } => "olmo2",
            Self::Mistral3 { .. } => "mistral3",
            Self::GptOss { .. } => "gpt-oss",
        }
    }

    /// Number of experts per layer, and number used per row.
    pub(super) fn experts(self) -> Option<(usize, usize)> {
        match self {
            Self::Mixtral { n_experts, n_used }
            | Self::Qwen3Moe { n_experts, n_used }
            | Self::Qwen3Next { n_experts, n_used, .. }
            | Self::Glm4Moe { n_experts, n_used, .. }
            | Self::DeepSeek2 { n_experts, n_used, .. }
            | Self::Lfm2Moe { n_experts, n_used, .. }
            | Self::Mamba { form: MambaForm::NemotronMoe { n_experts, n_used, .. }, .. }
            | Self::GptOss { n_experts, n_used, .. } => Some((n_experts, n_used)),
            Self::Qwen35 { experts, .. } | Self::Relative(Relative { experts, .. }) => experts,
            _ => None,
        }
    }

    /// Key heads, value heads and head dimension of the delta nets, if the family has them.
    pub(super) fn delta_net(self) -> Option<[usize; 3]> {
        match self {
            Self::Qwen35 { n_key_heads, n_value_heads, state_dim, .. }
            | Self::Qwen3Next { n_key_heads, n_value_heads, state_dim, .. } => {
                Some([n_key_heads, n_value_heads, state_dim])
            }
            _ => None,
        }
    }

    /// Number of layers before the first mixture of experts, and their width, if the family has such layers.
    pub(super) fn dense_first(self) -> Option<(usize, usize)> {
        match self {
            Self::Glm4Moe { n_dense, dense_dim, .. }
            | Self::DeepSeek2 { n_dense, dense_dim, .. }
            | Self::Lfm2Moe { n_dense, dense_dim, .. } => Some((n_dense, dense_dim)),
            _ => None,
        }
    }

    /// Width of the shared expert, if the family has experts of `ffn_dim` columns and one.
    pub(super) fn shared_dim(self, ffn_dim: usize) -> Option<usize> {
        match self {
            Self::Glm4Moe { .. } | Self::DeepSeek2 { .. } => Some(ffn_dim),
            Self::Mamba { form: MambaForm::NemotronMoe { shared_dim, .. }, .. } => Some(shared_dim),
            _ => None,
        }
    }

    /// True if there are norms over query and key heads.
    pub(super) fn has_head_norms(self) -> bool {
        matches!(
            self,
            Self::Qwen3
                | Self::BitNetEmbedding
                | Self::Qwen3Moe { .. }
                | Self::Qwen35 { .. }
                | Self::Qwen3Next { .. }
                | Self::Gemma3 { .. }
                | Self::Lfm2
                | Self::Lfm2Moe { .. }
        )
    }

    /// True if the model uses RoPE and not learned positions.
    pub(super) fn has_rope(self) -> bool {
        !matches!(self, Self::Gpt2 | Self::Bert)
    }

    /// True if texts begin with BOS.
    pub(super) fn adds_bos(self) -> bool {
        if let Self::Relative(relative) = self {
            return relative.adds_bos;
        }
        matches!(
            self,
            Self::BitNet
                | Self::Llama
                | Self::Mixtral { .. }
                | Self::MiniCpm
                | Self::Gemma3 { .. }
                | Self::Lfm2
                | Self::Lfm2Moe { .. }
                | Self::Gemma2 { .. }
                | Self::Gemma4 { .. }
                | Self::Gemma3n { .. }
                | Self::Mistral3 { .. }
                | Self::Bert
        )
    }
}

/// Full specification of a synthetic model.
#[derive(Clone, Debug)]
pub struct Spec {
    /// `general.name`.
    pub name: String,
    /// Model family, which defines the tensors.
    pub family: Family,
    /// Number of blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Width of the feed-forward hidden layer.
    pub ffn_dim: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Size of the vocabulary; at least the 256 bytes and the special tokens.
    pub n_vocab: usize,
    /// Trained context in positions.
    pub n_ctx: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f32,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// True if the embedding is also the output head.
    pub tied: bool,
    /// True if a block for multi-token prediction (MTP) follows the others (Qwen3.5).
    pub mtp: bool,
    /// `tokenizer.ggml.pre`; published BitNet files do not have it.
    pub pre: Option<&'static str>,
    /// Type of the matrices in the blocks.
    pub ty: &'static dyn QuantType,
    /// Type of the embedding and of the output head.
    pub head_ty: &'static dyn QuantType,
    /// Seed of all random values.
    pub seed: u64,
}

/// A model of a known shape.
#[derive(Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// Description in one line.
    pub about: &'static str,
    family: Family,
    /// Blocks, residual width, feed-forward width.
    size: [usize; 3],
    /// Query heads, KV heads, length of a head.
    heads: [usize; 3],
    n_vocab: usize,
    n_ctx: usize,
    rope_base: f32,
    norm_eps: f32,
    tied: bool,
    /// Default types of the blocks' matrices, and of embedding and head.
    types: [&'static str; 2],
    pre: Option<&'static str>,
}

/// Llama 3.2, the base of all presets. Each sets at least its name, size and heads.
const LLAMA_3: Preset = Preset {
    name: "",
    about: "",
    family: Family::Llama,
    size: [0; 3],
    heads: [0; 3],
    n_vocab: 128_256,
    n_ctx: 131_072,
    rope_base: 500_000.0,
    norm_eps: 1e-5,
    tied: true,
    types: ["f16", "f16"],
    pre: Some("llama-bpe"),
};

impl Preset {
    /// The specification, with `ty` for the blocks' matrices and `head_ty` for embedding and head; `None`
    /// uses the types of the published model.
    ///
    /// # Errors
    /// [`SynthError::Spec`] for an unknown type.
    pub fn spec(&self, ty: Option<&str>, head_ty: Option<&str>, seed: u64) -> Result<Spec, SynthError> {
        let [n_layers, dim, ffn_dim] = self.size;
        let [n_heads, n_kv_heads, head_dim] = self.heads;
        let [usual_ty, usual_head_ty] = self.types;
        Ok(Spec {
            name: format!("synthetic {}", self.name),
            family: self.family,
            n_layers,
            dim,
            ffn_dim,
            n_heads,
            n_kv_heads,
            head_dim,
            n_vocab: self.n_vocab,
            n_ctx: self.n_ctx,
            rope_base: self.rope_base,
            norm_eps: self.norm_eps,
            tied: self.tied,
            mtp: false,
            pre: self.pre,
            ty: type_named("Spec::ty", ty.unwrap_or(usual_ty))?,
            head_ty: type_named("Spec::head_ty", head_ty.unwrap_or(usual_head_ty))?,
            seed,
        })
    }
}

impl Spec {
    /// Larger counts are typing errors, and would overflow the products below.
    const MAX_COUNT: usize = 1 << 24;
    /// More layers would have more tensors than the reader accepts.
    const MAX_LAYERS: usize = 1 << 12;

    pub(super) fn check(&self) -> Result<(), SynthError> {
        if !(1..=Self::MAX_LAYERS).contains(&self.n_layers) {
            let detail = format!("want 1 to {}, found {}", Self::MAX_LAYERS, self.n_layers);
            return Err(SynthError::Spec { what: "Spec::n_layers", detail });
        }
        let counts = [
            ("Spec::dim", self.dim),
            ("Spec::ffn_dim", self.ffn_dim),
            ("Spec::n_heads", self.n_heads),
            ("Spec::n_kv_heads", self.n_kv_heads),
            ("Spec::head_dim", self.head_dim),
            ("Spec::n_vocab", self.n_vocab),
            ("Spec::n_ctx", self.n_ctx),
        ];
        for (what, count) in counts {
            if !(1..=Self::MAX_COUNT).contains(&count) {
                let detail = format!("want 1 to {}, found {count}", Self::MAX_COUNT);
                return Err(SynthError::Spec { what, detail });
            }
        }
        let refuse = |what, detail| Err(SynthError::Spec { what, detail });
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return refuse(
                "Spec::n_kv_heads",
                format!("want a divisor of {} heads, found {}", self.n_heads, self.n_kv_heads),
            );
        }
        if !self.family.has_rope()
            && (self.n_heads, self.n_heads * self.head_dim) != (self.n_kv_heads, self.dim)
        {
            return refuse(
                "Spec::n_heads",
                "GPT-2 and BERT have equal numbers of heads and KV heads, which fill the width".into(),
            );
        }
        if let Some([n_key_heads, n_value_heads, state_dim]) = self.family.delta_net() {
            let counts = 1..=Self::MAX_COUNT;
            if ![n_key_heads, n_value_heads, state_dim].iter().all(|count| counts.contains(count)) {
                return refuse("Spec::family", format!("{:?}", self.family));
            }
        }
        if self.mtp && !matches!(self.family, Family::Qwen35 { .. }) {
            return refuse(
                "Spec::mtp",
                "want a shape of Qwen3.5 for a block for multi-token prediction".into(),
            );
        }
        if let Family::Mamba { form: _, n_heads, n_groups, head_dim, state_dim } = self.family {
            let counts = 1..=Self::MAX_COUNT;
            let all = [n_heads, n_groups, head_dim, state_dim].iter().all(|count| counts.contains(count));
            if !all || !n_heads.is_multiple_of(n_groups) {
                return refuse("Spec::family", format!("{:?}", self.family));
            }
        }
        if let Family::DeepSeek2 { rope_dims, .. } = self.family
            && self.head_dim <= rope_dims
        {
            let detail = format!("want more than {rope_dims} rotated elements, found {}", self.head_dim);
            return refuse("Spec::head_dim", detail);
        }
        if matches!(self.family, Family::Gemma3Tower(_))
            && (self.n_heads, self.n_heads * self.head_dim) != (self.n_kv_heads, self.dim)
        {
            let detail = "towers have equal numbers of heads and KV heads, which fill the width".into();
            return refuse("Spec::n_heads", detail);
        }
        if !self.head_dim.is_multiple_of(2) {
            return refuse("Spec::head_dim", format!("want an even number, found {}", self.head_dim));
        }
        let least = 256 + self.n_special();
        if self.n_vocab < least {
            return refuse(
                "Spec::n_vocab",
                format!("want at least {least} (256 bytes and special tokens), found {}", self.n_vocab),
            );
        }
        Ok(())
    }

    /// Number of special tokens at the end of the vocabulary.
    pub(super) fn n_special(&self) -> usize {
        match self.family {
            Family::Gpt2 => 1,
            // As in Llama 3, if there is room for them.
            _ if self.n_vocab >= 4096 => 256,
            _ => 4,
        }
    }
}
