// Whole numbers of 8 bits, 4 a word.
const SIDE_BITS: u32 = 8u;

// Codes that lie in the same words, and which words these are.
const SIDE_RUN: u32 = 4u;

fn side_words_of(run: u32) -> vec2<u32> {
    return vec2(run);
}

fn side_code_in(words: vec2<u32>, i: u32) -> u32 {
    return words.x >> (8u * (i % 4u)) & 255u;
}

fn side_number_of(code: u32) -> f32 {
    return f32(bitcast<i32>(code << 24u) >> 24u);
}
