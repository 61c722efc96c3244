//! Clocks: from the standard library, or in a browser, where that one panics, from the browser.

#[cfg(not(target_arch = "wasm32"))]
use std::time as platform;
#[cfg(target_arch = "wasm32")]
use web_time as platform;

/// A monotonic clock.
pub type Instant = platform::Instant;

/// The system time.
pub type SystemTime = platform::SystemTime;
