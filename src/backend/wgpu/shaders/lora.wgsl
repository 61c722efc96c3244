// LoRA adapters: out[r] += sum over adapters k of the row's sequence of B_k (s_k f_k A_k x[r]), after the
// product of a layer or the embedding of a token. Three kernels: `first` multiplies by A, `token` looks up
// a row of A instead, and `second` multiplies by B and adds.
//
// A workgroup owns a tile of rows (y) that use the same adapters, so that it reads each matrix once for them
// (src/backend/device/adapters.rs). In a mixture of experts it owns one slot: the i-th expert (z) of a row of
// the step (y). `pairs` has a matrix per expert and adapter: its offset in `weights` in vectors of 16 bytes,
// its rows (0 if there is none), its chunks per row, and the factor of the pair.
//
// `first` has [rows or slots, adapters, rank] floats; products are padded with zeros to whole chunks.
#if part == "first"
#set reduce = [("reduce_sums", "vec4<f32>", "add_sums")]
#endif
#include "lib/main.wgsl"

#if experts
const ROWS: u32 = 1u;
#else
const ROWS: u32 = 8u;
#endif

struct Params {
    n_adapters: u32,
    // First entry of the dispatch in `pairs`.
    pairs_at: u32,
    // Floats of a product in `first`.
    rank: u32,
    // 1 if rows are those that need logits.
    of_outputs: u32,
    // Vectors of four floats per row of x.
    stride: u32,
    out_cols: u32,
    out_at: u32,
    unused: u32,
#if experts
    n_experts: u32,
    n_used: u32,
    // Rows of the step times n_used.
    slots: u32,
    // 1 if rows of x are rows of the step, 0 if they are slots.
    gathers: u32,
#endif
}

// The types of lib/matrix.wgsl read `params`: the matrix of the current adapter.
struct OfAdapter {
    w: Matrix,
}

@group(0) @binding(0) var<uniform> layer: Params;
@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> pairs: array<vec4<u32>>;
var<private> params: OfAdapter;

#include "lib/matrix.wgsl"

fn choose(pair: vec4<u32>) {
    part_at = pair.x;
    params.w = Matrix(pair.y, 0u, pair.z, 1.0);
}

#if experts
@group(0) @binding(6) var<storage, read> routes: array<u32>;

// Tables of experts.wgsl: the experts of each row, then their slots.
fn expert_of(workgroup: vec3<u32>) -> u32 {
    return routes[layer.n_experts + 1u + layer.slots + workgroup.y * layer.n_used + workgroup.z];
}

fn slot_at(workgroup: vec3<u32>) -> u32 {
    return routes[layer.n_experts + 1u + 2u * layer.slots + workgroup.y * layer.n_used + workgroup.z];
}

fn tile_rows_of(workgroup: vec3<u32>) -> u32 {
    return 1u;
}

fn row_of(workgroup: vec3<u32>, m: u32) -> u32 {
    return slot_at(workgroup);
}

fn x_row(workgroup: vec3<u32>, m: u32) -> u32 {
    return select(slot_at(workgroup), workgroup.y, layer.gathers == 1u);
}

fn step_row_of(workgroup: vec3<u32>, m: u32) -> u32 {
    return workgroup.y;
}
#else
fn expert_of(workgroup: vec3<u32>) -> u32 {
    return 0u;
}

fn tile_at(workgroup: vec3<u32>) -> u32 {
    return step[15u + layer.of_outputs] + (1u + ROWS) * workgroup.y;
}

fn tile_rows_of(workgroup: vec3<u32>) -> u32 {
    return step[tile_at(workgroup)];
}

fn row_of(workgroup: vec3<u32>, m: u32) -> u32 {
    return step[tile_at(workgroup) + 1u + m];
}

fn x_row(workgroup: vec3<u32>, m: u32) -> u32 {
    return row_of(workgroup, m);
}

fn step_row_of(workgroup: vec3<u32>, m: u32) -> u32 {
    let row = row_of(workgroup, m);
    if (layer.of_outputs == 1u) {
        return output_row(row);
    }
    return row;
}
#endif

// The adapters of the sequence of the m-th row: their number, then id and scale of each.
fn adapters_of(workgroup: vec3<u32>, m: u32) -> u32 {
    return step[14] + step_row(step_row_of(workgroup, m)).seq * (1u + 2u * layer.n_adapters);
}

fn adapter_of(workgroup: vec3<u32>, j: u32) -> u32 {
    return step[adapters_of(workgroup, 0u) + 1u + 2u * j];
}

fn scale_of(workgroup: vec3<u32>, m: u32, j: u32) -> f32 {
    return bitcast<f32>(step[adapters_of(workgroup, m) + 2u + 2u * j]);
}

