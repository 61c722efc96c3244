//! The memory of mixtures of experts, and the distribution of their work over blocks.

use super::alloc::Allocator;
use super::driver::{Address, Driver, Limits};
use super::linear::geometry::{self, WARPS, Work};
use super::linear::shared::{self, Part};
use super::occupancy;
use super::params::{ExpertChoice, ExpertTile, LINEAR_ROWS, LinearParams, MMA_ROWS};
use super::weight::{DeviceWeight, Mma, Products, layer_params};
use crate::BackendError;
use sterna_program::{Expert, Experts, Linear, Program, Stage};

/// The layers of an expert, in the order of a table. Without a gate, up has its place too.
pub const LAYERS: [fn(&Expert) -> &Linear; 3] =
    [|expert| expert.gate.as_ref().unwrap_or(&expert.up), |expert| &expert.up, |expert| &expert.down];

pub const UP: usize = 1;
pub const DOWN: usize = 2;

/// Static shared memory of the kernels for tiles: the parameters of two layers.
const TILES_OWN_BYTES: usize = 2 * size_of::<LinearParams>();
/// Buffers between the launches of a mixture of experts. An address is 0 if the buffer is not needed.
#[derive(Clone, Default)]
pub struct Mixture {
    /// Router logits.
    pub logits: Address,
    /// Products of the gates, if no kernel computes them together with up.
    pub gates: Address,
    pub hidden: Address,
    pub products: Address,
    pub choices: Address,
    pub tiles: Address,
    pub n_tiles: Address,
    pub rows: Address,
    pub counts: Address,
    pub arrived: Address,
    /// Per stage of the program: `LinearParams` of its experts and of its router, with the addresses that the
    /// weights have when the stage runs; then the same once more, with streamed weights at their host memory
    /// addresses.
    pub tables: Vec<Address>,
}

/// The mixtures of a program, with their stage numbers.
fn mixtures(p: &Program) -> impl Iterator<Item = (usize, &Experts)> {
    let stages = p.stages.iter().enumerate();
    stages.filter_map(|(i, (_, stage))| if let Stage::Experts(s) = stage { Some((i, s)) } else { None })
}

/// Entries of a stage's table: the experts' layers, and the router.
pub fn entries(s: &Experts) -> usize {
    LAYERS.len() * s.experts.len() + 1
}

pub fn table_bytes(s: &Experts) -> u64 {
    (entries(s) * size_of::<LinearParams>()) as u64
}

impl Mixture {
    /// Allocates the buffers for the largest mixture of a program, and the tables of all. `shapes` are the
    /// row counts of all steps that launches are recorded for.
    pub fn new<A: Allocator + ?Sized>(
        on: &mut A,
        p: &Program,
        limits: Limits,
        shapes: &[usize],
    ) -> Result<Self, BackendError> {
        let mut alloc = |bytes: u64| on.buffer("mixtures of experts", bytes);
        let mut tables = vec![0; p.stages.len()];
        for (i, s) in mixtures(p) {
            tables[i] = alloc(2 * table_bytes(s))?;
        }
        let mut largest = |of: &dyn Fn(&Experts) -> [usize; 2], bytes: usize| {
            let each = mixtures(p).map(|(_, s)| of(s).map(|n| n as u64));
            alloc(
                each.map(|[n, cols]| n.saturating_mul(cols)).max().unwrap_or(0).saturating_mul(bytes as u64),
            )
        };
        let rows = p.limits.rows;
        let slots = |s: &Experts| rows * s.n_used;
        let ffn_dim = |s: &Experts| p.weight_decl(s.experts[0].up.w).rows;
        let is_apart = |s: &Experts| !has_pairs(p, s) || has_adapters(s, &[0, UP]);
        let gates = |s: &Experts| if is_apart(s) && s.experts[0].gate.is_some() { slots(s) } else { 0 };
        let arrived = |s: &Experts| {
            let shares = |rows: &usize| match is_sorted(p, s, limits, *rows) {
                true => 0,
                false => rows * slot_geometry(p, s, limits, DOWN, *rows).1,
            };
            1 + shapes.iter().map(shares).max().unwrap_or(0)
        };
        Ok(Self {
            logits: largest(&|s| [rows, s.experts.len()], 4)?,
            gates: largest(&|s| [gates(s), ffn_dim(s)], 4)?,
            hidden: largest(&|s| [slots(s), ffn_dim(s)], 4)?,
            products: largest(&|s| [slots(s), p.weight_decl(s.experts[0].down.w).rows], 4)?,
            choices: largest(&|s| [slots(s), 1], size_of::<ExpertChoice>())?,
            tiles: largest(&|s| [most_tiles(s, rows), 1], size_of::<ExpertTile>())?,
            n_tiles: largest(&|_| [1, 1], 4)?,
            rows: largest(&|s| [slots(s), 1], 4)?,
            counts: largest(&|s| [s.experts.len(), 1], 4)?,
            arrived: largest(&|s| [arrived(s), 1], 4)?,
            tables,
        })
    }

    /// Writes the tables; `in_place` are the weights with streamed ones at their host memory addresses.
    pub fn fill(
        &self,
        driver: &mut dyn Driver,
        p: &Program,
        weights: &[DeviceWeight],
        in_place: Option<&[DeviceWeight]>,
    ) -> Result<(), BackendError> {
        mixtures(p).try_for_each(|(i, s)| {
            for (half, weights) in [Some(weights), in_place].into_iter().flatten().enumerate() {
                let layers = s.experts.iter().flat_map(|expert| LAYERS.map(|layer| layer(expert)));
                let table: Vec<LinearParams> =
                    layers.chain([&s.router]).map(|layer| layer_params(weights, layer)).collect();
                let at = self.tables[i] + half as u64 * table_bytes(s);
                driver.write(at, bytemuck::cast_slice(&table))?;
            }
            Ok(())
        })
    }
}

