fn scores(source: PageAt, place: u32, with_mean: vec4<f32>) -> vec4<f32> {
    return code_scores(source.at, place);
}
