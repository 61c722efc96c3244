// A KV cache; kv.rs documents the layout.
//
// A kernel sets `sides`, the names of the cache sides in its parameters. Functions of a side begin with its
// name, such as `key_page_at`. So do those of a codec's file in kv/, with `side` (and `SIDE`, in constants);
// its encoder is included if the kernel sets `writes`.
//
// A kernel that rotates vectors sets `vector`, the workgroup memory that holds them one after another,
// `vectors`, their number, and `vector_elems` if they do not have head_dim elements.
struct Cache {
    n_kv_heads: u32,
    head_dim: u32,
    // First pages that stay exact, and newest pages in addition to the row's own.
    sink_pages: u32,
    newest_pages: u32,
    // 1 / sqrt(head_dim)
    shrink: f32,
    // Factor of the product of projected elements and signs.
    sign_factor: f32,
    // Offset of the cache's page tables in words, relative to the first tables: a cache with a sliding window
    // has pages of its own.
    tables: u32,
    // Signs of the rotation, one bit per element.
    signs: array<vec4<u32>, 2>,
    // Signs of the projection, one bit per element.
    projection: array<vec4<u32>, 2>,
}

// The keys or the values of a cache.
struct Side {
    // Words of a vector of elements; of exact pages, if the cache is windowed.
    words: u32,
    // Words of a page of one head.
    page_words: u32,
    // Words of a vector of codes.
    code_words: u32,
    // Offset of the scales in a page of codes.
    scales_at: u32,
    // Offset of the exact pages, and words of an exact page of one head.
    exact_at: u32,
    exact_words: u32,
    // Offset of the means of pages of keys, and words of a mean of one head.
    means_at: u32,
    mean_words: u32,
    // Lloyd-Max: the thresholds between codes of positive elements, the first of which is 0; the values of
    // the codes.
    borders: array<vec4<f32>, 2>,
    numbers: array<vec4<f32>, 4>,
    // Keys in two groups: the values of the second group's codes, and the threshold between those of positive
    // elements.
    second_numbers: vec4<f32>,
    second_border: f32,
    // Their logarithmic scales: a scale, and its code for each group.
    scale_unit: f32,
    scale_ones: vec2<u32>,
}

const MAX_HEAD_DIM: u32 = #{most_head_dim|default(256)}u;
// Elements of a chunk of codes, which takes as many words as a code has bits.
const CHUNK: u32 = 32u;
const NO_PAGE: u32 = 0xffffffffu;

// Location of a page of one head.
struct PageAt {
    at: u32,
    exact: bool,
}

#for side in sides|default([])
fn #{side}_page_at(seq: u32, page: u32, kv_head: u32) -> u32 {
    return (page_of(params.cache.tables, seq, page * PAGE_POSITIONS) * params.cache.n_kv_heads + kv_head)
        * params.#{side}.page_words;
}

// Offset of an exact page, on a windowed side.
fn #{side}_exact_at(exact: u32, kv_head: u32) -> u32 {
    return params.#{side}.exact_at
        + (exact * params.cache.n_kv_heads + kv_head) * params.#{side}.exact_words;
}

// Offset of the mean of a page of keys: head_dim int8, then their f16 scale
// (ggml-types/src/turboquant/mean.rs).
fn #{side}_mean_at(seq: u32, page: u32, kv_head: u32) -> u32 {
    let number = page_of(params.cache.tables, seq, page * PAGE_POSITIONS);
    return params.#{side}.means_at
        + (number * params.cache.n_kv_heads + kv_head) * params.#{side}.mean_words;
}

#endfor
#if vector is defined
// Vectors that are rotated at a time.
const VECTORS: u32 = #{vectors}u;

// TurboQuant's rotation of VECTORS vectors in `#{vector}`, without the signs: y = H D x / sqrt(n), D the
// signs and H Hadamard's matrix in its natural order. The additions are those of
// ggml-types/src/turboquant/rotate.rs, in the same order.
fn hadamard() {
    let n = #{vector_elems|default("params.cache.head_dim")};
    for (var half = 1u; half < n; half *= 2u) {
        workgroupBarrier();
        for (var i = thread; i < VECTORS * n / 2u; i += THREADS) {
            let low = i / half * 2u * half + i % half;
            let a = #{vector}[low];
            let b = #{vector}[low + half];
            #{vector}[low] = a + b;
            #{vector}[low + half] = a - b;
        }
    }
    workgroupBarrier();
}

// Sign of the rotation: 1 or -1.
fn sign_of(e: u32) -> f32 {
    return sign_in(params.cache.signs[e / 128u][e / 32u % 4u], e);
}

// Sign of the projection of the residual.
fn projected_sign_of(e: u32) -> f32 {
    return sign_in(params.cache.projection[e / 128u][e / 32u % 4u], e);
}

fn sign_in(word: u32, e: u32) -> f32 {
    return 1.0 - 2.0 * f32((word >> (e % 32u)) & 1u);
}
#endif
