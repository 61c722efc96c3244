// Attend for many rows: out[r] = softmax(cap(scale * q[r] . K)) V, as in attend.wgsl, but rows of one
// sequence share their reads.
//
// A workgroup owns a tile (y) of neighbouring rows of one sequence, all of which read the same pages exactly,
// and up to 32 query heads of one KV head (x): together up to QUERIES queries. For each page, keys are staged
// in workgroup memory 16 elements at a time, and a thread owns the scores of 4 queries and 8 positions. Their
// weights, relative to the largest score so far, go to workgroup memory. Values are staged a few positions at
// a time, and a thread owns QUADS vectors of 4 elements for each of its 4 queries. Reads the keys and values
// of the pages once per tile.
#set last = "last" if of_encoder else "pos"
#set lanes_type = "vec4<f32>"
#set reduce_lanes = [("max_of_lanes", "max4"), ("sum_of_lanes", "sum4")]
#if rotates
// 8 queries' outputs at a time.
#set vector = "weights"
#set vectors = 8
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/attention.wgsl"

@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> keys: array<u32>;
@group(0) @binding(5) var<storage, read> values: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
#if k.form == "signs"
// [n_rows, n_heads * head_dim]: queries projected by project.wgsl, to be multiplied by the signs of keys.
@group(0) @binding(7) var<storage, read> projected: array<f32>;
#endif

const QUERIES: u32 = 32u;

// Vectors of 4 elements per thread and query.
const QUADS: u32 = #{quads}u;

// Threads that share 4 queries: those of a slot.
const ACROSS: u32 = LANES;

// Positions of values that are staged at a time: 256 vectors.
const AT_ONCE: u32 = 256u / (ACROSS * QUADS);

// [PAGE_POSITIONS, QUERIES] weights of a page; at the end, 8 queries' outputs of up to 256 elements.
var<workgroup> weights: array<f32, 2048>;
// [4, PAGE_POSITIONS] of keys and [4, QUERIES] of queries, or [AT_ONCE, ACROSS * QUADS] of values.
var<workgroup> staged: array<vec4<f32>, 384>;

// A query of the tile: its row of the step and its head. `there` is false if the tile does not have it.
struct Query {
    row: u32,
    head: u32,
    there: bool,
}

fn query_of(i: u32, first: u32, rows: u32, first_head: u32, heads: u32) -> Query {
    let row = i / params.tile_heads;
    let head = i % params.tile_heads;
    return Query(first + row, first_head + head, row < rows && head < heads);
}

fn element_at(query: Query, kv_head: u32) -> u32 {
    return ((query.row * params.cache.n_kv_heads + kv_head) * params.group + query.head)
        * params.cache.head_dim;
}

fn quad_of_query(query: Query, kv_head: u32, quad: u32) -> vec4<f32> {
    if (!query.there || 4u * quad >= params.cache.head_dim) {
        return vec4(0.0);
    }
    let at = element_at(query, kv_head) + 4u * quad;
    return vec4(q[at], q[at + 1u], q[at + 2u], q[at + 3u]) * params.scale;
}

#if k.form == "signs"
// Factors of a key in the dot product with a query: the query's elements, then those of its projection.
const KEY_PARTS: u32 = 2u;

fn part_of_query(query: Query, kv_head: u32, quad: u32) -> vec4<f32> {
    let quads = params.cache.head_dim / 4u;
    if (quad < quads) {
        return quad_of_query(query, kv_head, quad);
    }
    if (!query.there) {
        return vec4(0.0);
    }
    let at = element_at(query, kv_head) + 4u * (quad - quads);
    return vec4(projected[at], projected[at + 1u], projected[at + 2u], projected[at + 3u]) * params.scale;
}
#else
// Factors of a key in the dot product with a query: the query's elements.
const KEY_PARTS: u32 = 1u;

fn part_of_query(query: Query, kv_head: u32, quad: u32) -> vec4<f32> {
    return quad_of_query(query, kv_head, quad);
}
#endif

