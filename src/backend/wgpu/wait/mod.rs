//! Where the host waits for a device. Elsewhere a thread does; in a browser nothing may block, so there the
//! stack of the WebAssembly module is suspended until a promise settles (JSPI), and the caller notices
//! nothing.

#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
mod web;

use std::time::Duration;

#[cfg(not(target_arch = "wasm32"))]
pub use native::{done, mapped, now};
#[cfg(target_arch = "wasm32")]
pub use web::{done, mapped, now};

/// A step that takes longer than this is given up: the device hangs.
const PATIENCE: Duration = Duration::from_secs(600);
