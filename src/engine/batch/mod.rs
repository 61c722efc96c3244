//! Continuous batching: many sequences share each step.
//!
//! The owner of a [`Batch`] adds requests and calls [`step`](Batch::step), from one thread: nothing here is
//! locked. A step is one run of the model. It contains the decoding sequences first, one row each, then
//! chunks of prompts (`schedule.rs`). Pages are allocated as sequences grow; when the pool is empty, the
//! newest sequence is preempted. Its pages are swapped to host memory if there is room (`swap.rs`), or else
//! its tokens are recomputed later. The output of a sequence does not depend on any of that: sampling depends
//! only on the position, and on the CPU sums do not depend on the rows of a step.

mod bell;
mod budget;
mod image_keys;
mod late;
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
