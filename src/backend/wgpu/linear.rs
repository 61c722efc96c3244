//! Shared code of the stages with linear layers: the dispatch that normalises and quantises their input, and
//! the dispatches that multiply.

use wgpu::Buffer;

use super::device::Gpu;
pub use super::input::{ABSENT, Input, norm, padded_rows};
use super::shader::{Kernel, VECTOR};
use super::upload::{self, DeviceWeight, UploadedRows};
use super::weight::WeightFormat;
use super::{Cx, Dispatch, Grid, adapters, hadamard};
use crate::BackendError;
use sterna_program::{ActQuant, Linear, Norm, NormKind, Program, RowsOf, Weight};

pub fn missing(cx: &super::Device<'_>, p: &Program, stage: &str, linears: &[&Linear]) -> Vec<String> {
    /// Largest number of columns for which sums of int8 products are exact in f32.
    const MAX_COLS: usize = (1 << 24) / (2 * 127);
    let mut missing = Vec::new();
    for linear in linears {
        let decl = p.weight_decl(linear.w);
        let ty = decl.ty.name();
        let Some(format) = WeightFormat::of(decl.ty) else {
            missing.push(format!("{stage}__{ty}"));
            continue;
        };
        missing.extend(hadamard::missing(p, linear.basis));
        let is_single = !["experts", "head_proj"].contains(&stage);
        let is_plain = is_single && linear.basis.is_none() && linear.lora.is_empty();
        if linear.clamp.is_some() && !is_plain {
            missing.push(format!("{stage} with bounds and adapters, a basis, experts or heads"));
        }
        if linear.act == ActQuant::I8PerBlock {
            missing.push(format!("{stage} with activations quantised per block"));
        }
        if format.multiplies_ints(linear.act) && !cx.gpu.caps.packed && decl.cols > MAX_COLS {
            missing.push(format!("{stage}__{ty} with {} columns in floats", decl.cols));
        }
        missing.extend(upload::unsupported(cx.gpu, &decl.name, format, decl.cols));
    }
    missing
}

/// Words of one row of a layer's activations.
pub fn act_words(p: &Program, linear: &Linear) -> usize {
    let decl = p.weight_decl(linear.w);
    let ints = WeightFormat::of(decl.ty).is_some_and(|format| format.multiplies_ints(linear.act));
    // Chunks of every type have a multiple of 8 elements.
    if ints { decl.cols.next_multiple_of(64) / 4 } else { decl.cols.next_multiple_of(8) }
}

/// One layer of a stage. Its output is `[rows, out_cols]`, starting at `out_at`.
pub struct Layer<'a> {
    pub linear: &'a Linear,
    pub out: &'a Buffer,
    pub out_cols: usize,
    pub out_at: usize,
    /// A parameter whose meaning depends on the stage.
    pub what: u32,
}

/// Dispatches of layers that share one input. The input is prepared and quantised again only if a layer needs
/// it in another form than the layer before. Products read it where it is if it has the form of the
/// activations already, or only a norm is missing that they can apply.
pub fn dispatches<'a>(
    cx: &Cx<'a>,
    stage: &'static str,
    input: Input<'a>,
    layers: Vec<Layer<'a>>,
) -> Vec<Dispatch<'a>> {
    each(cx, stage, input, layers, false)
}

/// The same, for a stage whose later dispatches read the input that the last layer's dispatch stores.
pub fn dispatches_that_store<'a>(
    cx: &Cx<'a>,
    stage: &'static str,
    input: Input<'a>,
    layers: Vec<Layer<'a>>,
) -> Vec<Dispatch<'a>> {
    each(cx, stage, input, layers, true)
}

