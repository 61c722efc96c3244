//! The CPU backend: one file per stage, over kernels that are selected at run time.
//!
//! `simd/`, a separate crate, contains the arithmetic, `linear/` the linear layers, `pool.rs` the threads,
//! `kv/` the cache and `alloc.rs` the memory, which is allocated or, for the plan, counted. None of these
//! knows a stage. `stream/` handles weights that do not fit in memory. Nothing here knows a model, a file
//! format or another backend. Start at [`Cpu`], then `proj_add.rs`.

mod add_vector;
mod alloc;
mod altup;
mod attend;
mod attn_in;
mod conv;
mod cx;
mod delta;
mod embed;
mod exec;
mod experts;
mod ffn_in;
mod head_proj;
mod kv;
mod latent_in;
mod layer;
pub mod linear;
mod logits;
mod lora;
mod mamba;
mod norm;
mod norm_add;
mod numa;
pub mod pool;
mod proj_add;
mod proj_in;
mod rope;
mod sample;
mod scratch;
mod states;
pub mod stream;
mod system;
mod weights;

pub use sterna_cpu_kernels as simd;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType, types};

use crate::{
    Auto, Backend, BackendError, DeviceMemory, DeviceOptions, Entry, Exec, KvPage, Opened, OptionId, Plan,
    StageTime, WeightId, WeightRows,
};
use exec::Compiled;
use linear::CpuWeight;
use numa::Places;
use pool::Pool;
use simd::{Format, Kernels};
use sterna_program::{ActQuant, Buf, Program, Sampling, Step};
use stream::{FileWeight, Layout, Streaming, WeightLocation};
use system::NAME;
use weights::StoredWeight;

/// The CPU backend in the registry.
pub const ENTRY: Entry = Entry {
    name: NAME,
    about: "the processor",
    options: &[OptionId::ResidentLayers, OptionId::StreamSlots, OptionId::Numa, OptionId::Profile],
    auto: Some(Auto { rank: 0, is_there: || true }),
    devices: |threads| {
        let memory = system::memory().map_or_else(String::new, |memory| format!("; {memory}"));
        vec![Cpu::new(threads).map(|cpu| cpu.device() + &memory)]
    },
    code: None,
    open,
    on_paper: None,
};

fn open(options: &DeviceOptions, threads: usize) -> Opened {
    let (streaming, profile) = (Streaming::new(options)?, options.is_profiled()?);
    let places = Places::new(options.numa, threads.max(1))?;
    let cpu = Cpu::on(Pool::placed(threads, places), simd::best())?.streamed(streaming);
    Ok(Box::new(Cpu { profile, ..cpu }))
}

/// Runs programs on the processor.
pub struct Cpu {
    pool: Pool,
    kernels: &'static Kernels,
    streaming: Streaming,
    /// True if stages are timed.
    profile: bool,
    /// Locations of the prepared program's weights by name; empty unless some of them stay in a file.
    places: HashMap<String, WeightLocation>,
    /// Note for the user, if any.
    note: Option<String>,
    weights: Vec<StoredWeight>,
    execs: Vec<Compiled>,
}

impl Cpu {
    /// A backend of `threads` threads, the calling one included, with the best kernels for this machine.
    ///
    /// # Errors
    /// [`BackendError::Device`] if the system refuses to start a thread.
    pub fn new(threads: usize) -> Result<Self, BackendError> {
        Self::with_kernels(threads, simd::best())
    }

    /// As [`new`](Self::new), with kernels of the caller's choice: see [`simd::all`].
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_kernels(threads: usize, kernels: &'static Kernels) -> Result<Self, BackendError> {
        Self::on(Pool::new(threads), kernels)
    }

    fn on(pool: std::io::Result<Pool>, kernels: &'static Kernels) -> Result<Self, BackendError> {
        let pool = pool.map_err(|err| BackendError::Device {
            backend: NAME,
            call: "starting a thread",
            detail: err.to_string(),
        })?;
        let (streaming, places, weights, execs) = Default::default();
        Ok(Self { pool, kernels, streaming, profile: false, places, note: None, weights, execs })
    }

    /// Returns the backend with this choice of weights that stay in memory or are read in every step.
    #[must_use]
    pub fn streamed(self, streaming: Streaming) -> Self {
        Self { streaming, ..self }
    }

    /// Plans the memory of a program and the location of its weights.
    fn planned(&self, p: &Program, device: String) -> Result<(DeviceMemory, Layout), BackendError> {
        let device = DeviceMemory::of(device, Vec::new());
        exec::plan(p, self.kernels, self.pool.threads(), &self.streaming, device)
    }

    /// Compiles a program with caches of its own, or with those of `lender`.
    fn compile_with(
        &mut self,
        p: &Program,
        weights: &[WeightId],
        lender: Option<Exec>,
    ) -> Result<Exec, BackendError> {
        let weights = weights.iter().map(|id| self.weights[id.0 as usize].clone()).collect();
        let (slots, threads) = (self.streaming.slots, self.pool.threads());
        let mut compiled = Compiled::new(p, weights, (self.kernels, threads), slots, lender)?;
        compiled.times = self.profile.then(|| vec![StageTime::default(); p.stages.len()]);
        self.execs.push(compiled);
        Ok(Exec(self.execs.len() as u32 - 1))
    }

