//! A compiled program: its launches, recorded once, and the run of a step. `with_host.rs` runs steps in which
//! the CPU takes part.

mod memory;
mod variant;
mod with_host;

use std::ops::Range;

use super::alloc::{Allocator, Counter};
use super::cx::Shape;
use super::driver::{Address, Driver, Limits};
use super::host::{Host, Piece, Stages};
use super::linear::shared::part;
use super::lower::{Lowered, macs};
use super::memory::Memory;
use super::picks::Picks;
use super::profile::{Profile, Profiling};
use super::stream::{Layout, Segment, Stream, Streaming, weight_parts};
use super::tiled::{MMA_LEAST, is_tiled};
use super::weight::{DeviceWeight, Products};
use super::{attend, heads, mixture};
use crate::device::pages;
use crate::device::plan::{ADAPTERS_OF_HEADS, Missing, has_adapters_of_heads};
use crate::device::sampling::Sampler;
use crate::device::step::Image;
use crate::device::tiles::Tiling;
use crate::{BackendError, DeviceMemory, KvPage, MinBatch, Overhead, StageTime, assert_declared};
use sterna_program::{Buf, Program, Sampling, Step};
use variant::{Recorder, Variant};

/// A program with its memory and launches.
pub struct Compiled {
    program: Program,
    memory: Memory,
    /// The last contents of a step's tables.
    image: Image,
    /// One per shape, smallest first.
    variants: Vec<Variant>,
    /// The tiles of rows that attention uses, if it can.
    tiling: Option<Tiling>,
    sampler: Sampler,
    /// Times of stages, if enabled.
    profile: Option<Profile>,
    stream: Stream,
    /// The part that the CPU computes in steps of few rows, if there is one.
    host: Option<Host>,
    /// Note for the user about streamed layers.
    note: Option<String>,
    /// The pieces of a step in which the CPU takes part.
    pieces: Vec<Piece>,
}

/// The streamed weights of a program, and the CPU backend that may compute with them.
pub struct Streamed<'a> {
    pub layout: &'a Layout,
    /// All weights, with streamed ones at their host memory addresses, if kernels can read them there.
    pub in_place: Option<Vec<DeviceWeight>>,
    pub stream: Stream,
    pub host: Option<(Host, MinBatch)>,
}

/// Rows of the shapes that launches are recorded for. A step runs on the next larger shape, of which it fills
/// more than half from 9 rows on, so that few blocks are left for rows that do not exist.
const SHAPES: [usize; 11] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/// Smallest of these shapes for rows in tiles, of which smaller steps are only the ends of prompts. There are
/// smaller ones for kernels that stream octets, of which each shape has its own.
const TILED: usize = 64;

/// Rows of the shapes that are also recorded for steps whose rows use adapters: a recording takes memory.
const ADAPTED: [usize; 6] = [1, 8, 32, 128, 512, 2048];

/// Shapes that launches are recorded for: [`SHAPES`] up to the limits, each for one row of logits and for the
/// maximum; those from [`TILED`] on (all with octets), or the largest, also for rows in tiles. For a program
/// with adapters, some of them once more ([`ADAPTED`]).
fn shapes(p: &Program, of_card: Limits) -> Vec<Shape> {
    let limits = p.limits;
    let mut rows: Vec<usize> = SHAPES.into_iter().filter(|rows| *rows < limits.rows).collect();
    rows.push(limits.rows);
    let can_tile = attend::tiling(p, of_card).is_some();
    let least_tiled = if of_card.streams_octets { MMA_LEAST } else { TILED };
    let with_outputs = |rows: usize| {
        let most = rows.min(limits.outputs);
        let outputs = if most == 1 { vec![1] } else { vec![1, most] };
        let tiles = can_tile && rows >= MMA_LEAST && (rows >= least_tiled || rows == limits.rows);
        let tiled = [false, true].into_iter().filter(move |tiled| !tiled || tiles);
        let adapted = !p.adapters.is_empty() && (ADAPTED.contains(&rows) || rows == limits.rows);
        let adapted = [false, true].into_iter().filter(move |with| !with || adapted);
        let shape = move |outputs: usize, tiled: bool| {
            adapted.clone().map(move |adapted| Shape { rows, outputs, tiled, adapted })
        };
        let tiled: Vec<bool> = tiled.collect();
        let mut all = Vec::new();
        for outputs in outputs {
            tiled.iter().for_each(|tiled| all.extend(shape(outputs, *tiled)));
        }
        all
    };
    rows.into_iter().flat_map(with_outputs).collect()
}

