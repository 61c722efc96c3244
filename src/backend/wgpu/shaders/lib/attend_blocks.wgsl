const HAS_MEAN: bool = false;

fn mean_at(seq: u32, kv_head: u32) -> u32 {
    return 0u;
}

fn scores(source: PageAt, place: u32, with_mean: vec4<f32>) -> vec4<f32> {
    return code_scores(source.at, place);
}

fn value_pair(source: PageAt, place: u32, pair: u32) -> vec2<f32> {
    return code_pair(source.at, place, pair);
}
