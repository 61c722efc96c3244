//! A mixture of experts. The host does not know the routing: recorded launches work for any.
//!
//! Steps of a few rows process their slots one by one, a slot being one expert of one row: the router's
//! logits, then gate and up of the slots, whose kernel chooses the experts, then down of the slots, whose
//! kernel adds them up. In larger steps the rows are sorted by expert between the router and the gate, so
//! that an expert's weights are read once per tile of rows, and a separate launch adds up the products. A
//! row's result has the same bits either way, except for types whose tiles use tensor cores.

use super::alloc::Allocator;
use super::combine::{self, Combine};
use super::driver::{Address, Driver, Launch, Limits};
use super::linear::{self, Input, Work};
use super::params::{
    ACT_NONE, EXPERTS_MOST, EXPERTS_MOST_USED, ExpertChoice, ExpertTile, ExpertsParams, InputParams,
    LINEAR_ROWS, LINEAR_THREADS, LinearParams, MIX_THREADS, MMA_HALVES_SHARED_BYTES, MMA_ROWS, MixParams,
    NextWeights, ROUTE_THREADS, RouteParams, RoutesParams,
};
use super::weight::{DeviceWeight, Mma, Products};
use super::{Cx, occupancy, words};
use crate::BackendError;
use sterna_program::{Act, Expert, Experts, Linear, Norm, Program, RowsOf, Stage};

/// The layers of an expert, in the order of a table.
const LAYERS: [fn(&Expert) -> &Linear; 3] =
    [|expert| &expert.gate, |expert| &expert.up, |expert| &expert.down];

const DOWN: usize = 2;

pub const STAGE: &str = "experts";
/// The kernel for tiles of rows.
pub const TILES: &str = "__tiles";
/// Static shared memory of those kernels: the parameters of two layers.
const TILES_OWN_BYTES: usize = 2 * size_of::<LinearParams>();
pub const ROUTE: &str = "route";
pub const MIX: &str = "mix";

/// Buffers between the launches of a mixture of experts. An address is 0 if the buffer is not needed.
#[derive(Clone, Default)]
pub struct Mixture {
    /// Router logits.
    logits: Address,
    /// Products of the gates, if no kernel computes them together with up.
    gates: Address,
    hidden: Address,
    products: Address,
    choices: Address,
    tiles: Address,
    n_tiles: Address,
    rows: Address,
    counts: Address,
    arrived: Address,
    /// Per stage of the program: `LinearParams` of its experts and of its router, with the addresses that the
    /// weights have when the stage runs; then the same once more, with streamed weights at their host memory
    /// addresses.
    tables: Vec<Address>,
}

/// The mixtures of a program, with their stage numbers.
fn mixtures(p: &Program) -> impl Iterator<Item = (usize, &Experts)> {
    let stages = p.stages.iter().enumerate();
    stages.filter_map(|(i, (_, stage))| if let Stage::Experts(s) = stage { Some((i, s)) } else { None })
}

/// Entries of a stage's table: the experts' layers, and the router.
fn entries(s: &Experts) -> usize {
    LAYERS.len() * s.experts.len() + 1
}

fn table_bytes(s: &Experts) -> u64 {
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
        let gates = |s: &Experts| if has_pairs(p, s) { 0 } else { slots(s) };
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
            products: largest(&|s| [slots(s), p.buf_decl(s.x).cols], 4)?,
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
                let layers = s.experts.iter().flat_map(|Expert { gate, up, down }| [gate, up, down]);
                let table: Vec<LinearParams> =
                    layers.chain([&s.router]).map(|layer| linear::params(weights, layer)).collect();
                let at = self.tables[i] + half as u64 * table_bytes(s);
                driver.write(at, bytemuck::cast_slice(&table))?;
            }
            Ok(())
        })
    }
}

/// The kind of product of a layer, which is the same for all experts.
fn products(p: &Program, linear: &Linear) -> Option<Products> {
    Products::of(p.weight_decl(linear.w).ty, linear.act)
}

/// True if one kernel computes gate and up.
fn has_pairs(p: &Program, s: &Experts) -> bool {
    let [gate, up] = [&s.experts[0].gate, &s.experts[0].up];
    gate.act == up.act && products(p, gate) == products(p, up)
}