fn each<'a>(
    cx: &Cx<'a>,
    stage: &'static str,
    input: Input<'a>,
    layers: Vec<Layer<'a>>,
    stores: bool,
) -> Vec<Dispatch<'a>> {
    let mut all = Vec::new();
    let (mut there, mut prepared, mut floats) = (None, None, None);
    for layer in layers {
        let linear = layer.linear;
        if cx.weights[linear.w.0 as usize].is_joined() {
            // In another stage it shares a dispatch. Its input is stored anew.
            assert!(stage == "logits" && !stores, "no other stage uses the weights of a shared dispatch");
            all.extend(together(cx, input, vec![layer]).expect("a weight of one part"));
            there = None;
            continue;
        }
        if linear.prepares_input(input.norm.is_some()) && prepared != Some(linear.basis) {
            let norm = input.norm.or(linear.norm.as_ref());
            all.push(hadamard::dispatch(cx, linear.basis, &Input { norm, ..input }));
            prepared = Some(linear.basis);
        }
        let source = source_of(cx, input, linear);
        if let Some(norm) = own_norm(cx, &source, &layer).filter(|_| stage == "logits" && !stores) {
            let wanted = (linear.prepared(), false, true);
            all.extend((there != Some(wanted)).then(|| weigh(cx, &source, norm)));
            there = Some(wanted);
            all.extend(normed_products(cx, &source, norm, &layer));
            continue;
        }
        let is_direct = is_stored_form(cx, &source, linear) && layer.out != source.x;
        let wanted = (linear.prepared(), ints(cx, linear), false);
        if !is_direct && there != Some(wanted) {
            all.push(source_dispatch(cx, &source, linear));
            there = Some(wanted);
        }
        let acts = if is_direct { source.x } else { &cx.memory.acts };
        all.extend(products(cx, stage, input.rows, &layer, acts));
        all.extend(adapters_of(cx, input, &layer, acts, &mut floats));
    }
    all
}

/// The dispatches of a layer's adapters, if the step's rows use some. `acts` has the layer's input, and
/// `floats` is the norm of the input that was stored for adapters last.
fn adapters_of<'a>(
    cx: &Cx<'a>,
    input: Input<'a>,
    layer: &Layer<'a>,
    acts: &'a Buffer,
    floats: &mut Option<Option<Weight>>,
) -> Vec<Dispatch<'a>> {
    let linear = layer.linear;
    if !cx.adapted || linear.lora.is_empty() {
        return Vec::new();
    }
    let mut all = Vec::new();
    let (x, dispatch) = match adapters::is_quantised(linear) {
        true => input_of_adapters(cx, input, linear),
        false => (acts, None),
    };
    let wanted = Some(linear.norm.as_ref().map(|norm| norm.weight));
    if dispatch.is_some() && *floats != wanted {
        all.extend(dispatch);
        *floats = wanted;
    }
    let out = adapters::Out { buffer: layer.out, cols: layer.out_cols, at: layer.out_at };
    let rows = adapters::Rows::Tiles(input.rows);
    all.extend(adapters::dispatches(cx, &[linear], x, rows, out));
    all
}

/// Most layers of one dispatch.
const TOGETHER: usize = 3;

/// True if layers may share a dispatch: they have the same input, type and form, and their weights will be
/// [joined](join).
pub fn share_dispatch(p: &Program, layers: &[&Linear]) -> bool {
    let form = |linear: &Linear| {
        let decl = p.weight_decl(linear.w);
        let is_plain = linear.basis.is_none() && linear.norm.is_none();
        (decl.ty.name(), decl.cols, linear.act, is_plain, linear.clamp.map(|clamp| clamp.input))
    };
    let first = form(layers[0]);
    let is_plain = first.3;
    let is_new = |(i, linear): (usize, &&Linear)| layers[..i].iter().all(|other| other.w != linear.w);
    (2..=TOGETHER).contains(&layers.len())
        && is_plain
        && layers.iter().all(|linear| form(linear) == first)
        && layers.iter().enumerate().all(is_new)
}

/// Copies the weights of such layers into one buffer, unless they are too large.
pub fn join(
    gpu: &Gpu,
    all: &mut [DeviceWeight],
    layers: &[&Linear],
    id_of: impl Fn(Weight) -> usize,
) -> Result<(), BackendError> {
    let ids: Vec<usize> = layers.iter().map(|linear| id_of(linear.w)).collect();
    let parts = ids.iter().flat_map(|id| all[*id].parts.iter());
    let (n_parts, bytes) = parts.fold((0, 0), |(n, sum), part| (n + 1, sum + part.bytes));
    let is_one_each = n_parts == ids.len() && ids.iter().all(|id| all[*id].parts.len() == 1);
    if is_one_each && bytes <= gpu.max_part_bytes { upload::join(gpu, all, &ids) } else { Ok(()) }
}

