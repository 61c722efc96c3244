//! Drafts from the model's own rows: by its multi-token prediction (MTP) block, or by a file made for it. A
//! second program of a few layers, whose inputs are the model's normalised rows, or rows of three layers.
//!
//! After each step of the model, the block's keys and values of the same rows are written, in the same pages.
//! Rows that are run again overwrite them, so rejected drafts leave no trace. Gemma 4's assistant has no keys
//! and values: it reads the model's.

use std::sync::Arc;

use super::error::Error;
use super::logprobs::LogProbs;
use super::pool::RowNorm;
use super::sequence::Sequence;
use super::speculate::MtpDrafts;
use sterna_backend::{Backend, DeviceMemory, Exec, KvPage, MemoryKind, MemoryPart, Plan};
use sterna_gguf::{Metadata, Value};
use sterna_model::{DraftBlock, DraftForm, Fusion};
use sterna_program::{Buf, PAGE, PageTable, Program, Row, Sampling, Stage, Step, Weight, WeightDecl};

/// Use of a model's MTP block, or of the file that [drafts](super::EngineOptions::draft) for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mtp {
    /// It is not loaded.
    #[default]
    Off,
    /// It is loaded if the file has one that is supported.
    IfPresent,
    /// It is loaded; a file without one is an error.
    Needed,
}

/// Tokens of a head that drafts: a head of 150,000 and more words takes longer than the block, and most of
/// its words are rare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftHead {
    /// The first tokens of the vocabulary, which a tokenizer trained by merges ranks as the most frequent,
    /// and all control and user-defined tokens.
    First(usize),
    /// These tokens.
    Tokens(Arc<[u32]>),
}

impl DraftHead {
    /// The tokens in ascending order, for a vocabulary of `n_vocab` tokens that the metadata describe.
    ///
    /// # Errors
    /// [`Error::Option`] for no tokens, and for tokens that are not in the vocabulary.
    pub(super) fn tokens(&self, metadata: &Metadata, n_vocab: usize) -> Result<Vec<u32>, Error> {
        /// Values of a token's type.
        const SPECIAL: [i128; 2] = [3, 4];
        let mut tokens: Vec<u32> = match self {
            Self::First(0) => Vec::new(),
            Self::First(n) => {
                let types = metadata.get("tokenizer.ggml.token_type");
                let types = if let Some(Value::Array(types)) = types { Some(types.values()) } else { None };
                let of_type = types.into_iter().flatten().map(|ty| ty.as_int());
                let special =
                    of_type.enumerate().filter(|(_, ty)| ty.is_some_and(|ty| SPECIAL.contains(&ty)));
                let special = special.map(|(id, _)| id as u32).filter(|id| (*id as usize) < n_vocab);
                (0..(*n).min(n_vocab) as u32).chain(special).collect()
            }
            Self::Tokens(tokens) => tokens.to_vec(),
        };
        tokens.sort_unstable();
        tokens.dedup();
        match tokens.last() {
            Some(last) if (*last as usize) < n_vocab => Ok(tokens),
            last => Err(Error::Option {
                option: "EngineOptions::draft_head",
                want: format!("at least one token, below {n_vocab}"),
                got: last.map_or("none".to_owned(), u32::to_string),
            }),
        }
    }
}

/// The error for drafts by a block that the engine does not have.
pub(super) fn none_loaded() -> Error {
    let want = "drafts from n-grams, by a draft model or by a file made for the model, for a file without an \
                MTP block that is supported";
    Error::Option { option: "EngineOptions::mtp", want: want.into(), got: "drafts by the MTP block".into() }
}

/// The compiled block, and the model's last rows of each slot.
pub(super) struct Block {
    exec: Exec,
    form: DraftForm,
    n_stages: usize,
    logits: Buf,
    /// Tokens of the model, and rows of the block's head.
    n_vocab: usize,
    n_head: usize,
    /// Columns of the rows that the model gives, and of hidden rows.
    cols: usize,
    dim: usize,
    /// Norm of the model's last layer.
    of_model: RowNorm,
    /// Norm of the block's rows.
    of_block: Option<RowNorm>,
    joint: Option<Joint>,
    inputs: Vec<Inputs>,
    /// Bytes read per drafted token at the start of a context.
    pub cost: u64,
}

