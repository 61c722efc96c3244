//! The CPU backend.

pub mod linear;
pub mod pool;
pub mod simd;
