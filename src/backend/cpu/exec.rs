//! A compiled program: its memory, all allocated before the first step, and the execution of a step.

use std::ops::Range;

use super::alloc::{Counter, PartAllocator};
use super::cx::{Buffer, Cx, Pick, Picks};
use super::kv::{KvCache, Words};
use super::layer::Layers;
use super::linear::{Acts, WorkspaceSize};
use super::lora::Adapters;
use super::pool::Pool;
use super::rope::RopeTable;
use super::scratch::{self, Scratch};
use super::states::States;
use super::stream::{Layout, Reader, Streaming};
use super::system::{self, NAME};
use super::weights::{StoredWeight, Weights};
use super::{
    add_vector, altup, attend, attn_in, conv, delta, embed, experts, ffn_in, head_proj, latent_in, logits,
    mamba, norm_add, proj_add, proj_in, sample,
};
use crate::{BackendError, DeviceMemory, Exec, KvPage, StageTime, assert_declared, memory};
use sterna_cpu_kernels::{Heap, Kernels};
use sterna_host::clock::Instant;
use sterna_program::{BufDecl, CheckError, Program, RopeId, Stage, Step, sampling};

/// A program with its buffers and caches.
pub struct Compiled {
    program: Program,
    weights: Vec<StoredWeight>,
    /// Present if some weights are not in memory.
    reader: Option<Reader>,
    pub bufs: Vec<Buffer>,
    /// Empty between runs of a program that reads the caches of another one.
    pub kvs: Vec<KvCache>,
    /// The program whose caches it reads, if it has none of its own.
    pub lender: Option<Exec>,
    states: Vec<States>,
    ropes: Vec<RopeTable>,
    acts: Acts,
    adapters: Adapters,
    scratch: Scratch,
    /// Buffer for one row of a table that is not in memory.
    file_row: Vec<u8>,
    /// Indices of the current step's rows whose logits are requested.
    outputs: Vec<usize>,
    /// Token picked from each output row.
    pub tokens: Vec<Option<Pick>>,
    /// One per slot.
    picks: Vec<Picks>,
    /// One per stage, if stages are timed.
    pub times: Option<Vec<StageTime>>,
}

/// Sizes of the stages' scratch memory, in elements.
#[derive(Default)]
struct Sizes {
    added: usize,
    kv_cols: usize,
    gated_cols: usize,
    has_share: bool,
    product_cols: usize,
    n_vocab: usize,
    attend: scratch::attend::Shape,
    delta: scratch::delta::Shape,
    experts: scratch::experts::Shape,
}

impl Sizes {
    fn of(p: &Program) -> Self {
        let mut sizes = Self { n_vocab: p.picked_from(), ..Self::default() };
        for (_, stage) in &p.stages {
            match stage {
                Stage::Embed(s) if s.positions.or(s.types).is_some() => {
                    sizes.added = sizes.added.max(p.buf_decl(s.x).cols);
                }
                Stage::AttnIn(s) => {
                    let kv = p.kv_decl(s.kv);
                    sizes.kv_cols = sizes.kv_cols.max(kv.n_kv_heads * kv.head_dim);
                    let gated_cols = s.gate.map_or(0, |gate| 2 * p.buf_decl(gate).cols);
                    sizes.gated_cols = sizes.gated_cols.max(gated_cols);
                }
                Stage::Attend(s) => {
                    let kv = p.kv_decl(s.kv);
                    let q_cols = p.buf_decl(s.q).cols;
                    sizes.attend = sizes.attend.with(q_cols, kv.n_kv_heads, kv.head_dim);
                }
                Stage::LatentIn(s) => {
                    sizes.kv_cols = sizes.kv_cols.max(p.kv_decl(s.kv).head_dim);
                    sizes.gated_cols = sizes.gated_cols.max(p.weight_decl(s.wq.w).rows);
                    let latent = s.q_latent.iter().map(|(linear, _)| linear);
                    let products = latent.chain(&s.wk).map(|linear| p.weight_decl(linear.w).rows);
                    sizes.product_cols = products.fold(sizes.product_cols, usize::max);
                }
                Stage::HeadProj(s) => {
                    let products = s.w.iter().map(|linear| p.weight_decl(linear.w).rows);
                    sizes.product_cols = products.fold(sizes.product_cols, usize::max);
                }
                Stage::FfnIn(s) => {
                    let product_cols = s.gate.as_ref().map_or(0, |_| p.buf_decl(s.h).cols);
                    sizes.product_cols = sizes.product_cols.max(product_cols);
                    sizes.has_share |= s.share.is_some();
                }
                Stage::Delta(s) => sizes.delta = sizes.delta.with(p, s),
                Stage::Conv(s) if s.before.is_some() => {
                    sizes.product_cols = sizes.product_cols.max(p.buf_decl(s.u).cols);
                }
                Stage::Experts(s) => sizes.experts = sizes.experts.with(p, s),
                Stage::ProjAdd(s) if s.post.is_some() => {
                    sizes.product_cols = sizes.product_cols.max(p.buf_decl(s.x).cols);
                }
                Stage::Embed(_)
                | Stage::ProjIn(_)
                | Stage::Conv(_)
                | Stage::Mamba(_)
                | Stage::ProjAdd(_)
                | Stage::NormAdd(_)
                | Stage::AltUpPredict(_)
                | Stage::AltUpCorrect(_)
                | Stage::Rescale(_)
                | Stage::AddVector(_)
                | Stage::Logits(_)
                | Stage::Sample(_) => {}
            }
        }
        sizes
    }
}

