// Codes of 3 bits: of a chunk of 32, the low two bits of 16 codes in each of the first two words, and the top bits in the third.
const SIDE_BITS: u32 = 3u;

// Codes that lie in the same words, and which words these are.
const SIDE_RUN: u32 = 16u;

fn side_words_of(run: u32) -> vec2<u32> {
    return vec2(run, 2u);
}

fn side_code_in(words: vec2<u32>, i: u32) -> u32 {
    return (words.x >> (2u * (i % 16u)) & 3u) | (words.y >> i & 1u) << 2u;
}
