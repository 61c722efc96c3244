//! Control vectors that are loaded with a model, for all of its sequences.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::error::Error;
use sterna_gguf::Gguf;
use sterna_model::{Model, ModelError, control};

/// A control vector that an engine loads with its model. Clones share the directions.
#[derive(Clone, Debug)]
pub struct ControlVector {
    /// Name for users, such as its path.
    pub name: String,
    /// Factor of its directions.
    pub scale: f32,
    file: Arc<control::ControlVector>,
}

impl ControlVector {
    /// Checks a control vector's file.
    ///
    /// # Errors
    /// [`Error::ControlVector`] for a file that is damaged or not a control vector.
    pub fn new(name: impl Into<String>, gguf: &Gguf, scale: f32) -> Result<Self, Error> {
        let name = name.into();
        match control::ControlVector::read(gguf) {
            Ok(file) => Ok(Self { name, scale, file: Arc::new(file) }),
            Err(error) => Err(Error::ControlVector { name, error }),
        }
    }
}

/// Adds the sum of control vectors after the layers of a model that are in `layers`: all, if there is no
/// range.
///
/// # Errors
/// [`Error::ControlVector`] for one of another model; [`Error::Option`] for layers that the model does not
/// have.
pub(super) fn attach(
    all: &[ControlVector],
    layers: Option<&RangeInclusive<usize>>,
    model: &mut Model,
) -> Result<(), Error> {
    let n_layers = model.hyper.n_layers;
    if let Some(layers) = layers.filter(|layers| layers.is_empty() || *layers.end() > n_layers) {
        return Err(Error::Option {
            option: "EngineOptions::control_layers",
            want: format!("a first and a last layer, at most {n_layers}"),
            got: format!("{} to {}", layers.start(), layers.end()),
        });
    }
    let named = |of: &ControlVector, error: ModelError| Error::ControlVector { name: of.name.clone(), error };
    for of in all {
        of.file.check(model.hyper.dim, n_layers).map_err(|error| named(of, error))?;
    }
    let Some(first) = all.first() else { return Ok(()) };
    let vectors: Vec<_> = all.iter().map(|of| (&*of.file, of.scale)).collect();
    control::attach(&vectors, layers.cloned(), crc32fast::hash, model).map_err(|error| named(first, error))
}
