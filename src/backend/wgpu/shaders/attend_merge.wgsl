// Attend, where a row's positions were split: out = sum(values) / sum(weights), each split relative to the largest score.
//
// A workgroup owns a part of the elements (z) of one row of the step (y) and up to 4 query heads of one KV head (x); all of them where
// the output is turned back. There are as many workgroups as there are splits, so that the grid is that of attend.wgsl. A split
// without positions has no weight.
@group(0) @binding(2) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let parts = select(workgroups.z, 1u, ROTATES);
    if (workgroup.z >= parts) {
        return;
    }
    let splits = workgroups.z;
    let part_len = 2u + params.cache.head_dim;
    let parts_at = (workgroup.y * workgroups.x + workgroup.x) * splits * part_len;
    var largest = vec4(LEAST);
    for (var split = 0u; split < splits; split++) {
        largest = max(largest, partial[parts_at + split * part_len]);
    }
    let first = workgroup.z * THREADS + thread;
    for (var e = first; e < params.cache.head_dim; e += parts * THREADS) {
        var sum = vec4(0.0);
        var value = vec4(0.0);
        for (var split = 0u; split < splits; split++) {
            let part = parts_at + split * part_len;
            let by = exp4(partial[part] - largest);
            sum += by * partial[part + 1u];
            value += by * partial[part + 2u + e];
        }
        of_heads[e] = value / sum;
    }
    put_heads(heads_of(workgroup), first, parts * THREADS);
}
