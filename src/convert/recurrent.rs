//! Configuration of models with layers that have a short convolution or Mamba-2.

use serde_json::Value as Json;

use super::ConvertError;
use super::config::Config;
use sterna_gguf::{Array, Value};

/// Kinds of layers, and the convolution of recurrent ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recurrent {
    /// True for a layer with the convolution or Mamba-2 instead of attention.
    pub layers: Vec<bool>,
    /// True for a layer that is only a feed-forward network; empty if there are none.
    pub ffns: Vec<bool>,
    /// Kernel size of the convolution.
    pub taps: usize,
    /// Width of the feed-forward network, if it is not the configuration's.
    pub ffn: Option<usize>,
    /// Width of the network that every row uses in addition to experts.
    pub shared_ffn: Option<usize>,
    /// True if layers have experts.
    pub has_experts: bool,
    /// Length of the latent vector that experts have as their input, if it is not the residual stream's.
    pub latent: Option<usize>,
    /// Mamba-2 of recurrent layers, or of all; `None` if they have a short convolution.
    pub mamba: Option<Mamba>,
    /// True if queries and keys are rotated, for architectures in which the file specifies it.
    rotates: Option<bool>,
}

/// Sizes of a Mamba-2 layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba {
    /// Heads.
    pub n_heads: usize,
    /// Length of a head.
    pub head_dim: usize,
    /// Groups of heads with the same B and C.
    pub n_groups: usize,
    /// Elements of B and of C.
    pub state: usize,
}

impl Mamba {
    /// Reads the sizes of hybrids, whose keys also name attention's.
    fn read(config: &Config) -> Result<Self, ConvertError> {
        const HEADS: &[&str] = &["mamba_n_heads", "mamba_num_heads"];
        const HEAD: &[&str] = &["mamba_d_head", "mamba_head_dim"];
        const GROUPS: &[&str] = &["mamba_n_groups", "n_groups"];
        Self::read_by(config, [HEADS, HEAD, GROUPS, &["mamba_d_state", "ssm_state_size"]])
    }

