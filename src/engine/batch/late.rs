//! Late constraints: the tokens that a constraint allows are computed on another thread, and may not be known
//! when the logits are. The logits are kept then, and the sequence is left out of the steps until they are,
//! so it does not hold up the others. Its text does not depend on that.

use std::task::{Context, Poll};
use std::time::Duration;

use super::steps::Batch;
use super::task::{Late, SeqId};
use crate::decoder::Event;
use crate::error::Error;
use crate::fault::Fault;
use crate::sampler::Sampler;
use sterna_host::clock::Instant;

/// Longest wait of a step in which nothing can run: new requests and cancellations are seen between steps.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

impl Batch {
    /// Polls the constraint of a sequence, until it is ready or `until` has passed.
    fn poll<T>(
        &mut self,
        at: usize,
        until: Option<Instant>,
        poll: impl Fn(&mut Sampler, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        loop {
            if until.is_some() {
                self.bell.silence();
            }
            let mut context = Context::from_waker(self.bell.waker());
            let polled = poll(&mut self.tasks[at].seq.sampler, &mut context);
            let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
            if polled.is_ready() || left.is_zero() {
                return polled;
            }
            self.bell.wait(left);
        }
    }

    /// Picks the next token of a sequence from its `logits`, on the host. If its constraint is not ready now,
    /// or by `until`, the sequence is late.
    pub(super) fn pick(
        &mut self,
        at: usize,
        logits: &mut [f32],
        until: Option<Instant>,
        events: &mut Vec<(SeqId, Event)>,
    ) -> Result<(), Error> {
        if self.poll(at, until, Sampler::poll_choose).is_pending() {
            self.set_late(at, Late::Mask(logits.to_vec()));
            return Ok(());
        }
        let task = &mut self.tasks[at];
        let raw = task.options.logprobs.map(|_| logits.to_vec());
        match task.seq.sampler.choose(logits, task.seq.tokens.len()) {
            Ok(token) => self.advance_by(at, token, raw, until, events),
            Err(fault) => {
                self.fail(at, fault.into(), events);
                Ok(())
            }
        }
    }

    /// Advances the constraint of a sequence by its next token.
    fn advance_by(
        &mut self,
        at: usize,
        token: u32,
        logits: Option<Vec<f32>>,
        until: Option<Instant>,
        events: &mut Vec<(SeqId, Event)>,
    ) -> Result<(), Error> {
        match self.poll(at, until, |sampler, context| sampler.poll_advance(token, context)) {
            Poll::Ready(Ok(())) => {
                self.tasks[at].host_picks = false;
                return self.picked(at, token, logits.as_deref(), events);
            }
            Poll::Ready(Err(fault)) => self.fail(at, fault.into(), events),
            Poll::Pending => self.set_late(at, Late::Token(token, logits)),
        }
        Ok(())
    }

    fn set_late(&mut self, at: usize, late: Late) {
        let task = &mut self.tasks[at];
        (task.host_picks, task.late) = (true, Some(late));
    }

    fn fail(&mut self, at: usize, fault: Fault, events: &mut Vec<(SeqId, Event)>) {
        let task = &mut self.tasks[at];
        events.push((task.id, task.decoder.fail(fault)));
        self.end(at);
    }

    /// Goes on with the tokens of late sequences, as far as their constraints are ready.
    pub(super) fn pick_late(&mut self, events: &mut Vec<(SeqId, Event)>) -> Result<(), Error> {
        let late = self.tasks.iter().filter(|task| task.late.is_some());
        for id in late.map(|task| task.id).collect::<Vec<_>>() {
            let Some(at) = self.tasks.iter().position(|task| task.id == id) else { continue };
            match self.tasks[at].late.take() {
                Some(Late::Mask(mut logits)) => match self.poll(at, None, Sampler::poll_choose) {
                    Poll::Ready(()) => self.pick(at, &mut logits, None, events)?,
                    Poll::Pending => self.set_late(at, Late::Mask(logits)),
                },
                Some(Late::Token(token, logits)) => self.advance_by(at, token, logits, None, events)?,
                None => {}
            }
        }
        Ok(())
    }

    /// Called if nothing can run: waits for the first late sequence, but not long.
    pub(super) fn wait_for_mask(&mut self, events: &mut Vec<(SeqId, Event)>) -> Result<(), Error> {
        let until = Instant::now() + LONGEST_WAIT;
        while events.is_empty() && self.tasks.iter().any(|task| task.late.is_some()) {
            self.bell.silence();
            self.pick_late(events)?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if events.is_empty() {
                self.bell.wait(left);
            }
        }
        Ok(())
    }
}
