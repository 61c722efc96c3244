// Blocks of 256 elements in chunks of 64: those of one half block (of 128) whose number modulo 32 is below
// 16, or not. So the bytes of 16 elements lie side by side, and 32 elements further is the same byte at
// another shift.
const CHUNK_QUADS: u32 = 16u;

// Quad (4 neighbouring columns) of the row that the i-th of a chunk is.
fn place(chunk: u32, i: u32) -> u32 {
    return chunk / 2u * 32u + i / 4u * 8u + chunk % 2u * 4u + i % 4u;
}
