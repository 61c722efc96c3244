//! Memory of a compiled program, all of it allocated before the first step, or counted for the plan.

use std::collections::{HashMap, HashSet};

use ggml_types::types;
use wgpu::Buffer;

use super::alloc::Allocator;
use super::device::Gpu;
use super::picks::{HOST_SIDE, Picks};
use super::shader::VECTOR;
use super::step::StepMemory;
use super::upload::DeviceWeight;
use super::{
    adapters, attend, attn_in, experts, ffn_in, hadamard, kv, latent_in, linear, mixture, proj_add, sample,
    states,
};
use crate::device::tables;
use crate::{BackendError, MemoryKind, memory};
use sterna_program::{BufDecl, Kv, PAGE, Program, Rope, Stage, Weight};

/// Bytes of the counter of clamped values.
const CLAMPED_BYTES: u64 = 4;

pub struct Memory<B = Buffer> {
    /// One per buffer of the program.
    pub bufs: Vec<B>,
    /// Keys and values of each cache.
    pub kvs: Vec<[B; 2]>,
    /// One per recurrent state.
    pub states: Vec<B>,
    /// Cosines and sines of every position, one per RoPE.
    pub ropes: Vec<B>,
    /// All vectors of f32 weights, concatenated, then the bases of keys.
    pub constants: B,
    /// Tables that change from step to step.
    pub step: StepMemory<B>,
    pub picks: Picks<B>,
    /// Inputs of linear layers, normalised and quantised.
    pub acts: B,
    /// Signs of all rotated bases.
    pub signs: B,
    /// Inputs of linear layers after a pass of their own: normalised, and rotated into a basis.
    pub prepared: B,
    /// Scale and sum of each row of `acts`.
    pub quants: B,
    /// Products of the step in scratch, before the final result of their stage: keys and values before RoPE,
    /// heads and latent vectors of queries, and products that are normalised before they are added.
    pub fresh: B,
    /// Routing of rows to experts.
    pub routes: B,
    /// Biases and factors of the experts of a layer, by the weight of its first expert.
    pub expert_tables: HashMap<Weight, B>,
    /// Memory of LoRA adapters.
    pub adapters: AdapterMemory<B>,
    /// Partial results of attention's splits.
    pub partial: B,
    /// Queries of attention, projected for keys with signs.
    pub projected: B,
    /// Number of keys and values that a cache had to clamp.
    pub clamped: B,
    /// Best candidates of sampling.
    pub best: B,
    pub tokens: B,
    /// Buffer to read the sampled tokens back.
    pub staging: B,
}

/// Buffers of LoRA adapters, which all stages share.
pub struct AdapterMemory<B = Buffer> {
    /// Tables of all dispatches: the matrices of each adapter, and of each expert.
    pub tables: B,
    /// Products with first matrices, `[rows or slots, adapters, rank]`.
    pub first: B,
    /// Inputs of layers before they are quantised.
    pub inputs: B,
    /// Products of `up`.
    pub up: B,
}

impl<B> AdapterMemory<B> {
    fn new(on: &mut impl Allocator<Buffer = B>, p: &Program) -> Result<Self, BackendError> {
        let adapters::Sizes { tables, first, inputs, up } = adapters::Sizes::of(p);
        Ok(Self {
            tables: on.scratch("tables of adapters", tables)?,
            first: on.scratch("products of adapters", first)?,
            inputs: on.scratch("inputs of adapters", inputs)?,
            up: on.scratch("products of adapters", up)?,
        })
    }
}

/// Bytes of the buffers that all stages share: the maximum over the stages.
#[derive(Default)]
struct Shared {
    acts: u64,
    quants: u64,
    fresh: u64,
    routes: u64,
    partial: u64,
    projected: u64,
}

