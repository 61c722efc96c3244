//! Clocks, threads, memory and files: services of the host besides devices.
#![deny(unsafe_code)]

pub mod clock;
pub mod files;
pub mod memory;
mod parallel;

pub use parallel::in_parallel;
