//! Layers whose weights stay in host memory and are copied to slots on the GPU ahead of use.
//!
//! A slot has room for the largest of these layers, and the j-th of them always uses slot j mod slots. So
//! addresses are fixed, and launches can be recorded: each streamed layer is a segment of its own, which
//! waits for its copy. After it the copy of the next layer that uses its slot is queued, which overlaps with
//! the layers in between; after the last ones of a step, the first ones of the next step are copied.

use std::collections::HashSet;
use std::ops::Range;

use ggml_types::HostTensor;
use regex::Regex;

use super::alloc::{Allocator, Counter};
use super::attn_in;
use super::driver::{Address, Driver, Ring};
use super::weight::{self, DeviceWeight, WeightFormat, device_bytes, packed};
use crate::rates::Matrices;
use crate::{BackendError, GpuLayers, MemoryKind, MinBatch, memory};
use sterna_host::clock::Instant;
use sterna_program::part::spread;
use sterna_program::{self as program, Limits, Linear, Program, Stage, Weight};

/// Alignment of matrices in a slot, for vector loads.
const ALIGN: u64 = 256;

/// The choice of layers to stream, and the way to stream them.
#[derive(Clone, Debug)]
pub struct Streaming {
    /// Layers whose weights stay on the GPU; the others are spread evenly between them.
    pub gpu_layers: GpuLayers,
    /// Slots on the GPU for the other layers, at least 1. With more than one, a layer is copied while the one
    /// before it runs.
    pub slots: usize,
    /// Matrices of resident layers that are streamed nevertheless.
    pub overrides: Overrides,
    /// The steps in which they are streamed, if a CPU backend can compute with them instead.
    pub min_batch: MinBatch,
}

/// Locations of matrices by patterns of their names. The first match is used.
#[derive(Clone, Debug, Default)]
pub struct Overrides(Vec<(Regex, MatrixLocation)>);

/// Location of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatrixLocation {
    Card,
    Host,
}

impl Overrides {
    /// Parses llama.cpp's `PATTERN=BUFFER,PATTERN=BUFFER`: a matrix whose name contains the pattern is in
    /// host memory (`CPU`, or `CUDA_Host`) or in GPU memory (`CUDA0`).
    ///
    /// # Errors
    /// The accepted values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let one = |part: &str| {
            let want = "want PATTERN=BUFFER, or several separated by commas";
            let (pattern, buffer) = part.rsplit_once('=').ok_or_else(|| format!("{want}, got `{part}`"))?;
            let place = match buffer {
                "CPU" | "CUDA_Host" => MatrixLocation::Host,
                "CUDA0" => MatrixLocation::Card,
                other => return Err(format!("want the buffer CPU, CUDA_Host or CUDA0, got `{other}`")),
            };
            let pattern = Regex::new(pattern)
                .map_err(|err| format!("`{pattern}` is not a regular expression: {err}"))?;
            Ok((pattern, place))
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }

    /// True if a matrix of this name is in host memory.
    fn is_on_host(&self, name: &str) -> bool {
        let found = self.0.iter().find(|(pattern, _)| pattern.is_match(name));
        found.is_some_and(|(_, place)| *place == MatrixLocation::Host)
    }
}

impl MinBatch {
    /// Largest step for which [`Auto`](Self::Auto) considers the CPU.
    const AUTO_ROWS: usize = 64;

    /// Rows of the largest step that the CPU may compute; 0 if it computes none.
    pub fn most_rows(self, limits: &Limits) -> usize {
        let most = match self {
            Self::Auto => Self::AUTO_ROWS,
            Self::Rows(n) => n.saturating_sub(1),
            Self::Never => usize::MAX,
        };
        most.min(limits.rows)
    }
}

impl Streaming {
    /// Default number of slots.
    pub const DEFAULT_SLOTS: usize = 2;

    /// Keeps `gpu_layers` on the GPU, and streams the others through `slots` slots.
    pub fn new(gpu_layers: GpuLayers, slots: usize) -> Self {
        Self { gpu_layers, slots, overrides: Overrides::default(), min_batch: MinBatch::Auto }
    }
}

/// The location of a program's weights.
pub struct Layout {
    /// Layers that could be streamed.
    n_layers: usize,
    /// The streamed ones, in the order in which they run.
    layers: Vec<Layer>,
    /// At most one per streamed layer.
    slots: usize,
    /// True if some steps run on the GPU alone, false if the CPU takes part in all.
    copies: bool,
}