/// The kind of product of a layer, which is the same for all experts.
pub fn products(p: &Program, linear: &Linear) -> Option<Products> {
    Products::of(p.weight_decl(linear.w).ty, linear.act)
}

/// True if one kernel computes gate and up.
pub fn has_pairs(p: &Program, s: &Experts) -> bool {
    let Expert { gate, up, down: _ } = &s.experts[0];
    gate.as_ref().is_some_and(|gate| gate.act == up.act && products(p, gate) == products(p, up))
}

/// True if some expert has adapters for one of the layers, which are numbered as in [`LAYERS`].
pub fn has_adapters(s: &Experts, layers: &[usize]) -> bool {
    let has_some = |layer: &usize| s.experts.iter().any(|expert| !LAYERS[*layer](expert).lora.is_empty());
    layers.iter().any(has_some)
}

/// True if no mixture of a program sorts the rows of a step of `rows` rows, so that only the weights of
/// chosen experts are read.
pub fn reads_chosen(p: &Program, limits: Limits, rows: usize) -> bool {
    mixtures(p).all(|(_, s)| !is_sorted(p, s, limits, rows))
}

/// True if the rows of a step are sorted by expert: if there are more slots than experts, so that some share
/// an expert, or if the row of a slot does not fit into shared memory, but part of a tile's rows does.
pub fn is_sorted(p: &Program, s: &Experts, limits: Limits, rows: usize) -> bool {
    let all = |fits: &dyn Fn(Products, usize) -> bool| {
        let of = |linear: &&Linear| {
            let cols = p.weight_decl(linear.w).cols;
            products(p, linear).is_some_and(|products| fits(products, cols))
        };
        s.experts[0].layers().chain([&s.router]).all(|linear| of(&linear))
    };
    let room = limits.shared_bytes as usize;
    let slots_fit = || all(&|products, cols| shared::shared_bytes(products, cols, 1) <= room);
    let tiles_fit = all(&|products, cols| on_halves(products) || tile_part(products, limits, cols).is_some());
    tiles_fit && (rows > 1 && rows * s.n_used > s.experts.len() || !slots_fit())
}

/// The part of a tile's rows that is in shared memory at a time, if tiles do not use tensor cores.
pub fn tile_part(products: Products, limits: Limits, cols: usize) -> Option<Part> {
    let limits = Limits { shared_bytes: limits.shared_bytes - TILES_OWN_BYTES as u32, ..limits };
    shared::part(products, limits, cols, LINEAR_ROWS as usize)
}

/// True if tiles use tensor cores.
pub fn on_halves(products: Products) -> bool {
    matches!(products.mma, Some(Mma::Halves | Mma::Codes))
}

/// Maximum number of tiles of a step's rows: all tiles of an expert but one are full.
pub fn most_tiles(s: &Experts, rows: usize) -> usize {
    let slots = rows * s.n_used;
    slots.min(s.experts.len()) + slots / MMA_ROWS as usize
}

/// Blocks per slot or tile, of which there are `others`, so that waves are full; at most `most`.
pub fn shares(limits: Limits, shared_bytes: usize, others: usize, most: usize) -> usize {
    let multiprocessors = limits.multiprocessors as usize;
    // Kernels have registers for two blocks per multiprocessor.
    let places = multiprocessors * occupancy::by_shared(limits, shared_bytes as u32).clamp(1, 2) as usize;
    let most = most.max(1);
    let least = (places / others).clamp(1, most);
    let full = |shares: &usize| {
        let blocks = shares * others;
        let wave = if blocks > places { places } else { multiprocessors };
        blocks * 1000 / (blocks.div_ceil(wave) * wave)
    };
    let mut all = least..=most.min(8 * least);
    all.find(|shares| full(shares) >= 900)
        .unwrap_or_else(|| (least..=most.min(8 * least)).max_by_key(full).unwrap_or(least))
}

/// Rows of weights of an expert's layer, and whether they are paired in a warp.
pub fn work(p: &Program, s: &Experts, layer: usize) -> Work {
    let paired = layer != DOWN && has_pairs(p, s);
    let rows = p.weight_decl(LAYERS[layer](&s.experts[0]).w).rows;
    Work::new(if paired { 2 * rows } else { rows }, paired)
}

/// Lanes that share a row of an expert's layer: the same for any step, so that a row's result has the same
/// bits.
pub fn lanes_log2(p: &Program, s: &Experts, limits: Limits, layer: usize) -> u32 {
    let Work { rows, paired, .. } = work(p, s, layer);
    let linear = LAYERS[layer](&s.experts[0]);
    let chunks = products(p, linear).map_or(0, |products| products.chunks(p.weight_decl(linear.w).cols));
    geometry::lanes_log2(limits, chunks, Work::new(rows * s.n_used, paired))
}

/// Shared memory of a block that processes a slot, and blocks per slot.
pub fn slot_geometry(p: &Program, s: &Experts, limits: Limits, layer: usize, rows: usize) -> (usize, usize) {
    let linear = LAYERS[layer](&s.experts[0]);
    let cols = p.weight_decl(linear.w).cols;
    let acts = products(p, linear).map_or(0, |products| shared::shared_bytes(products, cols, 1));
    let shared = if layer == DOWN { acts } else { acts.max(shared::norm_bytes(cols)) };
    let units = work(p, s, layer).rows.div_ceil(32 >> lanes_log2(p, s, limits, layer));
    (shared, shares(limits, shared, rows * s.n_used, units.div_ceil(WARPS)))
}
