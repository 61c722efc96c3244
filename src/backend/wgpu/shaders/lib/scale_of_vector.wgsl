// The scale of a vector; it belongs to all of its chunks.
const SIDE_SCALE_A_CHUNK: bool = false;

fn side_scale_of(at: u32, place: u32, chunk: u32) -> f32 {
    return unpack2x16float(sides[at + params.side.scales_at + place / 2u])[place % 2u];
}
