//! The input of linear layers, and the norm in front of it.

use super::Cx;
use sterna_program::{Buf, Norm, NormKind, RowsOf};

/// In a kernel's parameters: no such vector.
pub const ABSENT: u32 = u32::MAX;

/// Words of a norm in a kernel's parameters.
pub type NormParams = [u32; 4];

/// The input of a stage's layers.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Where it comes from.
    pub x: Buf,
    /// Its norm, if it has one.
    pub norm: Option<&'a Norm>,
    /// Which rows it has.
    pub rows: RowsOf,
}

/// A norm's words.
pub fn norm(cx: &Cx<'_>, norm: Option<&Norm>) -> NormParams {
    let Some(norm) = norm else { return [0, ABSENT, ABSENT, 0] };
    let Norm { kind, weight, bias, eps } = *norm;
    let kind = match kind {
        NormKind::Rms => 1,
        NormKind::Layer => 2,
    };
    [kind, cx.constant(weight), bias.map_or(ABSENT, |bias| cx.constant(bias)), eps.to_bits()]
}