/// Rows of several layers of the model, and how the block's input is joined from an embedding and a hidden
/// row.
struct Joint {
    /// Stages of the model before which its rows are read, in order.
    taps: Vec<usize>,
    of: Fusion,
    of_embedding: RowNorm,
    of_hidden: RowNorm,
}

/// The block's inputs of consecutive positions: for each, the model's row of the position before it.
#[derive(Clone, Default)]
struct Inputs {
    first: usize,
    /// `[n, dim]`.
    rows: Vec<f32>,
}

/// A draft that grows token by token.
pub(super) struct Chain {
    slot: u32,
    /// Position of the next token to feed, and the token.
    next: (usize, u32),
    most: usize,
    p_min: f32,
    min: usize,
    tokens: Vec<u32>,
    /// Logits of each token, `[n, n_vocab]`, if they are kept.
    logits: Option<Vec<f32>>,
}

impl Chain {
    /// A chain of up to `most` tokens after those of `seq`, all of which are in the cache except the last.
    pub fn after(seq: &Sequence, most: usize, options: MtpDrafts) -> Self {
        let MtpDrafts { min, p_min, .. } = options;
        let last = seq.tokens.len() - 1;
        let slot = seq.slot.expect("a sequence that runs has a slot");
        Self { slot, next: (last, seq.tokens[last]), most, p_min, min, tokens: Vec::new(), logits: None }
    }

    /// A chain of `n` tokens after `token`, which follows those in `slot`, with their logits.
    pub fn with_logits(slot: u32, next: (usize, u32), n: usize) -> Self {
        Self { slot, next, most: n, p_min: 0.0, min: 0, tokens: Vec::new(), logits: Some(Vec::new()) }
    }

    /// The drafted tokens and their logits.
    pub fn into_logits(self) -> (Vec<u32>, Vec<f32>) {
        (self.tokens, self.logits.unwrap_or_default())
    }

    /// The drafted tokens.
    pub fn into_tokens(self) -> Vec<u32> {
        if self.tokens.len() < self.min { Vec::new() } else { self.tokens }
    }
}

impl Block {
    /// A block whose program was compiled as `exec`. `of_model` is the norm of the model's last layer,
    /// `trunk` its program.
    ///
    /// # Errors
    /// As [`RowNorm::read`].
    pub fn new(exec: Exec, block: &DraftBlock, of_model: RowNorm, trunk: &Program) -> Result<Self, Error> {
        let DraftBlock { program, weights, form } = block;
        let head = program.logits().expect("a block has a head");
        let row = Row { token: 0, pos: 0, seq: 0, logits: true };
        let step = Step { rows: &[row], pages: &PageTable::new(0, 0), sampling: &[], changes: &[] };
        let joint = form.fusion.as_ref().map(|of| {
            let taps = of.layers.iter().map(|layer| start_of(trunk, *layer)).collect();
            let of_embedding = RowNorm::read(&of.embedding_norm, weights)?;
            let of_hidden = RowNorm::read(&of.hidden_norm, weights)?;
            Ok::<_, Error>(Joint { taps, of: of.clone(), of_embedding, of_hidden })
        });
        Ok(Self {
            exec,
            form: form.clone(),
            n_stages: program.stages.len(),
            logits: head.logits,
            n_vocab: trunk.logits().map_or(0, |head| trunk.buf_decl(head.logits).cols),
            n_head: program.buf_decl(head.logits).cols,
            cols: of_model.weight.len(),
            dim: program.buf_decl(form.hidden).cols,
            of_model,
            of_block: form.next_norm.as_ref().map(|norm| RowNorm::read(norm, weights)).transpose()?,
            joint: joint.transpose()?,
            inputs: vec![Inputs::default(); program.limits.seqs],
            cost: program.cost(&step).bytes(),
        })
    }

    /// Stages of the model before which [`fill`](Self::fill) needs the rows of its residual stream, in order;
    /// empty if it needs those after the last stage.
    pub fn taps(&self) -> &[usize] {
        self.joint.as_ref().map_or(&[], |joint| &joint.taps)
    }

