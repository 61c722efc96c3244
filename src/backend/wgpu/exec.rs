//! A compiled program: its dispatches with pipelines and bind groups, built once, and the run of a step.

use std::cell::RefCell;
use std::ops::Range;

use wgpu::{BindGroup, Buffer, BufferUsages, CommandEncoder, ComputePass, ComputePipeline};

use super::alloc::Counter;
use super::device::Gpu;
use super::launches::{self, Counts};
use super::memory::{Memory, constant_places};
use super::profile::{self, Profile};
use super::upload::{self, DeviceWeight};
use super::weight::WeightFormat;
use super::{Cx, Device, Dispatch, Grid, NAME, attend, dispatches, kv, missing, states as slots};
use crate::device::pages;
use crate::device::plan::Missing;
use crate::device::sampling::Sampler;
use crate::device::step::Image;
use crate::device::tiles::Tiling;
use crate::{BackendError, DeviceMemory, KvPage, Plan, StageTime, assert_declared, memory};
use sterna_program::{Buf, Program, Sampling, Step, WeightDecl};

/// A program with its memory and dispatches.
pub struct Compiled {
    program: Program,
    memory: Memory,
    /// True if the caches are those of another program.
    borrows: bool,
    /// Last content of the tables of a step.
    image: Image,
    /// Dispatches of each stage, in order.
    stages: Vec<Vec<Ready>>,
    /// The same of stages with adapters, for steps whose rows use some.
    adapted: Vec<Option<Vec<Ready>>>,
    /// Row tiles of attention, if the program supports them.
    tiling: Option<Tiling>,
    /// Times of stages, if profiling is on.
    profile: Option<Profile>,
    sampler: Sampler,
}

/// A dispatch, complete except for its grid.
struct Ready {
    /// Largest number of rows for each pipeline, and its tile.
    pipelines: Vec<(usize, ComputePipeline, [u32; 2])>,
    bind_group: BindGroup,
    grid: Grid,
}

/// Memory of a program, without the parameters of its dispatches (less than 4 KiB per stage).
pub fn plan(gpu: &Gpu, p: &Program) -> Result<DeviceMemory, BackendError> {
    p.check()?;
    let device = Device { gpu };
    let mut lacks = Missing::of_rows(p.limits.rows);
    p.stages.iter().flat_map(|(_, stage)| missing(&device, p, stage)).for_each(|what| lacks.add(what));
    let mut counter = Counter::default();
    Memory::new(&mut counter, p, true)?;
    if gpu.tick.is_some() {
        profile::buffers(&mut counter, p.stages.len())?;
    }
    let most = gpu.max_buffer_bytes;
    for (what, bytes) in counter.larger_than(most) {
        lacks.add(format!("{what}: {bytes} bytes, more than the {most} of a buffer"));
    }
    lacks.check(NAME)?;
    let format = |decl: &WeightDecl| WeightFormat::of(decl.ty).expect("nothing is missing");
    let parts = memory::weight_parts(p, |decl| Some(format(decl).kernels.name()));
    for (decl, part) in p.weights.iter().zip(&parts) {
        let format = format(decl);
        let stretches = upload::stretches(gpu, format, decl.rows, decl.cols);
        upload::alloc(&mut counter, part, format, decl.cols, stretches)?;
    }
    let (device, free_bytes) = (gpu.description(), gpu.free_bytes());
    Ok(DeviceMemory { free_bytes, ..DeviceMemory::of(device, counter.parts()) })
}

