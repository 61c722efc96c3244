// A KV cache, as kv.rs says how it lies.
//
// A kernel sets `sides`, the names of the sides of the cache in its parameters. Functions of a side begin
// with its name, as `key_page_at`. So do those of a codec's file in kv/, for `side` (and `SIDE`, in
// constants); its encoder is there if the kernel sets `writes`.
//
// A kernel that rotates vectors sets `vector`, the workgroup memory that has them one behind the other, and
// `vectors`, how many.
struct Cache {
    n_kv_heads: u32,
    head_dim: u32,
    // First pages that stay exact, and newest ones besides the row's own.
    sink_pages: u32,
    newest_pages: u32,
    // 1 / sqrt(head_dim)
    shrink: f32,
    // The factor of the product of projected elements with signs.
    sign_factor: f32,
    // Where the tables of its pages begin, in words behind the first tables: a cache that keeps a sliding
    // window has pages of its own.
    tables: u32,
    // Of the rotation, a bit an element.
    signs: array<vec4<u32>, 2>,
    // The same of the projection.
    projection: array<vec4<u32>, 2>,
}

// Its keys or its values.
struct Side {
    // Words of a vector of elements; of exact pages, if the cache is windowed.
    words: u32,
    // Words of a page of one head.
    page_words: u32,
    // Words of a vector of codes.
    code_words: u32,
    // Where scales begin in a page of codes.
    scales_at: u32,
    // Where exact pages begin, and words of an exact page of one head.
    exact_at: u32,
    exact_words: u32,
    // Where the means of keys begin.
    means_at: u32,
    // Lloyd-Max: the borders between codes of positive elements, the first of which is 0; what codes stand
    // for.
    borders: array<vec4<f32>, 2>,
    numbers: array<vec4<f32>, 4>,
}

const MAX_HEAD_DIM: u32 = 256u;
// Elements of a chunk of codes, which lie in as many words as a code has bits.
const CHUNK: u32 = 32u;
const NO_PAGE: u32 = 0xffffffffu;

// Where a page of one head lies.
struct PageAt {
    at: u32,
    exact: bool,
}

#for side in sides|default([])
fn #{side}_page_at(seq: u32, page: u32, kv_head: u32) -> u32 {
    return (page_of(params.cache.tables, seq, page * PAGE_POSITIONS) * params.cache.n_kv_heads + kv_head)
        * params.#{side}.page_words;
}

// An exact page, of a windowed side.
fn #{side}_exact_at(exact: u32, kv_head: u32) -> u32 {
    return params.#{side}.exact_at
        + (exact * params.cache.n_kv_heads + kv_head) * params.#{side}.exact_words;
}

// The mean of the keys of a sequence.
fn #{side}_mean_at(seq: u32, kv_head: u32) -> u32 {
    return params.#{side}.means_at
        + (exact_page_of(seq, 0u) * params.cache.n_kv_heads + kv_head) * params.cache.head_dim;
}

#endfor
#if vector is defined
// How many vectors are rotated at a time.
const VECTORS: u32 = #{vectors}u;

// TurboQuant's rotation of VECTORS vectors in `#{vector}`, less the signs: y = H D x / sqrt(n), D the signs
// and H Hadamard's matrix in its natural order. The sums are those of ggml-types/src/turboquant/rotate.rs, in
// its order.
fn hadamard() {
    let n = params.cache.head_dim;
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

// Of the rotation: 1 or -1.
fn sign_of(e: u32) -> f32 {
    return sign_in(params.cache.signs[e / 128u][e / 32u % 4u], e);
}

// Of the projection of what codes leave over.
fn projected_sign_of(e: u32) -> f32 {
    return sign_in(params.cache.projection[e / 128u][e / 32u % 4u], e);
}

fn sign_in(word: u32, e: u32) -> f32 {
    return 1.0 - 2.0 * f32((word >> (e % 32u)) & 1u);
}
#endif
