//! A byte-level BPE vocabulary of our own: every byte, made-up merges, special tokens. It can encode any
//! text.

use std::collections::HashSet;

use super::preset::{Family, Spec};
use super::random::Random;

/// Maximum length in bytes of a token that merges use as a part. No token is longer than twice that.
const MAX_PART_BYTES: usize = 6;
/// Letters for merges, the most frequent first.
const LETTERS: &str = "etaoinshrdlcumwfgypbvkxjqz";

pub(super) struct Vocab {
    /// Spelling in the byte-level alphabet.
    pub tokens: Vec<String>,
    /// 1 normal, 3 control.
    pub kinds: Vec<i32>,
    /// `left right`, best first; the result is the token with the index of the merge plus 256.
    pub merges: Vec<String>,
    pub bos: u32,
    pub eos: u32,
    pub eot: u32,
    pub pad: u32,
}

impl Vocab {
    pub fn new(spec: &Spec) -> Self {
        let n_special = spec.n_special();
        let mut tokens: Vec<String> = alphabet().map(String::from).to_vec();
        let merges = merge(&mut tokens, spec.n_vocab - n_special);
        let first = tokens.len() as u32;
        tokens.extend((0..n_special).map(|at| special(spec, at)));
        let mut kinds = vec![1; first as usize];
        kinds.resize(spec.n_vocab, 3);
        let (eos, eot, pad) = match (spec.family, n_special) {
            (Family::Gpt2, _) => (0, 0, 0),
            (_, 4) => (1, 2, 3),
            _ => (1, 9, 1),
        };
        Self { tokens, kinds, merges, bos: first, eos: first + eos, eot: first + eot, pad: first + pad }
    }
}

/// Byte-level BPE spelling of each of the 256 bytes, in the order of GPT-2's vocabulary: printable Latin-1
/// characters as themselves, the others as the characters from U+0100 on.
fn alphabet() -> [char; 256] {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0x100..).take((0..256).filter(|byte| !printable(byte)).count());
    let mut characters = (0..256).filter(printable).chain(others);
    std::array::from_fn(|_| characters.next().and_then(char::from_u32).expect("256 characters"))
}

/// Adds made-up tokens until there are `n_tokens`, and returns their merges: of letters, some with a space
/// before them (`Ġ`), so that common words take a few tokens. The same for every seed.
fn merge(tokens: &mut Vec<String>, n_tokens: usize) -> Vec<String> {
    let mut random = Random::new(0, "merges");
    // The possible halves of merges: letters and results of earlier merges; frequent ones first.
    let mut parts: Vec<String> = LETTERS.chars().map(String::from).collect();
    let mut seen: HashSet<String> = parts.iter().cloned().collect();
    let space = "Ġ".to_owned();
    let mut merges = Vec::with_capacity(n_tokens - tokens.len());
    while tokens.len() < n_tokens {
        let right = parts[random.below(parts.len())].clone();
        let left =
            if random.below(4) == 0 { space.clone() } else { parts[random.below(parts.len())].clone() };
        let joined = format!("{left}{right}");
        if right.starts_with('Ġ') || !seen.insert(joined.clone()) {
            continue;
        }
        merges.push(format!("{left} {right}"));
        if joined.len() <= MAX_PART_BYTES {
            parts.push(joined.clone());
        }
        tokens.push(joined);
    }
    merges
}

/// Spelling of the special token with index `at`.
fn special(spec: &Spec, at: usize) -> String {
    if spec.family == Family::Gpt2 {
        return "<|endoftext|>".into();
    }
    let named: &[(usize, &str)] = match spec.n_special() {
        4 => &[(0, "begin_of_text"), (1, "end_of_text"), (2, "eot_id"), (3, "pad")],
        _ => &[
            (0, "begin_of_text"),
            (1, "end_of_text"),
            (4, "finetune_right_pad_id"),
            (6, "start_header_id"),
            (7, "end_header_id"),
            (8, "eom_id"),
            (9, "eot_id"),
            (10, "python_tag"),
        ],
    };
    match named.iter().find(|(place, _)| *place == at) {
        Some((_, name)) => format!("<|{name}|>"),
        None => {
            let before = named.iter().filter(|(place, _)| *place < at).count();
            format!("<|reserved_special_token_{}|>", at - before)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preset;

    #[test]
    fn tokens_are_unique_and_merges_make_them() {
        for name in ["tiny", "gpt2", "bitnet-2b-4t"] {
            let spec = Preset::by_name(name).unwrap().spec(None, None, 1).unwrap();
            let vocab = Vocab::new(&spec);
            assert_eq!((vocab.tokens.len(), vocab.kinds.len()), (spec.n_vocab, spec.n_vocab));
            let unique: HashSet<&String> = vocab.tokens.iter().collect();
            assert_eq!(unique.len(), spec.n_vocab, "{name}");
            assert_eq!(vocab.merges.len(), spec.n_vocab - 256 - spec.n_special());
            let mut known: HashSet<&str> = vocab.tokens[..256].iter().map(String::as_str).collect();
            for (merge, made) in vocab.merges.iter().zip(&vocab.tokens[256..]) {
                let (left, right) = merge.split_once(' ').unwrap();
                assert!(known.contains(left) && known.contains(right), "{merge} comes too early");
                assert_eq!(format!("{left}{right}"), *made);
                known.insert(made);
            }
        }
    }

    #[test]
    fn special_tokens_are_where_llama_3_has_them() {
        let spec = Preset::by_name("bitnet-2b-4t").unwrap().spec(None, None, 1).unwrap();
        let vocab = Vocab::new(&spec);
        assert_eq!((vocab.bos, vocab.eos, vocab.eot), (128_000, 128_001, 128_009));
        assert_eq!(vocab.tokens[128_009], "<|eot_id|>");
        assert_eq!(vocab.tokens[128_002], "<|reserved_special_token_0|>");
        assert_eq!(vocab.tokens[128_255], "<|reserved_special_token_247|>");
    }

    #[test]
    fn the_alphabet_is_gpt_2s() {
        let alphabet = alphabet();
        assert_eq!((alphabet[0], alphabet[93], alphabet[187], alphabet[255]), ('!', '~', 'ÿ', 'Ń'));
        assert!(alphabet.contains(&'Ġ') && alphabet.contains(&'Ċ'));
    }
}