/// The dispatches of layers that [share one](share_dispatch), with the same output buffer; `None` if their
/// weights are not in one buffer.
pub fn together<'a>(cx: &Cx<'a>, input: Input<'a>, layers: Vec<Layer<'a>>) -> Option<Vec<Dispatch<'a>>> {
    shared(cx, input, layers, false)
}

/// The dispatches of the gate and `up` of a gated linear unit that share one, likewise. The gate's `what` is
/// its activation function.
pub fn glu<'a>(cx: &Cx<'a>, input: Input<'a>, [gate, up]: [Layer<'a>; 2]) -> Option<Vec<Dispatch<'a>>> {
    shared(cx, input, vec![gate, up], true)
}

fn shared<'a>(cx: &Cx<'a>, input: Input<'a>, layers: Vec<Layer<'a>>, glu: bool) -> Option<Vec<Dispatch<'a>>> {
    let weights: Vec<_> = layers.iter().map(|layer| &cx.weights[layer.linear.w.0 as usize]).collect();
    let is_one_run = weights.iter().all(|w| w.parts.len() == 1) && upload::runs(&weights, 0).len() == 1;
    if !is_one_run {
        return None;
    }
    let (first, memory) = (&layers[0], cx.memory);
    let (linear, part) = (first.linear, &weights[0].parts[0]);
    let source = source_of(cx, input, linear);
    let norm =
        own_norm(cx, &source, first).filter(|_| layers.iter().all(|layer| layer.linear.lora.is_empty()));
    let (ty, ints) =
        (WeightFormat::of(weights[0].ty).expect("it was uploaded").kernels.name(), ints(cx, linear));
    let mut params = weights[0].params(part).to_vec();
    params.extend([act_words(cx.p, linear) as u32 / 4, u32::from(input.rows == RowsOf::Outputs)]);
    // The fields of a single layer.
    params.extend([0; 4]);
    params.push(first.what);
    params.extend(norm.map_or([0; 2], |norm| norm_params(cx, norm)));
    params.resize(16, 0);
    for (layer, weight) in layers.iter().zip(&weights) {
        let bias = layer.linear.bias.map_or(ABSENT, |bias| cx.constant(bias));
        let part = &weight.parts[0];
        params.extend(weight.params(part));
        params.extend([layer.linear.scale.to_bits(), bias, layer.out_cols as u32, layer.out_at as u32]);
        params.push((part.at / 16) as u32);
        params.extend(bounds(layer.linear.clamp.map(|clamp| clamp.output)));
    }
    params.resize(16 + 12 * TOGETHER, 0);
    let of_weight = weights.iter().map(|w| w.rows).max().unwrap_or(0) as u32;
    let (rows_of, n_grids) = (input.rows, if glu { 1 } else { layers.len() as u32 });
    let kernel = |rows| Kernel::Layers { ty, ints, rows, normed: norm.is_some(), glu };
    let products = Products { params, weight: &part.buffer, out: first.out };
    if let Some(norm) = norm {
        let grid = |one_row| Grid::Normed { of_weight, layers: n_grids, rows: rows_of, one_row };
        let by_rows = products.normed(cx, source.x, kernel, grid);
        return Some([weigh(cx, &source, norm)].into_iter().chain(by_rows).collect());
    }
    let is_direct = is_stored_form(cx, &source, linear) && first.out != source.x;
    let acts = if is_direct { source.x } else { &memory.acts };
    let mut all = Vec::new();
    all.extend((!is_direct).then(|| source_dispatch(cx, &source, linear)));
    all.push(products.dispatch(
        cx,
        acts,
        Kernel::by_rows(kernel),
        Grid::Layers { of_weight, layers: n_grids, rows: rows_of },
    ));
    let mut floats = None;
    all.extend(layers.iter().flat_map(|layer| adapters_of(cx, input, layer, acts, &mut floats)));
    Some(all)
}

