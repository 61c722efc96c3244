//! The kernels and their sources. `shaders/` contains them as templates (minijinja): a kernel is one file,
//! which includes the code shared with others and the file of its weight type or codec. Statements such as
//! `#if` and `#include` are on lines of their own, `#{value}` anywhere.

use std::sync::LazyLock;

use ggml_types::KvForm;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, UndefinedBehavior, context, filters};

use super::cache::hash;
use super::kv::{self, Codec, KernelForm, codecs, name_of};
use super::text::wgsl;
use super::weight::{WEIGHT_FORMATS, WeightFormat};
use sterna_program::{PAGE, StateDecl};

/// Threads that share a row of weights.
pub const LANES: u32 = 8;

/// Threads of a workgroup in products and attention.
pub const THREADS: u32 = 64;

/// Elements of a vector of the kernels. Vectors of f32 weights begin at multiples of it in the constants.
pub const VECTOR: usize = 4;

/// Rows of the step per workgroup, by kernel variant: single rows, a few, and tiles of many.
pub const ROWS: [u32; 3] = [1, 8, TILE];

/// Largest number of experts of the routing kernel.
pub const MAX_EXPERTS: usize = 4096;

/// Largest number of elements of a rotated basis per workgroup.
pub const MAX_SPAN: usize = 2048;

/// Largest head dimension of a recurrent state.
pub const MAX_STATE_DIM: usize = 256;

/// Rows of weights and of the step in a tile.
const TILE: u32 = 32;

/// Pairs of elements per thread in attention with the longest heads.
#[cfg(test)]
const MOST_OWN: u32 = (kv::MAX_PLAIN_DIM as u32).div_ceil(2 * THREADS);

/// Kernels and shared code. Weight types and codecs have their own registries.
const FILES: &[(&str, &str)] = &[
    ("activate.wgsl", wgsl!("../shaders/activate.wgsl")),
    ("add_vector.wgsl", wgsl!("../shaders/add_vector.wgsl")),
    ("altup.wgsl", wgsl!("../shaders/altup.wgsl")),
    ("conv.wgsl", wgsl!("../shaders/conv.wgsl")),
    ("cut.wgsl", wgsl!("../shaders/cut.wgsl")),
    ("delta.wgsl", wgsl!("../shaders/delta.wgsl")),
    ("embed.wgsl", wgsl!("../shaders/embed.wgsl")),
    ("experts.wgsl", wgsl!("../shaders/experts.wgsl")),
    ("gate.wgsl", wgsl!("../shaders/gate.wgsl")),
    ("input.wgsl", wgsl!("../shaders/input.wgsl")),
    ("linear.wgsl", wgsl!("../shaders/linear.wgsl")),
    ("weigh.wgsl", wgsl!("../shaders/weigh.wgsl")),
    ("lora.wgsl", wgsl!("../shaders/lora.wgsl")),
    ("mamba.wgsl", wgsl!("../shaders/mamba.wgsl")),
    ("post_norm.wgsl", wgsl!("../shaders/post_norm.wgsl")),
    ("attn_in.wgsl", wgsl!("../shaders/attn_in.wgsl")),
    ("append.wgsl", wgsl!("../shaders/append.wgsl")),
    ("latent_in.wgsl", wgsl!("../shaders/latent_in.wgsl")),
    ("project.wgsl", wgsl!("../shaders/project.wgsl")),
    ("attend.wgsl", wgsl!("../shaders/attend.wgsl")),
    ("attend_tile.wgsl", wgsl!("../shaders/attend_tile.wgsl")),
    ("sample.wgsl", wgsl!("../shaders/sample.wgsl")),
    ("token_types.wgsl", wgsl!("../shaders/token_types.wgsl")),
    ("hadamard.wgsl", wgsl!("../shaders/hadamard.wgsl")),
    ("lib/main.wgsl", wgsl!("../shaders/lib/main.wgsl")),
    ("lib/step.wgsl", wgsl!("../shaders/lib/step.wgsl")),
    ("lib/activation.wgsl", wgsl!("../shaders/lib/activation.wgsl")),
    ("lib/floats.wgsl", wgsl!("../shaders/lib/floats.wgsl")),
    ("lib/norm.wgsl", wgsl!("../shaders/lib/norm.wgsl")),
    ("lib/squares.wgsl", wgsl!("../shaders/lib/squares.wgsl")),
    ("lib/matrix.wgsl", wgsl!("../shaders/lib/matrix.wgsl")),
    ("lib/nibbles.wgsl", wgsl!("../shaders/lib/nibbles.wgsl")),
    ("lib/pairs.wgsl", wgsl!("../shaders/lib/pairs.wgsl")),
    ("lib/halves.wgsl", wgsl!("../shaders/lib/halves.wgsl")),
    ("lib/k_groups.wgsl", wgsl!("../shaders/lib/k_groups.wgsl")),
    ("lib/points.wgsl", wgsl!("../shaders/lib/points.wgsl")),
    ("lib/table.wgsl", wgsl!("../shaders/lib/table.wgsl")),
    ("lib/uneven.wgsl", wgsl!("../shaders/lib/uneven.wgsl")),
    ("lib/cache.wgsl", wgsl!("../shaders/lib/cache.wgsl")),
    ("lib/attention.wgsl", wgsl!("../shaders/lib/attention.wgsl")),
    ("lib/viterbi.wgsl", wgsl!("../shaders/lib/viterbi.wgsl")),
];