pub fn kernels(p: &Program, s: &Experts) -> Result<Vec<String>, String> {
    let mut names = linear::kernels(p, "logits", &[&s.router])?;
    if s.experts.len() > EXPERTS_MOST as usize || s.n_used > EXPERTS_MOST_USED as usize {
        return Err(format!("more than {EXPERTS_MOST} experts, or more than {EXPERTS_MOST_USED} per row"));
    }
    let all = s.experts.iter().flat_map(|expert| LAYERS.map(|layer| layer(expert)));
    if all.chain([&s.router]).any(|linear| linear.basis.is_some()) {
        return Err("experts in a rotated basis".to_owned());
    }
    if s.act == Act::Gelu {
        return Err("experts with gelu".to_owned());
    }
    let first = &s.experts[0];
    for layer in LAYERS {
        let of_first = layer(first);
        let is_alike = |expert: &Expert| {
            let (one, other) = (layer(expert), of_first);
            one.act == other.act && products(p, one) == products(p, other)
        };
        if !s.experts.iter().all(is_alike) {
            return Err("experts of different types".to_owned());
        }
    }
    for linear in LAYERS.iter().map(|layer| layer(first)).chain([&s.router]) {
        match products(p, linear) {
            Some(products) => {
                names.extend([products.single(), TILES].map(|kind| products.kernel(STAGE, kind)))
            }
            None => names.push(format!("{STAGE}__{}", p.weight_decl(linear.w).ty.name())),
        }
    }
    names.extend([ROUTE, MIX].map(str::to_owned));
    names.extend((!has_pairs(p, s)).then(|| combine::KERNEL.to_owned()));
    Ok(names)
}

/// True if no mixture of a program sorts the rows of a step of `rows` rows, so that only the weights of
/// chosen experts are read.
pub fn reads_chosen(p: &Program, limits: Limits, rows: usize) -> bool {
    mixtures(p).all(|(_, s)| !is_sorted(p, s, limits, rows))
}

/// True if the rows of a step are sorted by expert: if there are more slots than experts, so that some share
/// an expert, or if the row of a slot does not fit into shared memory, but part of a tile's rows does.
fn is_sorted(p: &Program, s: &Experts, limits: Limits, rows: usize) -> bool {
    let Expert { gate, up, down } = &s.experts[0];
    let layers = [&s.router, gate, up, down];
    let all = |fits: &dyn Fn(Products, usize) -> bool| {
        let of = |linear: &&Linear| {
            let cols = p.weight_decl(linear.w).cols;
            products(p, linear).is_some_and(|products| fits(products, cols))
        };
        layers.iter().all(of)
    };
    let room = limits.shared_bytes as usize;
    let slots_fit = || all(&|products, cols| linear::shared_bytes(products, cols, 1) <= room);
    let tiles_fit = all(&|products, cols| on_halves(products) || tile_part(products, limits, cols).is_some());
    tiles_fit && (rows > 1 && rows * s.n_used > s.experts.len() || !slots_fit())
}

/// The part of a tile's rows that is in shared memory at a time, if tiles do not use tensor cores.
fn tile_part(products: Products, limits: Limits, cols: usize) -> Option<linear::Part> {
    let limits = Limits { shared_bytes: limits.shared_bytes - TILES_OWN_BYTES as u32, ..limits };
    linear::part(products, limits, cols, LINEAR_ROWS as usize)
}

/// True if tiles use tensor cores.
fn on_halves(products: Products) -> bool {
    matches!(products.mma, Some(Mma::Halves | Mma::Codes))
}

/// Maximum number of tiles of a step's rows: all tiles of an expert but one are full.
fn most_tiles(s: &Experts, rows: usize) -> usize {
    let slots = rows * s.n_used;
    slots.min(s.experts.len()) + slots / MMA_ROWS as usize
}

/// Blocks per slot or tile, of which there are `others`, so that waves are full; at most `most`.
fn shares(limits: Limits, shared_bytes: usize, others: usize, most: usize) -> usize {
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
fn work(p: &Program, s: &Experts, layer: usize) -> Work {
    let paired = layer != DOWN && has_pairs(p, s);
    let rows = p.weight_decl(LAYERS[layer](&s.experts[0]).w).rows;
    Work { rows: if paired { 2 * rows } else { rows }, paired }
}

/// Lanes that share a row of an expert's layer: the same for any step, so that a row's result has the same
/// bits.
fn lanes_log2(p: &Program, s: &Experts, limits: Limits, layer: usize) -> u32 {
    let Work { rows, paired } = work(p, s, layer);
    let linear = LAYERS[layer](&s.experts[0]);
    let chunks = products(p, linear).map_or(0, |products| products.chunks(p.weight_decl(linear.w).cols));
    linear::lanes_log2(limits, chunks, Work { rows: rows * s.n_used, paired })
}

/// Shared memory of a block that processes a slot, and blocks per slot.
fn slot_geometry(p: &Program, s: &Experts, limits: Limits, layer: usize, rows: usize) -> (usize, usize) {
    let linear = LAYERS[layer](&s.experts[0]);
    let cols = p.weight_decl(linear.w).cols;
    let acts = products(p, linear).map_or(0, |products| linear::shared_bytes(products, cols, 1));
    let shared = if layer == DOWN { acts } else { acts.max(linear::norm_bytes(cols)) };
    let units = work(p, s, layer).rows.div_ceil(32 >> lanes_log2(p, s, limits, layer));
    (shared, shares(limits, shared, rows * s.n_used, units.div_ceil(LINEAR_THREADS as usize / 32)))
}

struct Layer<'a> {
    linear: &'a Linear,
    /// Index in the table.
    at: usize,
    act: u32,
    /// The input and its norm. If there is a norm, the input has the rows of the step.
    x: Address,
    norm: Option<&'a Norm>,
    out: Address,
}

