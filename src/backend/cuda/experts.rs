//! A mixture of experts. The host does not know the routing: recorded launches work for any.
//!
//! Steps of a few rows process their slots one by one, a slot being one expert of one row: the router's
//! logits, then gate and up of the slots, whose kernel chooses the experts, then down of the slots, whose
//! kernel adds them up. A routing other than the softmax of the chosen logits is a launch of its own. In
//! larger steps the rows are sorted by expert between the router and the gate, so that an expert's weights
//! are read once per tile of rows, and a separate launch adds up the products. A row's result has the same
//! bits either way, except for types whose tiles use tensor cores.

use super::adapters;
use super::combine::{self, Combine};
use super::cx::{Cx, Place, words};
use super::driver::{Address, Launch, Limits};
use super::kernel_name::KernelName;
use super::linear::geometry::{self, WARPS, Work};
use super::linear::layers::Layers;
use super::linear::matmul::Matmul;
use super::linear::shared::Part;
use super::linear::{self, Input};
use super::mixture::{
    DOWN, LAYERS, Mixture, UP, entries, has_adapters, has_pairs, is_sorted, lanes_log2, most_tiles,
    on_halves, products, shares, slot_geometry, table_bytes, tile_part, work,
};
use super::op::{Op, Ops};
use super::params::{
    ACT_NONE, EXPERTS_MAX, EXPERTS_MAX_USED, ExpertsParams, GROUPS_MAX, InputParams, LINEAR_THREADS,
    MIX_THREADS, MMA_HALVES_SHARED_BYTES, MMA_ROWS, MixParams, NextWeights, ROUTE_THREADS, ROUTING_CHOSEN,
    ROUTING_SIGMOID, ROUTING_SOFTMAX, RouteParams, RoutesParams, RoutingParams,
};
use crate::Macs;
use sterna_program::{Act, Expert, Experts, Gating, Groups, Linear, Norm, Program, Routing, RowsOf};

pub const STAGE: &str = "experts";
/// The kernel for tiles of rows.
pub const TILES: &str = "tiles";
pub const ROUTE: KernelName = KernelName::single("route");
pub const MIX: KernelName = KernelName::single("mix");

/// A mixture, in steps whose rows use adapters or in others.
pub struct Mixed<'a> {
    pub s: &'a Experts,
    pub adapted: bool,
}

struct Layer<'a> {
    linear: &'a Linear,
    /// Index in the table.
    at: usize,
    act: u32,
    /// The input and its norm.
    x: Address,
    norm: Option<&'a Norm>,
    /// True if the input has the rows of the step, false if it has those of slots.
    of_step: bool,
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
        let (kind, others) = (Matmul::variants(products.mma)[0].kind(), rows * s.n_used);
        Self { kind, shared_bytes, shares, others, lanes_log2, part_chunks }
    }

    fn by_tile(cx: &Cx<'_>, linear: &Linear, tiles: usize, work: Work, lanes_log2: u32) -> Self {
        let products = products(cx.p, linear).expect("it was uploaded");
        let cols = cx.p.weight_decl(linear.w).cols;
        if on_halves(products) {
            // A set has 16 rows of weights, and a warp has two sets.
            let shared_bytes = MMA_HALVES_SHARED_BYTES as usize;
            let most = work.rows.div_ceil(16).div_ceil(2 * WARPS);
            let shares = shares(cx.limits, shared_bytes, tiles, most);
            let part_chunks = products.chunks(cols);
            return Self { kind: TILES, shared_bytes, shares, others: tiles, lanes_log2: 1, part_chunks };
        }
        let Part { chunks: part_chunks, shared_bytes, units } = tile_part(products, cx.limits, cols)
            .expect("a row of floats has parts, and rows of integers fit");
        let sets = work.rows.div_ceil(32 >> lanes_log2);
        let least = sets.div_ceil(WARPS.saturating_mul(units));
        let shares = shares(cx.limits, shared_bytes, tiles, sets.div_ceil(WARPS)).max(least);
        Self { kind: TILES, shared_bytes, shares, others: tiles, lanes_log2, part_chunks }
    }
}

fn routes(cx: &Cx<'_>, s: &Experts) -> RoutesParams {
    let Mixture { choices, tiles, n_tiles, rows, counts, arrived, .. } = cx.memory.mixture;
    let (n_experts, n_used) = (s.experts.len() as u32, s.n_used as u32);
    RoutesParams { choices, tiles, n_tiles, rows, counts, arrived, n_experts, n_used }
}

