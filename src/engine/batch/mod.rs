//! Many sequences in the same steps.
//!
//! The owner of a [`Batch`] adds requests and calls [`step`](Batch::step), from one thread: nothing here is
//! locked. A step is one run of the model. First come the sequences that decode, a row each, then chunks of
//! prompts (`schedule.rs`). Pages are taken as sequences grow; when none is left, the newest sequence gives
//! its pages back. They are copied to memory of the host if it has room (`swap.rs`), or its tokens are
//! computed again later. What a sequence says does not depend on any of that:
//! tokens are drawn by their position, and on the CPU sums do not depend on the rows of a step.

mod budget;
mod options;
mod prefix;
mod saved;
mod schedule;
mod steps;
mod swap;
mod task;

pub use options::{BatchOptions, BatchStats};
pub use prefix::{PageEvent, PageListener, PrefixStats};
pub use saved::SavedSize;
pub use steps::Batch;
pub use task::{Pooled, Request, SeqId, SequenceStatus};
