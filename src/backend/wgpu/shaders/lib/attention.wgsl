// Parameters of the attention kernels, and access to keys and values: `key_pair`, `value_quad` and so on, for
// the codecs `k` and `v` of the cache, if the kernel reads it.
#set sides = ["key", "value"]
#set writes = false
#include "lib/cache.wgsl"

struct Params {
    cache: Cache,
    key: Side,
    value: Side,
    // Query heads per KV head, and workgroups for them.
    group: u32,
    tiles: u32,
    scale: f32,
    // Heads of a tile of rows.
    tile_heads: u32,
    // Number of positions that a row sees, up to its own; all bits set without a window.
    window: u32,
    // Index of the heads' sinks in constants, or ABSENT.
    sinks: u32,
    // Soft cap of scores; 0 without one.
    soft_cap: f32,
#if of_encoder
    // Number of later positions that a row sees, up to the end of its sequence.
    ahead: u32,
    // 1 if rows of an image see all of it, and nothing later.
    whole_images: u32,
#endif
#if k is defined
#for side, codec in [("key", k), ("value", v)]
#if codec.trellises
    // Values of the windows of trellis codes.
    #{side}_table: array<vec4<u32>, #{codec.table_words // 4}>,
#endif
#endfor
#endif
}

const ABSENT: u32 = 0xffffffffu;

@group(0) @binding(0) var<uniform> params: Params;

// The first position that a row sees.
fn first_seen(pos: u32) -> u32 {
    return pos + 1u - min(pos + 1u, params.window);
}

#if of_encoder
// The last position that row r of the step sees.
fn last_seen(pos: u32, r: u32) -> u32 {
    let image_end = row_image_end(r);
    if (params.whole_images == 1u && image_end > 0u) {
        return image_end - 1u;
    }
    return pos + min(params.ahead, row_end(r) - pos);
}

#endif
// Lower bound of all scores, and the score of positions that are not seen.
const LEAST: f32 = -3.0e38;

// The weight of a head's sink relative to its largest score; it is added to the sum of the weights.
fn weight_of_sink(head: u32, largest: f32) -> f32 {
    if (params.sinks == ABSENT) {
        return 0.0;
    }
    return exp_near(constants[params.sinks + head] - largest);
}

// A score after its soft cap.
fn capped(score: f32) -> f32 {
    if (params.soft_cap == 0.0) {
        return score;
    }
    return params.soft_cap * tanh_near(score / params.soft_cap);
}

fn max4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return max(a, b);
}

fn sum4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return a + b;
}

fn exp4(x: vec4<f32>) -> vec4<f32> {
    return vec4(exp_near(x.x), exp_near(x.y), exp_near(x.z), exp_near(x.w));
}

#if k is defined
#for side, SIDE, codec in [("key", "KEY", k), ("value", "VALUE", v)]
// Offset of a word in a page: keys are [words, PAGE_POSITIONS], values [PAGE_POSITIONS, words].
fn #{side}_word(word: u32, place: u32, words: u32) -> u32 {
#if side == "key"
    return word * PAGE_POSITIONS + place;
#else
    return place * words + word;
#endif
}