/// Workspace that is large enough for the inputs of every linear layer.
fn workspace_size(p: &Program, k: &Kernels) -> WorkspaceSize {
    let mut size = WorkspaceSize::default();
    for (_, stage) in &p.stages {
        let (rows, linears) = stage.linears();
        for linear in linears {
            let w = p.weight_decl(linear.w);
            size = size.with(k, w.ty, w.cols, linear.act, p.max_rows(rows));
        }
    }
    size
}

/// Computes the memory of a program on a device, including its weights, and the weights' locations.
pub fn plan(
    p: &Program,
    k: &Kernels,
    threads: usize,
    streaming: &Streaming,
    device: DeviceMemory,
) -> Result<(DeviceMemory, Layout), BackendError> {
    let mut counter = Counter::default();
    Memory::new(&mut counter, p, k, threads, true)?;
    let free_bytes = system::free_bytes().into_iter().chain(streaming.most_bytes).min();
    let layout = Layout::new(p, streaming, free_bytes, counter.bytes());
    layout.count(&mut counter, p);
    let parts = counter.parts();
    let (file_bytes, streamed_layers) = (layout.file_bytes(), layout.n_streamed());
    Ok((DeviceMemory { parts, file_bytes, streamed_layers, free_bytes, ..device }, layout))
}

/// The memory that a program's steps use.
struct Memory {
    bufs: Vec<Buffer>,
    kvs: Vec<Words>,
    states: Vec<States>,
    ropes: Vec<RopeTable>,
    acts: Acts,
    adapters: Adapters,
    scratch: Scratch,
}

impl Memory {
    /// Allocates the memory, or only counts it if `on` is a counter.
    fn new<A: PartAllocator>(
        on: &mut A,
        p: &Program,
        k: &Kernels,
        threads: usize,
        has_caches: bool,
    ) -> Result<Self, BackendError> {
        p.check()?;
        let fail = |label: &str, err: &dyn std::fmt::Display| {
            BackendError::Program(CheckError { label: label.to_owned(), detail: err.to_string() })
        };
        for w in &p.weights {
            w.ty.byte_len(w.rows, w.cols).map_err(|err| fail(&w.name, &err))?;
        }
        let words = |kv| KvCache::words(on, kv, p.limits).map_err(|err| fail("kvs", &err));
        let kvs = p.kvs.iter().filter(|_| has_caches).map(words).collect::<Result<_, _>>()?;
        let states = p.states.iter().map(|decl| States::new(on, *decl, p.limits)).collect();
        let (sizes, rows) = (Sizes::of(p), p.limits.rows);
        let buf = |decl: &BufDecl| {
            let elems = p.max_rows(decl.rows).saturating_mul(decl.cols);
            Buffer { cols: decl.cols, values: on.buffers(memory::buffer_part(decl)).aligned(elems) }
        };
        let bufs = p.bufs.iter().map(buf).collect();
        let acts = Acts::on(on.buffers("quantised layer inputs"), &workspace_size(p, k), threads);
        let adapters = Adapters::new(on.buffers("inputs and products of adapters"), p, k, threads);
        let products = on.buffers("new keys, values and products");
        let added = products.zeros(sizes.added);
        let share = products.zeros(if sizes.has_share { rows } else { 0 });
        let [k, v, gated, product] = [sizes.kv_cols, sizes.kv_cols, sizes.gated_cols, sizes.product_cols]
            .map(|cols| products.aligned(rows.saturating_mul(cols)));
        let runs = products.room(if p.states.is_empty() { 0 } else { rows });
        let (attend, pages) = (on.buffers("attention"), p.limits.pages);
        let attend = scratch::attend::Scratch::new(attend, sizes.attend, rows, pages, threads);
        let delta = scratch::delta::Scratch::new(on.buffers("delta nets"), sizes.delta, rows);
        let experts = scratch::experts::Scratch::new(on.buffers("experts"), sizes.experts, rows);
        let rope = |rope| RopeTable::new(on.buffers("RoPE"), rope, rows);
        let ropes = p.ropes.iter().map(rope).collect();
        let room = |_| sampling::Scratch::within(on.buffers("sampling").room(sizes.n_vocab));
        let sampling = (0..threads).map(room).collect();
        let scratch = Scratch { added, k, v, gated, share, product, runs, attend, delta, experts, sampling };
        Ok(Self { bufs, kvs, states, ropes, acts, adapters, scratch })
    }
}

