//! Masks that are not ready when the logits are: the other sequences go on, and no text changes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use sterna::engine::{BatchOptions, Constraint, ConstraintError, Grammar, Request, Speculation, TokenMask};

use super::batch::{Output, alone, engine, finish, seeded, tokens};
use super::speculation::Hints;

/// Allows every third token. A batch gets only the first few masks until the rest is released.
#[derive(Debug)]
struct Thirds {
    n_ready: AtomicU32,
    waker: Mutex<Option<Waker>>,
}

impl Thirds {
    fn release(&self) {
        self.n_ready.store(u32::MAX, Ordering::SeqCst);
        self.waker.lock().unwrap().take().into_iter().for_each(Waker::wake);
    }
}

#[derive(Debug)]
struct Shared(Arc<Thirds>);

#[derive(Debug)]
struct Third {
    of: Arc<Thirds>,
    n_tokens: u32,
    mask: TokenMask,
}

impl Grammar for Shared {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(Third { of: Arc::clone(&self.0), n_tokens: 0, mask: TokenMask::default() })
    }
}

impl Constraint for Third {
    fn poll_mask(&mut self, context: &mut Context<'_>) -> Poll<()> {
        *self.of.waker.lock().unwrap() = Some(context.waker().clone());
        match self.n_tokens < self.of.n_ready.load(Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        self.mask = (0..512).filter(|token| token % 3 == self.n_tokens % 3).collect();
        Ok(&self.mask)
    }

    fn accept(&mut self, _: u32) -> Result<(), ConstraintError> {
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }
}

#[test]
fn batch_goes_on_without_late_masks() {
    let engine = engine(|options| options.drafts = 8);
    for (n_ready, drafts) in [(0, false), (3, false), (3, true)] {
        let grammar = Arc::new(Thirds { n_ready: AtomicU32::new(n_ready), waker: Mutex::new(None) });
        let (late, free) = (tokens(1, 20), tokens(2, 30));
        let mut options = seeded(5, 12);
        options.grammar = Some(Arc::new(Shared(Arc::clone(&grammar))));
        let want = [alone(&engine, &late, &options), alone(&engine, &free, &seeded(6, 24))];
        let text = [late.as_slice(), &want[0].tokens].concat();
        let hints: Arc<dyn Speculation> = Arc::new(Hints { text, wrong: 4 });
        options.speculation = drafts.then_some(hints);

        let mut batch = engine.batch(BatchOptions::default()).unwrap();
        let late = batch.add(&Request::new(late, options)).unwrap()[0];
        let free = batch.add(&Request::new(free, seeded(6, 24))).unwrap()[0];
        let (mut of_late, mut of_free) = (Output::default(), Output::default());
        while of_free.end.is_none() {
            for (id, event) in batch.step().unwrap() {
                if id == free { of_free.take(event) } else { of_late.take(event) }
            }
        }
        assert_eq!((&of_free, of_late.tokens.len()), (&want[1], n_ready as usize), "drafts: {drafts}");

        let rest = std::thread::scope(|scope| {
            scope.spawn(|| grammar.release());
            finish(&mut batch).remove(&late).unwrap()
        });
        of_late.tokens.extend(rest.tokens);
        of_late.text += &rest.text;
        of_late.end = rest.end;
        assert_eq!(of_late, want[0], "drafts: {drafts}");
    }
}
