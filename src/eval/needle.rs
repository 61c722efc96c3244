//! Needles in a haystack, for models of any size: random tokens are inserted into a text, and the model
//! should continue them when their first half is repeated.
//!
//! Even a model that cannot answer questions copies what followed the same words before, if attention
//! retrieves it. So a needle is eight unrelated tokens. The first four, the cue, are repeated at the end of
//! the text. The score is the probability that the model then gives to each of the last four, the answer.

use std::collections::BTreeSet;

use ggml_types::turboquant::sign_bits;

use super::score::{Mean, log_softmax};
use super::{Chunks, as_fed};
use sterna_engine::Error;
use sterna_engine::{Engine, Session};
use sterna_program::sampling::argmax;
use sterna_tokenizer::Tokenizer;

/// Number of tokens that are repeated.
const CUE: usize = 4;
/// Number of tokens that should follow.
const ANSWER: usize = 4;

/// A text with needles in it.
#[derive(Clone, Debug)]
pub struct Haystack {
    tokens: Vec<u32>,
    needles: Vec<[u32; CUE + ANSWER]>,
}

/// Result of one needle.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NeedleResult {
    /// Mean natural logarithm of the probabilities of the answer's tokens.
    pub log_prob: f64,
    /// Share of them that were the model's first choice.
    pub retrieved: f64,
}

impl Haystack {
    /// Minimum number of positions for all needles with some text between them.
    pub const MIN_CTX: usize = 4 * Self::DEPTHS * (CUE + ANSWER);
    /// Number of needles in a text: at its start, at each tenth of it, and at its end.
    pub const DEPTHS: usize = 11;

    /// Depth of a needle, in per cent of the text.
    pub fn depth(i: usize) -> usize {
        100 * i / (Self::DEPTHS - 1)
    }

    /// Inserts needles into `text`; together they fill `n_ctx` positions less the room for a question. The
    /// first token of `text` stays the first. Needles consist of tokens of `pool` that are not in the text,
    /// if there are enough: the model knows these tokens, but has not seen them elsewhere in the text.
    /// `seed` selects them.
    ///
    /// # Panics
    /// If `n_ctx` is below [`MIN_CTX`](Self::MIN_CTX), `text` is shorter than that, or `pool` is empty.
    pub fn new(text: &[u32], n_ctx: usize, pool: &BTreeSet<u32>, seed: u64) -> Self {
        assert!(n_ctx >= Self::MIN_CTX && text.len() >= n_ctx && !pool.is_empty());
        let len = n_ctx - CUE - ANSWER;
        let text = &text[..len - Self::DEPTHS * (CUE + ANSWER)];
        let known: BTreeSet<u32> = text.iter().copied().collect();
        let mut draw: Vec<u32> = pool.difference(&known).copied().collect();
        // Uses each token once, if there are enough.
        let once = draw.len() >= Self::DEPTHS * (CUE + ANSWER);
        if !once {
            draw = pool.iter().copied().collect();
        }
        let mut words = sign_bits(seed, 64 * Self::DEPTHS * (CUE + ANSWER)).into_iter();
        let mut token = || {
            let at = (words.next().expect("one word per token") % draw.len() as u64) as usize;
            if once { draw.swap_remove(at) } else { draw[at] }
        };
        let needles: Vec<[u32; CUE + ANSWER]> =
            (0..Self::DEPTHS).map(|_| std::array::from_fn(|_| token())).collect();
        let mut tokens = text[..1].to_vec();
        let rest = &text[1..];
        for (i, needle) in needles.iter().enumerate() {
            tokens.extend_from_slice(needle);
            let at = |i: usize| i * rest.len() / (Self::DEPTHS - 1);
            if i + 1 < Self::DEPTHS {
                tokens.extend_from_slice(&rest[at(i)..at(i + 1)]);
            }
        }
        Self { tokens, needles }
    }

    /// The text with its needles.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Feeds the text to a model once, and then asks for each needle independently: one result per needle.
    ///
    /// # Errors
    /// As [`Session::logits`].
    pub fn ask(&self, session: &mut Session) -> Result<Vec<NeedleResult>, Error> {
        session.cut_back(0);
        session.prefill(&self.tokens)?;
        let mut log_probs = vec![0.0; session.engine().hyper().n_vocab];
        let mut all = Vec::with_capacity(self.needles.len());
        for needle in &self.needles {
            let mut found = NeedleResult::default();
            session.logits_each(question(needle), |i, logits| {
                found.hear(needle, i, logits, &mut log_probs);
                Ok::<(), Error>(())
            })?;
            all.push(found);
            // Fewer positions than any window keeps, so the rest of the cache is unchanged.
            session.cut_back(self.tokens.len());
        }
        Ok(all)
    }
}

/// The first `n` chunks of a text with needles inserted; empty if they are too short for needles.
pub fn haystacks(text: &Chunks, tokenizer: &Tokenizer, n: usize) -> Vec<Haystack> {
    let special = |token: &u32| tokenizer.is_eog(*token) || tokenizer.bos() == Some(*token);
    let pool: BTreeSet<u32> = text.tokens.iter().copied().filter(|token| !special(token)).collect();
    if text.n_ctx < Haystack::MIN_CTX || pool.is_empty() {
        return Vec::new();
    }
    let chunks = text.iter().take(n).enumerate();
    chunks
        .map(|(i, chunk)| Haystack::new(&as_fed(tokenizer, chunk), text.n_ctx, &pool, i as u64 + 1))
        .collect()
}

