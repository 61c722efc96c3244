//! The backend on one GPU: uploads weights, compiles programs and runs them.

use std::ops::Range;

use ggml_types::{HostTensor, QuantType};

use super::driver::{Driver, Limits};
use super::exec::{self, Compiled, Streamed};
use super::host::{Host, Processor, Stages};
use super::linear::geometry::octets_shared_bytes;
use super::profile::Profiling;
use super::sample;
use super::stream::{Layout, Stream, Streaming};
use super::weight::{DeviceWeight, Mma, Products, WeightFormat};
use crate::{
    Backend, BackendError, DeviceMemory, Exec, KvPage, MinBatch, Octets, Opened, OptionId, OtherKernels,
    Plan, StageTime, WeightId,
};
use sterna_program::{ActQuant, Buf, Linear, Program, Sampling, Step, Weight};

/// Kernels that stream octets, which are faster than others on a GPU.
#[derive(Clone, Copy, Default)]
struct Faster {
    few: bool,
    prompts: bool,
}

/// The kernels that stream octets for a few rows, and those for more: their names for messages, and the rows
/// that each of them is timed with.
const OF_FEW: OtherKernels = OtherKernels { name: "octets", rows: &[8, 16, 32, 64] };
const OF_PROMPTS: OtherKernels =
    OtherKernels { name: "octets for prompts", rows: &[OtherKernels::MOST_ROWS] };

/// Runs programs on a GPU.
pub struct Cuda {
    pub(super) driver: Box<dyn Driver>,
    /// The choice between kernels that stream octets and others, and what a self-test has found to be faster.
    octets: Octets,
    faster: Faster,
    /// The timing of stages, if enabled.
    profiling: Option<Profiling>,
    /// The layers whose weights stay in host memory, if any.
    streaming: Option<Streaming>,
    /// Opens a CPU backend that computes with the weights of such layers, if allowed.
    open_processor: Option<OpenProcessor>,
    processor: Option<Processor>,
    weights: Vec<UploadedWeight>,
    pub(super) execs: Vec<Compiled>,
    /// Notes about the last program.
    note: Option<String>,
}

/// Opens a CPU backend.
type OpenProcessor = Box<dyn Fn() -> Opened + Send>;

/// A weight uploaded by the caller.
#[derive(Default)]
struct UploadedWeight {
    /// The tensor as uploaded, while it is still needed: streamed layers are only known at compile time.
    tensor: Option<HostTensor>,
    card: Option<DeviceWeight>,
    /// The weight on the CPU backend.
    on_processor: Option<WeightId>,
}

struct Placed {
    /// The address of each when its stage runs.
    weights: Vec<DeviceWeight>,
    /// The same, but with streamed weights at their host memory addresses, where kernels read them directly.
    /// Only for experts.
    in_place: Option<Vec<DeviceWeight>>,
    stream: Stream,
}

impl Cuda {
    /// A backend on the caller's driver.
    pub fn on(driver: Box<dyn Driver>) -> Self {
        Self {
            driver,
            octets: Octets::Auto,
            faster: Faster::default(),
            profiling: None,
            streaming: None,
            open_processor: None,
            processor: None,
            weights: Vec::new(),
            execs: Vec::new(),
            note: None,
        }
    }

    /// The same, with a CPU backend that may compute with the weights of streamed layers. It is opened on
    /// first use.
    #[must_use]
    pub fn with_cpu(self, open: impl Fn() -> Opened + Send + 'static) -> Self {
        Self { open_processor: Some(Box::new(open)), ..self }
    }

    /// The same, with a choice of the kernels for a few rows.
    ///
    /// # Errors
    /// If a block of this GPU has too little shared memory for [`Octets::On`].
    pub fn with_octets(self, octets: Octets) -> Result<Self, BackendError> {
        if octets == Octets::On && !self.has_octets() {
            let (have, want) = (self.driver.limits().shared_bytes >> 10, octets_shared_bytes() >> 10);
            let detail = format!("want off: a block needs {want} KiB of shared memory, this GPU has {have}");
            return Err(BackendError::option(self.driver.name(), OptionId::Octets, detail));
        }
        Ok(Self { octets, ..self })
    }

    /// True if the GPU can run kernels that stream octets.
    fn has_octets(&self) -> bool {
        self.driver.limits().shared_bytes as usize >= octets_shared_bytes()
    }

    /// The properties of the GPU, with the chosen kernels.
    fn limits(&self) -> Limits {
        let Faster { few, prompts } = match self.octets {
            Octets::Auto => self.faster,
            Octets::On => Faster { few: true, prompts: true },
            Octets::Off => Faster::default(),
        };
        Limits { streams_octets: few, streams_prompts: prompts, ..self.driver.limits() }
    }

