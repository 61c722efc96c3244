//! The thread that reads pieces of weights ahead of their use.
//!
//! It reads pieces in the order in which a step uses them, as long as there are free slots, and continues
//! with those of the next step. If a step needs another piece than the predicted one, the pieces read ahead
//! are dropped and reading continues from the needed piece, so a misprediction only costs time. A failed read
//! becomes the error of the step that needs the piece; the next step reads it again.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::FileWeight;
use super::order::{Next, Order, Piece, pieces};
use crate::cpu::alloc::PartAllocator;
use crate::cpu::system::NAME;
use crate::cpu::weights::StoredWeight;
use crate::{BackendError, MemoryKind};
use sterna_cpu_kernels::{Aligned, Heap};
use sterna_program::{Program, Weight};

/// Buffer for a piece.
type Slot = Aligned<u8>;

/// The reader thread and its slots.
pub struct Reader {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    weights: Vec<Option<Arc<FileWeight>>>,
    order: Order,
    state: Mutex<State>,
    /// Signalled when there is a piece to read and a slot for it.
    work: Condvar,
    /// Signalled when a piece has been read.
    read: Condvar,
}

struct State {
    spare: Vec<Slot>,
    /// Pieces that are being read or have been read, in the order of their use.
    ahead: VecDeque<Ahead>,
    /// Pieces of chosen experts; they are read before those of the order.
    chosen: VecDeque<Piece>,
    at: usize,
    /// Number of the current prediction; pieces that were read for an earlier one are dropped.
    guess: u64,
    wrong_guesses: u64,
    stop: bool,
}

struct Ahead {
    piece: Piece,
    /// `None` while it is being read.
    slot: Option<(Slot, Result<usize, BackendError>)>,
}

/// A piece that stays in memory until it is given back.
pub struct Filled {
    slot: Slot,
    n_bytes: usize,
}

impl Filled {
    /// The piece's rows, followed by the bytes that the type stores after the rows.
    pub fn bytes(&self) -> &[u8] {
        &self.slot[..self.n_bytes]
    }
}

/// Allocates `n` slots.
pub fn slots(on: &mut impl PartAllocator, n: usize, slot_bytes: usize) -> Vec<Slot> {
    let on = on.part(MemoryKind::Weights, "slots for weights that are read in every step");
    (0..n).map(|_| on.aligned(slot_bytes)).collect()
}