/// The launch that chooses the experts of each row; `sorts` also sorts the rows by expert.
fn route(cx: &Cx<'_>, s: &Experts, logits: Address, sorts: bool) -> Launch {
    let Routing { gating, bias, groups, normalise, scale } = s.routing;
    let of_gating = match gating {
        _ if s.routing.is_softmax_of_chosen() => ROUTING_CHOSEN,
        Gating::Softmax => ROUTING_SOFTMAX,
        Gating::Sigmoid => ROUTING_SIGMOID,
    };
    let Groups { n, n_used } = groups.unwrap_or(Groups { n: 0, n_used: 0 });
    let routing = RoutingParams {
        bias: bias.map_or(0, |bias| cx.weights[bias.0 as usize].data),
        gating: of_gating,
        normalise: u32::from(normalise),
        scale,
        group_size: s.experts.len().checked_div(n).unwrap_or(0) as u32,
        n_groups: n as u32,
        n_groups_used: n_used as u32,
    };
    let mut routes = routes(cx, s);
    if !sorts {
        routes.tiles = 0;
    }
    let step = cx.memory.step.tables(NextWeights { data: 0, bytes: 0 });
    let params = RouteParams { step, routes, routing, logits };
    let blocks = cx.shape.rows.div_ceil(ROUTE_THREADS as usize / 32);
    by_row(cx, ROUTE, [blocks, 1], ROUTE_THREADS, &params)
}

/// The launch of a layer; `change` modifies its parameters last.
fn launch(
    cx: &Cx<'_>,
    s: &Experts,
    layer: &Layer<'_>,
    blocks: &Blocks,
    change: impl FnOnce(&mut ExpertsParams),
) -> Launch {
    let Layer { linear, at, act, x, norm, of_step, out } = *layer;
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
        of_step: u32::from(of_step),
        adds: 1,
    };
    change(&mut params);
    let room = cx.limits.shared_bytes as usize;
    assert!(blocks.shared_bytes <= room, "{STAGE}: {} bytes of shared memory", blocks.shared_bytes);
    Launch {
        kernel: cx.kernel(products.kernel(STAGE, blocks.kind)),
        grid: [blocks.shares as u32, 1, blocks.others as u32],
        threads: LINEAR_THREADS,
        shared_bytes: blocks.shared_bytes as u32,
        params: words(&params),
    }
}

/// A launch over rows of the step: several rows per block, or some columns of each.
fn by_row<T: bytemuck::Pod>(
    cx: &Cx<'_>,
    kernel: KernelName,
    grid: [usize; 2],
    threads: u32,
    params: &T,
) -> Launch {
    Launch {
        kernel: cx.kernel(kernel),
        grid: [grid[0] as u32, 1, grid[1] as u32],
        threads,
        shared_bytes: 0,
        params: words(params),
    }
}

/// The router's product, for steps whose rows are not sorted.
fn router(s: &Experts, logits: Place) -> Layers<'_> {
    let input = Input { x: s.x, norm: Some(s.norm_of_router()), rows: RowsOf::Step };
    let layers = vec![(&s.router, logits)];
    Layers { stage: "logits", layers, input, from: None, soft_cap: None, fused: None }
}

/// The operations of the router's adapters.
fn adapters_of_router(s: &Experts, logits: Place) -> Ops<'_> {
    let Layers { layers, input, .. } = router(s, logits);
    adapters::lower(layers, input)
}

