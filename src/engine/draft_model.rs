//! Drafts from a second, smaller model with the same vocabulary.

use super::error::Error;
use super::handle::Engine;
use super::logprobs::LogProbs;
use super::session::Session;
use super::speculate::{Drafter, Speculation};

/// A draft model: samples greedily, token by token. Each sequence uses a session of the draft engine; if no
/// session is free, it drafts nothing.
#[derive(Clone, Debug)]
pub struct DraftModel {
    engine: Engine,
    /// Tokens below this are in both vocabularies.
    n_vocab: usize,
    row_cost: Option<f64>,
    /// Maximum number of tokens per draft.
    pub max: usize,
    /// Minimum number of tokens per draft; shorter drafts are discarded.
    pub min: usize,
    /// Minimum probability of a drafted token; the draft ends before a less likely one.
    pub p_min: f32,
}

impl DraftModel {
    /// Default of [`max`](Self::max), the same as in llama.cpp.
    pub const MAX: usize = 3;
    /// Allowed difference in vocabulary size, since padding differs. Only the common tokens are compared.
    const MORE: usize = 128;

    /// A draft model `engine` for the model `target`.
    ///
    /// # Errors
    /// [`Error::DraftVocabulary`] if their vocabularies differ; [`Error::Tokenizer`] if one has no
    /// vocabulary; [`Error::InBatch`].
    pub fn new(target: &Engine, engine: Engine) -> Result<Self, Error> {
        let (own, wanted) = (engine.tokenizer()?, target.tokenizer()?);
        let (n_draft, n_target) = (engine.hyper().n_vocab, target.hyper().n_vocab);
        let differs = |what| Err(Error::DraftVocabulary { what });
        if n_draft.abs_diff(n_target) > Self::MORE {
            return differs(format!("{n_draft} tokens in the draft model, {n_target} in the model"));
        }
        let n_vocab = own.n_vocab().min(wanted.n_vocab()).min(n_draft).min(n_target);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).escape_debug().to_string();
        if let Some(id) = (0..n_vocab as u32).find(|&id| own.token_bytes(id) != wanted.token_bytes(id)) {
            let (draft, target) = (text(own.token_bytes(id)), text(wanted.token_bytes(id)));
            return differs(format!("token {id} is `{draft}` in the draft model, `{target}` in the model"));
        }
        // On a device, decoding is memory-bound: time is proportional to the bytes read per token.
        let ratio = engine.decode_cost(0).bytes() as f64 / target.decode_cost(0).bytes().max(1) as f64;
        let row_cost = target.runner()?.is_device().then_some(ratio + 0.05);
        Ok(Self { engine, n_vocab, row_cost, max: Self::MAX, min: 0, p_min: 0.0 })
    }
}

impl Speculation for DraftModel {
    fn start(&self) -> Result<Box<dyn Drafter>, Error> {
        Ok(Box::new(ModelDrafter { model: self.clone(), session: None }))
    }

    fn row_cost(&self) -> Option<f64> {
        self.row_cost
    }

    fn least(&self) -> usize {
        self.min.max(1)
    }
}

#[derive(Debug)]
struct ModelDrafter {
    model: DraftModel,
    /// Created for the first draft.
    session: Option<Session>,
}

impl Drafter for ModelDrafter {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) -> Result<(), Error> {
        let DraftModel { engine, n_vocab, max, min, p_min, .. } = &self.model;
        let most = most.min(*max).min((engine.n_ctx() + 1).saturating_sub(tokens.len()));
        let is_known = |token: &u32| (*token as usize) < *n_vocab;
        if most == 0 || most < *min {
            return Ok(());
        }
        let session = match &mut self.session {
            Some(session) => session,
            None => match engine.session() {
                Ok(session) => self.session.insert(session),
                Err(Error::NoSession { .. }) => return Ok(()),
                Err(err) => return Err(err),
            },
        };
        let common = session.tokens().iter().zip(tokens).take_while(|(own, token)| own == token).count();
        let common = common.min(tokens.len() - 1);
        if !tokens[common..].iter().all(is_known) {
            return Ok(());
        }
        session.cut_back(common);
        let mut fed = tokens[common..].to_vec();
        while draft.len() < most {
            let token = match *p_min > 0.0 {
                false => session.decode(&fed)?,
                true => {
                    let top = LogProbs::of(session.logits(&fed)?, 0, 1).top;
                    match top.first().filter(|(_, log)| log.exp() >= *p_min) {
                        Some((token, _)) => *token,
                        None => break,
                    }
                }
            };
            if !is_known(&token) {
                break;
            }
            draft.push(token);
            fed = vec![token];
        }
        if draft.len() < *min {
            draft.clear();
        }
        Ok(())
    }

    fn is_ready(&mut self, tokens: &[u32]) -> bool {
        tokens.len() < self.model.engine.n_ctx()
    }
}