fn ints(cx: &Cx<'_>, linear: &Linear) -> bool {
    WeightFormat::of(cx.p.weight_decl(linear.w).ty).expect("the plan was made").multiplies_ints(linear.act)
}

/// True if rows are what [`source_dispatch`] would store: floats of the step's rows, in whole chunks.
pub fn is_stored_form(cx: &Cx<'_>, source: &Source<'_>, linear: &Linear) -> bool {
    let Source { x: _, norm, first_at, pitch, each: _, rows } = *source;
    let cols = cx.p.weight_decl(linear.w).cols;
    let is_plain =
        norm.is_none() && linear.clamp.is_none() && linear.act == ActQuant::None && !ints(cx, linear);
    is_plain && (first_at, rows) == (0, RowsOf::Step) && pitch == cols && act_words(cx.p, linear) == cols
}

/// The norm of rows that products of a layer can apply themselves: an RMS norm without a bias, of floats in
/// whole vectors that nothing else changes. Adapters read normalised rows.
fn own_norm<'a>(cx: &Cx<'_>, source: &Source<'a>, layer: &Layer<'_>) -> Option<&'a Norm> {
    let (norm, linear) = (source.norm?, layer.linear);
    let plain = Source { norm: None, rows: RowsOf::Step, ..*source };
    let is_plain = linear.lora.is_empty() && is_stored_form(cx, &plain, linear) && layer.out != source.x;
    (is_plain && norm.kind == NormKind::Rms && norm.bias.is_none()).then_some(norm)
}

/// Such a norm in a kernel's parameters.
fn norm_params(cx: &Cx<'_>, norm: &Norm) -> [u32; 2] {
    [cx.constant(norm.weight) / VECTOR as u32, norm.eps.to_bits()]
}

/// The dispatch that multiplies rows by the norm's weight, and computes its factors, for steps of several
/// rows: products of a single row do so themselves.
fn weigh<'a>(cx: &Cx<'a>, source: &Source<'a>, norm: &Norm) -> Dispatch<'a> {
    let memory = cx.memory;
    let [norm_at, eps] = norm_params(cx, norm);
    let of_outputs = u32::from(source.rows == RowsOf::Outputs);
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::Weigh)],
        params: vec![(source.pitch / VECTOR) as u32, of_outputs, norm_at, eps],
        buffers: vec![&memory.step.buffer, &memory.constants, source.x, &memory.acts, &memory.quants],
        grid: Grid::Normed { of_weight: 1, layers: 1, rows: source.rows, one_row: false },
    }
}

/// True if two layers need the same quantised input.
pub fn is_same_input(cx: &Cx<'_>, a: &Linear, b: &Linear) -> bool {
    // The length of a row of activations may depend on the chunks of a type.
    (a.act, ints(cx, a), act_words(cx.p, a)) == (b.act, ints(cx, b), act_words(cx.p, b))
}

/// Bounds in a kernel's parameters: 1 if there are some, and both.
pub fn bounds(of: Option<[f32; 2]>) -> [u32; 3] {
    of.map_or([0; 3], |[lower, upper]| [1, lower.to_bits(), upper.to_bits()])
}

/// Rows of a buffer that are the input of layers.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub x: &'a Buffer,
    pub norm: Option<&'a Norm>,
    /// Element at which the first row begins, and distance between rows.
    pub first_at: usize,
    pub pitch: usize,
    /// Rows per row of the step.
    pub each: usize,
    pub rows: RowsOf,
}

/// How rows are stored for products, and where.
struct Stored<'a> {
    cols: usize,
    ints: bool,
    /// Distance between rows, in words.
    stride: usize,
    int8: bool,
    bounds: Option<[f32; 2]>,
    to: &'a Buffer,
}

/// The dispatch that normalises and quantises the input of a layer, or quantises the prepared input.
pub fn input_dispatch<'a>(cx: &Cx<'a>, input: Input<'a>, linear: &'a Linear) -> Dispatch<'a> {
    source_dispatch(cx, &source_of(cx, input, linear), linear)
}

