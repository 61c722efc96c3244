// Keys of codes and signs. Behind the quads of their elements, keys of a coded page have as many of their signs, which meet the projected query.
fn side_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    if (source.exact) {
        return side_element_quad(source.at, place, quad);
    }
    let quads = params.cache.head_dim / 4u;
    if (quad < quads) {
        return side_code_quad(source.at, place, quad);
    }
    let e = 4u * (quad - quads);
    let signs = side_code_words(source.at, place, e).y >> (e % CHUNK);
    let ones = vec4<f32>((vec4(signs) >> vec4(0u, 1u, 2u, 3u)) & vec4(1u));
    return (2.0 * ones - 1.0) * side_scales_of(source.at, place).y;
}
