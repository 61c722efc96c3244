// AttnIn, behind the products: q[r] = rope(q_norm(q)); kv[seq, pos] = (rope(k_norm(k)), v).
//
// A workgroup owns one head (x: those of q, then of k, then of v) of one row of the step (y); where keys and values are kept in two ways, a dispatch
// has q and k, and another one v. Heads are rotated at random where the cache wants it, and what it cannot keep then is put right and counted. Writes to the page of the row's position, the exact one where the cache is windowed; reads the turns of that position.
struct Params {
    q_norm: Norm,
    k_norm: Norm,
    cache: Cache,
    side: Side,
    n_heads: u32,
    // Where v begins in `fresh`.
    v_at: u32,
    // 0 where nothing turns.
    pairs: u32,
    adjacent: u32,
    // The first head of the dispatch.
    first: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
// [positions, 2 pairs]: cosines, then sines.
@group(0) @binding(3) var<storage, read> turns: array<f32>;
// k and v of the step's rows, [rows, n_kv_heads * head_dim] each.
@group(0) @binding(4) var<storage, read> fresh: array<f32>;
@group(0) @binding(5) var<storage, read_write> q: array<f32>;
@group(0) @binding(6) var<storage, read_write> keys: array<u32>;
@group(0) @binding(7) var<storage, read_write> values: array<u32>;
@group(0) @binding(8) var<storage, read_write> repaired: atomic<u32>;

var<workgroup> head: array<f32, MAX_HEAD_DIM>;
// Whether something of the head was put right.
var<workgroup> is_other: atomic<u32>;

fn source(i: u32) -> f32 {
    return head[i];
}

// Element e of the head, turned.
fn turned(e: u32, pos: u32) -> f32 {
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
    let cosine = turns[pos * 2u * params.pairs + pair];
    let sine = turns[pos * 2u * params.pairs + params.pairs + pair];
    if (second) {
        return head[a] * sine + head[b] * cosine;
    }
    return head[a] * cosine - head[b] * sine;
}

// x, or 0 where it is no finite number; not beyond what the codec can hold. By its bits, because compilers may think that no number is NaN.
fn to_keep(x: f32) -> f32 {
    if ((bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u) {
        return 0.0;
    }
    return clamp(x, -LARGEST, LARGEST);
}

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
        if (of_q) {
            head[e] = q[q_at + e];
        } else {
            head[e] = fresh[fresh_at + e];
        }
    }
    workgroupBarrier();
    if (!of_v) {
        var norm = params.k_norm;
        if (of_q) {
            norm = params.q_norm;
        }
        if (norm.kind != NORM_NONE) {
            let of_head = norm_of(norm, params.cache.head_dim);
            for (var e = thread; e < params.cache.head_dim; e += THREADS) {
                head[e] = normed(norm, of_head, head[e], e);
            }
            workgroupBarrier();
        }
    }
    if (!of_v && params.pairs > 0u) {
        var mine: array<f32, MAX_HEAD_DIM / THREADS>;
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            mine[e / THREADS] = turned(e, row.pos);
        }
        workgroupBarrier();
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            head[e] = mine[e / THREADS];
        }
        workgroupBarrier();
    }
    if (ROTATES) {
        if (thread == 0u) {
            atomicStore(&is_other, 0u);
        }
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            head[e] *= sign_of(e);
        }
        hadamard();
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            let x = head[e] * params.cache.shrink;
            let kept = to_keep(x);
            head[e] = select(kept, x, of_q);
            if (!of_q && bitcast<u32>(kept) != bitcast<u32>(x)) {
                atomicStore(&is_other, 1u);
            }
        }
        workgroupBarrier();
        if (thread == 0u && atomicLoad(&is_other) == 1u) {
            atomicAdd(&repaired, 1u);
        }
    }
    if (of_q) {
        for (var e = thread; e < params.cache.head_dim; e += THREADS) {
            q[q_at + e] = head[e];
        }
        return;
    }
    keep(of_v, at, row);
}
