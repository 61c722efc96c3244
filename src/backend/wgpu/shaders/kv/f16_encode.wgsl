fn word_of(a: f32, b: f32) -> u32 {
    return half_bits(a) | half_bits(b) << 16u;
}