/// A layer that may be streamed.
#[derive(Clone)]
struct Layer {
    stages: Range<usize>,
    /// Matrices that no other layer uses, each with its offset in a slot.
    weights: Vec<(Weight, u64)>,
    /// Bytes of all of them.
    bytes: u64,
}

/// Stages that are recorded together, and the streamed layer that they are, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub stages: Range<usize>,
    pub layer: Option<usize>,
}

/// The part of memory that each weight of a program belongs to.
pub fn weight_parts(p: &Program) -> Vec<String> {
    memory::weight_parts(p, |decl| WeightFormat::of(decl.ty).map(|format| format.kernels.name()))
}

/// The weights of a program's experts, without their routers.
fn expert_weights(p: &Program) -> HashSet<Weight> {
    let experts = p.stages.iter().flat_map(|(_, stage)| match stage {
        Stage::Experts(s) => s.experts.as_slice(),
        _ => &[],
    });
    experts.flat_map(|expert| expert.layers().map(|layer| layer.w)).collect()
}

/// The layers of a program that have matrices of their own, with the matrices that may be streamed.
fn layers(p: &Program, may_be: impl Fn(Weight) -> bool) -> Vec<Layer> {
    let of = |layer: program::Layer| {
        let (mut weights, mut bytes) = (Vec::new(), 0_u64);
        let has_own = !layer.matrices.is_empty();
        for w in layer.matrices.into_iter().filter(|w| may_be(*w)) {
            weights.push((w, bytes));
            let all = bytes.saturating_add(device_bytes(p.weight_decl(w)));
            bytes = all.checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX);
        }
        has_own.then_some(Layer { stages: layer.stages, weights, bytes })
    };
    p.layers().into_iter().filter_map(of).collect()
}

impl Layout {
    /// All weights on the GPU.
    pub fn whole() -> Self {
        Self::with(&[], &[], 0, 0)
    }

    /// For a program that needs `other_bytes` besides its weights, including the driver's, on a GPU with
    /// `free` bytes free, if known.
    pub fn new(
        p: &Program,
        streaming: &Streaming,
        free: Option<u64>,
        other_bytes: u64,
    ) -> Result<Self, BackendError> {
        let Streaming { gpu_layers, slots, overrides, min_batch } = streaming;
        let whole = layers(p, |_| true);
        let named = layers(p, |w| overrides.is_on_host(&p.weight_decl(w).name));
        let of = |layers: &[Layer], n: usize| {
            let with = |slots: usize| Self::with(layers, &named, n, slots);
            let never = *min_batch == MinBatch::Never;
            let layout = with(if never { 0 } else { *slots });
            if never && !layout.is_computable(p) { with(*slots) } else { layout }
        };
        let free = free.map(|free| free - free / 32);
        let (Some(free), GpuLayers::Auto) = (free, *gpu_layers) else {
            return Ok(of(&whole, if let GpuLayers::Count(n) = *gpu_layers { n } else { whole.len() }));
        };
        let parts = weight_parts(p);
        // In a mixture, the experts first: a step of few rows reads only the selected ones.
        let of_experts = expert_weights(p);
        let experts = layers(p, |w| of_experts.contains(&w));
        for layers in [&experts, &whole] {
            for n in (0..=layers.len()).rev() {
                let (layout, mut counter) = (of(layers, n), Counter::default());
                layout.count(&mut counter, p, &parts)?;
                if layout.n_streamed() + n > 0 && counter.bytes().saturating_add(other_bytes) <= free {
                    return Ok(layout);
                }
            }
        }
        Ok(of(&whole, 0))
    }

    /// Keeps `n` of the layers on the GPU except for the matrices in `named`, or all of them if there is a
    /// slot for each streamed layer. Without slots nothing is ever copied.
    fn with(whole: &[Layer], named: &[Layer], n: usize, slots: usize) -> Self {
        let streamed = spread(whole.len(), whole.len().saturating_sub(n));
        let parts = whole.iter().zip(named).zip(streamed);
        let layers = parts.map(|((whole, named), streamed)| if streamed { whole } else { named });
        let layers: Vec<Layer> = layers.filter(|layer| layer.bytes > 0).cloned().collect();
        let layers = if layers.len() > slots { layers } else { Vec::new() };
        let copies = slots > 0 || layers.is_empty();
        Self { n_layers: whole.len(), slots: slots.min(layers.len()), copies, layers }
    }

