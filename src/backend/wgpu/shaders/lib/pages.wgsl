fn side_page_at(seq: u32, page: u32, kv_head: u32) -> u32 {
    return (page_of(seq, page * PAGE_POSITIONS) * params.cache.n_kv_heads + kv_head) * params.side.page_words;
}
