//! Selection of the kernel for a weight type.

use ggml_types::types;

use super::Piece;
use sterna_cpu_kernels::Tile;
use sterna_cpu_kernels::{BlockFn, F32Rows, FloatFn, Format, Kernels, Product, STRIP, Scratch, TernaryFn};
use sterna_program::ActQuant;

/// Kernel for a weight type and a kind of input.
#[derive(Clone, Copy)]
pub enum Multiply {
    /// Integer products with int8 activations.
    Int8(TernaryFn),
    /// Integer products with activations that are int8 with a scale per block.
    Blocks(BlockFn),
    /// Products with f32 activations.
    Float(FloatFn),
    /// Products with f32 activations, of weights that `decode_row` decodes first.
    Decoded,
}

impl Multiply {
    /// Selects the kernel for weights of a format and inputs quantised as `kind`.
    pub fn of(format: Format, k: &Kernels, kind: ActQuant) -> Self {
        let kernels = k.for_type(format);
        let ints = match kind {
            ActQuant::None => None,
            ActQuant::I8PerToken => kernels.int8.map(Self::Int8),
            ActQuant::I8PerBlock => kernels.blocks.map(Self::Blocks),
        };
        // Weights without an integer kernel are multiplied with dequantised inputs.
        ints.or(kernels.float.map(Self::Float)).unwrap_or(Self::Decoded)
    }
}

/// Decodes a few weight rows at a time and multiplies them.
pub fn decoded(
    k: &Kernels,
    w: &Piece<'_>,
    product: &Product<'_>,
    acts: F32Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    let multiply = k.for_type(Format::of(&types::F32)).float.expect("a kernel of every set");
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
        multiply(&product, acts, scratch, &mut tile.columns(some));
    }
    scratch.decoded = floats;
}
