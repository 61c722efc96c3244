// A KV cache, as kv.rs says how it lies.
struct Cache {
    n_kv_heads: u32,
    head_dim: u32,
    // Words of a vector of elements; in exact pages, where there are such.
    words: u32,
    // Words of a page of one head.
    page_words: u32,
    // Words of a vector of codes.
    code_words: u32,
    // Where scales begin in a page of codes.
    scales_at: u32,
    // Where exact pages begin, and words of one of one head.
    exact_at: u32,
    exact_words: u32,
    // Where the means of keys begin.
    means_at: u32,
    // First pages that stay exact, and newest ones besides the row's own.
    sink_pages: u32,
    newest_pages: u32,
    // 1 / sqrt(head_dim)
    shrink: f32,
    // Of the rotation, a bit an element.
    signs: array<vec4<u32>, 2>,
    // Lloyd-Max: the borders between codes of positive elements, the first of which is 0; what codes stand for.
    borders: array<vec4<f32>, 2>,
    values: array<vec4<f32>, 4>,
}

const MAX_HEAD_DIM: u32 = 256u;

// Where a page of one head lies.
struct PageAt {
    at: u32,
    exact: bool,
}

fn page_at(seq: u32, page: u32, kv_head: u32) -> u32 {
    return (page_of(seq, page * PAGE_POSITIONS) * params.cache.n_kv_heads + kv_head) * params.cache.page_words;
}
