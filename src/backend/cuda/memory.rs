//! The memory of a compiled program, all of it allocated before the first step.

use super::attend::{self, Cut};
use super::driver::{Address, Driver, Limits};
use super::experts::{self, Mixture};
use super::kv::{self, KvLayout};
use super::linear::RoundedSizes;
use super::params::{RopeParams, RoundedParams};
use super::picks::Picks;
use super::step::StepMemory;
use super::weight::DeviceWeight;
use crate::device::tables;
use crate::memory::Parts;
use crate::{BackendError, MemoryKind, MemoryPart};
use sterna_program::{PAGE, Program, RopeStyle, RowsOf, Stage};

/// Where everything lies.
pub struct Memory {
    /// One a buffer of the program.
    pub bufs: Vec<Address>,
    /// One a cache.
    pub kvs: Vec<KvLayout>,
    /// How many keys and values could not be kept as they were.
    pub clamped: Address,
    /// Keys and values of a step before `append` has transformed them.
    pub raw: Address,
    /// Products of a stage's layers before its last launch has taken them.
    pub products: Address,
    /// What products of integers on tensor cores exchange.
    pub rounded: RoundedParams,
    /// What a step of a mixture of experts exchanges.
    pub mixture: Mixture,
    /// One a rotary embedding.
    pub ropes: Vec<RopeParams>,
    /// What changes between two steps.
    pub step: StepMemory,
    /// Parts of splits of attention.
    pub partial: Address,
    /// Splits that have come.
    pub attend_arrived: Address,
    /// Best candidates of sampling.
    pub best: Address,
    /// Blocks of sampling that have come.
    pub sample_arrived: Address,
    /// Sampled tokens.
    pub tokens: Address,
    /// The last of them, of each sequence slot.
    pub picks: Picks,
}

/// The parameters of a rotary embedding that is not there.
pub const NO_ROPE: RopeParams = RopeParams { cos_sin: 0, pairs: 0, adjacent: 0 };

/// Of the counter of vectors that were clamped.
const CLAMPED_BYTES: u64 = 8;

/// Bytes of each kind, as a program needs them.
pub struct Sizes {
    pub bufs: Vec<u64>,
    /// Keys and values of a step.
    pub raw: u64,
    /// Products that wait.
    pub products: u64,
    /// Of products of integers on tensor cores.
    pub rounded: RoundedSizes,
    /// Of mixtures of experts.
    pub mixture: experts::Sizes,
    /// Cosines and sines of every position.
    pub ropes: Vec<u64>,
    pub partial: u64,
    pub attend_arrived: u64,
    pub step: u64,
    /// Of candidates, counters and tokens together.
    pub sample: u64,
}

impl Sizes {
    /// `shapes` are the rows of all steps that launches are made for.
    pub fn of(p: &Program, limits: Limits, shapes: &[usize]) -> Self {
        let mut partial = 0;
        let mut arrived = 0;
        for (_, stage) in &p.stages {
            let Stage::Attend(s) = stage else { continue };
            let kv = p.kv_decl(s.kv);
            partial = partial.max(4 * attend::mma_partial_floats(kv, limits) as u64);
            for &rows in shapes {
                let cut = Cut::new(p, s, limits, rows);
                partial = partial.max(4 * cut.partial_floats(kv, rows) as u64);
                arrived = arrived.max(4 * (rows * kv.n_kv_heads * cut.tiles) as u64);
            }
        }
        let products = p.stages.iter().map(|(_, stage)| super::products(p, stage)).max().unwrap_or(0);
        Self {
            bufs: p
                .bufs
                .iter()
                .map(|b| (p.max_rows(b.rows) as u64).saturating_mul(4 * b.cols as u64))
                .collect(),
            raw: p.kvs.iter().map(|decl| kv::raw_bytes(decl, p.limits.rows)).max().unwrap_or(0),
            products: 4 * (products * p.limits.rows) as u64,
            rounded: RoundedSizes::of(p, limits),
            mixture: experts::Sizes::of(p, limits, shapes),
            ropes: p.ropes.iter().map(|rope| tables::rope_bytes(rope, p.limits.pages * PAGE)).collect(),
            partial,
            attend_arrived: arrived,
            step: StepMemory::bytes(&p.limits),
            sample: 16 * p.limits.outputs as u64 + Picks::bytes(p.limits.seqs),
        }
    }

    /// Everything but the caches, by a name for people.
    pub fn others(&self, p: &Program) -> Vec<MemoryPart> {
        let Self { raw, products, partial, attend_arrived, step, sample, .. } = *self;
        let mut parts = Parts::new(MemoryKind::Buffers);
        for (decl, bytes) in p.bufs.iter().zip(&self.bufs) {
            parts.add(if decl.rows == RowsOf::Outputs { "logits" } else { "activations" }, *bytes);
        }
        parts.add("inputs of layers, rounded", self.rounded.sum());
        parts.add("products that wait", products);
        parts.add("mixtures of experts", self.mixture.sum());
        parts.add("new keys and values", raw);
        parts.add("splits of attention", partial.saturating_add(attend_arrived));
        self.ropes.iter().for_each(|bytes| parts.add("RoPE", *bytes));
        parts.add("tables of a step", step);
        parts.add("sampling and counters", sample.saturating_add(CLAMPED_BYTES));
        parts.finish()
    }
}

impl Memory {
    pub fn new(
        driver: &mut dyn Driver,
        p: &Program,
        sizes: &Sizes,
        weights: &[DeviceWeight],
    ) -> Result<Self, BackendError> {
        let bufs = sizes.bufs.iter().map(|bytes| driver.alloc(*bytes)).collect::<Result<_, _>>()?;
        kv::upload_constants(driver, &p.kvs)?;
        let clamped = driver.alloc(CLAMPED_BYTES)?;
        let kv_layout = |decl| KvLayout::new(driver, decl, &p.limits, clamped);
        let kvs = p.kvs.iter().map(kv_layout).collect::<Result<_, _>>()?;
        let mut ropes = Vec::with_capacity(p.ropes.len());
        for (rope, bytes) in p.ropes.iter().zip(&sizes.ropes) {
            let cos_sin = driver.alloc(*bytes)?;
            driver.write(cos_sin, bytemuck::cast_slice(&tables::rope(rope, p.limits.pages * PAGE)))?;
            ropes.push(RopeParams {
                cos_sin,
                pairs: rope.inv_freq.len() as u32,
                adjacent: u32::from(rope.style == RopeStyle::Adjacent),
            });
        }
        let mixture = Mixture::new(driver, p, sizes.mixture, weights)?;
        let outputs = p.limits.outputs as u64;
        let mut if_any = |bytes: u64| if bytes > 0 { driver.alloc(bytes) } else { Ok(0) };
        let rounded = RoundedParams {
            rows: if_any(sizes.rounded.rows)?,
            quants: if_any(sizes.rounded.quants)?,
            sums: if_any(sizes.rounded.sums)?,
            arrived: if_any(sizes.rounded.arrived)?,
        };
        Ok(Self {
            bufs,
            kvs,
            clamped,
            raw: if_any(sizes.raw)?,
            products: if_any(sizes.products)?,
            rounded,
            mixture,
            ropes,
            step: StepMemory::new(driver, &p.limits)?,
            partial: driver.alloc(sizes.partial)?,
            attend_arrived: driver.alloc(sizes.attend_arrived)?,
            best: driver.alloc(8 * outputs)?,
            sample_arrived: driver.alloc(4 * outputs)?,
            tokens: driver.alloc(4 * outputs)?,
            picks: Picks::new(driver, p.limits.seqs)?,
        })
    }
}
