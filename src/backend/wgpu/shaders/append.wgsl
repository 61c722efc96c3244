// Append, behind AttnIn where a cache is windowed: encodes the exact pages that the step has filled, less the mean of the keys of
// the sequence's first page; of that page itself, takes the mean.
//
// A workgroup owns one KV head of a filled page: its keys or its values (x = sides * KV head + side, y: which of the filled pages). A thread
// owns a position of the page. Codes are those of ggml-types/src/turboquant/lloyd.rs and prod.rs, but where an element is within float's
// rounding of a border. Exact pages hold finite numbers alone (attn_in.wgsl). Reads 4 x 64 x head_dim bytes, and writes the codes of 64 positions.
struct Params {
    cache: Cache,
    side: Side,
    // How many sides the dispatch has, and the first of them: 0 keys, 1 values.
    sides: u32,
    first: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;
@group(0) @binding(4) var<storage, read_write> repaired: atomic<u32>;

var<workgroup> mean: array<f32, MAX_HEAD_DIM>;

// The half of element e.
fn half_of(word: u32, e: u32) -> f32 {
    return unpack2x16float(word)[e % 2u];
}

// The mean of element e over an exact page of keys.
fn mean_of(at: u32, e: u32) -> f32 {
    var sum = vec2(0.0);
    for (var place = 0u; place < PAGE_POSITIONS; place++) {
        sum = add_wide(sum, vec2(half_of(keys[at + e / 2u * PAGE_POSITIONS + place], e), 0.0));
    }
    return sum.x / 64.0;
}

// Of the positive codes: how many borders lie at or below the magnitude; they belong to the cell nearer to 0 where it is negative.
fn code_for(x: f32, magnitude: f32) -> u32 {
    let half = 1u << (CODE_BITS - 1u);
    var cell = 0u;
    for (var i = 1u; i < half; i++) {
        let border = params.side.borders[i / 4u][i % 4u];
        cell += select(0u, 1u, select(magnitude >= border, magnitude > border, x < 0.0));
    }
    return select(half + cell, half - 1u - cell, x < 0.0);
}

// Element e of a position, less the mean.
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

// A scale as a half; what is beyond halves becomes their largest.
fn within_halves(bits: u32) -> u32 {
    return select(bits, 0x7bffu, is_beyond_halves(bits));
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let kv_head = workgroup.x / params.sides;
    let of_v = workgroup.x % params.sides + params.first == 1u;
    let row = step_row(filled_row(workgroup.y));
    let page = row.pos / PAGE_POSITIONS;
    let exact = side_exact_at(exact_page_of(row.seq, page), kv_head);
    let head_dim = params.cache.head_dim;

    // The first page stays, so that its mean can be taken again.
    let first = side_exact_at(exact_page_of(row.seq, 0u), kv_head);
    for (var e = thread; e < head_dim; e += THREADS) {
        mean[e] = 0.0;
        if (!of_v) {
            mean[e] = mean_of(first, e);
            if (page == 0u) {
                keys[side_mean_at(row.seq, kv_head) + e] = bitcast<u32>(mean[e]);
            }
        }
    }
    if (page < params.cache.sink_pages) {
        return;
    }
    side_prepare();
    workgroupBarrier();
    encode(exact, side_page_at(row.seq, page, kv_head), of_v);
}
