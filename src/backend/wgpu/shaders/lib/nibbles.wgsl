// Blocks of 32 4-bit codes in 16 bytes: byte b holds element b in its low nibble and b + 16 in its high
// nibble. A chunk is a block.
const CHUNK_QUADS: u32 = 8u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 8u * chunk + i;
}

// The four codes of the i-th quad, one byte each.
fn nibbles(bits: vec4<u32>, i: u32) -> u32 {
    return (bits[i % 4u] >> (i / 4u * 4u)) & 0x0f0f0f0fu;
}

// The four bits of the i-th quad, one byte each, from a word with one bit per element.
fn bits_of_quad(word: u32, i: u32) -> u32 {
    let four = word >> (4u * i);
    return (four & 1u) | ((four & 2u) << 7u) | ((four & 4u) << 14u) | ((four & 8u) << 21u);
}
