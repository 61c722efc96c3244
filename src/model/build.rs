//! Builder of a model's program: declares weights by their GGUF names, checks each shape, and collects the
//! stages.

use std::collections::HashSet;
use std::ops::Range;

use bytes::Bytes;
use ggml_types::{HostTensor, Ternary, types};

use super::hadamard::Hadamard;
use super::hyper::{self, RopeHyper, RopeScaling};
use super::keys::AskedKeys;
use super::{Hyper, ModelError, Options, Windows, rope};
use sterna_gguf::{FileTensor, Gguf, Metadata, Value};
use sterna_program::{
    ActQuant, Axis, Basis, BasisId, Buf, BufDecl, Embed, Expert, Gating, Groups, Kv, KvDecl, Linear, Logits,
    Norm, NormKind, PartOf, Program, Rope, RopeId, RopeStyle, Routing, RowsOf, Sample, Stage, State,
    StateDecl, Weight,
};

/// Maximum number of experts; larger values are treated as a damaged file.
const MAX_EXPERTS: usize = 4096;

/// Parameters of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    /// Number of experts per layer.
    pub n_experts: usize,
    /// Number of experts used per row.
    pub n_used: usize,
    /// Columns of an expert's hidden layer.
    pub ffn_dim: usize,
}

impl Mixture {
    /// Maximum number of columns of an expert.
    pub const MAX_WIDTH: usize = 1 << 24;
}

/// An MTP block as a program with a KV cache of its own. The caller writes [`hidden`](Self::hidden) before
/// each step.
#[derive(Clone, Debug)]
pub struct MtpBlock {
    /// The forward pass; its buffer `x` is the residual stream. Weights that the trunk also has are declared
    /// with the same names.
    pub program: Program,
    /// `weights[i]` is the file tensor for `program.weights[i]`, not yet read.
    pub weights: Vec<FileTensor>,
    /// In: the normalised row of the position before each row, `[rows, dim]`.
    pub hidden: Buf,
    /// Number of first stages after which a step has written the KV cache.
    pub n_fill: usize,
}

/// A program that is being built, and the file it is built from.
#[derive(Debug)]
pub struct Builder<'a> {
    gguf: &'a Gguf,
    hyper: Hyper,
    options: &'a Options,
    program: Program,
    weights: Vec<FileTensor>,
    notes: Vec<String>,
    /// Names of the tensors that the architecture has requested.
    asked: HashSet<String>,
    /// Metadata keys that it has requested.
    asked_keys: AskedKeys,
    /// The Hadamard rotation of weights, and its declared bases by input length.
    hadamard: Option<Hadamard>,
    bases: Vec<(usize, BasisId)>,
    /// Names of the weights of linear layers.
    layers: HashSet<String>,
    /// The token table, once it is declared.
    table: Option<Weight>,
    /// Norm of the last layer's output, in models without a head.
    last_norm: Option<Norm>,
    /// The MTP block, once it is built.
    mtp: Option<MtpBlock>,
    /// Ends of the layers after which further rows of images are added.
    deepstack: Vec<usize>,
}

impl<'a> Builder<'a> {
    /// Starts the program of the model in `gguf`.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for an invalid rotated basis.
    pub fn new(gguf: &'a Gguf, hyper: Hyper, options: &'a Options) -> Result<Self, ModelError> {
        let program = Program::new(hyper.architecture.clone(), options.limits);
        let (weights, notes, asked) = (Vec::new(), Vec::new(), HashSet::new());
        let (hadamard, bases, layers) = (Hadamard::read(gguf)?, Vec::new(), HashSet::new());
        Ok(Self {
            gguf,
            hyper,
            options,
            program,
            weights,
            notes,
            asked,
            asked_keys: AskedKeys::default(),
            hadamard,
            bases,
            layers,
            table: None,
            last_norm: None,
            mtp: None,
            deepstack: Vec::new(),
        })
    }

    /// Ends the program of a model without a head; its result is `norm` of the last layer's output.
    pub fn ends_with(&mut self, norm: Norm) {
        self.last_norm = Some(norm);
    }

    /// Norm of the last layer's output.
    ///
    /// # Panics
    /// If the program is not complete.
    pub(super) fn last_norm(&self) -> Norm {
        let of_head = || Some(self.program.logits()?.norm.clone());
        self.last_norm.clone().or_else(of_head).expect("a model ends with a head or a norm")
    }

    /// The program so far.
    pub(super) fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    /// The result: the program, its weights, and notes on the file for the user.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for a tensor that the architecture has not requested: the file contains another
    /// model under its name.
    pub fn finish(self) -> Result<(Program, Vec<FileTensor>, Vec<String>), ModelError> {
        let unknown =
            self.hadamard.as_ref().and_then(|hadamard| hadamard.unknown(|name| self.layers.contains(name)));
        if let Some(unknown) = unknown {
            return Err(unknown);
        }
        // Input scales belong to static activation quantisation, which is not used here.
        let is_known = |name: &str| self.asked.contains(name) || name.ends_with(".input_scale");
        match self.gguf.tensors().iter().find(|tensor| !is_known(&tensor.name)) {
            None => {
                let unread = self.asked_keys.notes(self.gguf.metadata(), &self.hyper.architecture);
                Ok((self.program, self.weights, [self.notes, unread].concat()))
            }
            Some(tensor) => {
                let want = format!("no such tensor in a model of architecture `{}`", self.hyper.architecture);
                let got = format!("{} {}", shape(tensor.rows(), tensor.cols()), tensor.type_name);
                Err(wrong(&tensor.name, want, got))
            }
        }
    }

    /// The MTP block, if it was built.
    pub(super) fn take_mtp(&mut self) -> Option<MtpBlock> {
        self.mtp.take()
    }

    /// Number of the program's stages up to the end of a layer, if it has that layer.
    pub(super) fn end_of(&self, layer: usize) -> Option<usize> {
        let prefix = format!("{layer}.");
        let last = self.program.stages.iter().rposition(|(label, _)| label.starts_with(&prefix));
        last.map(|last| last + 1)
    }

    /// Adds further rows of images to the residual stream after each of the first `n` layers, which `key`
    /// counts ([`Model::deepstack`](super::Model::deepstack)).
    ///
    /// # Errors
    /// [`ModelError::Metadata`] if there are fewer layers.
    pub(super) fn deepstack(&mut self, key: &str, n: usize) -> Result<(), ModelError> {
        if !self.options.images {
            return Ok(());
        }
        let ends: Option<Vec<usize>> = (0..n).map(|layer| self.end_of(layer)).collect();
        self.deepstack =
            ends.ok_or_else(|| self.wrong(key, format!("at most the {} layers", self.hyper.n_layers), n))?;
        Ok(())
    }

