// Exact pages, where positions of a windowed side are written.
fn side_exact_at(exact: u32, kv_head: u32) -> u32 {
    return params.side.exact_at + (exact * params.cache.n_kv_heads + kv_head) * params.side.exact_words;
}

// The mean of the keys of a sequence.
fn side_mean_at(seq: u32, kv_head: u32) -> u32 {
    return params.side.means_at + (exact_page_of(seq, 0u) * params.cache.n_kv_heads + kv_head) * params.cache.head_dim;
}
