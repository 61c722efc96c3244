//! Hyperparameters of a model, from the metadata under its architecture's name. Never constants.

use std::fmt::Display;

use super::ModelError;
use sterna_gguf::{Metadata, Value};

/// Hyperparameters. Every count is at least 1 and products of two of them fit a `usize`.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyper {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`, for display.
    pub name: Option<String>,
    /// Trained context in positions.
    pub n_ctx_train: usize,
    /// Number of blocks.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Width of the feed-forward hidden layer; if blocks differ, this and the next two are those of the first
    /// block that has one.
    pub ffn_dim: usize,
    /// Number of query heads; a multiple of the KV heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Per-block values, if blocks differ.
    pub differing: Option<Vec<LayerHyper>>,
    /// Length of one query, key or value vector; even.
    pub head_dim: usize,
    /// Rows of the embedding table.
    pub n_vocab: usize,
    /// Epsilon of every norm.
    pub norm_eps: f32,
    /// Rotary embedding.
    pub rope: RopeHyper,
}

/// Hyperparameters that files may specify per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerHyper {
    /// Width of the feed-forward hidden layer. In a model with recurrent blocks, 0 for one without it.
    pub ffn_dim: usize,
    /// Number of query heads; a multiple of the KV heads. 0 in a model of recurrent blocks alone.
    pub n_heads: usize,
    /// Number of key and value heads. In a model with recurrent blocks, 0 for one without attention.
    pub n_kv_heads: usize,
}

/// One number for all blocks, or one per block.
#[derive(Clone, Debug)]
enum PerLayer {
    All(usize),
    Each(Vec<usize>),
}

impl PerLayer {
    fn of(&self, layer: usize) -> usize {
        match self {
            Self::All(number) => *number,
            Self::Each(numbers) => numbers[layer],
        }
    }

    /// True if the blocks differ: a list of equal numbers above 0 is one number.
    fn is_list(&self) -> bool {
        matches!(self, Self::Each(numbers) if numbers.iter().any(|n| *n == 0 || *n != numbers[0]))
    }

    /// True if it is 0 in all blocks.
    fn is_zero(&self) -> bool {
        matches!(self, Self::Each(numbers) if numbers.iter().all(|n| *n == 0))
    }

    /// The first number above 0, or 1.
    fn first(&self) -> usize {
        match self {
            Self::All(number) => *number,
            Self::Each(numbers) => numbers.iter().copied().find(|number| *number > 0).unwrap_or(1),
        }
    }
}

/// The number under `key`, which may be an array of equal numbers, one for each of `n_layers` layers: tools
/// that prune layers write such arrays.
///
/// # Errors
/// [`ModelError::Metadata`] if the numbers differ or are not one per layer; [`ModelError::Gguf`] if the value
/// is no number.
pub(super) fn number(metadata: &Metadata, key: &str, n_layers: usize) -> Result<Option<usize>, ModelError> {
    let Some(Value::Array(array)) = metadata.get(key) else { return Ok(metadata.usize(key)?) };
    let numbers: Option<Vec<i128>> = array.values().map(|value| value.as_int()).collect();
    let wrong = |want: String, got| Err(ModelError::Metadata { key: key.to_owned(), want, got });
    match numbers.filter(|numbers| numbers.len() == n_layers) {
        None => {
            let got = Value::Array(array.clone()).describe();
            wrong(format!("a number, or an array of {n_layers} integers"), got)
        }
        Some(numbers) if numbers.iter().any(|number| *number != numbers[0]) => {
            wrong("the same number in all layers".to_owned(), by_layer(&numbers))
        }
        Some(numbers) => match usize::try_from(numbers[0]) {
            Ok(number) => Ok(Some(number)),
            Err(_) => wrong("unsigned integers".to_owned(), numbers[0].to_string()),
        },
    }
}

/// Lists the layers of each number: `8 in layers 0 to 3, 4 in layer 4`.
pub(super) fn by_layer<T: Display + PartialEq>(numbers: &[T]) -> String {
    /// Further runs of equal numbers are not listed.
    const RUNS: usize = 6;
    let (mut runs, mut first) = (Vec::new(), 0);
    for run in numbers.chunk_by(|a, b| a == b) {
        let last = first + run.len() - 1;
        runs.push(match run.len() {
            1 => format!("{} in layer {first}", run[0]),
            _ => format!("{} in layers {first} to {last}", run[0]),
        });
        first = last + 1;
    }
    if runs.len() > RUNS {
        runs.truncate(RUNS);
        runs.push("...".to_owned());
    }
    runs.join(", ")
}