/// The same for rows anywhere.
pub fn source_dispatch<'a>(cx: &Cx<'a>, source: &Source<'a>, linear: &Linear) -> Dispatch<'a> {
    let (cols, stride) = (cx.p.weight_decl(linear.w).cols, act_words(cx.p, linear));
    let (ints, int8) = (ints(cx, linear), linear.act == ActQuant::I8PerToken);
    let bounds = linear.clamp.map(|clamp| clamp.input);
    store(cx, source, Stored { cols, ints, stride, int8, bounds, to: &cx.memory.acts })
}

/// The input of a layer's adapters, and the dispatch that writes it if it is not that of the layer: only
/// normalised, as floats in whole chunks.
pub fn input_of_adapters<'a>(
    cx: &Cx<'a>,
    input: Input<'a>,
    linear: &'a Linear,
) -> (&'a Buffer, Option<Dispatch<'a>>) {
    if !adapters::is_quantised(linear) {
        return (&cx.memory.acts, None);
    }
    let (to, dispatch) = floats_of(cx, &source_of(cx, input, linear), linear);
    (to, Some(dispatch))
}

/// Where rows are stored as floats for adapters, and the dispatch that does so.
fn floats_of<'a>(cx: &Cx<'a>, source: &Source<'a>, linear: &Linear) -> (&'a Buffer, Dispatch<'a>) {
    let (cols, to) = (cx.p.weight_decl(linear.w).cols, &cx.memory.adapters.inputs);
    // `missing` refuses adapters of layers with bounds.
    let stride = cols.next_multiple_of(8);
    let stored = Stored { cols, ints: false, stride, int8: false, bounds: None, to };
    (to, store(cx, source, stored))
}

/// The dispatches of a layer's adapters, if the step's rows use some, after the products of rows of `source`.
pub fn adapters_after<'a>(cx: &Cx<'a>, source: &Source<'a>, layer: &Layer<'a>) -> Vec<Dispatch<'a>> {
    let linear = layer.linear;
    if !cx.adapted || linear.lora.is_empty() {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut x = &cx.memory.acts;
    if adapters::is_quantised(linear) {
        let (to, dispatch) = floats_of(cx, source, linear);
        all.push(dispatch);
        x = to;
    }
    let out = adapters::Out { buffer: layer.out, cols: layer.out_cols, at: layer.out_at };
    all.extend(adapters::dispatches(cx, &[linear], x, adapters::Rows::Tiles(source.rows), out));
    all
}

fn source_of<'a>(cx: &Cx<'a>, input: Input<'a>, linear: &'a Linear) -> Source<'a> {
    let memory = cx.memory;
    let (x, norm) = match (linear.prepares_input(input.norm.is_some()), linear.basis) {
        (true, Some(_)) => (&memory.prepared, None),
        (true, None) => (&memory.prepared, linear.norm.as_ref()),
        (false, _) => (&memory.bufs[input.x.0 as usize], input.norm.or(linear.norm.as_ref())),
    };
    let pitch = cx.p.buf_decl(input.x).cols;
    Source { x, norm, first_at: 0, pitch, each: 1, rows: input.rows }
}

fn store<'a>(cx: &Cx<'a>, source: &Source<'a>, stored: Stored<'a>) -> Dispatch<'a> {
    let Source { x, norm: of_source, first_at, pitch, each, rows } = *source;
    let Stored { cols, ints, stride, int8, bounds: of_stored, to } = stored;
    let memory = cx.memory;
    let mut params = norm(cx, of_source).to_vec();
    params.extend([
        cols as u32,
        stride as u32,
        u32::from(int8),
        u32::from(rows == RowsOf::Outputs),
        first_at as u32,
        pitch as u32,
    ]);
    params.extend(bounds(of_stored));
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::Input { ints })],
        params,
        buffers: vec![&memory.step.buffer, &memory.constants, x, to, &memory.quants],
        grid: Grid::Rows { x: each as u32, rows },
    }
}

/// A dispatch that multiplies, without its kernels, inputs and grid.
#[derive(Clone)]
struct Products<'a> {
    params: Vec<u32>,
    weight: &'a Buffer,
    out: &'a Buffer,
}

