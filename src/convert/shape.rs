//! Dimensions of a checkpoint, from its configuration and its tensors.

use super::ConvertError;
use super::arch::{Architecture, Dim};
use super::config::Config;
use super::hybrid::Hybrid;
use super::layered::Layered;

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
    /// Layers with a delta net, for architectures that have them.
    pub hybrid: Option<Hybrid>,
    /// Layers of two kinds, for architectures that have them; `head_dim` and so on are those of local layers.
    pub layered: Option<Layered>,
    /// Token types of an encoder.
    pub token_types: usize,
    /// Class names of a classifier; empty names if the configuration has none.
    pub labels: Vec<String>,
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
        let ffn = match config.count(&["intermediate_size", "n_inner"])? {
            Some(ffn) => Some(ffn),
            None if is_gpt2 => Some(4 * hidden),
            None if has_experts_alone => None,
            None => Some(config.require(&["intermediate_size"])?),
        };
        let experts = match config.count(&["num_experts", "num_local_experts"])? {
            Some(n) => {
                let used = config.require(&["num_experts_per_tok"])?;
                if used > n {
                    let found = config.get(&["num_experts_per_tok"]);
                    return Err(config.wrong("num_experts_per_tok", &format!("at most {n}"), found));
                }
                Some((n, used, config.require(&["moe_intermediate_size"])?))
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
        let eps =
            config.positive(&["rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon"])?;
        let n_layers = config.require(&["num_hidden_layers", "n_layer"])?;
        let has_head_dim = head_dim.is_some();
        let head_dim = head_dim.unwrap_or(hidden / n_heads);
        let hybrid = match arch.delta.is_empty() {
            true => None,
            false => Some(Hybrid::read(config, arch, n_layers, head_dim)?),
        };
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
            hybrid,
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
            Dim::SharedFfn => of_delta(|hybrid| hybrid.shared_ffn.unwrap_or(0)),
            Dim::QGate => 2 * self.len(Dim::Q),
            Dim::DeltaHeads => of_delta(|hybrid| hybrid.n_heads),
            Dim::DeltaHead => of_delta(|hybrid| hybrid.head_dim),
            Dim::DeltaValues => of_delta(|hybrid| hybrid.n_heads * hybrid.head_dim),
            Dim::DeltaChannels => of_delta(|hybrid| hybrid.keys() + hybrid.n_heads * hybrid.head_dim),
            Dim::DeltaInputs => self.len(Dim::DeltaChannels) + self.len(Dim::DeltaValues),
            Dim::DeltaRates => 2 * self.len(Dim::DeltaHeads),
            Dim::Taps => of_delta(|_| super::hybrid::TAPS),
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
