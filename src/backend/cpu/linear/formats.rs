//! Which kernel multiplies a weight type, and what it keeps beside its rows.

use std::fmt;

use ggml_types::QuantType;

use super::CpuWeight;
use crate::backend::cpu::pool::Tile;
use crate::backend::cpu::simd::{F32Rows, FloatFn, Kernels, Product, STRIP, Scratch, TernaryFn};
use crate::program::ActQuant;

/// How a weight type is multiplied.
pub struct Format {
    name: &'static str,
    /// With int8 activations.
    int8: Option<fn(&Kernels) -> TernaryFn>,
    /// With f32 activations.
    float: Option<fn(&Kernels) -> FloatFn>,
    /// The scale of the whole tensor, from the bytes behind its rows.
    pub tensor_scale: fn(&[u8]) -> f32,
}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How one weight is multiplied with one kind of input.
#[derive(Clone, Copy)]
pub enum Multiply {
    /// Integer products with int8 activations.
    Int8(TernaryFn),
    /// Products with f32 activations.
    Float(FloatFn),
    /// The type's own `decode_row` first.
    Decoded,
}

/// For types that are not listed below.
static DECODED: Format = Format { name: "decoded", int8: None, float: None, tensor_scale: |_| 1.0 };

/// Types with kernels of their own.
static FORMATS: &[Format] = &[
    Format { name: "f32", float: Some(|k| k.f32), ..DECODED },
    Format { name: "f16", float: Some(|k| k.f16), ..DECODED },
    Format { name: "bf16", float: Some(|k| k.bf16), ..DECODED },
    Format { name: "q8_0", float: Some(|k| k.q8_0), ..DECODED },
    Format { name: "q6_k", float: Some(|k| k.q6_k), ..DECODED },
    Format { name: "i2_s", int8: Some(|k| k.i2_s), tensor_scale: first_f32, ..DECODED },
    Format { name: "tq2_0", int8: Some(|k| k.tq2_0), ..DECODED },
];

/// The format of a type.
pub fn of(ty: &dyn QuantType) -> &'static Format {
    FORMATS.iter().find(|format| format.name == ty.name()).unwrap_or(&DECODED)
}

impl Format {
    /// How to multiply with inputs of that kind.
    pub fn multiply(&self, k: &Kernels, kind: ActQuant) -> Multiply {
        match kind {
            ActQuant::I8PerToken => self.int8.map(|kernel| Multiply::Int8(kernel(k))),
            ActQuant::None => self.float.map(|kernel| Multiply::Float(kernel(k))),
        }
        .unwrap_or(Multiply::Decoded)
    }
}

/// Decodes a few weight rows at a time and multiplies those.
pub fn decoded(
    k: &Kernels,
    w: &CpuWeight,
    product: &Product<'_>,
    acts: F32Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    let outputs = tile.cols();
    let mut floats = std::mem::take(&mut scratch.decoded);
    for first in outputs.clone().step_by(STRIP) {
        let some = first..(first + STRIP).min(outputs.end);
        for (output, floats) in some.clone().zip(floats.chunks_exact_mut(w.cols)) {
            w.ty.decode_row(&w.bytes, w.rows, output, floats).expect("the tensor's bytes were counted");
        }
        let place = some.start - outputs.start..some.end - outputs.start;
        let product = Product {
            weights: bytemuck::cast_slice(&floats[..some.len() * w.cols]),
            row_bytes: 4 * w.cols,
            bias: product.bias.map(|bias| &bias[place]),
            ..*product
        };
        (k.f32)(&product, acts, scratch, &mut tile.columns(some));
    }
    scratch.decoded = floats;
}

fn first_f32(bytes: &[u8]) -> f32 {
    let bytes = bytes.first_chunk().expect("the tensor's bytes were counted");
    f32::from_le_bytes(*bytes)
}
