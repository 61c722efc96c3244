//! Effect of a KV cache on a model: compares two caches on a text, and attention with the model's own keys
//! before and after encoding.

use std::sync::Arc;

use ggml_types::turboquant::KeyBasis;
use ggml_types::{KvCodec, QuantError};

use super::perplexity::Scores;
use super::probe::{AttentionKl, Probe, Spread};
use super::score::{Mean, log_softmax};
use super::{Chunks, OUTPUTS, as_fed};
use sterna_engine::Error;
use sterna_engine::{Engine, EngineOptions, Session};

/// Rows of a chunk whose attention is measured.
const ROWS: usize = 16;

/// Number of first positions of a chunk whose attention is measured: they run in one step.
const PROBED: usize = 16_384;

/// Scores a text with two engines in parallel. Calls `go_on` before each step.
///
/// # Errors
/// As [`Session::logits_each`]; any error of `go_on`.
pub fn compare<E: From<Error>>(
    base: &Engine,
    other: &Engine,
    text: &Chunks,
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<Scores, E> {
    let mut sessions = [base.session()?, other.session()?];
    let n_vocab = base.hyper().n_vocab;
    let (mut expected, mut log_probs) = (vec![0.0; OUTPUTS * n_vocab], vec![0.0; n_vocab]);
    let mut scores = Scores::default();
    for chunk in text.iter() {
        let fed = as_fed(base.tokenizer()?, chunk);
        for session in &mut sessions {
            session.cut_back(0);
            session.prefill(&fed[..chunk.len() / 2])?;
        }
        for first in (chunk.len() / 2..chunk.len() - 1).step_by(OUTPUTS) {
            go_on()?;
            let piece = &fed[first..(first + OUTPUTS).min(chunk.len() - 1)];
            let [base, other] = &mut sessions;
            feed(base, piece, |i, logits| log_softmax(logits, &mut expected[i * n_vocab..][..n_vocab]))?;
            feed(other, piece, |i, logits| {
                log_softmax(logits, &mut log_probs);
                let next = chunk[first + i + 1] as usize;
                scores.nll.add(-f64::from(log_probs[next]));
                scores.compare(&expected[i * n_vocab..][..n_vocab], &log_probs, next);
            })?;
        }
    }
    Ok(scores)
}

fn feed(session: &mut Session, tokens: &[u32], mut row: impl FnMut(usize, &[f32])) -> Result<(), Error> {
    session.logits_each(tokens, |i, logits| {
        row(i, logits);
        Ok(())
    })
}

/// Effect of caches on a model's attention.
#[derive(Debug)]
pub struct Attention {
    /// Per codec, the KL divergence of attention with its keys from attention with the base's keys.
    pub kl: Vec<Mean>,
    /// Per layer, the distribution of its keys and values.
    pub layers: Vec<(Spread, Spread)>,
}

/// Bases of the keys of each layer, if they have some.
pub type Bases = Vec<Option<Arc<[KeyBasis]>>>;

/// Compares attention with keys in each of `codecs` to attention with `base`. `options` are those of the
/// engine, and `bases` those of an engine with one of these codecs, if it has bases. Calls `go_on` before
/// each chunk.
///
/// # Errors
/// As [`Probe::new`], [`Probe::run`] and [`AttentionKl::add`]; any error of `go_on`.
pub fn attention<E: From<Error> + From<QuantError>>(
    engine: &Engine,
    options: &EngineOptions,
    text: &Chunks,
    base: &'static dyn KvCodec,
    codecs: Vec<&'static dyn KvCodec>,
    bases: &Bases,
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<Attention, E> {
    let n = text.n_ctx.min(PROBED);
    let mut probe = Probe::new(engine.gguf(), options, n)?;
    let mut kl = AttentionKl::new(base, codecs, options.exact());
    let mut layers = vec![(Spread::default(), Spread::default()); probe.n_layers()];
    let mut positions: Vec<usize> = (1..=ROWS).map(|i| n / 2 + i * (n - n / 2) / ROWS - 1).collect();
    positions.dedup();
    for chunk in text.iter() {
        go_on()?;
        let mut failed = None;
        probe.run(&as_fed(engine.tokenizer()?, chunk)[..n], |layer, vectors| {
            let (keys, values) = &mut layers[layer];
            keys.add(vectors.k, vectors.n_kv_heads, vectors.head_dim);
            values.add(vectors.v, vectors.n_kv_heads, vectors.head_dim);
            let bases = bases.get(layer).and_then(Option::as_deref);
            failed = kl.add(&vectors, bases, &positions).err().or(failed.take());
        })?;
        if let Some(err) = failed {
            return Err(err.into());
        }
    }
    Ok(Attention { kl: kl.means().to_vec(), layers })
}
