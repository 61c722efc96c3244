//! Sterna as a WebAssembly module. The package in `web/` is the only caller of what is exported here.
//!
//! A `Model` is a batch of an engine. JavaScript adds requests and calls `Model::step` until they have
//! ended, so that between two steps it can do something else. Options and answers are JSON, in JavaScript's
//! spelling.
//!
//! Exports that may wait for a device are marked `jspi`: the stack of the module is suspended meanwhile, and
//! no other export may be called until the promise settles.
#![cfg(target_arch = "wasm32")]
// wasm-bindgen calls its support of JSPI experimental by a deprecation.
#![allow(deprecated)]

mod constraint;
mod fault;
mod model;
mod options;
mod reader;

pub use model::Model;

use wasm_bindgen::prelude::wasm_bindgen;

/// Runs when the module starts.
#[wasm_bindgen(start)]
pub fn start() {
    fault::say_panics();
}

/// The version of the engine.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
