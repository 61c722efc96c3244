// Keys and values as they are: a word is one element.
const WORD_ELEMS: u32 = 1u;

fn word_of(a: f32, b: f32) -> u32 {
    return bitcast<u32>(a);
}

fn elems_of(word: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(word), 0.0);
}
