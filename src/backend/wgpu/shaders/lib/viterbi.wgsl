// Encodes positions of a page as trellis codes, to the bytes of ggml-types/src/turboquant/trellis_vectors.rs.
//
// A workgroup owns VECTORS neighbouring positions, and STATES threads a position. The elements become
// integers. Step by step, thread `state` of a position finds the cheapest path into its state (the Viterbi
// algorithm); costs pass through workgroup memory, and the oldest codes of the windows are kept there. Then
// one thread goes back along the best path. It is done twice: around the seam between the last and the first
// element, which gives the state there, and over the whole vector. Sums are of integers, so that their order
// does not matter. A step is 16 sums and one barrier for groups of keys, 8 for values.
const STATES: u32 = #{codec.states}u;
const VECTORS: u32 = THREADS / STATES;

// Largest number of elements of a group.
const MOST_ELEMS: u32 = #{codec.most_elems}u;

// Words of the oldest codes of a position.
const OLDEST_WORDS: u32 = MOST_ELEMS / 8u * STATES;

// Elements on each side of the seam.
const SEAM: u32 = 16u;

// Cost of a path that does not begin in the given state.
const FAR: i32 = 8388608;

// Largest magnitude of an element, in steps of 1 / 64 of its deviation.
const MOST_STEPS: i32 = 511;

// Elements of the positions in these steps, 16 bits each; after the search, their windows.
var<workgroup> elems: array<u32, VECTORS * MOST_ELEMS / 2u>;
// Oldest codes of the best windows, [VECTORS, MOST_ELEMS / 8, STATES], 4 bits each.
var<workgroup> oldest: array<u32, VECTORS * OLDEST_WORDS>;
// Costs of two steps, [2, VECTORS, STATES].
var<workgroup> costs: array<i32, 2u * THREADS>;
// The state of each position at the seam.
var<workgroup> seam: array<u32, VECTORS>;
// Bits of the largest magnitude of a group; with q its elements as integers and v their values, the sums of
// q q, q v and v v.
var<workgroup> largest: array<atomic<u32>, VECTORS>;
var<workgroup> squares: array<atomic<i32>, VECTORS>;
var<workgroup> along: array<atomic<i32>, VECTORS>;
var<workgroup> value_squares: array<atomic<i32>, VECTORS>;
var<workgroup> scales: array<u32, VECTORS>;

fn elem_of(vector: u32, e: u32) -> i32 {
    let word = elems[(vector * MOST_ELEMS + e) / 2u];
    return extractBits(bitcast<i32>(word), 16u * (e % 2u), 16u);
}

fn window_of(vector: u32, e: u32) -> u32 {
    return extractBits(elems[(vector * MOST_ELEMS + e) / 2u], 16u * (e % 2u), 16u);
}

// High and low word of a b.
fn long_product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
    let high = (a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u);
    return vec2(high, (second << 16u) | (low & 0xffffu));
}

// The largest f with f^2 square <= n 2^44: 64 sqrt(n / square) in steps of 2^-16.
fn step_factor(n: u32, square: u32) -> u32 {
    // The only case in which f^2 has more than 32 bits.
    if (square <= n << 12u) {
        return 65536u;
    }
    var f = min(u32(4194304.0 * sqrt(f32(n) / f32(square))) + 1u, 65535u);
    for (var i = 0u; i < 3u; i++) {
        let product = long_product(f * f, square);
        if (product.x > n << 12u || (product.x == n << 12u && product.y > 0u)) {
            f -= 1u;
        }
    }
    return f;
}

// An integer, exactly.
fn wide_of(x: i32) -> vec2<f32> {
    let high = f32(x);
    return vec2(high, f32(x - i32(high)));
}

#for trellis in codec.trellises
// Searches the codes of #{trellis.bits} bits of a group: over SEAM elements on each side of the seam and from
// any state to any, or over all n, from the state at the seam to the same.
fn search_#{trellis.bits}(n: u32, is_whole: bool) {
    let vector = thread / STATES;
    let state = thread % STATES;
    let side = min(SEAM, n / 2u);
    let count = select(2u * side, n, is_whole);
    let start = select(n - side, 0u, is_whole);
#for branch in trellis.branches
    let value_#{branch} = side_value_of(#{trellis.first}u + #{branch}u * STATES + state);
