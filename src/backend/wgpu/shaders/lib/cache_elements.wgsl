// A cache of elements.

// All that a float holds.
const LARGEST: f32 = 3.4028234e38;

fn page_to_read(row: Row, page: u32, kv_head: u32) -> PageAt {
    return PageAt(page_at(row.seq, page, kv_head), true);
}

fn page_to_write(row: Row, kv_head: u32) -> u32 {
    return page_at(row.seq, row.pos / PAGE_POSITIONS, kv_head);
}
