//! Allocation of a compiled program's memory before its first step, or only its count for a plan.

use crate::BackendError;
use crate::cuda::adapter_tables::AdapterTables;
use crate::cuda::alloc::Allocator;
use crate::cuda::attend::{self, Cut};
use crate::cuda::bases::Bases;
use crate::cuda::driver::{Driver, Limits};
use crate::cuda::head_tables::HeadTables;
use crate::cuda::kv::{self, KvLayout};
use crate::cuda::lower::Lowered;
use crate::cuda::memory::Memory;
use crate::cuda::mixture::Mixture;
use crate::cuda::params::RopeParams;
use crate::cuda::picks::{Picks, SAMPLING};
use crate::cuda::states::{Scratch, States};
use crate::cuda::step::StepMemory;
use crate::cuda::weight::DeviceWeight;
use crate::cuda::{linear, sample};
use crate::device::tables;
use sterna_program::{BufDecl, PAGE, Program, Rope, RopeStyle, Stage};

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

/// Allocates all of it. `shapes` are the row counts of all steps that launches are recorded for.
pub fn alloc<A: Allocator + ?Sized>(
    on: &mut A,
    p: &Program,
    limits: Limits,
    shapes: &[usize],
) -> Result<Memory, BackendError> {
    let buf = |decl: &BufDecl| {
        let bytes = (p.max_rows(decl.rows) as u64).saturating_mul(4 * decl.cols as u64);
        on.buffer(crate::memory::buffer_part(decl), bytes)
    };
    let bufs = p.bufs.iter().map(buf).collect::<Result<_, _>>()?;
    let rounded = linear::rounded(on, p, limits)?;
    let products = Lowered::all(p).iter().map(|stage| stage.kept(p)).max().unwrap_or(0);
    let products = on.buffer("intermediate products", 4 * (products * p.limits.rows) as u64)?;
    let bases = Bases::new(on, p)?;
    let mixture = Mixture::new(on, p, limits, shapes)?;
    let adapters = AdapterTables::new(on, p)?;
    let heads = HeadTables::new(on, p)?;
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
    let delta = Scratch::new(on, p)?;
    let states = p.states.iter().map(|decl| States::new(on, decl, &p.limits));
    let states = states.collect::<Result<_, _>>()?;
    let trellis = kv::alloc_trellis(on, &p.kvs)?;
    let kvs = p.kvs.iter().map(|decl| KvLayout::new(on, decl, &p.limits, clamped, trellis));
    Ok(Memory {
        bufs,
        kvs: kvs.collect::<Result<_, _>>()?,
        trellis,
        states,
        delta,
        clamped,
        raw,
        products,
        rounded,
        bases,
        mixture,
        adapters,
        heads,
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
    memory: &mut Memory,
    driver: &mut dyn Driver,
    p: &Program,
    weights: &[DeviceWeight],
    in_place: Option<&[DeviceWeight]>,
) -> Result<(), BackendError> {
    kv::upload_constants(driver, &p.kvs)?;
    kv::fill_trellis(driver, memory.trellis)?;
    p.kvs.iter().zip(&mut memory.kvs).try_for_each(|(decl, kept)| kept.fill(driver, decl))?;
    for (rope, params) in p.ropes.iter().zip(&memory.ropes) {
        let table = tables::rope(rope, p.limits.pages * PAGE);
        driver.write(params.cos_sin, bytemuck::cast_slice(&table))?;
    }
    memory.bases.fill(driver, p)?;
    memory.heads.fill(driver, p, weights)?;
    memory.adapters.fill(driver, p, weights)?;
    memory.mixture.fill(driver, p, weights, in_place)
}
