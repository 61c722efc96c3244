// Attend: out[r] = softmax(cap(scale * q[r] . K)) V over the positions of the row's sequence up to its own,
// or the last of these within its window; in an encoder or an image, also over some later positions.
//
// A workgroup owns one row of the step (y), up to 4 query heads of one KV head (x), and a split of the pages
// (z); values of those heads are the four components of a vector. For each page, thread t owns position t:
// its scores, and their weights relative to the largest score so far. Then a thread owns OWN pairs of
// elements, over all positions of the page. With several splits, (largest score, sum of weights, values) go
// to `partial`, [rows, x, splits, 2 + head_dim], and a second kernel, also in this file (`merges`), merges
// them. Reads the keys and values of the split once per 4 heads. Codes are not dequantised to memory: each is
// looked up, and the product with the mean of a page's keys is the same for all its positions. Queries are
// already rotated (attn_in.wgsl), and the output is rotated back. In `latent` attention keys are also the
// values, and `values` is not used.
#if not merges
#set reduce = [("reduce_max4", "vec4<f32>", "max4"), ("reduce_sum4", "vec4<f32>", "sum4")]
#endif
#if rotates
#set vector = "of_heads"
#set vectors = 1
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/attention.wgsl"

// [head_dim] of the heads of the workgroup: first the queries, at the end the output.
var<workgroup> of_heads: array<vec4<f32>, MAX_HEAD_DIM>;

// KV head of a workgroup, index of its first query head among those of all rows, and number of query heads.
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

// The weights of the heads' sinks, relative to their largest scores.
fn weights_of_sinks(heads: Heads, largest: vec4<f32>) -> vec4<f32> {
    let first = heads.at % (params.cache.n_kv_heads * params.group);
    var weights = vec4(0.0);
    for (var h = 0u; h < heads.n; h++) {
        weights[h] = weight_of_sink(first + h, largest[h]);
    }
    return weights;
}

// Writes every `stride`th element of the heads from `first` on, out of `of_heads`, which all threads have
// filled.
fn put_heads(heads: Heads, first: u32, stride: u32) {
#if rotates
    hadamard();
#else
    workgroupBarrier();
#endif
    for (var e = first; e < params.cache.head_dim; e += stride) {
        var value = of_heads[e];
#if rotates
        value *= params.cache.shrink * sign_of(e);
#endif
        for (var h = 0u; h < heads.n; h++) {
            out[(heads.at + h) * params.cache.head_dim + e] = value[h];
        }
    }
}

#if not merges
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> q: array<f32>;
@group(0) @binding(4) var<storage, read> keys: array<u32>;
@group(0) @binding(5) var<storage, read> values: array<u32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> partial: array<vec4<f32>>;

const OWN: u32 = #{own}u;

// Positions whose values are loaded at a time.
const AT_ONCE: u32 = #{n_at_once}u;

var<workgroup> weight: array<vec4<f32>, PAGE_POSITIONS>;

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
#if k.windowed
    key_prepare();
#endif
#if v.windowed
    value_prepare();
#endif
#if k.form == "signs"
    bring_projected(heads);
#endif
    workgroupBarrier();

#if of_encoder
    let n_positions = last_seen(row.pos, workgroup.y) + 1u;
#else
    let n_positions = row.pos + 1u;