    fn slot_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).max().unwrap_or(0)
    }

    /// The streamed layer of a weight, and the weight's offset in the slot.
    fn place(&self, w: Weight) -> Option<(usize, u64)> {
        self.layers.iter().enumerate().find_map(|(j, layer)| {
            let (_, at) = layer.weights.iter().find(|(of, _)| *of == w)?;
            Some((j, *at))
        })
    }

    /// True if a weight stays on the GPU.
    pub fn stays(&self, w: Weight) -> bool {
        self.place(w).is_none()
    }

    /// Per weight, true if it is streamed.
    pub fn streamed(&self, p: &Program) -> Vec<bool> {
        let mut streamed = vec![false; p.weights.len()];
        let weights = self.layers.iter().flat_map(|layer| &layer.weights);
        weights.for_each(|(w, _)| streamed[w.0 as usize] = true);
        streamed
    }

    /// The share of the streamed bytes that a row reads, if only experts are streamed. A kernel may then read
    /// the selected ones directly from host memory.
    pub fn chosen_share(&self, p: &Program) -> Option<f64> {
        let experts = expert_weights(p);
        let mut streamed = self.layers.iter().flat_map(|layer| &layer.weights);
        let are_experts = self.copies && self.n_streamed() > 0 && streamed.all(|(w, _)| experts.contains(w));
        let shares = p.stages.iter().filter_map(|(_, stage)| match stage {
            Stage::Experts(s) => Some(s.n_used as f64 / s.experts.len() as f64),
            _ => None,
        });
        if are_experts { shares.reduce(f64::max) } else { None }
    }

    /// True if the CPU can compute with everything that is streamed. It returns the bare products of queries,
    /// keys and values: a stage without one of these, or with more work before the heads are separated, is
    /// not computable, nor are the inputs of latent attention. In a step with the CPU nothing is copied, so
    /// the GPU cannot take over. Neither does the CPU know the adapters of rows.
    pub fn is_computable(&self, p: &Program) -> bool {
        if !p.adapters.is_empty() {
            return false;
        }
        let streamed = self.streamed(p);
        let is_streamed = |linear: &Linear| streamed[linear.w.0 as usize];
        !p.stages.iter().any(|(_, stage)| match stage {
            Stage::AttnIn(s) => !attn_in::has_separable_products(s) && stage.linears().1.any(is_streamed),
            Stage::LatentIn(_) => stage.linears().1.any(is_streamed),
            _ => false,
        })
    }

    /// True if some steps run on the GPU alone.
    pub fn copies(&self) -> bool {
        self.copies
    }

    /// The matrices of all layers, for a step that passes `waits` times between GPU and CPU. Of the experts a
    /// row reads only the selected ones.
    pub fn matrices(&self, p: &Program, waits: usize) -> Matrices {
        let (mut bytes, mut weights) = (0.0, 0.0);
        let linears = p.stages.iter().filter(|(_, stage)| !matches!(stage, Stage::Logits(_)));
        for (stage, linear) in linears.flat_map(|(_, stage)| stage.linears().1.map(move |of| (stage, of))) {
            let decl = p.weight_decl(linear.w);
            let share = match stage {
                Stage::Experts(s) if linear.w != s.router.w => s.n_used as f64 / s.experts.len() as f64,
                _ => 1.0,
            };
            weights += share * decl.rows as f64 * decl.cols as f64;
            bytes += share * device_bytes(decl) as f64;
        }
        let streamed = self.bytes() as f64;
        match self.chosen_share(p) {
            Some(chosen) => {
                let bytes = bytes - chosen * streamed;
                Matrices { bytes, weights, resident: 1.0, experts: streamed, chosen, waits }
            }
            None => {
                let resident = 1.0 - (streamed / bytes).min(1.0);
                Matrices { bytes, weights, resident, experts: 0.0, chosen: 0.0, waits }
            }
        }
    }

    /// Counts the GPU memory of the weights: resident ones as the parts they belong to, and the slots of the
    /// others.
    pub fn count(&self, counter: &mut Counter, p: &Program, parts: &[String]) -> Result<(), BackendError> {
        let weights = p.weights.iter().zip(parts).zip(self.streamed(p));
        for ((decl, part), _) in weights.filter(|(_, streamed)| !streamed) {
            weight::alloc(counter, part, decl.ty, [decl.rows, decl.cols])?;
        }
        self.slots(counter).map(drop)
    }

    /// Allocates the slots.
    fn slots<A: Allocator + ?Sized>(&self, on: &mut A) -> Result<Vec<Address>, BackendError> {
        let slot = |_| on.alloc_for(MemoryKind::Weights, "slots of streamed layers", self.slot_bytes());
        (0..self.slots).map(slot).collect()
    }

    /// Number of streamed layers.
    pub fn n_streamed(&self) -> usize {
        self.layers.len()
    }

    /// Bytes of page-locked host memory, all of which are copied in every step that copies.
    pub fn host_bytes(&self) -> u64 {
        if self.copies { self.bytes() } else { 0 }
    }

    /// Bytes of the streamed layers.
    fn bytes(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.bytes))
    }

    /// The stages in order, with each streamed layer as a segment of its own.
    pub fn segments(&self, n_stages: usize) -> Vec<Segment> {
        let (mut segments, mut at) = (Vec::new(), 0);
        let mut push = |stages: Range<usize>, layer| {
            if !stages.is_empty() {
                segments.push(Segment { stages, layer });
            }
        };
        for (j, layer) in self.layers.iter().enumerate() {
            push(at..layer.stages.start, None);
            push(layer.stages.clone(), Some(j));
            at = layer.stages.end;
        }
        push(at..n_stages, None);
        segments
    }

    /// Note for the user, if anything is streamed. Weights are copied in steps of `min_batch` rows or more,
    /// for the reason `why`; in steps of up to `in_place` rows experts are read directly from host memory.
    pub fn note(&self, min_batch: usize, why: &str, in_place: Option<usize>) -> Option<String> {
        let (n, stay) = (self.layers.len(), self.n_layers - self.layers.len());
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let slots = || format!("through {} slots of {:.1} MB", self.slots, megabytes(self.slot_bytes()));
        let how = match (min_batch, in_place) {
            _ if !self.copies => "are not copied: the CPU computes with them".to_owned(),
            (0 | 1, Some(rows)) => format!(
                "are copied to it in steps of more than {rows} rows, {}; in smaller steps it reads the \
                selected experts from host memory",
                slots()
            ),
            (0 | 1, None) => format!("are copied to it in every step, {}", slots()),
            _ => format!(
                "are copied to it in steps of {min_batch} rows or more, {}; in smaller steps the CPU \
                computes with them",
                slots()
            ),
        };
        let bytes = megabytes(self.bytes());
        (n > 0).then(|| {
            format!(
                "{stay} of {} layers stay on the GPU; the weights of the other {n} ({bytes:.1} MB) \
                 {how}{why}",
                self.n_layers
            )
        })
    }
}

