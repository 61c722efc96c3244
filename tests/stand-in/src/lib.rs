//! A CUDA driver for tests: a shared library with the functions of NVIDIA's `libcuda` that Sterna calls. It
//! runs the kernels as a CPU build (`cuda/host`), on cards of a table (`backend/cuda/driver/cards.rs`).
//!
//! It guarantees only what NVIDIA's documentation promises, and makes use of every freedom that this leaves a
//! driver:
//!
//! - A stream does no work before something waits for it. So a copy reads pageable memory late, and a word
//!   that a kernel writes is not visible before its event was waited for.
//! - A kernel that may start early does: its first blocks run, up to their `griddepcontrol.wait`, before the
//!   preceding kernel has done anything.
//! - New memory is filled with ones. Freed memory is overwritten and never reused.
//! - It refuses a launch beyond the card's limits, a copy beyond an allocation, a call that is forbidden
//!   during capture, and a call with another card's handle. After a kernel fault every call returns its
//!   error.
//! - Memory that is still allocated when a context ends is reported.
//!
//! It cannot detect a host that accesses device memory directly, because both are the same memory.
//!
//! `scripts/kernels/stand-in-cuda COMMAND` runs a command with it. `settings.rs` lists the settings. Start
//! reading at `driver.rs`; the calls are in `memory.rs`, `module.rs` and `stream.rs`.
#![cfg(feature = "simt")]

mod device;
mod driver;
mod memory;
mod module;
mod settings;
mod stream;
mod timeline;
