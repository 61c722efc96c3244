//! What Sterna takes of its host besides devices.
#![forbid(unsafe_code)]

pub mod clock;
mod parallel;

pub use parallel::in_parallel;
