//! A mixture of experts: the router, the choice of experts per row, the experts' layers over the rows routed
//! to them, and the weighted sum. A layer of all experts is one dispatch if its weights fit in one buffer:
//! each workgroup looks up its expert, and those without rows return at once.

use wgpu::Buffer;

use super::adapters::{self, Finish, Out, Rows};
use super::linear::{self, ABSENT, Input, Layer};
use super::mixture::{layers, slots};
use super::shader::{Kernel, MAX_EXPERTS};
use super::upload::{self, DeviceWeight};
use super::weight::WeightFormat;
use super::{Cx, Device, Dispatch, Grid, ffn_in, latent_in};
use crate::BackendError;
use sterna_program::{
    ActQuant, Expert, Experts, Gating, Groups, Linear, Program, Routing, RowsOf, Stage, Weight,
};

pub fn missing(cx: &Device<'_>, p: &Program, s: &Experts) -> Vec<String> {
    let mut missing = linear::missing(cx, p, "experts", &[&s.router]);
    missing.extend(super::ffn_in::missing(s.act, true));
    if s.experts.len() > MAX_EXPERTS {
        missing.push(format!("more than {MAX_EXPERTS} experts"));
    }
    let all = s.experts.iter().flat_map(Expert::layers);
    if all.chain([&s.router]).any(|linear| linear.basis.is_some()) {
        missing.push("experts in a rotated basis".to_owned());
    }
    for layers in layers(s) {
        let first = layers[0];
        let ty = p.weight_decl(first.w).ty;
        missing.extend(linear::missing(cx, p, "experts", &[first]));
        // These have one factor per tensor, which is a parameter of the dispatch.
        if WeightFormat::of(ty).is_some_and(|format| format.ints) {
            missing.push(format!("experts__{}", ty.name()));
        }
        let is_alike = |layer: &&Linear| p.weight_decl(layer.w).ty.is(ty) && layer.act == first.act;
        if !layers.iter().all(is_alike) {
            missing.push("experts of different types".to_owned());
        }
    }
    let Expert { gate, up, down: _ } = &s.experts[0];
    if gate.as_ref().is_some_and(|gate| gate.act != up.act) {
        missing.push("experts whose gate and up quantise their inputs differently".to_owned());
    }
    missing
}

/// Bytes of the router's products, of the hidden rows of all experts, or of their products, whichever is
/// largest.
pub fn fresh_bytes(p: &Program, s: &Experts) -> u64 {
    let Expert { gate: _, up, down } = &s.experts[0];
    let hidden = p.weight_decl(up.w).rows.max(p.weight_decl(down.w).rows);
    let products = slots(p, s).saturating_mul(hidden);
    4 * products.max(p.limits.rows.saturating_mul(s.experts.len())) as u64
}

/// Bytes of the experts' products, if they read their inputs from the buffer of hidden rows.
pub fn product_bytes(p: &Program, s: &Experts) -> u64 {
    4 * slots(p, s).saturating_mul(p.weight_decl(s.experts[0].down.w).rows) as u64
}

/// Bytes of the routing tables; shaders/experts.wgsl documents their layout.
pub fn route_bytes(p: &Program, s: &Experts) -> u64 {
    let scores = p.limits.rows.saturating_mul(s.experts.len());
    4 * slots(p, s).saturating_mul(4).saturating_add(scores).saturating_add(s.experts.len() + 1) as u64
}

/// The parameters of a routing, in the order of shaders/experts.wgsl. `bias` is the index of its bias in the
/// constants.
fn routing_params(routing: &Routing, n_experts: usize, bias: impl Fn(Weight) -> u32) -> [u32; 8] {
    let Routing { gating, bias: of, groups, normalise, scale } = *routing;
    let gating = match gating {
        _ if routing.is_softmax_of_chosen() => 0,
        Gating::Softmax => 1,
        Gating::Sigmoid => 2,
    };
    let Groups { n, n_used } = groups.unwrap_or(Groups { n: 1, n_used: 1 });
    let of_group = n_experts / n;
    let sizes = [of_group, n, n_used].map(|size| size as u32);
    let bias = of.map_or(ABSENT, bias);
    [gating, u32::from(normalise), scale.to_bits(), bias, sizes[0], sizes[1], sizes[2], 0]
}

/// Copies the weights of each layer's experts, and those of the heads of a stage, into shared buffers.
pub fn join(
    gpu: &super::Gpu,
    p: &Program,
    all: &mut [DeviceWeight],
    id_of: impl Fn(Weight) -> usize,
) -> Result<(), BackendError> {
    all_layers(p).chain(latent_in::all_heads(p)).try_for_each(|layers| {
        let ids: Vec<_> = layers.iter().map(|linear| id_of(linear.w)).collect();
        upload::join(gpu, all, &ids)
    })
}

