//! Backends that have proven themselves: a device that says so ([`Backend::self_test_key`]) passes a short
//! self-test before it runs a model whose kinds of layers it has not been tried with, and again when its
//! driver or the kernels are others.

use std::time::Instant;

use super::names;
use crate::backend::{self, Backend, BackendError, Opened, cache_dir};
use crate::engine::{EngineOptions, FewLayers};
use crate::gguf::Gguf;
use crate::selftest::{self, Passes};

/// The backends that options stand for, in the order in which they are tried. One that computes something
/// wrong is among them as the error that says what.
pub fn backends(gguf: &Gguf, options: &EngineOptions, self_test: bool) -> Vec<Opened> {
    let opened = options.device.candidates(options.n_threads());
    match self_test {
        true => opened.into_iter().map(|opened| trusted(opened?, gguf, options)).collect(),
        false => opened,
    }
}

/// A backend, once it has passed with what this model has: kinds of layers, with types of weights, heads and
/// caches.
fn trusted(mut backend: Box<dyn Backend>, gguf: &Gguf, options: &EngineOptions) -> Opened {
    let Some(device) = backend.self_test_key() else { return Ok(backend) };
    let rows = selftest::LAYER_STEPS.into_iter().max().unwrap_or(1);
    // Whatever is wrong with a model is said where it is loaded, and so is what a backend lacks for it.
    let Ok(layers) = FewLayers::of(gguf, options, &*backend, rows) else { return Ok(backend) };
    let what = format!("{device}, {}", selftest::kinds(&layers.program));
    let passes = Passes::in_folder(cache_dir());
    if passes.has(&what) {
        return Ok(backend);
    }
    let name = backend.name();
    let wrong = |detail| BackendError::Device { backend: name, call: "self-test", detail };
    let start = Instant::now();
    let Ok(layers) = layers.read() else { return Ok(backend) };
    match selftest::check_for(&layers, &mut *backend) {
        Ok(None) => {}
        Ok(Some(detail)) => return Err(wrong(format!("{detail} (--no-self-test skips this check)"))),
        Err(err) => {
            return match err.downcast().map(|err| *err) {
                Ok(BackendError::Missing { .. } | BackendError::OutOfMemory { .. }) => Ok(backend),
                Ok(err) => Err(err),
                Err(err) => Err(wrong(err.to_string())),
            };
        }
    }
    passes.keep(&what);
    let seconds = start.elapsed().as_secs_f64();
    let passed = "passed a self-test with layers of this model, which is not repeated until these, the \
                  driver or the kernels change";
    names::note("note", &format!("{name}: {} {passed} ({seconds:.1} s)", backend.device()));
    // The models of the test go with the backend that ran them.
    drop(backend);
    match options.device.name() {
        "auto" => backend::open(name, options.n_threads()),
        _ => options.device.open(options.n_threads()),
    }
}
