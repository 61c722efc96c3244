//! The CUDA backend: one file per stage, which defines how its kernels are launched, over a [`driver`].
//!
//! `linear.rs` has the code that linear layers share, `combine.rs` and `heads.rs` the second kernel of stages
//! whose layers no single kernel computes together, `weight.rs` the layout of weights on the device, `exec/`
//! a compiled program, `alloc.rs` its memory, allocated from a driver or counted for the plan, and
//! `params.rs` the parameter structs of `cuda/params.h`. The same code runs on a GPU and, in tests, on the
//! CPU. Nothing here knows a model, a file or another backend. Start at [`Cuda`], then `proj_add.rs`.
//! `split.rs` divides the layers among several GPUs, `open.rs` chooses the GPUs; `stream.rs` handles layers
//! whose weights do not fit into GPU memory.

mod alloc;
mod attend;
mod attn_in;
mod combine;
mod delta;
mod delta_in;
pub mod driver;
mod embed;
mod exec;
mod experts;
mod ffn_in;
mod heads;
mod host;
mod input;
mod kv;
mod linear;
mod logits;
mod memory;
pub mod occupancy;
mod open;
mod pack;
mod params;
mod picks;
mod post_norm;
mod profile;
mod proj_add;
mod sample;
#[cfg(feature = "simt")]
pub mod simt;
pub mod split;
mod step;
mod stream;
mod turn;
mod weight;

use std::ops::Range;

use ggml_types::{HostTensor, QuantType};

use super::{
    Auto, Backend, BackendError, DeviceMemory, Entry, Exec, KvPage, MinBatch, Opened, OptionId, Plan,
    StageTime, WeightId,
};
use driver::{Driver, Kernel, Launch, Limits};
use exec::{Compiled, Streamed};
use host::{Host, Processor, Stages};
use memory::Memory;
use params::{NextWeights, StepTables};
pub use profile::Profiling;
use sterna_program::{ActQuant, Buf, Kv, Program, Sampling, Stage, Step, Weight};
use stream::{Layout, Stream};
pub use stream::{Overrides, Streaming};
use weight::{DeviceWeight, Mma, WeightFormat};

/// Every kernel that this backend may ask a driver for; [`Kernel`] is an index into it.
fn kernel_names() -> impl Iterator<Item = String> {
    let linear = ["attn_in", "proj_add", "ffn_in", "logits"];
    let of_type = move |ty: &weight::WeightFormat| {
        let (ty, mma, floats) = (ty.ty.name(), ty.mma, ty.ints);
        let rows = Some(linear::ROWS).filter(|_| mma != Some(Mma::Ints));
        let has_codes = mma == Some(Mma::Codes);
        let codes = [weight::DP4A, weight::FEW, weight::CODES].into_iter().filter(move |_| has_codes);
        let kinds = [""].into_iter().chain(rows).chain(mma.map(|_| weight::MMA)).chain(codes);
        let all = kinds.flat_map(move |kind| linear.map(|stage| format!("{stage}__{ty}{kind}")));
        let of_floats = ["", linear::ROWS].map(|kind| format!("logits__{ty}{}{kind}", weight::FLOATS));
        let experts = ["", experts::TILES].into_iter().chain(has_codes.then_some(weight::DP4A));
        let experts = experts.map(move |kind| format!("{}__{ty}{kind}", experts::STAGE));
        let of_floats = of_floats.into_iter().chain(
            ["", experts::TILES].map(|kind| format!("{}__{ty}{}{kind}", experts::STAGE, weight::FLOATS)),
        );
        let round = mma.filter(|mma| mma.rounds() && *mma != Mma::Codes);
        let round = round.map(|_| format!("{}__{ty}", weight::ROUND));
        let embed = format!("embed__{ty}");
        all.chain(experts).chain(of_floats.filter(move |_| floats)).chain(round).chain([embed])
    };
    let of_codec = kv::kernel_names().chain(attend::mma_kernels()).chain(delta::kernel_names());
    let with_kernels = weight::WEIGHT_FORMATS.iter().filter(|format| format.kernels.is(format.ty));
    let of_rows =
        [heads::KERNEL, combine::KERNEL, experts::ROUTE, experts::MIX, weight::ROUND_BLOCKS, turn::KERNEL];
    let single = of_rows.into_iter().chain(post_norm::KERNELS).chain([sample::KERNEL, profile::KERNEL]);
    with_kernels.flat_map(of_type).chain(of_codec).chain(single.map(str::to_owned))
}

const NAME: &str = "cuda";

/// The CUDA backend in the registry.
pub const ENTRY: Entry = Entry {
    name: NAME,
    about: "NVIDIA GPUs through CUDA",
    options: &[
        OptionId::Device,
        OptionId::Profile,
        OptionId::SplitMode,
        OptionId::TensorSplit,
        OptionId::GpuLayers,
        OptionId::StreamSlots,
        OptionId::OverrideTensor,
        OptionId::MinBatch,
    ],
    auto: Some(Auto { rank: 2, is_there: || driver::real::cards().is_ok() }),
    devices: |_| match driver::real::cards_with_memory() {
        Ok(cards) => cards.into_iter().enumerate().map(|(i, card)| Ok(format!("{i}: {card}"))).collect(),
        Err(err) => vec![Err(err)],
    },
    code: Some(driver::real::kernels),
    open: open::open,
    on_paper: Some(open::on_paper),
};