    /// Forgets the rows of a slot.
    pub fn forget(&mut self, slot: u32) {
        self.inputs[slot as usize] = Inputs::default();
    }

    /// Copies the rows of slot `from` to slot `to`, which continues a prefix of its tokens.
    pub fn fork(&mut self, from: u32, to: u32) {
        self.inputs[to as usize] = self.inputs[from as usize].clone();
    }

    /// As [`Backend::page_bytes`].
    pub fn page_bytes(&self, backend: &dyn Backend, page: KvPage) -> usize {
        backend.page_bytes(self.exec, page)
    }

    /// As [`Backend::read_page`].
    pub fn read_page(&self, backend: &mut dyn Backend, page: KvPage, out: &mut [u8]) -> Result<(), Error> {
        // A block has no sliding windows and no states, and the assistant no caches.
        if out.is_empty() { Ok(()) } else { Ok(backend.read_page(self.exec, page, out)?) }
    }

    /// As [`Backend::write_page`].
    pub fn write_page(&self, backend: &mut dyn Backend, page: KvPage, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() { Ok(()) } else { Ok(backend.write_page(self.exec, page, bytes)?) }
    }

    /// The block's input at a position of a slot; `None` if the row before it is not known. Position 0 has a
    /// zero row.
    fn input(&self, slot: u32, at: usize) -> Option<&[f32]> {
        let Inputs { first, rows } = &self.inputs[slot as usize];
        rows.chunks_exact(self.dim).nth(at.checked_sub(*first)?)
    }

    /// Returns the block's inputs for rows of the model whose hidden rows are `x`, `[rows, dim]`. After
    /// cached pages, whose rows are not known, the first input is zero.
    fn take(&mut self, rows: &[Row], x: &[f32]) -> Vec<f32> {
        let dim = self.dim;
        let mut inputs = Vec::with_capacity(x.len());
        let mut x = x;
        for run in rows.chunk_by(|a, b| a.seq == b.seq) {
            let (first, slot) = (run[0].pos as usize, run[0].seq);
            let (own, others) = x.split_at(run.len() * dim);
            x = others;
            let before = if first == 0 { None } else { self.input(slot, first) };
            let mut all = before.map_or_else(|| vec![0.0; dim], <[f32]>::to_vec);
            all.extend_from_slice(own);
            inputs.extend_from_slice(&all[..run.len() * dim]);
            // A sequence resumes at its first row or later, and never more than a page back.
            let skipped = (run.len() + 1).saturating_sub(PAGE + 1);
            all.drain(..skipped * dim);
            self.inputs[slot as usize] = Inputs { first: first + skipped, rows: all };
        }
        inputs
    }

