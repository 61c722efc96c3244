//! Every backend against the oracle, and against itself: stages, KV codecs, windows, batches, queued steps.

#[cfg(feature = "simt")]
mod accesses;
mod altup;
mod attention;
mod batches;
mod cards;
mod conformance;
mod conv;
#[cfg(feature = "simt")]
mod cpu_offload;
mod cpu_stream;
#[cfg(feature = "simt")]
mod cuda_types;
mod delta;
mod hadamard;
mod images;
mod kernels;
mod kv_codes;
mod kv_lengths;
mod kv_window;
mod latent;
#[cfg(feature = "simt")]
mod long_rows;
mod lora;
mod mamba;
#[cfg(feature = "simt")]
mod octets;
#[cfg(feature = "simt")]
mod profile;
mod run_ahead;
mod sampling;
#[cfg(feature = "simt")]
mod split;
mod stage_diff;
#[cfg(all(feature = "simt", feature = "cli", unix))]
mod stand_in;
#[cfg(feature = "simt")]
mod stream;
mod wgpu;

#[cfg(feature = "simt")]
const _: () = assert!(support::HAS_SIMT, "the feature simt requires support/simt as well, or --workspace");
