fn put_code(words: ptr<function, array<u32, SIDE_BITS>>, i: u32, code: u32) {
    (*words)[i / 8u] |= code << (4u * (i % 8u));
}
