// What Q4_K and Q5_K have in common: blocks of 256 elements in 8 groups of 32, whose 6-bit scales and
// minimums lie packed in 12 bytes behind two halves, the scale of the scales and that of the minimums. Codes
// have 4 low bits in 32 bytes for each pair of groups, the even group in the low halves. A chunk is such a
// pair.
const CHUNK_QUADS: u32 = 16u;

// Quad (4 neighbouring columns) of the row that the i-th of a chunk is.
fn place(chunk: u32, i: u32) -> u32 {
    return 16u * chunk + i;
}

// x = scale, y = minimum of a group.
fn scale_and_min(header: vec4<u32>, group: u32) -> vec2<f32> {
    let packed = (header.yzw >> vec3(8u * (group % 4u))) & vec3(255u);
    var six = packed.xy & vec2(63u);
    if (group >= 4u) {
        six = vec2(packed.z & 15u, packed.z >> 4u) | ((packed.xy >> vec2(6u)) << vec2(4u));
    }
    return unpack2x16float(header.x) * vec2<f32>(six);
}