    /// The same, with or without timing of stages.
    #[must_use]
    pub fn profiled(self, profiling: Option<Profiling>) -> Self {
        Self { profiling, ..self }
    }

    /// The same, with some layers' weights in host memory. Uploaded tensors are then kept.
    #[must_use]
    pub fn streamed(self, streaming: Option<Streaming>) -> Self {
        Self { streaming, ..self }
    }

    /// The layers that are streamed, and the steps in which they are: all steps if there is no CPU backend.
    fn streaming(&self) -> Option<Streaming> {
        let min_batch = |all: MinBatch| if self.open_processor.is_some() { all } else { MinBatch::Rows(1) };
        let streaming = self.streaming.clone();
        streaming.map(|streaming| Streaming { min_batch: min_batch(streaming.min_batch), ..streaming })
    }

    /// The memory that a program needs.
    fn planned(&self, p: &Program) -> Result<DeviceMemory, BackendError> {
        exec::plan(&*self.driver, self.limits(), p, self.streaming().as_ref(), self.profiling)
    }

    /// Copies the weights of a program to the GPU, or to the host memory from which they are streamed.
    fn place(&mut self, p: &Program, layout: &Layout, ids: &[WeightId]) -> Result<Placed, BackendError> {
        assert_eq!(ids.len(), p.weights.len(), "one weight for each declaration");
        let Self { driver, weights, .. } = self;
        let tensor = |w: Weight| weights[ids[w.0 as usize].0 as usize].tensor.as_ref();
        let stream = Stream::new(&mut **driver, layout, tensor)?;
        let keeps = self.open_processor.is_some();
        let mut placed = Vec::with_capacity(ids.len());
        for (i, id) in ids.iter().enumerate() {
            let (w, held) = (Weight(i as u32), &mut weights[id.0 as usize]);
            placed.push(match held {
                UploadedWeight { card: Some(weight), .. } => weight.clone(),
                UploadedWeight { tensor: Some(tensor), .. } if !layout.stays(w) => {
                    stream.weight(layout, w, tensor)
                }
                UploadedWeight { tensor, card, .. } => {
                    let of_host = tensor.as_ref().expect("a weight is on the host or on the GPU");
                    let weight = DeviceWeight::upload(&mut **driver, of_host)?;
                    *card = Some(weight.clone());
                    *tensor = tensor.take().filter(|_| keeps);
                    weight
                }
            });
        }
        let in_place = layout.chosen_share(p).and_then(|_| stream.in_place(layout, &placed));
        Ok(Placed { weights: placed, in_place, stream })
    }

