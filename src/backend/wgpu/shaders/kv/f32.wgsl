// F32: keys and values unchanged. A word is one element.
const #{SIDE}_WORD_ELEMS: u32 = 1u;

fn #{side}_elems_of(word: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(word), 0.0);
}

#if writes
fn word_of(a: f32, b: f32) -> u32 {
    return bitcast<u32>(a);
}
#endif
