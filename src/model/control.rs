//! Control vectors: files of directions `direction.N`, which are added to the residual stream after layer
//! `N`, counted from 0. The first layer has none.
//!
//! [`ControlVector::read`] checks a file, [`attach`] adds the sum of several to a model's program.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use bytes::Bytes;
use ggml_types::{HostTensor, types};

use super::{Model, ModelError};
use sterna_gguf::Gguf;
use sterna_program::{AddVector, Buf, ProjAdd, Stage};

const ARCHITECTURE: &str = "controlvector";

/// A control vector whose file was checked.
#[derive(Clone, Debug)]
pub struct ControlVector {
    /// By layer, from 1 on.
    directions: BTreeMap<usize, Vec<f32>>,
}

impl ControlVector {
    /// Checks a file: its architecture, and the names, types, lengths and values of its directions.
    ///
    /// # Errors
    /// [`ModelError`], with the key or the tensor.
    pub fn read(gguf: &Gguf) -> Result<Self, ModelError> {
        const KEY: &str = "general.architecture";
        let found = gguf.metadata().str(KEY)?;
        if found != Some(ARCHITECTURE) {
            let (want, got) = (ARCHITECTURE.to_owned(), found.unwrap_or("no such key").to_owned());
            return Err(ModelError::Metadata { key: KEY.to_owned(), want, got });
        }
        let mut directions = BTreeMap::new();
        let mut first_cols = None;
        for info in gguf.tensors() {
            let shape = format!("{:?} {}", info.dims, info.type_name);
            let layer = info.name.strip_prefix("direction.").and_then(|layer| layer.parse::<usize>().ok());
            let Some(layer) = layer.filter(|layer| *layer >= 1) else {
                return Err(wrong(
                    &info.name,
                    "a name direction.N with the number of a layer from 1 on",
                    shape,
                ));
            };
            let is_f32 = info.ty.is_some_and(|ty| ty.is(&types::F32));
            let cols = *first_cols.get_or_insert(info.cols());
            if !is_f32 || info.rows() != 1 || info.cols() != cols {
                return Err(wrong(&info.name, format!("[{cols}] f32, as the other directions have"), shape));
            }
            let values = super::build::decode(&gguf.host_tensor(info)?)?;
            if let Some(value) = values.iter().find(|value| !value.is_finite()) {
                return Err(wrong(&info.name, "finite values", value.to_string()));
            }
            directions.insert(layer, values);
        }
        if directions.is_empty() {
            return Err(wrong("direction.*", "at least one direction", "no such tensor".to_owned()));
        }
        Ok(Self { directions })
    }

    /// Checks that its directions have `dim` elements and belong to layers of a model of `n_layers`.
    ///
    /// # Errors
    /// [`ModelError::Tensor`], with the first direction that does not.
    pub fn check(&self, dim: usize, n_layers: usize) -> Result<(), ModelError> {
        for (layer, values) in &self.directions {
            let name = format!("direction.{layer}");
            if values.len() != dim {
                let want = format!("[{dim}] for the residual stream of this model (is it of another model?)");
                return Err(wrong(&name, want, format!("[{}] f32", values.len())));
            }
            if *layer >= n_layers {
                let want = format!("a layer of this model, 1 to {}", n_layers.saturating_sub(1));
                return Err(wrong(&name, want, format!("layer {layer}")));
            }
        }
        Ok(())
    }
}

/// Adds the sum of control vectors, each times its scale, after those layers of `model` that are in `layers`.
/// [`ControlVector::check`] has accepted each. `checksum` of a sum's bytes becomes part of the weight's name,
/// so that programs with other directions are told apart.
///
/// # Errors
/// [`ModelError::Tensor`] for a model whose layers do not end by adding to the residual stream.
pub fn attach(
    all: &[(&ControlVector, f32)],
    layers: Option<RangeInclusive<usize>>,
    checksum: impl Fn(&[u8]) -> u32,
    model: &mut Model,
) -> Result<(), ModelError> {
    let mut sums: BTreeMap<usize, Vec<f32>> = BTreeMap::new();
    for (vector, scale) in all {
        for (layer, values) in &vector.directions {
            if layers.as_ref().is_none_or(|layers| layers.contains(layer)) {
                let sum = sums.entry(*layer).or_insert_with(|| vec![0.0; values.len()]);
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += scale * value);
            }
        }
    }
    let residual = residual(model);
    for (layer, sum) in sums {
        let name = format!("direction.{layer}");
        let unsupported = || {
            let want = "a model whose layers end by adding to the residual stream";
            wrong(&name, want, format!("layer {layer} of {}", model.hyper.architecture))
        };
        let number = layer.to_string();
        let is_of_layer =
            |(label, _): &(String, Stage)| label.split_once('.').is_some_and(|(n, _)| n == number);
        let last_at = model.program.stages.iter().rposition(is_of_layer).ok_or_else(unsupported)?;
        let last = &model.program.stages[last_at].1;
        let is_normed = matches!(last, Stage::ProjAdd(ProjAdd { residual: Some(_), .. }));
        let x = residual.filter(|x| !is_normed && last.bufs().1 == [*x]).ok_or_else(unsupported)?;
        let bytes: Vec<u8> = sum.iter().flat_map(|value| value.to_le_bytes()).collect();
        let name = format!("control vector of layer {layer}, {:08x}", checksum(&bytes));
        let tensor = HostTensor {
            name: name.clone(),
            ty: &types::F32,
            rows: 1,
            cols: sum.len(),
            bytes: Bytes::from(bytes),
        };
        let v = model.program.weight(name, tensor.ty, tensor.rows, tensor.cols);
        model.weights.push(tensor.into());
        let stage = Stage::AddVector(AddVector { x, v });
        model.program.stages.insert(last_at + 1, (format!("{layer}.control"), stage));
    }
    Ok(())
}

/// The buffer of the residual stream, which the embedding of tokens writes.
fn residual(model: &Model) -> Option<Buf> {
    model
        .program
        .stages
        .iter()
        .find_map(|(_, stage)| if let Stage::Embed(s) = stage { Some(s.x) } else { None })
}

fn wrong(tensor: &str, want: impl Into<String>, got: String) -> ModelError {
    ModelError::Tensor { tensor: tensor.to_owned(), want: want.into(), got }
}
