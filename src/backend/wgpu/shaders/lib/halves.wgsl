// Blocks of 256 elements in chunks of 64: the elements of one half block (of 128) whose number modulo 32 is
// below 16, or those where it is not. So the bytes of 16 elements are neighbours, and the element 32 further
// is in the same byte at another shift.
const CHUNK_QUADS: u32 = 16u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return chunk / 2u * 32u + i / 4u * 8u + chunk % 2u * 4u + i % 4u;
}
