// Attend, where a row's positions were split: out = sum(values) / sum(weights), each split relative to the largest score.
//
// A workgroup owns a part of the elements (z) of one row of the step (y) and up to 4 query heads of one KV head (x). There are as
// many parts as there are splits, so that the grid is that of attend.wgsl. A split without positions has no weight.
struct Params {
    n_kv_heads: u32,
    head_dim: u32,
    words: u32,
    group: u32,
    tiles: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

const LEAST: f32 = -3.0e38;

fn exp4(x: vec4<f32>) -> vec4<f32> {
    return vec4(exp_near(x.x), exp_near(x.y), exp_near(x.z), exp_near(x.w));
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let r = workgroup.y;
    let kv_head = workgroup.x / params.tiles;
    let first_head = workgroup.x % params.tiles * 4u;
    let heads = min(params.group - first_head, 4u);
    let head_at = (r * params.n_kv_heads + kv_head) * params.group + first_head;
    let splits = workgroups.z;
    let part_len = 2u + params.head_dim;
    let parts_at = (r * workgroups.x + workgroup.x) * splits * part_len;
    var largest = vec4(LEAST);
    for (var split = 0u; split < splits; split++) {
        largest = max(largest, partial[parts_at + split * part_len]);
    }
    for (var e = workgroup.z * THREADS + thread; e < params.head_dim; e += splits * THREADS) {
        var sum = vec4(0.0);
        var value = vec4(0.0);
        for (var split = 0u; split < splits; split++) {
            let part = parts_at + split * part_len;
            let by = exp4(partial[part] - largest);
            sum += by * partial[part + 1u];
            value += by * partial[part + 2u + e];
        }
        let merged = value / sum;
        for (var h = 0u; h < heads; h++) {
            out[(head_at + h) * params.head_dim + e] = merged[h];
        }
    }
}