impl Compiled {
    /// Allocates everything that a step needs, and creates the pipelines and bind groups of every dispatch.
    /// With a `lender`, its caches are used.
    ///
    /// # Panics
    /// Panics if the weights are not the declared ones.
    pub fn new(
        gpu: &Gpu,
        p: &Program,
        weights: &[DeviceWeight],
        lender: Option<&Self>,
    ) -> Result<Self, BackendError> {
        let planned = plan(gpu, p)?.plan();
        let kv_bytes = if lender.is_some() { 0 } else { planned.kv_bytes };
        Plan { kv_bytes, ..planned }.check_free(NAME)?;
        assert_declared(p, weights.iter().map(|w| (w.ty, w.rows, w.cols)));
        let mut memory = Memory::new(&mut { gpu }, p, lender.is_none())?;
        if let Some(lender) = lender {
            memory.kvs.clone_from(&lender.memory.kvs);
        }
        memory.fill(gpu, p, weights)?;
        let constants = constant_places(p);
        let tables = RefCell::new(Vec::new());
        let cx = Cx { p, weights, memory: &memory, constants: &constants, adapted: false, tables: &tables };
        let with_adapters = Cx { adapted: true, ..cx };
        let all = p.stages.iter().map(|(_, stage)| dispatches(&cx, stage));
        let adapted = p.stages.iter().filter(|(_, stage)| stage.has_adapters());
        let adapted = adapted.map(|(_, stage)| dispatches(&with_adapters, stage));
        let wanted: Vec<Vec<Dispatch<'_>>> = all.chain(adapted).collect();
        let mut stages = make_ready(gpu, &wanted)?;
        let mut adapted = stages.split_off(p.stages.len()).into_iter();
        let adapted = p.stages.iter().map(|(_, stage)| stage.has_adapters().then(|| adapted.next())?);
        let adapted = adapted.collect();
        gpu.upload(&memory.adapters.tables, 0, bytemuck::cast_slice(&tables.into_inner()))?;
        gpu.keep_pipelines();
        Ok(Self {
            program: p.clone(),
            image: memory.step.image(),
            memory,
            borrows: lender.is_some(),
            stages,
            adapted,
            tiling: attend::tiling(p),
            profile: Profile::new(gpu, p.stages.len())?,
            sampler: Sampler::new(p),
        })
    }

    /// The buffer of a handle, and the byte offset of one of its rows.
    pub fn row(&self, b: Buf, row: usize) -> (&wgpu::Buffer, u64) {
        let cols = self.program.buf_decl(b).cols as u64;
        (&self.memory.bufs[b.0 as usize], 4 * cols * row as u64)
    }

    /// Runs all stages.
    ///
    /// # Panics
    /// Panics if the step does not fit the program.
    pub fn run(&mut self, gpu: &Gpu, step: &Step<'_>) -> Result<(), BackendError> {
        self.run_stages(gpu, 0..self.program.stages.len(), step)
    }

    /// Runs some of the stages, in as many submissions as their time requires.
    ///
    /// # Panics
    /// Panics if the step does not fit the program.
    pub fn run_stages(
        &mut self,
        gpu: &Gpu,
        range: Range<usize>,
        step: &Step<'_>,
    ) -> Result<(), BackendError> {
        self.program.assert_fits(&self.program.stages[range.clone()], step);
        self.sampler.begin(step);
        if step.rows.is_empty() {
            return Ok(());
        }
        self.memory.picks.assert_there(step);
        let tiling = self.tiling.filter(|tiling| attend::is_tiled(step.rows, *tiling));
        let n_vocab = self.sampler.n_vocab();
        let adapted = self.memory.step.write(gpu, &mut self.image, step, n_vocab, tiling)?;
        let counts = Counts::of(step, n_vocab, tiling, adapted);
        let ready = |i: usize| match &self.adapted[i] {
            Some(ready) if adapted.are_any() => ready,
            _ => &self.stages[i],
        };
        let stages = range.clone().map(|i| {
            let launches = ready(i).iter().filter_map(|ready| ready.launch(&counts)).collect();
            (i, launches, launches::stage_ms(&self.program, &self.program.stages[i].1, step))
        });
        let mut submissions = launches::submissions(stages, gpu.submission_ms, self.profile.is_none());
        let last = submissions.pop().unwrap_or_default();
        for passes in submissions {
            let mut encoder = gpu.encoder();
            self.encode(&mut encoder, passes);
            gpu.submit(encoder)?;
        }
        let mut encoder = gpu.encoder();
        self.encode(&mut encoder, last);
        if let Some(profile) = &self.profile {
            profile.resolve(&mut encoder, range.clone());
        }
        let picks = self.program.samples_in(range.clone());
        if picks && counts.sampled > 0 {
            let bytes = 4 * counts.sampled as u64;
            encoder.copy_buffer_to_buffer(&self.memory.tokens, 0, &self.memory.staging, 0, bytes);
            let kept = step.kept_picks().filter(|(_, _, how)| self.sampler.on_device(how));
            kept.for_each(|(_, seq, _)| self.memory.picks.send(&mut encoder, seq));
        }
        let run = gpu.submit(encoder)?;
        if let Some(profile) = &mut self.profile {
            profile.add(gpu, run.clone(), range)?;
        }
        if picks {
            for (_, seq, how) in step.kept_picks() {
                self.memory.picks.keep(seq, self.sampler.on_device(how), run.clone());
            }
        }
        Ok(())
    }

