fn put_code(words: ptr<function, array<u32, SIDE_BITS>>, i: u32, code: u32) {
    (*words)[i / 4u] |= code << (8u * (i % 4u));
}

// Halves go away from 0.
fn code_for(x: f32) -> u32 {
    return bitcast<u32>(i32(clamp(trunc(x + 0.5 * sign(x)), -128.0, 127.0))) & 255u;
}

// What makes the largest element 127.
fn scale_of_block(first: u32) -> f32 {
    var largest = 0.0;
    for (var i = 0u; i < CHUNK; i++) {
        largest = max(largest, abs(head[first + i]));
    }
    return divide_rounded(largest, 127.0);
}
