// Where a word of a page of keys lies: [words, PAGE_POSITIONS].
fn key_word(word: u32, place: u32, words: u32) -> u32 {
    return word * PAGE_POSITIONS + place;
}
