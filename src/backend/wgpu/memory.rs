//! The memory of a compiled program, all of it allocated before the first step.

use std::collections::HashMap;

use ggml_types::{KvSide, types};
use wgpu::{Buffer, BufferUsages};

use super::device::{Gpu, buffer_bytes};
use super::picks::Picks;
use super::step::StepMemory;
use super::upload::DeviceWeight;
use super::{attend, attn_in, experts, kv, linear, proj_add, sample};
use crate::device::tables;
use crate::memory::Parts;
use crate::{BackendError, MemoryKind, MemoryPart};
use sterna_program::{KvDecl, PAGE, Program, Rope, RowsOf, Stage, Weight};

/// Bytes of the count of what was put right: one number.
pub const CLAMPED_BYTES: u64 = 4;

/// Purpose of the tables of a mixture's layers.
const EXPERTS: &str = "biases of experts";

/// Where everything lies.
pub struct Memory {
    /// One a buffer of the program.
    pub bufs: Vec<Buffer>,
    /// Keys and values of each cache.
    pub kvs: Vec<[Buffer; 2]>,
    /// Cosines and sines of every position, one a rotary embedding.
    pub ropes: Vec<Buffer>,
    /// Every vector of f32 weights, one behind the other.
    pub constants: Buffer,
    /// Buffers that change between two steps.
    pub step: StepMemory,
    /// Last picks.
    pub picks: Picks,
    /// Inputs of linear layers, normed and rounded.
    pub acts: Buffer,
    /// Scale and sum of each of their rows.
    pub quants: Buffer,
    /// Products of the step that are not yet what their stage writes: keys and values before RoPE, and what
    /// is normed before it is added.
    pub fresh: Buffer,
    /// Which rows go through which experts.
    pub routes: Buffer,
    /// Biases and factors of the experts of a layer, by the weight of the first.
    pub expert_tables: HashMap<Weight, Buffer>,
    /// Splits of attention.
    pub partial: Buffer,
    /// Queries of attention, projected for keys that keep signs.
    pub projected: Buffer,
    /// Number of keys and values that no cache could keep as they were.
    pub clamped: Buffer,
    /// Best candidates of sampling.
    pub best: Buffer,
    /// Sampled tokens.
    pub tokens: Buffer,
    /// Where these come back.
    pub staging: Buffer,
}

/// Bytes of each buffer, by a name for people.
pub struct Sizes {
    pub bufs: Vec<(String, u64)>,
    /// Keys, then values, of each cache.
    pub kvs: Vec<(String, u64)>,
    pub ropes: Vec<(String, u64)>,
    pub constants: u64,
    pub step: u64,
    pub acts: u64,
    pub quants: u64,
    pub fresh: u64,
    pub routes: u64,
    pub expert_tables: u64,
    pub partial: u64,
    pub projected: u64,
    pub best: u64,
    pub tokens: u64,
    pub picks: u64,
}

impl Sizes {
    pub fn of(p: &Program) -> Self {
        let (limits, positions) = (p.limits, p.limits.pages * PAGE);
        let (mut acts, mut quants, mut fresh) = (0, 0, 0);
        let (mut partial, mut projected, mut routes, mut expert_tables) = (0, 0, 0, 0);
        for (_, stage) in &p.stages {
            let (rows, linears) = stage.linears();
            let rows = match stage {
                // Down's inputs are the rows of every expert.
                Stage::Experts(s) => experts::slots(p, s),
                _ => p.max_rows(rows),
            };
            let rows = linear::padded_rows(rows) as u64;
            for linear in linears {
                acts = acts.max(4 * rows * linear::act_words(p, linear) as u64);
                quants = quants.max(8 * rows);
            }
            match stage {
                Stage::AttnIn(s) => fresh = fresh.max(attn_in::fresh_bytes(p, s)),
                Stage::Attend(s) => {
                    partial = partial.max(attend::partial_bytes(p, s));
                    projected = projected.max(attend::projected_bytes(p, s));
                }
                Stage::ProjAdd(s) => fresh = fresh.max(proj_add::fresh_bytes(p, s)),
                Stage::Experts(s) => {
                    fresh = fresh.max(experts::fresh_bytes(p, s));
                    routes = routes.max(experts::route_bytes(p, s));
                    expert_tables += 3 * 8 * s.experts.len() as u64;
                }
                Stage::Embed(_) | Stage::FfnIn(_) | Stage::Logits(_) | Stage::Sample(_) => {}
            }
        }
        let of_buf = |buf: &sterna_program::BufDecl| {
            let rows = p.max_rows(buf.rows) as u64;
            (format!("{} of {rows} rows", buf.name), rows.saturating_mul(4 * buf.cols as u64))
        };
        let of_kv = |kv: &KvDecl| {
            let positions = kv.pages(&limits) * PAGE;
            [("keys", KvSide::Keys), ("values", KvSide::Values)].map(|(name, side)| {
                (format!("{name} of {positions} positions"), kv::bytes(kv, side, &limits))
            })
        };
        let of_rope = |rope: &Rope| {
            let bytes = tables::rope_bytes(rope, positions);
            (format!("RoPE of {positions} positions"), bytes)
        };
        Self {
            bufs: p.bufs.iter().map(of_buf).collect(),
            kvs: p.kvs.iter().flat_map(of_kv).collect(),
            ropes: p.ropes.iter().map(of_rope).collect(),
            constants: constants(p).map(|(_, cols)| 4 * cols as u64).sum(),
            step: StepMemory::bytes(&limits),
            acts,
            quants,
            fresh,
            routes,
            expert_tables,
            partial,
            projected,
            best: 8 * (sample::blocks(p.picked_from()) * limits.outputs) as u64,
            tokens: 4 * limits.outputs as u64,
            picks: Picks::bytes(limits.seqs),
        }
    }

