fn prepare() {}

// The scale of a chunk.
const SCALE_A_CHUNK: bool = true;

fn scale_of(at: u32, place: u32, chunk: u32, of_v: bool) -> f32 {
    let word = at + params.cache.scales_at + chunk / 2u * PAGE_POSITIONS + place;
    return unpack2x16float(select_word(word, of_v))[chunk % 2u];
}
