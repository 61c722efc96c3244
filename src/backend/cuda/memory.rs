//! The memory of a compiled program, all allocated before the first step, or only counted for a plan.

use super::alloc::Allocator;
use super::attend::{self, Cut};
use super::delta::{self, States};
use super::driver::{Address, Driver, Limits};
use super::experts::Mixture;
use super::kv::{self, KvLayout};
use super::linear;
use super::params::{RopeParams, RoundedParams};
use super::picks::{Picks, SAMPLING};
use super::sample;
use super::step::StepMemory;
use super::turn::Bases;
use super::weight::DeviceWeight;
use crate::device::tables;
use crate::{BackendError, memory};
use sterna_program::{BufDecl, PAGE, Program, Rope, RopeStyle, Stage};

/// Addresses of a program's memory.
pub struct Memory {
    /// One per buffer of the program.
    pub bufs: Vec<Address>,
    /// One per cache.
    pub kvs: Vec<KvLayout>,
    /// One per recurrent state of the program.
    pub states: Vec<States>,
    pub delta: delta::Scratch,
    /// Counter of the keys and values that had to be clamped.
    pub clamped: Address,
    /// Keys and values of a step before `append` transforms them.
    pub raw: Address,
    /// Products of a stage's layers until its last launch reads them.
    pub products: Address,
    /// Buffers of integer products on tensor cores.
    pub rounded: RoundedParams,
    /// Rotated bases, and rows in them.
    pub bases: Bases,
    pub mixture: Mixture,
    /// One per rotary embedding.
    pub ropes: Vec<RopeParams>,
    /// Tables that change with every step.
    pub step: StepMemory,
    /// Partial results of attention splits.
    pub partial: Address,
    /// Counters of finished attention splits.
    pub attend_arrived: Address,
    pub candidates: Address,
    /// Counters of finished sampling blocks.
    pub sample_arrived: Address,
    pub tokens: Address,
    /// The last picked token of each sequence slot.
    pub picks: Picks,
}

/// Parameters for no rotary embedding.
pub const NO_ROPE: RopeParams = RopeParams { cos_sin: 0, pairs: 0, adjacent: 0 };

/// Bytes of the counter of clamped vectors.
const CLAMPED_BYTES: u64 = 8;

/// Bytes for the partial results of attention splits, and for their counters, in steps of the given row
/// counts.
fn split_bytes(p: &Program, limits: Limits, shapes: &[usize]) -> [u64; 2] {
    let (mut partial, mut arrived) = (0, 0);
    for (_, stage) in &p.stages {
        let Stage::Attend(s) = stage else { continue };
        let kv = p.kv_decl(s.kv);
        partial = partial.max(4 * attend::tiles_partial_floats(kv, limits) as u64);
        for &rows in shapes {
            let cut = Cut::new(p, s, limits, rows);
            partial = partial.max(4 * cut.partial_floats(kv, rows) as u64);
            arrived = arrived.max(4 * (rows * kv.n_kv_heads * cut.tiles) as u64);
        }
    }
    [partial, arrived]
}

impl Memory {
    /// Allocates all of it. `shapes` are the row counts of all steps that launches are recorded for.
    pub fn new<A: Allocator + ?Sized>(
        on: &mut A,
        p: &Program,
        limits: Limits,
        shapes: &[usize],
    ) -> Result<Self, BackendError> {
        let buf = |decl: &BufDecl| {
            let bytes = (p.max_rows(decl.rows) as u64).saturating_mul(4 * decl.cols as u64);
            on.buffer(memory::buffer_part(decl), bytes)
        };
        let bufs = p.bufs.iter().map(buf).collect::<Result<_, _>>()?;
        let rounded = linear::rounded(on, p, limits)?;
        let products = p.stages.iter().map(|(_, stage)| super::products(p, stage)).max().unwrap_or(0);
        let products = on.buffer("intermediate products", 4 * (products * p.limits.rows) as u64)?;
        let bases = Bases::new(on, p)?;
        let mixture = Mixture::new(on, p, limits, shapes)?;
        let raw = p.kvs.iter().map(|decl| kv::raw_bytes(decl, p.limits.rows)).max().unwrap_or(0);
        let raw = on.buffer("new keys and values", raw)?;
        let splits = split_bytes(p, limits, shapes);
        let [partial, attend_arrived] = splits.map(|bytes| on.buffer("splits of attention", bytes));
        let rope = |rope: &Rope| {
            let cos_sin = on.buffer("RoPE", tables::rope_bytes(rope, p.limits.pages * PAGE))?;
            let adjacent = u32::from(rope.style == RopeStyle::Adjacent);
            Ok::<_, BackendError>(RopeParams { cos_sin, pairs: rope.inv_freq.len() as u32, adjacent })
        };
        let ropes = p.ropes.iter().map(rope).collect::<Result<_, _>>()?;
        let step = StepMemory::new(on, p)?;
        let outputs = p.limits.outputs as u64;
        let candidates = sample::candidate_bytes(p.picked_from());
        let sampled = [candidates * outputs, 4 * outputs, 4 * outputs, CLAMPED_BYTES];
        let [candidates, sample_arrived, tokens, clamped] = sampled.map(|bytes| on.buffer(SAMPLING, bytes));
        let (picks, clamped) = (Picks::new(on, p.limits.seqs)?, clamped?);
        let delta = delta::Scratch::new(on, p)?;
        let states = p.states.iter().map(|decl| States::new(on, decl, &p.limits));
        let states = states.collect::<Result<_, _>>()?;
        let kvs = p.kvs.iter().map(|decl| KvLayout::new(on, decl, &p.limits, clamped));
        Ok(Self {
            bufs,
            kvs: kvs.collect::<Result<_, _>>()?,
            states,
            delta,
            clamped,
            raw,
            products,
            rounded,
            bases,
            mixture,
            ropes,
            step,
            partial: partial?,
            attend_arrived: attend_arrived?,
            candidates: candidates?,
            sample_arrived: sample_arrived?,
            tokens: tokens?,
            picks,
        })
    }

    /// Writes the data that no step changes; `in_place` are the weights with streamed ones at their host
    /// memory addresses.
    pub fn fill(
        &mut self,
        driver: &mut dyn Driver,
        p: &Program,
        weights: &[DeviceWeight],
        in_place: Option<&[DeviceWeight]>,
    ) -> Result<(), BackendError> {
        kv::upload_constants(driver, &p.kvs)?;
        p.kvs.iter().zip(&mut self.kvs).for_each(|(decl, kept)| kept.fill(decl));
        for (rope, params) in p.ropes.iter().zip(&self.ropes) {
            let table = tables::rope(rope, p.limits.pages * PAGE);
            driver.write(params.cos_sin, bytemuck::cast_slice(&table))?;
        }
        self.bases.fill(driver, p)?;
        self.mixture.fill(driver, p, weights, in_place)
    }
}
