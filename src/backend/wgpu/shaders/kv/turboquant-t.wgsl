// turboquant-t: trellis codes. The value of an element depends on its window: the last bits of the codes up
// to its own (ggml-types/src/turboquant/trellis.rs). Keys are two groups of head_dim / 2 elements, with codes
// of 4 and of 2 bits, and values are one group, with codes of 3 bits.
//
// The codes of a group are one stream of bits, the first code in the highest bits of the first word, so that
// a window is a run of bits. Before the first word comes the last one of the group. The words of a position
// are those of its groups. Scales of keys are as in turboquant.wgsl, those of values as in
// turboquant-mse.wgsl.

// int8 values of the windows, 4 per word, group after group, in workgroup memory for all threads. Packed,
// they are in few memory banks, and lanes that look up different windows often read the same word.
var<workgroup> #{side}_table: array<u32, #{codec.table_words}>;

fn #{side}_prepare() {
    for (var i = thread; i < #{codec.table_words}u; i += THREADS) {
        #{side}_table[i] = params.#{side}_table[i / 4u][i % 4u];
    }
}

// The value of a window, in steps of 1 / 32. The windows of a group begin at 0 or at a multiple of 4.
fn #{side}_value_of(window: u32) -> i32 {
    return extractBits(bitcast<i32>(#{side}_table[window / 4u]), 8u * (window % 4u), 8u);
}
#if not writes

fn #{side}_number_of(window: u32) -> f32 {
    return f32(#{side}_value_of(window));
}

// 32 bits of a stream that end `after` bits before the end of `word`; `before` is the word before it.
fn #{side}_bits_of(before: u32, word: u32, after: u32) -> u32 {
    return (word >> after) | ((before << 1u) << (31u - after));
}

#if codec.form == "trellis_split"
// Steps of a logarithmic scale in an octave.
const SCALE_STEPS: f32 = 30.0;

fn #{side}_scale_of_code(code: u32, group: u32) -> f32 {
    if (code == 0u) {
        return 0.0;
    }
    return exp2((f32(code) - f32(params.#{side}.scale_ones[group])) / SCALE_STEPS) / 32.0;
}

// The scales of both groups of a position, in units of the values.
fn #{side}_scales_of(at: u32, place: u32) -> vec2<f32> {
    let codes = #{side}s[at + params.#{side}.scales_at + place / 2u] >> (16u * (place % 2u));
    return vec2(
        #{side}_scale_of_code(codes & 255u, 0u),
        #{side}_scale_of_code((codes >> 8u) & 255u, 1u),
    );
}

#endif
#for trellis in codec.trellises
// Elements first .. first + 4 of a group with codes of #{trellis.bits} bits; the group begins at word
// `at_word` of a position and has n_words words.
fn #{side}_quad_#{trellis.bits}(at: u32, place: u32, at_word: u32, n_words: u32, first: u32) -> vec4<f32> {
    let end = #{trellis.bits}u * (first + 4u);
    let word = (end - 1u) / 32u;
    let before = select(word, n_words, word == 0u) - 1u;
    let words = params.#{side}.code_words;
    let bits = #{side}_bits_of(
        #{side}s[at + #{side}_word(at_word + before, place, words)],
        #{side}s[at + #{side}_word(at_word + word, place, words)],
        32u * word + 32u - end,
    );
    return vec4(
        #{side}_number_of(#{trellis.first}u + extractBits(bits, 3u * #{trellis.bits}u, #{trellis.window}u)),
        #{side}_number_of(#{trellis.first}u + extractBits(bits, 2u * #{trellis.bits}u, #{trellis.window}u)),
        #{side}_number_of(#{trellis.first}u + extractBits(bits, #{trellis.bits}u, #{trellis.window}u)),
        #{side}_number_of(#{trellis.first}u + extractBits(bits, 0u, #{trellis.window}u)),
    );
}

#endfor
#if codec.form == "trellis_split"
// Four neighbouring elements.
fn #{side}_code_quad(at: u32, place: u32, quad: u32) -> vec4<f32> {
    let half = params.cache.head_dim / 2u;
    let scales = #{side}_scales_of(at, place);
    if (4u * quad < half) {
        return #{side}_quad_4(at, place, 0u, half / 8u, 4u * quad) * scales.x;
    }
    return #{side}_quad_2(at, place, half / 8u, half / 16u, 4u * quad - half) * scales.y;
}
#else
// The scale of a position, in units of the values.
fn #{side}_scale_of(at: u32, place: u32) -> f32 {
    return unpack2x16float(#{side}s[at + params.#{side}.scales_at + place / 2u])[place % 2u] / 32.0;
}

// Four neighbouring elements.
fn #{side}_code_quad(at: u32, place: u32, quad: u32) -> vec4<f32> {
    return #{side}_quad_3(at, place, 0u, params.#{side}.code_words, 4u * quad) * #{side}_scale_of(at, place);
}

// Elements 2 pair and 2 pair + 1.
fn #{side}_code_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let words = params.#{side}.code_words;
    let end = 6u * pair + 6u;
    let word = (end - 1u) / 32u;
    let before = select(word, words, word == 0u) - 1u;
    let bits = #{side}_bits_of(
        #{side}s[at + #{side}_word(before, place, words)],
        #{side}s[at + #{side}_word(word, place, words)],
        32u * word + 32u - end,
    );
    let numbers = vec2(#{side}_number_of(extractBits(bits, 3u, 6u)), #{side}_number_of(bits & 63u));
    return numbers * #{side}_scale_of(at, place);
}
#endif
#endif
