// How attention reads a cache of elements.
const HAS_MEAN: bool = false;

fn prepare() {}

fn mean_at(seq: u32, kv_head: u32) -> u32 {
    return 0u;
}

fn value_pair(source: PageAt, place: u32, pair: u32) -> vec2<f32> {
    return element_pair(source.at, place, pair);
}

fn key_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    return vec4(key_pair(source.at, place, 2u * quad), key_pair(source.at, place, 2u * quad + 1u));
}

fn value_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    return vec4(element_pair(source.at, place, 2u * quad), element_pair(source.at, place, 2u * quad + 1u));
}