/// Distribution of a layer's rows over blocks.
struct Blocks {
    kind: &'static str,
    shared_bytes: usize,
    shares: usize,
    /// Slots or tiles.
    others: usize,
    lanes_log2: u32,
    /// Chunks of a row in shared memory at a time.
    part_chunks: usize,
}

impl Blocks {
    fn by_slot(cx: &Cx<'_>, s: &Experts, layer: usize) -> Self {
        let rows = cx.shape.rows;
        let (shared_bytes, shares) = slot_geometry(cx.p, s, cx.limits, layer, rows);
        let lanes_log2 = lanes_log2(cx.p, s, cx.limits, layer);
        let linear = LAYERS[layer](&s.experts[0]);
        let products = products(cx.p, linear).expect("it was uploaded");
        let part_chunks = products.chunks(cx.p.weight_decl(linear.w).cols);
        let (kind, others) = (products.single(), rows * s.n_used);
        Self { kind, shared_bytes, shares, others, lanes_log2, part_chunks }
    }

    fn by_tile(cx: &Cx<'_>, linear: &Linear, tiles: usize, work: Work, lanes_log2: u32) -> Self {
        let products = products(cx.p, linear).expect("it was uploaded");
        let cols = cx.p.weight_decl(linear.w).cols;
        let warps = LINEAR_THREADS as usize / 32;
        if on_halves(products) {
            // A set has 16 rows of weights, and a warp has two sets.
            let shared_bytes = MMA_HALVES_SHARED_BYTES as usize;
            let most = work.rows.div_ceil(16).div_ceil(2 * warps);
            let shares = shares(cx.limits, shared_bytes, tiles, most);
            let part_chunks = products.chunks(cols);
            return Self { kind: TILES, shared_bytes, shares, others: tiles, lanes_log2: 1, part_chunks };
        }
        let linear::Part { chunks: part_chunks, shared_bytes, units } = tile_part(products, cx.limits, cols)
            .expect("a row of floats has parts, and rows of integers fit");
        let sets = work.rows.div_ceil(32 >> lanes_log2);
        let least = sets.div_ceil(warps.saturating_mul(units));
        let shares = shares(cx.limits, shared_bytes, tiles, sets.div_ceil(warps)).max(least);
        Self { kind: TILES, shared_bytes, shares, others: tiles, lanes_log2, part_chunks }
    }
}

fn routes(cx: &Cx<'_>, s: &Experts) -> RoutesParams {
    let Mixture { choices, tiles, n_tiles, rows, counts, arrived, .. } = cx.memory.mixture;
    let (n_experts, n_used) = (s.experts.len() as u32, s.n_used as u32);
    RoutesParams { choices, tiles, n_tiles, rows, counts, arrived, n_experts, n_used }
}

/// The launch of a layer; `change` modifies its parameters last.
fn launch(
    cx: &Cx<'_>,
    s: &Experts,
    layer: &Layer<'_>,
    blocks: &Blocks,
    change: impl FnOnce(&mut ExpertsParams),
) -> Launch {
    let Layer { linear, at, act, x, norm, out } = *layer;
    let products = products(cx.p, linear).expect("it was uploaded");
    let decl = cx.p.weight_decl(linear.w);
    let mut params = ExpertsParams {
        step: cx.memory.step.tables(NextWeights { data: 0, bytes: 0 }),
        in_: InputParams {
            x,
            norm: linear::norm(cx, norm),
            rounded: cx.memory.rounded,
            cols: decl.cols as u32,
            rounding: linear::rounding(linear.act),
            of_outputs: 0,
            lanes_log2: blocks.lanes_log2,
            row_bytes: products.act_bytes(decl.cols) as u32,
            part_chunks: blocks.part_chunks as u32,
        },
        routes: routes(cx, s),
        table: cx.memory.mixture.tables[cx.stage] + if cx.in_place { table_bytes(s) } else { 0 },
        logits: 0,
        out,
        x: 0,
        layer: at as u32,
        act,
        outputs: decl.rows as u32,
        chunks: products.chunks(decl.cols) as u32,
        of_step: u32::from(norm.is_some()),
        reserved: 0,
    };
    change(&mut params);
    let room = cx.limits.shared_bytes as usize;
    assert!(blocks.shared_bytes <= room, "{STAGE}: {} bytes of shared memory", blocks.shared_bytes);
    Launch {
        kernel: cx.kernel(&products.kernel(STAGE, blocks.kind)),
        grid: [blocks.shares as u32, 1, blocks.others as u32],
        threads: LINEAR_THREADS,
        shared_bytes: blocks.shared_bytes as u32,
        params: words(&params),
    }
}

