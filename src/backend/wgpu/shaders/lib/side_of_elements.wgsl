// A side of elements.
fn side_prepare() {}

fn side_page_to_read(row: Row, page: u32, kv_head: u32) -> PageAt {
    return PageAt(side_page_at(row.seq, page, kv_head), true);
}

fn side_pair(source: PageAt, place: u32, pair: u32) -> vec2<f32> {
    return side_element_pair(source.at, place, pair);
}

fn side_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
    return side_element_quad(source.at, place, quad);
}
