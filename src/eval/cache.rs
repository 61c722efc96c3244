//! Effect of a KV cache on a model: two caches side by side on a text, and attention with what caches make of
//! the model's own keys.

use ggml_types::{KvCodec, QuantError};

use super::perplexity::Scores;
use super::probe::{AttentionKl, Probe, Spread};
use super::score::{Mean, log_softmax};
use super::{Chunks, OUTPUTS, as_fed};
use sterna_engine::Error;
use sterna_engine::{Engine, EngineOptions, Session};

/// Rows of a chunk whose attention is measured.
const ROWS: usize = 16;

/// Positions of a chunk, from its first, whose attention is measured: they go through the model in one step.
const PROBED: usize = 16_384;

/// Scores a text with two engines, side by side. `go_on` is asked before each step.
///
/// # Errors
/// As [`Session::logits_each`]; whatever `go_on` returns.
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
    /// For each codec, the divergence of what heads attend to with its keys from what they do with the
    /// base's.
    pub kl: Vec<Mean>,
    /// For each layer, what its keys and its values look like.
    pub layers: Vec<(Spread, Spread)>,
}

/// Attention with keys as each of `codecs` keeps them, compared with `base`. `options` are those of the
/// engine, and `go_on` is asked before each chunk.
///
/// # Errors
/// As [`Probe::new`], [`Probe::run`] and [`AttentionKl::add`]; whatever `go_on` returns.
pub fn attention<E: From<Error> + From<QuantError>>(
    engine: &Engine,
    options: &EngineOptions,
    text: &Chunks,
    base: &'static dyn KvCodec,
    codecs: Vec<&'static dyn KvCodec>,
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
            failed = kl.add(&vectors, &positions).err().or(failed.take());
        })?;
        if let Some(err) = failed {
            return Err(err.into());
        }
    }
    Ok(Attention { kl: kl.means().to_vec(), layers })
}
