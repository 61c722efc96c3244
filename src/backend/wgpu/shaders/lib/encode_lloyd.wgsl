// A page as Lloyd-Max codes and a scale a position.
const CODE_BITS: u32 = SIDE_BITS;

var<workgroup> scales: array<u32, PAGE_POSITIONS>;

fn encode(source: u32, to: u32, of_v: bool) {
    let place = thread;
    let head_dim = params.cache.head_dim;
    var squares = 0.0;
    for (var e = 0u; e < head_dim; e++) {
        let y = centred(source, place, e, of_v);
        squares += y * y;
    }
    var unit = 0.0;
    if (squares > 0.0) {
        unit = 1.0 / sqrt(squares);
    }
    var along = 0.0;
    var code_squares = 0.0;
    for (var chunk = 0u; chunk < head_dim / CHUNK; chunk++) {
        var words: array<u32, SIDE_BITS>;
        for (var i = 0u; i < CHUNK; i++) {
            let y = centred(source, place, chunk * CHUNK + i, of_v);
            let code = code_for(y, abs(y) * unit);
            let number = side_number_of(code);
            along += y * number;
            code_squares += number * number;
            put_code(&words, i, code);
        }
        for (var i = 0u; i < SIDE_BITS; i++) {
            put_word(to, place, chunk * SIDE_BITS + i, words[i], of_v);
        }
    }
    // Keys without bias in inner products, values with the smallest error.
    var scale = 0.0;
    if (squares > 0.0) {
        scale = select(squares / along, along / code_squares, of_v);
    }
    let of_scale = half_bits(scale);
    if (is_beyond_halves(of_scale)) {
        atomicAdd(&repaired, 1u);
    }
    scales[place] = within_halves(of_scale);
    workgroupBarrier();
    if (thread < PAGE_POSITIONS / 2u) {
        let pair = scales[2u * thread] | scales[2u * thread + 1u] << 16u;
        if (of_v) {
            values[to + params.side.scales_at + thread] = pair;
        } else {
            keys[to + params.side.scales_at + thread] = pair;
        }
    }
}
