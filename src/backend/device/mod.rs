//! What backends share whose devices have memory of their own: CUDA and wgpu.
//!
//! It must never know one of them, nor a stage's kernels. Start at [`sampling`].

pub mod sampling;