// The page that a row reads. On a windowed side this is an exact page, or the codes of a page that has left
// the window. The row's position alone decides which (src/program/step.rs).
fn #{side}_page_to_read(row: Row, page: u32, kv_head: u32) -> PageAt {
#if codec.windowed
    let full = (row.pos + 1u) / PAGE_POSITIONS;
    let window = max(full, params.cache.newest_pages) - params.cache.newest_pages;
    if (page < params.cache.sink_pages || page >= window) {
        let exact = exact_page_of(row.seq, page);
        if (exact != NO_PAGE) {
            return PageAt(#{side}_exact_at(exact, kv_head), true);
        }
    }
#endif
#if codec.form == "elements"
    return PageAt(#{side}_page_at(row.seq, page, kv_head), true);
#else
    return PageAt(#{side}_page_at(row.seq, page, kv_head), false);
#endif
}

#if codec.windowed or codec.form == "elements"
#include "kv/f16.wgsl" if codec.windowed else codec.file

// Elements 2 pair and 2 pair + 1; the second is undefined if the head has no such element.
fn #{side}_element_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let words = params.#{side}.words;
    let word = #{side}_elems_of(#{side}s[at + #{side}_word(2u / #{SIDE}_WORD_ELEMS * pair, place, words)]);
    if (#{SIDE}_WORD_ELEMS == 2u) {
        return word;
    }
    let second = min(2u * pair + 1u, words - 1u);
    return vec2(word.x, #{side}_elems_of(#{side}s[at + #{side}_word(second, place, words)]).x);
}

fn #{side}_element_quad(at: u32, place: u32, quad: u32) -> vec4<f32> {
    return vec4(#{side}_element_pair(at, place, 2u * quad), #{side}_element_pair(at, place, 2u * quad + 1u));
}

#endif
#if codec.reads
#include codec.file

#elif codec.form != "elements"
#include codec.file

#if codec.form == "signs"
// The norm of a vector, and the norm of its residual.
fn #{side}_scales_of(at: u32, place: u32) -> vec2<f32> {
    return unpack2x16float(#{side}s[at + params.#{side}.scales_at + place]);
}

#endif
// The scale of codes: that of their chunk, or that of the whole vector.
fn #{side}_scale_of(at: u32, place: u32, chunk: u32) -> f32 {
#if codec.form == "blocks"
    let word = #{side}s[at + params.#{side}.scales_at + chunk / 2u * PAGE_POSITIONS + place];
    return unpack2x16float(word)[chunk % 2u];
#elif codec.form == "signs"
    return #{side}_scales_of(at, place).x;
#else
    return unpack2x16float(#{side}s[at + params.#{side}.scales_at + place / 2u])[place % 2u];
#endif
}

// The words of one position that contain the codes from element e on.
fn #{side}_code_words(at: u32, place: u32, e: u32) -> vec2<u32> {
    let words = params.#{side}.code_words;
    let first = e / CHUNK * #{SIDE}_BITS + #{side}_words_of(e % CHUNK / #{SIDE}_RUN);
    return vec2(
        #{side}s[at + #{side}_word(first.x, place, words)],
        #{side}s[at + #{side}_word(first.y, place, words)],
    );
}

// Elements 2 pair and 2 pair + 1.
fn #{side}_code_pair(at: u32, place: u32, pair: u32) -> vec2<f32> {
    let words = #{side}_code_words(at, place, 2u * pair);
    let i = 2u * pair % CHUNK;
    let numbers = vec2(
        #{side}_number_of(#{side}_code_in(words, i)),
        #{side}_number_of(#{side}_code_in(words, i + 1u)),
    );
    return numbers * #{side}_scale_of(at, place, 2u * pair / CHUNK);
}

// Four neighbouring elements, which share the same words.
fn #{side}_code_quad(at: u32, place: u32, quad: u32) -> vec4<f32> {
    let words = #{side}_code_words(at, place, 4u * quad);
    let i = 4u * quad % CHUNK;
    let numbers = vec4(
        #{side}_number_of(#{side}_code_in(words, i)),
        #{side}_number_of(#{side}_code_in(words, i + 1u)),
        #{side}_number_of(#{side}_code_in(words, i + 2u)),
        #{side}_number_of(#{side}_code_in(words, i + 3u)),
    );
    return numbers * #{side}_scale_of(at, place, 4u * quad / CHUNK);
}

#endif
// Elements of a page of either kind.
#if not codec.in_basis
fn #{side}_pair(source: PageAt, place: u32, pair: u32) -> vec2<f32> {
#if codec.windowed
    if (source.exact) {
        return #{side}_element_pair(source.at, place, pair);
    }
#endif
    return #{side}_#{"element" if codec.form == "elements" else "code"}_pair(source.at, place, pair);
}

#endif
fn #{side}_quad(source: PageAt, place: u32, quad: u32) -> vec4<f32> {
#if codec.windowed
    if (source.exact) {
        return #{side}_element_quad(source.at, place, quad);
    }
#endif
#if codec.form == "signs"
    // For keys, the quads of elements are followed by as many quads of signs, which are multiplied by the
    // projected query.
    let quads = params.cache.head_dim / 4u;
    if (quad < quads) {
        return #{side}_code_quad(source.at, place, quad);
    }
    let e = 4u * (quad - quads);
    let signs = #{side}_code_words(source.at, place, e).y >> (e % CHUNK);
    let ones = vec4<f32>((vec4(signs) >> vec4(0u, 1u, 2u, 3u)) & vec4(1u));
    return (2.0 * ones - 1.0) * #{side}_scales_of(source.at, place).y;
#else
    return #{side}_#{"element" if codec.form == "elements" else "code"}_quad(source.at, place, quad);
#endif
}

#endfor
#if k.windowed
// Four neighbouring elements of the mean of a page of keys.
fn key_mean_quad(at: u32, quad: u32) -> vec4<f32> {
    let scale = unpack2x16float(keys[at + params.cache.head_dim / 4u]).x;
    return vec4<f32>(unpack4xI8(keys[at + quad])) * scale;
}

#endif
#endif
