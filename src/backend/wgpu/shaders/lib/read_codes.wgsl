// Codes as attention reads them.

// The words of one position that have the codes from element e on.
fn side_code_words(at: u32, place: u32, e: u32) -> vec2<u32> {
    let words = params.side.code_words;
    let first = e / CHUNK * SIDE_BITS + side_words_of(e % CHUNK / SIDE_RUN);
    return vec2(sides[at + side_word(first.x, place, words)], sides[at + side_word(first.y, place, words)]);
}

// Elements 2 pair and 2 pair + 1.
fn side_code_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let words = side_code_words(at, place, 2u * pair);
    let i = 2u * pair % CHUNK;
    let numbers = vec2(side_number_of(side_code_in(words, i)), side_number_of(side_code_in(words, i + 1u)));
    return numbers * side_scale_of(at, place, 2u * pair / CHUNK);
}

// Four neighbouring elements, which lie in the same words.
fn side_code_quad(at: u32, place: u32, quad: u32) -> vec4<f32> {
    let words = side_code_words(at, place, 4u * quad);
    let i = 4u * quad % CHUNK;
    let numbers = vec4(
        side_number_of(side_code_in(words, i)),
        side_number_of(side_code_in(words, i + 1u)),
        side_number_of(side_code_in(words, i + 2u)),
        side_number_of(side_code_in(words, i + 3u)),
    );
    return numbers * side_scale_of(at, place, 4u * quad / CHUNK);
}
