// A page of keys as codes of 2 bits, the signs of what these leave over, and two scales a position: the norm, and the length of what is left.
const CODE_BITS: u32 = 2u;

// [VECTORS, head_dim]: what is left of some positions, and its projection.
var<workgroup> residual: array<f32, VECTORS * MAX_HEAD_DIM>;
// Norms as a reader sees them.
var<workgroup> norms: array<f32, PAGE_POSITIONS>;

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
    let of_norm = half_bits(sqrt(squares));
    let norm = unpack2x16float(within_halves(of_norm)).x;
    norms[place] = norm;
    var left = 0.0;
    for (var chunk = 0u; chunk < head_dim / CHUNK; chunk++) {
        var words: array<u32, SIDE_BITS>;
        for (var i = 0u; i < CHUNK; i++) {
            let y = centred(source, place, chunk * CHUNK + i, of_v);
            let code = code_for(y, abs(y) * unit);
            let r = y - norm * side_number_of(code);
            left += r * r;
            put_code(&words, i, code);
        }
        put_word(to, place, chunk * SIDE_BITS, words[0], of_v);
        put_word(to, place, chunk * SIDE_BITS + 1u, words[1], of_v);
    }
    let of_rest = half_bits(sqrt(left));
    if (is_beyond_halves(of_norm) || is_beyond_halves(of_rest)) {
        atomicAdd(&repaired, 1u);
    }
    keys[to + params.side.scales_at + place] = within_halves(of_norm) | within_halves(of_rest) << 16u;

    // What the codes stand for is known when they can be read back.
    storageBarrier();
    workgroupBarrier();
    for (var first = 0u; first < PAGE_POSITIONS; first += VECTORS) {
        for (var at = thread; at < VECTORS * head_dim; at += THREADS) {
            let position = first + at / head_dim;
            let e = at % head_dim;
            let word = keys[to + (e / CHUNK * SIDE_BITS + e % CHUNK / SIDE_RUN) * PAGE_POSITIONS + position];
            let number = side_number_of(side_code_in(vec2(word, 0u), e % CHUNK));
            let r = centred(source, position, e, of_v) - norms[position] * number;
            residual[at] = r * projected_sign_of(e);
        }
        hadamard();
        let chunks = head_dim / CHUNK;
        for (var job = thread; job < VECTORS * chunks; job += THREADS) {
            var signs = 0u;
            for (var i = 0u; i < CHUNK; i++) {
                signs |= select(0u, 1u, residual[job * CHUNK + i] >= 0.0) << i;
            }
            put_word(to, first + job / chunks, job % chunks * SIDE_BITS + 2u, signs, of_v);
        }
        workgroupBarrier();
    }
}
