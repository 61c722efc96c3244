// Q8_0: int8, 4 per word.
const #{SIDE}_BITS: u32 = 8u;

// Codes that share the words of a run, and the indices of these words in the chunk.
const #{SIDE}_RUN: u32 = 4u;

fn #{side}_words_of(run: u32) -> vec2<u32> {
    return vec2(run);
}

fn #{side}_code_in(words: vec2<u32>, i: u32) -> u32 {
    return (words.x >> (8u * (i % 4u))) & 255u;
}

fn #{side}_number_of(code: u32) -> f32 {
    return f32(bitcast<i32>(code << 24u) >> 24u);
}

#if writes
fn put_code(words: ptr<function, array<u32, SIDE_BITS>>, i: u32, code: u32) {
    (*words)[i / 4u] |= code << (8u * (i % 4u));
}

// Rounds halves away from 0.
fn code_for(x: f32) -> u32 {
    return bitcast<u32>(i32(clamp(trunc(x + 0.5 * sign(x)), -128.0, 127.0))) & 255u;
}

// The scale that makes the largest element 127.
fn scale_of_block(first: u32) -> f32 {
    var largest = 0.0;
    for (var i = 0u; i < CHUNK; i++) {
        largest = max(largest, abs(head[first + i]));
    }
    return divide_rounded(largest, 127.0);
}
#endif
