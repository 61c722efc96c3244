//! Grammar state of one sequence. A worker computes its next mask as soon as its last token is known.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use llguidance::Matcher;

use super::said;
use super::workers::Workers;
use sterna_engine::{Constraint, ConstraintError, TokenMask};

/// Result of a worker: the matcher, and the words of the mask after its last token.
type MaskResult = (Box<Matcher>, Result<Vec<u32>, String>);

enum State {
    Working(Receiver<MaskResult>),
    /// The mask is ready, or the text is complete.
    Ready(Box<Matcher>),
    Failed(String),
}

pub struct Matching {
    state: State,
    mask: TokenMask,
    is_done: bool,
    workers: Arc<Workers>,
}

impl Matching {
    /// Creates the state before the first token. The first mask is computed while the prompt is processed.
    pub fn new(matcher: Matcher, workers: Arc<Workers>) -> Self {
        let is_done = matcher.is_stopped() && !matcher.is_error();
        let mask = TokenMask::default();
        let mut matching = Self { state: State::Ready(Box::new(matcher)), mask, is_done, workers };
        matching.begin_mask();
        matching
    }

    fn begin_mask(&mut self) {
        let State::Ready(mut matcher) = std::mem::replace(&mut self.state, failed()) else { return };
        let (send, made) = sync_channel(1);
        self.workers.run(Box::new(move || {
            let mask = matcher.compute_mask_or_eos();
            let words = mask.map(|mask| mask.as_slice().to_vec()).map_err(|err| said(&err.to_string()));
            // The sequence may have ended in the meantime.
            let _ = send.send((matcher, words));
        }));
        self.state = State::Working(made);
    }

    fn settle(&mut self) -> Result<&mut Matcher, ConstraintError> {
        if let State::Working(made) = &self.state {
            self.state = match made.recv() {
                Ok((matcher, Ok(words))) => {
                    self.mask = TokenMask::from_words(words);
                    State::Ready(matcher)
                }
                Ok((_, Err(detail))) => State::Failed(detail),
                Err(_) => failed(),
            };
        }
        match &mut self.state {
            State::Ready(matcher) => Ok(matcher),
            State::Failed(detail) => Err(ConstraintError::Failed(detail.clone())),
            State::Working(_) => unreachable!("the mask was received above"),
        }
    }
}

fn failed() -> State {
    State::Failed("the thread that computes its masks has died".to_owned())
}

impl Constraint for Matching {
    fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        self.settle()?;
        Ok(&self.mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if !self.mask()?.allows(token) {
            return Err(ConstraintError::Failed(format!("token {token} is not allowed here")));
        }
        let matcher = self.settle()?;
        if let Err(err) = matcher.consume_token(token) {
            let detail = said(&err.to_string());
            self.state = State::Failed(detail.clone());
            return Err(ConstraintError::Failed(detail));
        }
        self.is_done = matcher.is_stopped();
        self.begin_mask();
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.is_done
    }
}

impl fmt::Debug for Matching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matching").field("is_done", &self.is_done).finish_non_exhaustive()
    }
}