#endfor
    costs[thread] = select(0, FAR, is_whole && state != seam[vector]);
    var codes = 0u;
    workgroupBarrier();
    for (var i = 0u; i < count; i++) {
        // Code `branch` leads here from the state with its bits at the top.
        let before = i % 2u * THREADS + vector * STATES + (state >> #{trellis.bits}u);
        let x = elem_of(vector, (start + i) % n);
        var best = costs[before] + 2 * value_0 * (value_0 - x);
        var code = 0u;
#for branch in trellis.branches
#if branch > 0
        let cost_#{branch} = costs[before + #{branch}u * (STATES >> #{trellis.bits}u)]
            + 2 * value_#{branch} * (value_#{branch} - x);
        if (cost_#{branch} < best) {
            best = cost_#{branch};
            code = #{branch}u;
        }
#endif
#endfor
        codes |= code << (4u * (i % 8u));
        if (i % 8u == 7u || i + 1u == count) {
            oldest[vector * OLDEST_WORDS + i / 8u * STATES + state] = codes;
            codes = 0u;
        }
        costs[(i + 1u) % 2u * THREADS + thread] = best;
        workgroupBarrier();
    }
    if (state == 0u) {
        var on_path = seam[vector];
        if (!is_whole) {
            on_path = 0u;
            let ends = count % 2u * THREADS + vector * STATES;
            for (var other = 1u; other < STATES; other++) {
                if (costs[ends + other] < costs[ends + on_path]) {
                    on_path = other;
                }
            }
        }
        for (var e = count; e > select(side, 0u, is_whole); e--) {
            let word = oldest[vector * OLDEST_WORDS + (e - 1u) / 8u * STATES + on_path];
            let window = extractBits(word, 4u * ((e - 1u) % 8u), 4u) * STATES + on_path;
            on_path = window >> #{trellis.bits}u;
            if (is_whole) {
                let at = (vector * MOST_ELEMS + e - 1u) / 2u;
                elems[at] = insertBits(elems[at], window, 16u * ((e - 1u) % 2u), 16u);
            }
        }
        if (!is_whole) {
            seam[vector] = on_path;
        }
    }
    workgroupBarrier();
}

