// Codes as attention reads them: `of_heads` holds queries.
fn select_word(at: u32, of_v: bool) -> u32 {
    if (of_v) {
        return values[at];
    }
    return keys[at];
}

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

// Elements 2 pair and 2 pair + 1 of a value.
fn code_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let chunk = 2u * pair / CHUNK;
    let i = 2u * pair % CHUNK;
    let first = at + place * params.cache.code_words + chunk * BITS;
    let in_chunk = words_of(i / RUN);
    let words = vec2(values[first + in_chunk.x], values[first + in_chunk.y]);
    let pair_of_codes = vec2(value_of(code_in(words, i)), value_of(code_in(words, i + 1u)));
    return pair_of_codes * scale_of(at, place, chunk, true);
}
