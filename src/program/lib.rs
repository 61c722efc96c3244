//! The representation of a model's forward pass: a straight list of stages over declared weights, buffers and
//! KV caches. A program is pure description: it contains no data, knows no device, and prints as text.
//!
//! It must never know a backend, a file format, or an architecture. Start at [`stage`], then [`Program`];
//! `check` verifies every shape once, `cost` counts the bytes of each stage, `part` splits a program, and
//! `vectors` adds stages that make queries and keys readable.
#![forbid(unsafe_code)]

pub mod check;
pub mod cost;
pub mod part;
mod plain;
mod routing;
pub mod sampling;
pub mod stage;
pub mod step;
mod text;
mod vectors;

pub use check::CheckError;
pub use cost::Cost;
pub use part::{Layer, Part};
pub use routing::{Gating, Groups, Routing};
pub use sampling::{Sampling, TokenChange};
pub use stage::{
    Act, ActQuant, AddVector, AltUpCorrect, AltUpPredict, Attend, AttnIn, Axis, Basis, Clamp, Conv, Delta,
    Embed, Expert, Experts, FfnIn, GateAct, HeadProj, LatentIn, Linear, Logits, Lora, Mamba, Norm, NormAdd,
    NormKind, ProjAdd, ProjIn, QkNorm, QueryScale, Rescale, Rope, RopeStyle, STREAMS, Sample, Stage, Xielu,
};
pub use step::{AdapterScale, ImageSpan, KvWindow, PAGE, PageTable, Row, RowStates, StateSlots, Step};
pub use vectors::LayerVectors;

use std::ops::Range;
use std::sync::Arc;

use ggml_types::turboquant::KeyBasis;
use ggml_types::{KvCodec, KvSide, QuantType};

/// A weight that the program reads: index into [`Program::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Weight(pub u32);

/// An activation buffer, `[rows, cols]` f32: index into [`Program::bufs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buf(pub u32);

/// One layer's KV cache: index into [`Program::kvs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kv(pub u32);

/// One layer's recurrent state: index into [`Program::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State(pub u32);

/// A rotary embedding: index into [`Program::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeId(pub u32);

/// A rotated basis: index into [`Program::bases`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BasisId(pub u32);

/// Declaration of a weight, without its bytes.
#[derive(Clone, Debug)]
pub struct WeightDecl {
    /// Name in the file, such as `blk.0.attn_q.weight`; for some rows of a tensor, a name that specifies
    /// them.
    pub name: String,
    /// The tensor of the file whose rows these are, if they are only some of them.
    pub part_of: Option<PartOf>,
    /// Tensor type.
    pub ty: &'static dyn QuantType,
    /// Outputs; 1 for a vector.
    pub rows: usize,
    /// Inputs, contiguous.
    pub cols: usize,
}

impl WeightDecl {
    /// Name in the file of the tensor that it is, or is a part of.
    pub fn tensor(&self) -> &str {
        self.part_of.as_ref().map_or(&self.name, |part| &part.tensor)
    }
}

/// Some rows of a tensor of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOf {
    /// Name in the file.
    pub tensor: String,
    /// Its rows, in the order of the weight's.
    pub rows: Vec<Range<usize>>,
}

/// Number of rows of a buffer in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsOf {
    /// One per row of the step: at most [`Limits::rows`].
    Step,
    /// One per row with logits: at most [`Limits::outputs`].
    Outputs,
}

/// A named activation buffer of f32.
#[derive(Clone, Debug)]
pub struct BufDecl {
    /// `x`, `q`, `y`, `h`, `logits`: the same name on every backend.
    pub name: &'static str,
    /// Number of rows.
    pub rows: RowsOf,
    /// Columns, contiguous.
    pub cols: usize,
}

