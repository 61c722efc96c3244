//! A CUDA driver for tests: a shared library with the functions of NVIDIA's `libcuda` that Sterna calls. It
//! runs kernels in their host form (`cuda/host`), on cards of a table (`backend/cuda/driver/cards.rs`).
//!
//! It keeps to what NVIDIA's documentation promises, and takes every liberty that this leaves to a driver:
//!
//! - A stream does nothing before it is waited for. So a copy reads pageable memory late, and a word
//!   that a kernel writes is not there before its event was waited for.
//! - A kernel that may start early does: its first blocks run, up to their `griddepcontrol.wait`, before the
//!   kernel ahead of it has done anything.
//! - New memory is all ones. Freed memory is overwritten and never given out again.
//! - A launch beyond the card's limits, a copy beyond an allocation, a call that a recording forbids and one
//!   with another card's handle are refused. After a kernel's fault every call returns its error.
//! - Memory that is not given back when a context ends is reported.
//!
//! It cannot see a host that reads the card's memory directly, because both are the same memory.
//!
//! `scripts/stand-in-cuda COMMAND` runs a command with it. `settings.rs` has what can be chosen. Start
//! reading at `driver.rs`; `memory.rs`, `module.rs` and `stream.rs` have the calls.
#![cfg(feature = "simt")]

mod device;
mod driver;
mod memory;
mod module;
mod settings;
mod stream;
mod timeline;
