//! Sterna as a WebAssembly module. The package in `web/` is the only user of these exports.
//!
//! A `Model` is a batch of an engine. JavaScript adds requests and calls `Model::step` until they have ended,
//! and can do other work between steps. Options and answers are JSON, with JavaScript's naming.
//!
//! Exports that may wait for a device are marked `jspi`: the module's stack is suspended meanwhile, and no
//! other export may be called until the promise settles.
#![cfg(target_arch = "wasm32")]
// wasm-bindgen marks its experimental JSPI support as deprecated.
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