impl Shared {
    fn of(p: &Program) -> Self {
        let mut most = Self::default();
        for (_, stage) in &p.stages {
            let (rows, linears) = stage.linears();
            let rows = match stage {
                // Inputs of `down` are the rows of all experts.
                Stage::Experts(s) => mixture::slots(p, s),
                _ => p.max_rows(rows),
            };
            let rows = linear::padded_rows(rows) as u64;
            for linear in linears {
                most.acts = most.acts.max(4 * rows * linear::act_words(p, linear) as u64);
                most.quants = most.quants.max(8 * rows);
            }
            match stage {
                Stage::AttnIn(s) => most.fresh = most.fresh.max(attn_in::fresh_bytes(p, s)),
                Stage::Attend(s) => {
                    most.partial = most.partial.max(attend::partial_bytes(p, s));
                    most.projected = most.projected.max(attend::projected_bytes(p, s));
                }
                Stage::ProjAdd(s) => most.fresh = most.fresh.max(proj_add::fresh_bytes(p, s)),
                Stage::Experts(s) => {
                    most.fresh = most.fresh.max(experts::fresh_bytes(p, s));
                    most.acts = most.acts.max(experts::product_bytes(p, s));
                    most.routes = most.routes.max(experts::route_bytes(p, s));
                }
                Stage::FfnIn(s) => most.fresh = most.fresh.max(ffn_in::fresh_bytes(p, s)),
                Stage::LatentIn(s) => {
                    most.fresh = most.fresh.max(latent_in::fresh_bytes(p, s));
                    most.acts = most.acts.max(latent_in::heads_bytes(p, &s.wk));
                }
                Stage::HeadProj(s) => most.acts = most.acts.max(latent_in::heads_bytes(p, &s.w)),
                Stage::Embed(_)
                | Stage::ProjIn(_)
                | Stage::Conv(_)
                | Stage::Delta(_)
                | Stage::Mamba(_)
                | Stage::NormAdd(_)
                | Stage::AltUpPredict(_)
                | Stage::AltUpCorrect(_)
                | Stage::Rescale(_)
                | Stage::AddVector(_)
                | Stage::Logits(_)
                | Stage::Sample(_) => {}
            }
        }
        most
    }
}

/// Index and length of each vector of f32 weights, apart from the matrices of adapters of rank 1.
fn constants(p: &Program) -> impl Iterator<Item = (usize, usize)> {
    let pairs = p.stages.iter().flat_map(|(_, stage)| stage.pairs());
    let of_adapters: HashSet<usize> = pairs.flat_map(|pair| [pair.a, pair.b].map(|w| w.0 as usize)).collect();
    let vectors = p.weights.iter().enumerate().filter(move |(i, _)| !of_adapters.contains(i));
    vectors.filter(|(_, w)| w.rows == 1 && w.ty.is(&types::F32)).map(|(i, w)| (i, w.cols))
}

/// Offset of each weight in the constants; `None` for weights that are not vectors.
pub fn constant_places(p: &Program) -> Vec<Option<u32>> {
    let mut places = vec![None; p.weights.len()];
    let mut at = 0;
    for (i, cols) in constants(p) {
        places[i] = Some(at as u32);
        at += cols.next_multiple_of(VECTOR);
    }
    places
}

/// Index of the bases of a cache's keys in the constants, which they follow.
pub fn bases_at(p: &Program, kv: Kv) -> u32 {
    let bases = p.kvs[..kv.0 as usize].iter().map(kv::bases_elems);
    constants(p).map(|(_, cols)| cols.next_multiple_of(VECTOR)).chain(bases).sum::<usize>() as u32
}

