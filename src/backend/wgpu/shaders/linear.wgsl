// Linear layers: y = factor (W a) + bias for rows of activations from input.wgsl. The stage's `finish`, at
// the end, is the epilogue.
//
// Reads a part of W once per ROWS rows of the step; types/ documents its layout. Products are in floats, or
// exact for I2_S codes with int8 activations. Rows of acts after the step's last are read but not used.
//
// With `normed`, the norm's factor is applied to the sums: y = factor f (W (x w)) + bias, f = 1 / sqrt(mean
// square of x + eps). weigh.wgsl stores x w and f; for a single row, the kernel itself multiplies x by w and
// computes f, with the same bits. With `glu`, two layers share the columns of a, and their products are one
// output.
#if not tiled
#set lanes_type = "Acc"
#set reduce_lanes = [("sum_of_lanes", "sum")]
#endif
#include "lib/main.wgsl"
#include "lib/matrix.wgsl"

#if layers
// A layer of a dispatch that has several.
struct LayerAt {
    w: Matrix,
    factor: f32,
    bias: u32,
    out_cols: u32,
    out_at: u32,
    // x = offset of its weight in vectors of 16 bytes; y = 1 if outputs have bounds, whose bits are z and w.
    at: vec4<u32>,
}
#endif

const ROWS: u32 = #{rows}u;

