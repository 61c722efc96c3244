// What a query multiplies a key with: its elements, and then those of its projection.
const KEY_PARTS: u32 = 2u;

fn part_of_query(query: Query, kv_head: u32, quad: u32) -> vec4<f32> {
    let quads = params.cache.head_dim / 4u;
    if (quad < quads) {
        return quad_of_query(query, kv_head, quad);
    }
    if (!query.there) {
        return vec4(0.0);
    }
    let at = element_at(query, kv_head) + 4u * (quad - quads);
    return vec4(projected[at], projected[at + 1u], projected[at + 2u], projected[at + 3u]) * params.scale;
}
