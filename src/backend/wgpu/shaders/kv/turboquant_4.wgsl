// Codes of 4 bits, 8 a word.
const BITS: u32 = 4u;

// Codes that lie in the same words, and which words these are.
const RUN: u32 = 8u;

fn words_of(run: u32) -> vec2<u32> {
    return vec2(run);
}

fn code_in(words: vec2<u32>, i: u32) -> u32 {
    return words.x >> (4u * (i % 8u)) & 15u;
}

fn put_code(words: ptr<function, array<u32, BITS>>, i: u32, code: u32) {
    (*words)[i / 8u] |= code << (4u * (i % 8u));
}
