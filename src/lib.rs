//! Sterna runs ternary language models (BitNet b1.58 and its family) from GGUF files.
#![deny(unsafe_code)]

pub mod backend;
pub mod cli;
pub mod gguf;
pub mod model;
pub mod program;
pub mod tokenizer;
