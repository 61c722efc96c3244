//! Code that the test binaries share: the f64 oracle, synthetic programs, golden data.
//!
//! A crate, so that it is compiled once. Start reading at [`oracle`].

use std::io::Write as _;

pub mod case;
mod golden;
pub mod hub;
pub mod logits;
pub mod oracle;

pub use golden::{Npy, golden, golden_dirs, npy, root};
#[cfg(feature = "tls")]
pub use hyper_util;
#[cfg(feature = "grpc")]
pub use prost_types;
#[cfg(feature = "grpc")]
pub use rmp_serde;
#[cfg(any(feature = "grpc", feature = "tls"))]
pub use tokio;
#[cfg(feature = "tls")]
pub use tokio_rustls;
#[cfg(feature = "grpc")]
pub use {tonic, tonic_health, vllm_proto, zeromq};

/// Whether the helpers know the kernels on the processor.
pub const HAS_SIMT: bool = cfg!(feature = "simt");

/// Writes a line that shows although the test passes: the test harness swallows what `eprintln` prints.
pub fn say(line: std::fmt::Arguments<'_>) {
    writeln!(std::io::stderr(), "{line}").expect("stderr takes a line");
}
