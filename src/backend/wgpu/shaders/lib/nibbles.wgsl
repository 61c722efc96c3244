// Blocks of 32 codes of 4 bits in 16 bytes: byte b has element b in its low and b + 16 in its high half. A
// chunk is a block.
const CHUNK_QUADS: u32 = 8u;

// Quad (4 neighbouring columns) of the row that the i-th of a chunk is.
fn place(chunk: u32, i: u32) -> u32 {
    return 8u * chunk + i;
}

// The four codes of the i-th quad, a byte each.
fn nibbles(bits: vec4<u32>, i: u32) -> u32 {
    return (bits[i % 4u] >> (i / 4u * 4u)) & 0x0f0f0f0fu;
}

// The four bits of the i-th quad of a word that has a bit for each element, a byte each.
fn bits_of_quad(word: u32, i: u32) -> u32 {
    let four = word >> (4u * i);
    return (four & 1u) | ((four & 2u) << 7u) | ((four & 4u) << 14u) | ((four & 8u) << 21u);
}
