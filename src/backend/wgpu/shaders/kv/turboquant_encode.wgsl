fn put_code(words: ptr<function, array<u32, SIDE_BITS>>, i: u32, code: u32) {
    (*words)[i / 16u] |= (code & 3u) << (2u * (i % 16u));
    (*words)[2] |= code >> 2u << i;
}
