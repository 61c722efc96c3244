//! What JavaScript is thrown.
//!
//! An error of the engine is an `Error` whose `name` is `SternaError`: the module goes on. A panic is one
//! whose `name` is `Panic`: what the module holds cannot be trusted any more.

use std::fmt::Display;

use js_sys::Error;
use wasm_bindgen::JsValue;

/// An error of the engine, for JavaScript.
pub fn error(what: impl Display) -> JsValue {
    named("SternaError", &what.to_string())
}

/// Has panics thrown with what they say, where otherwise the module would end with `unreachable`.
pub fn say_panics() {
    std::panic::set_hook(Box::new(|panic| {
        wasm_bindgen::throw_val(named("Panic", &panic.to_string()));
    }));
}

fn named(name: &str, what: &str) -> JsValue {
    let error = Error::new(what);
    error.set_name(name);
    error.into()
}
