// Codes as attention reads them.
fn select_word(at: u32, of_v: bool) -> u32 {
    if (of_v) {
        return values[at];
    }
    return keys[at];
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

// Four neighbouring elements of a key or a value, which lie in the same words.
fn code_quad(at: u32, place: u32, quad: u32, of_v: bool) -> vec4<f32> {
    let chunk = 4u * quad / CHUNK;
    let i = 4u * quad % CHUNK;
    let in_chunk = chunk * BITS + words_of(i / RUN);
    var word_at = in_chunk * PAGE_POSITIONS + place;
    if (of_v) {
        word_at = place * params.cache.code_words + in_chunk;
    }
    let words = vec2(select_word(at + word_at.x, of_v), select_word(at + word_at.y, of_v));
    let codes = vec4(
        value_of(code_in(words, i)),
        value_of(code_in(words, i + 1u)),
        value_of(code_in(words, i + 2u)),
        value_of(code_in(words, i + 3u)),
    );
    return codes * scale_of(at, place, chunk, of_v);
}