impl Reader {
    /// Starts a reader of the program's weights that are not in memory, with `slots` slots; `None` if all
    /// weights that are multiplied are in memory. Reading begins at once.
    ///
    /// # Errors
    /// [`BackendError::Device`] if the system refuses to start a thread.
    pub fn new(p: &Program, weights: &[StoredWeight], slots: usize) -> Result<Option<Self>, BackendError> {
        let order = Order::new(p, weights);
        if order.all.is_empty() {
            return Ok(None);
        }
        let read = p.stages.iter().flat_map(|(_, stage)| stage.linears().1);
        let sizes = read.filter_map(|linear| Some(weights[linear.w.0 as usize].file()?.slot_bytes()));
        let slot_bytes = sizes.max().unwrap_or(0);
        let state = State {
            spare: self::slots(&mut Heap, slots.max(1), slot_bytes),
            ahead: VecDeque::with_capacity(slots.max(1)),
            chosen: VecDeque::new(),
            at: 0,
            guess: 0,
            wrong_guesses: 0,
            stop: false,
        };
        let shared = Arc::new(Shared {
            weights: weights.iter().map(|held| held.file().cloned()).collect(),
            order,
            state: Mutex::new(state),
            work: Condvar::new(),
            read: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("cpu-reader".to_owned());
        let thread = builder.spawn(move || of_thread.work()).map_err(|err| BackendError::Device {
            backend: NAME,
            call: "starting a thread",
            detail: err.to_string(),
        })?;
        Ok(Some(Self { shared, thread: Some(thread) }))
    }

    /// Waits until a piece of a weight has been read.
    ///
    /// # Errors
    /// If the read fails.
    pub fn take(&self, weight: Weight, piece: usize) -> Result<Filled, BackendError> {
        let (shared, want) = (&*self.shared, Piece { weight, piece });
        let mut state = shared.state();
        loop {
            match state.ahead.front() {
                Some(ahead) if ahead.piece != want => shared.redirect(&mut state, want),
                Some(Ahead { slot: Some(_), .. }) => break,
                Some(Ahead { slot: None, .. }) => {}
                None if state.next(&shared.order) != Some(want) => shared.redirect(&mut state, want),
                None => {}
            }
            state = shared.read.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let first = state.ahead.pop_front().and_then(|ahead| ahead.slot);
        let (slot, read) = first.expect("the first piece was read");
        match read {
            Ok(n_bytes) => Ok(Filled { slot, n_bytes }),
            Err(err) => {
                state.give(slot);
                drop(state);
                shared.work.notify_one();
                Err(err)
            }
        }
    }

    /// Returns a slot for the next piece.
    pub fn give(&self, filled: Filled) {
        self.shared.state().give(filled.slot);
        self.shared.work.notify_one();
    }

    /// Announces the weights of the experts that a stage has chosen, in order of use; skips those in memory.
    pub fn choose(&self, weights: impl Iterator<Item = Weight>) {
        let shared = &*self.shared;
        let file = |w: Weight| Some((w, shared.weights[w.0 as usize].as_deref()?));
        let mut weights = weights.filter_map(file).peekable();
        let Some(choice) = weights.peek().and_then(|(w, _)| shared.order.choice(*w)) else { return };
        let mut state = shared.state();
        if !(state.ahead.is_empty() && state.chosen.is_empty() && state.at == choice) {
            state.drop_guess();
        }
        state.chosen.extend(weights.flat_map(|(w, weight)| pieces(w, weight)));
        state.at = shared.order.next(choice);
        drop(state);
        shared.work.notify_one();
    }

    /// Number of times that another piece was needed than the predicted one.
    pub fn wrong_guesses(&self) -> u64 {
        self.shared.state().wrong_guesses
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread catches panics of the file's reader.
            let _ = thread.join();
        }
    }
}

impl State {
    /// Next piece to read, if it is known.
    fn next(&self, order: &Order) -> Option<Piece> {
        self.chosen.front().copied().or_else(|| match order.all.get(self.at)? {
            Next::Piece(piece) => Some(*piece),
            Next::Chosen => None,
        })
    }

    /// Moves past the next piece.
    fn advance(&mut self, order: &Order) {
        if self.chosen.pop_front().is_none() {
            self.at = order.next(self.at);
        }
    }

    fn give(&mut self, slot: Slot) {
        self.spare.push(slot);
    }

    /// Drops the pieces that were read ahead, and those that were to be read.
    fn drop_guess(&mut self) {
        self.guess += 1;
        self.wrong_guesses += 1;
        self.chosen.clear();
        while let Some(ahead) = self.ahead.pop_front() {
            // The reader thread returns the slot of a read in progress.
            self.spare.extend(ahead.slot.map(|(slot, _)| slot));
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `want` the next piece to read.
    fn redirect(&self, state: &mut State, want: Piece) {
        state.drop_guess();
        match self.order.place(want) {
            Some(at) => state.at = at,
            None => {
                state.chosen.push_back(want);
                let choice = self.order.choice(want.weight).expect("a weight that is read");
                state.at = self.order.next(choice);
            }
        }
        self.work.notify_one();
    }

    /// Main loop of the thread.
    fn work(&self) {
        let mut state = self.state();
        while !state.stop {
            let next = state.next(&self.order).filter(|_| !state.spare.is_empty());
            let Some(piece) = next else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut slot = state.spare.pop().expect("it is not empty");
            state.advance(&self.order);
            state.ahead.push_back(Ahead { piece, slot: None });
            let guess = state.guess;
            drop(state);
            let weight = self.weights[piece.weight.0 as usize].as_ref().expect("a weight that is read");
            let read = catch_unwind(AssertUnwindSafe(|| weight.read_piece(piece.piece, &mut slot)));
            let read = read.unwrap_or_else(|_| {
                let detail = "the reader of the file has panicked".to_owned();
                Err(BackendError::Device { backend: NAME, call: "reading a weight again", detail })
            });
            state = self.state();
            match guess == state.guess {
                true => {
                    // The step takes only the first piece, and waits until it has been read.
                    let last = state.ahead.back_mut().expect("it was put there, and is not taken unread");
                    last.slot = Some((slot, read));
                    self.read.notify_one();
                }
                false => state.give(slot),
            }
        }
    }
}
