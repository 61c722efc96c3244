// Q4_0: 4-bit codes, 8 per word; the integer is the code - 8.
const #{SIDE}_BITS: u32 = 4u;

// Codes that share the words of a run, and the indices of these words in the chunk.
const #{SIDE}_RUN: u32 = 8u;

fn #{side}_words_of(run: u32) -> vec2<u32> {
    return vec2(run);
}

fn #{side}_code_in(words: vec2<u32>, i: u32) -> u32 {
    return (words.x >> (4u * (i % 8u))) & 15u;
}

fn #{side}_number_of(code: u32) -> f32 {
    return f32(code) - 8.0;
}

#if writes
fn put_code(words: ptr<function, array<u32, SIDE_BITS>>, i: u32, code: u32) {
    (*words)[i / 8u] |= code << (4u * (i % 8u));
}

fn code_for(x: f32) -> u32 {
    return u32(clamp(round(x), -8.0, 7.0) + 8.0);
}

// The scale that fits the block best, out of the one that makes the largest element -8 and 18 neighbours
// (ggml-types/src/scale_search.rs).
fn scale_of_block(first: u32) -> f32 {
    var extreme = 0.0;
    for (var i = 0u; i < CHUNK; i++) {
        let x = head[first + i];
        if (abs(x) > abs(extreme)) {
            extreme = x;
        }
    }
    if (abs(extreme) < 1e-15) {
        return 0.0;
    }
    var scale = 0.0;
    var best = 0.0;
    for (var at = 0; at < 19; at++) {
        // 0 first, so that ties keep the plain choice.
        let step = select(at - select(10, 9, at > 9), 0, at == 0);
        let by = divide_rounded(-(8.0 + opaque(0.1 * f32(step))), extreme);
        var along = 0.0;
        var squares = 0.0;
        for (var i = 0u; i < CHUNK; i++) {
            let x = head[first + i];
            let q = clamp(round(x * by), -8.0, 7.0);
            along += x * q;
            squares += q * q;
        }
        if (squares > 0.0 && along * along > best * squares) {
            scale = divide_rounded(along, squares);
            best = scale * along;
        }
    }
    return scale;
}
#endif