    /// The part of a program that the CPU may compute, if there is one.
    fn host(
        &mut self,
        p: &Program,
        layout: &Layout,
        streaming: Option<&Streaming>,
        ids: &[WeightId],
    ) -> Result<Option<(Host, MinBatch)>, BackendError> {
        let rows = exec::host_rows(p, layout, streaming);
        let (Some(stages), Some(open)) = (Stages::new(p, layout, rows), &self.open_processor) else {
            return Ok(None);
        };
        let processor = match &self.processor {
            Some(processor) => processor.clone(),
            None => self.processor.insert(Processor::new(open()?)).clone(),
        };
        let mut uploaded = Vec::with_capacity(stages.weights().len());
        for w in stages.weights() {
            let held = &mut self.weights[ids[w.0 as usize].0 as usize];
            uploaded.push(match held.on_processor {
                Some(id) => id,
                None => {
                    let tensor = held.tensor.as_ref().expect("tensors are kept if there is a CPU backend");
                    *held.on_processor.insert(processor.upload(tensor)?)
                }
            });
        }
        let host = Host::new(&mut *self.driver, p, (layout, stages), processor, &uploaded)?;
        Ok(Some((host, streaming.map_or(MinBatch::Auto, |streaming| streaming.min_batch))))
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn device(&self) -> String {
        self.driver.device()
    }

    /// Quantised by block if kernels multiply codes, as the CPU backend does and llama.cpp does on both.
    fn default_act_quant(&self, weights: &dyn QuantType) -> ActQuant {
        let mma = WeightFormat::of(weights).and_then(|format| format.mma);
        if mma == Some(Mma::Codes) { ActQuant::I8PerBlock } else { ActQuant::None }
    }

    fn self_test_key(&self) -> Option<String> {
        self.driver.self_test_key()
    }

    fn other_kernels(&self, p: &Program) -> Vec<OtherKernels> {
        if self.octets != Octets::Auto || !self.has_octets() {
            return Vec::new();
        }
        let octets =
            |linear: &Linear| Products::of(p.weight_decl(linear.w).ty, linear.act).and_then(Products::octets);
        let all: Vec<_> =
            p.stages.iter().flat_map(|(_, stage)| stage.linears().1.filter_map(octets)).collect();
        let few = (!all.is_empty()).then_some(OF_FEW);
        few.into_iter().chain(all.iter().any(|octets| octets.many).then_some(OF_PROMPTS)).collect()
    }

    fn use_other_kernels(&mut self, kernels: OtherKernels, yes: bool) {
        let choice = if kernels == OF_PROMPTS { &mut self.faster.prompts } else { &mut self.faster.few };
        *choice = yes;
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn plan(&self, p: &Program) -> Result<Plan, BackendError> {
        Ok(self.planned(p)?.plan())
    }

    fn memory(&self, p: &Program) -> Result<Vec<DeviceMemory>, BackendError> {
        Ok(vec![self.planned(p)?])
    }

    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError> {
        self.weights.push(match self.streaming {
            Some(_) => UploadedWeight { tensor: Some(w.clone()), ..UploadedWeight::default() },
            None => {
                let card = DeviceWeight::upload(&mut *self.driver, w)?;
                UploadedWeight { card: Some(card), ..UploadedWeight::default() }
            }
        });
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    fn compile(&mut self, p: &Program, weights: &[WeightId]) -> Result<Exec, BackendError> {
        if self.streaming.is_some() {
            // Weights are packed here, which needs kernels for their types.
            self.plan(p)?;
        }
        let streaming = self.streaming();
        let layout = exec::layout(&*self.driver, self.limits(), p, streaming.as_ref(), self.profiling)?;
        let Placed { weights: placed, in_place, stream } = self.place(p, &layout, weights)?;
        let host = self.host(p, &layout, streaming.as_ref(), weights)?;
        let streamed = Streamed { layout: &layout, in_place, stream, host };
        let limits = self.limits();
        let compiled = Compiled::new(&mut *self.driver, limits, p, placed, streamed, self.profiling)?;
        self.note = compiled.note();
        self.execs.push(compiled);
        Ok(Exec(self.execs.len() as u32 - 1))
    }

    fn run(&mut self, e: Exec, step: &Step<'_>) -> Result<(), BackendError> {
        self.execs[e.0 as usize].run(&mut *self.driver, step)
    }

    fn read(&mut self, e: Exec, b: Buf, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let exec = &mut self.execs[e.0 as usize];
        exec.show(&mut *self.driver, b)?;
        let at = exec.row_address(b, first_row);
        self.driver.read(at, bytemuck::cast_slice_mut(out))
    }

    fn write(&mut self, e: Exec, b: Buf, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        let exec = &mut self.execs[e.0 as usize];
        exec.show(&mut *self.driver, b)?;
        let at = exec.row_address(b, first_row);
        exec.overwritten(b);
        self.driver.write(at, bytemuck::cast_slice(values))
    }

    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError> {
        self.execs[e.0 as usize].tokens(&mut *self.driver, first_row, out)
    }

    fn runs_ahead(&self, e: Exec, how: &Sampling) -> bool {
        self.execs[e.0 as usize].picks_on_device(how)
    }

    fn returns_early(&self, e: Exec, rows: usize) -> bool {
        !self.execs[e.0 as usize].waits(rows)
    }

    fn most_changes(&self) -> usize {
        sample::MAX_CHANGES
    }

    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError> {
        self.execs[e.0 as usize].picked(&mut *self.driver, seq, back)
    }

    fn stage_times(&self, e: Exec) -> Option<Vec<StageTime>> {
        self.execs[e.0 as usize].stage_times()
    }

    fn clamped(&mut self, e: Exec) -> Result<Option<u64>, BackendError> {
        self.execs[e.0 as usize].clamped(&mut *self.driver).map(Some)
    }

    fn page_bytes(&self, e: Exec, page: KvPage) -> usize {
        self.execs[e.0 as usize].page_bytes(page)
    }

    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError> {
        self.execs[e.0 as usize].read_page(&mut *self.driver, page, out)
    }

    fn write_page(&mut self, e: Exec, page: KvPage, bytes: &[u8]) -> Result<(), BackendError> {
        self.execs[e.0 as usize].write_page(&mut *self.driver, page, bytes)
    }

    fn run_stages(&mut self, e: Exec, range: Range<usize>, step: &Step<'_>) -> Result<(), BackendError> {
        self.execs[e.0 as usize].run_stages(&mut *self.driver, range, step)
    }
}
