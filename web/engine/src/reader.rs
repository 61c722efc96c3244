//! A model file read by JavaScript: from a disk, a browser's storage, or any other source.
#![allow(unsafe_code)]

use std::io;

use js_sys::futures::jspi_block_on_promise;
use js_sys::{Promise, Uint8Array};
use sterna::gguf::Source;
use wasm_bindgen::prelude::wasm_bindgen;
use wasm_bindgen::{JsCast, JsValue};

#[wasm_bindgen]
extern "C" {
    /// `{size, read(at, n)}`: the size in bytes, and `n` bytes from `at` on as a `Uint8Array` or a promise of
    /// one.
    pub type Reader;

    #[wasm_bindgen(method, getter)]
    fn size(this: &Reader) -> f64;

    #[wasm_bindgen(method, catch)]
    fn read(this: &Reader, at: f64, n: f64) -> Result<JsValue, JsValue>;
}

// SAFETY: a module without shared memory has one thread.
unsafe impl Send for Reader {}
// SAFETY: as above.
unsafe impl Sync for Reader {}

impl Source for Reader {
    fn file_bytes(&self) -> u64 {
        // NaN becomes 0.
        self.size() as u64
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let answer = self.read(at as f64, into.len() as f64).map_err(io_error)?;
        let answer = match answer.dyn_into::<Promise>() {
            Ok(promise) => jspi_block_on_promise(&promise).map_err(io_error)?,
            Err(at_once) => at_once,
        };
        let bytes =
            answer.dyn_into::<Uint8Array>().map_err(|_| io::Error::other("read(): want a Uint8Array"))?;
        if bytes.length() as usize != into.len() {
            let (want, got) = (into.len(), bytes.length());
            let what = format!("read() at {at}: want {want} bytes, got {got}");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        bytes.copy_to(into);
        Ok(())
    }
}

/// The message of a JavaScript exception.
fn io_error(thrown: JsValue) -> io::Error {
    let message = thrown.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
    io::Error::other(message.unwrap_or_else(|| format!("{thrown:?}")))
}
