//! The input of linear layers, and the norm before it.

use super::Cx;
use super::shader::ROWS;
use sterna_program::{Buf, Norm, NormKind, RowsOf};

/// Placeholder in a kernel's parameters for a missing vector.
pub const ABSENT: u32 = u32::MAX;

/// A norm in a kernel's parameters.
pub type NormParams = [u32; 4];

/// Input of a stage's layers.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub x: Buf,
    pub norm: Option<&'a Norm>,
    pub rows: RowsOf,
}

pub fn norm(cx: &Cx<'_>, norm: Option<&Norm>) -> NormParams {
    let Some(norm) = norm else { return [0, ABSENT, ABSENT, 0] };
    let Norm { kind, weight, bias, eps } = *norm;
    let kind = match kind {
        NormKind::Rms => 1,
        NormKind::Layer => 2,
    };
    [kind, cx.constant(weight), bias.map_or(ABSENT, |bias| cx.constant(bias)), eps.to_bits()]
}

/// Allocated rows of activations: kernels read whole tiles.
pub fn padded_rows(rows: usize) -> usize {
    rows.next_multiple_of(ROWS[ROWS.len() - 1] as usize)
}