impl<B> Memory<B> {
    /// Allocates the memory of a program, with its caches if it has some of its own.
    pub fn new(
        on: &mut impl Allocator<Buffer = B>,
        p: &Program,
        has_caches: bool,
    ) -> Result<Self, BackendError> {
        let Shared { acts, quants, fresh, routes, partial, projected } = Shared::of(p);
        let buf = |decl: &BufDecl| {
            let rows = p.max_rows(decl.rows) as u64;
            let bytes = rows.saturating_mul(4 * decl.cols as u64);
            let part = (MemoryKind::Buffers, memory::buffer_part(decl), bytes);
            on.storage(&format_args!("{} of {rows} rows", decl.name), &[part])
        };
        let bufs = p.bufs.iter().map(buf).collect::<Result<_, _>>()?;
        let positions = p.limits.pages * PAGE;
        let rope = |rope: &Rope| {
            let part = (MemoryKind::Buffers, "RoPE", tables::rope_bytes(rope, positions));
            on.storage(&format_args!("RoPE of {positions} positions"), &[part])
        };
        let ropes = p.ropes.iter().map(rope).collect::<Result<_, _>>()?;
        let constants = constants(p).map(|(_, cols)| 4 * cols.next_multiple_of(VECTOR) as u64).sum();
        let bases = p.kvs.iter().map(|kv| 4 * kv::bases_elems(kv) as u64).sum();
        let constants = [("norms and biases", constants), ("bases of keys", bases)];
        let constants = constants.map(|(part, bytes)| (MemoryKind::Buffers, part, bytes));
        let outputs = p.limits.outputs;
        Ok(Self {
            bufs,
            ropes,
            constants: on.storage(&"norms, biases and bases", &constants)?,
            step: StepMemory::new(on, p)?,
            acts: on.scratch("inputs of layers", acts)?,
            signs: on.scratch("rotated bases", 4 * hadamard::signs(p).count() as u64)?,
            prepared: on.scratch("inputs in rotated bases", hadamard::prepared_bytes(p))?,
            quants: on.scratch("scales of inputs", quants)?,
            fresh: on.scratch("new keys, values and products", fresh)?,
            routes: on.scratch("routing of experts", routes)?,
            adapters: AdapterMemory::new(on, p)?,
            partial: on.scratch("splits of attention", partial)?,
            projected: on.scratch("projected queries", projected)?,
            best: on.scratch("candidates", 8 * (sample::lists(p.picked_from()) * outputs) as u64)?,
            tokens: on.scratch("tokens", 4 * outputs as u64)?,
            picks: Picks::new(on, p.limits.seqs)?,
            clamped: on.scratch("clamp counter", CLAMPED_BYTES)?,
            expert_tables: experts::all_layers(p)
                .map(|layers| {
                    Ok((layers[0].w, on.scratch("biases of experts", experts::table_bytes(&layers))?))
                })
                .collect::<Result<_, BackendError>>()?,
            staging: on.mapped(HOST_SIDE, 4 * outputs as u64)?,
            kvs: p
                .kvs
                .iter()
                .filter(|_| has_caches)
                .map(|kv| kv::alloc(on, kv, &p.limits))
                .collect::<Result<_, _>>()?,
            states: p
                .states
                .iter()
                .map(|decl| states::alloc(on, decl, &p.limits))
                .collect::<Result<_, _>>()?,
        })
    }
}

impl Memory {
    /// Uploads the data that no step changes.
    pub fn fill(&self, gpu: &Gpu, p: &Program, weights: &[DeviceWeight]) -> Result<(), BackendError> {
        for (rope, buffer) in p.ropes.iter().zip(&self.ropes) {
            gpu.upload(buffer, 0, bytemuck::cast_slice(&tables::rope(rope, p.limits.pages * PAGE)))?;
        }
        let signs: Vec<f32> = hadamard::signs(p).collect();
        if !signs.is_empty() {
            gpu.upload(&self.signs, 0, bytemuck::cast_slice(&signs))?;
        }
        let places = constant_places(p);
        let mut encoder = gpu.encoder();
        for ((i, cols), place) in constants(p).zip(places.iter().flatten()) {
            assert!(weights[i].ty.is(&types::F32), "only vectors of f32 are constants");
            let (from, at) = (weights[i].parts[0].alone(), 4 * u64::from(*place));
            encoder.copy_buffer_to_buffer(from, 0, &self.constants, at, 4 * cols as u64);
        }
        gpu.submit(encoder)?;
        for (i, decl) in p.kvs.iter().enumerate().filter(|(_, decl)| kv::bases_elems(decl) > 0) {
            let at = 4 * u64::from(bases_at(p, Kv(i as u32)));
            gpu.upload(&self.constants, at, bytemuck::cast_slice(&kv::bases(decl)))?;
        }
        let place = |w: Weight| places[w.0 as usize].expect("a vector of f32");
        experts::all_layers(p).try_for_each(|layers| {
            let table = experts::table(&layers, place);
            gpu.upload(&self.expert_tables[&layers[0].w], 0, bytemuck::cast_slice(&table))
        })
    }
}
