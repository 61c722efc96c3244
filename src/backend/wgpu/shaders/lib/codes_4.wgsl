// Codes of 4 bits, 8 a word.
const SIDE_BITS: u32 = 4u;

// Codes that lie in the same words, and which words these are.
const SIDE_RUN: u32 = 8u;

fn side_words_of(run: u32) -> vec2<u32> {
    return vec2(run);
}

fn side_code_in(words: vec2<u32>, i: u32) -> u32 {
    return words.x >> (4u * (i % 8u)) & 15u;
}