/// One layer's KV cache: [`Limits::pages`] pages of [`PAGE`] positions per KV head, or
/// [`Limits::sliding_pages`] if it keeps only a sliding window; and [`Limits::exact_pages`] if a codec is
/// windowed.
#[derive(Clone, Debug)]
pub struct KvDecl {
    /// Number of KV heads.
    pub n_kv_heads: usize,
    /// Length of one key or value vector.
    pub head_dim: usize,
    /// Codec of keys.
    pub k: &'static dyn KvCodec,
    /// Codec of values.
    pub v: &'static dyn KvCodec,
    /// Basis of each KV head, `[n_kv_heads]`, if keys [have one](ggml_types::KvForm::has_basis); `None` is
    /// the plain basis of all heads.
    pub basis: Option<Arc<[KeyBasis]>>,
    /// Positions that are kept exactly if a codec is windowed.
    pub window: KvWindow,
    /// Number of newest positions to keep if attention reads no others (sliding window). `None` keeps all.
    pub sliding: Option<u32>,
    /// True if the keys are also the values, which are then not stored; `v` is ignored.
    pub values_are_keys: bool,
}

impl KvDecl {
    /// True if it keeps its newest positions in exact pages.
    pub fn is_windowed(&self) -> bool {
        self.codecs().any(|(codec, _)| codec.windowed())
    }

    /// The codecs of what is stored, each with its side: of keys, and of values unless these are the keys.
    pub fn codecs(&self) -> impl Iterator<Item = (&'static dyn KvCodec, KvSide)> {
        let sides = [(self.k, KvSide::Keys), (self.v, KvSide::Values)];
        sides.into_iter().take(if self.values_are_keys { 1 } else { 2 })
    }

    /// Basis of each KV head, if keys have one: `[n_kv_heads]`.
    ///
    /// # Panics
    /// If the codec does not support the head dimension.
    pub fn bases(&self) -> Option<Arc<[KeyBasis]>> {
        if !self.k.form().has_basis() {
            return None;
        }
        let plain = || KeyBasis::plain(self.head_dim).expect("the program was checked");
        let all_plain = || (0..self.n_kv_heads).map(|_| plain()).collect();
        Some(self.basis.clone().unwrap_or_else(all_plain))
    }

    /// Size of its page pool, exact pages excluded.
    pub fn pages(&self, limits: &Limits) -> usize {
        if self.sliding.is_some() { limits.sliding_pages } else { limits.pages }
    }
}

/// A stage's recurrent state in f32: [`Limits::states`] slots, each for one sequence. It has a matrix of
/// `[head_dim, key_dim]` per head, and the last rows of a convolution; either may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDecl {
    /// Number of value heads, a multiple of the key heads.
    pub n_heads: usize,
    /// Number of query and key heads.
    pub n_key_heads: usize,
    /// Length of a value vector.
    pub head_dim: usize,
    /// Length of a query or key vector; 0 without matrices.
    pub key_dim: usize,
    /// Rows that the convolution reads, including its own; 1 without a convolution.
    pub taps: usize,
}

impl StateDecl {
    /// Head dimensions of a delta net are multiples of this.
    pub const HEAD_DIM_STEP: usize = 16;
    /// Maximum number of rows that a convolution reads.
    pub const MAX_TAPS: usize = 8;

    /// The state of a convolution alone.
    pub fn of_conv(channels: usize, taps: usize) -> Self {
        Self { n_heads: 1, n_key_heads: 1, head_dim: channels, key_dim: 0, taps }
    }

    /// Columns of queries, keys and values together.
    pub fn channels(&self) -> usize {
        2 * self.n_key_heads * self.key_dim + self.n_heads * self.head_dim
    }

    /// Elements of the matrices of one sequence.
    pub fn matrix_elems(&self) -> usize {
        self.n_heads * self.head_dim * self.key_dim
    }

    /// Elements of the rows that the convolution still reads, for one sequence.
    pub fn tail_elems(&self) -> usize {
        (self.taps - 1) * self.channels()
    }

    /// Bytes per sequence.
    pub fn bytes(&self) -> usize {
        (self.matrix_elems() + self.tail_elems()) * size_of::<f32>()
    }
}

/// Limits of the steps that a program must be able to run; a backend allocates for them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows (tokens) of one step.
    pub rows: usize,
    /// Rows of one step that need logits.
    pub outputs: usize,
    /// Sequence slots.
    pub seqs: usize,
    /// KV pages, shared by all sequences.
    pub pages: usize,
    /// Exact pages, for codecs that are [`windowed`](KvCodec::windowed); otherwise 0.
    pub exact_pages: usize,
    /// Pages of sliding-window layers, shared by all sequences; 0 without such layers.
    pub sliding_pages: usize,
    /// Slots of recurrent states, shared by all sequences; 0 without such layers.
    pub states: usize,
}

