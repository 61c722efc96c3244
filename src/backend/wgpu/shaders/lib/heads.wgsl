// What attend.wgsl and attend_merge.wgsl have in common: up to 4 query heads of one KV head, which are the four parts of vectors.
// [head_dim] of the heads that there are.
var<workgroup> of_heads: array<vec4<f32>, MAX_HEAD_DIM>;

// Where the heads of a workgroup begin among the rows' heads, and how many there are.
struct Heads {
    kv_head: u32,
    at: u32,
    n: u32,
}

fn heads_of(workgroup: vec3<u32>) -> Heads {
    let kv_head = workgroup.x / params.tiles;
    let first = workgroup.x % params.tiles * 4u;
    let at = (workgroup.y * params.cache.n_kv_heads + kv_head) * params.group + first;
    return Heads(kv_head, at, min(params.group - first, 4u));
}

fn exp4(x: vec4<f32>) -> vec4<f32> {
    return vec4(exp_near(x.x), exp_near(x.y), exp_near(x.z), exp_near(x.w));
}

// Writes every `stride`th element of the heads from `first` on, which all threads have left in `of_heads`.
fn put_heads(heads: Heads, first: u32, stride: u32) {
    if (ROTATES) {
        hadamard();
    } else {
        workgroupBarrier();
    }
    for (var e = first; e < params.cache.head_dim; e += stride) {
        var value = of_heads[e];
        if (ROTATES) {
            value *= params.cache.shrink * sign_of(e);
        }
        for (var h = 0u; h < heads.n; h++) {
            out[(heads.at + h) * params.cache.head_dim + e] = value[h];
        }
    }
}