    /// Reads the numbers of heads, their length, the number of groups, and the elements of B.
    fn read_by(config: &Config, keys: [&[&'static str]; 4]) -> Result<Self, ConvertError> {
        const LIMITS: &str = "time_step_limit";
        let [heads, head, groups, state] = keys;
        let (n_heads, n_groups) = (config.require(heads)?, config.require(groups)?);
        if !n_heads.is_multiple_of(n_groups) {
            let want = format!("a divisor of the {n_heads} heads");
            return Err(config.wrong(groups[0], &want, config.get(groups)));
        }
        if let Some(limits) = config.get(&[LIMITS]) {
            let (least, most) = (limits[0].as_f64().unwrap_or(0.0), &limits[1]);
            if least > 0.0 || most.as_f64().is_some_and(f64::is_finite) {
                let want = "0 and infinity: readers of GGUF do not limit time steps";
                return Err(config.wrong(LIMITS, want, Some(limits)));
            }
        }
        Ok(Self { n_heads, head_dim: config.require(head)?, n_groups, state: config.require(state)? })
    }

    /// Outputs of all heads together.
    pub fn values(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        self.values() + 2 * self.n_groups * self.state
    }
}

/// Keys of the kernel size of Mamba-2's convolution.
const TAPS: &[&str] = &["mamba_d_conv", "conv_kernel"];

impl Recurrent {
    /// Reads the configuration of LFM2.
    ///
    /// # Errors
    /// [`ConvertError::File`] for a key that is missing or invalid, or has a value that GGUF cannot express.
    pub fn lfm2(config: &Config) -> Result<Self, ConvertError> {
        if config.bool(&["conv_bias"]) == Some(true) {
            return Err(config.wrong("conv_bias", "false", config.get(&["conv_bias"])));
        }
        let n_layers = config.require(&["num_hidden_layers"])?;
        Ok(Self {
            layers: layers(config, n_layers)?,
            taps: config.require(&["conv_L_cache"])?,
            ffn: Some(lfm2_ffn(config)?),
            ..Self::default()
        })
    }

    /// Likewise, with experts; the width of the other networks is not adjusted.
    ///
    /// # Errors
    /// As [`lfm2`](Self::lfm2).
    pub fn lfm2moe(config: &Config) -> Result<Self, ConvertError> {
        Ok(Self { ffn: None, has_experts: true, ..Self::lfm2(config)? })
    }

    /// Reads the configuration of Granite 4 H.
    ///
    /// # Errors
    /// As [`lfm2`](Self::lfm2).
    pub fn granite(config: &Config) -> Result<Self, ConvertError> {
        let n_layers = config.require(&["num_hidden_layers"])?;
        let kinds = kinds(config, "layer_types", &[MAMBA, ATTENTION])?;
        if kinds.len() != n_layers {
            let found = Json::from(kinds.len());
            return Err(config.wrong(
                "layer_types",
                &format!("{n_layers} kinds, one per layer"),
                Some(&found),
            ));
        }
        let shared = config.require(&["shared_intermediate_size"])?;
        let has_experts = config.count_or_none(&["num_local_experts"])?.is_some();
        Ok(Self {
            layers: kinds.into_iter().map(|kind| kind == MAMBA).collect(),
            taps: config.require(TAPS)?,
            ffn: (!has_experts).then_some(shared),
            shared_ffn: Some(shared),
            has_experts,
            mamba: Some(Mamba::read(config)?),
            rotates: Some(config.str(&["position_embedding_type"]) == Some("rope")),
            ..Self::default()
        })
    }

    /// Reads the configuration of Falcon-H1, whose layers have both attention and Mamba-2.
    ///
    /// # Errors
    /// As [`lfm2`](Self::lfm2).
    pub fn falcon(config: &Config) -> Result<Self, ConvertError> {
        const BEFORE: &str = "mamba_norm_before_gate";
        let has_norm = config.bool(&["mamba_rms_norm"]) == Some(true);
        if has_norm && config.bool(&[BEFORE]) != Some(false) {
            let want = "false: readers of GGUF apply the gate first";
            return Err(config.wrong(BEFORE, want, config.get(&[BEFORE])));
        }
        Ok(Self {
            layers: vec![false; config.require(&["num_hidden_layers"])?],
            taps: config.require(TAPS)?,
            mamba: Some(Mamba::read(config)?),
            ..Self::default()
        })
    }

    /// Reads the configuration of Nemotron-H.
    ///
    /// # Errors
    /// As [`lfm2`](Self::lfm2).
    pub fn nemotron(config: &Config) -> Result<Self, ConvertError> {
        let of_pattern = |kind: char| match kind {
            'M' => Ok(MAMBA),
            '*' => Ok(ATTENTION),
            '-' => Ok(MLP),
            'E' => Ok(MIXTURE),
            _ => Err(config.wrong(PATTERN, "only M, *, - and E", config.get(&[PATTERN]))),
        };
        let kinds = match config.str(&[PATTERN]) {
            Some(pattern) => pattern.chars().map(of_pattern).collect::<Result<_, _>>()?,
            None => kinds(config, KINDS, &[MAMBA, ATTENTION, MLP, MIXTURE])?,
        };
        let has_experts = kinds.contains(&MIXTURE);
        if has_experts && kinds.contains(&MLP) {
            let want = "either mlp or moe: files have one width for both";
            return Err(config.wrong(KINDS, want, config.get(&[KINDS, PATTERN])));
        }
        let shared = has_experts.then(|| config.require(&["moe_shared_expert_intermediate_size"]));
        Ok(Self {
            layers: kinds.iter().map(|kind| *kind == MAMBA).collect(),
            ffns: kinds.iter().map(|kind| *kind == MLP || *kind == MIXTURE).collect(),
            // The width of an expert, which marks the layers.
            ffn: has_experts.then(|| config.require(&["moe_intermediate_size"])).transpose()?,
            shared_ffn: shared.transpose()?,
            has_experts,
            latent: config.count(&["moe_latent_size"])?,
            taps: config.require(TAPS)?,
            mamba: Some(Mamba::read(config)?),
            rotates: Some(false),
        })
    }

    /// Reads the configuration of Mamba-2, whose layers have neither attention nor a feed-forward network.
    ///
    /// # Errors
    /// As [`lfm2`](Self::lfm2).
    pub fn mamba2(config: &Config) -> Result<Self, ConvertError> {
        let keys: [&[&str]; 4] = [&["num_heads"], &["head_dim"], &["n_groups"], &["state_size"]];
        Ok(Self {
            layers: vec![true; config.require(&["num_hidden_layers"])?],
            taps: config.require(TAPS)?,
            ffn: Some(0),
            mamba: Some(Mamba::read_by(config, keys)?),
            ..Self::default()
        })
    }

    /// True if there are layers with attention, or with a feed-forward network alone.
    pub fn is_hybrid(&self) -> bool {
        self.layers.contains(&false)
    }

    /// Writes the keys with the architecture's prefix. `ffn` is the width of a feed-forward network. An MTP
    /// block has attention and a feed-forward network.
    pub fn write(
        &self,
        [n_kv_heads, ffn, vocab]: [usize; 3],
        has_mtp: bool,
        mut set: impl FnMut(&str, Value),
    ) {
        let count = |n: usize| Value::U32(n as u32);
        let n_layers = self.layers.len();
        let each = |of: &dyn Fn(usize) -> usize| -> Value {
            let n_blocks = n_layers + usize::from(has_mtp);
            Array::from_i32s((0..n_blocks).map(|layer| of(layer) as i32)).into()
        };
        let is_ffn = |layer: usize| layer == n_layers || self.ffns.get(layer) == Some(&true);
        let attends = |layer: usize| layer == n_layers || !self.layers[layer] && !is_ffn(layer);
        if self.layers.contains(&true) && self.is_hybrid() {
            let kv_heads = |layer| if attends(layer) { n_kv_heads } else { 0 };
            set("attention.head_count_kv", each(&kv_heads));
        }
        if !self.ffns.is_empty() {
            set("feed_forward_length", each(&|layer| if is_ffn(layer) { ffn } else { 0 }));
        }
        set("vocab_size", count(vocab));
        if let Some(ffn) = self.shared_ffn {
            set("expert_shared_feed_forward_length", count(ffn));
        }
        if let Some(rotates) = self.rotates {
            set("rope.scaling.finetuned", Value::Bool(rotates));
        }
        let Some(mamba) = &self.mamba else {
            return set("shortconv.l_cache", count(self.taps));
        };
        set("ssm.conv_kernel", count(self.taps));
        set("ssm.state_size", count(mamba.state));
        set("ssm.group_count", count(mamba.n_groups));
        set("ssm.inner_size", count(mamba.values()));
        set("ssm.time_step_rank", count(mamba.n_heads));
    }
}

/// A kind of layers, by its names in configurations.
type Kind = &'static [&'static str];
const MAMBA: Kind = &["mamba", "linear_attention"];
const ATTENTION: Kind = &["attention", "full_attention"];
const MLP: Kind = &["mlp"];
const MIXTURE: Kind = &["moe"];

/// Keys of the kinds of Nemotron-H's layers.
const KINDS: &str = "layers_block_type";
const PATTERN: &str = "hybrid_override_pattern";

/// True if layers of a Nemotron-H have experts.
pub fn has_mixtures(config: &Config) -> bool {
    match config.str(&[PATTERN]) {
        Some(pattern) => pattern.contains('E'),
        None => {
            let kinds = config.get(&[KINDS]).and_then(Json::as_array);
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.as_str() == Some(MIXTURE[0])))
        }
    }
}

