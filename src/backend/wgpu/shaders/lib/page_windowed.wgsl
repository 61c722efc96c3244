// A windowed side: exact pages, or codes of what has left the window. Which of the two a row reads follows from its position alone
// (src/program/step.rs).
fn side_page_to_read(row: Row, page: u32, kv_head: u32) -> PageAt {
    let full = (row.pos + 1u) / PAGE_POSITIONS;
    let window = max(full, params.cache.newest_pages) - params.cache.newest_pages;
    if (page < params.cache.sink_pages || page >= window) {
        let exact = exact_page_of(row.seq, page);
        if (exact != NO_PAGE) {
            return PageAt(side_exact_at(exact, kv_head), true);
        }
    }
    return PageAt(side_page_at(row.seq, page, kv_head), false);
}