/// A launch over rows of the step: several rows per block, or some columns of each.
fn by_row<T: bytemuck::Pod>(cx: &Cx<'_>, kernel: &str, grid: [usize; 2], threads: u32, params: &T) -> Launch {
    Launch {
        kernel: cx.kernel(kernel),
        grid: [grid[0] as u32, 1, grid[1] as u32],
        threads,
        shared_bytes: 0,
        params: words(params),
    }
}

pub fn launches(cx: &Cx<'_>, s: &Experts) -> Vec<Launch> {
    let Experts { x: buf, ref norm, ref router, ref experts, n_used, act } = *s;
    let (p, rows) = (cx.p, cx.shape.rows);
    let sorted = is_sorted(p, s, cx.limits, rows);
    let Mixture { logits, gates, hidden, products, .. } = cx.memory.mixture;
    let x = cx.memory.bufs[buf.0 as usize];
    let first = &experts[0];
    let (dim, ffn_dim) = (p.buf_decl(buf).cols, p.weight_decl(first.up.w).rows);
    let norm = Some(norm);
    let mut all = Vec::new();
    if sorted {
        // The router runs as an expert that every row uses, in tiles of neighbouring rows.
        let of_all = Layer { linear: router, at: entries(s) - 1, act: ACT_NONE, x, norm, out: logits };
        let work = Work { rows: experts.len(), paired: false };
        let chunks = self::products(p, router).expect("it was uploaded").chunks(dim);
        let lanes_log2 = linear::lanes_log2(cx.limits, chunks, work);
        let blocks = Blocks::by_tile(cx, router, rows.div_ceil(MMA_ROWS as usize), work, lanes_log2);
        all.push(launch(cx, s, &of_all, &blocks, |params| params.routes.n_tiles = 0));
        let step = cx.memory.step.tables(NextWeights { data: 0, bytes: 0 });
        let params = RouteParams { step, routes: routes(cx, s), logits };
        let blocks = rows.div_ceil(ROUTE_THREADS as usize / 32);
        all.push(by_row(cx, ROUTE, [blocks, 1], ROUTE_THREADS, &params));
    } else {
        let input = Input { x: buf, norm, rows: RowsOf::Step };
        all.extend(linear::product(cx, router, &input, logits));
    }
    let blocks = |layer: usize| match sorted {
        true => {
            let lanes_log2 = lanes_log2(p, s, cx.limits, layer);
            let (tiles, work) = (most_tiles(s, rows), work(p, s, layer));
            Blocks::by_tile(cx, LAYERS[layer](first), tiles, work, lanes_log2)
        }
        false => Blocks::by_slot(cx, s, layer),
    };
    let choose = |params: &mut ExpertsParams| params.logits = if sorted { 0 } else { logits };
    let of = |at: usize, act: u32, out: Address| Layer { linear: LAYERS[at](first), at, act, x, norm, out };
    if has_pairs(p, s) {
        all.push(launch(cx, s, &of(0, combine::act(act), hidden), &blocks(0), choose));
    } else {
        all.push(launch(cx, s, &of(0, ACT_NONE, gates), &blocks(0), choose));
        all.push(launch(cx, s, &of(1, ACT_NONE, hidden), &blocks(1), |_| ()));
        let of_slots = Combine {
            gate: Some(gates),
            y: hidden,
            out: hidden,
            cols: ffn_dim,
            act: Some(act),
            add: false,
            each: n_used,
        };
        all.push(combine::launch(cx, &of_slots));
    }
    let down = Layer { x: hidden, norm: None, ..of(DOWN, ACT_NONE, products) };
    all.push(launch(cx, s, &down, &blocks(DOWN), |params| {
        if !sorted {
            params.x = x;
            params.step = cx.tables();
        }
    }));
    if sorted {
        let routes = routes(cx, s);
        let params = MixParams { step: cx.tables(), routes, products, x, cols: dim as u32, reserved: 0 };
        all.push(by_row(cx, MIX, [dim.div_ceil(MIX_THREADS as usize), rows], MIX_THREADS, &params));
    }
    all
}
