//! Dimensions of a checkpoint, from its configuration and its tensors.

use super::ConvertError;
use super::altup::{AltUp, STREAMS};
use super::arch::{Architecture, Change, Dim};
use super::config::Config;
use super::drafts::{DraftKind, Drafts};
use super::gates::Gates;
use super::hybrid::Hybrid;
use super::latent::Latent;
use super::layered::Layered;
use super::recurrent::{Mamba, Recurrent};
use sterna_gguf::Value;

/// Red, green and blue.
pub const CHANNELS: usize = 3;

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
    /// Width of a shared expert that has a share per row.
    pub shared_ffn: Option<usize>,
    /// True if the checkpoint has a block for multi-token prediction (MTP) that is converted.
    pub has_mtp: bool,
    /// Dimensions of the model that a checkpoint drafts for, if it does.
    pub drafts: Option<Drafts>,
    /// Layers with a delta net, for architectures that have them.
    pub hybrid: Option<Hybrid>,
    /// Layers with a short convolution or Mamba-2, for architectures that have them.
    pub recurrent: Option<Recurrent>,
    /// Vectors of multi-head latent attention, for architectures that have it.
    pub latent: Option<Latent>,
    /// Residual streams, for architectures with alternating updates.
    pub altup: Option<AltUp>,
    /// Heads and gates, for architectures whose layers have gates of softplus.
    pub gates: Option<Gates>,
    /// Layers of two kinds, for architectures that have them; `head_dim` and so on are those of local layers.
    pub layered: Option<Layered>,
    /// Token types of an encoder.
    pub token_types: usize,
    /// Class names of a classifier; empty names if the configuration has none.
    pub labels: Vec<String>,
    /// Dimensions that only a vision tower has.
    pub tower: Option<TowerShape>,
}

/// Dimensions of a vision tower and its projector, in addition to those that text models have, too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TowerShape {
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Side of the blocks of patches that the projector reads as one.
    pub side: usize,
    /// Width of the text model.
    pub text: usize,
    /// Width between the projector's two matrices, if a key gives it.
    pub projector: usize,
}

/// Experts of all layers but the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sparse {
    /// Layers before the first with experts.
    pub n_dense: usize,
    /// Distance between layers with experts after those.
    pub step: usize,
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
    /// True if the router is a softmax, and not a sigmoid.
    pub softmax: bool,
}