    /// Number of columns of the model's rows.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Writes the keys and values of rows that the model just ran; `x` are its rows of them, `[rows, cols]`,
    /// or those of all [taps](Self::taps), `[rows, taps * cols]`.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn fill(
        &mut self,
        backend: &mut dyn Backend,
        pages: &PageTable,
        rows: &[Row],
        mut x: Vec<f32>,
    ) -> Result<(), Error> {
        let placed: Vec<Row> = rows.iter().map(|row| Row { logits: false, ..self.placed(*row) }).collect();
        let step = Step { rows: &placed, pages, sampling: &[], changes: &[] };
        match &self.joint {
            None => self.of_model.apply_to_rows(&mut x),
            Some(Joint { of, .. }) => {
                backend.write(self.exec, of.rows, 0, &x)?;
                backend.run_stages(self.exec, 0..of.n_stages, &step)?;
                x.resize(rows.len() * self.dim, 0.0);
                backend.read(self.exec, of.fused, 0, &mut x)?;
            }
        }
        let inputs = self.take(rows, &x);
        self.run(backend, &step, &inputs, self.form.n_fill)
    }

    /// The row at the position at which the block runs it.
    fn placed(&self, row: Row) -> Row {
        Row { pos: if self.form.reads_model { row.pos.saturating_sub(1) } else { row.pos }, ..row }
    }

    /// Runs the stages before `end` on rows with these inputs, `[rows, dim]`.
    fn run(
        &self,
        backend: &mut dyn Backend,
        step: &Step<'_>,
        inputs: &[f32],
        end: usize,
    ) -> Result<(), Error> {
        let Some(Joint { of, of_embedding, of_hidden, .. }) = &self.joint else {
            backend.write(self.exec, self.form.hidden, 0, inputs)?;
            return match end {
                0 => Ok(()),
                end if end == self.n_stages => Ok(backend.run(self.exec, step)?),
                end => Ok(backend.run_stages(self.exec, 0..end, step)?),
            };
        };
        backend.run_stages(self.exec, of.n_stages..of.n_stages + 1, step)?;
        let mut embedding = vec![0.0; inputs.len()];
        backend.read(self.exec, of.embedding, 0, &mut embedding)?;
        of_embedding.apply_to_rows(&mut embedding);
        let mut hidden = inputs.to_vec();
        of_hidden.apply_to_rows(&mut hidden);
        let rows = embedding.chunks_exact(self.dim).zip(hidden.chunks_exact(self.dim));
        let joined: Vec<f32> = rows.flat_map(|(embedding, hidden)| [embedding, hidden].concat()).collect();
        backend.write(self.exec, of.joined, 0, &joined)?;
        let residual = if of.residual_is_normed { &hidden } else { inputs };
        backend.write(self.exec, self.form.hidden, 0, residual)?;
        Ok(backend.run_stages(self.exec, of.n_stages + 1..end, step)?)
    }

    /// The logits of the rows that [`fill`](Self::fill) got last, `[rows, n_vocab]`: negative infinity for
    /// tokens that the head does not have. A block that reads the model's caches has none at position 0: its
    /// row there means nothing.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn logits(
        &self,
        backend: &mut dyn Backend,
        pages: &PageTable,
        rows: &[Row],
        out: &mut [f32],
    ) -> Result<(), Error> {
        let rows: Vec<Row> = rows.iter().map(|row| Row { logits: true, ..self.placed(*row) }).collect();
        let step = Step { rows: &rows, pages, sampling: &[], changes: &[] };
        match &self.joint {
            None => backend.run(self.exec, &step)?,
            Some(Joint { of, .. }) => {
                backend.run_stages(self.exec, of.n_stages + 1..self.n_stages, &step)?;
            }
        }
        let mut logits = vec![0.0; rows.len() * self.n_head];
        backend.read(self.exec, self.logits, 0, &mut logits)?;
        let of_rows = logits.chunks_exact(self.n_head).zip(out.chunks_exact_mut(self.n_vocab));
        of_rows.for_each(|(logits, out)| self.spread(logits, out));
        Ok(())
    }

    /// Writes logits of the head's rows to those of their tokens.
    fn spread(&self, logits: &[f32], out: &mut [f32]) {
        let Some(ids) = &self.form.ids else { return out.copy_from_slice(logits) };
        out.fill(f32::NEG_INFINITY);
        ids.iter().zip(logits).for_each(|(id, logit)| out[*id as usize] = *logit);
    }

    /// Drafts all chains together, a token of each per run of the block. The pages of their positions are
    /// allocated.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn draft(
        &self,
        backend: &mut dyn Backend,
        pages: &PageTable,
        chains: &mut [Chain],
    ) -> Result<(), Error> {
        // Chains that grow, each with its next input.
        let mut open: Vec<(usize, Vec<f32>)> = Vec::new();
        for (i, chain) in chains.iter().enumerate().filter(|(_, chain)| chain.most > 0) {
            let input = self.input(chain.slot, chain.next.0);
            open.extend(input.map(|input| (i, input.to_vec())));
        }
        let mut logits = Vec::new();
        while !open.is_empty() {
            let inputs: Vec<f32> = open.iter().flat_map(|(_, input)| input).copied().collect();
            let row = |(i, _): &(usize, Vec<f32>)| {
                let Chain { slot, next: (pos, token), .. } = chains[*i];
                self.placed(Row { token, pos: pos as u32, seq: slot, logits: true })
            };
            let rows: Vec<Row> = open.iter().map(row).collect();
            let sampling = vec![Some(Sampling::GREEDY); rows.len()];
            let step = Step { rows: &rows, pages, sampling: &sampling, changes: &[] };
            self.run(backend, &step, &inputs, self.n_stages)?;
            let mut picked = vec![0; rows.len()];
            backend.tokens(self.exec, 0, &mut picked)?;
            let mut next = inputs;
            backend.read(self.exec, self.form.next, 0, &mut next)?;
            let mut still = Vec::with_capacity(open.len());
            for (row, ((i, _), next)) in open.into_iter().zip(next.chunks_exact_mut(self.dim)).enumerate() {
                let (chain, of_head) = (&mut chains[i], picked[row]);
                if chain.p_min > 0.0 || chain.logits.is_some() {
                    logits.resize(self.n_head, 0.0);
                    backend.read(self.exec, self.logits, row, &mut logits)?;
                    if LogProbs::of(&logits, of_head, 0).picked.exp() < chain.p_min {
                        continue;
                    }
                    if let Some(all) = &mut chain.logits {
                        let first = all.len();
                        all.resize(first + self.n_vocab, 0.0);
                        self.spread(&logits, &mut all[first..]);
                    }
                }
                let token = self.form.ids.as_ref().map_or(of_head, |ids| ids[of_head as usize]);
                chain.tokens.push(token);
                // All rows of a draft that reads the model's caches are at one position.
                let pos = chain.next.0 + usize::from(!self.form.reads_model);
                chain.next = (pos, token);
                if chain.tokens.len() < chain.most {
                    self.of_block.iter().for_each(|norm| norm.apply_to_rows(next));
                    still.push((i, next.to_vec()));
                }
            }
            open = still;
        }
        Ok(())
    }
}