/// Rows of the largest shape that also gets launches for steps in which the CPU takes part; 0 if there are
/// none.
fn most_with_host(shapes: &[Shape], host: Option<&Host>) -> usize {
    let most = host.map_or(0, Host::most_taken);
    shapes.iter().map(|shape| shape.rows).find(|rows| most > 0 && *rows >= most).unwrap_or(0)
}

/// Rows of the largest steps in which experts may be read directly from host memory.
fn most_in_place(p: &Program, limits: Limits) -> usize {
    let rows = shapes(p, limits).into_iter().map(|shape| shape.rows);
    rows.filter(|rows| mixture::reads_chosen(p, limits, *rows)).max().unwrap_or(0)
}

/// Allocates the memory of a compiled program except weights, or counts it.
fn alloc<A: Allocator + ?Sized>(
    on: &mut A,
    p: &Program,
    limits: Limits,
    profiling: Option<Profiling>,
) -> Result<(Memory, Option<Profile>), BackendError> {
    let rows: Vec<usize> = shapes(p, limits).iter().map(|shape| shape.rows).collect();
    let memory = memory::alloc(on, p, limits, &rows)?;
    let profile = profiling.map(|how| Profile::new(on, how, p.stages.len())).transpose()?;
    Ok((memory, profile))
}

/// Bytes that the driver takes per recording. Not measured on a GPU for these recordings.
const RECORDING_BYTES: u64 = 24 << 20;

/// Minimum of memory to keep free on a GPU; the margin is 3 % of the free memory if that is more. Modules are
/// loaded when first used, and threads that spill need memory of their own.
const LEAST_MARGIN_BYTES: u64 = 512 << 20;

/// The memory that a program needs. `limits` are those of the driver, with the chosen kernels.
pub fn plan(
    driver: &dyn Driver,
    limits: Limits,
    p: &Program,
    streaming: Option<&Streaming>,
    profiling: Option<Profiling>,
) -> Result<DeviceMemory, BackendError> {
    p.check()?;
    let mut missing = Missing::of_rows(p.limits.rows);
    for (_, stage) in &p.stages {
        if has_adapters_of_heads(stage) {
            missing.add(ADAPTERS_OF_HEADS.to_owned());
        }
        match Lowered::of(p, stage).kernels(p, limits) {
            Ok(names) => names
                .into_iter()
                .map(|name| name.to_string())
                .filter(|name| driver.kernel(name).is_none())
                .for_each(|name| missing.add(name)),
            Err(what) => missing.add(what),
        }
        for linear in stage.linears().1 {
            let w = p.weight_decl(linear.w);
            let products = Products::of(w.ty, linear.act);
            if products.is_some_and(|products| part(products, limits, w.cols, 1).is_none()) {
                missing.add(format!("rows of {} inputs of {}", w.cols, w.ty.name()));
            }
        }
    }
    // Stages without kernels have no known size.
    missing.check(driver.name())?;
    let layout = layout(driver, limits, p, streaming, profiling)?;
    let host_rows = host_rows(p, &layout, streaming);
    let shared_bytes = Stages::file_bytes(p, &layout, host_rows);
    if shared_bytes > 0 {
        let mut missing = Missing::default();
        let wanted = heads::KERNELS.map(|kernel| kernel.to_string()).into_iter();
        wanted.filter(|name| driver.kernel(name).is_none()).for_each(|name| missing.add(name));
        missing.check(driver.name())?;
    }
    let mut counter = Counter::default();
    layout.count(&mut counter, p, &weight_parts(p))?;
    alloc(&mut counter, p, limits, profiling)?;
    Stages::keys(&mut counter, p, &layout, host_rows)?;
    let rounding = Overhead {
        name: "allocation rounding".to_owned(),
        bytes: counter.rounding_bytes(),
        source: "cuMemAlloc pages of 2 MiB, not measured",
    };
    let overhead = driver.overhead().into_iter().chain([recordings(p, limits), rounding]);
    let free_bytes = driver.free_bytes();
    Ok(DeviceMemory {
        device: driver.device(),
        parts: counter.parts(),
        overhead: overhead.filter(|part| part.bytes > 0).collect(),
        host_bytes: layout.host_bytes(),
        file_bytes: 0,
        shared_bytes,
        chosen_share: layout.chosen_share(p),
        in_place_rows: most_in_place(p, limits),
        streamed_layers: layout.n_streamed(),
        rates: driver.rates(),
        macs: macs(p),
        free_bytes,
        margin_bytes: free_bytes.map_or(0, |free| LEAST_MARGIN_BYTES.max(free / 100 * 3)),
    })
}

