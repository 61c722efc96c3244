//! Perplexity of a model on a text, scored as in llama-perplexity: the second half of each chunk, each token
//! from the logits of the one before it, with an empty context at the start of the chunk.

use super::score::{Mean, kl_divergence, log_softmax};
use super::{Chunks, as_fed};
use sterna_engine::Error;
use sterna_engine::{Engine, Session};
use sterna_program::sampling::argmax;

/// Sums over all scored positions of a text.
#[derive(Debug, Default)]
pub struct Scores {
    /// `-ln p` of the actual next token: PPL is the exponential of its mean.
    pub nll: Mean,
    /// The same for the base of the comparison.
    pub base_nll: Mean,
    /// Kullback-Leibler divergence from the base.
    pub kl: Mean,
    /// 1 if the most likely token is the same as the base's, else 0.
    pub same_top: Mean,
    /// The largest divergence.
    pub max_kl: f64,
}

impl Scores {
    /// Adds a position: the log-probabilities of the base and of this model, `[n_vocab]` each, and the actual
    /// next token.
    pub fn compare(&mut self, base: &[f32], log_probs: &[f32], next: usize) {
        let kl = kl_divergence(base, log_probs);
        self.kl.add(kl);
        self.max_kl = self.max_kl.max(kl);
        self.base_nll.add(-f64::from(base[next]));
        self.same_top.add(f64::from(argmax(base) == argmax(log_probs)));
    }
}

/// Scores one chunk: `each` gets the log-probabilities `[n_vocab]` of each scored position, and the actual
/// next token. Clears the session's context first.
///
/// # Errors
/// As [`Session::logits_each`]; any error of `each`, at once.
pub fn score_chunk<E: From<Error>>(
    session: &mut Session,
    chunk: &[u32],
    mut each: impl FnMut(&[f32], usize) -> Result<(), E>,
) -> Result<(), E> {
    let fed = as_fed(session.engine().tokenizer()?, chunk);
    let first = chunk.len() / 2;
    session.cut_back(0);
    session.prefill(&fed[..first])?;
    let mut log_probs = vec![0.0; session.engine().hyper().n_vocab];
    session.logits_each(&fed[first..chunk.len() - 1], |i, logits| {
        log_softmax(logits, &mut log_probs);
        each(&log_probs, chunk[first + i + 1] as usize)
    })
}

/// The mean of `-ln p` over the scored positions of a text. Calls `go_on` before each chunk.
///
/// # Errors
/// As [`score_chunk`]; any error of `go_on`.
pub fn mean_nll<E: From<Error>>(
    engine: &Engine,
    text: &Chunks,
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<Mean, E> {
    let mut session = engine.session()?;
    let mut nll = Mean::default();
    for chunk in text.iter() {
        go_on()?;
        score_chunk(&mut session, chunk, |log_probs, next| {
            nll.add(-f64::from(log_probs[next]));
            Ok::<_, E>(())
        })?;
    }
    Ok(nll)
}
