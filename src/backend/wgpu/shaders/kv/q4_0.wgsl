// Codes are 8 more than what they stand for.
fn side_number_of(code: u32) -> f32 {
    return f32(code) - 8.0;
}
