//! The wgpu backend: GPUs through Metal, Vulkan or DirectX 12. One file per stage, which sets up the
//! dispatches of its kernels.
//!
//! `device.rs` contains every call of wgpu, `shader/` renders the kernel sources from `shaders/`, `linear.rs`
//! has the code that linear layers share, `weight.rs` the layout of weights on the device, `upload.rs` copies
//! them there, `exec.rs` is a compiled program, and `alloc.rs` its memory, allocated on the device or counted
//! for the plan. Nothing here knows a model, a file or another backend. Start at [`Wgpu`], then
//! `proj_add.rs`.

mod adapters;
mod add_vector;
mod alloc;
mod altup;
mod attend;
mod attn_in;
mod cache;
mod conv;
mod delta;
pub mod device;
mod embed;
mod exec;
mod experts;
mod ffn_in;
mod gate;
mod hadamard;
mod input;
mod kv;
mod latent_in;
mod launches;
mod linear;
mod logits;
mod mamba;
mod memory;
mod mixture;
mod picks;
mod profile;
mod proj_add;
mod proj_in;
mod sample;
mod shader;
mod states;
mod step;
mod text;
mod trusted;
mod upload;
mod wait;
mod weight;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use ggml_types::HostTensor;
use wgpu::Buffer;

use super::{
    Auto, Backend, BackendError, DeviceMemory, Entry, Exec, Int8, KvPage, OptionId, Plan, StageTime,
    WeightId, WeightRows,
};
use device::{Gpu, Options};
use exec::Compiled;
pub use launches::Launches;
use memory::Memory;
use shader::Kernel;
use sterna_program::{Act, Buf, Kv, Program, RowsOf, Sampling, Stage, Step, Weight};
use upload::DeviceWeight;

const NAME: &str = "wgpu";

/// The wgpu backend in the registry.
pub const ENTRY: Entry = Entry {
    name: NAME,
    about: "a GPU through Vulkan, Metal or DirectX 12",
    options: &[OptionId::Device, OptionId::Int8, OptionId::Profile],
    auto: Some(Auto { rank: 1, is_there: device::has_gpu }),
    devices: |_| device::list(),
    code: None,
    open: |options, _| {
        let options = Options {
            device: options.device.clone(),
            packed: match options.int8 {
                None | Some(Int8::Auto) => None,
                Some(how) => Some(how == Int8::Packed),
            },
            profile: options.is_profiled()?,
            cache_dir: super::cache_dir(),
            ..Options::default()
        };
        Ok(Box::new(Wgpu::open(&options)?))
    },
    on_paper: None,
};

/// Runs programs on a GPU.
pub struct Wgpu {
    gpu: Arc<Gpu>,
    weights: Vec<DeviceWeight>,
    execs: Vec<Compiled>,
}

impl Wgpu {
    /// Opens a device and creates a backend on it.
    ///
    /// # Errors
    /// See [`Gpu::open`].
    pub fn open(options: &Options) -> Result<Self, BackendError> {
        Ok(Self::on(Arc::new(Gpu::open(options)?)))
    }

    /// Creates a backend on an open device.
    pub fn on(gpu: Arc<Gpu>) -> Self {
        Self { gpu, weights: Vec::new(), execs: Vec::new() }
    }
}

impl Wgpu {
    /// Launches, barriers and submissions of a step of a program, which need not be loaded.
    ///
    /// # Errors
    /// Errors of [`Backend::plan`].
    pub fn launches(&self, p: &Program, step: &Step<'_>) -> Result<Launches, BackendError> {
        exec::plan(&self.gpu, p)?;
        launches::count(&self.gpu, p, step)
    }

    /// Compiles a program with caches of its own, or with those of `lender`.
    fn compile_with(
        &mut self,
        p: &Program,
        weights: &[WeightId],
        lender: Option<Exec>,
    ) -> Result<Exec, BackendError> {
        exec::plan(&self.gpu, p)?;
        let id_of = |w: Weight| weights[w.0 as usize].0 as usize;
        join(&self.gpu, p, &mut self.weights, id_of)?;
        adapters::join(&self.gpu, p, &mut self.weights, id_of)?;
        let weights: Vec<_> = weights.iter().map(|id| self.weights[id.0 as usize].clone()).collect();
        let lender = lender.map(|of| &self.execs[of.0 as usize]);
        let compiled = Compiled::new(&self.gpu, p, &weights, lender)?;
        self.execs.push(compiled);
        Ok(Exec(self.execs.len() as u32 - 1))
    }
}