/// Bytes of the largest row among the tables that are not in memory.
fn row_space(p: &Program, weights: &[StoredWeight]) -> usize {
    let tables = p.stages.iter().flat_map(|(_, stage)| match stage {
        Stage::Embed(s) => [Some(s.table), s.positions, s.types],
        _ => [None; 3],
    });
    let files = tables.flatten().filter_map(|w| weights[w.0 as usize].file());
    files.map(|file| file.row_space()).max().unwrap_or(0)
}

impl Compiled {
    /// Allocates everything that a step needs. `weights[i]` is `p.weights[i]`; weights that are not in memory
    /// are read into `slots` slots. With a `lender`, its caches are used.
    ///
    /// # Panics
    /// If the weights do not match their declarations.
    pub fn new(
        p: &Program,
        weights: Vec<StoredWeight>,
        (k, threads): (&Kernels, usize),
        slots: usize,
        lender: Option<Exec>,
    ) -> Result<Self, BackendError> {
        let (mut counter, has_caches) = (Counter::default(), lender.is_none());
        Memory::new(&mut counter, p, k, threads, has_caches)?;
        let others = DeviceMemory::of(String::new(), counter.parts());
        DeviceMemory { free_bytes: system::free_bytes(), ..others }.plan().check_free(NAME)?;
        assert_declared(p, weights.iter().map(StoredWeight::shape).map(|w| (w.ty, w.rows, w.cols)));
        let limits = p.limits;
        let Memory { bufs, kvs, states, ropes, acts, adapters, scratch } =
            Memory::new(&mut Heap, p, k, threads, has_caches)?;
        let kvs = p.kvs.iter().zip(kvs).map(|(kv, words)| KvCache::new(kv, limits, words)).collect();
        Ok(Self {
            bufs,
            kvs,
            lender,
            states,
            ropes,
            acts,
            adapters,
            scratch,
            file_row: vec![0; row_space(p, &weights)],
            outputs: Vec::with_capacity(limits.outputs),
            tokens: Vec::with_capacity(limits.outputs),
            picks: vec![Picks::default(); limits.seqs],
            times: None,
            reader: Reader::new(p, &weights, slots)?,
            program: p.clone(),
            weights,
        })
    }

    /// Number of vectors that the caches had to clamp.
    pub fn clamped(&self) -> u64 {
        self.kvs.iter().map(KvCache::clamped).sum()
    }

    /// Bytes of a page, summed over all caches.
    pub fn page_bytes(&self, page: KvPage) -> usize {
        let of_states: usize = self.states.iter().map(|states| states.page_bytes(page)).sum();
        of_states + self.kvs.iter().map(|kv| kv.page_bytes(page)).sum::<usize>()
    }

    /// Copies a page of every cache to `out`, one cache after another.
    pub fn read_page(&self, page: KvPage, out: &mut [u8]) {
        let left = self.kvs.iter().fold(out, |out, kv| kv.read_page(page, out));
        let left = self.states.iter().fold(left, |out, states| states.read_page(page, out));
        assert!(left.is_empty(), "the buffer has the size of a page");
    }

    /// The reverse of [`read_page`](Self::read_page).
    pub fn write_page(&mut self, page: KvPage, bytes: &[u8]) {
        let left = self.kvs.iter_mut().fold(bytes, |bytes, kv| kv.write_page(page, bytes));
        let left = self.states.iter_mut().fold(left, |bytes, states| states.write_page(page, bytes));
        assert!(left.is_empty(), "the buffer has the size of a page");
    }

