// Where a word of a page of values lies: [PAGE_POSITIONS, words].
fn value_word(word: u32, place: u32, words: u32) -> u32 {
    return place * words + word;
}
