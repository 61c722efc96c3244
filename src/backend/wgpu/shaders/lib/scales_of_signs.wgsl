// The norm of a vector, and the length of what its codes leave over.
fn side_scales_of(at: u32, place: u32) -> vec2<f32> {
    return unpack2x16float(sides[at + params.side.scales_at + place]);
}

// Of the codes.
fn side_scale_of(at: u32, place: u32, chunk: u32) -> f32 {
    return side_scales_of(at, place).x;
}
