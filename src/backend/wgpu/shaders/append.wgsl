// Append, behind AttnIn where a cache is windowed: encodes the exact pages that the step has filled, less the mean of the keys of
// the sequence's first page; of that page itself, takes the mean.
//
// A workgroup owns one KV head of a filled page: its keys or its values (x = 2 KV head + side, y: which of the filled pages). A thread
// owns a position of the page. Codes are those of ggml-types/src/turboquant/lloyd.rs, but where an element is within float's rounding of
// a border. Reads 4 x 64 x head_dim bytes, and writes the codes of 64 positions.
struct Params {
    cache: Cache,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

var<workgroup> mean: array<f32, MAX_HEAD_DIM>;
var<workgroup> scales: array<u32, PAGE_POSITIONS>;

fn is_finite(word: u32, e: u32) -> bool {
    return (word >> (16u * (e % 2u)) & 0x7c00u) != 0x7c00u;
}

// The half of element e, or 0 where it is no finite number.
fn finite_half(word: u32, e: u32) -> f32 {
    if (is_finite(word, e)) {
        return unpack2x16float(word >> (16u * (e % 2u))).x;
    }
    return 0.0;
}

// The mean of element e over an exact page of keys.
fn mean_of(at: u32, e: u32) -> f32 {
    var sum = vec2(0.0);
    for (var place = 0u; place < PAGE_POSITIONS; place++) {
        sum = add_wide(sum, vec2(finite_half(keys[at + e / 2u * PAGE_POSITIONS + place], e), 0.0));
    }
    return sum.x / 64.0;
}

// Of the positive codes: how many borders lie at or below the magnitude; they belong to the cell nearer to 0 where it is negative.
fn code_for(x: f32, magnitude: f32) -> u32 {
    let half = 1u << (BITS - 1u);
    var cell = 0u;
    for (var i = 1u; i < half; i++) {
        let border = params.cache.borders[i / 4u][i % 4u];
        cell += select(0u, 1u, select(magnitude >= border, magnitude > border, x < 0.0));
    }
    return select(half + cell, half - 1u - cell, x < 0.0);
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let kv_head = workgroup.x / 2u;
    let of_v = workgroup.x % 2u == 1u;
    let row = step_row(filled_row(workgroup.y));
    let page = row.pos / PAGE_POSITIONS;
    let exact = exact_at(exact_page_of(row.seq, page), kv_head);
    let to = page_at(row.seq, page, kv_head);
    let head_dim = params.cache.head_dim;

    // The first page stays, so that its mean can be taken again.
    let first = exact_at(exact_page_of(row.seq, 0u), kv_head);
    for (var e = thread; e < head_dim; e += THREADS) {
        mean[e] = 0.0;
        if (!of_v) {
            mean[e] = mean_of(first, e);
            if (page == 0u) {
                keys[mean_at(row.seq, kv_head) + e] = bitcast<u32>(mean[e]);
            }
        }
    }
    if (page < params.cache.sink_pages) {
        return;
    }
    prepare();
    workgroupBarrier();

    let place = thread;
    var squares = 0.0;
    for (var e = 0u; e < head_dim; e++) {
        let y = centred(exact, place, e, of_v);
        squares += y * y;
    }
    var unit = 0.0;
    if (squares > 0.0) {
        unit = 1.0 / sqrt(squares);
    }
    var along = 0.0;
    var code_squares = 0.0;
    for (var chunk = 0u; chunk < head_dim / CHUNK; chunk++) {
        var words: array<u32, BITS>;
        for (var i = 0u; i < CHUNK; i++) {
            let y = centred(exact, place, chunk * CHUNK + i, of_v);
            let code = code_for(y, abs(y) * unit);
            let value = value_of(code);
            along += y * value;
            code_squares += value * value;
            put_code(&words, i, code);
        }
        for (var i = 0u; i < BITS; i++) {
            let word = chunk * BITS + i;
            if (of_v) {
                values[to + place * params.cache.code_words + word] = words[i];
            } else {
                keys[to + word * PAGE_POSITIONS + place] = words[i];
            }
        }
    }
    // Keys without bias in inner products, values with the smallest error.
    var scale = 0.0;
    if (squares > 0.0) {
        scale = select(squares / along, along / code_squares, of_v);
    }
    // What is beyond halves becomes their largest.
    let bits = half_bits(scale);
    scales[place] = select(bits, 0x7bffu, (bits & 0x7c00u) == 0x7c00u);
    workgroupBarrier();
    if (thread < PAGE_POSITIONS / 2u) {
        let pair = scales[2u * thread] | scales[2u * thread + 1u] << 16u;
        if (of_v) {
            values[to + params.cache.scales_at + thread] = pair;
        } else {
            keys[to + params.cache.scales_at + thread] = pair;
        }
    }
}

// Element e of a position, less the mean; 0 where it is no finite number.
fn centred(at: u32, place: u32, e: u32, of_v: bool) -> f32 {
    if (of_v) {
        return finite_half(values[at + place * params.cache.words + e / 2u], e);
    }
    let word = keys[at + e / 2u * PAGE_POSITIONS + place];
    if (is_finite(word, e)) {
        return finite_half(word, e) - mean[e];
    }
    return 0.0;
}