/// The location of the weights of a program that has been planned.
pub fn layout(
    driver: &dyn Driver,
    limits: Limits,
    p: &Program,
    streaming: Option<&Streaming>,
    profiling: Option<Profiling>,
) -> Result<Layout, BackendError> {
    let Some(streaming) = streaming else { return Ok(Layout::whole()) };
    let mut counter = Counter::default();
    alloc(&mut counter, p, limits, profiling)?;
    let overhead = driver.overhead().into_iter().chain([recordings(p, limits)]).map(|part| part.bytes);
    let other_bytes = overhead.fold(counter.bytes(), u64::saturating_add);
    Layout::new(p, streaming, driver.free_bytes(), other_bytes)
}

/// Rows of the largest step that the CPU may compute with streamed weights.
pub fn host_rows(p: &Program, layout: &Layout, streaming: Option<&Streaming>) -> usize {
    let is_any = layout.n_streamed() > 0 && layout.is_computable(p);
    streaming.filter(|_| is_any).map_or(0, |streaming| streaming.min_batch.most_rows(&p.limits))
}

/// Memory that a driver needs for the recordings of a program.
fn recordings(p: &Program, limits: Limits) -> Overhead {
    let n = shapes(p, limits).len();
    Overhead {
        name: format!("{n} recorded graphs"),
        bytes: n as u64 * RECORDING_BYTES,
        source: "24 MiB each, by vLLM #50780",
    }
}

impl Compiled {
    /// Allocates everything that a step needs besides the weights, and records the launches of every shape.
    ///
    /// # Panics
    /// If the weights do not match their declarations.
    pub fn new(
        driver: &mut dyn Driver,
        limits: Limits,
        p: &Program,
        weights: Vec<DeviceWeight>,
        Streamed { layout, in_place, mut stream, host }: Streamed<'_>,
        profiling: Option<Profiling>,
    ) -> Result<Self, BackendError> {
        plan(driver, limits, p, None, profiling)?.plan().check_free(driver.name())?;
        assert_declared(p, weights.iter().map(|w| (w.ty, w.rows, w.cols)));
        let (mut memory, profile) = alloc(driver, p, limits, profiling)?;
        memory::fill(&mut memory, driver, p, &weights, in_place.as_deref())?;
        let image = memory.step.image();
        let mut host = match host {
            Some((mut host, min_batch)) => {
                host.choose(driver, p, layout, &mut stream, min_batch)?;
                Some(host)
            }
            None => None,
        };
        let (min_batch, why) = host.as_ref().map_or((1, ""), Host::chosen);
        let most_in_place = in_place.as_ref().map(|_| most_in_place(p, limits));
        let note = layout.note(min_batch, why, most_in_place);
        if layout.copies() {
            host = host.filter(|host| host.most_taken() > 0);
        }
        let pieces = host.as_ref().map_or_else(Vec::new, |host| host.pieces(p));
        let shapes = shapes(p, limits);
        let stages = Lowered::all(p);
        let recorder = Recorder {
            p,
            stages: &stages,
            limits,
            layout,
            weights: &weights,
            memory: &memory,
            profile: profile.as_ref(),
            host: host.as_ref(),
            pieces: &pieces,
            most_in_place: most_in_place.unwrap_or(0),
            most_with_host: most_with_host(&shapes, host.as_ref()),
        };
        let variants = shapes.into_iter().map(|shape| recorder.variant(driver, shape));
        let variants = variants.collect::<Result<_, _>>()?;
        let (program, tiling, sampler) = (p.clone(), attend::tiling(p, limits), Sampler::new(p));
        Ok(Self { program, memory, image, variants, tiling, sampler, profile, stream, host, note, pieces })
    }

