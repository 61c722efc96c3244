// Of a half.
const LARGEST: f32 = 65504.0;

fn page_to_write(row: Row, kv_head: u32) -> u32 {
    return side_exact_at(exact_page_of(row.seq, row.pos / PAGE_POSITIONS), kv_head);
}
