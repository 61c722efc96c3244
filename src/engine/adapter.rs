//! A LoRA adapter that is loaded with a model.

use std::sync::Arc;

use crc32fast::Hasher;

use super::error::Error;
use sterna_gguf::{Gguf, TensorInfo};
use sterna_model::{ModelError, lora};

/// A LoRA adapter that an engine loads with its model. Clones share the file.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Name for users, such as its path.
    pub name: String,
    /// Name by which requests may choose it as their model.
    pub alias: Option<String>,
    /// Scale for sequences that do not choose their adapters; 0 does not apply it.
    pub scale: f32,
    file: Arc<lora::Adapter>,
    /// Checksum of its tensors.
    pub(super) sum: u32,
}

impl Adapter {
    /// Checks an adapter's file; its scale is 1.
    ///
    /// # Errors
    /// [`Error::Adapter`] for a file that is damaged or not an adapter.
    pub fn new(name: impl Into<String>, gguf: Gguf) -> Result<Self, Error> {
        let name = name.into();
        let wrong = |error| Error::Adapter { name: name.clone(), error };
        let file = lora::Adapter::read(gguf).map_err(wrong)?;
        let mut sum = Hasher::new();
        let alpha = file.gguf().metadata().get("adapter.lora.alpha");
        sum.update(format!("{alpha:?}").as_bytes());
        for info in file.gguf().tensors() {
            sum.update(info.name.as_bytes());
            sum.update(&file.gguf().raw_bytes(info).map_err(|error| wrong(error.into()))?);
        }
        Ok(Self { name, alias: None, scale: 1.0, file: Arc::new(file), sum: sum.finalize() })
    }

    /// The adapter with another scale.
    #[must_use]
    pub fn with_scale(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// The adapter under a name that requests may choose.
    #[must_use]
    pub fn with_alias(self, alias: impl Into<String>) -> Self {
        Self { alias: Some(alias.into()), ..self }
    }

    /// True if requests may choose it by this name.
    pub fn is_called(&self, name: &str) -> bool {
        self.alias.as_deref() == Some(name)
    }

    /// Its file.
    pub fn gguf(&self) -> &Gguf {
        self.file.gguf()
    }

    /// True if it has a pair for a tensor of the model.
    pub fn changes(&self, tensor: &str) -> bool {
        self.file.changes(tensor)
    }

    /// Checks that [`merge`](Self::merge) adds all of its pairs to the model in `base`.
    ///
    /// # Errors
    /// [`Error::Adapter`].
    pub fn check_merges(&self, base: &Gguf) -> Result<(), Error> {
        self.of_model(self.file.check_merges(base))
    }

    /// Adds the product of a pair, times its scale, to the values of a tensor of `base`.
    ///
    /// # Errors
    /// [`Error::Adapter`] for a pair of another shape.
    pub fn merge(&self, base: &Gguf, info: &TensorInfo, values: &mut [f32]) -> Result<(), Error> {
        self.of_model(self.file.merge(base, info, self.scale, values))
    }

    fn of_model<T>(&self, result: Result<T, ModelError>) -> Result<T, Error> {
        result.map_err(|error| Error::Adapter { name: self.name.clone(), error })
    }

    /// Adds its pairs to a model.
    pub(super) fn attach(&self, base: &Gguf, model: &mut sterna_model::Model) -> Result<(), Error> {
        self.of_model(self.file.attach(&self.name, base, model))
    }
}
