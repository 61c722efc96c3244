//! The constants and parameter structs of `cuda/params.h`, which has the words: the build script writes them.
#![allow(missing_docs, dead_code)]

include!(concat!(env!("OUT_DIR"), "/params.rs"));