/// Parameters of the rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeHyper {
    /// Elements of a head that are rotated; even, at most `head_dim`.
    pub dims: usize,
    /// Base of the frequencies.
    pub freq_base: f64,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
}

/// Scaling of rotary frequencies to contexts beyond the trained one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Factor by which the context is extended.
        factor: f64,
    },
    /// YaRN.
    Yarn {
        /// Factor by which the context is extended.
        factor: f64,
        /// Trained context before the extension.
        original_ctx: f64,
        /// Factor on queries and keys, in addition to YaRN's own.
        attn_factor: f64,
    },
}

/// Keys that [`Hyper::read`] reads, without the architecture's name.
pub(super) const KEYS: [&str; 19] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.kv_lora_rank",
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_feed_forward_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
];

/// Larger than any count of a real model; keeps products of two within 64 bits.
const MAX_COUNT: usize = 1 << 30;

impl Hyper {
    /// Reads and validates the hyperparameters; `n_vocab` is the number of rows of the file's embedding
    /// table.
    ///
    /// # Errors
    /// [`ModelError`] with the key that is missing or invalid.
    pub fn read(metadata: &Metadata, n_vocab: usize) -> Result<Self, ModelError> {
        let architecture = metadata.require_str("general.architecture")?.to_owned();
        let mut keys = Keys { metadata, prefix: &architecture, n_layers: 0 };
        let dim = keys.count("embedding_length")?;
        let n_layers = keys.count("block_count")?;
        keys.n_layers = n_layers;
        let (heads, ffn) = (keys.per_layer("attention.head_count")?, keys.per_layer(keys.ffn())?);
        let kv_heads = match metadata.get(&keys.key("attention.head_count_kv")) {
            Some(_) => keys.per_layer("attention.head_count_kv")?,
            None => heads.clone(),
        };
        let of = |layer| LayerHyper {
            ffn_dim: ffn.of(layer),
            n_heads: heads.of(layer),
            n_kv_heads: kv_heads.of(layer),
        };
        let differs = [&ffn, &heads, &kv_heads].into_iter().any(PerLayer::is_list);
        let differing: Option<Vec<LayerHyper>> = differs.then(|| (0..n_layers).map(of).collect());
        let first = LayerHyper { ffn_dim: ffn.first(), n_heads: heads.first(), n_kv_heads: kv_heads.first() };
        for (layer, hyper) in differing.as_deref().unwrap_or(&[first]).iter().enumerate() {
            let LayerHyper { n_heads, n_kv_heads, .. } = hyper;
            if *n_kv_heads > 0 && !n_heads.is_multiple_of(*n_kv_heads) {
                let place = if differs { format!(" in layer {layer}") } else { String::new() };
                let want = format!("a divisor of the {n_heads} query heads{place}");
                return Err(keys.wrong("attention.head_count_kv", want, n_kv_heads));
            }
        }
        let LayerHyper { ffn_dim, n_heads, n_kv_heads } = first;
        let differ = heads.is_list() && !heads.is_zero();
        if differ && metadata.get(&keys.key("attention.key_length")).is_none() {
            let want = "a key_length if blocks have different numbers of heads";
            return Err(keys.wrong("attention.key_length", want, "none"));
        }
        let head_dim = keys.head_dim(dim, n_heads)?;
        let norm_eps = match keys.f32("attention.layer_norm_rms_epsilon")? {
            Some(eps) => eps,
            None => keys.f32("attention.layer_norm_epsilon")?.ok_or_else(|| {
                let want = "a number, or one in attention.layer_norm_epsilon";
                keys.wrong("attention.layer_norm_rms_epsilon", want, "neither")
            })?,
        };
        if !(norm_eps.is_finite() && norm_eps >= 0.0) {
            return Err(keys.wrong("attention.layer_norm_rms_epsilon", "at least 0", norm_eps));
        }
        if n_vocab == 0 || n_vocab > MAX_COUNT {
            return Err(keys.wrong("vocab_size", "at least 1 token", n_vocab));
        }
        Ok(Self {
            name: metadata.str("general.name")?.map(str::to_owned),
            n_ctx_train: keys.count("context_length")?,
            n_layers,
            ffn_dim,
            differing,
            rope: keys.rope(head_dim)?,
            architecture: architecture.clone(),
            dim,
            n_heads,
            n_kv_heads,
            head_dim,
            n_vocab,
            norm_eps,
        })
    }

