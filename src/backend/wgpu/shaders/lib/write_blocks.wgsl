// A block of elements up to this has a scale that a half can hold (ggml-types/src/kv/q8_0.rs).
const LARGEST: f32 = 262016.0;

fn page_to_write(row: Row, kv_head: u32) -> u32 {
    return side_page_at(row.seq, row.pos / PAGE_POSITIONS, kv_head);
}
