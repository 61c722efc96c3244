//! What is read from files and written to them: GGUF, weight types, vocabularies, broken input.

mod card;
#[cfg(feature = "convert")]
mod convert;
mod documents;
// Its targets read grammars and requests too.
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
