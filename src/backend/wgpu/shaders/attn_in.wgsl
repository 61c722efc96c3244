// AttnIn, after the products: q[r] = t(pos) * rope(q_norm(q)); kv[seq, pos] = (rope(k_norm(k)), v_norm(v)).
//
// A workgroup owns one head (x: those of q, then of k, then of v) of one row of the step (y); if keys and
// values have different codecs, one dispatch handles q and k, and another one v. Heads are rotated
// (randomised Hadamard) if the codec requires it, or brought into the basis of their KV head: scaled, divided
// into two groups, and rotated as two vectors (ggml-types/src/turboquant/basis.rs). Values that the codec
// cannot represent are clamped and counted. Writes to the page of the row's position, the exact one if the
// cache is windowed; reads the cosines and sines of that position, or of the place of the row in an image.
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#set sides = ["side"]
#if codec.rotates
#set vector = "head"
#set vectors = 2 if codec.in_basis else 1
#endif
#if codec.in_basis
#set vector_elems = "params.cache.head_dim / 2u"
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/norm.wgsl"
#include "lib/cache.wgsl"

struct Params {
    q_norm: Norm,
    k_norm: Norm,
    v_norm: Norm,
    cache: Cache,
    side: Side,
    n_heads: u32,
    // Offset of v in `fresh`.
    v_at: u32,
    // Pairs of elements that RoPE rotates; 0 without RoPE.
    pairs: u32,
    adjacent: u32,
    // First head of the dispatch.
    first: u32,
    // Queries are multiplied by 1 + q_factor * ln(1 + pos / q_period), unless q_period is 0.
    q_factor: f32,
    q_period: u32,
    // 1 if the norms of queries and keys are applied after RoPE.
    norm_after: u32,
    // 1 / sqrt(elements that are rotated together)
    shrink: f32,
    // Index of the bases of the KV heads in constants.
    bases: u32,
    // Offset of the queries' products in `fresh`, or ABSENT if they are in `q`.
    q_from: u32,
    // Index of the axes of the pairs in the table, or ABSENT if positions have a single axis.
    axes: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
// [positions, 2 pairs]: cosines, then sines; after them the axis of each pair, if positions have several.
@group(0) @binding(3) var<storage, read> rope_table: array<f32>;
// k and v of the step's rows, [rows, n_kv_heads * head_dim] each.
@group(0) @binding(4) var<storage, read> fresh: array<f32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys: array<u32>;
@group(0) @binding(7) var<storage, read_write> values: array<u32>;
@group(0) @binding(8) var<storage, read_write> clamped: atomic<u32>;

var<workgroup> head: array<f32, MAX_HEAD_DIM>;
#if codec.rotates
// 1 if an element of the head was clamped.
var<workgroup> is_clamped: atomic<u32>;
#endif

fn source(i: u32) -> f32 {
    return head[i];
}

// Element e of the head of row r of the step after RoPE.
fn rope(e: u32, r: u32, row_pos: u32) -> f32 {
    if (e >= 2u * params.pairs) {
        return head[e];
    }
    var pair = e % params.pairs;
    var second = e >= params.pairs;
    var a = pair;
    var b = pair + params.pairs;
    if (params.adjacent == 1u) {
        pair = e / 2u;
        second = e % 2u == 1u;
        a = 2u * pair;
        b = a + 1u;
    }
    var pos = row_pos;
    if (params.axes != ABSENT) {
        pos = row_place(r, u32(rope_table[params.axes + pair]));
    }
    let cosine = rope_table[pos * 2u * params.pairs + pair];
    let sine = rope_table[pos * 2u * params.pairs + params.pairs + pair];
    if (second) {
        return head[a] * sine + head[b] * cosine;
    }
    return head[a] * cosine - head[b] * sine;
}

fn norm_head(norm: Norm) {
    let of_head = norm_of(norm, params.cache.head_dim);
    for (var e = thread; e < params.cache.head_dim; e += THREADS) {
        head[e] = normed(norm, of_head, head[e], e);
    }
    workgroupBarrier();
}

// x, clamped to the range of the codec; 0 for NaN and infinities. Tests the bits, because compilers may
// assume that there are no NaNs.
fn within_codec(x: f32) -> f32 {
    if ((bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u) {
        return 0.0;
    }
    return clamp(x, -LARGEST, LARGEST);
}

#if codec.in_basis
// Scales and orders the elements of a head, and applies the signs of the rotation. The basis of a KV head is
// [3, head_dim]: the element at each place, the factors of keys, and those of queries, with the signs.
fn enter_basis(at: u32, of_q: bool) {
    let head_dim = params.cache.head_dim;
    let kv_head = select(at, at * params.cache.n_kv_heads / params.n_heads, of_q);
    let basis = params.bases + 3u * kv_head * head_dim;
    var mine: array<f32, MAX_HEAD_DIM / THREADS>;
    for (var e = thread; e < head_dim; e += THREADS) {
        let factor = constants[basis + select(head_dim, 2u * head_dim, of_q) + e];
        mine[e / THREADS] = head[u32(constants[basis + e])] * factor;
    }
    workgroupBarrier();
    for (var e = thread; e < head_dim; e += THREADS) {
        head[e] = mine[e / THREADS];
    }
}

#endif
fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let r = workgroup.y;
    let row = step_row(r);
    var at = workgroup.x + params.first;
    let of_q = at < params.n_heads;
    if (!of_q) {
        at -= params.n_heads;
    }
    let of_v = !of_q && at >= params.cache.n_kv_heads;
    if (of_v) {
        at -= params.cache.n_kv_heads;
    }
    let q_at = (r * params.n_heads + at) * params.cache.head_dim;
    var fresh_at = (r * params.cache.n_kv_heads + at) * params.cache.head_dim;
    if (of_v) {
        fresh_at += params.v_at;
    }
    for (var e = thread; e < params.cache.head_dim; e += THREADS) {
        if (of_q && params.q_from == ABSENT) {
            head[e] = q[q_at + e];
        } else if (of_q) {
            head[e] = fresh[params.q_from + q_at + e];
        } else {
            head[e] = fresh[fresh_at + e];
        }
    }
    workgroupBarrier();
    var norm = params.k_norm;
    if (of_q) {
        norm = params.q_norm;
    } else if (of_v) {
        norm = params.v_norm;
    }
    let is_after = params.norm_after == 1u && !of_v;
    if (norm.kind != NORM_NONE && !is_after) {
        norm_head(norm);
    }
    if (!of_v && params.pairs > 0u) {
        var mine: array<f32, MAX_HEAD_DIM / THREADS>;
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            mine[e / THREADS] = rope(e, r, row.pos);
        }
        workgroupBarrier();
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            head[e] = mine[e / THREADS];
        }
        workgroupBarrier();
    }
    if (norm.kind != NORM_NONE && is_after) {
        norm_head(norm);
    }
    if (of_q && params.q_period > 0u) {
        let factor = 1.0 + params.q_factor * log(f32(1u + row.pos / params.q_period));
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            head[e] *= factor;
        }
        workgroupBarrier();
    }
