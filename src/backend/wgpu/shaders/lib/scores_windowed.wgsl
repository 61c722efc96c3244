fn scores(source: PageAt, place: u32, with_mean: vec4<f32>) -> vec4<f32> {
    if (source.exact) {
        return element_scores(source.at, place);
    }
    return code_scores(source.at, place) + with_mean;
}
