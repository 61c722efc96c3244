//! Drafts by the model's own multi-token prediction (MTP) block: a second program with one layer, whose
//! inputs are the model's normalised rows.
//!
//! After each step of the model, the block's keys and values of the same rows are written, in the same pages.
//! Rows that are run again overwrite them, so rejected drafts leave no trace.

use super::error::Error;
use super::logprobs::LogProbs;
use super::pool::RowNorm;
use super::sequence::Sequence;
use super::speculate::MtpDrafts;
use sterna_backend::{Backend, DeviceMemory, Exec, KvPage, MemoryKind, MemoryPart};
use sterna_model::MtpBlock;
use sterna_program::{Buf, PAGE, PageTable, Program, Row, Sampling, Step, Weight, WeightDecl};

/// Use of a model's MTP block.
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

/// The error for drafts by a block that the engine does not have.
pub(super) fn none_loaded() -> Error {
    let want = "drafts from n-grams or by a draft model, for a file without an MTP block that is supported";
    Error::Option { option: "EngineOptions::mtp", want: want.into(), got: "drafts by the MTP block".into() }
}

/// The compiled block, and the model's last rows of each slot.
pub(super) struct Block {
    exec: Exec,
    hidden: Buf,
    x: Buf,
    logits: Buf,
    n_vocab: usize,
    dim: usize,
    n_fill: usize,
    /// Norm of the model's last layer.
    of_model: RowNorm,
    /// Norm of the block's layer.
    of_block: RowNorm,
    inputs: Vec<Inputs>,
    /// Bytes read per drafted token at the start of a context.
    pub cost: u64,
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
    /// A block whose program was compiled as `exec`. `of_model` is the norm of the model's last layer.
    ///
    /// # Errors
    /// As [`RowNorm::read`].
    pub fn new(exec: Exec, block: &MtpBlock, of_model: RowNorm) -> Result<Self, Error> {
        let MtpBlock { program, weights, hidden, n_fill } = block;
        let head = program.logits().expect("a block has a head");
        let row = Row { token: 0, pos: 0, seq: 0, logits: true };
        let step = Step { rows: &[row], pages: &PageTable::new(0, 0), sampling: &[], changes: &[] };
        Ok(Self {
            exec,
            hidden: *hidden,
            x: head.x,
            logits: head.logits,
            n_vocab: program.buf_decl(head.logits).cols,
            dim: program.buf_decl(head.x).cols,
            n_fill: *n_fill,
            of_model,
            of_block: RowNorm::read(&head.norm, weights)?,
            inputs: vec![Inputs::default(); program.limits.seqs],
            cost: program.cost(&step).bytes(),
        })
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
        // A block has no sliding windows and no states.
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

    /// Normalises rows of the model, `[rows, dim]`, and returns the block's inputs for them. After cached
    /// pages, whose rows are not known, the first input is zero.
    fn take(&mut self, rows: &[Row], mut x: Vec<f32>) -> Vec<f32> {
        let dim = self.dim;
        x.chunks_exact_mut(dim).for_each(|row| normalise(&self.of_model, row));
        let mut inputs = Vec::with_capacity(x.len());
        let mut x = x.as_slice();
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
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Writes the keys and values of rows that the model just ran; `x` are its rows of them, `[rows, dim]`.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn fill(
        &mut self,
        backend: &mut dyn Backend,
        pages: &PageTable,
        rows: &[Row],
        x: Vec<f32>,
    ) -> Result<(), Error> {
        let inputs = self.take(rows, x);
        backend.write(self.exec, self.hidden, 0, &inputs)?;
        let rows: Vec<Row> = rows.iter().map(|row| Row { logits: false, ..*row }).collect();
        let step = Step { rows: &rows, pages, sampling: &[], changes: &[] };
        Ok(backend.run_stages(self.exec, 0..self.n_fill, &step)?)
    }

    /// The logits of the rows that [`fill`](Self::fill) got last, `[rows, n_vocab]`.
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
        let rows: Vec<Row> = rows.iter().map(|row| Row { logits: true, ..*row }).collect();
        backend.run(self.exec, &Step { rows: &rows, pages, sampling: &[], changes: &[] })?;
        Ok(backend.read(self.exec, self.logits, 0, out)?)
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
            backend.write(self.exec, self.hidden, 0, &inputs)?;
            let row = |(i, _): &(usize, Vec<f32>)| {
                let Chain { slot, next: (pos, token), .. } = chains[*i];
                Row { token, pos: pos as u32, seq: slot, logits: true }
            };
            let rows: Vec<Row> = open.iter().map(row).collect();
            let sampling = vec![Some(Sampling::GREEDY); rows.len()];
            backend.run(self.exec, &Step { rows: &rows, pages, sampling: &sampling, changes: &[] })?;
            let mut tokens = vec![0; rows.len()];
            backend.tokens(self.exec, 0, &mut tokens)?;
            let mut x = vec![0.0; rows.len() * self.dim];
            backend.read(self.exec, self.x, 0, &mut x)?;
            let mut still = Vec::with_capacity(open.len());
            for (row, ((i, _), x)) in open.into_iter().zip(x.chunks_exact_mut(self.dim)).enumerate() {
                let (chain, token) = (&mut chains[i], tokens[row]);
                if chain.p_min > 0.0 || chain.logits.is_some() {
                    logits.resize(self.n_vocab, 0.0);
                    backend.read(self.exec, self.logits, row, &mut logits)?;
                    if LogProbs::of(&logits, token, 0).picked.exp() < chain.p_min {
                        continue;
                    }
                    chain.logits.iter_mut().for_each(|all| all.extend_from_slice(&logits));
                }
                chain.tokens.push(token);
                chain.next = (chain.next.0 + 1, token);
                if chain.tokens.len() < chain.most {
                    normalise(&self.of_block, x);
                    still.push((i, x.to_vec()));
                }
            }
            open = still;
        }
        Ok(())
    }
}

