// A windowed cache: positions are written to exact pages, and read from their codes when they have left the window.
// Of a half.
const LARGEST: f32 = 65504.0;
const NO_PAGE: u32 = 0xffffffffu;

fn exact_at(exact: u32, kv_head: u32) -> u32 {
    return params.cache.exact_at + (exact * params.cache.n_kv_heads + kv_head) * params.cache.exact_words;
}

// The mean of the keys of a sequence.
fn mean_at(seq: u32, kv_head: u32) -> u32 {
    return params.cache.means_at + (exact_page_of(seq, 0u) * params.cache.n_kv_heads + kv_head) * params.cache.head_dim;
}

// Which of the two a row reads follows from its position alone (src/program/step.rs).
fn page_to_read(row: Row, page: u32, kv_head: u32) -> PageAt {
    let full = (row.pos + 1u) / PAGE_POSITIONS;
    let window = max(full, params.cache.newest_pages) - params.cache.newest_pages;
    if (page < params.cache.sink_pages || page >= window) {
        let exact = exact_page_of(row.seq, page);
        if (exact != NO_PAGE) {
            return PageAt(exact_at(exact, kv_head), true);
        }
    }
    return PageAt(page_at(row.seq, page, kv_head), false);
}

fn page_to_write(row: Row, kv_head: u32) -> u32 {
    return exact_at(exact_page_of(row.seq, row.pos / PAGE_POSITIONS), kv_head);
}