fn pair_of(workgroup: vec3<u32>, adapter: u32) -> vec4<u32> {
    return pairs[layer.pairs_at + expert_of(workgroup) * layer.n_adapters + adapter];
}

// Index of a row's product with the first matrix of an adapter.
fn product_at(row: u32, adapter: u32) -> u32 {
    return (row * layer.n_adapters + adapter) * layer.rank;
}
#if part == "first"

// An element of the products (x), all threads along its columns.
@group(0) @binding(4) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> first: array<f32>;

const SUMS: u32 = (ROWS + 3u) / 4u;

fn add_sums(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return a + b;
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let n = tile_rows_of(workgroup);
    let n_adapters = step[adapters_of(workgroup, 0u)];
    for (var j = 0u; j < n_adapters; j++) {
        let adapter = adapter_of(workgroup, j);
        let pair = pair_of(workgroup, adapter);
        if (pair.y == 0u) {
            continue;
        }
        var sums = array<f32, 4u * SUMS>();
        if (workgroup.x < pair.y) {
            choose(pair);
            for (var chunk = thread; chunk < pair.z; chunk += THREADS) {
                let values = decode(workgroup.x, chunk);
                for (var m = 0u; m < n; m++) {
                    let at = x_row(workgroup, m) * layer.stride;
                    var sum = 0.0;
                    for (var i = 0u; i < CHUNK_QUADS; i++) {
                        sum += dot(values[i], x[at + place(chunk, i)]);
                    }
                    sums[m] += sum;
                }
            }
        }
        for (var s = 0u; s < SUMS; s++) {
            let at = 4u * s;
            let all = reduce_sums(vec4(sums[at], sums[at + 1u], sums[at + 2u], sums[at + 3u]));
            let m = 4u * s + thread;
            if (thread < 4u && m < n) {
                let factor = bitcast<f32>(pair.w) * scale_of(workgroup, m, j);
                first[product_at(row_of(workgroup, m), adapter) + workgroup.x] = factor * all[thread];
            }
        }
    }
}
#elif part == "token"

// One quad of the products per thread.
@group(0) @binding(4) var<storage, read> picked: array<u32>;
@group(0) @binding(5) var<storage, read_write> first: array<f32>;

// Program's Row::PICKED.
const TOKEN_PICKED: u32 = 0xffffffffu;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let n = tile_rows_of(workgroup);
    let n_adapters = step[adapters_of(workgroup, 0u)];
    for (var j = 0u; j < n_adapters; j++) {
        let adapter = adapter_of(workgroup, j);
        let pair = pair_of(workgroup, adapter);
        choose(pair);
        for (var m = 0u; m < select(n, 0u, pair.y == 0u); m++) {
            let row = row_of(workgroup, m);
            let of_step = step_row(row);
            var token = of_step.token;
            if (token == TOKEN_PICKED) {
                token = picked[of_step.seq];
            }
            let factor = bitcast<f32>(pair.w) * scale_of(workgroup, m, j);
            for (var quad = thread; quad < pair.z * CHUNK_QUADS; quad += THREADS) {
                let chunk = quad / CHUNK_QUADS;
                let values = decode(token, chunk)[quad % CHUNK_QUADS] * factor;
                let to = product_at(row, adapter) + 4u * place(chunk, quad % CHUNK_QUADS);
                for (var e = 0u; e < 4u; e++) {
                    first[to + e] = values[e];
                }
            }
        }
    }
}
#elif part == "second"

// An output per thread (x).
@group(0) @binding(4) var<storage, read> first: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let n = tile_rows_of(workgroup);
    let n_adapters = step[adapters_of(workgroup, 0u)];
    let output = workgroup.x * THREADS + thread;
    for (var j = 0u; j < n_adapters; j++) {
        let adapter = adapter_of(workgroup, j);
        let pair = pair_of(workgroup, adapter);
        if (output >= pair.y) {
            continue;
        }
        choose(pair);
        var sums = array<f32, ROWS>();
        for (var chunk = 0u; chunk < pair.z; chunk++) {
            let values = decode(output, chunk);
            for (var m = 0u; m < n; m++) {
                let at = product_at(row_of(workgroup, m), adapter) / 4u;
                for (var i = 0u; i < CHUNK_QUADS; i++) {
                    sums[m] += dot(values[i], first[at + place(chunk, i)]);
                }
            }
        }
        for (var m = 0u; m < n; m++) {
            out[layer.out_at + row_of(workgroup, m) * layer.out_cols + output] += sums[m];
        }
    }
}
#endif