#if codec.rotates
    if (thread == 0u) {
        atomicStore(&is_clamped, 0u);
    }
#if codec.in_basis
    enter_basis(at, of_q);
#else
    for (var e = thread; e < params.cache.head_dim; e += THREADS) {
        head[e] *= sign_of(e);
    }
#endif
    hadamard();
    for (var e = thread; e < params.cache.head_dim; e += THREADS) {
        let x = head[e] * params.shrink;
        let kept = within_codec(x);
        head[e] = select(kept, x, of_q);
        if (!of_q && bitcast<u32>(kept) != bitcast<u32>(x)) {
            atomicStore(&is_clamped, 1u);
        }
    }
    workgroupBarrier();
    if (thread == 0u && atomicLoad(&is_clamped) == 1u) {
        atomicAdd(&clamped, 1u);
    }
#endif
    if (of_q) {
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            q[q_at + e] = head[e];
        }
        return;
    }
    keep(of_v, at, row);
}

// Storing of a head with the codec.
#set side = "side"
#set SIDE = "SIDE"
#set writes = true
#if codec.windowed
#include "kv/f16.wgsl"

// Largest f16.
const LARGEST: f32 = 65504.0;

fn page_to_write(row: Row, kv_head: u32) -> u32 {
    return side_exact_at(exact_page_of(row.seq, row.pos / PAGE_POSITIONS), kv_head);
}
#else
#include codec.file

#if codec.form == "blocks"
// Elements up to this have a block scale that f16 can represent (ggml-types/src/kv/q8_0.rs).
const LARGEST: f32 = 262016.0;
#else
// Largest f32.
const LARGEST: f32 = 3.4028234e38;
#endif

fn page_to_write(row: Row, kv_head: u32) -> u32 {
    return side_page_at(row.seq, row.pos / PAGE_POSITIONS, kv_head);
}
#endif

#if codec.form == "blocks"
// Blocks of 32 codes with a scale each; one thread per block.
var<workgroup> block_scale: array<u32, MAX_HEAD_DIM / 32u>;

fn keep(of_v: bool, kv_head: u32, row: Row) {
    let at = page_to_write(row, kv_head);
    let place = row.pos % PAGE_POSITIONS;
    let blocks = params.cache.head_dim / CHUNK;
    if (thread < blocks) {
        let scale = scale_of_block(thread * CHUNK);
        let by = inverse_of(scale);
        var words = array<u32, SIDE_BITS>();
        for (var i = 0u; i < CHUNK; i++) {
            put_code(&words, i, code_for(head[thread * CHUNK + i] * by));
        }
        for (var i = 0u; i < SIDE_BITS; i++) {
            let word = thread * SIDE_BITS + i;
            if (of_v) {
                values[at + place * params.side.code_words + word] = words[i];
            } else {
                keys[at + word * PAGE_POSITIONS + place] = words[i];
            }
        }
        block_scale[thread] = half_bits(scale);
    }
    workgroupBarrier();
    if (2u * thread < blocks) {
        var bits = block_scale[2u * thread];
        if (2u * thread + 1u < blocks) {
            bits |= block_scale[2u * thread + 1u] << 16u;
        }
        let scale_at = at + params.side.scales_at + thread * PAGE_POSITIONS + place;
        if (of_v) {
            values[scale_at] = bits;
        } else {
            keys[scale_at] = bits;
        }
    }
}

// 1 / scale, or 0 for a scale of 0.
fn inverse_of(scale: f32) -> f32 {
    if (scale == 0.0) {
        return 0.0;
    }
    return divide_rounded(1.0, scale);
}
#else
fn keep(of_v: bool, kv_head: u32, row: Row) {
    let at = page_to_write(row, kv_head);
    let place = row.pos % PAGE_POSITIONS;
    for (var word = thread; word < params.side.words; word += THREADS) {
        let e = SIDE_WORD_ELEMS * word;
        var second = 0.0;
        if (e + 1u < params.cache.head_dim) {
            second = head[e + 1u];
        }
        let bits = word_of(head[e], second);
        if (of_v) {
            values[at + place * params.side.words + word] = bits;
        } else {
            keys[at + word * PAGE_POSITIONS + place] = bits;
        }
    }
}
#endif
