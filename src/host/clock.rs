//! Clocks: the standard library's, and in a browser, where that one panics, the browser's.

#[cfg(not(target_arch = "wasm32"))]
use std::time as platform;
#[cfg(target_arch = "wasm32")]
use web_time as platform;

/// A time that never goes back.
pub type Instant = platform::Instant;

/// The time of day.
pub type SystemTime = platform::SystemTime;