impl Backend for Wgpu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn device(&self) -> String {
        self.gpu.description()
    }

    fn note(&self) -> Option<String> {
        let software = || format!("wgpu found no GPU: {} runs the kernels", self.gpu.description());
        self.gpu.is_software().then(software)
    }

    fn self_test_key(&self) -> Option<String> {
        Some(self.gpu.self_test_key())
    }

    fn plan(&self, p: &Program) -> Result<Plan, BackendError> {
        Ok(exec::plan(&self.gpu, p)?.plan())
    }

    fn memory(&self, p: &Program) -> Result<Vec<DeviceMemory>, BackendError> {
        Ok(vec![exec::plan(&self.gpu, p)?])
    }

    fn upload(&mut self, w: &HostTensor) -> Result<WeightId, BackendError> {
        self.weights.push(DeviceWeight::upload(&self.gpu, w)?);
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    fn upload_rows(&mut self, w: &dyn WeightRows) -> Result<WeightId, BackendError> {
        self.weights.push(DeviceWeight::upload_rows(&self.gpu, w)?);
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
        self.execs[e.0 as usize].run(&self.gpu, step)
    }

    fn read(&mut self, e: Exec, b: Buf, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let (buffer, at) = self.execs[e.0 as usize].row(b, first_row);
        self.gpu.read(buffer, at, bytemuck::cast_slice_mut(out))
    }

    fn write(&mut self, e: Exec, b: Buf, first_row: usize, values: &[f32]) -> Result<(), BackendError> {
        let (buffer, at) = self.execs[e.0 as usize].row(b, first_row);
        self.gpu.write(buffer, at, bytemuck::cast_slice(values));
        self.gpu.check()
    }

    fn tokens(&mut self, e: Exec, first_row: usize, out: &mut [u32]) -> Result<(), BackendError> {
        self.execs[e.0 as usize].tokens(&self.gpu, first_row, out)
    }

    fn runs_ahead(&self, e: Exec, how: &Sampling) -> bool {
        self.gpu.tick.is_none() && self.execs[e.0 as usize].picks_on_device(how)
    }

    fn picked(&mut self, e: Exec, seq: u32, back: usize) -> Result<u32, BackendError> {
        self.execs[e.0 as usize].picked(&self.gpu, seq, back)
    }

    fn stage_times(&self, e: Exec) -> Option<Vec<StageTime>> {
        self.execs[e.0 as usize].stage_times()
    }

    fn clamped(&mut self, e: Exec) -> Result<Option<u64>, BackendError> {
        self.execs[e.0 as usize].clamped(&self.gpu).map(Some)
    }

    fn page_bytes(&self, e: Exec, page: KvPage) -> usize {
        self.execs[e.0 as usize].page_bytes(page)
    }

    fn read_page(&mut self, e: Exec, page: KvPage, out: &mut [u8]) -> Result<(), BackendError> {
        self.execs[e.0 as usize].read_page(&self.gpu, page, out)
    }

    fn write_page(&mut self, e: Exec, page: KvPage, bytes: &[u8]) -> Result<(), BackendError> {
        self.execs[e.0 as usize].write_page(&self.gpu, page, bytes)
    }

    fn run_stages(&mut self, e: Exec, range: Range<usize>, step: &Step<'_>) -> Result<(), BackendError> {
        self.execs[e.0 as usize].run_stages(&self.gpu, range, step)
    }
}

/// Copies weights that share a dispatch into one buffer.
fn join(
    gpu: &Gpu,
    p: &Program,
    all: &mut [DeviceWeight],
    id_of: impl Fn(Weight) -> usize + Copy,
) -> Result<(), BackendError> {
    experts::join(gpu, p, all, id_of)?;
    let units = ffn_in::units(p);
    let of_attention = p.stages.iter().filter_map(|(_, stage)| match stage {
        Stage::AttnIn(s) => attn_in::together(p, s),
        _ => None,
    });
    let mut shared = of_attention.chain(units.into_iter().map(Vec::from));
    shared.try_for_each(|layers| linear::join(gpu, all, &layers, id_of))
}

/// Missing kernels of a stage, as text.
fn missing(device: &Device<'_>, p: &Program, stage: &Stage) -> Vec<String> {
    let mut missing = adapters::missing(device, p, stage);
    missing.extend(missing_of_stage(device, p, stage));
    missing
}

fn missing_of_stage(device: &Device<'_>, p: &Program, stage: &Stage) -> Vec<String> {
    match stage {
        Stage::Embed(s) => embed::missing(device, p, s),
        Stage::AttnIn(s) => attn_in::missing(device, p, s),
        Stage::ProjIn(s) => proj_in::missing(device, p, s),
        Stage::Conv(_) | Stage::NormAdd(_) | Stage::AddVector(_) => Vec::new(),
        Stage::AltUpPredict(_) | Stage::AltUpCorrect(_) | Stage::Rescale(_) => Vec::new(),
        Stage::Delta(s) => delta::missing(p, s).into_iter().collect(),
        Stage::Mamba(_) => Vec::new(),
        Stage::LatentIn(s) => latent_in::missing(device, p, s),
        Stage::HeadProj(s) => latent_in::missing_heads(device, p, &s.w),
        Stage::Attend(s) => attend::missing(p, s),
        Stage::ProjAdd(s) => linear::missing(device, p, "proj_add", &[&s.w]),
        Stage::FfnIn(s) => {
            let linears: Vec<_> = s.gate.iter().chain([&s.up]).chain(&s.share).collect();
            let of_xielu = s.gate.is_none() && matches!(s.act, Act::Xielu(_));
            let stage = if of_xielu { "logits" } else { "ffn_in" };
            let mut missing = linear::missing(device, p, stage, &linears);
            missing.extend(ffn_in::missing(s.act, s.gate.is_some()));
            missing
        }
        Stage::Experts(s) => experts::missing(device, p, s),
        Stage::Logits(s) => linear::missing(device, p, "logits", &[&s.w]),
        Stage::Sample(_) => Vec::new(),
    }
}