    /// Note for the user about weights that are not on the GPU, if any.
    pub fn note(&self) -> Option<String> {
        self.note.clone()
    }

    /// Address of a row of a buffer.
    pub fn row_address(&self, b: Buf, row: usize) -> Address {
        let cols = self.program.buf_decl(b).cols as u64;
        self.memory.bufs[b.0 as usize] + 4 * cols * row as u64
    }

    /// Runs all stages.
    ///
    /// # Panics
    /// If the step does not fit the program.
    pub fn run(&mut self, driver: &mut dyn Driver, step: &Step<'_>) -> Result<(), BackendError> {
        let all = 0..self.program.stages.len();
        let Some(variant) = self.prepare(driver, all.clone(), step)? else { return Ok(()) };
        let n = step.rows.len();
        if self.waits(n) {
            match self.profile {
                Some(_) => self.time_with_host(driver, variant, n)?,
                None => self.run_with_host(driver, variant, n)?,
            }
            return self.keep_picks(driver, all, step);
        }
        self.before_card(driver, all.clone(), n)?;
        let Variant { segments, launches, recordings, .. } = &self.variants[variant];
        let by_events = self.profile.as_ref().is_some_and(Profile::is_by_events);
        let mut nanoseconds = Vec::new();
        for (Segment { stages, layer }, recording) in segments.iter().zip(recordings) {
            self.stream.begin(driver, *layer)?;
            let queued = match by_events {
                true => driver.time(&launches[stages.clone()]).map(|taken| nanoseconds.extend(taken)),
                false => driver.replay(*recording),
            };
            let ended = self.stream.end(driver, *layer, queued.is_ok());
            queued.and(ended)?;
        }
        self.keep_picks(driver, all, step)?;
        match &mut self.profile {
            Some(profile) if by_events => profile.add(nanoseconds),
            Some(profile) => profile.read(driver)?,
            None => {}
        }
        Ok(())
    }

    /// Time of each stage, if measured.
    pub fn stage_times(&self) -> Option<Vec<StageTime>> {
        self.profile.as_ref().map(|profile| profile.times.clone())
    }

    /// Runs some of the stages.
    ///
    /// # Panics
    /// If the step does not fit the program.
    pub fn run_stages(
        &mut self,
        driver: &mut dyn Driver,
        range: Range<usize>,
        step: &Step<'_>,
    ) -> Result<(), BackendError> {
        let Some(variant) = self.prepare(driver, range.clone(), step)? else { return Ok(()) };
        let n = step.rows.len();
        if self.waits(n) {
            range.clone().try_for_each(|i| self.run_stage_with_host(driver, variant, i, n))?;
            return self.keep_picks(driver, range, step);
        }
        self.before_card(driver, range.clone(), n)?;
        let Variant { segments, launches, .. } = &self.variants[variant];
        for Segment { stages, layer } in segments {
            let (start, end) = (range.start.max(stages.start), range.end.min(stages.end));
            if start < end {
                self.stream.begin(driver, *layer)?;
                let mut launches = launches[start..end].iter().flatten();
                let queued = launches.try_for_each(|launch| driver.launch(launch));
                let ended = self.stream.end(driver, *layer, queued.is_ok() && end == stages.end);
                queued.and(ended)?;
            }
        }
        self.keep_picks(driver, range, step)
    }

    /// Records the tokens picked by the queued stages, if one of them samples.
    fn keep_picks(
        &mut self,
        driver: &mut dyn Driver,
        range: Range<usize>,
        step: &Step<'_>,
    ) -> Result<(), BackendError> {
        if !self.program.samples_in(range) {
            return Ok(());
        }
        step.kept_picks().try_for_each(|(_, seq, how)| {
            let on_device = self.sampler.on_device(how);
            self.memory.picks.keep(driver, seq, on_device)
        })
    }

    /// True if tokens are picked in this way without the host.
    pub fn picks_on_device(&self, how: &Sampling) -> bool {
        self.sampler.on_device(how)
    }

