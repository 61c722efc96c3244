// Scores of codes with the queries of `of_heads`.
fn code_scores(at: u32, place: u32) -> vec4<f32> {
    var score = vec4(0.0);
    for (var chunk = 0u; chunk < params.cache.head_dim / CHUNK; chunk++) {
        let first = at + chunk * BITS * PAGE_POSITIONS + place;
        var of_chunk = vec4(0.0);
        for (var run = 0u; run < CHUNK / RUN; run++) {
            let in_chunk = words_of(run) * PAGE_POSITIONS;
            let words = vec2(keys[first + in_chunk.x], keys[first + in_chunk.y]);
            for (var i = run * RUN; i < (run + 1u) * RUN; i++) {
                of_chunk += of_heads[chunk * CHUNK + i] * value_of(code_in(words, i));
            }
        }
        if (SCALE_A_CHUNK) {
            of_chunk *= scale_of(at, place, chunk, false);
        }
        score += of_chunk;
    }
    if (!SCALE_A_CHUNK) {
        score *= scale_of(at, place, 0u, false);
    }
    return score;
}
