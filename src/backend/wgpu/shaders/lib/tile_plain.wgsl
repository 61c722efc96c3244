// What a query multiplies a key with: its elements.
const KEY_PARTS: u32 = 1u;

fn part_of_query(query: Query, kv_head: u32, quad: u32) -> vec4<f32> {
    return quad_of_query(query, kv_head, quad);
}
