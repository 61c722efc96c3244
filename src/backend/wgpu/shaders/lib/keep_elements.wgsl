// Keeps a head as elements.
fn keep(of_v: bool, kv_head: u32, row: Row) {
    let at = page_to_write(row, kv_head);
    let place = row.pos % PAGE_POSITIONS;
    for (var word = thread; word < params.side.words; word += THREADS) {
        let e = SIDE_WORD_ELEMS * word;
        var second = 0.0;
        if (e + 1u < params.cache.head_dim) {
            second = head[e + 1u];
        }
        let bits = word_of(head[e], second);
        if (of_v) {
            values[at + place * params.side.words + word] = bits;
        } else {
            keys[at + word * PAGE_POSITIONS + place] = bits;
        }
    }
}
