// Shared by Q4_K and Q5_K: blocks of 256 elements in 8 groups of 32. Their 6-bit scales and minimums are
// packed in 12 bytes, after two f16: the scale of the scales and that of the minimums. The 4 low bits of each
// pair of groups take 32 bytes, the even group in the low nibbles. A chunk is such a pair.
const CHUNK_QUADS: u32 = 16u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
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
#if runs

const HAS_MINIMUM = true;
const QUAD_SCALE = 1.0;

// Scales (x, y) and minimums (z, w) of a pair of groups.
fn scales_and_mins(header: vec4<u32>, pair: u32) -> vec4<f32> {
    let packed = header.yzw >> vec3(16u * (pair % 2u));
    let first = packed.xy & vec2(0x3f3fu);
    let high = (packed.xy >> vec2(2u)) & vec2(0x3030u);
    let last = (vec2(packed.z, packed.z >> 4u) & vec2(0x0f0fu)) | high;
    let six = select(first, last, pair >= 2u);
    let line = unpack2x16float(header.x);
    return vec4(line.x * vec2<f32>(unpack4xU8(six.x).xy), line.y * vec2<f32>(unpack4xU8(six.y).xy));
}
#endif
