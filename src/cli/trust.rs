//! Self-tests of devices. A device that asks for it ([`Backend::self_test_key`]) must pass a short self-test
//! before it runs a model with kinds of layers that it has not been tested with, and again after a change of
//! the driver or the kernels.

use std::time::Instant;

use super::names;
use crate::backend::{self, Backend, BackendError, Opened, OtherKernels, cache_dir};
use crate::engine::{EngineOptions, FewLayers};
use crate::gguf::Gguf;
use crate::selftest::{self, Choice, Passes};

/// Candidate backends for the options, in the order in which they are tried. A backend that fails its
/// self-test is replaced by the error.
pub fn backends(gguf: &Gguf, options: &EngineOptions, self_test: bool) -> Vec<Opened> {
    let opened = options.device.candidates(options.n_threads());
    match self_test {
        true => opened.into_iter().map(|opened| trusted(opened?, gguf, options)).collect(),
        false => opened,
    }
}

/// A backend that has passed the self-test for this model's kinds of layers, weight types, heads and cache
/// types.
fn trusted(mut backend: Box<dyn Backend>, gguf: &Gguf, options: &EngineOptions) -> Opened {
    let Some(device) = backend.self_test_key() else { return Ok(backend) };
    // Errors in the model and missing kernels are reported when it is loaded.
    let steps = [&selftest::LAYER_STEPS[..], &[OtherKernels::MOST_ROWS]].concat();
    let Ok(layers) = FewLayers::of(gguf, options, &*backend, &steps) else {
        return Ok(backend);
    };
    let what = format!("{device}, {}", selftest::kinds(&layers.program));
    let passes = Passes::in_folder(cache_dir());
    let sets = backend.other_kernels(&layers.program);
    let take = |backend: &mut dyn Backend, choices: &[Choice]| {
        sets.iter().zip(choices).for_each(|(set, choice)| backend.use_other_kernels(*set, choice.taken));
    };
    let kept: Option<Vec<_>> = sets.iter().map(|set| passes.choice(&what, set.name)).collect();
    if let Some(choices) = kept.filter(|_| passes.has(&what)) {
        take(&mut *backend, &choices);
        return Ok(backend);
    }
    let name = backend.name();
    let wrong = |detail| BackendError::Device { backend: name, call: "self-test", detail };
    let start = Instant::now();
    let Ok(layers) = layers.read() else { return Ok(backend) };
    let checked = selftest::check_for(&layers, &mut *backend).and_then(|found| match found {
        Some(detail) => Ok(Err(detail)),
        None => selftest::choose(&layers, &mut *backend).map(Ok),
    });
    let choices = match checked {
        Ok(Ok(choices)) => choices,
        Ok(Err(detail)) => return Err(wrong(format!("{detail} (--no-self-test skips this check)"))),
        Err(err) => {
            return match err.downcast().map(|err| *err) {
                Ok(BackendError::Missing { .. } | BackendError::OutOfMemory { .. }) => Ok(backend),
                Ok(err) => Err(err),
                Err(err) => Err(wrong(err.to_string())),
            };
        }
    };
    passes.keep(&what);
    choices.iter().for_each(|choice| passes.keep_choice(&what, choice));
    let seconds = start.elapsed().as_secs_f64();
    let passed = "passed a self-test for this model's layers, which is repeated only when these, the \
                  driver or the kernels change";
    names::note("note", &format!("{name}: {} {passed} ({seconds:.1} s)", backend.device()));
    for choice in &choices {
        names::note("note", &format!("{name}: {choice}"));
    }
    // Dropping the backend frees the models of the test.
    drop(backend);
    let mut backend = match options.device.name() {
        "auto" => backend::open(name, options.n_threads()),
        _ => options.device.open(options.n_threads()),
    }?;
    take(&mut *backend, &choices);
    Ok(backend)
}