/// Runs programs on a GPU.
pub struct Cuda {
    driver: Box<dyn Driver>,
    /// The timing of stages, if enabled.
    profiling: Option<Profiling>,
    /// The layers whose weights stay in host memory, if any.
    streaming: Option<Streaming>,
    /// Opens a CPU backend that computes with the weights of such layers, if allowed.
    open_processor: Option<OpenProcessor>,
    processor: Option<Processor>,
    weights: Vec<UploadedWeight>,
    execs: Vec<Compiled>,
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
        exec::plan(&*self.driver, p, self.streaming().as_ref(), self.profiling)
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
        let layout = exec::layout(&*self.driver, p, streaming.as_ref(), self.profiling)?;
        let Placed { weights: placed, in_place, stream } = self.place(p, &layout, weights)?;
        let host = self.host(p, &layout, streaming.as_ref(), weights)?;
        let streamed = Streamed { layout: &layout, in_place, stream, host };
        let compiled = Compiled::new(&mut *self.driver, p, placed, streamed, self.profiling)?;
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
        sample::MOST_CHANGES
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

/// The kernels that a stage needs, or a message about what is missing.
fn kernels(p: &Program, stage: &Stage, limits: Limits) -> Result<Vec<String>, String> {
    match stage {
        Stage::Embed(s) => embed::kernels(p, s),
        Stage::AttnIn(s) => attn_in::kernels(p, s),
        Stage::Attend(s) => attend::kernels(p, s, limits),
        Stage::DeltaIn(s) => delta_in::kernels(p, s),
        Stage::Delta(s) => delta::kernels(p, s),
        Stage::ProjAdd(s) => proj_add::kernels(p, s),
        Stage::FfnIn(s) => ffn_in::kernels(p, s),
        Stage::Logits(s) => linear::kernels(p, "logits", &[&s.w]),
        Stage::Experts(s) => experts::kernels(p, s),
        Stage::Sample(_) => Ok(vec![sample::KERNEL.to_owned()]),
    }
}

fn launches(cx: &Cx<'_>, stage: &Stage) -> Vec<Launch> {
    match stage {
        Stage::Embed(s) => embed::launches(cx, s),
        Stage::AttnIn(s) => attn_in::launches(cx, s),
        Stage::Attend(s) => attend::launches(cx, s),
        Stage::DeltaIn(s) => delta_in::launches(cx, s),
        Stage::Delta(s) => delta::launches(cx, s),
        Stage::ProjAdd(s) => proj_add::launches(cx, s),
        Stage::FfnIn(s) => ffn_in::launches(cx, s),
        Stage::Experts(s) => experts::launches(cx, s),
        Stage::Logits(s) => logits::launches(cx, s),
        Stage::Sample(s) => vec![sample::launch(cx, s)],
    }
}

/// Floats per row of the products that a stage keeps between its launches.
fn products(p: &Program, stage: &Stage) -> usize {
    match stage {
        Stage::AttnIn(s) => attn_in::products(p, s),
        Stage::ProjAdd(s) => proj_add::products(p, s),
        Stage::FfnIn(s) => ffn_in::products(p, s),
        Stage::Embed(_)
        | Stage::Attend(_)
        | Stage::DeltaIn(_)
        | Stage::Delta(_)
        | Stage::Experts(_)
        | Stage::Logits(_)
        | Stage::Sample(_) => 0,
    }
}

/// Inputs of the launches of a compiled program.
struct Cx<'a> {
    p: &'a Program,
    driver: &'a dyn Driver,
    limits: Limits,
    weights: &'a [DeviceWeight],
    memory: &'a Memory,
    shape: Shape,
    /// Index of the stage.
    stage: usize,
    /// Weights of the next stage.
    next: NextWeights,
    /// True if all stages run together, so that one stage may do the work of another.
    whole: bool,
    /// True if streamed experts are read directly from host memory.
    in_place: bool,
}

impl Cx<'_> {
    /// Addresses of the tables that change with every step, and the next stage's weights.
    fn tables(&self) -> StepTables {
        self.memory.step.tables(self.next)
    }

    /// The same for a stage that reads or writes a cache, with its pages.
    fn tables_for(&self, kv: Kv) -> StepTables {
        self.memory.step.tables_for(self.p.kv_decl(kv), self.next)
    }

    fn kernel(&self, name: &str) -> Kernel {
        self.driver.kernel(name).unwrap_or_else(|| panic!("the plan did not report {name} as missing"))
    }
}

/// Maximum size of the steps that a list of launches serves. Smaller steps run on it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    rows: usize,
    /// Rows that request logits.
    outputs: usize,
    /// True if attention processes its rows in tiles.
    tiled: bool,
}

/// A kernel's parameters in the form that a driver expects.
fn words<T: bytemuck::Pod>(params: &T) -> Vec<u64> {
    bytemuck::cast_slice(std::slice::from_ref(params)).to_vec()
}
