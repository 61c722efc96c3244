//! The CUDA kernels compiled for the CPU, as a backend of the registry.

use super::backend::Cuda;
use super::driver::simt::Simt;
use super::open::streaming;
use super::profile::Profiling;
use crate::{Backend, Entry, OptionId, processor};

/// The CUDA backend on the CPU, in the registry.
pub const ENTRY: Entry = Entry {
    name: "cuda-simt",
    about: "CUDA kernels on the CPU, for tests",
    options: &[
        OptionId::Profile,
        OptionId::GpuLayers,
        OptionId::StreamSlots,
        OptionId::OverrideTensor,
        OptionId::MinBatch,
        OptionId::Octets,
    ],
    auto: None,
    devices: |threads| vec![Ok(on(threads).device())],
    code: None,
    open: |options, threads| {
        let profiling = options.profile.map(Profiling::from);
        let cuda = on(threads).profiled(profiling).streamed(streaming(options)?);
        let cuda = cuda.with_octets(options.octets.unwrap_or_default())?;
        Ok(Box::new(cuda.with_cpu(move || processor(threads))))
    },
    on_paper: None,
};

fn on(threads: usize) -> Cuda {
    Cuda::on(Box::new(Simt::new(threads as u32, 0)))
}
