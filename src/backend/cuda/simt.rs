//! CUDA's kernels on the processor, as a backend of the registry.

use super::driver::simt::Simt;
use super::open::{GPU_LAYERS, MIN_BATCH, OVERRIDE_TENSOR, STREAM_SLOTS, streaming};
use super::{Cuda, Profiling};
use crate::device::PROFILE;
use crate::{Backend, Entry, processor};

const NAME: &str = "cuda-simt";

/// The CUDA backend on the processor in the registry.
pub const ENTRY: Entry = Entry {
    name: NAME,
    about: "CUDA kernels on the processor, for tests",
    options: &[PROFILE, GPU_LAYERS, STREAM_SLOTS, OVERRIDE_TENSOR, MIN_BATCH],
    auto: None,
    devices: |threads| vec![Ok(on(threads).device())],
    open: |threads, options| {
        let profiling = Profiling::of(NAME, PROFILE.name, options.get(PROFILE.name))?;
        let cuda = on(threads).profiled(profiling).streamed(streaming(options, NAME)?);
        Ok(Box::new(cuda.beside(move || processor(threads))))
    },
};

fn on(threads: usize) -> Cuda {
    Cuda::on(Box::new(Simt::new(threads as u32, 0)))
}
