// Keys and values as they are: a word is one element.
const SIDE_WORD_ELEMS: u32 = 1u;

fn side_elems_of(word: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(word), 0.0);
}