#endif
    let n_pages = (n_positions + PAGE_POSITIONS - 1u) / PAGE_POSITIONS;
    let first_pos = first_seen(row.pos);
    let first_page = first_pos / PAGE_POSITIONS;
    let a_split = (n_pages - first_page + workgroups.z - 1u) / workgroups.z;
    let end = min(first_page + (workgroup.z + 1u) * a_split, n_pages);
    var largest = vec4(LEAST);
    var sum = vec4(0.0);
    var of_pairs: array<array<vec4<f32>, 2>, OWN>;
    for (var page = first_page + workgroup.z * a_split; page < end; page++) {
        let page_at = page * PAGE_POSITIONS;
        let start = max(first_pos, page_at) - page_at;
        let n = min(n_positions - page_at, PAGE_POSITIONS);
        let is_seen = thread >= start && thread < n;
        let key_page = key_page_to_read(row, page, heads.kv_head);
#if not latent
        let value_page = value_page_to_read(row, page, heads.kv_head);
#endif
        var with_mean = vec4(0.0);
#if k.windowed
        if (!key_page.exact) {
            let mean_at = key_mean_at(row.seq, page, heads.kv_head);
            for (var quad = thread; quad < head_dim / 4u; quad += THREADS) {
                let mean = key_mean_quad(mean_at, quad);
                for (var i = 0u; i < 4u; i++) {
                    with_mean += of_heads[4u * quad + i] * mean[i];
                }
            }
            with_mean = reduce_sum4(with_mean);
        }
#endif
        var score = vec4(LEAST);
        if (is_seen) {
            score = scores(key_page, thread, with_mean);
            score = vec4(capped(score.x), capped(score.y), capped(score.z), capped(score.w));
        }
        let now = max(largest, reduce_max4(score));
        let by = exp4(largest - now);
        var mine = vec4(0.0);
        if (is_seen) {
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
                // Positions that are not seen have weight 0; a seen one is read in their place.
                for (var p = start / AT_ONCE * AT_ONCE; p < n; p += AT_ONCE) {
#for j in at_once
#if latent
                    let value_#{j} = key_pair(key_page, clamp(p + #{j}u, start, n - 1u), pair);
#else
                    let value_#{j} = value_pair(value_page, clamp(p + #{j}u, start, n - 1u), pair);
#endif
#endfor
#for j in at_once
                    of_pairs[i][0] += weight[p + #{j}u] * value_#{j}.x;
                    of_pairs[i][1] += weight[p + #{j}u] * value_#{j}.y;
#endfor
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
    let total = sum + weights_of_sinks(heads, largest);
    for (var i = 0u; i < OWN; i++) {
        for (var of_pair = 0u; of_pair < 2u; of_pair++) {
            let e = (thread + i * THREADS) * 2u + of_pair;
            if (e < head_dim) {
                if (workgroups.z > 1u) {
                    partial[part_at + 2u + e] = of_pairs[i][of_pair];
                } else {
                    of_heads[e] = of_pairs[i][of_pair] / total;
                }
            }
        }
    }
    if (workgroups.z == 1u) {
        put_heads(heads, thread, THREADS);
    }
}

// The scores of a position of a page with the queries in `of_heads`; with_mean is the score of the mean of
// the page's keys.
fn scores(source: PageAt, place: u32, with_mean: vec4<f32>) -> vec4<f32> {
#if k.form == "elements"
    return element_scores(source.at, place);
#elif k.form == "blocks"
    return code_scores(source.at, place);
#else
    if (source.exact) {
        return element_scores(source.at, place);
    }
    return code_scores(source.at, place) + with_mean;
#endif
}

#if k.windowed or k.form == "elements"
fn element_scores(at: u32, place: u32) -> vec4<f32> {
    var score = vec4(0.0);
    // 16 words are loaded at a time.
    let whole = params.key.words / 16u * 16u;
    for (var word = 0u; word < whole; word += 16u) {
        let first = at + word * PAGE_POSITIONS + place;
#for i in key_words
        let key_#{i} = keys[first + #{i}u * PAGE_POSITIONS];
#endfor
#for i in key_words
        score = add_key(score, word + #{i}u, key_#{i});
#endfor
    }
    for (var word = whole; word < params.key.words; word++) {
        score = add_key(score, word, keys[at + word * PAGE_POSITIONS + place]);
    }
    return score;
}

// Adds the products of the elements of a word.
fn add_key(score: vec4<f32>, word: u32, bits: u32) -> vec4<f32> {
    let key = key_elems_of(bits);
    let sum = score + of_heads[KEY_WORD_ELEMS * word] * key.x;
    if (KEY_WORD_ELEMS == 2u) {
        return sum + of_heads[KEY_WORD_ELEMS * word + 1u] * key.y;
    }
    return sum;
}

#endif
#if k.form == "signs"
// [n_rows, n_heads * head_dim]: queries projected by project.wgsl, to be multiplied by the signs of keys.
@group(0) @binding(8) var<storage, read> projected: array<f32>;

var<workgroup> of_projected: array<vec4<f32>, MAX_HEAD_DIM>;

fn bring_projected(heads: Heads) {
    for (var e = thread; e < params.cache.head_dim; e += THREADS) {
        var query = vec4(0.0);
        for (var h = 0u; h < heads.n; h++) {
            query[h] = projected[(heads.at + h) * params.cache.head_dim + e] * params.scale;
        }
        of_projected[e] = query;
    }
}

fn code_scores(at: u32, place: u32) -> vec4<f32> {
    var of_codes = vec4(0.0);
    var of_signs = vec4(0.0);
    for (var chunk = 0u; chunk < params.cache.head_dim / CHUNK; chunk++) {
        let first = at + chunk * KEY_BITS * PAGE_POSITIONS + place;
        for (var run = 0u; run < CHUNK / KEY_RUN; run++) {
            let in_chunk = key_words_of(run) * PAGE_POSITIONS;
            let words = vec2(keys[first + in_chunk.x], keys[first + in_chunk.y]);
            for (var i = run * KEY_RUN; i < (run + 1u) * KEY_RUN; i++) {
                of_codes += of_heads[chunk * CHUNK + i] * key_number_of(key_code_in(words, i));
                let query = of_projected[chunk * CHUNK + i];
                of_signs += select(-query, query, ((words.y >> i) & 1u) == 1u);
            }
        }
    }
    let scales = key_scales_of(at, place);
    return of_codes * scales.x + of_signs * scales.y;
}
#elif k.form == "split"
fn code_scores(at: u32, place: u32) -> vec4<f32> {
    let n = params.cache.head_dim / 2u;
    let scales = key_scales_of(at, place);
    var score = vec4(0.0);
    for (var group = 0u; group < 2u; group++) {
        var of_group = vec4(0.0);
        let per_word = 32u / key_bits_of(group);
        for (var first = 0u; first < n; first += per_word) {
            let word = keys[at + key_word_of(group, first) * PAGE_POSITIONS + place];
            for (var i = 0u; i < per_word; i++) {
                let number = key_number_of(group, key_code_in(word, group, i));
                of_group += of_heads[group * n + first + i] * number;
            }
        }
        score += of_group * scales[group];
    }
    return score;
}
#elif k.form == "trellis_split"
fn code_scores(at: u32, place: u32) -> vec4<f32> {
    let n = params.cache.head_dim / 2u;
    let scales = key_scales_of(at, place);
    var score = vec4(0.0);
#for trellis in k.trellises
    {
        let first_at = at + #{loop.index0}u * (n / 8u) * PAGE_POSITIONS + place;
        var before = keys[first_at + (n * #{trellis.bits}u / 32u - 1u) * PAGE_POSITIONS];
        var of_group = vec4(0.0);
        for (var word = 0u; word < n * #{trellis.bits}u / 32u; word++) {
            let bits = keys[first_at + word * PAGE_POSITIONS];
            let query = #{loop.index0}u * n + word * #{32 // trellis.bits}u;
            for (var i = 0u; i < #{32 // trellis.bits}u; i++) {
                let window = key_bits_of(before, bits, 32u - #{trellis.bits}u * (i + 1u));
                let number = key_number_of(#{trellis.first}u + (window & #{trellis.windows - 1}u));
                of_group += of_heads[query + i] * number;
            }
            before = bits;
        }
        score += of_group * scales[#{loop.index0}];
    }
#endfor
    return score;
}
#elif k.form != "elements"
fn code_scores(at: u32, place: u32) -> vec4<f32> {
    var score = vec4(0.0);
    for (var chunk = 0u; chunk < params.cache.head_dim / CHUNK; chunk++) {
        let first = at + chunk * KEY_BITS * PAGE_POSITIONS + place;
        var of_chunk = vec4(0.0);
        for (var run = 0u; run < CHUNK / KEY_RUN; run++) {
            let in_chunk = key_words_of(run) * PAGE_POSITIONS;
            let words = vec2(keys[first + in_chunk.x], keys[first + in_chunk.y]);
            for (var i = run * KEY_RUN; i < (run + 1u) * KEY_RUN; i++) {
                of_chunk += of_heads[chunk * CHUNK + i] * key_number_of(key_code_in(words, i));
            }
        }
#if k.form == "blocks"
        of_chunk *= key_scale_of(at, place, chunk);
#endif
        score += of_chunk;
    }
#if k.form != "blocks"
    score *= key_scale_of(at, place, 0u);
#endif
    return score;
}
#endif
#else
// The second kernel: out = sum(values) / sum(weights), each split relative to the largest score. A split
// without positions has weight 0.
//
// A workgroup owns a part of the elements (z) of one row of the step (y) and up to 4 query heads of one KV
// head (x); all elements if the output is rotated back. The grid is that of the first kernel, with as many
// parts as splits.
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> partial: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
#if rotates
    let parts = 1u;
#else
    let parts = workgroups.z;
#endif
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
    let heads = heads_of(workgroup);
    let of_sinks = weights_of_sinks(heads, largest);
    let first = workgroup.z * THREADS + thread;
    for (var e = first; e < params.cache.head_dim; e += parts * THREADS) {
        var sum = of_sinks;
        var value = vec4(0.0);
        for (var split = 0u; split < splits; split++) {
            let part = parts_at + split * part_len;
            let by = exp4(partial[part] - largest);
            sum += by * partial[part + 1u];
            value += by * partial[part + 2u + e];
        }
        of_heads[e] = value / sum;
    }
    put_heads(heads, first, parts * THREADS);
}
#endif