struct Params {
    w: Matrix,
    // Vectors of four words per row of acts.
    stride: u32,
    of_outputs: u32,
    factor: f32,
    // Index into constants, or ABSENT.
    bias: u32,
    out_cols: u32,
    out_at: u32,
    // A parameter whose meaning depends on the stage.
    what: u32,
#if not layers and not experts and not heads
    // 1 if outputs have bounds.
    bounded: u32,
    lower: f32,
    upper: f32,
#endif
#if normed or layers
    // Index of the norm's weight in norms.
    norm_at: u32,
    norm_eps: f32,
#endif
#if layers
    // Layers with the same input, of one type, with as many columns as `w`.
    layers: array<LayerAt, 3>,
#endif
#if experts
    // Offset of the part of the dispatch's first expert, and distance between experts, in vectors of 16
    // bytes.
    first_at: u32,
    apart: u32,
    // First expert of the dispatch, and number of experts of the layer.
    first_expert: u32,
    n_experts: u32,
    // 1 if rows of acts are rows of the step, 0 if they are slots of the experts.
    gathers: u32,
#endif
#if heads
    // Offset of the part of the dispatch's first head, and distance between heads, in vectors of 16 bytes.
    first_at: u32,
    apart: u32,
    // First head of the dispatch, and number of heads, which are neighbours in acts.
    first_head: u32,
    n_heads: u32,
    // Distance between the outputs of two heads.
    head_cols: u32,
#endif
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> acts: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> quants: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
#if normed and rows == 1
@group(0) @binding(7) var<storage, read> norms: array<vec4<f32>>;
#endif

const ABSENT: u32 = 0xffffffffu;

#if experts
// Routing of rows to experts; products are written to the expert's slots (experts.wgsl). A workgroup has one
// expert (z).
@group(0) @binding(7) var<storage, read> routes: array<u32>;
// x = index of an expert's bias in constants, or ABSENT; y = its factor.
@group(0) @binding(8) var<storage, read> of_experts: array<vec2<u32>>;

var<private> expert: u32;

fn choose_expert(z: u32) {
    expert = params.first_expert + z;
    part_at = params.first_at + z * params.apart;
}

fn first_slot() -> u32 {
    return routes[expert];
}

fn rows_of(e: u32) -> u32 {
    return routes[e + 1u] - routes[e];
}

fn n_rows() -> u32 {
    return rows_of(expert);
}

// The row of acts of the expert's r-th row, clamped to its last row.
fn act_row(r: u32) -> u32 {
    let slot = first_slot() + min(r, n_rows() - 1u);
    if (params.gathers == 1u) {
        return routes[params.n_experts + 1u + slot];
    }
    return slot;
}

fn out_row(r: u32) -> u32 {
    return first_slot() + r;
}

fn factor() -> f32 {
    return bitcast<f32>(of_experts[expert].y);
}

fn bias_at() -> u32 {
    return of_experts[expert].x;
}

fn out_at() -> u32 {
    return params.out_at;
}
#elif heads
// A workgroup has one head (z), whose matrix multiplies the head's part of every row.
var<private> head: u32;

fn choose_head(z: u32) {
    head = params.first_head + z;
    part_at = params.first_at + z * params.apart;
}

fn n_rows() -> u32 {
    return step_rows();
}

// The row of acts of the r-th row, clamped to the last row.
fn act_row(r: u32) -> u32 {
    return min(r, n_rows() - 1u) * params.n_heads + head;
}

fn out_row(r: u32) -> u32 {
    return r;
}

fn factor() -> f32 {
    return params.factor;
}

fn bias_at() -> u32 {
    return params.bias;
}

fn out_at() -> u32 {
    return params.out_at + head * params.head_cols;
}
#else
#if layers
// A workgroup has one layer (z).
var<private> layer: LayerAt;
var<private> matrix: Matrix;

fn choose_layer(z: u32) {
    layer = params.layers[z];
    matrix = layer.w;
    part_at = layer.at.x;
}
#endif

fn n_rows() -> u32 {
    if (params.of_outputs == 1u) {
        return step_outputs();
    }
    return step_rows();
}

// The row of acts of the r-th row, clamped to the last row: acts may be a buffer of the program.
fn act_row(r: u32) -> u32 {
#if normed and rows == 1
    if (params.of_outputs == 1u) {
        return output_row(r);
    }
#endif
    return min(r, n_rows() - 1u);
}

fn out_row(r: u32) -> u32 {
    return r;
}

#if layers
fn factor() -> f32 {
    return layer.factor;
}

fn bias_at() -> u32 {
    return layer.bias;
}

fn out_at() -> u32 {
    return layer.out_at;
}

fn out_cols() -> u32 {
    return layer.out_cols;
}
#else
fn factor() -> f32 {
    return params.factor;
}

fn bias_at() -> u32 {
    return params.bias;
}

fn out_at() -> u32 {
    return params.out_at;
}
#endif
#endif
#if not layers

fn out_cols() -> u32 {
    return params.out_cols;
}
#endif

#if not experts and not heads
// Comparisons keep NaN.
fn within(y: f32, lower: f32, upper: f32) -> f32 {
    let below = select(y, upper, y > upper);
    return select(below, lower, below < lower);
}

#endif
// The product of a row of W and the r-th row, from the sum over its columns.
fn product_of(sum: Acc, row: u32, r: u32) -> f32 {
    var y = scaled(sum, r) * factor();
    let of_weight = params.w.first_row + row;
    if (bias_at() != ABSENT) {
        y += constants[bias_at() + of_weight];
    }
#if layers
    if (layer.at.y == 1u) {
        y = within(y, bitcast<f32>(layer.at.z), bitcast<f32>(layer.at.w));
    }
#elif not experts and not heads
    if (params.bounded == 1u) {
        y = within(y, params.lower, params.upper);
    }
#endif
    return y;
}

fn place_of(row: u32, r: u32) -> u32 {
    return out_at() + out_row(r) * out_cols() + params.w.first_row + row;
}
#if glu

fn finished(gate: Acc, up: Acc, row: u32, r: u32) {
    choose_layer(0u);
    let of_gate = product_of(gate, row, r);
    choose_layer(1u);
    finish(place_of(row, r), of_gate, product_of(up, row, r));
}
#else

fn finished(sum: Acc, row: u32, r: u32) {
    finish(place_of(row, r), product_of(sum, row, r));
}
#endif

#if ints
// sum((code - 1) q) = sum(code q) - sum(q): codes are multiplied unsigned, and the row's sum of q is
// subtracted once.
#if packed
alias Acc = i32;

fn four(codes: u32, q: u32) -> Acc {
    return dot4I8Packed(codes, q);
}
#else
// In floats, for devices that emulate packed products: integers below 2^24 are exact in f32, so sums of up to
// 2^24 / (2 x 127) products are exact.
alias Acc = f32;

fn four(codes: u32, q: u32) -> Acc {
    return dot(vec4<f32>(unpack4xU8(codes)), vec4<f32>(unpack4xI8(q)));
}
#endif

fn scaled(sum: Acc, r: u32) -> f32 {
    let quant = quants[r];
    return f32(i32(sum) - bitcast<i32>(quant.y)) / bitcast<f32>(quant.x) * #{w}.scale;
}
#else
alias Acc = f32;

#if normed and rows == 1
#include "lib/squares.wgsl"

var<private> x_at: u32;
var<private> norm_of_row: f32;

fn row_quad(i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(acts[x_at + i]);
}

fn scaled(sum: Acc, r: u32) -> f32 {
    return sum * norm_of_row;
}
#elif normed
fn scaled(sum: Acc, r: u32) -> f32 {
    return sum * bitcast<f32>(quants[r].x);
}
#else
fn scaled(sum: Acc, r: u32) -> f32 {
    return sum;
}
#endif
#endif

#if not tiled
// Few rows: a slot of LANES neighbouring threads owns WEIGHTS neighbouring rows of W, and reads neighbouring
// chunks of them; a workgroup owns THREADS / LANES slots (x) and ROWS rows of the step (y). Activations are
// loaded once for all of a slot's rows of W, and codes decoded once for all rows of the step. Bits depend on
// neither. With `glu`, the same number of rows of the second layer follows those of the first.
const WEIGHTS: u32 = #{n_weight_rows}u;
const ALL_WEIGHTS: u32 = #{n_all_weight_rows}u;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let row = (workgroup.x * (THREADS / LANES) + slot_of()) * WEIGHTS;
    let first = workgroup.y * ROWS;
#if runs and has_table
    fill_table();
#endif
#if experts
    // Not through `expert`: the compiler must assume that a private variable differs between threads.
    if (first >= rows_of(params.first_expert + workgroup.z)) {
        return;
    }
    choose_expert(workgroup.z);
#elif heads
    choose_head(workgroup.z);
#elif glu
    choose_layer(0u);
#elif layers
    if (workgroup.x * (THREADS / LANES) * WEIGHTS >= params.layers[workgroup.z].w.rows) {
        return;
    }
    choose_layer(workgroup.z);
#endif
#if normed and rows == 1
    x_at = act_row(first) * params.stride;
    add_squares(params.stride);
#endif
#for m in step_rows
#for r in all_weight_rows
    var sum_#{r}_#{m} = Acc(0);
#endfor
#endfor
    if (row < #{w}.rows) {
        let last = #{w}.rows - 1u;
#for r in all_weight_rows
        let row_#{r} = min(row + #{r % n_weight_rows}u, last) * params.w.chunks;
#endfor
#for m in step_rows
#if ints
        let acts_#{m} = (first + #{m}u) * params.stride;
#else
        let acts_#{m} = act_row(first + #{m}u) * params.stride;
#endif
#endfor
#if ints
        for (var chunk = lane_of(); chunk < params.w.chunks; chunk += LANES) {
#for r in all_weight_rows
#if glu
            choose_layer(#{r // n_weight_rows}u);
#endif
            let bits_#{r} = bits_at(row_#{r} + chunk);
#endfor
            // 16 activations per vector: those of group g are 2 g vectors after the chunk's first.
            let at = chunk / 2u * 8u + chunk % 2u;
#for group in [0, 1, 2, 3]
#for r in all_weight_rows
            let codes_#{r}_#{group} = codes(bits_#{r}, #{group}u);
#endfor
#for m in step_rows
            let q_#{m}_#{group} = acts[acts_#{m} + at + #{2 * group}u];
#for r in all_weight_rows
            sum_#{r}_#{m} += sixteen(codes_#{r}_#{group}, q_#{m}_#{group});
#endfor
#endfor
#endfor
        }
#elif runs
        var acts_of: array<u32, ROWS>;
#for m in step_rows
        acts_of[#{m}] = acts_#{m};
#endfor
        var bits: array<Chunk, ALL_WEIGHTS>;
#if rows == 1
        // The next chunk is loaded before this one is multiplied; after the last one, that one again.
        var next: array<Chunk, ALL_WEIGHTS>;
#for r in all_weight_rows
#if glu
        choose_layer(#{r // n_weight_rows}u);
#endif
        next[#{r}] = load(row_#{r}, min(lane_of(), params.w.chunks - 1u));
#endfor
#endif
        for (var chunk = lane_of(); chunk < params.w.chunks; chunk += LANES) {
#for r in all_weight_rows
#if glu
            choose_layer(#{r // n_weight_rows}u);
#endif
#if rows == 1
            bits[#{r}] = next[#{r}];
            next[#{r}] = load(row_#{r}, min(chunk + LANES, params.w.chunks - 1u));
#else
            bits[#{r}] = load(row_#{r}, chunk);
#endif
#endfor
#for run in runs
            var run_#{run.at} = Sums();
#for i in run.quads
            add_quad(&bits, &acts_of, chunk, #{i}u, &run_#{run.at});
#endfor
#for r in all_weight_rows
            let line_#{run.at}_#{r} = line_of(bits[#{r}], #{run.at}u);
#for m in step_rows
            sum_#{r}_#{m} += run_sum(
                run_#{run.at}.products[#{r}][#{m}], run_#{run.at}.total[#{m}], line_#{run.at}_#{r}
            );
#endfor
#endfor
#endfor
        }
#else
        // Two layers one after the other: decoded chunks of both would take too many registers.
#for r in all_weight_rows
#if glu
        choose_layer(#{r}u);
#endif
        for (var chunk = lane_of(); chunk < params.w.chunks; chunk += LANES) {
            let values = decode(row, chunk);
#for m in step_rows
            sum_#{r}_#{m} += dot_of(values, acts_#{m}, chunk);
#endfor
        }
#endfor
#endif
    }
#if normed and rows == 1
    workgroupBarrier();
    norm_of_row = norm_factor(params.stride, params.norm_eps);
#endif
#for m in step_rows
#for r in all_weight_rows
    let all_#{r}_#{m} = sum_of_lanes(sum_#{r}_#{m});
#endfor
#for r in weight_rows
    if (lane_of() == 0u && row + #{r}u < #{w}.rows && first + #{m}u < n_rows()) {
#if glu
        finished(all_#{r}_#{m}, all_#{r + n_weight_rows}_#{m}, row + #{r}u, first + #{m}u);
#else
        finished(all_#{r}_#{m}, row + #{r}u, first + #{m}u);
#endif
    }
#endfor
#endfor
}

fn sum(a: Acc, b: Acc) -> Acc {
    return a + b;
}
#if ints

fn sixteen(codes: vec4<u32>, q: vec4<u32>) -> Acc {
    return (four(codes.x, q.x) + four(codes.y, q.y)) + (four(codes.z, q.z) + four(codes.w, q.w));
}
#else

// The i-th quad of a row of activations.
fn act_quad(row_at: u32, i: u32) -> vec4<f32> {
    let x = bitcast<vec4<f32>>(acts[row_at + i]);
#if normed and rows == 1
    let a = x * norms[params.norm_at + i];
#if runs
    if (HAS_MINIMUM) {
        // Rounded before it is added to a total, as if it had been stored.
        return bitcast<vec4<f32>>(bitcast<vec4<u32>>(a) ^ vec4(step_zero()));
    }
#endif
    return a;
#else
    return x;
#endif
}
#if runs

// Sums over a run: of codes times activations, per row of W and of the step, and of activations.
struct Sums {
    products: array<array<f32, ROWS>, ALL_WEIGHTS>,
    total: array<f32, ROWS>,
}

// Adds the i-th quad of a chunk. Calls have a constant i, so that inlined, no index is a variable.
fn add_quad(
    bits: ptr<function, array<Chunk, ALL_WEIGHTS>>,
    acts_of: ptr<function, array<u32, ROWS>>,
    chunk: u32,
    i: u32,
    run: ptr<function, Sums>,
) {
    let at = place(chunk, i);
#for m in step_rows
    let a_#{m} = act_quad((*acts_of)[#{m}], at);
    if (HAS_MINIMUM) {
        (*run).total[#{m}] += (a_#{m}.x + a_#{m}.y) + (a_#{m}.z + a_#{m}.w);
    }
#endfor
#for r in all_weight_rows
    let q_#{r} = quad((*bits)[#{r}], i);
#for m in step_rows
    (*run).products[#{r}][#{m}] = dot_and(q_#{r}, a_#{m}, (*run).products[#{r}][#{m}]);
#endfor
#endfor
}

// a . b + c, one element after the other.
fn dot_and(a: vec4<f32>, b: vec4<f32>, c: f32) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, c))));
}

// The products of a run's values: x of `line` is the scale of its codes, y their minimum.
fn run_sum(products: f32, total: f32, line: vec2<f32>) -> f32 {
    let sum = line.x * (products * QUAD_SCALE);
    if (HAS_MINIMUM) {
        return sum - line.y * total;
    }
    return sum;
}
#else

// The products of a chunk with a row of acts.
fn dot_of(values: array<vec4<f32>, CHUNK_QUADS>, row_at: u32, chunk: u32) -> f32 {
    var sum = 0.0;
#for i in quads
    sum += dot(values[#{i}], act_quad(row_at, place(chunk, #{i}u)));
#endfor
    return sum;
}
#endif
#endif
#else
// Many rows: a workgroup owns a tile of ROWS rows of W (x) and ROWS rows of the step (y), and each of its 64
// threads 4 x 4 outputs of it. The columns pass through workgroup memory in pieces: `bring` loads a piece,
// and `add_piece` multiplies it.
const TILE: u32 = ROWS;

alias Sums = array<array<Acc, 4>, 4>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let first_row = workgroup.x * TILE;
    let first = workgroup.y * TILE;
#if experts
    if (first >= rows_of(params.first_expert + workgroup.z)) {
        return;
    }
    choose_expert(workgroup.z);
#elif heads
    choose_head(workgroup.z);
#elif glu
    choose_layer(0u);
#elif layers
    if (first_row >= params.layers[workgroup.z].w.rows) {
        return;
    }
    choose_layer(workgroup.z);
#endif
    let across = thread % 8u;
    let down = thread / 8u;
    var sums: Sums;
    add_pieces(first_row, first, &sums);
#if glu
    var sums_of_up: Sums;
    choose_layer(1u);
    add_pieces(first_row, first, &sums_of_up);
#endif
    for (var j = 0u; j < 4u; j++) {
        let r = first + down + 8u * j;
        for (var i = 0u; i < 4u; i++) {
            let row = first_row + across + 8u * i;
            if (row < #{w}.rows && r < n_rows()) {
#if glu
                finished(sums[j][i], sums_of_up[j][i], row, r);
#else
                finished(sums[j][i], row, r);
#endif
            }
        }
    }
}

fn add_pieces(first_row: u32, first: u32, sums: ptr<function, Sums>) {
    for (var piece = 0u; piece < tile_pieces(); piece++) {
        bring(piece, first_row, first);
        workgroupBarrier();
        add_piece(thread % 8u, thread / 8u, sums);
        workgroupBarrier();
    }
}

#if ints
// A piece is a block of 128 columns.

// [2, TILE]: half blocks of codes.
var<workgroup> tile_of_w: array<vec4<u32>, 64>;
// [8, TILE]: 16 activations per vector.
var<workgroup> tile_of_acts: array<vec4<u32>, 256>;

fn tile_pieces() -> u32 {
    return params.w.chunks / 2u;
}

fn bring(piece: u32, first_row: u32, first: u32) {
    let row = first_row + thread / 2u;
    var bits = vec4(0u);
    if (row < #{w}.rows) {
        bits = bits_at(row * params.w.chunks + 2u * piece + thread % 2u);
    }
    tile_of_w[thread % 2u * TILE + thread / 2u] = bits;
    for (var at = thread; at < 8u * TILE; at += THREADS) {
        tile_of_acts[at % 8u * TILE + at / 8u] =
            acts[(first + at / 8u) * params.stride + 8u * piece + at % 8u];
    }
}

fn add_piece(across: u32, down: u32, sums: ptr<function, Sums>) {
    for (var part = 0u; part < 8u; part++) {
        var code = array<vec4<u32>, 4>();
        for (var i = 0u; i < 4u; i++) {
            code[i] = codes(tile_of_w[part % 2u * TILE + across + 8u * i], part / 2u);
        }
        for (var j = 0u; j < 4u; j++) {
            let q = tile_of_acts[part * TILE + down + 8u * j];
            for (var i = 0u; i < 4u; i++) {
                (*sums)[j][i] += (four(code[i].x, q.x) + four(code[i].y, q.y))
                    + (four(code[i].z, q.z) + four(code[i].w, q.w));
            }
        }
    }
}
#else
// A piece is 64 columns, in the order of the type's chunks.
const TILE_QUADS: u32 = 16u;
const TILE_CHUNKS: u32 = TILE_QUADS / CHUNK_QUADS;

// [TILE_QUADS, TILE] each, so that neighbouring threads read neighbouring vectors.
var<workgroup> tile_of_w: array<vec4<f32>, TILE * TILE_QUADS>;
var<workgroup> tile_of_acts: array<vec4<f32>, TILE * TILE_QUADS>;

fn tile_pieces() -> u32 {
    return (params.w.chunks + TILE_CHUNKS - 1u) / TILE_CHUNKS;
}

fn bring(piece: u32, first_row: u32, first: u32) {
    let first_chunk = piece * TILE_CHUNKS;
    for (var job = thread; job < TILE * TILE_CHUNKS; job += THREADS) {
        let row = first_row + job / TILE_CHUNKS;
        let chunk = first_chunk + job % TILE_CHUNKS;
        var values = array<vec4<f32>, CHUNK_QUADS>();
        if (row < #{w}.rows && chunk < params.w.chunks) {
            values = decode(row, chunk);
        }
        for (var i = 0u; i < CHUNK_QUADS; i++) {
            tile_of_w[(job % TILE_CHUNKS * CHUNK_QUADS + i) * TILE + job / TILE_CHUNKS] = values[i];
        }
    }
    for (var at = thread; at < TILE * TILE_QUADS; at += THREADS) {
        let chunk = first_chunk + at % TILE_QUADS / CHUNK_QUADS;
        var value = vec4(0.0);
        if (chunk < params.w.chunks) {
            let r = act_row(first + at / TILE_QUADS);
            value = bitcast<vec4<f32>>(acts[r * params.stride + place(chunk, at % CHUNK_QUADS)]);
        }
        tile_of_acts[at % TILE_QUADS * TILE + at / TILE_QUADS] = value;
    }
}

fn add_piece(across: u32, down: u32, sums: ptr<function, Sums>) {
    for (var quad = 0u; quad < TILE_QUADS; quad++) {
        var w = array<vec4<f32>, 4>();
        for (var i = 0u; i < 4u; i++) {
            w[i] = tile_of_w[quad * TILE + across + 8u * i];
        }
        for (var j = 0u; j < 4u; j++) {
            let a = tile_of_acts[quad * TILE + down + 8u * j];
            for (var i = 0u; i < 4u; i++) {
                (*sums)[j][i] += dot(w[i], a);
            }
        }
    }
}
#endif
#endif

#if stage == "proj_add"
// ProjAdd: x[r] += W norm(y[r]).
fn finish(at: u32, y: f32) {
    out[at] += y;
}
#elif stage == "ffn_in"
#include "lib/floats.wgsl"

#include "lib/activation.wgsl"

// FfnIn: h[r] = act(Wg n) * (Wu n), or act(Wu n) without a gate. If gate and up do not share a dispatch, the
// gate's stores act(Wg n), and that of `up` multiplies it.
fn finish(at: u32, y: f32) {
    if (params.what == TIMES || params.what == TIMES_CLAMPED) {
        out[at] *= factor_of_up(params.what, y);
    } else {
        out[at] = activated(params.what, y);
    }
}
#elif stage == "glu"
#include "lib/floats.wgsl"

#include "lib/activation.wgsl"

// FfnIn: h[r] = act(Wg n) * (Wu n).
fn finish(at: u32, gate: f32, up: f32) {
    let times = select(TIMES, TIMES_CLAMPED, params.what == ACT_CLAMPED);
    out[at] = activated(params.what, gate) * factor_of_up(times, up);
}
#elif stage == "logits"
#include "lib/floats.wgsl"

// Logits: logits[o] = cap(W norm(x[outputs[o]])). Other products that are stored unchanged, such as AttnIn's,
// have no cap.
fn finish(at: u32, y: f32) {
    let cap = bitcast<f32>(params.what);
    if (params.what == 0u) {
        out[at] = y;
    } else {
        out[at] = cap * tanh_near(divide_rounded(y, cap));
    }
}
#endif
