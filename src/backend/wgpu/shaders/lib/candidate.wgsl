// A logit and its id as a pair that is larger for larger logits, and for lower ids among equals. NaN is below all others.
fn candidate(logit_bits: u32, id: u32) -> vec2<u32> {
    var bits = logit_bits;
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return vec2(0u, ~id);
    }
    // Both zeros are one value.
    if (bits == 0x80000000u) {
        bits = 0u;
    }
    if ((bits & 0x80000000u) != 0u) {
        return vec2(~bits, ~id);
    }
    return vec2(bits | 0x80000000u, ~id);
}

fn is_below(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x < b.x || (a.x == b.x && a.y < b.y);
}

fn larger(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    if (is_below(a, b)) {
        return b;
    }
    return a;
}

fn id_of(c: vec2<u32>) -> u32 {
    return ~c.y;
}

// Of NaN too, which no draw weighs.
fn logit_of(c: vec2<u32>) -> f32 {
    if ((c.x & 0x80000000u) != 0u) {
        return bitcast<f32>(c.x & 0x7fffffffu);
    }
    return bitcast<f32>(~c.x);
}
