// A part of a weight: rows first_row .. first_row + rows of it.
struct Matrix {
    rows: u32,
    first_row: u32,
    chunks: u32,
    // The tensor's own factor, which I2_S alone has.
    scale: f32,
}