    /// Encodes the launches of some stages: in one pass, or in a pass per stage if they are timed.
    fn encode(&self, encoder: &mut CommandEncoder, stages: Vec<(usize, Vec<Launch<'_>>)>) {
        let Some(profile) = &self.profile else {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            stages.iter().flat_map(|(_, launches)| launches).for_each(|launch| launch.encode(&mut pass));
            return;
        };
        for (stage, launches) in stages {
            let timestamp_writes = Some(profile.around(stage));
            let mut pass =
                encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
            launches.iter().for_each(|launch| launch.encode(&mut pass));
        }
    }

    /// Location of a page in all caches: buffer, byte offset, and bytes.
    fn stretches(&self, page: KvPage) -> impl Iterator<Item = ((&Buffer, u64), usize)> {
        let Program { kvs, states, limits, .. } = &self.program;
        let of_states = states.iter().zip(&self.memory.states).flat_map(move |(decl, buffer)| {
            let places = slots::stretches(decl, limits, page);
            places.into_iter().map(move |(at, bytes)| ((buffer, at), bytes))
        });
        let n_own = if self.borrows { 0 } else { kvs.len() };
        let of_kvs = kvs.iter().zip(&self.memory.kvs).take(n_own).flat_map(move |(decl, buffers)| {
            let sides = kv::SIDES.into_iter().zip(buffers);
            sides.flat_map(move |(side, buffer)| {
                let places = kv::stretches(decl, side, limits, page);
                places.into_iter().map(move |(at, bytes)| ((buffer, at), bytes))
            })
        });
        of_kvs.chain(of_states)
    }

    pub fn page_bytes(&self, page: KvPage) -> usize {
        pages::bytes(self.stretches(page))
    }

    /// Reads a page, cache after cache.
    pub fn read_page(&self, gpu: &Gpu, page: KvPage, out: &mut [u8]) -> Result<(), BackendError> {
        pages::read(self.stretches(page), out, |(buffer, at), to| gpu.read(buffer, at, to))
    }

    pub fn write_page(&self, gpu: &Gpu, page: KvPage, bytes: &[u8]) -> Result<(), BackendError> {
        pages::write(self.stretches(page), bytes, |(buffer, at), from| {
            gpu.write(buffer, at, from);
            Ok(())
        })?;
        gpu.check()
    }

    /// Number of keys and values that a cache had to clamp.
    pub fn clamped(&self, gpu: &Gpu) -> Result<u64, BackendError> {
        let mut count = [0_u32];
        gpu.read(&self.memory.clamped, 0, bytemuck::cast_slice_mut(&mut count))?;
        Ok(u64::from(count[0]))
    }

    pub fn stage_times(&self) -> Option<Vec<StageTime>> {
        self.profile.as_ref().map(|profile| profile.times.clone())
    }

    /// True if tokens are picked this way without the host.
    pub fn picks_on_device(&self, how: &Sampling) -> bool {
        self.sampler.on_device(how)
    }

    /// The token that was picked last for a slot, or the one before.
    pub fn picked(&self, gpu: &Gpu, seq: u32, back: usize) -> Result<u32, BackendError> {
        self.memory.picks.wait(gpu, seq, back)
    }

    /// Tokens that the last run picked for the output rows from `first` on.
    pub fn tokens(&mut self, gpu: &Gpu, first: usize, out: &mut [u32]) -> Result<(), BackendError> {
        let staging = &self.memory.staging;
        let read = |tokens: &mut [u32]| gpu.fetch(staging, None, bytemuck::cast_slice_mut(tokens));
        self.sampler.device_tokens(first, out, read)?;
        let Some(stage) = self.program.sample() else { return Ok(()) };
        let logits = &self.memory.bufs[stage.logits.0 as usize];
        let row_bytes = 4 * self.sampler.n_vocab() as u64;
        self.sampler.host_tokens(first, out, |row, out| {
            gpu.read(logits, row_bytes * row as u64, bytemuck::cast_slice_mut(out))
        })
    }
}

/// A dispatch of a step.
struct Launch<'a> {
    pipeline: &'a ComputePipeline,
    bind_group: &'a BindGroup,
    workgroups: [u32; 3],
}

