//! Which kernel multiplies a weight type.

use ggml_types::{QuantType, types};

use super::Piece;
use crate::cpu::simd::Tile;
use crate::cpu::simd::{
    BLOCK_PRODUCTS, BlockFn, BlockKernels, F32Rows, FloatFn, Kernels, Product, STRIP, Scratch, TernaryFn,
};
use sterna_program::ActQuant;

/// How a weight type is multiplied.
#[derive(Debug)]
pub struct Format {
    /// With int8 activations.
    int8: Option<fn(&Kernels) -> TernaryFn>,
    /// With activations that are int8 by block.
    blocks: Option<fn(&BlockKernels) -> BlockFn>,
    /// With f32 activations.
    float: Option<fn(&Kernels) -> FloatFn>,
}

/// How one weight is multiplied with one kind of input.
#[derive(Clone, Copy)]
pub enum Multiply {
    /// Integer products with int8 activations.
    Int8(TernaryFn),
    /// Integer products with activations that are int8 by block.
    Blocks(BlockFn),
    /// Products with f32 activations.
    Float(FloatFn),
    /// The type's own `decode_row` first.
    Decoded,
}

/// For types that are not listed below.
static DECODED: Format = Format { int8: None, blocks: None, float: None };

/// Types with kernels of their own.
static FORMATS: &[(&dyn QuantType, Format)] = &[
    (&types::F32, Format { float: Some(|k| k.f32), ..DECODED }),
    (&types::F16, Format { float: Some(|k| k.f16), ..DECODED }),
    (&types::Bf16, Format { float: Some(|k| k.bf16), ..DECODED }),
    (&types::Q8_0, Format { blocks: Some(|k| k.q8_0), float: Some(|k| k.q8_0), ..DECODED }),
    (&types::Q6K, Format { blocks: Some(|k| k.q6_k), float: Some(|k| k.q6_k), ..DECODED }),
    (&types::I2S, Format { int8: Some(|k| k.i2_s), ..DECODED }),
    (&types::Q4_0, Format { blocks: Some(|k| k.q4_0), float: Some(|k| k.q4_0), ..DECODED }),
    (&types::Q5_0, Format { blocks: Some(|k| k.q5_0), float: Some(|k| k.q5_0), ..DECODED }),
    (&types::Q4K, Format { blocks: Some(|k| k.q4_k), float: Some(|k| k.q4_k), ..DECODED }),
    (&types::Q5K, Format { blocks: Some(|k| k.q5_k), float: Some(|k| k.q5_k), ..DECODED }),
    (&types::Q4_1, Format { blocks: Some(|k| k.q4_1), float: Some(|k| k.q4_1), ..DECODED }),
    (&types::Q5_1, Format { blocks: Some(|k| k.q5_1), float: Some(|k| k.q5_1), ..DECODED }),
    (&types::Iq4Nl, Format { blocks: Some(|k| k.iq4_nl), float: Some(|k| k.iq4_nl), ..DECODED }),
    (&types::Mxfp4, Format { blocks: Some(|k| k.mxfp4), float: Some(|k| k.mxfp4), ..DECODED }),
    (&types::Q1_0, Format { blocks: Some(|k| k.q1_0), float: Some(|k| k.q1_0), ..DECODED }),
    (&types::Q2_0, Format { blocks: Some(|k| k.q2_0), float: Some(|k| k.q2_0), ..DECODED }),
    (&types::Pq2_0, Format { blocks: Some(|k| k.pq2_0), float: Some(|k| k.pq2_0), ..DECODED }),
    (&types::Ptq1_0, Format { blocks: Some(|k| k.ptq1_0), float: Some(|k| k.ptq1_0), ..DECODED }),
    (&types::Q2K, Format { blocks: Some(|k| k.q2_k), float: Some(|k| k.q2_k), ..DECODED }),
    (&types::Q3K, Format { blocks: Some(|k| k.q3_k), float: Some(|k| k.q3_k), ..DECODED }),
    (&types::Iq4Xs, Format { blocks: Some(|k| k.iq4_xs), float: Some(|k| k.iq4_xs), ..DECODED }),
    (&types::Nvfp4, Format { float: Some(|k| k.nvfp4), ..DECODED }),
    (&types::Iq1M, Format { float: Some(|k| k.iq1_m), ..DECODED }),
    (&types::Iq1S, Format { float: Some(|k| k.iq1_s), ..DECODED }),
    (&types::Iq2Xxs, Format { float: Some(|k| k.iq2_xxs), ..DECODED }),
    (&types::Iq2Xs, Format { float: Some(|k| k.iq2_xs), ..DECODED }),
    (&types::Iq2S, Format { float: Some(|k| k.iq2_s), ..DECODED }),
    (&types::Iq3Xxs, Format { float: Some(|k| k.iq3_xxs), ..DECODED }),
    (&types::Iq3S, Format { float: Some(|k| k.iq3_s), ..DECODED }),
    (&types::Iq2Bn, Format { int8: Some(|k| k.iq2_bn), ..DECODED }),
    (&types::Iq2BnR4, Format { int8: Some(|k| k.iq2_bn_r4), ..DECODED }),
    (&types::Iq1Bn, Format { int8: Some(|k| k.iq1_bn), ..DECODED }),
    (
        &types::Tq1_0,
        Format { int8: Some(|k| k.tq1_0), blocks: Some(|k| k.tq1_0), float: Some(|k| k.tq1_0_float) },
    ),
    (
        &types::Tq2_0,
        Format { int8: Some(|k| k.tq2_0), blocks: Some(|k| k.tq2_0), float: Some(|k| k.tq2_0_float) },
    ),
];

/// The format of a type.
pub fn of(ty: &dyn QuantType) -> &'static Format {
    FORMATS.iter().find(|(known, _)| known.is(ty)).map_or(&DECODED, |(_, format)| format)
}

/// Whether a type is multiplied as integers with inputs that are int8 by block.
pub fn has_integer_products(ty: &dyn QuantType) -> bool {
    BLOCK_PRODUCTS && of(ty).blocks.is_some()
}

impl Format {
    /// How to multiply with inputs of that kind.
    pub fn multiply(&self, k: &Kernels, kind: ActQuant) -> Multiply {
        let int8 = match kind {
            ActQuant::None => None,
            ActQuant::I8PerToken => self.int8.map(|kernel| Multiply::Int8(kernel(k))),
            ActQuant::I8PerBlock => {
                self.blocks.zip(k.blocks).map(|(kernel, kernels)| Multiply::Blocks(kernel(kernels)))
            }
        };
        // Rounded inputs are multiplied as floats by weights without a kernel for integers.
        int8.or(self.float.map(|kernel| Multiply::Float(kernel(k)))).unwrap_or(Multiply::Decoded)
    }
}

/// Decodes a few weight rows at a time and multiplies those.
pub fn decoded(
    k: &Kernels,
    w: &Piece<'_>,
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
            w.ty.decode_row(w.bytes, w.rows, output, floats).expect("the tensor's bytes were counted");
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
