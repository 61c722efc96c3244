// Scores of codes with the queries of `of_heads`, and of signs with their projections.
var<workgroup> of_projected: array<vec4<f32>, MAX_HEAD_DIM>;

fn bring_projected(heads: Heads) {
    for (var e = thread; e < params.cache.head_dim; e += THREADS) {
        var query = vec4(0.0);
        for (var h = 0u; h < heads.n; h++) {
            query[h] = projected[(heads.at + h) * params.cache.head_dim + e] * params.scale;
        }
        of_projected[e] = query;
    }
}

fn code_scores(at: u32, place: u32) -> vec4<f32> {
    var of_codes = vec4(0.0);
    var of_signs = vec4(0.0);
    for (var chunk = 0u; chunk < params.cache.head_dim / CHUNK; chunk++) {
        let first = at + chunk * KEY_BITS * PAGE_POSITIONS + place;
        for (var run = 0u; run < CHUNK / KEY_RUN; run++) {
            let in_chunk = key_words_of(run) * PAGE_POSITIONS;
            let words = vec2(keys[first + in_chunk.x], keys[first + in_chunk.y]);
            for (var i = run * KEY_RUN; i < (run + 1u) * KEY_RUN; i++) {
                of_codes += of_heads[chunk * CHUNK + i] * key_number_of(key_code_in(words, i));
                let query = of_projected[chunk * CHUNK + i];
                of_signs += select(-query, query, (words.y >> i & 1u) == 1u);
            }
        }
    }
    let scales = key_scales_of(at, place);
    return of_codes * scales.x + of_signs * scales.y;
}
