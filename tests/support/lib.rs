//! Shared code of the test binaries: the f64 oracle, synthetic programs, golden data.
//!
//! A crate of its own, so that it is compiled once. Start reading at [`oracle`].

use std::io::Write as _;

pub mod case;
mod golden;
mod hooked;
pub mod hub;
pub mod logits;
pub mod lora;
pub mod oracle;
mod snapshot;

pub use golden::{Npy, golden, golden_dirs, npy, root};
pub use hooked::HookedBackend;
#[cfg(feature = "tls")]
pub use hyper_util;
#[cfg(feature = "grpc")]
pub use prost_types;
#[cfg(feature = "grpc")]
pub use rmp_serde;
pub use snapshot::snapshot;
#[cfg(any(feature = "grpc", feature = "tls"))]
pub use tokio;
#[cfg(feature = "tls")]
pub use tokio_rustls;
#[cfg(feature = "grpc")]
pub use {tonic, tonic_health, vllm_proto, zeromq};

/// True if this build can run the CUDA kernels as a CPU build.
pub const HAS_SIMT: bool = cfg!(feature = "simt");

/// Prints a line even if the test passes: the test harness captures what `eprintln` prints.
pub fn print_note(line: std::fmt::Arguments<'_>) {
    writeln!(std::io::stderr(), "{line}").expect("stderr is writable");
}
