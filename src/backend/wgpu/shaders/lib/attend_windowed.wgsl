// How attention reads a windowed cache.
const HAS_MEAN: bool = true;

fn value_pair(source: PageAt, place: u32, pair: u32) -> vec2<f32> {
    if (source.exact) {
        return element_pair(source.at, place, pair);
    }
    return code_pair(source.at, place, pair);
}

fn key_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    if (source.exact) {
        return vec4(key_pair(source.at, place, 2u * quad), key_pair(source.at, place, 2u * quad + 1u));
    }
    return code_quad(source.at, place, quad, false);
}

fn value_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    if (source.exact) {
        return vec4(element_pair(source.at, place, 2u * quad), element_pair(source.at, place, 2u * quad + 1u));
    }
    return code_quad(source.at, place, quad, true);
}