/// A model's forward pass: declarations, then stages in execution order.
#[derive(Clone, Debug)]
pub struct Program {
    /// Architecture name, for display.
    pub name: String,
    /// The largest step.
    pub limits: Limits,
    /// Weights, in upload order.
    pub weights: Vec<WeightDecl>,
    /// Activation buffers.
    pub bufs: Vec<BufDecl>,
    /// KV caches, one per attention layer.
    pub kvs: Vec<KvDecl>,
    /// Recurrent states, one per recurrent layer.
    pub states: Vec<StateDecl>,
    /// Rotary embeddings.
    pub ropes: Vec<Rope>,
    /// Rotated bases of weights.
    pub bases: Vec<Basis>,
    /// Names of the LoRA adapters whose pairs the stages have.
    pub adapters: Vec<String>,
    /// Label (`3.attn_in`) and stage.
    pub stages: Vec<(String, Stage)>,
}

impl Program {
    /// A program without stages.
    pub fn new(name: impl Into<String>, limits: Limits) -> Self {
        Self {
            name: name.into(),
            limits,
            weights: Vec::new(),
            bufs: Vec::new(),
            kvs: Vec::new(),
            states: Vec::new(),
            ropes: Vec::new(),
            bases: Vec::new(),
            adapters: Vec::new(),
            stages: Vec::new(),
        }
    }

    /// The program without adapters, whose matrices are declared after all other weights.
    #[must_use]
    pub fn without_adapters(&self) -> Self {
        let mut program = self.clone();
        let mut n_weights = program.weights.len();
        let mut clear = |pairs: &mut Vec<Lora>| {
            let all = pairs.drain(..).flat_map(|Lora { adapter: _, a, b, scale: _ }| [a, b]);
            n_weights = all.fold(n_weights, |n, w| n.min(w.0 as usize));
        };
        for (_, stage) in &mut program.stages {
            stage.linears_mut().for_each(|linear| clear(&mut linear.lora));
            if let Stage::Embed(s) = stage {
                clear(&mut s.lora);
            }
        }
        program.weights.truncate(n_weights);
        program.adapters.clear();
        program
    }

    /// Declares a weight of `[rows, cols]`.
    pub fn weight(
        &mut self,
        name: impl Into<String>,
        ty: &'static dyn QuantType,
        rows: usize,
        cols: usize,
    ) -> Weight {
        self.weights.push(WeightDecl { name: name.into(), part_of: None, ty, rows, cols });
        Weight(self.weights.len() as u32 - 1)
    }

    /// Declares a buffer of `cols` columns.
    pub fn buf(&mut self, name: &'static str, rows: RowsOf, cols: usize) -> Buf {
        self.bufs.push(BufDecl { name, rows, cols });
        Buf(self.bufs.len() as u32 - 1)
    }

    /// Declares one layer's KV cache.
    pub fn kv(&mut self, decl: KvDecl) -> Kv {
        self.kvs.push(decl);
        Kv(self.kvs.len() as u32 - 1)
    }

    /// Declares one layer's recurrent state. Ensures at least one slot per sequence.
    pub fn state(&mut self, decl: StateDecl) -> State {
        self.limits.states = self.limits.states.max(self.limits.seqs);
        self.states.push(decl);
        State(self.states.len() as u32 - 1)
    }

    /// Declares a rotary embedding.
    pub fn rope(&mut self, rope: Rope) -> RopeId {
        self.ropes.push(rope);
        RopeId(self.ropes.len() as u32 - 1)
    }

    /// Declares a rotated basis.
    pub fn basis(&mut self, basis: Basis) -> BasisId {
        self.bases.push(basis);
        BasisId(self.bases.len() as u32 - 1)
    }

    /// Appends a stage.
    pub fn push(&mut self, label: impl Into<String>, stage: impl Into<Stage>) {
        self.stages.push((label.into(), stage.into()));
    }

    /// The declaration of a weight.
    pub fn weight_decl(&self, w: Weight) -> &WeightDecl {
        &self.weights[w.0 as usize]
    }

    /// The declaration of a buffer.
    pub fn buf_decl(&self, b: Buf) -> &BufDecl {
        &self.bufs[b.0 as usize]
    }