impl Launch<'_> {
    fn encode(&self, pass: &mut ComputePass<'_>) {
        let [x, y, z] = self.workgroups;
        pass.set_pipeline(self.pipeline);
        pass.set_bind_group(0, self.bind_group, &[]);
        pass.dispatch_workgroups(x, y, z);
    }
}

impl Ready {
    /// The dispatch for a step; `None` if it has nothing to do.
    fn launch(&self, counts: &Counts) -> Option<Launch<'_>> {
        let (rows, across, z) = counts.of_grid(self.grid);
        if rows == 0 {
            return None;
        }
        // For experts, the rows of each if they are routed evenly.
        let typical = match self.grid {
            Grid::Experts { chosen: [used, of], .. } => (rows * used).div_ceil(of),
            _ => rows,
        };
        let fitting = self.pipelines.iter().find(|(most, ..)| typical <= *most);
        let (_, pipeline, [width, height]) = fitting.expect("the last takes any number");
        let workgroups = [across.div_ceil(*width), (rows as u32).div_ceil(*height), z];
        Some(Launch { pipeline, bind_group: &self.bind_group, workgroups })
    }
}

/// Pipelines and bind groups of all dispatches. Their parameters share one buffer.
fn make_ready(gpu: &Gpu, wanted: &[Vec<Dispatch<'_>>]) -> Result<Vec<Vec<Ready>>, BackendError> {
    let mut words: Vec<u32> = Vec::new();
    let align = gpu.params_align as usize / 4;
    let mut places = Vec::new();
    for dispatch in wanted.iter().flatten() {
        words.resize(words.len().next_multiple_of(align), 0);
        places.push(words.len());
        words.extend(&dispatch.params);
        // The size of a parameter struct is rounded up to 16 bytes.
        words.resize(words.len().next_multiple_of(4), 0);
    }
    let params = gpu.buffer(4 * words.len() as u64, BufferUsages::UNIFORM | BufferUsages::COPY_DST)?;
    gpu.upload(&params, 0, bytemuck::cast_slice(&words))?;
    let mut places = places.into_iter();
    let mut ready = |dispatch: &Dispatch<'_>| {
        let (offset, bytes) =
            (4 * places.next().expect("one a dispatch"), 4 * dispatch.params.len().next_multiple_of(4));
        let pipelines = dispatch
            .kernels
            .iter()
            .map(|(rows, kernel)| Ok((*rows, gpu.pipeline(*kernel)?, kernel.tile(gpu.caps.lanes))));
        let kernel = dispatch.kernels[0].1;
        Ok(Ready {
            pipelines: pipelines.collect::<Result<_, BackendError>>()?,
            bind_group: gpu.bind(kernel, (&params, offset as u64, bytes as u64), &dispatch.buffers),
            grid: dispatch.grid,
        })
    };
    wanted.iter().map(|stage| stage.iter().map(&mut ready).collect()).collect()
}