    /// Error for layers that differ, in an architecture that does not support that.
    pub(super) fn differ(&self, metadata: &Metadata) -> Option<ModelError> {
        let each = self.differing.as_deref()?;
        let keys = Keys { metadata, prefix: &self.architecture, n_layers: self.n_layers };
        let of = |number: fn(&LayerHyper) -> usize| each.iter().map(number).collect::<Vec<_>>();
        let lists = [
            ("attention.head_count", of(|layer| layer.n_heads)),
            ("attention.head_count_kv", of(|layer| layer.n_kv_heads)),
            (keys.ffn(), of(|layer| layer.ffn_dim)),
        ];
        let (name, numbers) = lists.into_iter().find(|(_, list)| list.iter().any(|n| *n != list[0]))?;
        let want = format!("the same number in all layers of a `{}` model", self.architecture);
        Some(keys.wrong(name, want, by_layer(&numbers)))
    }

    /// The hyperparameters of a block.
    pub fn layer(&self, layer: usize) -> LayerHyper {
        let Self { ffn_dim, n_heads, n_kv_heads, .. } = *self;
        let all = LayerHyper { ffn_dim, n_heads, n_kv_heads };
        self.differing.as_ref().map_or(all, |each| each[layer])
    }
}

/// Metadata under one architecture's name.
struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'a str,
    n_layers: usize,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        debug_assert!(KEYS.contains(&name) || name == "vocab_size", "{name} is missing in KEYS");
        format!("{}.{name}", self.prefix)
    }

    fn wrong(&self, name: &str, want: impl Display, got: impl Display) -> ModelError {
        ModelError::Metadata { key: self.key(name), want: want.to_string(), got: got.to_string() }
    }

    fn f32(&self, name: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.metadata.f32(&self.key(name))?)
    }

    fn count(&self, name: &str) -> Result<usize, ModelError> {
        self.in_range(name, self.metadata.require_usize(&self.key(name))?)
    }

    fn count_or(&self, name: &str, default: usize) -> Result<usize, ModelError> {
        self.in_range(name, number(self.metadata, &self.key(name), self.n_layers)?.unwrap_or(default))
    }

    fn in_range(&self, name: &str, count: usize) -> Result<usize, ModelError> {
        match count {
            1..=MAX_COUNT => Ok(count),
            _ => Err(self.wrong(name, format_args!("1 to {MAX_COUNT}"), count)),
        }
    }

    /// Key of the width of feed-forward networks: if every layer has experts, a file may specify only theirs.
    fn ffn(&self) -> &'static str {
        const ALL: &str = "feed_forward_length";
        const EXPERT: &str = "expert_feed_forward_length";
        let has = |name: &str| self.metadata.get(&self.key(name)).is_some();
        if !has(ALL) && has(EXPERT) { EXPERT } else { ALL }
    }

    /// True if the file has blocks with a recurrent state, which may lack attention.
    fn recurs(&self) -> bool {
        ["ssm.conv_kernel", "shortconv.l_cache"]
            .iter()
            .any(|name| self.metadata.get(&format!("{}.{name}", self.prefix)).is_some())
    }

    /// A number, or an array with one per block.
    fn per_layer(&self, name: &str) -> Result<PerLayer, ModelError> {
        let Some(Value::Array(array)) = self.metadata.get(&self.key(name)) else {
            // In a model of recurrent blocks alone.
            let has_kv_heads = self.metadata.get(&self.key("attention.head_count_kv")).is_some();
            if self.recurs() && !has_kv_heads && self.metadata.usize(&self.key(name))? == Some(0) {
                return Ok(PerLayer::Each(vec![0; self.n_layers]));
            }
            return self.count(name).map(PerLayer::All);
        };
        let numbers: Option<Vec<i128>> = array.values().map(|value| value.as_int()).collect();
        let numbers = numbers.filter(|numbers| numbers.len() == self.n_layers).ok_or_else(|| {
            let want = format!("a number, or an array of {} integers", self.n_layers);
            self.wrong(name, want, Value::Array(array.clone()).describe())
        })?;
        let least = if self.recurs() && name != "attention.head_count" { 0 } else { 1 };
        let count = |number: &i128| usize::try_from(*number).ok().filter(|n| (least..=MAX_COUNT).contains(n));
        let counts: Option<Vec<usize>> = numbers.iter().map(count).collect();
        let want = format!("{least} to {MAX_COUNT} in each layer");
        counts.map(PerLayer::Each).ok_or_else(|| self.wrong(name, want, by_layer(&numbers)))
    }

    fn head_dim(&self, dim: usize, n_heads: usize) -> Result<usize, ModelError> {
        if self.metadata.get(&self.key("attention.key_length")).is_none() && !dim.is_multiple_of(n_heads) {
            let want = format!("a divisor of the embedding length {dim}, or a key_length");
            return Err(self.wrong("attention.head_count", want, n_heads));
        }
        let head_dim = self.count_or("attention.key_length", dim / n_heads)?;
        if !head_dim.is_multiple_of(2) {
            return Err(self.wrong("attention.key_length", "an even head dimension", head_dim));
        }
        let value_len = self.count_or("attention.value_length", head_dim)?;
        // The keys of multi-head latent attention contain the values.
        let is_latent = self.metadata.get(&self.key("attention.kv_lora_rank")).is_some();
        if value_len != head_dim && !is_latent {
            let want = format!("the key length {head_dim}; other value lengths are not supported");
            return Err(self.wrong("attention.value_length", want, value_len));
        }
        Ok(head_dim)
    }

    fn rope(&self, head_dim: usize) -> Result<RopeHyper, ModelError> {
        let dims = self.count_or("rope.dimension_count", head_dim)?;
        if dims > head_dim || !dims.is_multiple_of(2) {
            let want = format!("an even number up to the head dimension {head_dim}");
            return Err(self.wrong("rope.dimension_count", want, dims));
        }
        let freq_base = self.positive("rope.freq_base", 10000.0)?;
        if freq_base <= 1.0 {
            return Err(self.wrong("rope.freq_base", "a number above 1", freq_base));
        }
        Ok(RopeHyper { dims, freq_base, scaling: self.rope_scaling()? })
    }

    fn rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        let kind = self.metadata.str(&self.key("rope.scaling.type"))?;
        // Files older than `rope.scaling.type` have only a linear factor.
        let factor = match self.f32("rope.scaling.factor")? {
            Some(_) => self.positive("rope.scaling.factor", 1.0)?,
            None => self.positive("rope.scale_linear", 1.0)?,
        };
        match kind {
            Some("none") => Ok(RopeScaling::None),
            None | Some("linear") if factor == 1.0 => Ok(RopeScaling::None),
            None | Some("linear") => Ok(RopeScaling::Linear { factor }),
            Some("yarn") => self.yarn(factor),
            Some(other) => Err(self.wrong("rope.scaling.type", "none, linear or yarn", other)),
        }
    }

    fn yarn(&self, factor: f64) -> Result<RopeScaling, ModelError> {
        /// Far above the values of real models; keeps the factor on queries and keys finite in f32.
        const MOST: f64 = 1e6;
        if !(1.0..=MOST).contains(&factor) {
            return Err(self.wrong("rope.scaling.factor", format_args!("1 to {MOST} for YaRN"), factor));
        }
        const ORIGINAL: &str = "rope.scaling.original_context_length";
        let original_ctx = match self.metadata.get(&self.key(ORIGINAL)) {
            Some(_) => self.count(ORIGINAL)?,
            None => self.count("context_length")?,
        };
        let attn_factor = self.positive("rope.scaling.attn_factor", 1.0)?;
        if attn_factor > MOST {
            return Err(self.wrong("rope.scaling.attn_factor", format_args!("up to {MOST}"), attn_factor));
        }
        Ok(RopeScaling::Yarn { factor, original_ctx: original_ctx as f64, attn_factor })
    }

    fn positive(&self, name: &str, default: f32) -> Result<f64, ModelError> {
        match self.f32(name)?.unwrap_or(default) {
            value if value.is_finite() && value > 0.0 => Ok(value.into()),
            value => Err(self.wrong(name, "a finite number above 0", value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Metadata {
        let mut m = Metadata::default();
        m.set("general.architecture", "bitnet-b1.58");
        for (key, value) in [
            ("context_length", 4096u32),
            ("embedding_length", 2560),
            ("block_count", 30),
            ("feed_forward_length", 6912),
            ("attention.head_count", 20),
            ("attention.head_count_kv", 5),
        ] {
            m.set(format!("bitnet-b1.58.{key}"), value);
        }
        m.set("bitnet-b1.58.attention.layer_norm_rms_epsilon", 1e-5f32);
        m.set("bitnet-b1.58.rope.freq_base", 500000f32);
        m
    }

    #[test]
    fn the_numbers_of_the_2b_model() {
        let h = Hyper::read(&metadata(), 128256).unwrap();
        assert_eq!((h.n_layers, h.dim, h.ffn_dim), (30, 2560, 6912));
        assert_eq!((h.n_heads, h.n_kv_heads, h.head_dim, h.n_ctx_train), (20, 5, 128, 4096));
        assert_eq!(h.rope, RopeHyper { dims: 128, freq_base: 500000.0, scaling: RopeScaling::None });
    }

    #[test]
    fn values_that_make_no_sense_are_refused_by_key() {
        for (key, value) in [
            ("embedding_length", 0u64),
            ("embedding_length", u64::MAX),
            ("block_count", 0),
            ("context_length", 1 << 40),
            ("attention.head_count", 0),
            ("attention.head_count", 7),
            ("attention.head_count_kv", 0),
            ("attention.head_count_kv", 3),
            ("attention.key_length", 127),
            ("attention.value_length", 64),
            ("rope.dimension_count", 256),
            ("rope.dimension_count", 0),
        ] {
            let mut m = metadata();
            m.set(format!("bitnet-b1.58.{key}"), value);
            let message = Hyper::read(&m, 128256).unwrap_err().to_string();
            assert!(message.contains(key), "{key} = {value}: {message}");
        }
        for (key, value) in [
            ("rope.freq_base", 0.0f32),
            ("rope.freq_base", f32::NAN),
            ("rope.scaling.factor", -1.0),
            ("rope.scaling.factor", 0.0),
            ("rope.scaling.factor", f32::NAN),
            ("rope.scale_linear", f32::INFINITY),
            ("attention.layer_norm_rms_epsilon", f32::INFINITY),
        ] {
            let mut m = metadata();
            m.set(format!("bitnet-b1.58.{key}"), value);
            let message = Hyper::read(&m, 128256).unwrap_err().to_string();
            assert!(message.contains(key), "{key} = {value}: {message}");
        }
    }

    #[test]
    fn an_epsilon_that_is_missing_is_named_both_ways() {
        let mut m = metadata();
        m.remove("bitnet-b1.58.attention.layer_norm_rms_epsilon");
        let message = Hyper::read(&m, 128256).unwrap_err().to_string();
        assert!(
            message.contains("layer_norm_rms_epsilon: want a number, or one in attention.layer_norm_eps")
        );
        m.set("bitnet-b1.58.attention.layer_norm_epsilon", 1e-5f32);
        assert_eq!(Hyper::read(&m, 128256).unwrap().norm_eps, 1e-5);
    }

    #[test]
    fn yarn_that_makes_no_sense_is_refused_by_key() {
        for (key, value) in [
            ("factor", 0.0f32),
            ("factor", -4.0),
            ("factor", f32::NAN),
            // Below 1 the logarithm of the factor changes the sign of queries and keys.
            ("factor", 1e-30),
            ("factor", f32::MAX),
            ("attn_factor", 0.0),
            ("attn_factor", -1.0),
            ("attn_factor", f32::NAN),
            ("attn_factor", f32::MAX),
        ] {
            let mut m = metadata();
            m.set("bitnet-b1.58.rope.scaling.type", "yarn");
            m.set("bitnet-b1.58.rope.scaling.factor", 4f32);
            m.set(format!("bitnet-b1.58.rope.scaling.{key}"), value);
            let message = Hyper::read(&m, 128256).unwrap_err().to_string();
            assert!(message.contains(&format!("rope.scaling.{key}: want ")), "{key} = {value}: {message}");
        }
        let mut m = metadata();
        m.set("bitnet-b1.58.rope.scaling.type", "yarn");
        m.set("bitnet-b1.58.rope.scaling.original_context_length", 0u32);
        let message = Hyper::read(&m, 128256).unwrap_err().to_string();
        assert!(message.contains("original_context_length: want 1 to"), "{message}");
    }

    #[test]
    fn counts_are_numbers_or_arrays() {
        use sterna_gguf::Array;
        let with = |key: &str, numbers: &[i32]| {
            let mut m = metadata();
            m.set("bitnet-b1.58.attention.key_length", 128_u32);
            let array = Array::from_i32s(numbers.iter().copied());
            m.set(format!("bitnet-b1.58.{key}"), Value::Array(array));
            Hyper::read(&m, 128256).map_err(|err| err.to_string())
        };
        let plain = Hyper::read(&metadata(), 128256).unwrap();
        assert_eq!(with("attention.head_count_kv", &[5; 30]).unwrap(), plain);
        let mut some = [5; 30];
        some[7] = 4;
        let kv = with("attention.head_count_kv", &some).unwrap();
        assert_eq!([6, 7, 8].map(|layer| kv.layer(layer).n_kv_heads), [5, 4, 5]);
        assert_eq!(kv.layer(7), LayerHyper { ffn_dim: 6912, n_heads: 20, n_kv_heads: 4 });
        let ffn = with("feed_forward_length", &some).unwrap();
        assert_eq!((ffn.layer(0).ffn_dim, ffn.layer(7).ffn_dim), (5, 4));
        for (key, numbers, want) in [
            (
                "attention.head_count",
                vec![20; 29],
                "a number, or an array of 30 integers, file has array of 29 i32",
            ),
            ("attention.head_count_kv", vec![0; 30], "want 1 to"),
            (
                "attention.head_count_kv",
                [[5; 15], [0; 15]].concat(),
                "file has 5 in layers 0 to 14, 0 in layers 15 to 29",
            ),
            ("attention.head_count_kv", vec![-5; 30], "file has -5 in layers 0 to 29"),
            ("attention.head_count_kv", vec![3; 30], "a divisor of the 20 query heads"),
        ] {
            let said = with(key, &numbers).unwrap_err();
            assert!(said.contains(key) && said.contains(want), "{key}: {said}");
        }
    }

    /// Models of recurrent blocks alone have no heads, unless they have KV heads.
    #[test]
    fn recurrent_blocks_alone_need_no_heads() {
        let mut m = metadata();
        m.remove("bitnet-b1.58.attention.head_count_kv");
        for key in ["attention.head_count", "feed_forward_length"] {
            m.set(format!("bitnet-b1.58.{key}"), 0_u32);
        }
        let refused = |m: &Metadata| Hyper::read(m, 128256).unwrap_err().to_string();
        assert!(refused(&m).contains("attention.head_count: want 1 to"));
        m.set("bitnet-b1.58.ssm.conv_kernel", 4_u32);
        let none = LayerHyper { ffn_dim: 0, n_heads: 0, n_kv_heads: 0 };
        assert_eq!(Hyper::read(&m, 128256).unwrap().layer(29), none);
        m.set("bitnet-b1.58.attention.head_count_kv", 5_u32);
        assert!(refused(&m).contains("attention.head_count: want 1 to"));
    }

    #[test]
    fn other_counts_may_be_arrays_of_equal_numbers() {
        use sterna_gguf::{Array, ValueType};
        let plain = Hyper::read(&metadata(), 128256).unwrap();
        for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
            let with = |numbers: &[Value], ty| {
                let mut m = metadata();
                m.set(format!("bitnet-b1.58.{key}"), Value::Array(Array::from_values(ty, numbers)));
                Hyper::read(&m, 128256).map_err(|err| err.to_string())
            };
            let mut numbers = vec![Value::U8(128); 30];
            assert_eq!(with(&numbers, ValueType::U8).unwrap(), plain, "{key}");
            assert_eq!(with(&vec![Value::I64(128); 30], ValueType::I64).unwrap(), plain, "{key}");
            numbers[4] = Value::U8(64);
            let said = with(&numbers, ValueType::U8).unwrap_err();
            assert!(said.contains("128 in layers 0 to 3, 64 in layer 4, 128 in layers 5 to 29"), "{said}");
        }
    }

    #[test]
    fn rope_scaling_by_its_type() {
        let mut m = metadata();
        m.set("bitnet-b1.58.rope.scaling.factor", 4f32);
        assert_eq!(Hyper::read(&m, 9).unwrap().rope.scaling, RopeScaling::Linear { factor: 4.0 });
        m.set("bitnet-b1.58.rope.scaling.type", "yarn");
        m.set("bitnet-b1.58.rope.scaling.original_context_length", 1024u32);
        let yarn = RopeScaling::Yarn { factor: 4.0, original_ctx: 1024.0, attn_factor: 1.0 };
        assert_eq!(Hyper::read(&m, 9).unwrap().rope.scaling, yarn);
        m.set("bitnet-b1.58.rope.scaling.type", "longrope");
        assert!(Hyper::read(&m, 9).unwrap_err().to_string().contains("longrope"));
    }
}
