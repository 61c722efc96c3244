//! `sterna convert --lora`: a model with adapters merged into its weights.

use std::path::Path;

use ggml_types::{HostTensor, QuantType, types};

use super::CliError;
use crate::engine::Adapter;
use crate::gguf::{Gguf, Metadata, TensorInfo};
use crate::quantize::{Override, QuantizeError, QuantizeOptions, Recipe, TensorSource};

/// A model's file, with the products of adapters added to the tensors that they change, which are f32 then.
#[derive(Debug)]
pub struct Merged {
    base: Gguf,
    adapters: Vec<Adapter>,
    infos: Vec<TensorInfo>,
}

impl Merged {
    /// Checks that the adapters are of the model in `path`.
    ///
    /// # Errors
    /// A file that is not a model, and an adapter of another model.
    pub fn new(path: &Path, adapters: Vec<Adapter>) -> Result<Self, CliError> {
        let base = Gguf::open(path)?;
        base.metadata().check_is_model()?;
        adapters.iter().try_for_each(|adapter| adapter.check_merges(&base))?;
        let mut infos = base.tensors().to_vec();
        for info in infos.iter_mut().filter(|info| adapters.iter().any(|of| of.changes(&info.name))) {
            info.ty = Some(&types::F32);
        }
        Ok(Self { base, adapters, infos })
    }

    /// Options that keep the type of every tensor.
    ///
    /// # Errors
    /// If an adapter changes a ternary tensor, or one of an unknown type.
    pub fn own_types(&self) -> Result<QuantizeOptions, CliError> {
        let mut overrides = Vec::new();
        let mut most: (usize, &'static dyn QuantType) = (0, &types::F32);
        for (info, merged) in self.base.tensors().iter().zip(&self.infos) {
            let ty = self.base.file_tensor(info)?.ty;
            if ty.ternary().is_some() && merged.ty.is_some_and(|ty| ty.is(&types::F32)) {
                return Err(format!(
                    "tensor {} is {}, whose weights are -s, 0 and s, and the sum with an adapter is not: use \
                     the adapter with --lora when the model runs, or write another type with --outtype",
                    info.name,
                    ty.name()
                )
                .into());
            }
            overrides.push(Override::new(&format!("^{}$", regex_of(&info.name)), ty.name())?);
            most = if info.n_elems() > most.0 { (info.n_elems(), ty) } else { most };
        }
        let file_type = self.base.metadata().u32("general.file_type").ok().flatten();
        Ok(QuantizeOptions { overrides, file_type, ..QuantizeOptions::new(Recipe::Type(most.1)) })
    }
}

/// A pattern that matches a text only.
fn regex_of(text: &str) -> String {
    text.replace('.', r"\.")
}

impl TensorSource for Merged {
    fn metadata(&self) -> &Metadata {
        self.base.metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn tensor(&self, at: usize) -> Result<HostTensor, QuantizeError> {
        let info = &self.base.tensors()[at];
        let tensor = self.base.host_tensor(info)?;
        if !self.adapters.iter().any(|adapter| adapter.changes(&info.name)) {
            return Ok(tensor);
        }
        let fault = |detail: String| QuantizeError::Source { name: info.name.clone(), detail };
        let HostTensor { name, ty, rows, cols, bytes } = tensor;
        let mut values = vec![0.0; rows * cols];
        for (row, values) in values.chunks_exact_mut(cols).enumerate() {
            ty.decode_row(&bytes, rows, row, values).map_err(|err| fault(err.to_string()))?;
        }
        for adapter in &self.adapters {
            adapter.merge(&self.base, info, &mut values).map_err(|err| fault(err.to_string()))?;
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(HostTensor { name, ty: &types::F32, rows, cols, bytes: bytes.into() })
    }
}