fn mixtures(p: &Program) -> impl Iterator<Item = &Experts> {
    p.stages.iter().filter_map(|(_, stage)| if let Stage::Experts(s) = stage { Some(s) } else { None })
}

/// Layers of all mixtures. Each has a [`table`].
pub fn all_layers(p: &Program) -> impl Iterator<Item = Vec<&Linear>> {
    mixtures(p).flat_map(layers)
}

pub fn table_bytes(layers: &[&Linear]) -> u64 {
    8 * layers.len() as u64
}

/// Per expert of a layer: index of its bias in the constants, and its factor.
pub fn table(layers: &[&Linear], constant: impl Fn(Weight) -> u32) -> Vec<u32> {
    layers.iter().flat_map(|linear| [linear.bias.map_or(ABSENT, &constant), linear.scale.to_bits()]).collect()
}

/// A layer of every expert. Its output is `[slots, out_cols]`.
struct Products<'a> {
    /// Stage whose `finish` it uses.
    stage: &'static str,
    layers: Vec<&'a Linear>,
    acts: &'a Buffer,
    out: &'a Buffer,
    out_cols: usize,
    /// A parameter whose meaning depends on the stage.
    what: u32,
    /// True if its inputs are rows of the step, false if they are rows of slots.
    gathers: bool,
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Experts) -> Vec<Dispatch<'a>> {
    let Experts {
        x,
        ref norm,
        ref router_norm,
        ref router,
        ref routing,
        ref experts,
        n_used,
        act,
        input: latent,
        out,
    } = *s;
    // The width of the sum, which is a latent vector if the experts' input is.
    let (memory, dim) = (cx.memory, cx.p.weight_decl(experts[0].down.w).rows);
    let (n_experts, n_used) = (experts.len(), n_used as u32);
    let ffn_dim = cx.p.weight_decl(experts[0].up.w).rows;
    let input_of_router = Input { x, norm: Some(s.norm_of_router()), rows: RowsOf::Step };
    let input = match latent {
        Some(x) => Input { x, norm: None, ..input_of_router },
        None => Input { norm: Some(norm), ..input_of_router },
    };
    let (fresh, routes) = (&memory.fresh, &memory.routes);
    let of_router = Layer { linear: router, out: fresh, out_cols: n_experts, out_at: 0, what: 0 };
    // Products that are stored unchanged use the kernel of the logits.
    let first = experts[0].gate.as_ref().unwrap_or(&experts[0].up);
    let shares_input = router_norm.is_none() && latent.is_none() && linear::is_same_input(cx, router, first);
    let mut all = if shares_input {
        linear::dispatches_that_store(cx, "logits", input_of_router, vec![of_router])
    } else {
        linear::dispatches(cx, "logits", input_of_router, vec![of_router])
    };

    let params = vec![n_experts as u32, n_used, slots(cx.p, s) as u32, dim as u32];
    let on_routes = |kernel, buffers, grid| Dispatch {
        kernels: vec![(usize::MAX, kernel)],
        params: params.clone(),
        buffers,
        grid,
    };
    let a_row = |x| Grid::Rows { x, rows: RowsOf::Step };
    let of_routing = routing_params(routing, experts.len(), |bias| cx.constant(bias));
    let buffers = vec![&memory.step.buffer, fresh, routes, &memory.constants];
    let route = on_routes(Kernel::Route, buffers, a_row(1));
    all.push(Dispatch { params: [route.params, of_routing.to_vec()].concat(), ..route });
    all.push(on_routes(Kernel::Group, vec![&memory.step.buffer, routes], Grid::Once));

    let mut of_all = layers(s).into_iter();
    let gates = experts[0].gate.as_ref().and_then(|_| of_all.next());
    let [ups, downs] = std::array::from_fn(|_| of_all.next().expect("up and down"));
    let down = downs[0];
    if !shares_input {
        all.push(linear::input_dispatch(cx, input, first));
    }
    let has_pairs = |layers: &[&Linear]| cx.adapted && layers.iter().any(|linear| !linear.lora.is_empty());
    let slots = slots(cx.p, s);
    let on_slots = |gathers| Rows::Slots { n_used: s.n_used, n_experts: experts.len(), slots, gathers };
    if has_pairs(&ups) || gates.as_ref().is_some_and(|gates| has_pairs(gates)) {
        // The products are stored unchanged, so that adapters can be added before the activation function.
        let of_up = if gates.is_some() { &memory.adapters.up } else { fresh };
        let finish = match gates {
            Some(_) => Finish::Gate { act: ffn_in::activation(act), up: of_up, times: ffn_in::times(act) },
            None => Finish::Act(ffn_in::activation(act)),
        };
        let (x, inputs) = linear::input_of_adapters(cx, input, first);
        all.extend(inputs);
        for (layers, out) in gates.map(|gates| (gates, fresh)).into_iter().chain([(ups, of_up)]) {
            let added = Out { buffer: out, cols: ffn_dim, at: 0 };
            let of_adapters = adapters::dispatches(cx, &layers, x, on_slots(true), added);
            let (acts, out_cols) = (&memory.acts, ffn_dim);
            let stored = Products { stage: "logits", layers, acts, out, out_cols, what: 0, gathers: true };
            all.extend(products(cx, &stored, s));
            all.extend(of_adapters);
        }
        all.push(adapters::activate(cx, fresh, (s.n_used * ffn_dim, RowsOf::Step), finish));
    } else {
        let hidden = |layers, what| {
            let (stage, acts, out_cols) = ("ffn_in", &memory.acts, ffn_dim);
            products(cx, &Products { stage, layers, acts, out: fresh, out_cols, what, gathers: true }, s)
        };
        let of_up = if gates.is_some() { ffn_in::times(act) } else { ffn_in::activation(act) };
        all.extend(gates.into_iter().flat_map(|gates| hidden(gates, ffn_in::activation(act))));
        all.extend(hidden(ups, of_up));
    }

    let input_of_down = |int8: bool, to| {
        let mut params = linear::norm(cx, None).to_vec();
        let words = linear::act_words(cx.p, down) as u32;
        params.extend([ffn_dim as u32, words, u32::from(int8), 0, 0, ffn_dim as u32]);
        params.extend(linear::bounds(None));
        Dispatch {
            kernels: vec![(usize::MAX, Kernel::Input { ints: false })],
            params,
            buffers: vec![&memory.step.buffer, &memory.constants, fresh, to, &memory.quants],
            grid: a_row(n_used),
        }
    };
    let is_int8 = down.act == ActQuant::I8PerToken;
    // Hidden rows are the input as they are, unless they are rounded or padded. Adapters read copies.
    let is_direct = !is_int8 && linear::act_words(cx.p, down) == ffn_dim && !has_pairs(&downs);
    let (acts, to) = if is_direct { (fresh, &memory.acts) } else { (&memory.acts, fresh) };
    if !is_direct {
        all.push(input_of_down(is_int8, &memory.acts));
    }
    let mut of_adapters = Vec::new();
    if has_pairs(&downs) {
        let x = if is_int8 { &memory.adapters.inputs } else { &memory.acts };
        all.extend(is_int8.then(|| input_of_down(false, x)));
        let added = Out { buffer: fresh, cols: dim, at: 0 };
        of_adapters = adapters::dispatches(cx, &downs, x, on_slots(false), added);
    }
    let of_down =
        Products { stage: "logits", layers: downs, acts, out: to, out_cols: dim, what: 0, gathers: false };
    all.extend(products(cx, &of_down, s));
    all.extend(of_adapters);
    let sum = &memory.bufs[out.unwrap_or(x).0 as usize];
    let mix = on_routes(Kernel::Mix, vec![&memory.step.buffer, to, routes, sum], a_row(dim as u32));
    all.push(Dispatch { params: [mix.params, vec![u32::from(out.is_none()), 0, 0, 0]].concat(), ..mix });
    all
}

