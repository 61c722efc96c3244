//! A SentencePiece-like vocabulary that is only in `tokenizer.json`: spaces are U+2581, characters without a
//! token are bytes, and pairs merge by rank where GGUF's `llama` vocabulary has a score per token.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;

/// Replacement of a space.
pub const SPACE: char = '\u{2581}';

/// Changes to texts before pairs are merged.
#[derive(Debug, Default)]
pub struct Spaces {
    /// True if a space is prepended to a text.
    pub prefix: bool,
    /// True if a text is split before each space.
    pub splits: bool,
    /// Notes on properties for which GGUF has no key.
    pub notes: Vec<String>,
}

/// True if a tokenizer replaces spaces by U+2581 or falls back to bytes, and is not byte-level.
pub fn is_metaspace(tokenizer: &Json) -> bool {
    let (normalizers, steps) = both(tokenizer);
    if normalizers.iter().chain(&steps).any(|step| kind(step) == "ByteLevel") {
        return false;
    }
    let falls_back = tokenizer["model"]["byte_fallback"].as_bool() == Some(true);
    falls_back
        || normalizers.iter().any(|step| replaces(step))
        || steps.iter().any(|step| kind(step) == "Metaspace")
}

impl Spaces {
    /// Reads the normaliser and the pre-tokenizer.
    ///
    /// # Errors
    /// Properties that a `llama` vocabulary cannot express.
    pub fn of(tokenizer: &Json) -> Result<Self, String> {
        let (normalizers, steps) = both(tokenizer);
        let (mut spaces, mut replaced) = (Self::default(), false);
        for step in normalizers {
            match kind(step) {
                "Prepend" if is_space(&step["prepend"]) => spaces.prefix = true,
                _ if replaces(step) => replaced = true,
                other => spaces.notes.push(super::pre::lost_normalizer(other)),
            }
        }
        for step in steps {
            match kind(step) {
                "Metaspace" if is_space(&step["replacement"]) => {
                    replaced = true;
                    let scheme = step["prepend_scheme"].as_str().unwrap_or("always");
                    if scheme != "never" && step["add_prefix_space"].as_bool() != Some(false) {
                        spaces.prefix = true;
                        let once = if scheme == "first" { " and none after a special token" } else { "" };
                        spaces.notes.push(format!(
                            "the tokenizer's Metaspace adds no space before a text that begins with \
                             one{once}, but GGUF has no key for that: Sterna adds the space"
                        ));
                    }
                    spaces.splits = step["split"].as_bool().unwrap_or(true);
                }
                // After the replacement no space is left to split at.
                "Split" if replaced && step["pattern"]["String"] == " " => {}
                other => {
                    return Err(format!(
                        "its pre-tokenizer has a step {other}, which GGUF cannot express for a SentencePiece \
                         vocabulary"
                    ));
                }
            }
        }
        if !replaced {
            return Err(
                "its spaces are not U+2581, which GGUF requires for a SentencePiece vocabulary".into()
            );
        }
        Ok(spaces)
    }
}

/// Steps of the normaliser and of the pre-tokenizer.
fn both(tokenizer: &Json) -> (Vec<&Json>, Vec<&Json>) {
    (flat(&tokenizer["normalizer"], "normalizers"), flat(&tokenizer["pre_tokenizer"], "pretokenizers"))
}

fn flat<'j>(json: &'j Json, parts: &str) -> Vec<&'j Json> {
    match json.get(parts).and_then(Json::as_array) {
        Some(steps) => steps.iter().flat_map(|step| flat(step, parts)).collect(),
        None if json.is_null() => Vec::new(),
        None => vec![json],
    }
}

fn kind(step: &Json) -> &str {
    step["type"].as_str().unwrap_or("without a type")
}

fn is_space(json: &Json) -> bool {
    json.as_str().is_some_and(|text| text.chars().eq([SPACE]))
}

fn replaces(step: &Json) -> bool {
    kind(step) == "Replace" && step["pattern"]["String"] == " " && is_space(&step["content"])
}

/// Both sides of a merge, from `"a b"` or `["a", "b"]`.
pub fn pair(json: &Json) -> Option<(String, String)> {
    match json {
        Json::String(text) => text.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())),
        Json::Array(pair) => match &pair[..] {
            [Json::String(left), Json::String(right)] => Some((left.clone(), right.clone())),
            _ => None,
        },
        _ => None,
    }
}

/// Pairs in merge order, and the tokens that they produce.
pub struct Merges<'m> {
    ranks: HashMap<(&'m str, &'m str), usize>,
    /// Lowest rank of the pairs that produce each token.
    best: HashMap<String, usize>,
}

