// Attend: out[r] = softmax(scale * q[r] . K) V over the positions of the row's sequence up to its own.
//
// A workgroup owns one row of the step (y), up to 4 query heads of one KV head (x), and a split of the pages (z); values over
// those heads are the four parts of a vector. For each page, thread t has position t: its scores, and their weights relative
// to the largest score so far. Then a thread owns OWN words of the values, over all positions of the page. With
// several splits, (largest score, sum of weights, values) go to `partial`, [rows, x, splits, 2 + head_dim], and
// attend_merge.wgsl merges them. Reads the keys and values of the split once for every 4 heads. Scores that no position
// has are LEAST.
struct Params {
    n_kv_heads: u32,
    head_dim: u32,
    words: u32,
    // Query heads of one KV head, and workgroups for them.
    group: u32,
    tiles: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> q: array<f32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read> values: array<u32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;
@group(0) @binding(6) var<storage, read_write> partial: array<vec4<f32>>;

const LEAST: f32 = -3.0e38;

// [head_dim], of the heads that there are; padded to whole words.
var<workgroup> query: array<vec4<f32>, 256>;
var<workgroup> weight: array<vec4<f32>, PAGE_POSITIONS>;

fn max4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return max(a, b);
}

fn sum4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return a + b;
}

fn exp4(x: vec4<f32>) -> vec4<f32> {
    return vec4(exp_near(x.x), exp_near(x.y), exp_near(x.z), exp_near(x.w));
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let r = workgroup.y;
    let row = step_row(r);
    let kv_head = workgroup.x / params.tiles;
    let first_head = workgroup.x % params.tiles * 4u;
    let heads = min(params.group - first_head, 4u);
    let head_at = (r * params.n_kv_heads + kv_head) * params.group + first_head;

    for (var e = thread; e < params.words * WORD_ELEMS; e += THREADS) {
        var of_heads = vec4(0.0);
        if (e < params.head_dim) {
            for (var h = 0u; h < heads; h++) {
                of_heads[h] = q[(head_at + h) * params.head_dim + e] * params.scale;
            }
        }
        query[e] = of_heads;
    }
    workgroupBarrier();

    let n_positions = row.pos + 1u;
    let n_pages = (n_positions + PAGE_POSITIONS - 1u) / PAGE_POSITIONS;
    let a_split = (n_pages + workgroups.z - 1u) / workgroups.z;
    let end = min((workgroup.z + 1u) * a_split, n_pages);
    var largest = vec4(LEAST);
    var sum = vec4(0.0);
    var of_words: array<array<vec4<f32>, 2>, OWN>;
    for (var page = workgroup.z * a_split; page < end; page++) {
        let pos = page * PAGE_POSITIONS;
        let n = min(n_positions - pos, PAGE_POSITIONS);
        let page_at = (page_of(row.seq, pos) * params.n_kv_heads + kv_head) * PAGE_POSITIONS * params.words;
        var score = vec4(LEAST);
        if (thread < n) {
            score = vec4(0.0);
            let key_at = page_at + thread * params.words;
            for (var word = 0u; word < params.words; word++) {
                let key = elems_of(keys[key_at + word]);
                score += query[WORD_ELEMS * word] * key.x;
                if (WORD_ELEMS == 2u) {
                    score += query[WORD_ELEMS * word + 1u] * key.y;
                }
            }
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
            of_words[i][0] *= by;
            of_words[i][1] *= by;
            let word = thread + i * THREADS;
            if (word < params.words) {
                for (var p = 0u; p < n; p++) {
                    let value = elems_of(values[page_at + p * params.words + word]);
                    of_words[i][0] += weight[p] * value.x;
                    of_words[i][1] += weight[p] * value.y;
                }
            }
        }
        workgroupBarrier();
    }

    let part_at = ((r * workgroups.x + workgroup.x) * workgroups.z + workgroup.z) * (2u + params.head_dim);
    if (workgroups.z > 1u && thread == 0u) {
        partial[part_at] = largest;
        partial[part_at + 1u] = sum;
    }
    for (var i = 0u; i < OWN; i++) {
        for (var of_word = 0u; of_word < WORD_ELEMS; of_word++) {
            let e = (thread + i * THREADS) * WORD_ELEMS + of_word;
            if (e >= params.head_dim) {
                continue;
            }
            if (workgroups.z > 1u) {
                partial[part_at + 2u + e] = of_words[i][of_word];
            } else {
                let value = of_words[i][of_word] / sum;
                for (var h = 0u; h < heads; h++) {
                    out[(head_at + h) * params.head_dim + e] = value[h];
                }
            }
        }
    }
}
