// Keeps a head as blocks of 32 codes and a scale each: a thread a block.
var<workgroup> block_scale: array<u32, MAX_HEAD_DIM / 32u>;

fn keep(of_v: bool, kv_head: u32, row: Row) {
    let at = page_to_write(row, kv_head);
    let place = row.pos % PAGE_POSITIONS;
    let blocks = params.cache.head_dim / CHUNK;
    if (thread < blocks) {
        let scale = scale_of_block(thread * CHUNK);
        let by = inverse_of(scale);
        var words: array<u32, SIDE_BITS>;
        for (var i = 0u; i < CHUNK; i++) {
            put_code(&words, i, code_for(head[thread * CHUNK + i] * by));
        }
        for (var i = 0u; i < SIDE_BITS; i++) {
            let word = thread * SIDE_BITS + i;
            if (of_v) {
                values[at + place * params.side.code_words + word] = words[i];
            } else {
                keys[at + word * PAGE_POSITIONS + place] = words[i];
            }
        }
        block_scale[thread] = half_bits(scale);
    }
    workgroupBarrier();
    if (2u * thread < blocks) {
        var bits = block_scale[2u * thread];
        if (2u * thread + 1u < blocks) {
            bits |= block_scale[2u * thread + 1u] << 16u;
        }
        let scale_at = at + params.side.scales_at + thread * PAGE_POSITIONS + place;
        if (of_v) {
            values[scale_at] = bits;
        } else {
            keys[scale_at] = bits;
        }
    }
}

// The factor of elements that makes them multiples of 1.
fn inverse_of(scale: f32) -> f32 {
    if (scale == 0.0) {
        return 0.0;
    }
    return divide_rounded(1.0, scale);
}