impl Op for Mixed<'_> {
    fn kernels(&self, p: &Program, limits: Limits) -> Result<Vec<KernelName>, String> {
        let Self { s, adapted } = *self;
        let mut names = router(s, Place::Kept(0)).kernels(p, limits)?;
        if s.experts.len() > EXPERTS_MAX as usize || s.n_used > EXPERTS_MAX_USED as usize {
            return Err(format!("more than {EXPERTS_MAX} experts, or more than {EXPERTS_MAX_USED} per row"));
        }
        if s.routing.groups.is_some_and(|groups| groups.n > GROUPS_MAX as usize) {
            return Err(format!("more than {GROUPS_MAX} groups of experts"));
        }
        let all = s.experts.iter().flat_map(Expert::layers);
        if all.chain([&s.router]).any(|linear| linear.basis.is_some()) {
            return Err("experts in a rotated basis".to_owned());
        }
        if matches!(s.act, Act::Gelu | Act::Xielu(_)) {
            return Err("experts with gelu or xIELU".to_owned());
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
                    let single = Matmul::variants(products.mma)[0].kind();
                    names.extend([single, TILES].map(|kind| products.kernel(STAGE, kind)));
                }
                None => names.push(KernelName::of(STAGE, p.weight_decl(linear.w).ty.name())),
            }
        }
        names.extend([ROUTE, MIX]);
        names.extend((adapted || !has_pairs(p, s)).then_some(combine::KERNEL));
        if adapted {
            for op in adapters_of_router(s, Place::Kept(0)) {
                names.extend(op.kernels(p, limits)?);
            }
            names.extend(adapters::kernels_of_experts(p, s)?);
        }
        Ok(names)
    }

    fn add_macs(&self, p: &Program, all: &mut Macs) {
        let s = self.s;
        linear::add_macs(p, &[&s.router], all);
        let share = s.n_used as f64 / s.experts.len() as f64;
        for linear in s.experts.iter().flat_map(Expert::layers) {
            let w = p.weight_decl(linear.w);
            let macs = ((w.rows * w.cols) as f64 * share) as u64;
            // Tiles multiply codes as halves, and ternary weights without tensor cores.
            match products(p, linear).is_some_and(on_halves) {
                true => all.two_halves += macs,
                false => all.float += macs,
            }
        }
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { s, adapted } = *self;
        let Experts {
            x: buf,
            ref norm,
            router_norm: _,
            ref router,
            ref routing,
            ref experts,
            n_used,
            act,
            input,
            out,
        } = *s;
        let routes_first = !routing.is_softmax_of_chosen();
        let (p, rows) = (cx.p, cx.shape.rows);
        let sorted = is_sorted(p, s, cx.limits, rows);
        let Mixture { logits, gates, hidden, products, .. } = cx.memory.mixture;
        let x = cx.buf(buf);
        let first = &experts[0];
        let (dim, ffn_dim) = (p.buf_decl(buf).cols, p.weight_decl(first.up.w).rows);
        // Experts of a latent vector have it as it is.
        let (of_experts, norm) = input.map_or((x, Some(norm)), |input| (cx.buf(input), None));
        let mut all = Vec::new();
        if sorted {
            // The router runs as an expert that every row uses, in tiles of neighbouring rows.
            let norm = Some(s.norm_of_router());
            let of_all = Layer {
                linear: router,
                at: entries(s) - 1,
                act: ACT_NONE,
                x,
                norm,
                of_step: true,
                out: logits,
            };
            let work = Work::new(experts.len(), false).in_octets(true);
            let chunks = self::products(p, router).expect("it was uploaded").chunks(dim);
            let lanes_log2 = geometry::lanes_log2(cx.limits, chunks, work);
            let blocks = Blocks::by_tile(cx, router, rows.div_ceil(MMA_ROWS as usize), work, lanes_log2);
            all.push(launch(cx, s, &of_all, &blocks, |params| params.routes.n_tiles = 0));
        } else {
            all.extend(self::router(s, Place::At(logits)).launches(cx));
        }
        if adapted {
            all.extend(adapters_of_router(s, Place::At(logits)).iter().flat_map(|op| op.launches(cx)));
        }
        if sorted || routes_first {
            all.push(route(cx, s, logits, sorted));
        }
        let blocks = |layer: usize| match sorted {
            true => {
                let lanes_log2 = lanes_log2(p, s, cx.limits, layer);
                let (tiles, work) = (most_tiles(s, rows), work(p, s, layer));
                Blocks::by_tile(cx, LAYERS[layer](first), tiles, work, lanes_log2)
            }
            false => Blocks::by_slot(cx, s, layer),
        };
        let choose =
            |params: &mut ExpertsParams| params.logits = if sorted || routes_first { 0 } else { logits };
        let of = |at: usize, act: u32, out: Address| Layer {
            linear: LAYERS[at](first),
            at,
            act,
            x: of_experts,
            norm,
            of_step: true,
            out,
        };
        // Adapters change the products before the activation function.
        let is_apart = adapted && has_adapters(s, &[0, UP]);
        if has_pairs(p, s) && !is_apart {
            all.push(launch(cx, s, &of(0, combine::act(act), hidden), &blocks(0), choose));
        } else {
            // The first launch chooses the experts.
            let of_up = of(UP, ACT_NONE, hidden);
            if first.gate.is_some() {
                all.push(launch(cx, s, &of(0, ACT_NONE, gates), &blocks(0), choose));
                all.push(launch(cx, s, &of_up, &blocks(UP), |_| ()));
            } else {
                all.push(launch(cx, s, &of_up, &blocks(UP), choose));
            }
            if is_apart {
                let (norms, x) = adapters::input_of_experts(cx, s);
                let gate = first.gate.as_ref().map(|_| (0, gates));
                let layers: Vec<_> = gate.into_iter().chain([(UP, hidden)]).collect();
                all.extend(norms);
                all.extend(adapters::of_slots(cx, s, &layers, x, true));
            }
            let gate = first.gate.as_ref().map(|_| Place::At(gates));
            let of_row = Combine::by_act(act, gate, Place::At(hidden), ffn_dim);
            let of_slots = Combine { each: n_used, ..of_row };
            all.extend(of_slots.launches(cx));
        }
        let (to, adds) = (cx.buf(out.unwrap_or(buf)), u32::from(out.is_none()));
        let down = Layer { x: hidden, norm: None, of_step: false, ..of(DOWN, ACT_NONE, products) };
        let has_more = adapted && has_adapters(s, &[DOWN]);
        all.push(launch(cx, s, &down, &blocks(DOWN), |params| {
            if !sorted && !has_more {
                (params.x, params.adds) = (to, adds);
                params.step = cx.tables();
            }
        }));
        if has_more {
            all.extend(adapters::of_slots(cx, s, &[(DOWN, products)], hidden, false));
        }
        if sorted || has_more {
            let routes = routes(cx, s);
            let cols = p.weight_decl(first.down.w).rows;
            let params = MixParams { step: cx.tables(), routes, products, x: to, cols: cols as u32, adds };
            all.push(by_row(cx, MIX, [cols.div_ceil(MIX_THREADS as usize), rows], MIX_THREADS, &params));
        }
        all
    }
}
