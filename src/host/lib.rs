//! Clocks and threads: services of the host besides devices.
#![forbid(unsafe_code)]

pub mod clock;
mod parallel;

pub use parallel::in_parallel;
