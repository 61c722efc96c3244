// turboquant: keys in two groups of head_dim / 2 elements, with Lloyd-Max codes of 4 and of 2 bits.
//
// The words of a position are those of the first group, 8 codes each, then those of the second, 16 codes
// each. Its two scales are bytes, the first group's first; two positions share a word of scales. A byte is a
// logarithm (LogScale in ggml-types/src/turboquant/split.rs).

// Values of the codes of both groups, in workgroup memory for all threads.
var<workgroup> #{side}_table: array<f32, 20>;

fn #{side}_prepare() {
    if (thread < 16u) {
        #{side}_table[thread] = params.#{side}.numbers[thread / 4u][thread % 4u];
    } else if (thread < 20u) {
        #{side}_table[thread] = params.#{side}.second_numbers[thread - 16u];
    }
}

// Bits of a code of a group.
fn #{side}_bits_of(group: u32) -> u32 {
    return 4u >> group;
}

fn #{side}_number_of(group: u32, code: u32) -> f32 {
    return #{side}_table[16u * group + code];
}

// Word of a position that has the code of an element of a group.
fn #{side}_word_of(group: u32, i: u32) -> u32 {
    return group * (params.cache.head_dim / 16u) + i * #{side}_bits_of(group) / 32u;
}

// Code i of a group, from its word.
fn #{side}_code_in(word: u32, group: u32, i: u32) -> u32 {
    let bits = #{side}_bits_of(group);
    return extractBits(word, i * bits % 32u, bits);
}

// Steps of a logarithmic scale in an octave.
const SCALE_STEPS: f32 = 30.0;

#if writes
// The code of a scale, rounded, before it is clamped to 1 to 255; 0 if the scale is 0.
fn log_of_scale(scale: f32, group: u32) -> f32 {
    if (scale <= 0.0) {
        return 0.0;
    }
    let steps = SCALE_STEPS * log2(scale / params.#{side}.scale_unit);
    return trunc(steps + 0.5 * sign(steps)) + f32(params.#{side}.scale_ones[group]);
}
#else
fn #{side}_scale_of_code(code: u32, group: u32) -> f32 {
    if (code == 0u) {
        return 0.0;
    }
    let octaves = (f32(code) - f32(params.#{side}.scale_ones[group])) / SCALE_STEPS;
    return params.#{side}.scale_unit * exp2(octaves);
}

// The scales of both groups of a position.
fn #{side}_scales_of(at: u32, place: u32) -> vec2<f32> {
    let codes = #{side}s[at + params.#{side}.scales_at + place / 2u] >> (16u * (place % 2u));
    return vec2(
        #{side}_scale_of_code(codes & 255u, 0u),
        #{side}_scale_of_code((codes >> 8u) & 255u, 1u),
    );
}

// Four neighbouring elements, which share the same word.
fn #{side}_code_quad(at: u32, place: u32, quad: u32) -> vec4<f32> {
    let group = select(0u, 1u, 8u * quad >= params.cache.head_dim);
    let i = 4u * quad - group * (params.cache.head_dim / 2u);
    let word = #{side}s[at + #{side}_word(#{side}_word_of(group, i), place, params.#{side}.code_words)];
    let numbers = vec4(
        #{side}_number_of(group, #{side}_code_in(word, group, i)),
        #{side}_number_of(group, #{side}_code_in(word, group, i + 1u)),
        #{side}_number_of(group, #{side}_code_in(word, group, i + 2u)),
        #{side}_number_of(group, #{side}_code_in(word, group, i + 3u)),
    );
    return numbers * #{side}_scales_of(at, place)[group];
}
#endif