/// Results of the needles at one depth, over several haystacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtDepth {
    /// [`NeedleResult::retrieved`].
    pub retrieved: Mean,
    /// [`NeedleResult::log_prob`].
    pub log_prob: Mean,
}

/// Searches the needles of all haystacks: [`Haystack::DEPTHS`] results, or none without haystacks. Calls
/// `go_on` before each haystack.
///
/// # Errors
/// As [`Haystack::ask`] and [`Engine::session`]; any error of `go_on`.
pub fn search<E: From<Error>>(
    engine: &Engine,
    haystacks: &[Haystack],
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<Vec<AtDepth>, E> {
    if haystacks.is_empty() {
        return Ok(Vec::new());
    }
    let mut session = engine.session()?;
    let mut depths = vec![AtDepth::default(); Haystack::DEPTHS];
    for haystack in haystacks {
        go_on()?;
        for (depth, found) in depths.iter_mut().zip(haystack.ask(&mut session)?) {
            depth.retrieved.add(found.retrieved);
            depth.log_prob.add(found.log_prob);
        }
    }
    Ok(depths)
}

/// Tokens to feed after the text: the cue, and the answer without its last token.
fn question(needle: &[u32; CUE + ANSWER]) -> &[u32] {
    &needle[..CUE + ANSWER - 1]
}

impl NeedleResult {
    /// Adds the logits after token `i` of a question; `log_probs` is a buffer of the same length.
    fn hear(&mut self, needle: &[u32; CUE + ANSWER], i: usize, logits: &[f32], log_probs: &mut [f32]) {
        if i + 1 < CUE {
            return;
        }
        let next = needle[i + 1];
        log_softmax(logits, log_probs);
        self.log_prob += f64::from(log_probs[next as usize]) / ANSWER as f64;
        self.retrieved += f64::from(u8::from(argmax(logits) == next)) / ANSWER as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits of a model that copies the token after an earlier occurrence of the last two tokens, if that
    /// was within the last `memory` tokens.
    fn copied(seen: &[u32], memory: usize, n_vocab: usize) -> Vec<f32> {
        let mut logits = vec![0.0; n_vocab];
        let last = &seen[seen.len() - 2..];
        let before = seen[..seen.len() - 1].windows(2).rposition(|pair| pair == last);
        if let Some(at) = before.filter(|at| at + memory >= seen.len()) {
            logits[seen[at + 2] as usize] = 20.0;
        }
        logits
    }

    #[test]
    fn a_model_that_copies_finds_what_it_remembers() {
        let text: Vec<u32> = (0..400).map(|i| i % 50).collect();
        let haystack = Haystack::new(&text, 400, &(0..300).collect(), 5);
        let found = |memory| {
            let of_needle = |needle: &[u32; CUE + ANSWER]| {
                let (mut seen, mut found) = (haystack.tokens.clone(), NeedleResult::default());
                for (i, token) in question(needle).iter().enumerate() {
                    seen.push(*token);
                    found.hear(needle, i, &copied(&seen, memory, 300), &mut [0.0; 300]);
                }
                found
            };
            haystack.needles.iter().map(of_needle).collect::<Vec<_>>()
        };
        let all = found(400);
        assert!(all.iter().all(|found| found.retrieved == 1.0 && found.log_prob > -1e-3), "{all:?}");
        let newest = found(60);
        assert!(newest[10].retrieved == 1.0 && newest[..9].iter().all(|found| found.retrieved == 0.0));
        // A token that is not copied is one of 300.
        assert!((newest[0].log_prob + 300_f64.ln()).abs() < 1e-4, "{newest:?}");
    }

    #[test]
    fn needles_are_where_they_belong_and_of_tokens_of_their_own() {
        let text: Vec<u32> = (0..400).map(|i| i % 50).collect();
        let pool: BTreeSet<u32> = (0..300).collect();
        let haystack = Haystack::new(&text, 400, &pool, 5);
        assert_eq!(haystack.tokens.len(), 400 - CUE - ANSWER);
        assert_eq!((haystack.tokens[0], &haystack.tokens[1..9]), (text[0], &haystack.needles[0][..]));
        assert!(haystack.tokens.ends_with(&haystack.needles[10]));
        let mut seen = BTreeSet::new();
        for (i, needle) in haystack.needles.iter().enumerate() {
            assert!(needle.iter().all(|token| (50..300).contains(token) && seen.insert(*token)));
            let at = haystack.tokens.windows(8).position(|window| window == needle).unwrap();
            let depth = 100.0 * at as f64 / (haystack.tokens.len() - 8) as f64;
            assert!((depth - Haystack::depth(i) as f64).abs() < 1.0, "{depth}");
        }
        // The same seed gives the same needles; and a small pool must not fail.
        assert_eq!(Haystack::new(&text, 400, &pool, 5).tokens, haystack.tokens);
        assert_ne!(Haystack::new(&text, 400, &pool, 6).tokens, haystack.tokens);
        Haystack::new(&text, 400, &(0..3).collect(), 5);
    }
}
