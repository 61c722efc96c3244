// Scores of codes with the queries of `of_heads`.
fn code_scores(at: u32, place: u32) -> vec4<f32> {
    var score = vec4(0.0);
    for (var chunk = 0u; chunk < params.cache.head_dim / CHUNK; chunk++) {
        let first = at + chunk * KEY_BITS * PAGE_POSITIONS + place;
        var of_chunk = vec4(0.0);
        for (var run = 0u; run < CHUNK / KEY_RUN; run++) {
            let in_chunk = key_words_of(run) * PAGE_POSITIONS;
            let words = vec2(keys[first + in_chunk.x], keys[first + in_chunk.y]);
            for (var i = run * KEY_RUN; i < (run + 1u) * KEY_RUN; i++) {
                of_chunk += of_heads[chunk * CHUNK + i] * key_number_of(key_code_in(words, i));
            }
        }
        if (KEY_SCALE_A_CHUNK) {
            of_chunk *= key_scale_of(at, place, chunk);
        }
        score += of_chunk;
    }
    if (!KEY_SCALE_A_CHUNK) {
        score *= key_scale_of(at, place, 0u);
    }
    return score;
}
