//! Drafts by a second, smaller model of the same vocabulary.

use super::speculate::{Drafter, Speculation};
use super::{Engine, Error, LogProbs, Session};

/// A draft model: it picks the most likely tokens, one after the other. Each sequence has a session of its
/// engine, as far as there are any, and drafts nothing without one.
#[derive(Clone, Debug)]
pub struct DraftModel {
    engine: Engine,
    /// Tokens below this are of both vocabularies.
    n_vocab: usize,
    row_cost: Option<f64>,
    /// Most tokens of a draft.
    pub max: usize,
    /// Fewest tokens of a draft; shorter ones are not used.
    pub min: usize,
    /// Smallest probability of a drafted token; a draft ends before a token below it.
    pub p_min: f32,
}

impl DraftModel {
    /// Tokens of a draft if nothing else is asked for, as llama.cpp has it.
    pub const MAX: usize = 3;
    /// Tokens that one vocabulary may have more than the other, behind those in common: paddings differ.
    const MORE: usize = 128;

    /// Drafts of `engine` for `target`.
    ///
    /// # Errors
    /// [`Error::DraftVocabulary`] if their vocabularies differ; [`Error::Tokenizer`] if one of them has none;
    /// [`Error::InBatch`].
    pub fn new(target: &Engine, engine: Engine) -> Result<Self, Error> {
        let (own, wanted) = (engine.tokenizer()?, target.tokenizer()?);
        let (n_draft, n_target) = (engine.hyper().n_vocab, target.hyper().n_vocab);
        let differs = |what| Err(Error::DraftVocabulary { what });
        if n_draft.abs_diff(n_target) > Self::MORE {
            return differs(format!("{n_draft} tokens, and the model has {n_target}"));
        }
        let n_vocab = own.n_vocab().min(wanted.n_vocab()).min(n_draft).min(n_target);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).escape_debug().to_string();
        if let Some(id) = (0..n_vocab as u32).find(|&id| own.token_bytes(id) != wanted.token_bytes(id)) {
            let (draft, target) = (text(own.token_bytes(id)), text(wanted.token_bytes(id)));
            return differs(format!("token {id} is `{draft}`, and the model's is `{target}`"));
        }
        // What a device reads for a token is the time that it takes.
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
}

#[derive(Debug)]
struct ModelDrafter {
    model: DraftModel,
    /// From the first draft on.
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
