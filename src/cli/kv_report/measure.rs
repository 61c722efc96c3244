//! What a report measures: two caches side by side on a text, needles in it, and attention with what caches make of the model's
//! own keys.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;

use ggml_types::KvCodec;

use super::super::CliError;
use super::super::chunks::as_fed;
use super::super::kl_base::KlText;
use super::super::out_file::go_on;
use super::super::perplexity::Scores;
use super::{Estimate, LayerLine, NeedleLine, OUTPUTS, SpreadLine};
use crate::engine::needle::Haystack;
use crate::engine::probe::{AttentionKl, Probe, Spread};
use crate::engine::score::{Mean, log_softmax};
use crate::engine::{Engine, EngineOptions, Session};
use crate::tokenizer::Tokenizer;

/// Rows of a chunk whose attention is looked at.
const ROWS: usize = 16;

/// Positions of a chunk, from its first, whose attention is looked at: they go through the model in one step.
const PROBED: usize = 16_384;

/// Scores a text with two engines, side by side.
pub fn compare(
    base: &Engine,
    other: &Engine,
    text: &KlText,
    cancel: &AtomicBool,
) -> Result<Scores, CliError> {
    let mut sessions = [base.session()?, other.session()?];
    let n_vocab = base.hyper().n_vocab;
    let (mut expected, mut log_probs) = (vec![0.0; OUTPUTS * n_vocab], vec![0.0; n_vocab]);
    let mut scores = Scores::default();
    for chunk in text.tokens.chunks_exact(text.n_ctx) {
        let fed = start(&mut sessions, base.tokenizer()?, chunk)?;
        for first in (chunk.len() / 2..chunk.len() - 1).step_by(OUTPUTS) {
            go_on(cancel)?;
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

/// Scores a text with one engine.
pub fn perplexity(engine: &Engine, text: &KlText, cancel: &AtomicBool) -> Result<Mean, CliError> {
    let mut session = [engine.session()?];
    let mut log_probs = vec![0.0; engine.hyper().n_vocab];
    let mut nll = Mean::default();
    for chunk in text.tokens.chunks_exact(text.n_ctx) {
        go_on(cancel)?;
        let fed = start(&mut session, engine.tokenizer()?, chunk)?;
        let first = chunk.len() / 2;
        feed(&mut session[0], &fed[first..chunk.len() - 1], |i, logits| {
            log_softmax(logits, &mut log_probs);
            nll.add(-f64::from(log_probs[chunk[first + i + 1] as usize]));
        })?;
    }
    Ok(nll)
}

/// Shows sessions the first half of a chunk; the chunk as it is fed.
fn start(sessions: &mut [Session], tokenizer: &Tokenizer, chunk: &[u32]) -> Result<Vec<u32>, CliError> {
    let fed = as_fed(tokenizer, chunk);
    for session in sessions {
        session.cut_back(0);
        session.prefill(&fed[..chunk.len() / 2])?;
    }
    Ok(fed)
}

fn feed(session: &mut Session, tokens: &[u32], mut row: impl FnMut(usize, &[f32])) -> Result<(), CliError> {
    session.logits_each(tokens, |i, logits| {
        row(i, logits);
        Ok(())
    })
}

/// The first chunks of a text, with needles in them.
pub fn haystacks(text: &KlText, tokenizer: &Tokenizer, n: usize) -> Vec<Haystack> {
    let special = |token: &u32| tokenizer.is_eog(*token) || tokenizer.bos() == Some(*token);
    let pool: BTreeSet<u32> = text.tokens.iter().copied().filter(|token| !special(token)).collect();
    if text.n_ctx < Haystack::MIN_CTX || pool.is_empty() {
        return Vec::new();
    }
    let chunks = text.tokens.chunks_exact(text.n_ctx).take(n).enumerate();
    chunks
        .map(|(i, chunk)| Haystack::new(&as_fed(tokenizer, chunk), text.n_ctx, &pool, i as u64 + 1))
        .collect()
}

/// Looks for the needles of all haystacks: a line a depth.
pub fn needles(
    engine: &Engine,
    haystacks: &[Haystack],
    cancel: &AtomicBool,
) -> Result<Vec<NeedleLine>, CliError> {
    if haystacks.is_empty() {
        return Ok(Vec::new());
    }
    let mut session = engine.session()?;
    let mut depths = vec![(Mean::default(), Mean::default()); Haystack::DEPTHS];
    for haystack in haystacks {
        go_on(cancel)?;
        for ((retrieved, log_prob), found) in depths.iter_mut().zip(haystack.ask(&mut session)?) {
            retrieved.add(found.retrieved);
            log_prob.add(found.log_prob);
        }
    }
    let line = |(i, (retrieved, log_prob)): (usize, &(Mean, Mean))| NeedleLine {
        depth: Haystack::depth(i),
        retrieved: Estimate::of(retrieved),
        log_prob: Estimate::of(log_prob),
    };
    Ok(depths.iter().enumerate().map(line).collect())
}

/// Attention with keys as each of `codecs` keeps them, and what keys and values look like: a mean a codec, a line a layer.
pub fn attention(
    engine: &Engine,
    options: &EngineOptions,
    text: &KlText,
    base: &'static dyn KvCodec,
    codecs: Vec<&'static dyn KvCodec>,
    cancel: &AtomicBool,
) -> Result<(Vec<Mean>, Vec<LayerLine>), CliError> {
    let n = text.n_ctx.min(PROBED);
    let mut probe = Probe::new(engine.gguf(), options, n)?;
    let mut kl = AttentionKl::new(base, codecs, options.exact());
    let mut layers = vec![(Spread::default(), Spread::default()); probe.n_layers()];
    let mut positions: Vec<usize> = (1..=ROWS).map(|i| n / 2 + i * (n - n / 2) / ROWS - 1).collect();
    positions.dedup();
    for chunk in text.tokens.chunks_exact(text.n_ctx) {
        go_on(cancel)?;
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
    let line = |(layer, (keys, values)): (usize, &(Spread, Spread))| LayerLine {
        layer,
        keys: SpreadLine::of(keys),
        values: SpreadLine::of(values),
    };
    Ok((kl.means().to_vec(), layers.iter().enumerate().map(line).collect()))
}
