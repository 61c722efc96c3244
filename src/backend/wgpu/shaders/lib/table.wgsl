// Values of the 4-bit codes in TABLE: signed bytes, 4 per word.
fn of_table(codes: u32) -> vec4<f32> {
    let code = unpack4xU8(codes);
    return vec4(value_of(code.x), value_of(code.y), value_of(code.z), value_of(code.w));
}

fn value_of(code: u32) -> f32 {
    let four = TABLE[code / 4u];
    return f32(extractBits(bitcast<i32>(four), 8u * (code % 4u), 8u));
}