impl<'a> Products<'a> {
    fn dispatch(
        self,
        cx: &Cx<'a>,
        acts: &'a Buffer,
        kernels: Vec<(usize, Kernel)>,
        grid: Grid,
    ) -> Dispatch<'a> {
        let (memory, Self { params, weight, out }) = (cx.memory, self);
        let buffers = vec![&memory.step.buffer, &memory.constants, weight, acts, &memory.quants, out];
        Dispatch { kernels, params, buffers, grid }
    }

    /// The dispatch of a single row of `x`, which multiplies by the norm's weight, and that of several rows
    /// after [`weigh`]. `grid` has the grid of either.
    fn normed(
        self,
        cx: &Cx<'a>,
        x: &'a Buffer,
        kernel: impl Fn(u32) -> Kernel,
        grid: impl Fn(bool) -> Grid,
    ) -> [Dispatch<'a>; 2] {
        let mut by_rows = Kernel::by_rows(kernel);
        let of_several = by_rows.split_off(1);
        let mut one = self.clone().dispatch(cx, x, by_rows, grid(true));
        one.buffers.push(&cx.memory.constants);
        [one, self.dispatch(cx, &cx.memory.acts, of_several, grid(false))]
    }
}

/// Parameters of the products of a part of a layer's weight.
fn layer_params(cx: &Cx<'_>, rows: RowsOf, layer: &Layer<'_>, part: &UploadedRows) -> Vec<u32> {
    // `input_dispatch` and `adapters` handle the other fields.
    let Linear { w, norm: _, bias, act: _, scale, basis: _, lora: _, clamp } = *layer.linear;
    let mut params = cx.weights[w.0 as usize].params(part).to_vec();
    params.extend([
        act_words(cx.p, layer.linear) as u32 / 4,
        u32::from(rows == RowsOf::Outputs),
        scale.to_bits(),
        bias.map_or(ABSENT, |bias| cx.constant(bias)),
        layer.out_cols as u32,
        layer.out_at as u32,
        layer.what,
    ]);
    params.extend(bounds(clamp.map(|clamp| clamp.output)));
    params
}

/// The dispatches that multiply an input, which is in `acts`.
pub fn products<'a>(
    cx: &Cx<'a>,
    stage: &'static str,
    rows_of: RowsOf,
    layer: &Layer<'a>,
    acts: &'a Buffer,
) -> impl Iterator<Item = Dispatch<'a>> {
    let weight = &cx.weights[layer.linear.w.0 as usize];
    let ty = WeightFormat::of(weight.ty).expect("it was uploaded").kernels.name();
    let ints = ints(cx, layer.linear);
    let kernel = move |rows| Kernel::Linear { stage, ty, ints, rows, experts: false, normed: false };
    weight.parts.iter().map(move |part| {
        let params = layer_params(cx, rows_of, layer, part);
        let grid = Grid::Products { of_weight: part.rows.len() as u32, rows: rows_of };
        let products = Products { params, weight: part.alone(), out: layer.out };
        products.dispatch(cx, acts, Kernel::by_rows(kernel), grid)
    })
}

/// The dispatches that multiply rows and apply their norm, after [`weigh`].
fn normed_products<'a>(
    cx: &Cx<'a>,
    source: &Source<'a>,
    norm: &Norm,
    layer: &Layer<'a>,
) -> impl Iterator<Item = Dispatch<'a>> {
    let weight = &cx.weights[layer.linear.w.0 as usize];
    let ty = WeightFormat::of(weight.ty).expect("it was uploaded").kernels.name();
    let kernel = move |rows| {
        let (stage, ints, experts) = ("logits", false, false);
        Kernel::Linear { stage, ty, ints, rows, experts, normed: true }
    };
    weight.parts.iter().flat_map(move |part| {
        let mut params = layer_params(cx, source.rows, layer, part);
        params.extend(norm_params(cx, norm));
        let of_weight = part.rows.len() as u32;
        let grid = |one_row| Grid::Normed { of_weight, layers: 1, rows: source.rows, one_row };
        let products = Products { params, weight: part.alone(), out: layer.out };
        products.normed(cx, source.x, kernel, grid)
    })
}