// Adds the weighted values of a page to the sums. Positions before `hidden` and from `seen` on, which a query
// does not see, may hold anything, and 0 times NaN is not 0.
fn add_values(
    source: PageAt,
    hidden: vec4<u32>,
    seen: vec4<u32>,
    sums: ptr<function, array<array<vec4<f32>, QUADS>, 4>>,
) {
    let across = lane_of();
    let down = slot_of();
    let quads = params.cache.head_dim / 4u;
    for (var first = 0u; first < PAGE_POSITIONS; first += AT_ONCE) {
        for (var at = thread; at < AT_ONCE * ACROSS * QUADS; at += THREADS) {
            let quad = at % (ACROSS * QUADS);
            var value = vec4(0.0);
            if (quad < quads) {
                value = value_quad(source, first + at / (ACROSS * QUADS), quad);
            }
            staged[at] = value;
        }
        workgroupBarrier();
        for (var p = 0u; p < AT_ONCE; p++) {
            for (var j = 0u; j < 4u; j++) {
                let weight = weights[(first + p) * QUERIES + down + 8u * j];
                if (first + p >= hidden[j] && first + p < seen[j]) {
                    for (var i = 0u; i < QUADS; i++) {
                        (*sums)[j][i] += weight * staged[p * (ACROSS * QUADS) + across + ACROSS * i];
                    }
                }
            }
        }
        workgroupBarrier();
    }
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let first = tile_row(workgroup.y);
    let rows = tile_rows(workgroup.y);
    let row = step_row(first);
    let kv_head = workgroup.x / params.tiles;
    let first_head = workgroup.x % params.tiles * params.tile_heads;
    let heads = min(params.group - first_head, params.tile_heads);
    let head_dim = params.cache.head_dim;
    let across = lane_of();
    let down = slot_of();
#if k.windowed
    key_prepare();
#endif
#if v.windowed
    value_prepare();
#endif
#if k.windowed or v.windowed
    workgroupBarrier();
#endif

    var pos: array<u32, 4>;
#if of_encoder
    // Last visible position of each query; in other models that is the query's own position.
    var last: array<u32, 4>;
#endif
    for (var j = 0u; j < 4u; j++) {
        // A place without a query uses the position of another row of the tile, and is not written.
        let of_tile = query_of(down + 8u * j, 0u, rows, 0u, heads).row % rows;
        pos[j] = row.pos + of_tile;
#if of_encoder
        last[j] = last_seen(pos[j], first + of_tile);
#endif
    }

    var largest = vec4(LEAST);
    var total = vec4(0.0);
    var sums: array<array<vec4<f32>, QUADS>, 4>;
#if of_encoder
    let last_pos = last_seen(row.pos + rows - 1u, first + rows - 1u);
#else
    let last_pos = row.pos + rows - 1u;
#endif
    for (var page = first_seen(row.pos) / PAGE_POSITIONS; page <= last_pos / PAGE_POSITIONS; page++) {
        let key_page = key_page_to_read(row, page, kv_head);
        let value_page = value_page_to_read(row, page, kv_head);
#if k.windowed
        let mean_at = key_mean_at(row.seq, page, kv_head);
#endif
        // Elements of a key and, after them, the signs for the projected query.
        let key_dim = head_dim * select(KEY_PARTS, 1u, key_page.exact);
        var score = array<array<f32, 8>, 4>();
        for (var chunk = 0u; chunk < key_dim; chunk += 16u) {
            for (var quad = 0u; quad < 4u; quad++) {
                var key = vec4(0.0);
                if (chunk + 4u * quad < key_dim) {
                    key = key_quad(key_page, thread, chunk / 4u + quad);
#if k.windowed
                    if (!key_page.exact && chunk + 4u * quad < head_dim) {
                        key += key_mean_quad(mean_at, chunk / 4u + quad);
                    }
#endif
                }
                staged[quad * PAGE_POSITIONS + thread] = key;
            }
            for (var at = thread; at < 4u * QUERIES; at += THREADS) {
                let query = query_of(at % QUERIES, first, rows, first_head, heads);
                staged[256u + at] = part_of_query(query, kv_head, chunk / 4u + at / QUERIES);
            }
            workgroupBarrier();
            for (var quad = 0u; quad < 4u; quad++) {
                var key = array<vec4<f32>, 8>();
                for (var i = 0u; i < 8u; i++) {
                    key[i] = staged[quad * PAGE_POSITIONS + across + ACROSS * i];
                }
                for (var j = 0u; j < 4u; j++) {
                    let query = staged[256u + quad * QUERIES + down + 8u * j];
                    for (var i = 0u; i < 8u; i++) {
                        score[j][i] += dot(query, key[i]);
                    }
                }
            }
            workgroupBarrier();
        }

        var most = vec4(LEAST);
        for (var j = 0u; j < 4u; j++) {
            for (var i = 0u; i < 8u; i++) {
                score[j][i] = capped(score[j][i]);
                let position = page * PAGE_POSITIONS + across + ACROSS * i;
                if (position > #{last}[j] || position < first_seen(pos[j])) {
                    score[j][i] = LEAST;
                }
                most[j] = max(most[j], score[j][i]);
            }
        }
        let all = max(largest, max_of_lanes(most));
        var hidden = vec4<u32>();
        var seen = vec4<u32>();
        for (var j = 0u; j < 4u; j++) {
            seen[j] = max(#{last}[j] + 1u, page * PAGE_POSITIONS) - page * PAGE_POSITIONS;
            hidden[j] = max(first_seen(pos[j]), page * PAGE_POSITIONS) - page * PAGE_POSITIONS;
            let now = all[j];
            let by = exp_near(largest[j] - now);
            total[j] *= by;
            for (var i = 0u; i < QUADS; i++) {
                sums[j][i] *= by;
            }
            for (var i = 0u; i < 8u; i++) {
                let place = across + ACROSS * i;
                var weight = 0.0;
                if (place >= hidden[j] && place < seen[j]) {
                    weight = exp_near(score[j][i] - now);
                }
                total[j] += weight;
                weights[place * QUERIES + down + 8u * j] = weight;
            }
        }
        largest = all;
        add_values(value_page, hidden, seen, &sums);
    }

    total = sum_of_lanes(total);
    for (var j = 0u; j < 4u; j++) {
        let of_sums = query_of(down + 8u * j, first, rows, first_head, heads);
        if (of_sums.there) {
            total[j] += weight_of_sink(kv_head * params.group + of_sums.head, largest[j]);
        }
        for (var i = 0u; i < QUADS; i++) {
            let e = 4u * (across + ACROSS * i);
            if (e < head_dim) {
                for (var part = 0u; part < 4u; part++) {
                    weights[down * head_dim + e + part] = sums[j][i][part] / total[j];
                }
            }
        }
#if rotates
        hadamard();
#else
        workgroupBarrier();
#endif
        for (var at = thread; at < 8u * head_dim; at += THREADS) {
            let query = query_of(at / head_dim + 8u * j, first, rows, first_head, heads);
            if (query.there) {
                var value = weights[at];
#if rotates
                value *= params.cache.shrink * sign_of(at % head_dim);
#endif
                out[element_at(query, kv_head) + at % head_dim] = value;
            }
        }
        workgroupBarrier();
    }
}
