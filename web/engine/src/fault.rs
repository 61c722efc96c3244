//! Errors thrown to JavaScript.
//!
//! An error of the engine is an `Error` whose `name` is `SternaError`; the module can still be used. After a
//! panic the `name` is `Panic`: the state of the module is no longer valid.

use std::fmt::Display;

use js_sys::Error;
use wasm_bindgen::JsValue;

/// An error of the engine, for JavaScript.
pub fn error(what: impl Display) -> JsValue {
    named("SternaError", &what.to_string())
}

/// Throws panics with their message, where the module would otherwise stop with `unreachable`.
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