    /// Every buffer.
    pub fn all(&self) -> impl Iterator<Item = (String, u64)> {
        let many = self.bufs.iter().chain(&self.kvs).chain(&self.ropes).cloned();
        many.chain(self.single().map(|(name, bytes)| (name.to_owned(), bytes)))
    }

    /// Those of which there is one.
    fn single(&self) -> [(&'static str, u64); 13] {
        [
            ("norms and biases, together", self.constants),
            ("tables of a step", self.step),
            ("inputs of layers", self.acts),
            ("scales of inputs", self.quants),
            ("new keys, values and products", self.fresh),
            ("rows of experts", self.routes),
            (EXPERTS, self.expert_tables),
            ("splits of attention", self.partial),
            ("projected queries", self.projected),
            ("candidates", self.best),
            ("tokens", self.tokens),
            ("picks", self.picks),
            ("a count", CLAMPED_BYTES),
        ]
    }

    /// Everything but the caches, by a name for people: what the buffers take.
    pub fn others(&self, p: &Program) -> Vec<MemoryPart> {
        let mut parts = Parts::new(MemoryKind::Buffers);
        for (decl, (_, bytes)) in p.bufs.iter().zip(&self.bufs) {
            let name = if decl.rows == RowsOf::Outputs { "logits" } else { "activations" };
            parts.add(name, buffer_bytes(*bytes));
        }
        self.ropes.iter().for_each(|(_, bytes)| parts.add("RoPE", buffer_bytes(*bytes)));
        for (name, bytes) in self.single().into_iter().filter(|(name, _)| *name != EXPERTS) {
            parts.add(name, buffer_bytes(bytes));
        }
        // Each layer of a mixture has a table of its own.
        for s in experts::mixtures(p) {
            let bytes = 8 * s.experts.len() as u64;
            parts.add(EXPERTS, experts::LAYERS.len() as u64 * buffer_bytes(bytes));
        }
        parts.add("tokens on the host's side", buffer_bytes(self.tokens) + Picks::host_bytes(p.limits.seqs));
        parts.finish()
    }
}

/// Vectors of f32 weights: which, and their lengths.
fn constants(p: &Program) -> impl Iterator<Item = (usize, usize)> {
    let vectors = p.weights.iter().enumerate();
    vectors.filter(|(_, w)| w.rows == 1 && w.ty.is(&types::F32)).map(|(i, w)| (i, w.cols))
}

/// Where each weight lies among the constants; nothing for weights that are no vectors.
pub fn constant_places(p: &Program) -> Vec<Option<u32>> {
    let mut places = vec![None; p.weights.len()];
    let mut at = 0;
    for (i, cols) in constants(p) {
        places[i] = Some(at as u32);
        at += cols;
    }
    places
}

impl Memory {
    pub fn new(
        gpu: &Gpu,
        p: &Program,
        weights: &[DeviceWeight],
        sizes: &Sizes,
    ) -> Result<Self, BackendError> {
        let many = |of: &[(String, u64)]| {
            of.iter().map(|(_, bytes)| gpu.storage(*bytes)).collect::<Result<Vec<_>, _>>()
        };
        let mut kvs = many(&sizes.kvs)?.into_iter();
        let pairs = p.kvs.iter().map(|_| [(); 2].map(|()| kvs.next().expect("two a cache"))).collect();
        let ropes = many(&sizes.ropes)?;
        for (rope, buffer) in p.ropes.iter().zip(&ropes) {
            gpu.upload(buffer, 0, bytemuck::cast_slice(&tables::rope(rope, p.limits.pages * PAGE)))?;
        }
        let constants_buffer = gpu.storage(sizes.constants)?;
        let mut encoder = gpu.encoder();
        for ((i, cols), place) in constants(p).zip(constant_places(p).into_iter().flatten()) {
            assert!(weights[i].ty.is(&types::F32), "vectors of f32 alone are constants");
            let from = weights[i].parts[0].alone();
            encoder.copy_buffer_to_buffer(from, 0, &constants_buffer, 4 * u64::from(place), 4 * cols as u64);
        }
        gpu.submit(encoder)?;
        let places = constant_places(p);
        let mut expert_tables = HashMap::new();
        for s in experts::mixtures(p) {
            for layer in experts::LAYERS {
                let layers: Vec<_> = s.experts.iter().map(layer).collect();
                let place = |w: Weight| places[w.0 as usize].expect("a vector of f32");
                let table = experts::table(&layers, place);
                let buffer = gpu.storage(4 * table.len() as u64)?;
                gpu.upload(&buffer, 0, bytemuck::cast_slice(&table))?;
                expert_tables.insert(layers[0].w, buffer);
            }
        }
        Ok(Self {
            bufs: many(&sizes.bufs)?,
            kvs: pairs,
            ropes,
            constants: constants_buffer,
            step: StepMemory::new(gpu, &p.limits)?,
            picks: Picks::new(gpu, p.limits.seqs)?,
            acts: gpu.storage(sizes.acts)?,
            quants: gpu.storage(sizes.quants)?,
            fresh: gpu.storage(sizes.fresh)?,
            routes: gpu.storage(sizes.routes)?,
            expert_tables,
            partial: gpu.storage(sizes.partial)?,
            projected: gpu.storage(sizes.projected)?,
            clamped: gpu.storage(CLAMPED_BYTES)?,
            best: gpu.storage(sizes.best)?,
            tokens: gpu.storage(sizes.tokens)?,
            staging: gpu.buffer(sizes.tokens, BufferUsages::COPY_DST | BufferUsages::MAP_READ)?,
        })
    }
}