    /// The ends of layers for [`Model::deepstack`](super::Model::deepstack).
    pub(super) fn take_deepstack(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.deepstack)
    }

    /// True if the program of the MTP block is requested.
    pub(super) fn wants_mtp(&self) -> bool {
        self.options.mtp
    }

    /// Builds the program of the MTP block: `build` declares its weights and pushes its stages, and returns
    /// [`MtpBlock::hidden`] and [`MtpBlock::n_fill`].
    ///
    /// # Errors
    /// Any error of `build`.
    pub(super) fn mtp_block(
        &mut self,
        build: impl FnOnce(&mut Self) -> Result<(Buf, usize), ModelError>,
    ) -> Result<(), ModelError> {
        let program = Program::new(format!("{} (MTP block)", self.hyper.architecture), self.options.limits);
        let trunk = (
            std::mem::replace(&mut self.program, program),
            std::mem::take(&mut self.weights),
            std::mem::take(&mut self.bases),
        );
        let built = build(self);
        let (program, weights, bases) = trunk;
        let program = std::mem::replace(&mut self.program, program);
        let weights = std::mem::replace(&mut self.weights, weights);
        self.bases = bases;
        let (hidden, n_fill) = built?;
        self.mtp = Some(MtpBlock { program, weights, hidden, n_fill });
        Ok(())
    }

    /// True if linear layers of the file have rotated inputs.
    pub(super) fn is_rotated(&self) -> bool {
        self.hadamard.is_some()
    }

    /// A [`projection`](Self::projection) of two vectors of `inputs` elements, one after the other, as the
    /// layers of each, whose products are added.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if it is missing, of another shape, or of a type whose rows have no halves.
    pub(super) fn of_two(
        &mut self,
        stem: &str,
        outputs: usize,
        inputs: usize,
    ) -> Result<[Linear; 2], ModelError> {
        let name = format!("{stem}.weight");
        let whole = self.tensor(&name, outputs, 2 * inputs)?;
        let scale = self.scales(stem, 1)?[0];
        let mut half = |which: &str, second: bool| -> Result<Linear, ModelError> {
            let half = whole.half_rows(format!("{name} {which} half"), second).ok_or_else(|| {
                let want = format!("a type whose rows of {} can be divided in the middle", 2 * inputs);
                wrong(&name, want, whole.ty.name().to_owned())
            })?;
            let w = self.declare(half);
            self.program.weights[w.0 as usize].part_of =
                Some(PartOf { tensor: name.clone(), rows: std::iter::once(0..outputs).collect() });
            Ok(Linear { scale, ..Linear::of(w) })
        };
        Ok([half("first", false)?, half("second", true)?])
    }

    /// Adds a note on the file for the user: one sentence.
    pub fn note(&mut self, sentence: impl Into<String>) {
        self.notes.push(sentence.into());
    }

    /// The model's hyperparameters.
    pub fn hyper(&self) -> &Hyper {
        &self.hyper
    }

    /// Maximum number of positions of a sequence.
    pub fn n_ctx(&self) -> usize {
        self.options.n_ctx
    }

    /// True if prompts may contain images.
    pub fn has_images(&self) -> bool {
        self.options.images
    }

    /// Number of rows of the tensor of this name, if the file has it.
    pub fn rows_of(&self, name: &str) -> Option<usize> {
        Some(self.gguf.find(name)?.rows())
    }

    /// True if the file has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.find(name).is_some()
    }

    /// Declares an activation buffer.
    pub fn buf(&mut self, name: &'static str, rows: RowsOf, cols: usize) -> Buf {
        self.program.buf(name, rows, cols)
    }

    /// The buffer of this name and width, declared at the first call: for layers of several widths.
    pub fn buf_of_width(&mut self, name: &'static str, cols: usize) -> Buf {
        let known = |buf: &BufDecl| buf.name == name && buf.cols == cols;
        let known = self.program.bufs.iter().position(known);
        known.map_or_else(|| self.buf(name, RowsOf::Step, cols), |at| Buf(at as u32))
    }

    /// Columns of a buffer.
    pub fn width_of(&self, buf: Buf) -> usize {
        self.program.buf_decl(buf).cols
    }

    /// Declares one layer's KV cache, with the model's KV heads and the caller's codecs.
    pub fn kv(&mut self) -> Kv {
        self.kv_of(self.hyper.n_kv_heads)
    }

    /// Declares one layer's KV cache of one head, whose keys are also the values.
    pub fn latent_kv(&mut self) -> Kv {
        let kv = self.kv_of(1);
        self.program.kvs[kv.0 as usize].values_are_keys = true;
        kv
    }

    /// Like [`kv`](Self::kv), with another number of KV heads.
    pub fn kv_of(&mut self, n_kv_heads: usize) -> Kv {
        self.kv_of_heads(n_kv_heads, self.hyper.head_dim)
    }

    /// Like [`kv_of`](Self::kv_of), with heads of another length.
    pub fn kv_of_heads(&mut self, n_kv_heads: usize, head_dim: usize) -> Kv {
        self.program.kv(KvDecl {
            n_kv_heads,
            head_dim,
            k: self.options.k,
            v: self.options.v,
            basis: None,
            window: self.options.window,
            sliding: None,
            values_are_keys: false,
        })
    }

    /// Declares one layer's recurrent state.
    pub fn state(&mut self, decl: StateDecl) -> State {
        self.program.state(decl)
    }

    /// The basis of the inputs of a linear layer's weight.
    fn basis_of(&mut self, weight: &str, inputs: usize) -> Result<Option<BasisId>, ModelError> {
        self.layers.insert(weight.to_owned());
        let basis = self.hadamard.as_ref().map(|hadamard| hadamard.of_weight(weight, inputs));
        Ok(basis.transpose()?.flatten().map(|basis| self.declared_basis(basis)))
    }

    fn declared_basis(&mut self, basis: Basis) -> BasisId {
        let inputs = basis.signs.len();
        if let Some((_, id)) = self.bases.iter().find(|(known, _)| *known == inputs) {
            return *id;
        }
        let id = self.program.basis(basis);
        self.bases.push((inputs, id));
        id
    }

    /// True if the file specifies that rows see the whole text.
    pub(super) fn sees_ahead(&self) -> bool {
        matches!(self.value("attention.causal"), Some(Value::Bool(false)))
    }

    /// True if columns of the weights after a delta net are grouped by the keys of its heads.
    pub fn has_grouped_values(&self) -> bool {
        self.hadamard.as_ref().is_some_and(|hadamard| hadamard.grouped)
    }

    /// Declares the model's rotary embedding; its frequencies are divided by `rope_freqs.weight` if the file
    /// has it.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if `rope_freqs.weight` is not one positive number per pair.
    pub fn rope(&mut self, style: RopeStyle) -> Result<RopeId, ModelError> {
        const FACTORS: &str = "rope_freqs.weight";
        let factors = if self.has(FACTORS) { self.rope_factors(FACTORS)? } else { None };
        self.note_unused_yarn()?;
        Ok(self.program.rope(rope::rope(&self.hyper.rope, style, factors.as_deref())))
    }

    /// Declares a rotary embedding that does not depend on the file.
    pub(super) fn declared_rope(&mut self, rope: Rope) -> RopeId {
        self.program.rope(rope)
    }

    /// Like [`rope`](Self::rope), with one axis per pair: M-RoPE.
    ///
    /// # Errors
    /// As [`rope`](Self::rope).
    pub(super) fn rope_of_axes(
        &mut self,
        style: RopeStyle,
        axes: impl Iterator<Item = Axis>,
    ) -> Result<RopeId, ModelError> {
        let id = self.rope(style)?;
        let rope = &mut self.program.ropes[id.0 as usize];
        rope.axes = Some(axes.take(rope.inv_freq.len()).collect());
        Ok(id)
    }

    /// One axis per pair of M-RoPE, by the sections in the file for time, rows and columns: consecutive
    /// pairs, or `interleaved` ones, whose surplus belongs to time. Empty if prompts have no images, because
    /// all positions of a text are equal.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] if the sections are not as many pairs as the heads have.
    pub(super) fn axes(&self, interleaved: bool) -> Result<Vec<Axis>, ModelError> {
        const SECTIONS: &str = "rope.dimension_sections";
        let sections: Vec<i128> = match self.value(SECTIONS) {
            Some(Value::Array(array)) => array.values().filter_map(|value| value.as_int()).collect(),
            _ => Vec::new(),
        };
        if !self.options.images {
            return Ok(Vec::new());
        }
        let n_pairs = self.hyper.rope.dims / 2;
        let [time, rows, columns] = match sections[..] {
            [time, rows, columns] | [time, rows, columns, 0]
                if sections.iter().all(|n| (0..=n_pairs as i128).contains(n))
                    && time + rows + columns == n_pairs as i128 =>
            {
                [time, rows, columns].map(|n| n as usize)
            }
            _ => {
                let want = format!("sections for time, rows and columns with {n_pairs} pairs in total");
                return Err(self.wrong(SECTIONS, want, format!("{sections:?}")));
            }
        };
        let axis = |pair: usize| match (interleaved, pair % 3) {
            (true, 1) if pair < 3 * rows => Axis::Row,
            (true, 2) if pair < 3 * columns => Axis::Column,
            (true, _) => Axis::Time,
            (false, _) if pair < time => Axis::Time,
            (false, _) if pair < time + rows => Axis::Row,
            (false, _) => Axis::Column,
        };
        Ok((0..n_pairs).map(axis).collect())
    }

    /// Like [`rope`](Self::rope), without YaRN's factor on queries and keys. Also returns the factor by which
    /// YaRN extends the context, or 1.
    ///
    /// # Errors
    /// As [`rope`](Self::rope).
    pub fn rope_without_magnitude(&mut self, style: RopeStyle) -> Result<(RopeId, f64), ModelError> {
        let id = self.rope(style)?;
        self.program.ropes[id.0 as usize].magnitude = 1.0;
        match self.hyper.rope.scaling {
            RopeScaling::Yarn { factor, .. } => Ok((id, factor)),
            RopeScaling::None | RopeScaling::Linear { .. } => Ok((id, 1.0)),
        }
    }

    /// Declares a rotary embedding whose frequencies are divided by one of two tables if the file has them:
    /// `rope_factors_long.weight` for contexts beyond the original one, or else `rope_factors_short.weight`.
    /// Queries and keys are multiplied by `rope.scaling.attn_factor` with either.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for a table that is missing or not one positive number per pair;
    /// [`ModelError::Metadata`] for an invalid factor, or for tables with another scaling.
    pub fn long_rope(&mut self, style: RopeStyle) -> Result<RopeId, ModelError> {
        const TABLES: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
        if !TABLES.iter().any(|table| self.has(table)) {
            return self.rope(style);
        }
        const KIND: &str = "rope.scaling.type";
        if self.hyper.rope.scaling != RopeScaling::None {
            return Err(self.wrong(KIND, "no other scaling in a file with RoPE factors", "one"));
        }
        let [short, long] = TABLES.map(|table| self.rope_factors(table));
        let (short, long) = (short?, long?);
        let original = self.number_or("rope.scaling.original_context_length", self.hyper.n_ctx_train)?;
        let factors = if self.n_ctx() > original { long } else { short };
        let magnitude = self.factor("rope.scaling.attn_factor", 1.0)?;
        let rope = rope::rope(&self.hyper.rope, style, factors.as_deref());
        Ok(self.program.rope(Rope { magnitude, ..rope }))
    }

    /// Divisors of the rotary frequencies, one per pair. A header-only file has no tensor data, and memory
    /// planning does not depend on them.
    fn rope_factors(&mut self, name: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let factors = Some(self.values(name, self.hyper.rope.dims / 2)?).filter(|_| !self.gguf.is_header());
        match factors.iter().flatten().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
            Some(bad) => Err(wrong(name, "finite numbers above 0", bad.to_string())),
            None => Ok(factors),
        }
    }

    /// Notes YaRN keys of the file that are ignored, here and in llama.cpp.
    fn note_unused_yarn(&mut self) -> Result<(), ModelError> {
        /// Each with the value that is used instead.
        const UNUSED: [(&str, f32); 4] =
            [("beta_fast", 32.0), ("beta_slow", 1.0), ("attn_factor", 1.0), ("ext_factor", 1.0)];
        for (name, usual) in UNUSED {
            let key = self.key(&format!("rope.scaling.yarn_{name}"));
            let RopeScaling::Yarn { factor, .. } = self.hyper.rope.scaling else { continue };
            // OLMo 3's files have YaRN's own factor there, which is used.
            let own = (1.0 + 0.1 * factor.ln()) as f32;
            let is_used =
                |value: f32| value == usual || name == "attn_factor" && (value / own - 1.0).abs() < 1e-5;
            if let Some(value) = self.gguf.metadata().f32(&key)?.filter(|value| !is_used(*value)) {
                self.note(format!("{key} is {value} in the file and is ignored: {usual} is used"));
            }
        }
        Ok(())
    }

    /// Multiplies YaRN's factor on queries and keys, if the file has YaRN, by a function of the factor by
    /// which the context is extended.
    pub fn scale_yarn(&mut self, by: impl Fn(f64) -> f64) {
        if let RopeScaling::Yarn { factor, attn_factor, .. } = &mut self.hyper.rope.scaling {
            *attn_factor *= by(*factor);
        }
    }

    /// Declares the rotary embedding of sliding-window layers: its base is `rope.freq_base_swa`, or `base` if
    /// the file does not specify one, it rotates `rope.dimension_count_swa` elements, by default as many as
    /// the other layers, and it is never scaled.
    ///
    /// # Errors
    /// [`ModelError::Metadata`].
    pub fn rope_of_windows(&mut self, style: RopeStyle, base: f32) -> Result<RopeId, ModelError> {
        let key = self.key("rope.freq_base_swa");
        let base = self.gguf.metadata().f32(&key)?.unwrap_or(base);
        if !(base.is_finite() && base > 1.0) {
            return Err(ModelError::Metadata { key, want: "a number above 1".into(), got: base.to_string() });
        }
        const DIMS: &str = "rope.dimension_count_swa";
        let (dims, scaling) = (self.number_or(DIMS, self.hyper.rope.dims)?, RopeScaling::None);
        if dims == 0 || dims > self.hyper.rope.dims || !dims.is_multiple_of(2) {
            return Err(self.wrong(DIMS, format!("an even number up to {}", self.hyper.rope.dims), dims));
        }
        let hyper = RopeHyper { dims, freq_base: base.into(), scaling };
        Ok(self.program.rope(rope::rope(&hyper, style, None)))
    }

    /// The layers with a sliding window; if the file has no pattern, all except every `period`-th.
    ///
    /// # Errors
    /// As [`Windows::read`].
    pub fn windows(&self, period: usize) -> Result<Windows, ModelError> {
        self.asked_keys.add("attention.sliding_window");
        self.asked_keys.add("attention.sliding_window_pattern");
        Windows::read(self.gguf.metadata(), &self.hyper.architecture, self.hyper.n_layers, period)
    }

    /// The number of layers without the multi-token prediction (MTP) blocks after them, whose tensors are
    /// ignored.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] if there are no other blocks.
    pub fn trunk(&mut self) -> Result<usize, ModelError> {
        const DRAFTING: &str = "nextn_predict_layers";
        let (n_blocks, drafting) = (self.hyper.n_layers, self.number_or(DRAFTING, 0)?);
        if drafting >= n_blocks {
            return Err(self.wrong(DRAFTING, format!("fewer than the {n_blocks} blocks"), drafting));
        }
        let n_layers = n_blocks - drafting;
        if drafting > 0 {
            self.leave_out(|name| {
                let block = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
                block.and_then(|block| block.parse().ok()).is_some_and(|block: usize| block >= n_layers)
            });
        }
        Ok(n_layers)
    }

    /// Like [`windows`](Self::windows), with the window's default size.
    ///
    /// # Errors
    /// As [`Windows::read`].
    pub fn windows_or(&self, period: usize, size: u32) -> Result<Windows, ModelError> {
        match self.value("attention.sliding_window") {
            Some(_) => self.windows(period),
            None => Ok(Windows::all_but_every(period, size)),
        }
    }

    /// The value of the architecture's `key`, if the file has one.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.gguf.metadata().get(&self.key(key))
    }

    /// All metadata, for keys without the architecture's name.
    pub fn metadata(&self) -> &Metadata {
        self.gguf.metadata()
    }

    /// The number under the architecture's `key`.
    ///
    /// # Errors
    /// [`ModelError::Gguf`] if the file has none.
    pub fn number(&self, key: &str) -> Result<usize, ModelError> {
        match self.count(key)? {
            Some(number) => Ok(number),
            None => Ok(self.gguf.metadata().require_usize(&self.key(key))?),
        }
    }

    /// The number under the architecture's `key`, or `default` if the file does not specify it.
    ///
    /// # Errors
    /// [`ModelError::Gguf`] if it is not such a number.
    pub fn number_or(&self, key: &str, default: usize) -> Result<usize, ModelError> {
        Ok(self.count(key)?.unwrap_or(default))
    }

    /// The number under the architecture's `key`, or that of an array with the same number in all layers.
    fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        hyper::number(self.gguf.metadata(), &self.key(key), self.hyper.n_layers)
    }

    /// Error for an invalid value of the architecture's `key`.
    pub fn wrong(&self, key: &str, want: impl Into<String>, got: impl ToString) -> ModelError {
        ModelError::Metadata { key: self.key(key), want: want.into(), got: got.to_string() }
    }

    /// Marks a key as read: in this file another key takes precedence.
    pub(super) fn overrules(&self, key: &str) {
        self.asked_keys.add(key);
    }

    /// The full name of a key, which is marked as read.
    fn key(&self, name: &str) -> String {
        self.asked_keys.add(name);
        format!("{}.{name}", self.hyper.architecture)
    }

    /// Marks the tensors with matching names as deliberately unused; `false` if there are none.
    pub fn leave_out(&mut self, such: impl Fn(&str) -> bool) -> bool {
        let known = self.asked.len();
        let names = self.gguf.tensors().iter().map(|tensor| &tensor.name);
        self.asked.extend(names.filter(|name| such(name)).cloned());
        self.asked.len() > known
    }

    /// A soft cap under the architecture's `key`, if the file has one.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] if it is not above 0.
    pub fn soft_cap(&self, key: &str) -> Result<Option<f32>, ModelError> {
        let key = self.key(key);
        match self.gguf.metadata().f32(&key)? {
            Some(cap) if !(cap.is_finite() && cap > 0.0) => {
                let want = "a finite number above 0".into();
                Err(ModelError::Metadata { key, want, got: cap.to_string() })
            }
            cap => Ok(cap),
        }
    }

    /// A factor under the architecture's `key`, or `default` if the file does not specify it.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] if it is not from 1e-6 to 1e6.
    pub fn factor(&self, key: &str, default: f32) -> Result<f32, ModelError> {
        let key = self.key(key);
        let factor = self.gguf.metadata().f32(&key)?.unwrap_or(default);
        match (1e-6..=1e6).contains(&factor) {
            true => Ok(factor),
            false => {
                let want = "a number from 1e-6 to 1e6".to_owned();
                Err(ModelError::Metadata { key, want, got: factor.to_string() })
            }
        }
    }

    /// A lookup table, `[rows, cols]`, in the file's type.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if it is missing or of another shape.
    pub fn table(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, ModelError> {
        let tensor = self.tensor(name, rows, cols)?;
        Ok(self.declare(tensor))
    }

    /// A lookup table, `[rows, n * cols]`, as `n` rows of `cols` elements in place of each row.
    ///
    /// # Errors
    /// As [`table`](Self::table), and [`ModelError::Tensor`] if a block of the type would cross two rows.
    pub fn split_table(
        &mut self,
        name: &str,
        rows: usize,
        n: usize,
        cols: usize,
    ) -> Result<Weight, ModelError> {
        let mut tensor = self.tensor(name, rows, n * cols)?;
        let ty = tensor.ty;
        let whole = ty.byte_len(rows, n * cols).ok();
        if ty.rows_together() != 1 || whole.is_none() || ty.byte_len(rows * n, cols).ok() != whole {
            return Err(wrong(name, format!("a type with rows of {cols} elements"), ty.name().to_owned()));
        }
        (tensor.rows, tensor.cols) = (rows * n, cols);
        Ok(self.declare(tensor))
    }

    /// A number, `name` of `[1]`. 1 if the file is only a header, without the numbers.
    ///
    /// # Errors
    /// As [`table`](Self::table); [`ModelError::Tensor`] if it is not finite.
    pub fn scalar(&mut self, name: &str) -> Result<f32, ModelError> {
        let value = self.values(name, 1)?[0];
        match value.is_finite() {
            true if self.gguf.is_header() => Ok(1.0),
            true => Ok(value),
            false => Err(wrong(name, "a finite number", value.to_string())),
        }
    }

    /// A small table, `[rows, cols]`, converted to f32.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub fn table_f32(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, ModelError> {
        self.floats(name, rows, cols, (rows, cols))
    }

    /// A vector, `[len]`, converted to f32.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub fn vector(&mut self, name: &str, len: usize) -> Result<Weight, ModelError> {
        self.floats(name, 1, len, (1, len))
    }

    /// The rows of a matrix, `[rows, cols]`, as one vector of f32.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub fn flattened(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, ModelError> {
        self.floats(name, rows, cols, (1, rows * cols))
    }

    /// A linear layer: `stem.weight` of `[outputs, inputs]`, with `stem.bias`, `stem.scale` and a norm of its
    /// input, `stem_norm_in.weight`, if the file has them. Its input is quantised to int8 only if the
    /// weight's type is trained that way (ternary with a scale per tensor or per row: I2_S, IQ2_BN).
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if a tensor is missing or of another shape, and if a layer of a feed-forward
    /// network has both a scale and a bias: llama.cpp scales after the bias there, and no converter writes
    /// such a file.
    pub fn projection(&mut self, stem: &str, outputs: usize, inputs: usize) -> Result<Linear, ModelError> {
        if stem.contains(".ffn_") {
            self.check_scale(stem)?;
        }
        let weight = self.gguf.find(&format!("{stem}.weight"));
        let act = match weight.and_then(|weight| weight.ty).and_then(|ty| ty.ternary()) {
            Some(Ternary::PerTensor | Ternary::PerRow) => ActQuant::I8PerToken,
            Some(Ternary::PerBlock) | None => ActQuant::None,
        };
        self.linear(stem, outputs, inputs, act)
    }

    /// A [`projection`](Self::projection) whose input is quantised to int8 for every weight type (BitNet).
    ///
    /// # Errors
    /// As [`projection`](Self::projection).
    pub fn int8(&mut self, stem: &str, outputs: usize, inputs: usize) -> Result<Linear, ModelError> {
        self.linear(stem, outputs, inputs, ActQuant::I8PerToken)
    }

    /// A [`projection`](Self::projection) whose input is never quantised: a router, a share, a head.
    ///
    /// # Errors
    /// As [`projection`](Self::projection).
    pub fn exact(&mut self, stem: &str, outputs: usize, inputs: usize) -> Result<Linear, ModelError> {
        self.linear(stem, outputs, inputs, ActQuant::None)
    }

    fn linear(
        &mut self,
        stem: &str,
        outputs: usize,
        inputs: usize,
        act: ActQuant,
    ) -> Result<Linear, ModelError> {
        let w = self.table(&format!("{stem}.weight"), outputs, inputs)?;
        let bias = format!("{stem}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, outputs)?) } else { None };
        let norm = format!("{stem}_norm_in");
        let norm =
            if self.has(&format!("{norm}.weight")) { Some(self.rms_norm(&norm, inputs)?) } else { None };
        let basis = self.basis_of(&format!("{stem}.weight"), inputs)?;
        Ok(Linear { norm, bias, act, scale: self.scales(stem, 1)?[0], basis, ..Linear::of(w) })
    }

    /// A linear layer of `[outputs, inputs]` with these weights, computed from `stem.weight`, and `stem.bias`
    /// if the file has it.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for a bias of another shape.
    pub(super) fn layer_of(
        &mut self,
        stem: &str,
        weights: Vec<f32>,
        outputs: usize,
        inputs: usize,
    ) -> Result<Linear, ModelError> {
        let mut tensor = floats(format!("{stem}.weight"), &weights);
        (tensor.rows, tensor.cols) = (outputs, inputs);
        let w = self.declare(tensor);
        let bias = format!("{stem}.bias");
        let bias = if self.has(&bias) { Some(self.vector(&bias, outputs)?) } else { None };
        Ok(Linear { bias, ..Linear::of(w) })
    }

    /// A layer for the host (pooling): `stem.weight` of `[outputs, inputs]` and `stem.bias`, returned without
    /// declaring them.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub(super) fn host_layer(
        &mut self,
        stem: &str,
        outputs: usize,
        inputs: usize,
    ) -> Result<(FileTensor, Option<FileTensor>), ModelError> {
        let weight = self.tensor(&format!("{stem}.weight"), outputs, inputs)?;
        let bias = format!("{stem}.bias");
        let bias = if self.has(&bias) { Some(self.tensor(&bias, 1, outputs)?) } else { None };
        Ok((weight, bias))
    }

    /// The scale factors of products, `stem.scale` of `[n]`, if the file has them: low-bit types have no
    /// space for them.
    fn scales(&mut self, stem: &str, n: usize) -> Result<Vec<f32>, ModelError> {
        let name = format!("{stem}.scale");
        if !self.has(&name) {
            return Ok(vec![1.0; n]);
        }
        let scales = self.values(&name, n)?;
        match scales.iter().find(|scale| !scale.is_finite()) {
            Some(scale) => Err(wrong(&name, "finite numbers", scale.to_string())),
            None => Ok(scales),
        }
    }

    /// Checks that a layer of a feed-forward network does not have both a scale and a bias.
    fn check_scale(&self, stem: &str) -> Result<(), ModelError> {
        let [scale, bias] = ["scale", "bias"].map(|what| format!("{stem}.{what}"));
        match self.has(&scale) && self.has(&bias) {
            true => Err(wrong(&scale, "no scale with a bias in a feed-forward network", "both".to_owned())),
            false => Ok(()),
        }
    }

    /// The query, key and value layers of a block, `[q, dim]`, `[kv, dim]` and `[kv, dim]`: three tensors, or
    /// the rows of one, `attn_qkv`.
    ///
    /// # Errors
    /// As [`projection`](Self::projection); [`ModelError::Tensor`] if the combined tensor has a type whose
    /// rows depend on each other.
    pub fn qkv(&mut self, blk: &str, q: usize, kv: usize, dim: usize) -> Result<[Linear; 3], ModelError> {
        let stem = format!("{blk}.attn_qkv");
        let name = format!("{stem}.weight");
        if !self.has(&name) {
            let [wq, wk, wv] = ["q", "k", "v"].map(|which| format!("{blk}.attn_{which}"));
            return Ok([
                self.projection(&wq, q, dim)?,
                self.projection(&wk, kv, dim)?,
                self.projection(&wv, kv, dim)?,
            ]);
        }
        self.divided(&stem, [q, kv, kv], dim)
    }

    /// The gate and up projections of a block, which are the rows of one tensor, `ffn_up`.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn gate_up(&mut self, blk: &str, ffn_dim: usize, dim: usize) -> Result<[Linear; 2], ModelError> {
        let stem = format!("{blk}.ffn_up");
        self.check_scale(&stem)?;
        self.divided(&stem, [ffn_dim, ffn_dim], dim)
    }

    /// Layers with these numbers of outputs, which are the rows of one tensor, `stem.weight`, in this order.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn divided<const N: usize>(
        &mut self,
        stem: &str,
        outputs: [usize; N],
        inputs: usize,
    ) -> Result<[Linear; N], ModelError> {
        let scale = self.scales(stem, 1)?[0];
        let mut end = 0;
        let rows = outputs.map(|n| {
            end += n;
            end - n..end
        });
        let mut parts = self.parts(stem, end, inputs, rows)?.into_iter();
        Ok(std::array::from_fn(|_| Linear { scale, ..parts.next().expect("one per range") }))
    }

    /// Layers of `n` heads, each `[outputs, inputs]`, which are concatenated in a tensor.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn heads(
        &mut self,
        stem: &str,
        n: usize,
        outputs: usize,
        inputs: usize,
    ) -> Result<Vec<Linear>, ModelError> {
        let scale = self.scales(stem, 1)?[0];
        let parts = self.parts(stem, n * outputs, inputs, (0..n).map(|i| i * outputs..(i + 1) * outputs))?;
        Ok(parts.into_iter().map(|layer| Linear { scale, ..layer }).collect())
    }

    /// Rows of `stem.weight`, `[rows, inputs]`, as a layer, with its bias if the file has one.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn part(
        &mut self,
        stem: &str,
        [rows, inputs]: [usize; 2],
        range: Range<usize>,
    ) -> Result<Linear, ModelError> {
        Ok(self.parts(stem, rows, inputs, [range])?.remove(0))
    }

    /// Layers that are concatenated in a tensor: `stem.weight` of `[rows, inputs]` and, if the file has it,
    /// `stem.bias`, split into ranges of rows.
    fn parts(
        &mut self,
        stem: &str,
        rows: usize,
        inputs: usize,
        ranges: impl IntoIterator<Item = Range<usize>>,
    ) -> Result<Vec<Linear>, ModelError> {
        let name = format!("{stem}.weight");
        let ranges: Vec<Range<usize>> = ranges.into_iter().collect();
        let (whole, act) = self.divisible(&name, rows, inputs, &ranges)?;
        let bias = format!("{stem}.bias");
        let bias = if self.has(&bias) { Some(self.elements(&bias, rows)?) } else { None };
        let basis = self.basis_of(&name, inputs)?;
        let part = |part: Range<usize>| {
            let name_of = |what: &str| format!("{stem}.{what} rows {} to {}", part.start, part.end - 1);
            let w = self.declare(whole.cut(name_of("weight"), part.clone()));
            let of = PartOf { tensor: name.clone(), rows: vec![part.clone()] };
            self.program.weights[w.0 as usize].part_of = Some(of);
            let bias =
                bias.as_ref().map(|values| self.declare(floats(name_of("bias"), &values[part.clone()])));
            Linear { bias, act, basis, ..Linear::of(w) }
        };
        Ok(ranges.into_iter().map(part).collect())
    }

    /// A [`projection`](Self::projection) without a bias, whose rows are ranges of those of `stem.weight`,
    /// `[rows, inputs]`, in this order; `order` describes it in the weight's name.
    ///
    /// # Errors
    /// As [`qkv`](Self::qkv) for a combined tensor.
    pub fn gathered(
        &mut self,
        stem: &str,
        [rows, inputs]: [usize; 2],
        order: &str,
        ranges: &[Range<usize>],
    ) -> Result<Linear, ModelError> {
        let name = format!("{stem}.weight");
        let (whole, act) = self.divisible(&name, rows, inputs, ranges)?;
        let basis = self.basis_of(&name, inputs)?;
        let scale = self.scales(stem, 1)?[0];
        let w = self.declare(whole.gather(format!("{name} {order}"), ranges));
        self.program.weights[w.0 as usize].part_of = Some(PartOf { tensor: name, rows: ranges.to_vec() });
        Ok(Linear { act, basis, scale, ..Linear::of(w) })
    }

    /// Ranges of elements of a vector or small table of `n` elements, concatenated in f32.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if it is missing or of another size.
    pub fn gathered_f32(
        &mut self,
        name: &str,
        n: usize,
        ranges: &[Range<usize>],
    ) -> Result<Weight, ModelError> {
        let all = self.elements(name, n)?;
        let values: Vec<f32> = ranges.iter().flat_map(|range| &all[range.clone()]).copied().collect();
        Ok(self.declare(floats(name.to_owned(), &values)))
    }

    /// A tensor that may be divided into these ranges of rows, and the quantisation of its input.
    fn divisible(
        &mut self,
        name: &str,
        rows: usize,
        inputs: usize,
        ranges: &[Range<usize>],
    ) -> Result<(FileTensor, ActQuant), ModelError> {
        let whole = self.tensor(name, rows, inputs)?;
        let quant = |source| ModelError::Quant { tensor: name.to_owned(), source };
        let row_bytes = whole.ty.row_bytes(inputs).map_err(quant)?;
        let together = whole.ty.rows_together();
        let is_whole =
            |range: &Range<usize>| [range.start, range.end].iter().all(|row| row.is_multiple_of(together));
        if whole.ty.byte_len(rows, inputs).map_err(quant)? != rows * row_bytes || !ranges.iter().all(is_whole)
        {
            return Err(wrong(name, "a type with independent rows", whole.ty.name().to_owned()));
        }
        let act = match whole.ty.ternary() {
            Some(Ternary::PerRow) => ActQuant::I8PerToken,
            _ => ActQuant::None,
        };
        Ok((whole, act))
    }

    /// The mixture of experts that the file's layers have instead of a feed-forward network, if any.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for invalid numbers.
    pub fn mixture(&self) -> Result<Option<Mixture>, ModelError> {
        self.overrules("expert_used_count");
        let wrong = |name, want: String, got: usize| Err(self.wrong(name, want, got));
        let n_experts = match self.count("expert_count")? {
            None | Some(0) => return Ok(None),
            Some(n) if n > MAX_EXPERTS => return wrong("expert_count", format!("0 to {MAX_EXPERTS}"), n),
            Some(n) => n,
        };
        let n_used = self.number("expert_used_count")?;
        if !(1..=n_experts).contains(&n_used) {
            return wrong("expert_used_count", format!("1 to the {n_experts} experts"), n_used);
        }
        const WIDTH: &str = "expert_feed_forward_length";
        let ffn_dim = match self.count(WIDTH)? {
            None => self.hyper.ffn_dim,
            Some(n) if n == 0 || n > Mixture::MAX_WIDTH => {
                return wrong(WIDTH, format!("1 to {}", Mixture::MAX_WIDTH), n);
            }
            Some(n) => n,
        };
        Ok(Some(Mixture { n_experts, n_used, ffn_dim }))
    }

    /// The routing of rows to `n_experts` experts: `default`, changed by the file's keys of gating,
    /// normalisation, factor and groups.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for an invalid value.
    pub fn routing(&mut self, n_experts: usize, default: &Routing) -> Result<Routing, ModelError> {
        const GATING: &str = "expert_gating_func";
        const NORMALISE: &str = "expert_weights_norm";
        const SCALE: &str = "expert_weights_scale";
        let (gating, of_chosen) = match self.number_or(GATING, 0)? {
            0 => (default.gating, false),
            1 => (Gating::Softmax, false),
            2 => (Gating::Sigmoid, false),
            // Softmax over the chosen logits.
            3 => (Gating::Softmax, true),
            other => return Err(self.wrong(GATING, "1, 2 or 3", other)),
        };
        let normalise = match self.value(NORMALISE) {
            None => default.normalise,
            Some(Value::Bool(normalise)) => *normalise,
            Some(other) => return Err(self.wrong(NORMALISE, "true or false", other.describe())),
        };
        let scale = match self.gguf.metadata().f32(&self.key(SCALE))? {
            // Converters write 0 for models without a factor.
            Some(0.0) => 1.0,
            _ => self.factor(SCALE, default.scale)?,
        };
        let groups = self.groups(n_experts)?;
        Ok(Routing { gating, bias: None, groups, normalise: normalise || of_chosen, scale })
    }

    /// The groups of experts, if there are several.
    fn groups(&self, n_experts: usize) -> Result<Option<Groups>, ModelError> {
        const GROUPS: &str = "expert_group_count";
        const USED: &str = "expert_group_used_count";
        let n = self.number_or(GROUPS, 1)?;
        let n_used = self.number_or(USED, n)?;
        if n <= 1 || n_used == n {
            return Ok(None);
        }
        if !n_experts.is_multiple_of(n) || n_experts / n < 2 {
            let want = format!("a divisor of the {n_experts} experts with at least 2 in each group");
            return Err(self.wrong(GROUPS, want, n));
        }
        let least = self.number("expert_used_count")?.div_ceil(n_experts / n);
        match (least..n).contains(&n_used) {
            true => Ok(Some(Groups { n, n_used })),
            false => Err(self.wrong(USED, format!("{least} to the {n} groups"), n_used)),
        }
    }

    /// The experts of a block: `ffn_gate_exps`, `ffn_up_exps` and `ffn_down_exps`, each with all experts
    /// concatenated, or gates and ups in one tensor, `ffn_gate_up_exps`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if a tensor is missing, of another shape, or of a type whose rows depend on
    /// each other.
    pub fn experts(
        &mut self,
        blk: &str,
        n: usize,
        ffn_dim: usize,
        dim: usize,
    ) -> Result<Vec<Expert>, ModelError> {
        let both = format!("{blk}.ffn_gate_up_exps");
        self.check_scale(&both)?;
        let (gates, ups) = if self.has(&format!("{both}.weight")) {
            let halves = (0..2 * n).map(|half| half * ffn_dim..(half + 1) * ffn_dim);
            let all = self.parts(&both, 2 * n * ffn_dim, dim, halves)?;
            let scales = self.scales(&both, n)?;
            let half = |first: usize| all.iter().skip(first).step_by(2).cloned().zip(&scales);
            let scaled = |(layer, scale): (Linear, &f32)| Linear { scale: *scale, ..layer };
            (half(0).map(scaled).collect::<Vec<_>>(), half(1).map(scaled).collect())
        } else {
            (self.of_experts(blk, "gate", n, [ffn_dim, dim])?, self.of_experts(blk, "up", n, [ffn_dim, dim])?)
        };
        let downs = self.of_experts(blk, "down", n, [dim, ffn_dim])?;
        let layers = gates.into_iter().zip(ups).zip(downs);
        Ok(layers.map(|((gate, up), down)| Expert { gate: Some(gate), up, down }).collect())
    }

    /// Like [`experts`](Self::experts), without gates.
    ///
    /// # Errors
    /// As [`experts`](Self::experts).
    pub fn plain_experts(
        &mut self,
        blk: &str,
        n: usize,
        ffn_dim: usize,
        dim: usize,
    ) -> Result<Vec<Expert>, ModelError> {
        let ups = self.of_experts(blk, "up", n, [ffn_dim, dim])?;
        let downs = self.of_experts(blk, "down", n, [dim, ffn_dim])?;
        Ok(ups.into_iter().zip(downs).map(|(up, down)| Expert { gate: None, up, down }).collect())
    }

    /// One layer of all experts, `[outputs, inputs]` each.
    fn of_experts(
        &mut self,
        blk: &str,
        name: &str,
        n: usize,
        [outputs, inputs]: [usize; 2],
    ) -> Result<Vec<Linear>, ModelError> {
        let stem = format!("{blk}.ffn_{name}_exps");
        self.check_scale(&stem)?;
        let each = (0..n).map(|i| i * outputs..(i + 1) * outputs);
        let layers = self.parts(&stem, n * outputs, inputs, each)?;
        let scales = self.scales(&stem, n)?;
        Ok(layers.into_iter().zip(scales).map(|(layer, scale)| Linear { scale, ..layer }).collect())
    }

    /// Declares the token table and the residual stream, and pushes the first stage: `scale` times the row of
    /// a token.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if the table is missing or of another shape; [`ModelError::Metadata`] for an
    /// invalid rotated basis.
    pub fn embed(&mut self, scale: f32) -> Result<Buf, ModelError> {
        let Hyper { dim, n_vocab, .. } = self.hyper;
        let x = self.buf("x", RowsOf::Step, dim);
        let table = self.table("token_embd.weight", n_vocab, dim)?;
        let rotated = self.hadamard.as_ref().filter(|hadamard| hadamard.table);
        let basis = rotated.map(|hadamard| hadamard.basis(dim)).transpose()?;
        let basis = basis.map(|basis| self.declared_basis(basis));
        self.table = Some(table);
        self.push("embed", Embed { basis, scale, ..Embed::tokens(table, x) });
        Ok(x)
    }

    /// Pushes a second stage with the same embedding, which no layer changes, and returns its buffer.
    ///
    /// # Panics
    /// If called before [`embed`](Self::embed).
    pub fn embed_again(&mut self) -> Buf {
        let x = self.buf("x0", RowsOf::Step, self.hyper.dim);
        let first = self.program.stages.iter().find_map(|(_, stage)| match stage {
            Stage::Embed(s) => Some(Embed { x, ..s.clone() }),
            _ => None,
        });
        self.push("embed_0", first.expect("a program begins with its embedding"));
        x
    }

    /// Adds learned positions and token types to the embedding.
    ///
    /// # Panics
    /// If called before [`embed`](Self::embed).
    pub fn embed_also(&mut self, positions: Option<Weight>, types: Option<Weight>) {
        let embed = self.program.stages.iter_mut().find_map(|(_, stage)| match stage {
            Stage::Embed(s) => Some(s),
            _ => None,
        });
        let embed = embed.expect("a program begins with its embedding");
        (embed.positions, embed.types) = (positions, types);
    }

    /// Ends the program of a model that generates: `norm` of the last layer's output, logits, sampling. The
    /// head is `output.weight`, or the token table if the file has none; `scale` is a factor on its product.
    /// If rows see the whole text, there is no head, and the program ends with the norm.
    ///
    /// # Errors
    /// As [`projection`](Self::projection).
    ///
    /// # Panics
    /// If called before [`embed`](Self::embed).
    pub fn end(&mut self, x: Buf, norm: Norm, scale: f32, soft_cap: Option<f32>) -> Result<(), ModelError> {
        if self.sees_ahead() {
            self.leave_out(|name| name.starts_with("output."));
            self.ends_with(norm);
            return Ok(());
        }
        let w = times(scale, self.head()?)?;
        let logits = self.buf("logits", RowsOf::Outputs, self.hyper.n_vocab);
        self.push("logits", Logits { x, norm, w, soft_cap, logits });
        self.push("sample", Sample { logits });
        Ok(())
    }

    fn head(&mut self) -> Result<Linear, ModelError> {
        let Hyper { dim, n_vocab, .. } = self.hyper;
        if self.has("output.weight") {
            return self.exact("output", n_vocab, dim);
        }
        let table = self.table.expect("a program begins with its embedding");
        let tied = self.hadamard.as_ref().filter(|hadamard| hadamard.is_tied);
        let basis = tied.map(|hadamard| hadamard.basis(dim)).transpose()?;
        let basis = basis.map(|basis| self.declared_basis(basis));
        Ok(Linear { basis, ..Linear::of(table) })
    }

    /// Error for a missing vector of `[len]`.
    pub fn lacks(&self, name: &str, len: usize) -> ModelError {
        wrong(name, shape(1, len), "no tensor of that name".to_owned())
    }

    /// An RMS norm: `stem.weight` of `[dim]`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if it is missing or of another shape.
    pub fn rms_norm(&mut self, stem: &str, dim: usize) -> Result<Norm, ModelError> {
        let weight = self.vector(&format!("{stem}.weight"), dim)?;
        Ok(Norm { kind: NormKind::Rms, weight, bias: None, eps: self.hyper.norm_eps })
    }

    /// An RMS norm of `dim` elements without a weight.
    pub fn bare_rms_norm(&mut self, dim: usize) -> Norm {
        let name = format!("ones of {dim}");
        let known = self.program.weights.iter().position(|weight| weight.name == name);
        let weight = match known {
            Some(at) => Weight(at as u32),
            None => self.declare(floats(name, &vec![1.0; dim])),
        };
        Norm { kind: NormKind::Rms, weight, bias: None, eps: self.hyper.norm_eps }
    }

    /// A LayerNorm: `stem.weight` and `stem.bias` of `[dim]`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if one is missing or of another shape.
    pub fn layer_norm(&mut self, stem: &str, dim: usize) -> Result<Norm, ModelError> {
        let weight = self.vector(&format!("{stem}.weight"), dim)?;
        let bias = Some(self.vector(&format!("{stem}.bias"), dim)?);
        Ok(Norm { kind: NormKind::Layer, weight, bias, eps: self.hyper.norm_eps })
    }

    /// A LayerNorm without a bias: `stem.weight` of `[dim]`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] if it is missing or of another shape.
    pub fn layer_norm_without_bias(&mut self, stem: &str, dim: usize) -> Result<Norm, ModelError> {
        Ok(Norm { kind: NormKind::Layer, ..self.rms_norm(stem, dim)? })
    }

    /// Appends a stage.
    pub fn push(&mut self, label: impl Into<String>, stage: impl Into<Stage>) {
        self.program.push(label, stage);
    }

    fn declare(&mut self, tensor: FileTensor) -> Weight {
        let weight = self.program.weight(tensor.name.clone(), tensor.ty, tensor.rows, tensor.cols);
        self.weights.push(tensor);
        weight
    }

    /// Declares a tensor of `[rows, cols]` as f32 with another shape.
    fn floats(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        shape: (usize, usize),
    ) -> Result<Weight, ModelError> {
        let mut tensor = self.tensor(name, rows, cols)?;
        if !tensor.ty.is(&types::F32) {
            tensor = floats(tensor.name.clone(), &decode(&tensor.read()?)?);
        }
        (tensor.rows, tensor.cols) = shape;
        Ok(self.declare(tensor))
    }

    fn values(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        decode(&self.tensor(name, 1, len)?.read()?)
    }

    /// All elements of a tensor with any number of dimensions.
    pub(super) fn elements(&mut self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let (rows, cols) = self.gguf.find(name).map_or((1, len), |tensor| (tensor.rows(), tensor.cols()));
        let whole = rows.checked_mul(cols) == Some(len);
        let (rows, cols) = if whole { (rows, cols) } else { (1, len) };
        decode(&self.tensor(name, rows, cols)?.read()?)
    }

    fn tensor(&mut self, name: &str, rows: usize, cols: usize) -> Result<FileTensor, ModelError> {
        self.asked.insert(name.to_owned());
        let Some(info) = self.gguf.find(name) else {
            return Err(wrong(name, shape(rows, cols), "no tensor of that name".to_owned()));
        };
        let tensor = self.gguf.file_tensor(info)?;
        match (tensor.rows, tensor.cols) == (rows, cols) {
            true => Ok(tensor),
            false => {
                let got = format!("{} {}", shape(tensor.rows, tensor.cols), tensor.ty.name());
                Err(wrong(name, shape(rows, cols), got))
            }
        }
    }
}

