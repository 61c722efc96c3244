// Append, after AttnIn if the cache is windowed: encodes the exact pages that the step has filled. Keys are
// encoded relative to the mean of the keys in their page, which is stored as int8 with one f16 scale.
//
// A workgroup owns one KV head of a filled page: its keys or its values (x = sides * KV head + side, y: index
// among the filled pages). A thread owns a position of the page. Codes are those of
// ggml-types/src/turboquant/lloyd.rs, prod.rs and split.rs, and means those of mean.rs, except within float's
// rounding of a threshold. Trellis codes take several workgroups per head, which are neighbours (x) and own
// some of the positions each (lib/viterbi.wgsl). Exact pages hold only finite numbers (attn_in.wgsl). Reads 4
// x 64 x head_dim bytes, and writes the codes of 64 positions.
#set sides = ["side"]
#set side = "side"
#set SIDE = "SIDE"
#set writes = true
#set reduce = [("reduce_max", "vec2<f32>", "larger_of")]
#if codec.form == "signs"
#set vector = "residual"
#set vectors = 8
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/cache.wgsl"
#include codec.file

struct Params {
    cache: Cache,
    side: Side,
    // Number of sides of the dispatch, and the first of them: 0 keys, 1 values.
    sides: u32,
    first: u32,
#if codec.trellises
    // Values of the windows of trellis codes.
    side_table: array<vec4<u32>, #{codec.table_words // 4}>,
#endif
#if codec.form == "trellis_split"
    // Thresholds between the steps of a logarithmic scale, in an octave: pairs of floats.
    side_steps: array<vec4<f32>, 15>,
#endif
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;
@group(0) @binding(4) var<storage, read_write> clamped: atomic<u32>;

// Workgroups per head of a page.
const PARTS: u32 = #{codec.parts}u;

// The mean of the page's keys, rounded as readers see it.
var<workgroup> mean: array<f32, MAX_HEAD_DIM>;

// The larger of two pairs of floats.
fn larger_of(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y > a.y));
}

// The f16 of element e in a word.
fn half_of(word: u32, e: u32) -> f32 {
    return unpack2x16float(word)[e % 2u];
}

// The sum of element e over an exact page of keys, exactly.
fn sum_of(at: u32, e: u32) -> vec2<f32> {
    var sum = vec2(0.0);
    for (var place = 0u; place < PAGE_POSITIONS; place++) {
        sum = add_wide(sum, vec2(half_of(keys[at + e / 2u * PAGE_POSITIONS + place], e), 0.0));
    }
    return sum;
}

// Puts the mean of an exact page of keys into `mean`, as it is stored, and stores it if `stores`.
fn put_mean(source: u32, to: u32, stores: bool) {
    let head_dim = params.cache.head_dim;
    var largest = vec2(0.0);
    for (var e = thread; e < head_dim; e += THREADS) {
        let sum = sum_of(source, e);
        mean[e] = sum.x / 64.0;
        largest = larger_of(largest, select(sum, -sum, sum.x < 0.0));
    }
    let bits = half_bits(divide_wide(reduce_max(largest), 64.0 * 127.0).x);
    let scale = unpack2x16float(bits).x;
    for (var word = thread; word < head_dim / 4u; word += THREADS) {
        var numbers = vec4<i32>();
        for (var i = 0u; i < 4u; i++) {
            let e = 4u * word + i;
            if (scale > 0.0) {
                numbers[i] = i32(clamp(nearest_to(divide_rounded(mean[e], scale)), -127.0, 127.0));
            }
            mean[e] = scale * f32(numbers[i]);
        }
        if (stores) {
            keys[to + word] = pack4xI8(numbers);
        }
    }
    if (stores && thread == 0u) {
        keys[to + head_dim / 4u] = bits;
    }
}

// The nearest integer; halves are rounded away from 0.
fn nearest_to(x: f32) -> f32 {
    return trunc(x + 0.5 * sign(x));
}

#if not codec.trellises
// Code of an element, from the number of thresholds at or below its magnitude. A threshold itself belongs to
// the cell nearer to 0 if x is negative.
fn code_for(x: f32, magnitude: f32) -> u32 {
    let half = 1u << (CODE_BITS - 1u);
    var cell = 0u;
    for (var i = 1u; i < half; i++) {
        let border = params.side.borders[i / 4u][i % 4u];
        cell += select(0u, 1u, select(magnitude >= border, magnitude > border, x < 0.0));
    }
    return select(half + cell, half - 1u - cell, x < 0.0);
}

#endif

// Element e of a position, minus the mean.
fn centred(at: u32, place: u32, e: u32, of_v: bool) -> f32 {
    if (of_v) {
        return half_of(values[at + place * params.side.words + e / 2u], e);
    }
    return half_of(keys[at + e / 2u * PAGE_POSITIONS + place], e) - mean[e];
}

fn put_word(at: u32, place: u32, word: u32, bits: u32, of_v: bool) {
    if (of_v) {
        values[at + place * params.side.code_words + word] = bits;
    } else {
        keys[at + word * PAGE_POSITIONS + place] = bits;
    }
}

fn is_beyond_halves(bits: u32) -> bool {
    return (bits & 0x7c00u) == 0x7c00u;
}

