//! Backends that have proven themselves: a device that says so ([`Backend::self_test_key`]) passes a short
//! self-test before it runs its first model, and again when its driver or the kernels are others.

use std::time::Instant;

use super::names;
use crate::backend::{self, Backend, BackendError, Opened, cache_dir};
use crate::engine::EngineOptions;
use crate::selftest::{self, Passes};

/// The backends that options stand for, in the order in which they are tried. One that computes something
/// wrong is among them as the error that says what.
pub fn backends(options: &EngineOptions, self_test: bool) -> Vec<Opened> {
    let opened = options.device.candidates(options.n_threads());
    match self_test {
        true => opened.into_iter().map(|opened| trusted(opened?, options)).collect(),
        false => opened,
    }
}

/// A backend, once it has passed.
fn trusted(mut backend: Box<dyn Backend>, options: &EngineOptions) -> Opened {
    let Some(device) = backend.self_test_key() else { return Ok(backend) };
    let (k, v) = (options.cache_type_k, options.cache_type_v);
    let what = format!("{device}, KV {} and {}", k.name(), v.name());
    let passes = Passes::in_folder(cache_dir());
    if passes.has(&what) {
        return Ok(backend);
    }
    let name = backend.name();
    let wrong = |detail| BackendError::Device { backend: name, call: "self-test", detail };
    let start = Instant::now();
    match selftest::check(&mut *backend, k, v) {
        Ok(None) => {}
        Ok(Some(detail)) => return Err(wrong(format!("{detail} (--no-self-test skips this check)"))),
        Err(err) => {
            return match err.downcast().map(|err| *err) {
                // Codecs that a backend lacks are refused where the model is planned.
                Ok(BackendError::Missing { .. }) => Ok(backend),
                Ok(err) => Err(err),
                Err(err) => Err(wrong(err.to_string())),
            };
        }
    }
    passes.keep(&what);
    let seconds = start.elapsed().as_secs_f64();
    let passed = "passed a self-test, which is not repeated until its driver or the kernels change";
    names::note("note", &format!("{name}: {} {passed} ({seconds:.1} s)", backend.device()));
    // The models of the test go with the backend that ran them.
    drop(backend);
    match options.device.name() {
        "auto" => backend::open(name, options.n_threads()),
        _ => options.device.open(options.n_threads()),
    }
}
