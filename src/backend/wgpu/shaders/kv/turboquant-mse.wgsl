// TurboQuant: Lloyd-Max codes, indices of a table in the cache's parameters.
//
// A chunk of 32 codes takes as many words as a code has bits:
//   turboquant-4, 4 bits: 8 codes per word
//   turboquant, 3 bits: the low two bits of 16 codes in each of the first two words, the top bits in the
//     third
//   tq3_0, 2 bits and a sign: 16 codes in each of the first two words; in the third the signs of the
//     projection of the residual, 1 if not negative
#if codec.bits == 4
const #{SIDE}_BITS: u32 = 4u;

// Codes that share the words of a run, and the indices of these words in the chunk.
const #{SIDE}_RUN: u32 = 8u;

fn #{side}_words_of(run: u32) -> vec2<u32> {
    return vec2(run);
}

fn #{side}_code_in(words: vec2<u32>, i: u32) -> u32 {
    return (words.x >> (4u * (i % 8u))) & 15u;
}
#else
const #{SIDE}_BITS: u32 = 3u;

// Codes that share the words of a run, and the indices of these words in the chunk; the second has top bits
// or signs.
const #{SIDE}_RUN: u32 = 16u;

fn #{side}_words_of(run: u32) -> vec2<u32> {
    return vec2(run, 2u);
}

fn #{side}_code_in(words: vec2<u32>, i: u32) -> u32 {
#if codec.form == "signs"
    return (words.x >> (2u * (i % 16u))) & 3u;
#else
    return ((words.x >> (2u * (i % 16u))) & 3u) | (((words.y >> i) & 1u) << 2u);
#endif
}
#endif

// Values of the codes, in workgroup memory for all threads.
var<workgroup> #{side}_table: array<f32, 16>;

fn #{side}_prepare() {
    if (thread < 16u) {
        #{side}_table[thread] = params.#{side}.numbers[thread / 4u][thread % 4u];
    }
}

fn #{side}_number_of(code: u32) -> f32 {
    return #{side}_table[code];
}

#if writes
fn put_code(words: ptr<function, array<u32, SIDE_BITS>>, i: u32, code: u32) {
#if codec.bits == 4
    (*words)[i / 8u] |= code << (4u * (i % 8u));
#elif codec.form == "signs"
    (*words)[i / 16u] |= code << (2u * (i % 16u));
#else
    (*words)[i / 16u] |= (code & 3u) << (2u * (i % 16u));
    (*words)[2] |= (code >> 2u) << i;
#endif
}
#endif