// Encodes a group with codes of #{trellis.bits} bits: elements e .. e + n of a position, to its words from
// at_word on. Returns the exponent of the integers: y is about q 2^-exponent.
fn encode_#{trellis.bits}(
    source: u32,
    to: u32,
    place: u32,
    first: u32,
    n: u32,
    at_word: u32,
    of_v: bool,
) -> i32 {
    let vector = thread / STATES;
    let state = thread % STATES;
    if (state == 0u) {
        atomicStore(&largest[vector], 0u);
        atomicStore(&squares[vector], 0);
        atomicStore(&along[vector], 0);
        atomicStore(&value_squares[vector], 0);
    }
    workgroupBarrier();
    for (var e = state; e < n; e += STATES) {
        atomicMax(&largest[vector], bitcast<u32>(abs(centred(source, place, first + e, of_v))));
    }
    workgroupBarrier();
    let bits = atomicLoad(&largest[vector]);
    // The largest integer is from 2^10 to 2^11.
    let exponent = select(137 - i32(bits >> 23u), 0, bits == 0u);
    for (var e = state; e < n; e += STATES) {
        let q = integer_of(centred(source, place, first + e, of_v), exponent);
        atomicAdd(&squares[vector], q * q);
    }
    workgroupBarrier();
    let square = u32(atomicLoad(&squares[vector]));
    var factor = 0;
    if (square > 0u) {
        factor = i32(step_factor(n, square));
    }
    for (var pair = state; pair < n / 2u; pair += STATES) {
        var word = 0u;
        for (var i = 0u; i < 2u; i++) {
            let q = integer_of(centred(source, place, first + 2u * pair + i, of_v), exponent);
            let x = clamp((q * factor + 32768) >> 16u, -MOST_STEPS, MOST_STEPS);
            word |= (bitcast<u32>(x) & 0xffffu) << (16u * i);
        }
        elems[vector * MOST_ELEMS / 2u + pair] = word;
    }
    workgroupBarrier();
    search_#{trellis.bits}(n, false);
    search_#{trellis.bits}(n, true);
    for (var e = state; e < n; e += STATES) {
        let q = integer_of(centred(source, place, first + e, of_v), exponent);
        let value = side_value_of(#{trellis.first}u + window_of(vector, e));
        atomicAdd(&along[vector], q * value);
        atomicAdd(&value_squares[vector], value * value);
    }
    for (var word = state; word < n * #{trellis.bits}u / 32u; word += STATES) {
        var of_word = 0u;
        for (var e = 32u * word / #{trellis.bits}u; #{trellis.bits}u * e < 32u * word + 32u; e++) {
            let code = window_of(vector, e) & #{trellis.mask}u;
            let begin = #{trellis.bits}u * e;
            // A code may begin in the word before, or end in the word after.
            if (begin < 32u * word) {
                of_word |= code << (32u - #{trellis.bits}u + (32u * word - begin));
            } else {
                of_word |= (code << (32u - #{trellis.bits}u)) >> (begin - 32u * word);
            }
        }
        put_word(to, place, at_word + word, of_word, of_v);
    }
    workgroupBarrier();
    return exponent;
}

#endfor
fn integer_of(y: f32, exponent: i32) -> i32 {
    return i32(round(y * power_of_2(exponent)));
}

#if codec.form == "trellis_split"
// The code of the logarithmic scale of a group, 2^exponent a / b, before it is clamped to 1 to 255; at most
// -29 if the scale is 0. The thresholds of its steps in an octave, 2^((step + 1/2) / 30), are pairs of
// floats.
fn scale_code(a: i32, b: i32, exponent: i32, group: u32) -> i32 {
    if (a == 0 || b <= 0) {
        return -29;
    }
    let scale = divide_wide(wide_of(a), f32(b));
    let octave = i32(bitcast<u32>(scale.x) >> 23u) - 127;
    let mantissa = scale * power_of_2(-octave);
    var steps = 30 * (octave + exponent);
    for (var i = 0u; i < 15u; i++) {
        let two = params.side_steps[i];
        steps += select(0, 1, mantissa.x > two.x || (mantissa.x == two.x && mantissa.y >= two.y));
        steps += select(0, 1, mantissa.x > two.z || (mantissa.x == two.z && mantissa.y >= two.w));
    }
    return steps + i32(params.side.scale_ones[group]);
}

fn encode(source: u32, to: u32, part: u32, of_v: bool) {
    let vector = thread / STATES;
    let place = part * VECTORS + vector;
    let n = params.cache.head_dim / 2u;
    var of_scales = 0u;
    var is_beyond = false;
#for trellis in codec.trellises
    {
        let group = #{loop.index0}u;
        let exponent = encode_#{trellis.bits}(source, to, place, group * n, n, group * n / 8u, of_v);
        // The scale |y|^2 / <y, c>.
        let product = atomicLoad(&along[vector]);
        let code = scale_code(atomicLoad(&squares[vector]), product, 5 - exponent, group);
        if (code > -29) {
            of_scales |= u32(clamp(code, 1, 255)) << #{8 * loop.index0}u;
        }
        is_beyond = is_beyond || code > 255;
        workgroupBarrier();
    }
#endfor
    if (thread % STATES == 0u) {
        scales[vector] = of_scales;
        if (is_beyond) {
            atomicAdd(&clamped, 1u);
        }
    }
    put_scales(to, part, of_v);
}
#else
fn encode(source: u32, to: u32, part: u32, of_v: bool) {
    let vector = thread / STATES;
    let place = part * VECTORS + vector;
    let exponent = encode_3(source, to, place, 0u, params.cache.head_dim, 0u, of_v);
    if (thread % STATES == 0u) {
        // The scale <y, c> / <c, c>.
        let product = max(atomicLoad(&along[vector]), 0);
        let square = atomicLoad(&value_squares[vector]);
        var scale = 0.0;
        if (square > 0) {
            scale = divide_wide(wide_of(product), f32(square)).x * power_of_2(5 - exponent);
        }
        let bits = half_bits(scale);
        scales[vector] = within_halves(bits);
        if (is_beyond_halves(bits)) {
            atomicAdd(&clamped, 1u);
        }
    }
    put_scales(to, part, of_v);
}
#endif

// Stores the scales of the workgroup's positions, two in a word.
fn put_scales(to: u32, part: u32, of_v: bool) {
    workgroupBarrier();
    if (thread < VECTORS / 2u) {
        let two = scales[2u * thread] | (scales[2u * thread + 1u] << 16u);
        let at = to + params.side.scales_at + part * VECTORS / 2u + thread;
        if (of_v) {
            values[at] = two;
        } else {
            keys[at] = two;
        }
    }
}
