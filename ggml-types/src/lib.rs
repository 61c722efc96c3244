//! GGML tensor types: ids in each dialect, names, byte arithmetic, and plain reference code that encodes and
//! decodes them. No I/O, no GPU, no `unsafe`.
//!
//! Start at [`QuantType`] and read one file of `types/`; `types/mod.rs` lists them all.
#![forbid(unsafe_code)]

mod act;
mod affine;
mod block;
pub mod codebooks;
mod eights;
#[allow(missing_docs)] // The names are those of the projects that number types.
pub mod ids;
mod k_groups;
mod known;
pub mod kv;
mod quant;
mod registry;
mod scale_search;
mod tensor;
pub mod turboquant;
pub mod types;
mod uneven;

pub use act::{Act, ActQuant, Xielu};
pub use kv::{CodeValues, KvCodec, KvCodes, KvForm, KvSide, KvVectors, kv_by_name, kv_on};
pub use quant::{Dialect, QuantError, QuantType, Ternary};
pub use registry::{RegisterError, by_id, by_name, byte_len_of, id_name, register};
pub use tensor::HostTensor;
