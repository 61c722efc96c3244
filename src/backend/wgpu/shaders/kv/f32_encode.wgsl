fn word_of(a: f32, b: f32) -> u32 {
    return bitcast<u32>(a);
}
