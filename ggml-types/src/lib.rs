//! What a GGML tensor type is: its ids in each dialect, its name, its byte arithmetic, and plain
//! reference code that encodes and decodes it. No I/O, no GPU, no `unsafe`.
//!
//! Start at [`QuantType`] and read one file of `types/`; `types/mod.rs` lists them all.
#![forbid(unsafe_code)]

pub mod kv;
mod quant;
mod tensor;
pub mod types;

pub use kv::{KvCodec, kv_by_name};
pub use quant::{Dialect, QuantError, QuantType};
pub use tensor::HostTensor;
pub use types::{by_id, by_name};
