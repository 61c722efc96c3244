// Project: S q for every query head of the step, for keys with signs; S applies signs and then Hadamard's
// matrix. The result includes the factor of the product with signs. Queries are already rotated
// (attn_in.wgsl).
//
// A workgroup owns one head (x) of one row of the step (y).
#set vector = "head"
#set vectors = 1
#include "lib/main.wgsl"
#include "lib/cache.wgsl"

struct Params {
    cache: Cache,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> q: array<f32>;
// [rows, n_heads * head_dim], like q.
@group(0) @binding(3) var<storage, read_write> projected: array<f32>;

var<workgroup> head: array<f32, MAX_HEAD_DIM>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let at = (workgroup.y * workgroups.x + workgroup.x) * params.cache.head_dim;
    for (var e = thread; e < params.cache.head_dim; e += THREADS) {
        head[e] = q[at + e] * projected_sign_of(e);
    }
    hadamard();
    for (var e = thread; e < params.cache.head_dim; e += THREADS) {
        projected[at + e] = head[e] * params.cache.sign_factor;
    }
}
