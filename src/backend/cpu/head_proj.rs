//! A projection of each head's vector by a matrix of its own.

use super::cx::{Cx, two};
use super::layer::Layers;
use crate::BackendError;
use sterna_program::{HeadProj, Linear};

pub fn run(cx: &mut Cx<'_>, s: &HeadProj) -> Result<(), BackendError> {
    let HeadProj { x, ref w, out } = *s;
    let n = cx.step.rows.len();
    let (x, out) = two(cx.bufs, x, out);
    let (from, to) = ((x.rows(n), x.cols / w.len()), out.cols / w.len());
    project(&mut cx.layers, n, w, from, &mut cx.scratch.product, (out.rows_mut(n), to))
}

/// Multiplies the first elements of each head of `x` by the head's matrix, and writes the product to the
/// first elements of the head in `out`. Both are `[rows, heads * stride]`, with their strides; `product` is
/// scratch memory for one head of all rows.
pub fn project(
    layers: &mut Layers<'_>,
    rows: usize,
    heads: &[Linear],
    (x, x_stride): (&[f32], usize),
    product: &mut [f32],
    (out, out_stride): (&mut [f32], usize),
) -> Result<(), BackendError> {
    for (head, linear) in heads.iter().enumerate() {
        let w = layers.weights.get(linear.w).shape();
        let (outputs, cols) = (w.rows, w.cols);
        let at = |row: usize, stride: usize| (row * heads.len() + head) * stride;
        let product = &mut product[..rows * outputs];
        let input = |row: usize, to: &mut [f32]| to.copy_from_slice(&x[at(row, x_stride)..][..cols]);
        layers.run(rows, input, false, [(linear, &mut *product)])?;
        for (row, y) in product.chunks_exact(outputs).enumerate() {
            out[at(row, out_stride)..][..outputs].copy_from_slice(y);
        }
    }
    Ok(())
}
