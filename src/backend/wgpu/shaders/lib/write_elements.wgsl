// All that a float holds.
const LARGEST: f32 = 3.4028234e38;

fn page_to_write(row: Row, kv_head: u32) -> u32 {
    return side_page_at(row.seq, row.pos / PAGE_POSITIONS, kv_head);
}
