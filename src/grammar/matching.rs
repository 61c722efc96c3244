//! Grammar state of one sequence. A worker computes its next mask as soon as its last token is known.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use llguidance::{CancellationHandle, Matcher};

use super::workers::{Workers, is_fast};
use super::{Limits, parser_message};
use sterna_engine::{Constraint, ConstraintError, TokenMask};
use sterna_host::clock::Instant;

/// Result of a worker: the matcher, and the words of the mask after its last token.
type MaskResult = (Box<Matcher>, Result<Vec<u32>, String>);

/// Reason why a sequence with too much work on its lexer ends.
const TOO_MANY: &str =
    "its terminals have too many states; shorter repetitions and fewer alternatives have fewer";

enum State {
    Working(Receiver<MaskResult>),
    /// The mask is ready, or the text is complete.
    Ready(Box<Matcher>),
    Failed(ConstraintError),
}

/// Progress of a worker with one mask.
#[derive(Default)]
struct Progress {
    /// Time at which it began; not the time at which the mask was requested.
    begun: Option<Instant>,
    /// Time that the mask took.
    took: Option<Duration>,
    waker: Option<Waker>,
    /// Ends the work of the matcher.
    cancel: Option<CancellationHandle>,
    is_cancelled: bool,
}

/// Wakes the engine when the worker has sent its result, or has panicked.
struct WakeOnDrop(Arc<Mutex<Progress>>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        let waker = lock(&self.0).waker.take();
        waker.into_iter().for_each(Waker::wake);
    }
}

pub struct Matching {
    state: State,
    mask: TokenMask,
    is_done: bool,
    workers: Arc<Workers>,
    progress: Arc<Mutex<Progress>>,
    limits: Limits,
    /// Work on the lexer so far.
    lexer_work: u64,
    /// True if a worker follows the last token.
    is_accepting: bool,
}

impl Matching {
    /// Creates the state before the first token: a copy of `start`, made on a worker. The first mask is
    /// computed while the prompt is processed. `is_done` is true if the text is complete already.
    pub fn new(start: Arc<Mutex<Matcher>>, is_done: bool, workers: Arc<Workers>, limits: Limits) -> Self {
        let mut matching = Self {
            mask: TokenMask::default(),
            is_done,
            workers,
            progress: Arc::default(),
            limits,
            lexer_work: 0,
            is_accepting: false,
            state: failed(),
        };
        // A deep clone shares no cache, so one sequence cannot fill or poison the cache of another.
        let copy = move || start.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        matching.work(None, move || Box::new(copy()));
        matching
    }

    /// Begins to compute the next mask, after `token` if it has not been followed yet.
    fn begin(&mut self, token: Option<u32>) {
        let State::Ready(matcher) = std::mem::replace(&mut self.state, failed()) else { return };
        self.work(token, move || matcher);
    }

    fn work(&mut self, token: Option<u32>, matcher: impl FnOnce() -> Box<Matcher> + Send + 'static) {
        let (send, made) = sync_channel(1);
        let last = std::mem::take(&mut *lock(&self.progress)).took;
        let progress = Arc::clone(&self.progress);
        self.workers.run(
            last,
            Box::new(move || {
                let wake = WakeOnDrop(progress);
                let begun = Instant::now();
                lock(&wake.0).begun = Some(begun);
                let mut matcher = matcher();
                let cancel = matcher.cancellation_handle();
                let is_cancelled = {
                    let mut progress = lock(&wake.0);
                    progress.cancel.clone_from(&cancel);
                    progress.is_cancelled
                };
                cancel.iter().filter(|_| is_cancelled).for_each(CancellationHandle::cancel);
                let followed = token.map_or(Ok(()), |token| matcher.consume_token(token));
                let mask = followed.and_then(|()| matcher.compute_mask_or_eos());
                lock(&wake.0).took = Some(begun.elapsed());
                let words =
                    mask.map(|mask| mask.as_slice().to_vec()).map_err(|err| parser_message(&err.to_string()));
                // The sequence may have ended in the meantime.
                let _ = send.send((matcher, words));
            }),
        );
        self.state = State::Working(made);
    }

    /// Takes the result of the worker, or ends its work after the time limit.
    fn take(&mut self, made: Result<MaskResult, RecvTimeoutError>) {
        self.state = match made {
            Ok((matcher, Ok(words))) => {
                self.lexer_work += matcher.last_step_stats().map_or(0, |stats| stats.lexer_cost);
                match self.lexer_work > self.limits.lexer_work {
                    true => State::Failed(ConstraintError::Failed(TOO_MANY.to_owned())),
                    false => {
                        self.is_done = matcher.is_stopped();
                        self.mask = TokenMask::from_words(words);
                        State::Ready(matcher)
                    }
                }
            }
            Ok((_, Err(detail))) => State::Failed(ConstraintError::Failed(detail)),
            Err(RecvTimeoutError::Timeout) if self.time_left().is_zero() => {
                self.cancel();
                State::Failed(ConstraintError::TooSlow(self.limits.mask_time))
            }
            Err(RecvTimeoutError::Timeout) => return,
            Err(RecvTimeoutError::Disconnected) => failed(),
        };
    }

    fn check(&mut self, token: u32) -> Result<(), ConstraintError> {
        match self.mask()?.allows(token) {
            true => Ok(()),
            false => Err(ConstraintError::Failed(format!("token {token} is not allowed here"))),
        }
    }

    fn time_left(&self) -> Duration {
        let begun = lock(&self.progress).begun;
        self.limits.mask_time.saturating_sub(begun.map_or(Duration::ZERO, |begun| begun.elapsed()))
    }

    fn cancel(&self) {
        let mut progress = lock(&self.progress);
        progress.is_cancelled = true;
        progress.cancel.iter().for_each(CancellationHandle::cancel);
    }

    fn wait_for_mask(&mut self) -> Result<&mut Matcher, ConstraintError> {
        while let State::Working(made) = &self.state {
            let made = made.recv_timeout(self.time_left());
            self.take(made);
        }
        match &mut self.state {
            State::Ready(matcher) => Ok(matcher),
            State::Failed(err) => Err(err.clone()),
            State::Working(_) => unreachable!("the mask was received above"),
        }
    }
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed() -> State {
    State::Failed(ConstraintError::Failed("the thread that computes its masks has died".to_owned()))
}

impl Drop for Matching {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Constraint for Matching {
    fn poll_mask(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let State::Working(made) = &self.state {
            lock(&self.progress).waker = Some(context.waker().clone());
            let made = made.try_recv().map_err(|err| match err {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            });
            self.take(made);
        }
        if matches!(self.state, State::Working(_)) { Poll::Pending } else { Poll::Ready(()) }
    }

    fn poll_accept(&mut self, token: u32, context: &mut Context<'_>) -> Poll<Result<(), ConstraintError>> {
        if !self.is_accepting {
            // A token is a part of the mask before it, so following it takes less time.
            if is_fast(lock(&self.progress).took) {
                return Poll::Ready(self.accept(token));
            }
            self.check(token)?;
            self.begin(Some(token));
            self.is_accepting = true;
        }
        std::task::ready!(self.poll_mask(context));
        self.is_accepting = false;
        Poll::Ready(self.wait_for_mask().map(|_| ()))
    }

    fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        self.wait_for_mask()?;
        Ok(&self.mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.check(token)?;
        let matcher = self.wait_for_mask()?;
        if let Err(err) = matcher.consume_token(token) {
            let err = ConstraintError::Failed(parser_message(&err.to_string()));
            self.state = State::Failed(err.clone());
            return Err(err);
        }
        self.is_done = matcher.is_stopped();
        self.begin(None);
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
