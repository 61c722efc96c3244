//! Code that the backends share whose devices have memory of their own: CUDA and wgpu.
//!
//! It must never know one of them, nor a stage's kernels. Start at [`sampling`], then [`step`].

pub mod pages;
pub mod picks;
pub mod plan;
pub mod sampling;
pub mod step;
pub mod tables;
pub mod tiles;

use crate::DeviceOption;

/// Which device, for a backend that may find several.
pub const DEVICE: DeviceOption = DeviceOption {
    name: "device",
    about: "a number of the backend's list, or a part of a name; cuda: several",
};
