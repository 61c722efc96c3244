// Weights as points of a codebook, with one scale per block of 256. A chunk is a group of 32.
//
// The codebook precedes the planes of a part, 16 bits per point: one code per weight from the low bits up
// (ggml-types/src/codebooks.rs). A value is scale x factor x integer, and that product is exact in f32.
const CHUNK_QUADS: u32 = 8u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 8u * chunk + i;
}

// The codes of a point.
fn point(i: u32) -> u32 {
    return (word_at(0u, i / 2u) >> (16u * (i % 2u))) & 0xffffu;
}

// The i-th byte after vector `base` of the part; `short_at` is the i-th 16 bits.
fn byte_at(base: u32, i: u32) -> u32 {
    return (word_at(base, i / 4u) >> (8u * (i % 4u))) & 255u;
}

fn short_at(base: u32, i: u32) -> u32 {
    return (word_at(base, i / 2u) >> (16u * (i % 2u))) & 0xffffu;
}

// Vectors of 16 bytes that a plane takes.
fn vectors(bytes: u32) -> u32 {
    return (bytes + 15u) / 16u;
}

// Four codes of two bits, or of four, from the low bits up.
fn codes_of_two_bits(codes: u32) -> vec4<u32> {
    return (vec4(codes) >> vec4(0u, 2u, 4u, 6u)) & vec4(3u);
}

fn codes_of_four_bits(codes: u32) -> vec4<u32> {
    return (vec4(codes) >> vec4(0u, 4u, 8u, 12u)) & vec4(15u);
}

// Values of the codes of the 2-bit types: 8, 25 and 43.
fn magnitudes(codes: u32) -> vec4<f32> {
    let code = codes_of_two_bits(codes);
    return vec4<f32>(8u + 17u * code + (code >> vec4(1u)));
}

// -1 for each of the four lowest bits that is set, else 1.
fn signs_of(minuses: u32) -> vec4<f32> {
    return 1.0 - 2.0 * vec4<f32>((vec4(minuses) >> vec4(0u, 1u, 2u, 3u)) & vec4(1u));
}

// Eight signs from seven: the last one makes the number of minuses even.
fn even(seven: u32) -> u32 {
    let low = seven & 127u;
    return low | ((countOneBits(low) & 1u) << 7u);
}