impl Sparse {
    fn read(config: &Config, softmax: bool) -> Result<Self, ConvertError> {
        const SCORES: &str = "scoring_func";
        const METHOD: &str = "topk_method";
        const SCALE: &[&str] = &["routed_scaling_factor", "route_scale", "moe_routed_scaling_factor"];
        const SHARED: &[&str] =
            &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"];
        let or =
            |keys: &[&'static str], default| config.count_or_none(keys).map(|found| found.unwrap_or(default));
        // Their configurations do not name the function, and normalise.
        let of_baidu_or_tencent =
            matches!(config.str(&["model_type"]), Some("ernie4_5_moe" | "hunyuan_v1_moe"));
        let softmax = match config.str(&[SCORES]) {
            None => softmax || of_baidu_or_tencent,
            Some("softmax") => true,
            // The second is dots.llm1's name.
            Some("sigmoid" | "noaux_tc") => false,
            Some(_) => return Err(config.wrong(SCORES, "softmax or sigmoid", config.get(&[SCORES]))),
        };
        let groups = [or(&["n_group"], 1)?, or(&["topk_group"], 1)?];
        if groups[0] > 1 && config.str(&[METHOD]) == Some("group_limited_greedy") {
            let want = "noaux_tc: readers of GGUF rate a group by its two largest scores";
            return Err(config.wrong(METHOD, want, config.get(&[METHOD])));
        }
        let normalise = config.bool(&["norm_topk_prob", "route_norm"]);
        Ok(Self {
            n_dense: n_dense(config)?,
            step: or(&["moe_layer_interval"], 1)?,
            n_shared: or(SHARED, 0)?,
            n_mtp: or(&["num_nextn_predict_layers"], 0)?,
            scale: config.positive(SCALE)?.unwrap_or(1.0),
            normalise: normalise.unwrap_or(!softmax || of_baidu_or_tencent),
            groups,
            softmax,
        })
    }

    /// True for a layer with experts.
    pub fn is_at(&self, layer: usize) -> bool {
        layer >= self.n_dense && (layer + 1).is_multiple_of(self.step)
    }

    /// Writes its keys.
    pub fn write(&self, mut set: impl FnMut(&str, Value)) {
        let count = |n: usize| Value::U32(n as u32);
        set("leading_dense_block_count", count(self.n_dense));
        if self.step > 1 {
            set("interleave_moe_layer_step", count(self.step));
        }
        set("expert_gating_func", count(if self.softmax { 1 } else { 2 }));
        set("expert_weights_scale", Value::F32(self.scale as f32));
        set("expert_weights_norm", Value::Bool(self.normalise));
        set("expert_group_count", count(self.groups[0]));
        set("expert_group_used_count", count(self.groups[1]));
        if self.n_shared > 0 {
            set("expert_shared_count", count(self.n_shared));
        }
    }
}

/// Key heads of a Falcon, if there are fewer than query heads.
fn falcon_kv_heads(config: &Config) -> Result<Option<usize>, ConvertError> {
    if config.bool(&["new_decoder_architecture"]) == Some(true) {
        return config.count(&["num_kv_heads"]);
    }
    // The default is that of FalconConfig.
    Ok(Some(1).filter(|_| config.bool(&["multi_query"]) != Some(false)))
}

impl Shape {
    /// Reads the dimensions. `vocab` is the number of rows of the embedding.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid.
    pub fn read(config: &Config, arch: &Architecture, vocab: usize) -> Result<Self, ConvertError> {
        let hidden = config.require(&["hidden_size", "n_embd"])?;
        let recurrent = arch.recurrent.map(|read| read(config)).transpose()?;
        let attends = recurrent.as_ref().is_none_or(Recurrent::is_hybrid);
        let n_heads = if attends { config.require(&["num_attention_heads", "n_head"])? } else { 1 };
        let n_kv_heads = match config.str(&["model_type"]) {
            Some("falcon") => falcon_kv_heads(config)?,
            // `multi_query`.
            Some("gpt_bigcode") => Some(1),
            _ => config.count(&["num_key_value_heads"])?,
        };
        let n_kv_heads = n_kv_heads.unwrap_or(n_heads);
        if !n_heads.is_multiple_of(n_kv_heads) {
            let found = config.get(&["num_key_value_heads"]);
            return Err(config.wrong("num_key_value_heads", &format!("a divisor of {n_heads}"), found));
        }
        let latent = arch.latent.then(|| Latent::read(config)).transpose()?;
        let head_dim = match &latent {
            Some(latent) => Some(latent.key()),
            // Without attention, that is the length of a recurrence's heads.
            None => {
                if attends {
                    config.count(&["head_dim"])?
                } else {
                    None
                }
            }
        };
        if head_dim.is_none() && !hidden.is_multiple_of(n_heads) {
            let found = config.get(&["num_attention_heads", "n_head"]);
            return Err(config.wrong("num_attention_heads", &format!("a divisor of {hidden}"), found));
        }
        let is_gpt2 = arch.layer_norm;
        // Then all layers have experts, and no key gives the width of a dense network.
        let has_experts_alone = !arch.fused.is_empty();
        let ffn = match config.count(&["intermediate_size", "n_inner", "ffn_hidden_size"])? {
            _ if recurrent.as_ref().is_some_and(|recurrent| recurrent.ffn.is_some()) => {
                recurrent.as_ref().and_then(|recurrent| recurrent.ffn)
            }
            Some(ffn) => Some(ffn),
            None if is_gpt2 => Some(4 * hidden),
            None if has_experts_alone => None,
            None => Some(config.require(&["intermediate_size"])?),
        };
        const EXPERTS: &[&str] = &["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
        let experts = match config.count_or_none(EXPERTS)? {
            _ if recurrent.as_ref().is_some_and(|recurrent| !recurrent.has_experts) => None,
            _ if arch.latent && arch.dense_first.is_empty() => None,
            Some(n) => {
                let used = config.require(&["num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"])?;
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
        let n_layers = match &recurrent {
            Some(recurrent) => recurrent.layers.len(),
            None => config.require(&["num_hidden_layers", "n_layer", "num_layers"])?,
        };
        let has_head_dim = head_dim.is_some();
        let head_dim = head_dim.unwrap_or(hidden / n_heads);
        let hybrid = match arch.delta.is_empty() || recurrent.is_some() {
            true => None,
            false => Some(Hybrid::read(config, arch, n_layers, head_dim)?),
        };
        let mut rules = arch.layer.iter().copied().flatten();
        let has_gates = rules.clone().any(|rule| rule.shape.contains(&Dim::AttnGate));
        let has_shared = recurrent.is_none()
            && (arch.dense_first.is_empty() || has_gates)
            && rules.any(|rule| rule.shape.contains(&Dim::SharedFfn));
        let shared_ffn =
            has_shared.then(|| config.require(&["shared_expert_intermediate_size"])).transpose()?;
        let gates = has_gates.then(|| Gates::read(config, n_layers, n_heads, head_dim)).transpose()?;
        let has_kinds = recurrent.as_ref().is_some_and(|recurrent| !recurrent.ffns.is_empty());
        let has_mixtures = recurrent.as_ref().is_some_and(|recurrent| recurrent.has_experts);
        let has_sparse = !arch.dense_first.is_empty() && (!has_kinds || has_mixtures);
        let sparse = has_sparse.then(|| Sparse::read(config, arch.softmax)).transpose()?;
        let has_layer_inputs = arch.globals.iter().any(|rule| rule.shape.contains(&Dim::LayerInputs));
        let is_assistant = arch.drafts == Some(DraftKind::Assistant);
        let has_layers_of_kinds = has_layer_inputs || is_assistant;
        let kinds = |period| Layered::read(config, [n_layers, n_kv_heads, head_dim], period, is_assistant);
        let layered = has_layers_of_kinds.then(|| kinds(arch.windows.unwrap_or(1))).transpose()?;
        let has_streams = arch.globals.iter().any(|rule| rule.change == Change::StackStreams);
        let altup = has_streams.then(|| AltUp::read(config, n_layers)).transpose()?;
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
            shared_ffn,
            has_mtp: false,
            drafts: None,
            hybrid,
            recurrent,
            latent,
            altup,
            gates,
            layered,
            token_types: config.count(&["type_vocab_size"])?.unwrap_or(0),
            labels: labels(config),
            tower: None,
        })
    }

    /// The dimensions of a vision tower.
    pub fn of_tower(
        tower: TowerShape,
        [n_layers, hidden, ffn, n_heads, head_dim, n_positions]: [usize; 6],
        eps: f64,
    ) -> Self {
        Self {
            n_layers,
            hidden,
            ffn: Some(ffn),
            n_heads,
            n_kv_heads: n_heads,
            head_dim,
            has_head_dim: false,
            vocab: 0,
            n_ctx: n_positions,
            eps,
            experts: None,
            sparse: None,
            shared_ffn: None,
            has_mtp: false,
            drafts: None,
            hybrid: None,
            recurrent: None,
            latent: None,
            altup: None,
            gates: None,
            layered: None,
            token_types: 0,
            labels: Vec::new(),
            tower: Some(tower),
        }
    }

    /// The dimensions of a layer.
    pub fn of_layer(&self, layer: usize) -> Self {
        let mut own = self.clone();
        if let Some(layered) = &self.layered {
            own.ffn = own.ffn.map(|ffn| layered.widens(layer) * ffn);
            (own.head_dim, own.n_kv_heads) = layered.global(layer).unwrap_or((own.head_dim, own.n_kv_heads));
        }
        if let Some(gates) = &self.gates {
            own.n_heads = gates.heads[layer];
        }
        own
    }

    fn model_width(&self) -> usize {
        self.drafts.map_or(0, |drafts| drafts.model_width)
    }

    fn layer_input(&self) -> usize {
        self.layered.as_ref().map_or(0, |layered| layered.layer_input)
    }

    /// Length of a dimension.
    pub fn len(&self, dim: Dim) -> usize {
        let of_delta = |of: fn(&Hybrid) -> usize| self.hybrid.as_ref().map_or(0, of);
        let of_latent = |of: fn(&Latent) -> usize| self.latent.as_ref().map_or(0, of);
        let of_tower = |of: fn(TowerShape) -> usize| self.tower.map_or(0, of);
        let mamba = self.recurrent.as_ref().and_then(|recurrent| recurrent.mamba.as_ref());
        let of_mamba = |of: fn(&Mamba) -> usize| mamba.map_or(0, of);
        match dim {
            Dim::Vocab => self.vocab,
            Dim::Hidden => self.hidden,
            Dim::EmbeddingAndHidden => 2 * self.hidden,
            Dim::ModelHidden => self.model_width(),
            Dim::TwoModelHidden => 2 * self.model_width(),
            Dim::ThreeModelHidden => 3 * self.model_width(),
            Dim::DraftVocab => self.drafts.map_or(0, |drafts| drafts.n_head),
            Dim::Q => self.n_heads * self.head_dim,
            Dim::Kv => self.n_kv_heads * self.head_dim,
            Dim::Qkv => self.len(Dim::Q) + 2 * self.len(Dim::Kv),
            Dim::Head => self.head_dim,
            Dim::Ffn => self.ffn.unwrap_or(0),
            Dim::GateUp => 2 * self.len(Dim::Ffn),
            Dim::Experts => self.experts.map_or(0, |(n, _, _)| n),
            Dim::ExpertInput => {
                let latent = self.recurrent.as_ref().and_then(|recurrent| recurrent.latent);
                latent.unwrap_or(self.hidden)
            }
            Dim::ExpertFfn => self.experts.map_or(0, |(_, _, ffn)| ffn),
            Dim::Positions => self.n_ctx,
            Dim::ExpertGateUp => 2 * self.len(Dim::ExpertFfn),
            Dim::SharedFfn => {
                let of_kinds = self.recurrent.as_ref().and_then(|recurrent| recurrent.shared_ffn);
                let of_experts = |sparse: Sparse| sparse.n_shared * self.len(Dim::ExpertFfn);
                of_kinds.or(self.shared_ffn).or(self.sparse.map(of_experts)).unwrap_or(0)
            }
            Dim::SharedGateUp => 2 * self.len(Dim::SharedFfn),
            Dim::MambaHeads => of_mamba(|mamba| mamba.n_heads),
            Dim::MambaValues => of_mamba(Mamba::values),
            Dim::MambaState => of_mamba(|mamba| mamba.n_groups * mamba.state),
            Dim::MambaChannels => of_mamba(Mamba::channels),
            Dim::MambaInputs => of_mamba(|mamba| mamba.values() + mamba.channels() + mamba.n_heads),
            Dim::MambaGroups => of_mamba(|mamba| mamba.n_groups),
            Dim::MambaGroup => of_mamba(|mamba| mamba.values() / mamba.n_groups),
            Dim::QueryRank => of_latent(|latent| latent.q_rank.unwrap_or(0)),
            Dim::Rank => of_latent(|latent| latent.rank),
            Dim::RankAndRotated => of_latent(|latent| latent.rank + latent.rotated),
            Dim::LatentQ => self.n_heads * of_latent(Latent::key),
            Dim::LatentKv => self.n_heads * of_latent(|latent| latent.plain + latent.value),
            Dim::LatentValues => self.n_heads * of_latent(|latent| latent.value),
            Dim::LatentKey => of_latent(|latent| latent.plain),
            Dim::LatentValue => of_latent(|latent| latent.value),
            Dim::Heads => self.n_heads,
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
            Dim::LayerVocab => self.altup.as_ref().and_then(|altup| altup.vocab).unwrap_or(self.vocab),
            Dim::Streams => STREAMS,
            Dim::StreamPairs => STREAMS * STREAMS,
            Dim::Channels => CHANNELS,
            Dim::Frames | Dim::Tables => 2,
            Dim::Patch => of_tower(|tower| tower.patch),
            Dim::PatchElems => CHANNELS * of_tower(|tower| tower.patch * tower.patch),
            Dim::Joined => self.hidden * of_tower(|tower| tower.side * tower.side),
            Dim::TextHidden => of_tower(|tower| tower.text),
            Dim::Projector => of_tower(|tower| tower.projector),
            Dim::LaurelRank => self.altup.as_ref().map_or(0, |altup| altup.rank),
            Dim::AttnGate => match self.gates.as_ref().is_some_and(|gates| gates.of_heads) {
                true => self.n_heads,
                false => self.len(Dim::Q),
            },
        }
    }
}

/// Number of layers before the first with experts: from the kinds of layers, or from their number.
fn n_dense(config: &Config) -> Result<usize, ConvertError> {
    const KINDS: &str = "mlp_layer_types";
    const KEYS: &[&str] = &["first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"];
    let Some(list) = config.get(&[KINDS]) else {
        return Ok(config.count_or_none(KEYS)?.unwrap_or(0));
    };
    let kinds = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let n_dense = kinds.iter().take_while(|kind| kind.as_str() == Some("dense")).count();
    match kinds[n_dense..].iter().all(|kind| kind.as_str() == Some("sparse")) {
        true => Ok(n_dense),
        false => Err(config.wrong(KINDS, "dense layers, then sparse ones", Some(list))),
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