/// The first stage of a layer, or the head's stage for the number of layers.
fn start_of(program: &Program, layer: usize) -> usize {
    let prefix = format!("{layer}.");
    let of_layer = program.stages.iter().position(|(label, _)| label.starts_with(&prefix));
    let head = || program.stages.iter().position(|(_, stage)| matches!(stage, Stage::Logits(_)));
    of_layer.or_else(head).expect("a model that drafts are made for has a head")
}

/// The weight of the model that is weight `at` of the block.
pub(super) fn shared(block: &DraftBlock, at: usize, trunk: &Program) -> Option<Weight> {
    let decl = &block.program.weights[at];
    let same = |own: &WeightDecl| {
        own.name == decl.name && own.ty.is(decl.ty) && (own.rows, own.cols) == (decl.rows, decl.cols)
    };
    let found = trunk.weights.iter().position(same).filter(|_| block.is_lent(&decl.name));
    found.map(|at| Weight(at as u32))
}

/// Bytes of the block on a backend that plans `all` for its program: without weights and caches of the model.
pub(super) fn own_plan(block: &DraftBlock, trunk: &Program, all: Plan) -> Plan {
    let of_model = (0..block.program.weights.len()).filter(|at| shared(block, *at, trunk).is_some());
    let bytes = of_model.map(|at| &block.program.weights[at]);
    let bytes = bytes.map(|decl| decl.ty.byte_len(decl.rows, decl.cols).unwrap_or(0) as u64);
    let kv_bytes = if block.form.reads_model { 0 } else { all.kv_bytes };
    Plan { weights_bytes: all.weights_bytes.saturating_sub(bytes.sum()), kv_bytes, ..all }
}

/// Adds the memory of the block to the device of the model's last layer.
pub(super) fn add_memory(devices: &mut [DeviceMemory], block: &DraftBlock, own: Plan) {
    let Some(device) = devices.last_mut() else { return };
    let of = if block.form.lent.is_none() { "MTP block" } else { "draft file" };
    let parts = [
        (MemoryKind::Weights, of.to_owned(), own.weights_bytes),
        (MemoryKind::Kv, format!("KV cache of the {of}"), own.kv_bytes),
        (MemoryKind::Buffers, format!("buffers of the {of}"), own.bufs_bytes),
    ];
    let parts = parts.into_iter().filter(|(_, _, bytes)| *bytes > 0);
    device.parts.extend(parts.map(|(kind, name, bytes)| MemoryPart { kind, name, bytes }));
}
