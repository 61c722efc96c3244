//! GGUF files: names, metadata, typed tensors; mapped or read in pieces, and written.
//!
//! It must never know a model, a program or a backend: the meaning of keys and tensors is defined in `model/`
//! and `tokenizer/`. Dimensions are reversed once, here: GGUF lists the contiguous one first, everything else
//! in this project lists it last. Start at [`Gguf`], then [`Metadata`]; [`GgufWriter`] writes files, and
//! [`Rewrite`] splits, merges and edits them.
#![deny(unsafe_code)]

mod cursor;
mod dialect;
mod error;
mod file;
mod header;
mod map;
mod metadata;
mod parse;
mod rewrite;
mod source;
mod split;
mod tensor;
mod types;
mod value;
mod watched;
mod writer;
mod zeros;

pub use error::GgufError;
pub use file::{Access, Gguf, OpenOptions, TensorInfo};
pub use header::Header;
pub use metadata::Metadata;
pub use rewrite::{PartLimit, Rewrite};
pub use source::{FileSource, Source};
pub use split::{part_name, part_names};
pub use tensor::FileTensor;
pub use types::{file_type_name, type_id, type_named};
pub use value::{Array, Value, ValueType};
pub use watched::{Watched, watched};
pub use writer::{GgufData, GgufWriter};
pub use zeros::{n_zero_matrices, zero_matrices};