fn products<'a>(cx: &Cx<'a>, of: &Products<'a>, s: &Experts) -> Vec<Dispatch<'a>> {
    let memory = cx.memory;
    let weights: Vec<&DeviceWeight> =
        of.layers.iter().map(|linear| &cx.weights[linear.w.0 as usize]).collect();
    let (first, stage) = (of.layers[0], of.stage);
    let ty = WeightFormat::of(weights[0].ty).expect("it was uploaded").kernels.name();
    let (n_experts, table) = (weights.len(), &memory.expert_tables[&first.w]);
    let kernel = |rows| Kernel::Linear { stage, ty, ints: false, rows, experts: true, normed: false };
    let mut all = Vec::new();
    for part in 0..weights[0].parts.len() {
        for run in upload::runs(&weights, part) {
            let (next, n) = (run.start, run.len());
            let at = |expert: usize| &weights[expert].parts[part];
            let mut params = weights[next].params(at(next)).to_vec();
            params.extend([
                linear::act_words(cx.p, first) as u32 / 4,
                0,
                first.scale.to_bits(),
                ABSENT,
                of.out_cols as u32,
                0,
                of.what,
                (at(next).at / 16) as u32,
                (at(next).bytes / 16) as u32,
                next as u32,
                n_experts as u32,
                u32::from(of.gathers),
            ]);
            all.push(Dispatch {
                kernels: Kernel::by_rows(kernel),
                params,
                buffers: vec![
                    &memory.step.buffer,
                    &memory.constants,
                    &cx.weights[of.layers[next].w.0 as usize].parts[part].buffer,
                    of.acts,
                    &memory.quants,
                    of.out,
                    &memory.routes,
                    table,
                ],
                grid: Grid::Experts {
                    of_weight: at(next).rows.len() as u32,
                    experts: n as u32,
                    chosen: [s.n_used, n_experts],
                },
            });
        }
    }
    all
}
