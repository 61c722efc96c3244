//! Drafts from the text itself: what followed when its last tokens came before.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::{Drafter, Speculation};
use crate::Error;

/// Prompt lookup: the last tokens of a sequence are looked for in its prompt and text, and the tokens behind
/// the newest place where they came before are the draft. Costs a look-up per token, and no second model.
#[derive(Clone, Debug)]
pub struct NgramLookup {
    /// Tokens that are looked for, at least 1.
    pub size: usize,
    /// Most tokens of a draft.
    pub max: usize,
}

impl Default for NgramLookup {
    fn default() -> Self {
        Self { size: 3, max: 48 }
    }
}

impl Speculation for NgramLookup {
    fn start(&self) -> Result<Box<dyn Drafter>, Error> {
        let (size, max) = (self.size, self.max);
        if size == 0 {
            let (option, want) = ("NgramLookup::size", "at least 1".into());
            return Err(Error::Option { option, want, got: "0".into() });
        }
        Ok(Box::new(Index { size, max, ends: HashMap::default(), n_indexed: 0, newest: None }))
    }
}

/// Where the n-grams of a text end, the newest place of each.
#[derive(Debug)]
struct Index {
    size: usize,
    max: usize,
    /// Hash of an n-gram to the number of tokens up to its end. Equal hashes are told apart by the tokens.
    ends: HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>,
    /// Tokens whose n-grams are in the index.
    n_indexed: usize,
    /// The place before, of the n-gram that ends with the last of these.
    newest: Option<u32>,
}

impl Index {
    /// Takes up the tokens that are new, and returns where the last n-gram ended before.
    fn find(&mut self, tokens: &[u32]) -> Option<usize> {
        for end in (self.n_indexed + 1).max(self.size)..=tokens.len() {
            self.newest = self.ends.insert(hash(&tokens[end - self.size..end]), end as u32);
        }
        self.n_indexed = tokens.len();
        let end = self.newest? as usize;
        let last = &tokens[tokens.len() - self.size..];
        (tokens[end - self.size..end] == *last).then_some(end)
    }
}

impl Drafter for Index {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) -> Result<(), Error> {
        if let Some(end) = self.find(tokens) {
            for i in end..end + most.min(self.max) {
                // A text that repeats itself goes on with its own draft.
                draft.push(tokens.get(i).copied().unwrap_or_else(|| draft[i - tokens.len()]));
            }
        }
        Ok(())
    }

    fn is_ready(&mut self, tokens: &[u32]) -> bool {
        self.max > 0 && self.find(tokens).is_some()
    }
}

/// FNV-1a over tokens.
fn hash(tokens: &[u32]) -> u64 {
    let mix = |sum: u64, token: &u32| (sum ^ u64::from(*token)).wrapping_mul(0x0100_0000_01b3);
    tokens.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drafted(index: &mut dyn Drafter, tokens: &[u32], most: usize) -> Vec<u32> {
        let mut draft = Vec::new();
        index.draft(tokens, most, &mut draft).unwrap();
        draft
    }

    #[test]
    fn the_newest_place_counts_and_a_repetition_goes_on() {
        let mut index = NgramLookup { size: 2, max: 6 }.start().unwrap();
        assert!(drafted(&mut *index, &[1, 2, 3, 1, 2, 4, 1], 3).is_empty());
        assert_eq!(drafted(&mut *index, &[1, 2, 3, 1, 2, 4, 1, 2], 3), [4, 1, 2]);
        assert_eq!(drafted(&mut *index, &[1, 2, 3, 1, 2, 4, 1, 2], 9), [4, 1, 2, 4, 1, 2]);
        assert!(NgramLookup { size: 0, max: 6 }.start().is_err());
    }

    proptest! {
        /// Token by token or all at once, the draft is what a search from the end finds.
        #[test]
        fn an_index_finds_what_a_search_finds(
            tokens in proptest::collection::vec(0..4_u32, 0..60),
            size in 1..5_usize,
            cut in 0..60_usize,
        ) {
            let mut index = NgramLookup { size, max: 8 }.start().unwrap();
            for n in cut.min(tokens.len())..=tokens.len() {
                let seen = &tokens[..n];
                let last = seen.len().checked_sub(size).map(|at| &seen[at..]);
                let found = last.and_then(|last| {
                    (0..seen.len() - size).rev().find(|at| seen[*at..*at + size] == *last)
                });
                let want = found.map_or(Vec::new(), |at| {
                    let mut long = seen.to_vec();
                    (0..8).for_each(|i| long.push(long[at + size + i]));
                    long[at + size..at + size + 8].to_vec()
                });
                prop_assert_eq!(drafted(&mut *index, seen, 8), want);
            }
        }
    }
}
