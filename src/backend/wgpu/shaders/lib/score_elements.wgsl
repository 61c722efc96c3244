// Scores of elements with the queries of `of_heads`.
fn element_scores(at: u32, place: u32) -> vec4<f32> {
    var score = vec4(0.0);
    for (var word = 0u; word < params.keys.words; word++) {
        let key = key_elems_of(keys[at + word * PAGE_POSITIONS + place]);
        score += of_heads[KEY_WORD_ELEMS * word] * key.x;
        if (KEY_WORD_ELEMS == 2u) {
            score += of_heads[KEY_WORD_ELEMS * word + 1u] * key.y;
        }
    }
    return score;
}
