// F16: keys and values as f16. A word holds two neighbouring elements, the first in the low bits.
const #{SIDE}_WORD_ELEMS: u32 = 2u;

fn #{side}_elems_of(word: u32) -> vec2<f32> {
    return unpack2x16float(word);
}

#if writes
fn word_of(a: f32, b: f32) -> u32 {
    return half_bits(a) | (half_bits(b) << 16u);
}
#endif
