//! Drafts from the text itself: finds an earlier occurrence of the last tokens, and drafts the tokens that
//! followed it, for as long as the text stays the same.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::{Drafter, Speculation};
use crate::error::Error;

/// Prompt lookup: searches the prompt and the generated text for the last tokens of a sequence. The tokens
/// after their newest earlier occurrence are the draft, until the text diverges from it. Costs one look-up
/// per token, and needs no second model.
#[derive(Clone, Debug)]
pub struct NgramLookup {
    /// Number of tokens to match, at least 1.
    pub size: usize,
    /// Maximum number of tokens per draft.
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
        Ok(Box::new(Index { size, max, ends: HashMap::default(), n_indexed: 0, place: None }))
    }
}

/// Index of the n-grams of a text: the end of the newest occurrence of each.
#[derive(Debug)]
struct Index {
    size: usize,
    max: usize,
    /// Hash of an n-gram to the number of tokens up to its end. The tokens are compared to detect collisions.
    ends: HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>,
    /// Number of tokens whose n-grams are in the index.
    n_indexed: usize,
    /// Number of tokens up to the end of an earlier n-gram that equals the last one.
    place: Option<usize>,
}

impl Index {
    /// Indexes the new tokens, and returns the position after the matching earlier occurrence, if any.
    fn find(&mut self, tokens: &[u32]) -> Option<usize> {
        for at in self.n_indexed..tokens.len() {
            let (end, place) = (at + 1, self.place);
            self.place = place.filter(|place| tokens[*place] == tokens[at]).map(|place| place + 1);
            let Some(start) = end.checked_sub(self.size) else { continue };
            let last = &tokens[start..end];
            if let Some(newest) = self.ends.insert(hash(last), end as u32).map(|newest| newest as usize) {
                let is_same = tokens[newest - self.size..newest] == *last;
                self.place = self.place.or(is_same.then_some(newest));
            }
        }
        self.n_indexed = tokens.len();
        self.place
    }
}

impl Drafter for Index {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) -> Result<(), Error> {
        if let Some(end) = self.find(tokens) {
            for i in end..end + most.min(self.max) {
                // Text that repeats itself continues with its own draft.
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

    #[test]
    fn a_place_is_followed_until_the_text_leaves_it() {
        let mut index = NgramLookup { size: 2, max: 2 }.start().unwrap();
        // 1 2 occurs twice. The text continues as after the first occurrence, to which 7 8 has led.
        let text = [7, 8, 1, 2, 3, 9, 1, 2, 4, 7, 8];
        assert_eq!(drafted(&mut *index, &text, 4), [1, 2]);
        assert_eq!(drafted(&mut *index, &[&text[..], &[1, 2]].concat(), 1), [3]);
        assert_eq!(drafted(&mut *index, &[&text[..], &[1, 2, 4]].concat(), 2), [7, 8]);
    }

    proptest! {
        /// A draft followed the same last tokens somewhere, and there is a draft if they occurred before.
        #[test]
        fn a_draft_followed_the_same_tokens_before(
            tokens in proptest::collection::vec(0..4_u32, 0..60),
            size in 1..5_usize,
            cut in 0..60_usize,
        ) {
            let mut index = NgramLookup { size, max: 8 }.start().unwrap();
            for n in cut.min(tokens.len())..=tokens.len() {
                let seen = &tokens[..n];
                let draft = drafted(&mut *index, seen, 8);
                let Some(last) = seen.len().checked_sub(size).map(|at| &seen[at..]) else {
                    prop_assert!(draft.is_empty());
                    continue;
                };
                let places = (0..seen.len() - size).filter(|at| seen[*at..*at + size] == *last);
                let mut goes_on = places.map(|at| {
                    let mut long = seen.to_vec();
                    (0..8).for_each(|i| long.push(long[at + size + i]));
                    long.split_off(seen.len())
                });
                let first = goes_on.next();
                prop_assert_eq!(first.is_some(), draft.len() == 8);
                let same = first == Some(draft.clone()) || goes_on.any(|on| on == draft);
                prop_assert!(draft.is_empty() || same);
            }
        }
    }
}
