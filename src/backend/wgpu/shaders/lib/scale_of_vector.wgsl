// The scale of a vector; it belongs to all of its chunks.
const SCALE_A_CHUNK: bool = false;

fn scale_of(at: u32, place: u32, chunk: u32, of_v: bool) -> f32 {
    let word = at + params.cache.scales_at + place / 2u;
    return unpack2x16float(select_word(word, of_v))[place % 2u];
}
