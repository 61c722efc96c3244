fn side_pair(source: PageAt, place: u32, pair: u32) -> vec2<f32> {
    if (source.exact) {
        return side_element_pair(source.at, place, pair);
    }
    return side_code_pair(source.at, place, pair);
}

fn side_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    if (source.exact) {
        return side_element_quad(source.at, place, quad);
    }
    return side_code_quad(source.at, place, quad);
}
