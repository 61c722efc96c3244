// A KV cache, as kv.rs says how it lies. Pieces with `side_` in their names are there for one side of it at a time: shader.rs puts `key_` or
// `value_` in its place where a kernel has both.
struct Cache {
    n_kv_heads: u32,
    head_dim: u32,
    // First pages that stay exact, and newest ones besides the row's own.
    sink_pages: u32,
    newest_pages: u32,
    // 1 / sqrt(head_dim)
    shrink: f32,
    // What the product of projected elements with signs is to be multiplied with.
    sign_factor: f32,
    // Of the rotation, a bit an element.
    signs: array<vec4<u32>, 2>,
    // The same of the projection.
    projection: array<vec4<u32>, 2>,
}

// Its keys or its values.
struct Side {
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
    // Lloyd-Max: the borders between codes of positive elements, the first of which is 0; what codes stand for.
    borders: array<vec4<f32>, 2>,
    numbers: array<vec4<f32>, 4>,
}

const MAX_HEAD_DIM: u32 = 256u;
const CHUNK: u32 = 32u;
const NO_PAGE: u32 = 0xffffffffu;

// Where a page of one head lies.
struct PageAt {
    at: u32,
    exact: bool,
}
