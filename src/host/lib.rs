//! Clocks, threads and files: services of the host besides devices.
#![forbid(unsafe_code)]

pub mod clock;
pub mod files;
mod parallel;

pub use parallel::in_parallel;
