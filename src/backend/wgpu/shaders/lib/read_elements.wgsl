// Elements as attention reads them: `of_heads` holds queries.
fn element_scores(at: u32, place: u32) -> vec4<f32> {
    var score = vec4(0.0);
    for (var word = 0u; word < params.cache.words; word++) {
        let key = elems_of(keys[at + word * PAGE_POSITIONS + place]);
        score += of_heads[WORD_ELEMS * word] * key.x;
        if (WORD_ELEMS == 2u) {
            score += of_heads[WORD_ELEMS * word + 1u] * key.y;
        }
    }
    return score;
}

// Elements 2 pair and 2 pair + 1 of a value; the second is anything where the head has no such element.
fn element_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let first = at + place * params.cache.words + 2u / WORD_ELEMS * pair;
    let word = elems_of(values[first]);
    if (WORD_ELEMS == 2u) {
        return word;
    }
    let second = min(2u * pair + 1u, params.cache.words - 1u);
    return vec2(word.x, elems_of(values[at + place * params.cache.words + second]).x);
}