/// The kinds of all layers, each one of `known`.
fn kinds(config: &Config, key: &str, known: &[Kind]) -> Result<Vec<Kind>, ConvertError> {
    let list = config.get(&[key]);
    let kind = |found: &Json| {
        let kind = known.iter().find(|names| found.as_str().is_some_and(|name| names.contains(&name)));
        kind.copied().ok_or_else(|| {
            let names: Vec<&str> = known.iter().flat_map(|names| names.iter().copied()).collect();
            config.wrong(key, &format!("only {}", names.join(", ")), Some(found))
        })
    };
    let all = list.and_then(Json::as_array).filter(|list| !list.is_empty());
    let all = all.ok_or_else(|| config.wrong(key, "a list of the layers' kinds", list))?;
    all.iter().map(kind).collect()
}

/// The layers without attention, from their types or, in older configurations, a list of the others.
fn layers(config: &Config, n_layers: usize) -> Result<Vec<bool>, ConvertError> {
    const TYPES: &str = "layer_types";
    const ATTENDING: &str = "full_attn_idxs";
    if let Some(list) = config.get(&[TYPES]) {
        let recurs = |kind: &Json| match kind.as_str() {
            Some("conv") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        };
        let all: Option<Vec<bool>> = list.as_array().and_then(|kinds| kinds.iter().map(recurs).collect());
        return all.filter(|all| all.len() == n_layers).ok_or_else(|| {
            config.wrong(TYPES, &format!("conv or full_attention for each of {n_layers} layers"), Some(list))
        });
    }
    let list = config.get(&[ATTENDING]);
    let numbers = list.and_then(Json::as_array).map(|list| list.iter().map(Json::as_u64).collect::<Vec<_>>());
    let numbers = numbers.filter(|list| list.iter().all(|at| at.is_some_and(|at| at < n_layers as u64)));
    let numbers = numbers.ok_or_else(|| config.wrong(ATTENDING, "numbers of layers", list))?;
    Ok((0..n_layers as u64).map(|layer| !numbers.contains(&Some(layer))).collect())
}

/// The width of LFM2's feed-forward network: two thirds of the configuration's, times a factor, rounded up.
fn lfm2_ffn(config: &Config) -> Result<usize, ConvertError> {
    let ffn = config.require(&["block_ff_dim", "intermediate_size"])?;
    if config.bool(&["block_auto_adjust_ff_dim"]) == Some(false) {
        return Ok(ffn);
    }
    let multiple = config.count(&["block_multiple_of"])?.unwrap_or(256);
    let factor = config.positive(&["block_ffn_dim_multiplier"])?.unwrap_or(1.0);
    Ok((((2 * ffn / 3) as f64 * factor) as usize).next_multiple_of(multiple))
}