/// The dispatches of a stage, in order.
fn dispatches<'a>(cx: &Cx<'a>, stage: &'a Stage) -> Vec<Dispatch<'a>> {
    match stage {
        Stage::Embed(s) => embed::dispatches(cx, s),
        Stage::AttnIn(s) => attn_in::dispatches(cx, s),
        Stage::LatentIn(s) => latent_in::dispatches(cx, s),
        Stage::HeadProj(s) => latent_in::head_proj(cx, s),
        Stage::AltUpPredict(s) => altup::predict(cx, s),
        Stage::AltUpCorrect(s) => altup::correct(cx, s),
        Stage::Rescale(s) => vec![altup::rescale(cx, s)],
        Stage::Attend(s) => attend::dispatches(cx, s),
        Stage::ProjIn(s) => proj_in::dispatches(cx, s),
        Stage::Conv(s) => conv::dispatches(cx, s),
        Stage::Delta(s) => delta::dispatches(cx, s),
        Stage::Mamba(s) => mamba::dispatches(cx, s),
        Stage::ProjAdd(s) => proj_add::dispatches(cx, s),
        Stage::NormAdd(s) => vec![proj_add::add_normed(cx, s)],
        Stage::AddVector(s) => vec![add_vector::dispatch(cx, s)],
        Stage::FfnIn(s) => ffn_in::dispatches(cx, s),
        Stage::Logits(s) => logits::dispatches(cx, s),
        Stage::Experts(s) => experts::dispatches(cx, s),
        Stage::Sample(s) => sample::dispatches(cx, s),
    }
}

struct Device<'a> {
    gpu: &'a Gpu,
}

/// Context for building the dispatches of one compiled program.
struct Cx<'a> {
    p: &'a Program,
    weights: &'a [DeviceWeight],
    memory: &'a Memory,
    /// Index of each weight vector in the constants.
    constants: &'a [Option<u32>],
    /// True for the dispatches of steps whose rows use adapters.
    adapted: bool,
    /// Tables of the adapters' dispatches so far.
    tables: &'a RefCell<Vec<u32>>,
}

impl Cx<'_> {
    fn constant(&self, w: Weight) -> u32 {
        self.constants[w.0 as usize].expect("a vector of f32")
    }

    /// Index of the bases of a cache's keys in the constants.
    fn bases(&self, kv: Kv) -> u32 {
        memory::bases_at(self.p, kv)
    }
}

/// A kernel with its buffers.
struct Dispatch<'a> {
    /// Kernels and the largest number of rows for each; the last takes any number. They share their buffers.
    kernels: Vec<(usize, Kernel)>,
    params: Vec<u32>,
    /// In the order of [`Kernel::bindings`].
    buffers: Vec<&'a Buffer>,
    grid: Grid,
}

/// Number of workgroups. The y dimension is always rows, or tiles of rows.
#[derive(Clone, Copy)]
enum Grid {
    /// One per row, times `x`.
    Rows { x: u32, rows: RowsOf },
    /// One per tile of the kernel's size, over rows of a weight and of the step.
    Products { of_weight: u32, rows: RowsOf },
    /// One per tile of the kernel's size, over rows of the largest weight and of the step, for each layer.
    Layers { of_weight: u32, layers: u32, rows: RowsOf },
    /// As `Layers`, for products that apply a norm, and for what they need first: for steps of one row, or of
    /// several.
    Normed { of_weight: u32, layers: u32, rows: RowsOf, one_row: bool },
    /// One per row and split of its pages, if there are at least `least` splits.
    Splits { x: u32, least: u32, rows: RowsOf },
    /// One per tile of rows, times `x`, if attention takes rows in tiles.
    Tiles { x: u32 },
    /// One per row that fills a page, times `x`.
    Filled { x: u32 },
    /// One per run of rows of a sequence, times `x`.
    Runs { x: u32 },
    /// One per tile of the kernel's size, over rows of a weight and of the step, for each of `experts`
    /// experts or heads. A row is routed to `chosen[0]` of `chosen[1]` experts, or has a part for each head.
    Experts { of_weight: u32, experts: u32, chosen: [usize; 2] },
    /// One per tile of rows that use adapters, times `x`.
    Adapted { x: u32, rows: RowsOf },
    /// One per row of the step and each of its experts, times `x`.
    Slots { x: u32, each: u32 },
    /// A single workgroup.
    Once,
    /// One per row of logits that is sampled.
    Sampled { x: u32 },
}
