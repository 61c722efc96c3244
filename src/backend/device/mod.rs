//! Code shared by backends whose devices have their own memory: CUDA and wgpu.
//!
//! It must never know one of them, nor a stage's kernels. Start at [`sampling`], then [`step`].

pub mod adapters;
pub mod pages;
pub mod picks;
pub mod plan;
pub mod sampling;
pub mod step;
pub mod tables;
pub mod tiles;