    /// Number of times that a step needed other pieces than those read ahead; `None` if no weights are read.
    pub fn wrong_guesses(&self, e: Exec) -> Option<u64> {
        self.execs[e.0 as usize].wrong_guesses()
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> String {
        let threads = self.pool.threads();
        let plural = if threads == 1 { "" } else { "s" };
        format!("{}, {threads} thread{plural}, {} kernels", system::model(), self.kernels.name)
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn plan(&self, p: &Program) -> Result<Plan, BackendError> {
        Ok(self.planned(p, String::new())?.0.plan())
    }

    fn memory(&self, p: &Program) -> Result<Vec<DeviceMemory>, BackendError> {
        Ok(vec![self.planned(p, self.device())?.0])
    }

    fn prepare(&mut self, p: &Program) -> Result<(), BackendError> {
        let (_, layout) = self.planned(p, String::new())?;
        self.places = if layout.reads_files() { layout.places(p) } else { HashMap::new() };
        self.note = layout.note();
        Ok(())
    }

    fn upload_rows(&mut self, w: &dyn WeightRows) -> Result<WeightId, BackendError> {
        let decl = w.decl();
        match self.places.get(&decl.name) {
            None => return self.upload(&w.read(0..decl.rows)?),
            Some(WeightLocation::Memory) => return self.upload(&stream::in_memory(w)?),
            Some(WeightLocation::File) => {
                let weight = FileWeight::new(w, self.streaming.piece_bytes)?;
                self.weights.push(StoredWeight::File(Arc::new(weight)));
            }
        }
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError> {
        let mut w = w.clone();
        // Vectors are read as f32 slices. A mapped file has them aligned, other callers may not.
        if w.ty.is(&types::F32) && w.rows == 1 && bytemuck::try_cast_slice::<u8, f32>(&w.bytes).is_err() {
            let floats = w.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            w.bytes = Bytes::from_owner(Floats(floats.collect()));
        }
        self.weights.push(StoredWeight::Memory(CpuWeight::new(&w)));
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    fn compile(&mut self, p: &Program, weights: &[WeightId]) -> Result<Exec, BackendError> {
        self.compile_with(p, weights, None)
    }

    fn shares_caches(&self) -> bool {
        true
    }

    fn compile_reading(&mut self, p: &Program, weights: &[WeightId], of: Exec) -> Result<Exec, BackendError> {
        self.compile_with(p, weights, Some(of))
    }

    fn run(&mut self, e: Exec, step: &Step<'_>) -> Result<(), BackendError> {
        let n_stages = self.execs[e.0 as usize].n_stages();
        self.run_stages(e, 0..n_stages, step)
    }

    fn read(&mut self, e: Exec, b: Buf, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let buf = &self.execs[e.0 as usize].bufs[b.0 as usize];
        out.copy_from_slice(&buf.values[first_row * buf.cols..][..out.len()]);
        Ok(())
    }

    fn write(&mut self, e: Exec, b: Buf, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        let buf = &mut self.execs[e.0 as usize].bufs[b.0 as usize];
        buf.values[first_row * buf.cols..][..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError> {
        let tokens = &self.execs[e.0 as usize].tokens[first_row..][..out.len()];
        out.iter_mut().zip(tokens).for_each(|(out, token)| *out = token.map_or(*out, |pick| pick.token));
        Ok(())
    }

    fn default_act_quant(&self, weights: &dyn QuantType) -> ActQuant {
        if Format::of(weights).has_blocks() { ActQuant::I8PerBlock } else { ActQuant::None }
    }

    /// `run` returns only when the step is finished, so queueing a step ahead would only delay its token.
    fn runs_ahead(&self, _: Exec, _: &Sampling) -> bool {
        false
    }

    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError> {
        Ok(self.execs[e.0 as usize].pick(seq, back).token)
    }

    fn picked_from_broken(&self, e: Exec, seq: u32, back: usize) -> Option<bool> {
        Some(self.execs[e.0 as usize].pick(seq, back).from_broken)
    }

    fn stage_times(&self, e: Exec) -> Option<Vec<StageTime>> {
        self.execs[e.0 as usize].times.clone()
    }

    fn row_is_broken(&self, e: Exec, row: usize) -> Option<bool> {
        self.execs[e.0 as usize].tokens[row].map(|pick| pick.from_broken)
    }

    fn clamped(&mut self, e: Exec) -> Result<Option<u64>, BackendError> {
        Ok(Some(self.execs[e.0 as usize].clamped()))
    }

    fn page_bytes(&self, e: Exec, page: KvPage) -> usize {
        self.execs[e.0 as usize].page_bytes(page)
    }

    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError> {
        self.execs[e.0 as usize].read_page(page, out);
        Ok(())
    }

    fn write_page(&mut self, e: Exec, page: KvPage, bytes: &[u8]) -> Result<(), BackendError> {
        self.execs[e.0 as usize].write_page(page, bytes);
        Ok(())
    }

    fn run_stages(&mut self, e: Exec, range: Range<usize>, step: &Step<'_>) -> Result<(), BackendError> {
        let at = e.0 as usize;
        let Some(Exec(lender)) = self.execs[at].lender else {
            return self.execs[at].run(&self.pool, self.kernels, range, step);
        };
        self.execs[at].kvs = std::mem::take(&mut self.execs[lender as usize].kvs);
        let ran = self.execs[at].run(&self.pool, self.kernels, range, step);
        self.execs[lender as usize].kvs = std::mem::take(&mut self.execs[at].kvs);
        ran
    }
}

/// Owned floats that can be viewed as bytes.
struct Floats(Vec<f32>);

impl AsRef<[u8]> for Floats {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}