    /// Returns the token picked for a slot `back` runs ago.
    ///
    /// # Panics
    /// If there is no such pick.
    pub fn pick(&self, seq: u32, back: usize) -> Pick {
        self.picks[seq as usize][back].unwrap_or_else(|| panic!("slot {seq} has no pick {back} runs ago"))
    }

    /// Number of stages of the program.
    pub fn n_stages(&self) -> usize {
        self.program.stages.len()
    }

    /// Number of times that the pieces read ahead were not those that were needed; `None` without a reader.
    pub fn wrong_guesses(&self) -> Option<u64> {
        self.reader.as_ref().map(Reader::wrong_guesses)
    }

    /// Runs the stages in `range`.
    ///
    /// # Errors
    /// If a weight that is not in memory cannot be read.
    ///
    /// # Panics
    /// If the step does not fit the program.
    pub fn run(
        &mut self,
        pool: &Pool,
        k: &Kernels,
        range: Range<usize>,
        step: &Step<'_>,
    ) -> Result<(), BackendError> {
        let stages = &self.program.stages[range.clone()];
        self.program.assert_fits(stages, step);
        self.outputs.clear();
        self.outputs.extend(step.rows.iter().enumerate().filter(|(_, row)| row.logits).map(|(i, _)| i));
        for (i, rope) in self.ropes.iter_mut().enumerate() {
            let rotates = |stage: &Stage| match stage {
                Stage::AttnIn(s) => s.rope == Some(RopeId(i as u32)),
                Stage::LatentIn(s) => s.rope == RopeId(i as u32),
                _ => false,
            };
            if stages.iter().any(|(_, stage)| rotates(stage)) {
                rope.prepare(pool, step);
            }
        }
        self.adapters.prepare(step);
        let weights = Weights(&self.weights);
        let mut cx = Cx {
            k,
            pool,
            step,
            outputs: &self.outputs,
            weights,
            layers: Layers {
                k,
                pool,
                weights,
                bases: &self.program.bases,
                reader: self.reader.as_ref(),
                acts: &mut self.acts,
                adapters: &mut self.adapters,
            },
            bufs: &mut self.bufs,
            kvs: &mut self.kvs,
            states: &mut self.states,
            ropes: &self.ropes,
            bases: &self.program.bases,
            scratch: &mut self.scratch,
            file_row: &mut self.file_row,
            tokens: &mut self.tokens,
            picks: &mut self.picks,
        };
        let Some(times) = &mut self.times else {
            return stages.iter().try_for_each(|(_, stage)| run_stage(&mut cx, stage));
        };
        stages.iter().zip(&mut times[range]).try_for_each(|((_, stage), time)| {
            let start = Instant::now();
            run_stage(&mut cx, stage)?;
            time.calls += 1;
            time.nanoseconds += start.elapsed().as_nanos() as u64;
            Ok(())
        })
    }
}

/// Runs one stage.
fn run_stage(cx: &mut Cx<'_>, stage: &Stage) -> Result<(), BackendError> {
    match stage {
        Stage::Embed(s) => return embed::run(cx, s),
        Stage::AttnIn(s) => return attn_in::run(cx, s),
        Stage::LatentIn(s) => return latent_in::run(cx, s),
        Stage::Attend(s) => attend::run(cx, s),
        Stage::ProjIn(s) => return proj_in::run(cx, s),
        Stage::Conv(s) => conv::run(cx, s),
        Stage::HeadProj(s) => return head_proj::run(cx, s),
        Stage::Delta(s) => delta::run(cx, s),
        Stage::Mamba(s) => mamba::run(cx, s),
        Stage::ProjAdd(s) => return proj_add::run(cx, s),
        Stage::NormAdd(s) => norm_add::run(cx, s),
        Stage::AltUpPredict(s) => altup::predict(cx, s),
        Stage::AltUpCorrect(s) => altup::correct(cx, s),
        Stage::Rescale(s) => altup::rescale(cx, s),
        Stage::AddVector(s) => add_vector::run(cx, s),
        Stage::FfnIn(s) => return ffn_in::run(cx, s),
        Stage::Experts(s) => return experts::run(cx, s),
        Stage::Logits(s) => return logits::run(cx, s),
        Stage::Sample(s) => sample::run(cx, s),
    }
    Ok(())
}