    /// Address of the last picked token of each slot, and the bytes of all.
    pub fn newest_picks(&self) -> (Address, usize) {
        (self.memory.picks.newest(), Picks::bytes(self.program.limits.seqs) as usize)
    }

    /// Records a pick that another GPU's part of the program has made, and that is copied to
    /// [`newest_picks`](Self::newest_picks).
    pub fn know_pick(&mut self, seq: u32, on_device: bool) {
        self.memory.picks.know(seq, on_device);
    }

    /// The token that was picked last for a slot, or the one before.
    pub fn picked(&self, driver: &mut dyn Driver, seq: u32, back: usize) -> Result<u32, BackendError> {
        self.memory.picks.wait(driver, seq, back)
    }

    /// The number of cached vectors that had to be clamped.
    pub fn clamped(&self, driver: &mut dyn Driver) -> Result<u64, BackendError> {
        let mut count = 0_u64;
        driver.read(self.memory.clamped, bytemuck::bytes_of_mut(&mut count))?;
        Ok(count)
    }

    /// Address ranges of a page in all caches, as start and bytes.
    fn stretches(&self, page: KvPage) -> impl Iterator<Item = (Address, usize)> {
        let kvs = self.program.kvs.iter().zip(&self.memory.kvs);
        let states = self.program.states.iter().zip(&self.memory.states);
        let of_states = states.flat_map(move |(decl, states)| states.stretches(decl, page));
        kvs.flat_map(move |(decl, kept)| kept.stretch(decl, page)).chain(of_states)
    }

    /// Bytes of a page of all caches.
    pub fn page_bytes(&self, page: KvPage) -> usize {
        pages::bytes(self.stretches(page))
    }

    /// Reads a page from all caches, one after the other.
    pub fn read_page(
        &self,
        driver: &mut dyn Driver,
        page: KvPage,
        out: &mut [u8],
    ) -> Result<(), BackendError> {
        pages::read(self.stretches(page), out, |at, to| driver.read(at, to))
    }

    /// The reverse of `read_page`.
    pub fn write_page(
        &self,
        driver: &mut dyn Driver,
        page: KvPage,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        pages::write(self.stretches(page), bytes, |at, from| driver.write(at, from))
    }

    /// Copies a step's tables to the device, and returns the variant that runs it; `None` if it has no rows.
    fn prepare(
        &mut self,
        driver: &mut dyn Driver,
        range: Range<usize>,
        step: &Step<'_>,
    ) -> Result<Option<usize>, BackendError> {
        self.program.assert_fits(&self.program.stages[range], step);
        self.sampler.begin(step);
        if step.rows.is_empty() {
            return Ok(None);
        }
        self.memory.picks.assert_there(step);
        let tiling = self.tiling.filter(|tiling| is_tiled(step.rows, *tiling));
        let Memory { picks, step: memory, .. } = &self.memory;
        let n_vocab = self.sampler.n_vocab();
        let adapted = memory.write(driver, &mut self.image, step, n_vocab, picks, tiling)?;
        let fits = |shape: Shape| {
            let rows = step.rows.len() <= shape.rows && step.n_outputs() <= shape.outputs;
            rows && shape.tiled == tiling.is_some() && shape.adapted == adapted.are_any()
        };
        let variant = self.variants.iter().position(|variant| fits(variant.shape));
        Ok(Some(variant.expect("the last shape is the limits")))
    }

    /// The tokens that the last run picked for output rows from `first` on.
    pub fn tokens(
        &mut self,
        driver: &mut dyn Driver,
        first: usize,
        out: &mut [u32],
    ) -> Result<(), BackendError> {
        let at = self.memory.tokens;
        let read = |tokens: &mut [u32]| driver.read(at, bytemuck::cast_slice_mut(tokens));
        self.sampler.device_tokens(first, out, read)?;
        let Some(stage) = self.program.sample() else { return Ok(()) };
        let cols = self.sampler.n_vocab() as u64;
        let logits = self.memory.bufs[stage.logits.0 as usize];
        self.sampler.host_tokens(first, out, |row, out| {
            driver.read(logits + 4 * cols * row as u64, bytemuck::cast_slice_mut(out))
        })
    }
}
