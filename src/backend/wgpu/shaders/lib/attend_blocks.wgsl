// How attention reads a cache of blocks.
const HAS_MEAN: bool = false;

fn mean_at(seq: u32, kv_head: u32) -> u32 {
    return 0u;
}

fn value_pair(source: PageAt, place: u32, pair: u32) -> vec2<f32> {
    return code_pair(source.at, place, pair);
}

fn key_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    return code_quad(source.at, place, quad, false);
}

fn value_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    return code_quad(source.at, place, quad, true);
}