/// Creates an f32 vector that is not in the file.
fn floats(name: String, values: &[f32]) -> FileTensor {
    let bytes = Bytes::from(bytemuck::cast_slice::<f32, u8>(values).to_vec());
    HostTensor { name, ty: &types::F32, rows: 1, cols: values.len(), bytes }.into()
}

fn shape(rows: usize, cols: usize) -> String {
    if rows == 1 { format!("[{cols}]") } else { format!("[{rows}, {cols}]") }
}

fn wrong(tensor: &str, want: impl Into<String>, got: String) -> ModelError {
    ModelError::Tensor { tensor: tensor.to_owned(), want: want.into(), got }
}

/// All elements of a tensor.
pub(super) fn decode(tensor: &HostTensor) -> Result<Vec<f32>, ModelError> {
    let HostTensor { name, ty, rows, cols, bytes } = tensor;
    let mut values = vec![0.0; rows * cols];
    for (row, values) in values.chunks_exact_mut(*cols).enumerate() {
        let decoded = ty.decode_row(bytes, *rows, row, values);
        decoded.map_err(|source| ModelError::Quant { tensor: name.clone(), source })?;
    }
    Ok(values)
}

/// A layer whose product is multiplied by `factor`.
pub(super) fn times(factor: f32, layer: Linear) -> Result<Linear, ModelError> {
    if factor != 1.0 && layer.bias.is_some() {
        let (want, got) = ("no bias on a layer whose product is scaled".to_owned(), "one".to_owned());
        return Err(ModelError::Tensor { tensor: "attn_output.bias or ffn_down.bias".to_owned(), want, got });
    }
    Ok(Linear { scale: factor * layer.scale, ..layer })
}
