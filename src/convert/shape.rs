//! Dimensions of a checkpoint, from its configuration and its tensors.

use super::ConvertError;
use super::arch::{Architecture, Dim};
use super::config::Config;
use super::hybrid::Hybrid;
use super::layered::Layered;
use super::recurrent::Recurrent;
use sterna_gguf::Value;

/// Counts and widths.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward network; `None` if experts replace it and no key gives it.
    pub ffn: Option<usize>,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Length of a head.
    pub head_dim: usize,
    /// True if the configuration contains the head length.
    pub has_head_dim: bool,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Trained context length.
    pub n_ctx: usize,
    /// Epsilon of the norms.
    pub eps: f64,
    /// Number of experts, number of active experts, and their width.
    pub experts: Option<(usize, usize, usize)>,
    /// Layers before the first with experts, the width of the shared experts together, and the MTP blocks
    /// after the layers, for architectures whose first layers have no experts.
    pub sparse: Option<Sparse>,
    /// True if the checkpoint has a block for multi-token prediction (MTP) that is converted.
    pub has_mtp: bool,
    /// Layers with a delta net, for architectures that have them.
    pub hybrid: Option<Hybrid>,
    /// Layers with a short convolution, for architectures that have them.
    pub recurrent: Option<Recurrent>,
    /// Layers of two kinds, for architectures that have them; `head_dim` and so on are those of local layers.
    pub layered: Option<Layered>,
    /// Token types of an encoder.
    pub token_types: usize,
    /// Class names of a classifier; empty names if the configuration has none.
    pub labels: Vec<String>,
}

/// Experts of all layers but the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sparse {
    /// Layers before the first with experts.
    pub n_dense: usize,
    /// Experts that every row uses.
    pub n_shared: usize,
    /// Multi-token prediction (MTP) blocks.
    pub n_mtp: usize,
    /// Factor on the weights of the chosen experts.
    pub scale: f64,
    /// True if these weights are divided by their sum.
    pub normalise: bool,
    /// Groups of experts, and how many are used.
    pub groups: [usize; 2],
}

impl Sparse {
    fn read(config: &Config) -> Result<Self, ConvertError> {
        let or = |key: &'static str, default| config.count(&[key]).map(|found| found.unwrap_or(default));
        Ok(Self {
            n_dense: or("first_k_dense_replace", 0)?,
            n_shared: config.require(&["n_shared_experts"])?,
            n_mtp: or("num_nextn_predict_layers", 0)?,
            scale: config.positive(&["routed_scaling_factor"])?.unwrap_or(1.0),
            normalise: config.bool(&["norm_topk_prob"]) != Some(false),
            groups: [or("n_group", 1)?, or("topk_group", 1)?],
        })
    }

    /// Writes its keys; the router is a sigmoid with a bias.
    pub fn write(&self, mut set: impl FnMut(&str, Value)) {
        let count = |n: usize| Value::U32(n as u32);
        set("leading_dense_block_count", count(self.n_dense));
        set("expert_shared_count", count(self.n_shared));
        set("expert_gating_func", count(2));
        set("expert_weights_scale", Value::F32(self.scale as f32));
        set("expert_weights_norm", Value::Bool(self.normalise));
        set("expert_group_count", count(self.groups[0]));
        set("expert_group_used_count", count(self.groups[1]));
        // MTP blocks are not converted.
        set("nextn_predict_layers", count(0));
    }
}

impl Shape {
    /// Reads the dimensions. `vocab` is the number of rows of the embedding.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid.
    pub fn read(config: &Config, arch: &Architecture, vocab: usize) -> Result<Self, ConvertError> {
        let hidden = config.require(&["hidden_size", "n_embd"])?;
        let n_heads = config.require(&["num_attention_heads", "n_head"])?;
        let n_kv_heads = config.count(&["num_key_value_heads"])?.unwrap_or(n_heads);
        if !n_heads.is_multiple_of(n_kv_heads) {
            let found = config.get(&["num_key_value_heads"]);
            return Err(config.wrong("num_key_value_heads", &format!("a divisor of {n_heads}"), found));
        }
        let head_dim = config.count(&["head_dim"])?;
        if head_dim.is_none() && !hidden.is_multiple_of(n_heads) {
            let found = config.get(&["num_attention_heads", "n_head"]);
            return Err(config.wrong("num_attention_heads", &format!("a divisor of {hidden}"), found));
        }
        let is_gpt2 = arch.layer_norm;
        // Then all layers have experts, and no key gives the width of a dense network.
        let has_experts_alone = !arch.fused.is_empty();
        let recurrent = arch.recurrent.map(|read| read(config)).transpose()?;
        let ffn = match config.count(&["intermediate_size", "n_inner"])? {
            _ if recurrent.as_ref().is_some_and(|recurrent| recurrent.ffn.is_some()) => {
                recurrent.as_ref().and_then(|recurrent| recurrent.ffn)
            }
            Some(ffn) => Some(ffn),
            None if is_gpt2 => Some(4 * hidden),
            None if has_experts_alone => None,
            None => Some(config.require(&["intermediate_size"])?),
        };
        let experts = match config.count(&["num_experts", "num_local_experts", "n_routed_experts"])? {
            Some(n) => {
                let used = config.require(&["num_experts_per_tok"])?;
                if used > n {
                    let found = config.get(&["num_experts_per_tok"]);
                    return Err(config.wrong("num_experts_per_tok", &format!("at most {n}"), found));
                }
                Some((n, used, config.require(&[arch.expert_width])?))
            }
            None if has_experts_alone => {
                return Err(config.wrong("num_experts", "a whole number from 1", None));
            }
            None => None,
        };
        let said = config.count(&["vocab_size"])?;
        if said.is_some_and(|said| said > vocab) {
            let want = format!("at most {vocab}, the rows of the embedding");
            return Err(config.wrong("vocab_size", &want, config.get(&["vocab_size"])));
        }
        let eps = config.positive(&[
            "rms_norm_eps",
            "layer_norm_epsilon",
            "layer_norm_eps",
            "norm_eps",
            "norm_epsilon",
        ])?;
        let n_layers = config.require(&["num_hidden_layers", "n_layer"])?;
        let has_head_dim = head_dim.is_some();
        let head_dim = head_dim.unwrap_or(hidden / n_heads);
        let hybrid = match arch.delta.is_empty() || recurrent.is_some() {
            true => None,
            false => Some(Hybrid::read(config, arch, n_layers, head_dim)?),
        };
        let sparse = (!arch.dense_first.is_empty()).then(|| Sparse::read(config)).transpose()?;
        let has_layer_inputs = arch.globals.iter().any(|rule| rule.shape.contains(&Dim::LayerInputs));
        let layered = has_layer_inputs.then(|| Layered::read(config, n_layers, n_kv_heads)).transpose()?;
        // NomicBert gives the positions that it was trained with.
        let most = config.count(&["max_trained_positions"])?.unwrap_or(usize::MAX);
        let n_ctx = config.require(&["max_position_embeddings", "n_positions", "n_ctx"])?.min(most);
        Ok(Self {
            n_layers,
            hidden,
            ffn,
            n_heads,
            n_kv_heads,
            head_dim,
            has_head_dim,
            vocab,
            n_ctx,
            eps: eps.ok_or_else(|| config.wrong("rms_norm_eps", "a number above 0", None))?,
            experts,
            sparse,
            has_mtp: false,
            hybrid,
            recurrent,
            layered,
            token_types: config.count(&["type_vocab_size"])?.unwrap_or(0),
            labels: labels(config),
        })
    }

