//! Builder of a model's program: declares weights by their GGUF names, checks each shape, and collects the
//! stages.

mod experts;
mod linears;
mod ropes;

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use ggml_types::{HostTensor, types};

use super::draft::{DraftBlock, DraftForm};
use super::hadamard::Hadamard;
use super::hyper;
use super::keys::AskedKeys;
use super::{Hyper, ModelError, Options, Windows};
use sterna_gguf::{FileTensor, Gguf, Metadata, Value};
use sterna_program::{
    Basis, BasisId, Buf, BufDecl, Embed, Kv, KvDecl, Linear, Logits, Norm, NormAdd, NormKind, Program, Rope,
    RopeId, RowsOf, Sample, Stage, State, StateDecl, Weight,
};

pub use experts::Mixture;

/// Tensors of a model that a file which drafts for it uses if it has none of its own.
const LENT: [&str; 3] = ["token_embd.weight", "output.weight", "output_norm.weight"];

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
    mtp: Option<DraftBlock>,
    /// The file of the model, if this one drafts for it, and the tensors that it lends.
    model: Option<&'a Gguf>,
    lent: Vec<String>,
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
            model: None,
            lent: Vec::new(),
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
            None => Ok((self.program, self.weights, self.notes)),
            Some(tensor) => {
                let want = format!("no such tensor in a model of architecture `{}`", self.hyper.architecture);
                let got = format!("{} {}", shape(tensor.rows(), tensor.cols()), tensor.type_name);
                Err(wrong(&tensor.name, want, got))
            }
        }
    }

    /// Checks that no other key under the architecture's name may change what the model computes. Not for
    /// mmproj files, whose keys describe the towers of several programs.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for keys that the architecture has not read.
    pub(super) fn check_keys(&self) -> Result<(), ModelError> {
        self.asked_keys.check(self.gguf.metadata(), &self.hyper.architecture)
    }

    /// The MTP block, if it was built.
    pub(super) fn take_mtp(&mut self) -> Option<DraftBlock> {
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

    /// Builds the program of the MTP block: `build` declares its weights and pushes its stages.
    ///
    /// # Errors
    /// Any error of `build`.
    pub(super) fn mtp_block(
        &mut self,
        build: impl FnOnce(&mut Self) -> Result<DraftForm, ModelError>,
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
        let form = built?;
        let lent = self.model.map(|_| self.lent.clone());
        self.mtp = Some(DraftBlock { program, weights, form: DraftForm { lent, ..form } });
        Ok(())
    }

    /// Takes the tensors of [`LENT`] from the file of the model if this file does not have them.
    pub(super) fn borrow(&mut self, model: &'a Gguf) {
        self.model = Some(model);
    }

    /// Names of the tensors that were taken from the file of the model.
    pub(super) fn lent(&self) -> &[String] {
        &self.lent
    }

    /// A lookup table of the model, `[rows, cols]`, even if this file has one of that name.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub(super) fn lent_table(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight, ModelError> {
        let model = self.model.expect("a file that drafts for a model");
        self.lent.push(name.to_owned());
        let tensor = tensor_of(model, name, rows, cols)?;
        Ok(self.declare(tensor))
    }

    /// A [`table`](Self::table) of this file with a remark in its name, because the model has one, too.
    ///
    /// # Errors
    /// As [`table`](Self::table).
    pub(super) fn own_table(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        remark: &str,
    ) -> Result<Weight, ModelError> {
        let mut tensor = self.tensor(name, rows, cols)?;
        tensor.name = format!("{name} {remark}");
        Ok(self.declare(tensor))
    }

    /// Declares the caches of another program, with the same numbers.
    pub(super) fn copy_caches(&mut self, of: &Program) {
        self.program.kvs.clone_from(&of.kvs);
    }

    /// A boolean under the architecture's `key`, false if the file does not specify it.
    ///
    /// # Errors
    /// [`ModelError::Metadata`] for another type.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        match self.value(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.wrong(key, "true or false", other.describe())),
        }
    }

    /// The tokens in a tensor of integers of 64 bits, if the file has it: different ones of the vocabulary.
    ///
    /// # Errors
    /// [`ModelError::Tensor`] for another type, and for numbers that are not tokens.
    pub(super) fn tokens_of_rows(&mut self, name: &str) -> Result<Option<Arc<[u32]>>, ModelError> {
        /// The type of such integers.
        const I64: u32 = 27;
        self.asked.insert(name.to_owned());
        let Some(info) = self.gguf.find(name) else { return Ok(None) };
        let n_vocab = self.hyper.n_vocab;
        let (n, want) = (info.n_elems(), format!("at most {n_vocab} different tokens as i64"));
        if info.type_id != I64 || n == 0 || n > n_vocab {
            let got = format!("{} {}", shape(info.rows(), info.cols()), info.type_name);
            return Err(wrong(name, want, got));
        }
        if self.gguf.is_header() {
            return Ok(Some((0..n as u32).collect()));
        }
        let bytes = self.gguf.raw_piece(info, 0..8 * n as u64)?;
        let mut seen = vec![false; n_vocab];
        let token = |bytes: &[u8; 8]| {
            let id = usize::try_from(i64::from_le_bytes(*bytes)).ok().filter(|id| *id < n_vocab)?;
            (!std::mem::replace(&mut seen[id], true)).then_some(id as u32)
        };
        let tokens: Option<Arc<[u32]>> = bytes.as_chunks().0.iter().map(token).collect();
        tokens.map(Some).ok_or_else(|| wrong(name, want, "another number, or one twice".to_owned()))
    }

    /// True if linear layers of the file have rotated inputs.
    pub(super) fn is_rotated(&self) -> bool {
        self.hadamard.is_some()
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

    /// True if the file has a tensor of this name, or the file of the model lends it.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.find(name).is_some() || self.lender(name).is_some()
    }

    /// The file of the model if it lends this tensor.
    fn lender(&self, name: &str) -> Option<&'a Gguf> {
        self.model.filter(|model| LENT.contains(&name) && model.find(name).is_some())
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

    /// Declares a rotary embedding that does not depend on the file.
    pub(super) fn declared_rope(&mut self, rope: Rope) -> RopeId {
        self.program.rope(rope)
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

    /// Declares the token table and the residual stream, and pushes the first stages: the row of a token with
    /// an RMS norm without a weight.
    ///
    /// # Errors
    /// As [`embed`](Self::embed).
    pub fn normed_embedding(&mut self) -> Result<Buf, ModelError> {
        // No stage normalises in place: the norm is added to 0.
        let x = self.embed(0.0)?;
        let y = self.buf("x0", RowsOf::Step, self.hyper.dim);
        let table = self.table.expect("`embed` declares it");
        self.push("embed_0", Embed::tokens(table, y));
        let norm = self.bare_rms_norm(self.hyper.dim);
        self.push("embed_norm", NormAdd { y, norm, scale: 1.0, x });
        Ok(x)
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

    /// A LayerNorm of `dim` elements without a weight.
    pub fn bare_layer_norm(&mut self, dim: usize) -> Norm {
        Norm { kind: NormKind::Layer, ..self.bare_rms_norm(dim) }
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
        let lender = self.lender(name).filter(|_| self.gguf.find(name).is_none());
        self.lent.extend(lender.map(|_| name.to_owned()));
        tensor_of(lender.unwrap_or(self.gguf), name, rows, cols)
    }
}

/// A tensor of a file.
fn tensor_of(gguf: &Gguf, name: &str, rows: usize, cols: usize) -> Result<FileTensor, ModelError> {
    let Some(info) = gguf.find(name) else {
        return Err(wrong(name, shape(rows, cols), "no tensor of that name".to_owned()));
    };
    let tensor = gguf.file_tensor(info)?;
    match (tensor.rows, tensor.cols) == (rows, cols) {
        true => Ok(tensor),
        false => {
            let got = format!("{} {}", shape(tensor.rows, tensor.cols), tensor.ty.name());
            Err(wrong(name, shape(rows, cols), got))
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
