//! Waiting for the device. On native platforms a thread waits. In a browser nothing may block, so the stack
//! of the WebAssembly module is suspended until a promise settles (JSPI), which is transparent to the caller.

#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
mod web;

use std::time::Duration;

#[cfg(not(target_arch = "wasm32"))]
pub use native::{done, mapped, now};
#[cfg(target_arch = "wasm32")]
pub use web::{done, mapped, now};

/// Longest wait for a step; after that the device is considered hung.
const PATIENCE: Duration = Duration::from_secs(600);
