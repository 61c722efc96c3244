// Keys and values as halves: a word is two neighbouring elements, the first in the low bits.
const SIDE_WORD_ELEMS: u32 = 2u;

fn side_elems_of(word: u32) -> vec2<f32> {
    return unpack2x16float(word);
}