impl<'m> Merges<'m> {
    /// The last one of equal pairs is used, as in `tokenizers`.
    pub fn new(pairs: &'m [(String, String)]) -> Self {
        let both = |(left, right): &'m (String, String)| (left.as_str(), right.as_str());
        let ranks = pairs.iter().map(both).zip(0..).collect();
        let mut best = HashMap::new();
        for (rank, (left, right)) in pairs.iter().enumerate() {
            best.entry(format!("{left}{right}")).or_insert(rank);
        }
        Self { ranks, best }
    }

    /// Score with which a scored vocabulary merges a token's pair in the same order: minus the rank.
    ///
    /// If merging the token's own spelling ends in the token, its last pair is the only one that ever
    /// produces it, in any text: neighbours that spell the token were produced by the merges of that spelling
    /// alone, in the same order. So the order of scores is exactly the order of ranks. For other tokens the
    /// best pair is used.
    pub fn score(&self, token: &str) -> f32 {
        let rank = self.last(token).or_else(|| self.best.get(token).copied());
        -(rank.unwrap_or(self.ranks.len()) as f32)
    }

    /// True if scores can produce a token where ranks do not: its own spelling merges to something else,
    /// although it has halves in the vocabulary that are not a pair.
    pub fn is_doubtful(&self, token: &str, vocabulary: &HashSet<&str>) -> bool {
        let is_joined = |at: usize| {
            let (left, right) = token.split_at(at);
            let both = vocabulary.contains(left) && vocabulary.contains(right);
            both && !self.ranks.contains_key(&(left, right))
        };
        self.last(token).is_none() && token.char_indices().skip(1).any(|(at, _)| is_joined(at))
    }

    /// True if a pair produces the token.
    pub fn is_made(&self, token: &str) -> bool {
        self.best.contains_key(token)
    }

    /// Rank of the last pair, if merging the spelling of a token ends in that token.
    fn last(&self, token: &str) -> Option<usize> {
        let mut ends: Vec<usize> = token.char_indices().skip(1).map(|(at, _)| at).collect();
        ends.push(token.len());
        let mut last = None;
        while ends.len() > 1 {
            let start = |at: usize| if at == 0 { 0 } else { ends[at - 1] };
            let rank = |at: usize| {
                let sides = (&token[start(at)..ends[at]], &token[ends[at]..ends[at + 1]]);
                self.ranks.get(&sides).map(|rank| (*rank, at))
            };
            let (rank, at) = (0..ends.len() - 1).filter_map(rank).min()?;
            ends.remove(at);
            last = Some(rank);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_s_score_is_the_rank_of_the_pair_that_makes_it() {
        let pairs: Vec<_> =
            ["b c", "a bc", "a b", "ab c", "d e"].map(|text| pair(&json!(text)).unwrap()).into();
        let merges = Merges::new(&pairs);
        let of = |token: &str| merges.score(token);
        assert_eq!(
            [of("bc"), of("abc"), of("ab"), of("de"), of("a"), of("<x>")],
            [0.0, -1.0, -2.0, -4.0, -5.0, -5.0]
        );
        // `b c` comes first, so `ab c` never produces the token.
        let pairs = &pairs[..1].iter().chain(&pairs[2..4]).cloned().collect::<Vec<_>>();
        let merges = Merges::new(pairs);
        assert_eq!(merges.score("abc"), -2.0);
        let vocabulary = HashSet::from(["a", "b", "c", "ab", "bc", "abc"]);
        assert!(merges.is_doubtful("abc", &vocabulary) && !merges.is_doubtful("bc", &vocabulary));
    }

    #[test]
    fn layouts_are_told_apart() {
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let prepend = json!({"type": "Prepend", "prepend": "▁"});
        let llama = json!({"normalizer": {"type": "Sequence", "normalizers": [prepend, replace]}});
        let split = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"});
        let gemma = json!({"normalizer": replace, "pre_tokenizer": split});
        let metaspace = |rest: Json| {
            let mut step = json!({"type": "Metaspace", "replacement": "▁"});
            step.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            json!({ "pre_tokenizer": step })
        };
        for (tokenizer, prefix, splits) in [
            (llama, true, false),
            (gemma, false, false),
            (metaspace(json!({"prepend_scheme": "always", "split": false})), true, false),
            (metaspace(json!({"prepend_scheme": "never"})), false, true),
            (metaspace(json!({"add_prefix_space": false})), false, true),
        ] {
            assert!(is_metaspace(&tokenizer));
            let spaces = Spaces::of(&tokenizer).unwrap();
            assert_eq!((spaces.prefix, spaces.splits), (prefix, splits), "{tokenizer}");
        }
        assert!(!is_metaspace(
            &json!({"pre_tokenizer": {"type": "ByteLevel"}, "model": {"byte_fallback": true}})
        ));
        let said = Spaces::of(&json!({"model": {"byte_fallback": true}})).unwrap_err();
        assert!(said.contains("U+2581"), "{said}");
        let digits = json!({"normalizer": replace, "pre_tokenizer": {"type": "Digits"}});
        assert!(Spaces::of(&digits).unwrap_err().contains("Digits"));
    }
}
