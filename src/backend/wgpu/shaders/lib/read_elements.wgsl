// Elements as attention reads them. Of a pair, 2 pair and 2 pair + 1, the second is anything where the head has no such element.
fn side_element_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let words = params.side.words;
    let word = side_elems_of(sides[at + side_word(2u / SIDE_WORD_ELEMS * pair, place, words)]);
    if (SIDE_WORD_ELEMS == 2u) {
        return word;
    }
    let second = min(2u * pair + 1u, words - 1u);
    return vec2(word.x, side_elems_of(sides[at + side_word(second, place, words)]).x);
}

fn side_element_quad(at: u32, place: u32, quad: u32) -> vec4<f32> {
    return vec4(side_element_pair(at, place, 2u * quad), side_element_pair(at, place, 2u * quad + 1u));
}