/// Capabilities of a device, which select the variant of each kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Threads reduce through subgroup operations.
    pub subgroups: bool,
    /// Dot products of four packed int8 are one instruction.
    pub packed: bool,
    /// A browser compiles the source. It requires WGSL extensions to be enabled by name; naga rejects such a
    /// line.
    pub browser: bool,
    /// Threads that share a row of weights in products with few rows. In other kernels that is [`LANES`].
    pub lanes: u32,
}

/// A storage buffer of a kernel, after the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binding {
    /// The kernel only reads it.
    Read,
    /// The kernel writes it.
    Write,
}

/// The factor that a gate gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum By {
    /// Its sigmoid, per element.
    Sigmoid,
    /// Its sigmoid, one per row.
    Share,
    /// The gate itself, per element.
    Itself,
    /// Its softplus, one per run of elements.
    Softplus,
    /// No gate: xIELU of each element.
    Xielu,
}

/// A kernel. Its source also depends on [`Caps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Embeds tokens from a table of a weight type.
    Embed(&'static str),
    /// Adds rows of a table of token types.
    TokenTypes,
    /// Normalises and quantises inputs, to packed int8 (`ints`) or floats.
    Input { ints: bool },
    /// Multiplies inputs by the weight of a norm, and computes the norm's factors.
    Weigh,
    /// The products of a stage.
    Linear {
        /// `proj_add`, `ffn_in` or `logits`.
        stage: &'static str,
        /// Weight type.
        ty: &'static str,
        /// True if the activations are int8.
        ints: bool,
        /// Rows of the step per workgroup.
        rows: u32,
        /// True if it is a layer of many experts.
        experts: bool,
        /// True if products are multiplied by the factor of a norm. A single row is read before the norm.
        normed: bool,
    },
    /// The products of heads with a matrix each.
    HeadProj {
        /// Weight type.
        ty: &'static str,
        /// Rows of the step per workgroup.
        rows: u32,
    },
    /// The products of several layers with the same input.
    Layers {
        /// Weight type.
        ty: &'static str,
        /// True if the activations are int8.
        ints: bool,
        /// Rows of the step per workgroup.
        rows: u32,
        /// As for `Linear`.
        normed: bool,
        /// True if they are the two layers of a gated linear unit, and the output is that of the unit.
        glu: bool,
    },
    /// Products with the first matrices of LoRA pairs.
    LoraFirst {
        /// Weight type.
        ty: &'static str,
        /// True for the slots of experts.
        experts: bool,
    },
    /// Likewise, but looks up the rows of tokens.
    LoraToken { ty: &'static str },
    /// Products with the second matrices, added to an output.
    LoraSecond { ty: &'static str, experts: bool },
    /// Finishes products that adapters have changed: `act`, `gate` or `cap`.
    Activate(&'static str),
    /// Adds a vector to rows.
    AddVector,
    /// Predicts a residual stream; corrects another one than the active, or the `active` one; or gives
    /// streams equal magnitudes (`rescale`), and computes their `mean`.
    AltUp(&'static str),
    /// Applies the cutoff of a gate, and its activation function.
    Cut,
    /// Chooses the experts of each row.
    Route,
    /// Sorts rows by expert.
    Group,
    /// Adds the weighted products of the experts.
    Mix,
    /// Normalises a `product` and adds it; normalises the `residual` as well; or normalises `rows` in place.
    PostNorm(&'static str),
    /// Normalises rows and rotates them into a basis, or rotates them out of one.
    Hadamard,
    /// Stores keys and values with a codec.
    AttnIn(KvForm),
    /// Encodes full pages with a codec.
    Append(KvForm),
    /// Finishes queries and stores keys of latent attention.
    LatentIn(KvForm),
    /// Projects queries for keys with signs.
    Project,
    /// Attention, by the codecs of keys and values and the pairs of elements per thread. With `ahead`, rows
    /// see later positions; neither codec may be windowed then. With `latent`, keys are also the values.
    Attend { k: KvForm, v: KvForm, own: u32, ahead: bool, latent: bool },
    /// Attention over tiles of rows, by the codecs and the vectors of 4 elements per thread.
    AttendTile { k: KvForm, v: KvForm, quads: u32, ahead: bool },
    /// Merges the splits of attention, and may rotate the output back.
    AttendMerge { rotates: bool },
    /// A convolution with its gates.
    Conv,
    /// Saves the history of a convolution.
    ConvTail,
    /// The recurrence of a Mamba-2 layer.
    Mamba,
    /// Its gate and norm.
    MambaGate,
    /// The recurrence of a delta net.
    Delta,
    /// Saves the history of a delta net's convolution.
    DeltaTail,
    /// Multiplies by a gate.
    Gate { by: By },
    /// Separates interleaved queries and gates.
    SplitGate,
    /// First half of sampling.
    SampleBest,
    /// Second half of sampling.
    Sample,
}

impl Kernel {
    /// Variants of products for rows of the step: the largest number of rows for each. The last takes any.
    pub fn by_rows(of: impl Fn(u32) -> Self) -> Vec<(usize, Self)> {
        let most = |rows| if rows == TILE { usize::MAX } else { rows as usize };
        ROWS.iter().map(|&rows| (most(rows), of(rows))).collect()
    }

    #[cfg(test)]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::SampleBest, Self::Sample, Self::Project, Self::Hadamard, Self::TokenTypes];
        all.extend([Self::Route, Self::Group, Self::Mix, Self::Delta, Self::DeltaTail, Self::SplitGate]);
        all.extend([Self::AddVector, Self::Conv, Self::ConvTail, Self::Mamba, Self::MambaGate]);
        all.extend(["residual", "product", "rows"].map(Self::PostNorm));
        all.extend(["act", "gate", "cap"].map(Self::Activate));
        all.extend(["predict", "correct", "active", "rescale", "mean"].map(Self::AltUp));
        all.push(Self::Cut);
        for ty in super::weight::LORA_TYPES.map(|ty| ty.name()) {
            all.push(Self::LoraToken { ty });
            all.extend([false, true].map(|experts| Self::LoraFirst { ty, experts }));
            all.extend([false, true].map(|experts| Self::LoraSecond { ty, experts }));
        }
        let gates = [By::Sigmoid, By::Share, By::Itself, By::Softplus, By::Xielu];
        all.extend(gates.map(|by| Self::Gate { by }));
        all.extend([true, false].map(|ints| Self::Input { ints }));
        all.push(Self::Weigh);
        all.extend([true, false].map(|rotates| Self::AttendMerge { rotates }));
        for format in WEIGHT_FORMATS.iter().filter(|format| format.ty.is(format.kernels)) {
            let ty = format.ty.name();
            all.push(Self::Embed(ty));
            for stage in ["proj_add", "ffn_in", "logits"] {
                for rows in ROWS {
                    let of = |ints| Self::Linear { stage, ty, ints, rows, experts: false, normed: false };
                    all.extend([false, true].into_iter().filter(|ints| !ints || format.ints).map(of));
                    let is_of_experts = stage != "proj_add" && !format.ints;
                    let float =
                        |experts, normed| Self::Linear { stage, ty, ints: false, rows, experts, normed };
                    all.extend(is_of_experts.then(|| float(true, false)));
                    all.extend((stage == "logits").then(|| float(false, true)));
                }
            }
            for rows in ROWS {
                for glu in [false, true] {
                    let of = |(ints, normed)| Self::Layers { ty, ints, rows, normed, glu };
                    let floats = [(false, false), (false, true)].map(of);
                    all.extend(floats.into_iter().chain(format.ints.then(|| of((true, false)))));
                }
            }
            let of_heads = ROWS.map(|rows| Self::HeadProj { ty, rows });
            all.extend(of_heads.into_iter().filter(|_| !format.ints));
        }
        for Codec { codec: k, form, .. } in codecs() {
            all.push(Self::AttnIn(k));
            all.extend(form.is_windowed().then_some(Self::Append(k)));
            if form.is_for_values() {
                continue;
            }
            if let KernelForm::Elements(_) = form {
                all.push(Self::LatentIn(k));
                let of = |own| Self::Attend { k, v: k, own, ahead: false, latent: true };
                all.extend([1, 2, MOST_OWN].map(of));
                all.push(Self::Attend { k, v: k, own: MOST_OWN, ahead: false, latent: false });
            }
            for v in codecs().filter(|v| !v.form.is_for_keys()).map(|v| v.codec) {
                let is_windowed = form.is_windowed() || codec(v).form.is_windowed();
                for ahead in [false, true].into_iter().filter(|ahead| !(*ahead && is_windowed)) {
                    all.extend([1, 2].map(|own| Self::Attend { k, v, own, ahead, latent: false }));
                    all.extend([1, 2, 4, 8].map(|quads| Self::AttendTile { k, v, quads, ahead }));
                }
            }
        }
        all
    }

    /// Name in messages: `proj_add__i2_s__ints__8`.
    pub fn name(self) -> String {
        match self {
            Self::Embed(ty) => format!("embed__{ty}"),
            Self::Input { ints } => (if ints { "input__ints" } else { "input" }).to_owned(),
            Self::Weigh => "weigh".to_owned(),
            Self::Linear { stage, ty, ints, rows, experts, normed } => {
                let of = if experts { "experts_" } else { "" };
                format!("{of}{stage}__{ty}{}__{rows}", form_of(ints, normed))
            }
            Self::HeadProj { ty, rows } => format!("head_proj__{ty}__{rows}"),
            Self::Layers { ty, ints, rows, normed, glu } => {
                format!("{}__{ty}{}__{rows}", if glu { "glu" } else { "layers" }, form_of(ints, normed))
            }
            Self::LoraFirst { ty, experts: false } => format!("lora_first__{ty}"),
            Self::LoraFirst { ty, experts: true } => format!("experts_lora_first__{ty}"),
            Self::LoraToken { ty } => format!("lora_token__{ty}"),
            Self::LoraSecond { ty, experts: false } => format!("lora_second__{ty}"),
            Self::LoraSecond { ty, experts: true } => format!("experts_lora_second__{ty}"),
            Self::Activate(part) => format!("activate__{part}"),
            Self::AddVector => "add_vector".to_owned(),
            Self::AltUp(part) => format!("altup__{part}"),
            Self::Cut => "cut".to_owned(),
            Self::Route => "route".to_owned(),
            Self::Group => "group".to_owned(),
            Self::Mix => "mix".to_owned(),
            Self::TokenTypes => "token_types".to_owned(),
            Self::PostNorm("product") => "post_norm".to_owned(),
            Self::PostNorm(form) => format!("post_norm__{form}"),
            Self::Hadamard => "hadamard".to_owned(),
            Self::AttnIn(codec) => format!("attn_in__{}", name_of_side(codec)),
            Self::Append(codec) => format!("append__{}", name_of_side(codec)),
            Self::LatentIn(codec) => format!("latent_in__{}", name_of(codec)),
            Self::Project => "project".to_owned(),
            Self::Attend { k, own, latent: true, .. } => format!("attend_latent__{}__{own}", name_of(k)),
            Self::Attend { k, v, own, ahead, latent: false } => {
                let ahead = if ahead { "__ahead" } else { "" };
                format!("attend__{}__{}__{own}{ahead}", name_of(k), name_of(v))
            }
            Self::AttendTile { k, v, quads, ahead } => {
                let ahead = if ahead { "__ahead" } else { "" };
                format!("attend_tile__{}__{}__{quads}{ahead}", name_of(k), name_of(v))
            }
            Self::AttendMerge { rotates } => {
                (if rotates { "attend_merge__rotated" } else { "attend_merge" }).to_owned()
            }
            Self::Conv => "conv".to_owned(),
            Self::ConvTail => "conv_tail".to_owned(),
            Self::Mamba => "mamba".to_owned(),
            Self::MambaGate => "mamba_gate".to_owned(),
            Self::Delta => "delta".to_owned(),
            Self::DeltaTail => "delta_tail".to_owned(),
            Self::Gate { by: By::Sigmoid } => "gate".to_owned(),
            Self::Gate { by: By::Share } => "gate__share".to_owned(),
            Self::Gate { by: By::Itself } => "gate__itself".to_owned(),
            Self::Gate { by: By::Softplus } => "gate__softplus".to_owned(),
            Self::Gate { by: By::Xielu } => "xielu".to_owned(),
            Self::SplitGate => "split_gate".to_owned(),
            Self::SampleBest => "sample_best".to_owned(),
            Self::Sample => "sample".to_owned(),
        }
    }

    /// Its storage buffers, from binding 1 on. The step is always the first.
    pub fn bindings(self) -> &'static [Binding] {
        const R: Binding = Binding::Read;
        const W: Binding = Binding::Write;
        match self {
            Self::Embed(_) => &[R, R, R, R, W],
            Self::Input { .. } | Self::Weigh => &[R, R, R, W, W],
            Self::Linear { experts: true, .. } => &[R, R, R, R, R, W, R, R],
            Self::Linear { normed: true, rows: 1, .. } | Self::Layers { normed: true, rows: 1, .. } => {
                &[R, R, R, R, R, W, R]
            }
            Self::Linear { .. } | Self::HeadProj { .. } | Self::Layers { .. } => &[R, R, R, R, R, W],
            Self::LoraFirst { experts: true, .. } | Self::LoraSecond { experts: true, .. } => {
                &[R, R, R, R, W, R]
            }
            Self::LoraFirst { .. } | Self::LoraSecond { .. } | Self::LoraToken { .. } => &[R, R, R, R, W],
            Self::Activate("gate") => &[R, R, W],
            Self::Activate(_) => &[R, W],
            Self::AddVector => &[R, R, W],
            Self::AltUp("predict") => &[R, R, R, R, R, R, R, W],
            Self::AltUp("correct") => &[R, R, R, R, R, R, W],
            Self::AltUp("active") => &[R, R, R, R, R, W, W],
            Self::AltUp("mean") => &[R, R, W, W, W, W],
            Self::AltUp(_) => &[R, R, W, W, W],
            Self::Cut => &[R, W],
            Self::Route => &[R, R, W, R],
            Self::Group => &[R, W],
            Self::Mix => &[R, R, R, W],
            Self::TokenTypes => &[R, R, W],
            Self::PostNorm("rows") => &[R, R, W],
            Self::PostNorm(_) => &[R, R, R, W],
            Self::Hadamard => &[R, R, R, R, W],
            Self::AttnIn(_) => &[R, R, R, R, W, W, W, W],
            Self::Append(_) => &[R, W, W, W],
            Self::LatentIn(_) => &[R, R, R, R, W, W],
            Self::Project => &[R, R, W],
            Self::Attend { k, .. } if keeps_signs(k) => &[R, R, R, R, R, W, W, R],
            Self::Attend { .. } => &[R, R, R, R, R, W, W],
            Self::AttendTile { k, .. } if keeps_signs(k) => &[R, R, R, R, R, W, R],
            Self::AttendTile { .. } => &[R, R, R, R, R, W],
            Self::AttendMerge { .. } => &[R, R, R, W],
            Self::Conv => &[R, R, R, R, R, R, W],
            Self::ConvTail => &[R, R, R, R, R, W],
            Self::Mamba => &[R, R, R, R, W, W],
            Self::MambaGate => &[R, R, R, W],
            Self::Delta => &[R, R, R, R, R, R, W, W],
            Self::DeltaTail => &[R, R, R, W],
            Self::Gate { by: By::Xielu } => &[R, W],
            Self::Gate { .. } => &[R, R, W],
            Self::SplitGate => &[R, R, W, W],
            Self::SampleBest => &[R, R, W],
            Self::Sample => &[R, R, R, W, W],
        }
    }

    /// Rows of weights, and of the step, per workgroup, if `lanes` threads share a row of weights.
    pub fn tile(self, lanes: u32) -> [u32; 2] {
        match self {
            Self::Linear { rows: TILE, .. }
            | Self::HeadProj { rows: TILE, .. }
            | Self::Layers { rows: TILE, .. } => [TILE; 2],
            Self::Linear { rows, .. } | Self::HeadProj { rows, .. } | Self::Layers { rows, .. } => {
                let (format, ints) = self.of_weights().expect("it has a weight type");
                [THREADS / lanes * self.weight_rows(format, ints, rows), rows]
            }
            Self::Conv | Self::ConvTail | Self::LoraSecond { .. } | Self::Activate(_) => [self.threads(), 1],
            Self::AltUp("predict" | "correct" | "active") => [self.threads(), 1],
            Self::AddVector
            | Self::Mix
            | Self::DeltaTail
            | Self::Gate { .. }
            | Self::SplitGate
            | Self::TokenTypes => [self.threads(), 1],
            _ => [1, 1],
        }
    }

    /// The weight type of products, and whether they are of integers.
    fn of_weights(self) -> Option<(&'static WeightFormat, bool)> {
        let (ty, ints) = match self {
            Self::Linear { ty, ints, .. } | Self::Layers { ty, ints, .. } => (ty, ints),
            Self::HeadProj { ty, .. } => (ty, false),
            _ => return None,
        };
        Some((WeightFormat::named(ty)?, ints))
    }

    /// Rows of each weight per thread, in products of few rows. The two weights of a gated linear unit share
    /// the registers of one.
    fn weight_rows(self, format: &WeightFormat, ints: bool, rows: u32) -> u32 {
        let all = format.weight_rows(ints, rows);
        if matches!(self, Self::Layers { glu: true, .. }) { (all / 2).max(1) } else { all }
    }

    /// Template variables of products: the rows and quads of a chunk that their loops are written out for.
    fn of_products(self) -> Value {
        let rows = match self {
            Self::Linear { rows, .. } | Self::HeadProj { rows, .. } | Self::Layers { rows, .. } => rows,
            _ => TILE,
        };
        let Some((format, ints)) = self.of_weights().filter(|_| rows != TILE) else {
            return context! { runs => false };
        };
        let quads = numbers(format.chunk_elems as u32 / 4);
        let runs = format.runs.filter(|_| !ints);
        let of_runs = runs.map(|runs| {
            let run = |(at, quads): (usize, &[u32])| {
                // The kernels with a table look up two quads at once.
                let (low, high) = quads.split_at(quads.len() / 2);
                let pairs = low.iter().zip(high).flat_map(|(low, high)| [*low, *high]);
                let quads = if runs.has_table { pairs.collect() } else { quads.to_vec() };
                context! { at, quads }
            };
            quads.chunks(runs.elems / 4).enumerate().map(run).collect::<Vec<_>>()
        });
        let n_weight_rows = self.weight_rows(format, ints, rows);
        let n_weights = if matches!(self, Self::Layers { glu: true, .. }) { 2 } else { 1 };
        context! {
            runs => of_runs.map_or(Value::from(false), Value::from),
            has_table => runs.is_some_and(|runs| runs.has_table),
            quads,
            n_weight_rows,
            weight_rows => numbers(n_weight_rows),
            n_all_weight_rows => n_weights * n_weight_rows,
            all_weight_rows => numbers(n_weights * n_weight_rows),
            step_rows => numbers(rows),
        }
    }

    fn threads(self) -> u32 {
        match self {
            Self::Input { .. } | Self::PostNorm(_) | Self::Embed(_) | Self::TokenTypes => 256,
            Self::SampleBest | Self::Sample | Self::Route | Self::Group | Self::Mix | Self::Hadamard => 256,
            Self::AddVector | Self::Conv | Self::ConvTail | Self::Activate(_) => 256,
            Self::AltUp(_) | Self::Cut => 256,
            Self::LoraFirst { .. } | Self::LoraToken { .. } | Self::LoraSecond { .. } => THREADS,
            Self::DeltaTail | Self::Gate { .. } | Self::SplitGate => 256,
            Self::Delta | Self::Mamba => 128,
            Self::MambaGate => 256,
            Self::Linear { .. } | Self::HeadProj { .. } | Self::Layers { .. } => THREADS,
            Self::Weigh | Self::Project => THREADS,
            Self::AttnIn(_) | Self::Append(_) | Self::LatentIn(_) => THREADS,
            Self::Attend { .. } | Self::AttendTile { .. } | Self::AttendMerge { .. } => THREADS,
        }
    }

    /// The WGSL source for a device.
    ///
    /// # Panics
    /// Panics if a template is invalid, which the tests of all variants would find.
    pub fn source(self, caps: Caps) -> String {
        let (file, values) = match self {
            Self::Embed(ty) => ("embed", context! { type => ty }),
            Self::Input { ints } => ("input", context! { ints }),
            Self::Weigh => ("weigh", context! {}),
            Self::Linear { stage, ty, ints, rows, experts: _, normed: _ } => {
                ("linear", context! { stage, type => ty, ints, rows, tiled => rows == TILE })
            }
            Self::HeadProj { ty, rows } => (
                "linear",
                context! { stage => "logits", type => ty, ints => false, rows, tiled => rows == TILE },
            ),
            Self::Layers { ty, ints, rows, normed: _, glu } => {
                let stage = if glu { "glu" } else { "logits" };
                ("linear", context! { stage, type => ty, ints, rows, tiled => rows == TILE })
            }
            Self::LoraFirst { ty, experts: _ } => ("lora", context! { part => "first", type => ty }),
            Self::LoraToken { ty } => ("lora", context! { part => "token", type => ty }),
            Self::LoraSecond { ty, experts: _ } => ("lora", context! { part => "second", type => ty }),
            Self::Activate(part) => ("activate", context! { part }),
            Self::AddVector => ("add_vector", context! {}),
            Self::AltUp(part) => ("altup", context! { part }),
            Self::Cut => ("cut", context! {}),
            Self::Route => ("experts", context! { part => "route", most_experts => MAX_EXPERTS }),
            Self::Group => ("experts", context! { part => "group" }),
            Self::Mix => ("experts", context! { part => "mix" }),
            Self::TokenTypes => ("token_types", context! {}),
            Self::PostNorm(form) => ("post_norm", context! { form }),
            Self::Hadamard => ("hadamard", context! { most_span => MAX_SPAN }),
            Self::AttnIn(form) => {
                let most_head_dim = kv::most_head_dim(codec(form).form);
                ("attn_in", context! { codec => of_codec(form), most_head_dim })
            }
            Self::LatentIn(form) => {
                let most_head_dim = kv::most_head_dim(codec(form).form);
                ("latent_in", context! { codec => of_codec(form), most_head_dim })
            }
            Self::Append(codec) => ("append", context! { codec => of_codec(codec) }),
            Self::Project => ("project", context! {}),
            Self::Attend { k, v, own, ahead: _, latent } => {
                // More decoding than that is better not written out.
                let at_once = match codec(v).form {
                    KernelForm::Elements(_) => 16,
                    KernelForm::Blocks(_) => 8,
                    _ => 1,
                };
                let (rotates, k, v) = (codec(v).form.rotates(), of_codec(k), of_codec(v));
                let most_head_dim = (2 * THREADS * own).max(kv::MAX_HEAD_DIM as u32);
                let loads =
                    context! { n_at_once => at_once, at_once => numbers(at_once), key_words => numbers(16) };
                ("attend", context! { merges => false, k, v, rotates, own, latent, most_head_dim, ..loads })
            }
            Self::AttendTile { k, v, quads, ahead: _ } => {
                let (rotates, k, v) = (codec(v).form.rotates(), of_codec(k), of_codec(v));
                ("attend_tile", context! { k, v, rotates, quads })
            }
            Self::AttendMerge { rotates } => {
                let most_head_dim = if rotates { kv::MAX_HEAD_DIM } else { kv::MAX_PLAIN_DIM };
                ("attend", context! { merges => true, rotates, most_head_dim })
            }
            Self::Conv => ("conv", context! { part => "rows" }),
            Self::ConvTail => ("conv", context! { part => "tail" }),
            Self::Mamba => ("mamba", context! { part => "scan" }),
            Self::MambaGate => ("mamba", context! { part => "gate" }),
            Self::Delta => {
                // Heads have a multiple of these elements.
                let n_at_once = StateDecl::HEAD_DIM_STEP as u32;
                let at_once = numbers(n_at_once);
                ("delta", context! { part => "delta", most_head_dim => MAX_STATE_DIM, n_at_once, at_once })
            }
            Self::DeltaTail => ("delta", context! { part => "tail", most_head_dim => MAX_STATE_DIM }),
            Self::Gate { by: By::Sigmoid } => ("gate", context! { part => "gate" }),
            Self::Gate { by: By::Share } => ("gate", context! { part => "share" }),
            Self::Gate { by: By::Itself } => ("gate", context! { part => "itself" }),
            Self::Gate { by: By::Softplus } => ("gate", context! { part => "softplus" }),
            Self::Gate { by: By::Xielu } => ("gate", context! { part => "xielu" }),
            Self::SplitGate => ("gate", context! { part => "split" }),
            Self::SampleBest => ("sample", context! { best => true }),
            Self::Sample => ("sample", context! { best => false }),
        };
        let Caps { subgroups, packed, browser, lanes } = caps;
        let lanes = match self {
            Self::Linear { .. } | Self::HeadProj { .. } | Self::Layers { .. } | Self::Weigh => lanes,
            _ => LANES,
        };
        let experts = match self {
            Self::Linear { experts, .. } => experts,
            Self::LoraFirst { experts, .. } | Self::LoraSecond { experts, .. } => experts,
            _ => false,
        };
        let adapters =
            matches!(self, Self::LoraFirst { .. } | Self::LoraToken { .. } | Self::LoraSecond { .. });
        let heads = matches!(self, Self::HeadProj { .. });
        let layers = matches!(self, Self::Layers { .. });
        let glu = matches!(self, Self::Layers { glu: true, .. });
        let normed = matches!(self, Self::Linear { normed: true, .. } | Self::Layers { normed: true, .. });
        // The matrix of a workgroup.
        let w = if layers { "matrix" } else { "params.w" };
        let of_encoder = match self {
            Self::Attend { ahead, .. } | Self::AttendTile { ahead, .. } => ahead,
            // RoPE may have several axes.
            Self::AttnIn(_) | Self::TokenTypes => true,
            _ => false,
        };
        // Distances between the threads of a slot whose values are added, one after the other.
        let halvings: Vec<u32> =
            std::iter::successors(Some(lanes / 2), |n| Some(n / 2)).take_while(|n| *n > 0).collect();
        let values = context! { subgroups, packed, browser, of_encoder, adapters, halvings, ..values };
        let values = context! { ..values, ..self.of_products() };
        let all =
            context! { threads => self.threads(), lanes, experts, heads, layers, glu, normed, w, ..values };
        let text = TEMPLATES.get_template(&format!("{file}.wgsl")).and_then(|template| template.render(all));
        text.unwrap_or_else(|err| panic!("{}: {err:#}", self.name()))
    }
}

/// Templates of all kernels, by path in `shaders/`.
static TEMPLATES: LazyLock<Environment<'static>> = LazyLock::new(|| {
    // Only those parts of minijinja that the shaders use: in browsers its size matters.
    let mut templates = Environment::empty();
    templates.add_filter("default", filters::default);
    templates.add_test("defined", minijinja::tests::is_defined);
    let syntax = SyntaxConfig::builder()
        .line_statement_prefix("#")
        .variable_delimiters("#{", "}")
        .lstrip_blocks(true)
        .keep_trailing_newline(true)
        .build();
    templates.set_syntax(syntax.expect("delimiters that differ"));
    templates.set_undefined_behavior(UndefinedBehavior::Strict);
    for (name, text) in texts() {
        templates.add_template_owned(name, text).unwrap_or_else(|err| panic!("{err:#}"));
    }
    templates
});

/// Sources in `shaders/`, with their paths.
fn texts() -> impl Iterator<Item = (String, &'static str)> {
    let types =
        WEIGHT_FORMATS.iter().map(|format| (format!("types/{}.wgsl", format.kernels.name()), format.shader));
    let codecs = codecs().map(|codec| (codec_file(&codec), codec.shader));
    types.chain(codecs).chain(FILES.iter().map(|(name, text)| ((*name).to_owned(), *text)))
}

/// Version, and a hash of the sources of all kernels.
pub fn id() -> String {
    let text: String = texts().map(|(_, text)| text).collect();
    format!("sterna {} with shaders {:016x}", env!("CARGO_PKG_VERSION"), hash(text.as_bytes()))
}

/// Template variables of a codec.
fn of_codec(form: KvForm) -> Value {
    let codec = codec(form);
    let trellises = codec.form.trellises();
    let windows = trellises.iter().map(|trellis| trellis.values().len());
    let groups = trellises.iter().enumerate().map(|(group, trellis)| {
        let branches: Vec<u32> = (0..1 << trellis.bits()).collect();
        let first = windows.clone().take(group).sum::<usize>();
        context! {
            bits => trellis.bits(),
            window => trellis.window(),
            windows => trellis.values().len(),
            mask => branches.len() - 1,
            first,
            branches,
        }
    });
    let form = match codec.form {
        KernelForm::Elements(_) => "elements",
        KernelForm::Blocks(_) => "blocks",
        KernelForm::Lloyd(_) => "lloyd",
        KernelForm::Signs => "signs",
        KernelForm::Split => "split",
        KernelForm::TrellisSplit => "trellis_split",
        KernelForm::Trellis => "trellis",
    };
    context! {
        file => codec_file(&codec),
        form,
        bits => codec.form.bits(),
        rotates => codec.form.rotates(),
        windowed => codec.form.is_windowed(),
        in_basis => codec.form.has_basis(),
        // True if its file decodes vectors, and not code by code.
        reads => codec.form.has_basis() || !trellises.is_empty(),
        parts => page_parts(codec.form),
        trellises => groups.collect::<Vec<_>>(),
        table_words => windows.sum::<usize>() / 4,
        states => trellises.first().map_or(0, |trellis| trellis.states()),
        // Elements of a group of the largest head.
        most_elems => kv::MAX_HEAD_DIM / trellises.len().max(1),
    }
}

fn codec_file(codec: &Codec) -> String {
    format!("kv/{}.wgsl", codec.kernels)
}

fn codec(form: KvForm) -> Codec {
    Codec::of(form).expect("a codec with kernels")
}

fn numbers(n: u32) -> Vec<u32> {
    (0..n).collect()
}

/// The form of products in the name of a kernel.
fn form_of(ints: bool, normed: bool) -> &'static str {
    match (ints, normed) {
        (true, _) => "__ints",
        (false, true) => "__normed",
        (false, false) => "",
    }
}

/// Name of a codec in the name of a kernel that has one side of a cache.
fn name_of_side(form: KvForm) -> String {
    let of_values = if codec(form).form.is_for_values() { "__values" } else { "" };
    format!("{}{of_values}", name_of(form))
}

/// Workgroups that encode a page of a head. With trellis codes, a thread has a state of a position.
pub fn page_parts(form: KernelForm) -> usize {
    form.trellises().first().map_or(1, |trellis| PAGE * trellis.states() / THREADS as usize)
}

fn keeps_signs(k: KvForm) -> bool {
    codec(k).form == KernelForm::Signs
}

#[cfg(test)]
mod tests;