fn normalise(norm: &RowNorm, row: &mut [f32]) {
    let normed: Vec<f32> = norm.apply(row).map(|x| x as f32).collect();
    row.copy_from_slice(&normed);
}

/// The weight of the model that is the same as `decl`.
pub(super) fn shared(decl: &WeightDecl, trunk: &Program) -> Option<Weight> {
    let same = |own: &WeightDecl| {
        own.name == decl.name && own.ty.is(decl.ty) && (own.rows, own.cols) == (decl.rows, decl.cols)
    };
    trunk.weights.iter().position(same).map(|at| Weight(at as u32))
}

/// Bytes of the block's own weights, if all of its weights take `all_bytes`.
pub(super) fn own_bytes(block: &Program, trunk: &Program, all_bytes: u64) -> u64 {
    let of_model = block.weights.iter().filter(|decl| shared(decl, trunk).is_some());
    let bytes = of_model.map(|decl| decl.ty.byte_len(decl.rows, decl.cols).unwrap_or(0) as u64);
    all_bytes.saturating_sub(bytes.sum())
}

/// Adds the memory of the block to the device of the model's last layer.
pub(super) fn add_memory(
    devices: &mut [DeviceMemory],
    of_block: Vec<DeviceMemory>,
    block: &Program,
    trunk: &Program,
) {
    let Some(device) = devices.last_mut() else { return };
    for kind in MemoryKind::ALL {
        let parts = of_block.iter().flat_map(|device| &device.parts).filter(|part| part.kind == kind);
        let all_bytes = parts.map(|part| part.bytes).sum();
        let (name, bytes) = match kind {
            MemoryKind::Weights => ("MTP block", own_bytes(block, trunk, all_bytes)),
            MemoryKind::Kv => ("KV cache of the MTP block", all_bytes),
            MemoryKind::Buffers => ("buffers of the MTP block", all_bytes),
        };
        if bytes > 0 {
            device.parts.push(MemoryPart { kind, name: name.to_owned(), bytes });
        }
    }
}
