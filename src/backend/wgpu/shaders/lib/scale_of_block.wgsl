// The scale of a chunk.
const SIDE_SCALE_A_CHUNK: bool = true;

fn side_scale_of(at: u32, place: u32, chunk: u32) -> f32 {
    let word = sides[at + params.side.scales_at + chunk / 2u * PAGE_POSITIONS + place];
    return unpack2x16float(word)[chunk % 2u];
}
