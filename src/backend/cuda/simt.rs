//! The CUDA kernels compiled for the CPU, as a backend of the registry.

use std::sync::Arc;

use super::backend::Cuda;
use super::driver::simt::Simt;
use super::open::{GPU_LAYERS, MIN_BATCH, OVERRIDE_TENSOR, STREAM_SLOTS, streaming};
use super::profile::Profiling;
use super::stream::Streaming;
use crate::PROFILE;
use crate::{Backend, Entry, Open, Opened, processor};

/// The CUDA backend on the CPU, in the registry.
pub const ENTRY: Entry = Entry {
    name: "cuda-simt",
    about: "CUDA kernels on the CPU, for tests",
    options: &[PROFILE, GPU_LAYERS, STREAM_SLOTS, OVERRIDE_TENSOR, MIN_BATCH],
    auto: None,
    devices: |threads| vec![Ok(on(threads).device())],
    code: None,
    parse: |chosen| {
        let profiling = chosen.parsed(&PROFILE, Profiling::parse)?.flatten();
        Ok(Arc::new(Options { profiling, streaming: streaming(chosen)? }))
    },
};

/// Options of the backend.
#[derive(Clone, Debug)]
struct Options {
    profiling: Option<Profiling>,
    streaming: Option<Streaming>,
}

impl Open for Options {
    fn open(&self, threads: usize) -> Opened {
        let cuda = on(threads).profiled(self.profiling).streamed(self.streaming.clone());
        Ok(Box::new(cuda.with_cpu(move || processor(threads))))
    }
}

fn on(threads: usize) -> Cuda {
    Cuda::on(Box::new(Simt::new(threads as u32, 0)))
}
