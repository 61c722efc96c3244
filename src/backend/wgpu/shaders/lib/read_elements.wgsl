// Elements as attention reads them. Of a pair, 2 pair and 2 pair + 1, the second is anything where the head has no such element.
fn element_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let first = at + place * params.cache.words;
    let word = elems_of(values[first + 2u / WORD_ELEMS * pair]);
    if (WORD_ELEMS == 2u) {
        return word;
    }
    return vec2(word.x, elems_of(values[first + second_word(pair)]).x);
}

fn key_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let word = elems_of(keys[at + 2u / WORD_ELEMS * pair * PAGE_POSITIONS + place]);
    if (WORD_ELEMS == 2u) {
        return word;
    }
    return vec2(word.x, elems_of(keys[at + second_word(pair) * PAGE_POSITIONS + place]).x);
}

// Where a word is one element.
fn second_word(pair: u32) -> u32 {
    return min(2u * pair + 1u, params.cache.words - 1u);
}
