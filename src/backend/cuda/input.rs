//! The input of linear layers, and the norm before it.

use super::cx::Cx;
use super::driver::Address;
use super::params::{NORM_LAYER, NORM_NONE, NORM_RMS, NormParams};
use sterna_program::{Buf, Norm, NormKind, RowsOf, Weight};

#[derive(Clone, Copy)]
pub struct Input<'a> {
    pub x: Buf,
    pub norm: Option<&'a Norm>,
    /// The rows used: those of the step, or those that request logits.
    pub rows: RowsOf,
}

fn vector(cx: &Cx<'_>, w: Weight) -> Address {
    cx.weights[w.0 as usize].data
}

pub fn norm(cx: &Cx<'_>, norm: Option<&Norm>) -> NormParams {
    let Some(norm) = norm else { return NormParams { weight: 0, bias: 0, eps: 0.0, kind: NORM_NONE } };
    let Norm { kind, weight, bias, eps } = *norm;
    NormParams {
        weight: vector(cx, weight),
        bias: bias.map_or(0, |bias| vector(cx, bias)),
        eps,
        kind: match kind {
            NormKind::Rms => NORM_RMS,
            NormKind::Layer => NORM_LAYER,
        },
    }
}
