// The nearest half, the even one of two: pack2x16float may round either way.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = bits >> 16u & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    // 65520 and above.
    if (magnitude >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    // Below 2^-14 halves are multiples of 2^-24.
    if (magnitude < 0x38800000u) {
        return sign | u32(round(bitcast<f32>(magnitude) * 16777216.0));
    }
    let odd = magnitude >> 13u & 1u;
    return sign | (magnitude + 0xfffu + odd - 0x38000000u) >> 13u;
}