    /// The dimensions of a layer.
    pub fn of_layer(&self, layer: usize) -> Self {
        let mut own = self.clone();
        if let Some(layered) = &self.layered {
            own.ffn = own.ffn.map(|ffn| layered.widens(layer) * ffn);
            (own.head_dim, own.n_kv_heads) = layered.global(layer).unwrap_or((own.head_dim, own.n_kv_heads));
        }
        own
    }

    fn layer_input(&self) -> usize {
        self.layered.as_ref().map_or(0, |layered| layered.layer_input)
    }

    /// Length of a dimension.
    pub fn len(&self, dim: Dim) -> usize {
        let of_delta = |of: fn(&Hybrid) -> usize| self.hybrid.as_ref().map_or(0, of);
        match dim {
            Dim::Vocab => self.vocab,
            Dim::Hidden => self.hidden,
            Dim::EmbeddingAndHidden => 2 * self.hidden,
            Dim::Q => self.n_heads * self.head_dim,
            Dim::Kv => self.n_kv_heads * self.head_dim,
            Dim::Qkv => self.len(Dim::Q) + 2 * self.len(Dim::Kv),
            Dim::Head => self.head_dim,
            Dim::Ffn => self.ffn.unwrap_or(0),
            Dim::GateUp => 2 * self.len(Dim::Ffn),
            Dim::Experts => self.experts.map_or(0, |(n, _, _)| n),
            Dim::ExpertFfn => self.experts.map_or(0, |(_, _, ffn)| ffn),
            Dim::Positions => self.n_ctx,
            Dim::ExpertGateUp => 2 * self.len(Dim::ExpertFfn),
            Dim::SharedFfn => match &self.sparse {
                Some(sparse) => sparse.n_shared * self.len(Dim::ExpertFfn),
                None => of_delta(|hybrid| hybrid.shared_ffn.unwrap_or(0)),
            },
            Dim::QGate => 2 * self.len(Dim::Q),
            Dim::DeltaHeads => of_delta(|hybrid| hybrid.n_heads),
            Dim::DeltaHead => of_delta(|hybrid| hybrid.head_dim),
            Dim::DeltaValues => of_delta(|hybrid| hybrid.n_heads * hybrid.head_dim),
            Dim::DeltaChannels => of_delta(|hybrid| hybrid.keys() + hybrid.n_heads * hybrid.head_dim),
            Dim::DeltaInputs => self.len(Dim::DeltaChannels) + self.len(Dim::DeltaValues),
            Dim::DeltaRates => 2 * self.len(Dim::DeltaHeads),
            Dim::ConvInputs => 3 * self.hidden,
            Dim::Taps => match &self.recurrent {
                Some(recurrent) => recurrent.taps,
                None => of_delta(|_| super::hybrid::TAPS),
            },
            Dim::One => 1,
            Dim::TokenTypes => self.token_types,
            Dim::Labels => self.labels.len(),
            Dim::LayerInput => self.layer_input(),
            Dim::LayerInputs => self.n_layers * self.layer_input(),
        }
    }
}

/// Class names of a classifier, in order. The default is two classes, as in transformers.
fn labels(config: &Config) -> Vec<String> {
    let Some(named) = config.get(&["id2label"]).and_then(|json| json.as_object()) else {
        return vec![String::new(); 2];
    };
    let mut named: Vec<(u64, String)> = named
        .iter()
        .filter_map(|(id, name)| Some((id.parse().ok()?, name.as_str().unwrap_or_default().to_owned())))
        .collect();
    named.sort();
    named.into_iter().map(|(_, name)| name).collect()
}
