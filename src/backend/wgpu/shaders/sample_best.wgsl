// Sample, first half: best[o, x] = the largest candidate among every n-th stretch of a row of logits, n = workgroups of x.
//
// A workgroup owns these stretches (x) of one row of logits (y). Reads the logits once.
struct Params {
    n_vocab: u32,
    blocks: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> logits: array<u32>;
@group(0) @binding(3) var<storage, read_write> best: array<vec2<u32>>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    var mine = vec2(0u);
    for (var id = workgroup.x * THREADS + thread; id < params.n_vocab; id += workgroups.x * THREADS) {
        mine = larger(mine, candidate(logits[workgroup.y * params.n_vocab + id], id));
    }
    mine = reduce_best(mine);
    if (thread == 0u) {
        best[workgroup.y * params.blocks + workgroup.x] = mine;
    }
}
