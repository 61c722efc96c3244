//! Tests of files that are read and written: GGUF, weight types, vocabularies, broken input.

mod card;
#[cfg(feature = "convert")]
mod convert;
// Its targets also read grammars and requests.
#[cfg(feature = "serve")]
mod fuzz_corpus;
mod gguf;
mod gguf_broken;
mod gguf_header;
mod gguf_source;
#[cfg(feature = "hub")]
mod hub;
mod mixes;
mod quantize;
mod tokenizer;
mod types;
