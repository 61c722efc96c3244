// A cache of blocks, which are encoded when they are written.

// A block of elements up to this has a scale that a half can hold (ggml-types/src/kv/q8_0.rs).
const LARGEST: f32 = 262016.0;

fn page_to_read(row: Row, page: u32, kv_head: u32) -> PageAt {
    return PageAt(page_at(row.seq, page, kv_head), false);
}

fn page_to_write(row: Row, kv_head: u32) -> u32 {
    return page_at(row.seq, row.pos / PAGE_POSITIONS, kv_head);
}
