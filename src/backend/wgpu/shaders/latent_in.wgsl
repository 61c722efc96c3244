// LatentIn, after the products: the tail of q[r][h] = rope(t); kv[seq, pos] = (norm(c) | rope(t)). The other
// elements of queries are products of head_proj.
//
// A workgroup owns one query head (x), or the key (the last x), of one row of the step (y). Writes to the
// page of the row's position; reads the cosines and sines of that position.
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#set sides = ["side"]
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/norm.wgsl"
#include "lib/cache.wgsl"

struct Params {
    norm: Norm,
    cache: Cache,
    side: Side,
    n_heads: u32,
    // Elements of the latent vector, which precede the rotated ones.
    rank: u32,
    // Elements of a head's product, and of its part before the rotated ones.
    part: u32,
    plain: u32,
    // Offset of the heads' products in `fresh`.
    parts_at: u32,
    // Pairs of elements that RoPE rotates.
    pairs: u32,
    adjacent: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
// [positions, 2 pairs]: cosines, then sines.
@group(0) @binding(3) var<storage, read> rope_table: array<f32>;
// Keys of the step's rows, [rows, head_dim], and at `parts_at` the heads' products, [rows, n_heads * part].
@group(0) @binding(4) var<storage, read> fresh: array<f32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys: array<u32>;

#set side = "side"
#set SIDE = "SIDE"
#set writes = true
#include codec.file

var<private> source_at: u32;

fn source(i: u32) -> f32 {
    return fresh[source_at + i];
}

// Element e after RoPE of the vector that begins `first` elements after the source.
fn rotated(first: u32, e: u32, pos: u32) -> f32 {
    if (e >= 2u * params.pairs) {
        return source(first + e);
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
    let cosine = rope_table[pos * 2u * params.pairs + pair];
    let sine = rope_table[pos * 2u * params.pairs + params.pairs + pair];
    if (second) {
        return source(first + a) * sine + source(first + b) * cosine;
    }
    return source(first + a) * cosine - source(first + b) * sine;
}

// Element e of the key.
fn key_element(of_row: vec2<f32>, e: u32, pos: u32) -> f32 {
    if (e < params.rank) {
        return normed(params.norm, of_row, source(e), e);
    }
    if (e < params.cache.head_dim) {
        return rotated(params.rank, e - params.rank, pos);
    }
    return 0.0;
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let r = workgroup.y;
    let row = step_row(r);
    let head_dim = params.cache.head_dim;
    if (workgroup.x < params.n_heads) {
        let head = r * params.n_heads + workgroup.x;
        source_at = params.parts_at + head * params.part + params.plain;
        for (var e = thread; e < head_dim - params.rank; e += THREADS) {
            q[head * head_dim + params.rank + e] = rotated(0u, e, row.pos);
        }
        return;
    }
    source_at = r * head_dim;
    let of_row = norm_of(params.norm, params.rank);
    let at = side_page_at(row.seq, row.pos / PAGE_POSITIONS, 0u) + row.pos % PAGE_POSITIONS;
    for (var word = thread; word < params.side.words; word += THREADS) {
        let e = SIDE_WORD_ELEMS * word;
        let first = key_element(of_row, e, row.pos);
        var second = 0.0;
        if (SIDE_WORD_ELEMS == 2u) {
            second = key_element(of_row, e + 1u, row.pos);
        }
        keys[at + word * PAGE_POSITIONS] = word_of(first, second);
    }
}