    /// The declaration of a KV cache.
    pub fn kv_decl(&self, kv: Kv) -> &KvDecl {
        &self.kvs[kv.0 as usize]
    }

    /// The declaration of a recurrent state.
    pub fn state_decl(&self, state: State) -> &StateDecl {
        &self.states[state.0 as usize]
    }

    /// The stage that computes logits, if the program has one.
    pub fn logits(&self) -> Option<&Logits> {
        self.stages.iter().find_map(|(_, stage)| if let Stage::Logits(s) = stage { Some(s) } else { None })
    }

    /// Number of positions with a learned embedding, if the model has position embeddings.
    pub fn learned_positions(&self) -> Option<usize> {
        self.stages.iter().find_map(|(_, stage)| match stage {
            Stage::Embed(s) => Some(self.weight_decl(s.positions?).rows),
            _ => None,
        })
    }

    /// Number of token types with an embedding, 0 if the model has none.
    pub fn token_types(&self) -> usize {
        let of = |(_, stage): &(String, Stage)| match stage {
            Stage::Embed(s) => Some(self.weight_decl(s.types?).rows),
            _ => None,
        };
        self.stages.iter().find_map(of).unwrap_or(0)
    }

    /// The stage that samples tokens, if the program has one.
    pub fn sample(&self) -> Option<&Sample> {
        self.stages.iter().find_map(|(_, stage)| sample_of(stage))
    }

    /// True if one of `stages` samples tokens.
    pub fn samples_in(&self, stages: Range<usize>) -> bool {
        self.stages[stages].iter().any(|(_, stage)| sample_of(stage).is_some())
    }

    /// Number of logits per row that a token is sampled from; 0 without sampling.
    pub fn picked_from(&self) -> usize {
        self.sample().map_or(0, |s| self.buf_decl(s.logits).cols)
    }

    /// The buffer called `name`, for tests and traces.
    pub fn buf_named(&self, name: &str) -> Option<Buf> {
        self.bufs.iter().position(|b| b.name == name).map(|i| Buf(i as u32))
    }

    /// True if a cache keeps its newest positions in exact pages.
    pub fn is_windowed(&self) -> bool {
        self.kvs.iter().any(KvDecl::is_windowed)
    }

    /// Number of newest positions that sliding-window caches keep: the longest of their windows. `None` if
    /// every cache keeps all positions.
    pub fn sliding(&self) -> Option<u32> {
        self.kvs.iter().filter_map(|kv| kv.sliding).max()
    }

    /// The longest sliding window of attention, regardless of the caches.
    pub fn attend_window(&self) -> Option<u32> {
        self.attends().filter_map(|s| s.window).max()
    }

    /// Reduces each cache that is read only through sliding windows to the longest of these windows, in a
    /// pool of `pages` pages.
    pub fn keep_windows(&mut self, pages: usize) {
        for i in 0..self.kvs.len() {
            let of_cache = self.attends().filter(|s| s.kv.0 as usize == i);
            let of_cache = of_cache.map(|s| s.window.filter(|_| s.ahead == 0));
            // `None`, for a stage without a window, makes the result `None`.
            let windows: Option<Vec<u32>> = of_cache.collect();
            self.kvs[i].sliding = windows.and_then(|windows| windows.into_iter().max());
        }
        self.limits.sliding_pages = if self.sliding().is_some() { pages } else { 0 };
    }

    /// True if rows of an image see its later rows in some attention stage, so that an image must not be
    /// split between steps.
    pub fn sees_whole_images(&self) -> bool {
        self.attends().any(|s| s.whole_images)
    }

    /// True if rows of an attention stage see later positions.
    pub fn sees_ahead(&self) -> bool {
        self.attends().any(|s| s.ahead > 0)
    }

    fn attends(&self) -> impl Iterator<Item = &Attend> {
        self.stages.iter().filter_map(|(_, stage)| if let Stage::Attend(s) = stage { Some(s) } else { None })
    }

    /// Maximum number of rows for `rows`.
    pub fn max_rows(&self, rows: RowsOf) -> usize {
        match rows {
            RowsOf::Step => self.limits.rows,
            RowsOf::Outputs => self.limits.outputs,
        }
    }
}

fn sample_of(stage: &Stage) -> Option<&Sample> {
    if let Stage::Sample(s) = stage { Some(s) } else { None }
}