// An f16 scale; values beyond its range become the largest f16.
fn within_halves(bits: u32) -> u32 {
    return select(bits, 0x7bffu, is_beyond_halves(bits));
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let part = workgroup.x % PARTS;
    let kv_head = workgroup.x / PARTS / params.sides;
    let of_v = workgroup.x / PARTS % params.sides + params.first == 1u;
    let row = step_row(filled_row(workgroup.y));
    let page = row.pos / PAGE_POSITIONS;
    let exact = side_exact_at(exact_page_of(row.seq, page), kv_head);
    if (page < params.cache.sink_pages) {
        return;
    }
    if (!of_v) {
        put_mean(exact, side_mean_at(row.seq, page, kv_head), part == 0u);
    }
    side_prepare();
    workgroupBarrier();
    encode(exact, side_page_at(row.seq, page, kv_head), part, of_v);
}

#if codec.form == "signs"
// Encodes a page of keys as 2-bit codes, the signs of their residual, and two scales per position: the norm,
// and the norm of the residual.
const CODE_BITS: u32 = 2u;

// [VECTORS, head_dim]: the residual of some positions, and its projection.
var<workgroup> residual: array<f32, VECTORS * MAX_HEAD_DIM>;
// Norms after rounding to f16, as a reader sees them.
var<workgroup> norms: array<f32, PAGE_POSITIONS>;

fn encode(source: u32, to: u32, part: u32, of_v: bool) {
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
        var words = array<u32, SIDE_BITS>();
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
        atomicAdd(&clamped, 1u);
    }
    keys[to + params.side.scales_at + place] = within_halves(of_norm) | (within_halves(of_rest) << 16u);

    // Other threads' codes are read back below.
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
#elif codec.form == "split"
// Encodes a page of keys in two groups, with a logarithmic scale of 8 bits per group and position.
const CODE_BITS: u32 = 4u;

var<workgroup> scales: array<u32, PAGE_POSITIONS>;

// As code_for, for the 2-bit codes of the second group.
fn second_code_for(x: f32, magnitude: f32) -> u32 {
    let border = params.side.second_border;
    let cell = select(0u, 1u, select(magnitude >= border, magnitude > border, x < 0.0));
    return select(2u + cell, 1u - cell, x < 0.0);
}

fn encode(source: u32, to: u32, part: u32, of_v: bool) {
    let place = thread;
    let n = params.cache.head_dim / 2u;
    var of_scales = 0u;
    var is_beyond = false;
    for (var group = 0u; group < 2u; group++) {
        var squares = 0.0;
        for (var i = 0u; i < n; i++) {
            let y = centred(source, place, group * n + i, of_v);
            squares += y * y;
        }
        var unit = 0.0;
        if (squares > 0.0) {
            unit = 1.0 / sqrt(squares);
        }
        var along = 0.0;
        let bits = side_bits_of(group);
        for (var first = 0u; first < n; first += 32u / bits) {
            var word = 0u;
            for (var i = 0u; i < 32u / bits; i++) {
                let y = centred(source, place, group * n + first + i, of_v);
                var code = code_for(y, abs(y) * unit);
                if (group == 1u) {
                    code = second_code_for(y, abs(y) * unit);
                }
                along += y * side_number_of(group, code);
                word |= code << (bits * i);
            }
            put_word(to, place, side_word_of(group, first), word, of_v);
        }
        var scale = 0.0;
        if (squares > 0.0) {
            scale = squares / along;
        }
        let steps = log_of_scale(scale, group);
        // A scale below half of the smallest becomes 0.
        if (steps > 1.0 - SCALE_STEPS && scale > 0.0) {
            of_scales |= u32(clamp(steps, 1.0, 255.0)) << (8u * group);
        }
        is_beyond = is_beyond || steps > 255.0;
    }
    if (is_beyond) {
        atomicAdd(&clamped, 1u);
    }
    scales[place] = of_scales;
    workgroupBarrier();
    if (thread < PAGE_POSITIONS / 2u) {
        keys[to + params.side.scales_at + thread] = scales[2u * thread] | (scales[2u * thread + 1u] << 16u);
    }
}
#elif codec.trellises
#include "lib/viterbi.wgsl"
#else
// Encodes a page as Lloyd-Max codes and one scale per position.
const CODE_BITS: u32 = SIDE_BITS;

var<workgroup> scales: array<u32, PAGE_POSITIONS>;

fn encode(source: u32, to: u32, part: u32, of_v: bool) {
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
        var words = array<u32, SIDE_BITS>();
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
    // Keys: unbiased inner products; values: the smallest error.
    var scale = 0.0;
    if (squares > 0.0) {
        scale = select(squares / along, along / code_squares, of_v);
    }
    let of_scale = half_bits(scale);
    if (is_beyond_halves(of_scale)) {
        atomicAdd(&clamped, 1u);
    }
    scales[place] = within_halves(of_scale);
    workgroupBarrier();
    if (thread < PAGE_POSITIONS / 2u) {
        let pair = scales[2u * thread] | (scales[2u * thread + 1u] << 16u);
        if (of_v) {
            values[to + params.side.scales_at + thread] = pair;
        } else {
            keys[to + params.side.scales_at + thread] = pair;
        }
    }
}
#endif