/// The streamed layers of a compiled program, and the contents of its slots.
pub struct Stream {
    /// `None` if nothing is streamed.
    ring: Option<Ring>,
    /// Address at which kernels can read the weights in host memory, if they can.
    host: Option<Address>,
    /// Address of each slot, and the layer whose copy to it was queued last.
    slots: Vec<(Address, Option<usize>)>,
    /// Range of each layer's weights in host memory.
    layers: Vec<Range<u64>>,
}

impl Stream {
    /// Copies the streamed weights to page-locked host memory, and queues the first copies to the GPU.
    /// `tensor` has those that are not on the GPU for another program.
    pub fn new<'a>(
        driver: &mut dyn Driver,
        layout: &Layout,
        tensor: impl Fn(Weight) -> Option<&'a HostTensor>,
    ) -> Result<Self, BackendError> {
        let mut stream = Self { ring: None, host: None, slots: Vec::new(), layers: Vec::new() };
        if layout.layers.is_empty() || !layout.copies {
            return Ok(stream);
        }
        let ring = driver.ring(layout.host_bytes(), layout.slots)?;
        stream.ring = Some(ring);
        stream.host = driver.ring_address(ring);
        let mut at = 0;
        for layer in &layout.layers {
            for (w, place) in &layer.weights {
                if let Some(tensor) = tensor(*w) {
                    driver.fill(ring, at + place, &packed(tensor))?;
                }
            }
            stream.layers.push(at..at + layer.bytes);
            at += layer.bytes;
        }
        stream.slots = layout.slots(driver)?.into_iter().map(|at| (at, None)).collect();
        for slot in 0..layout.slots {
            // The zeroing of new memory is queued before this.
            driver.release(ring, slot)?;
            stream.copy(driver, slot)?;
        }
        Ok(stream)
    }

    /// A streamed weight, at its address while its layer runs.
    pub fn weight(&self, layout: &Layout, w: Weight, tensor: &HostTensor) -> DeviceWeight {
        let (layer, place) = layout.place(w).expect("a weight that is streamed");
        // Without slots no kernel reads it.
        let slot = layer.checked_rem(self.slots.len()).map_or(0, |slot| self.slots[slot].0);
        DeviceWeight::at(slot + place, tensor)
    }

    /// All weights of a program, with streamed ones at their host memory addresses, if kernels can read them
    /// there.
    pub fn in_place(&self, layout: &Layout, weights: &[DeviceWeight]) -> Option<Vec<DeviceWeight>> {
        let (host, mut weights) = (self.host?, weights.to_vec());
        for (j, layer) in layout.layers.iter().enumerate() {
            let slot = self.slots[j % self.slots.len()].0;
            for (w, place) in &layer.weights {
                let weight = &mut weights[w.0 as usize];
                // Other weights are on the GPU for another program.
                if weight.data == slot + place {
                    weight.data = host + self.layers[j].start + place;
                }
            }
        }
        Some(weights)
    }

    /// Address of the first slot, if there is one.
    pub fn first_slot(&self) -> Option<Address> {
        self.slots.first().map(|slot| slot.0)
    }

    /// Bytes copied per second, measured by copying the first layers repeatedly.
    pub fn link_rate(&mut self, driver: &mut dyn Driver) -> Result<f64, BackendError> {
        const BYTES: u64 = 64 << 20;
        let (Some(ring), slots) = (self.ring, self.slots.len()) else { return Ok(f64::INFINITY) };
        let wait = |driver: &mut dyn Driver, at: Address| driver.read(at, &mut [0; 4]);
        let all = |stream: &mut Self, driver: &mut dyn Driver| {
            for slot in 0..slots {
                stream.slots[slot].1 = None;
                stream.copy(driver, slot)?;
                driver.acquire(ring, slot)?;
                driver.release(ring, slot)?;
            }
            Ok::<_, BackendError>(
                stream.layers[..slots].iter().map(|layer| layer.end - layer.start).sum::<u64>(),
            )
        };
        // Completes pending copies and one-time work.
        all(self, driver)?;
        wait(driver, self.slots[0].0)?;
        let (start, mut bytes) = (Instant::now(), 0);
        for _ in 0..16 {
            bytes += if bytes < BYTES { all(self, driver)? } else { 0 };
        }
        wait(driver, self.slots[0].0)?;
        Ok(bytes as f64 / start.elapsed().as_secs_f64().max(1e-9))
    }

    /// Queues the copy of a layer to its slot, unless that copy is already the last one queued for the slot.
    fn copy(&mut self, driver: &mut dyn Driver, layer: usize) -> Result<(), BackendError> {
        let (Some(ring), slot) = (self.ring, layer % self.slots.len()) else { return Ok(()) };
        let (at, held) = self.slots[slot];
        if held != Some(layer) {
            self.slots[slot].1 = None;
            driver.copy_ahead(ring, slot, at, self.layers[layer].clone())?;
            self.slots[slot].1 = Some(layer);
        }
        Ok(())
    }

    /// Begins the work of a streamed layer, or of resident layers if `layer` is `None`.
    pub fn begin(&mut self, driver: &mut dyn Driver, layer: Option<usize>) -> Result<(), BackendError> {
        let (Some(ring), Some(layer)) = (self.ring, layer) else { return Ok(()) };
        self.copy(driver, layer)?;
        driver.acquire(ring, layer % self.slots.len())
    }

    /// Ends the work queued since [`begin`](Self::begin). `done` if the layer is complete, so that the next
    /// one may have its slot.
    pub fn end(
        &mut self,
        driver: &mut dyn Driver,
        layer: Option<usize>,
        done: bool,
    ) -> Result<(), BackendError> {
        let (Some(ring), Some(layer)) = (self.ring, layer) else { return Ok(()) };
        let slots = self.slots.len();
        driver.release(ring, layer % slots)?;
        let next = Some(layer + slots).filter(|next| *next < self.layers.len()).unwrap_or(layer % slots);
        if done { self.copy(driver, next) } else { Ok(()) }
    }
}
