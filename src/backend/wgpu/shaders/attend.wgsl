// Attend: out[r] = softmax(scale * q[r] . K) V over the positions of the row's sequence up to its own.
//
// A workgroup owns one row of the step (y), up to 4 query heads of one KV head (x), and a split of the pages (z); values over
// those heads are the four parts of a vector. For each page, thread t has position t: its scores, and their weights relative
// to the largest score so far. Then a thread owns OWN pairs of elements, over all positions of the page. With
// several splits, (largest score, sum of weights, values) go to `partial`, [rows, x, splits, 2 + head_dim], and
// attend_merge.wgsl merges them. Reads the keys and values of the split once for every 4 heads, codes as they lie: each is
// looked up, and the product with the mean of the keys is the same for all positions. Queries come turned (attn_in.wgsl), and the
// output is turned back.
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read> values: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> partial: array<vec4<f32>>;

var<workgroup> weight: array<vec4<f32>, PAGE_POSITIONS>;

fn max4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return max(a, b);
}

fn sum4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return a + b;
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let row = step_row(workgroup.y);
    let heads = heads_of(workgroup);
    let head_dim = params.cache.head_dim;

    for (var e = thread; e < head_dim + head_dim % 2u; e += THREADS) {
        var query = vec4(0.0);
        if (e < head_dim) {
            for (var h = 0u; h < heads.n; h++) {
                query[h] = q[(heads.at + h) * head_dim + e] * params.scale;
            }
        }
        of_heads[e] = query;
    }
    key_prepare();
    value_prepare();
    bring_projected(heads);
    workgroupBarrier();

    let n_positions = row.pos + 1u;
    let n_pages = (n_positions + PAGE_POSITIONS - 1u) / PAGE_POSITIONS;
    var with_mean = vec4(0.0);
    if (HAS_MEAN) {
        // A sequence whose first page is not full has no mean, and no codes that would want one.
        if (n_positions > PAGE_POSITIONS) {
            let mean_at = key_mean_at(row.seq, heads.kv_head);
            for (var e = thread; e < head_dim; e += THREADS) {
                with_mean += of_heads[e] * bitcast<f32>(keys[mean_at + e]);
            }
        }
        with_mean = reduce_sum4(with_mean);
    }
    let a_split = (n_pages + workgroups.z - 1u) / workgroups.z;
    let end = min((workgroup.z + 1u) * a_split, n_pages);
    var largest = vec4(LEAST);
    var sum = vec4(0.0);
    var of_pairs: array<array<vec4<f32>, 2>, OWN>;
    for (var page = workgroup.z * a_split; page < end; page++) {
        let n = min(n_positions - page * PAGE_POSITIONS, PAGE_POSITIONS);
        let key_page = key_page_to_read(row, page, heads.kv_head);
        let value_page = value_page_to_read(row, page, heads.kv_head);
        var score = vec4(LEAST);
        if (thread < n) {
            score = scores(key_page, thread, with_mean);
        }
        let now = max(largest, reduce_max4(score));
        let by = exp4(largest - now);
        var mine = vec4(0.0);
        if (thread < n) {
            mine = exp4(score - now);
        }
        weight[thread] = mine;
        sum = sum * by + reduce_sum4(mine);
        largest = now;
        for (var i = 0u; i < OWN; i++) {
            of_pairs[i][0] *= by;
            of_pairs[i][1] *= by;
            let pair = thread + i * THREADS;
            if (2u * pair < head_dim) {
                for (var p = 0u; p < n; p++) {
                    let value = value_pair(value_page, p, pair);
                    of_pairs[i][0] += weight[p] * value.x;
                    of_pairs[i][1] += weight[p] * value.y;
                }
            }
        }
        workgroupBarrier();
    }

    let part_at = ((workgroup.y * workgroups.x + workgroup.x) * workgroups.z + workgroup.z) * (2u + head_dim);
    if (workgroups.z > 1u && thread == 0u) {
        partial[part_at] = largest;
        partial[part_at + 1u] = sum;
    }
    for (var i = 0u; i < OWN; i++) {
        for (var of_pair = 0u; of_pair < 2u; of_pair++) {
            let e = (thread + i * THREADS) * 2u + of_pair;
            if (e < head_dim) {
                if (workgroups.z > 1u) {
                    partial[part_at + 2u + e] = of_pairs[i][of_pair];
                } else {
                    of_heads[e] = of_pairs[i][of_pair] / sum;
                }
            }
        }
    }
    if (workgroups.z == 1u) {
        put_heads(heads, thread, THREADS);
    }
}
