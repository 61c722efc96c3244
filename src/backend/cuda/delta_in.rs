//! Norm and the input projections of a gated delta net: neighbours with the same kind of product share a
//! launch.

use super::cx::Place;
use super::linear::Input;
use super::linear::layers::Layers;
use super::op::Ops;
use sterna_program::{DeltaIn, RowsOf};

pub fn lower(s: &DeltaIn) -> Ops<'_> {
    let DeltaIn { x, ref norm, ref wu, ref wz, ref wa, ref wb, u, z, a, b } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    let layers = [(wu, u), (wz, z), (wa, a), (wb, b)].map(|(linear, buf)| (linear, Place::Buf(buf)));
    vec![Box::new(Layers { stage: "delta_in", layers: layers.to_vec(), input, soft_cap: None })]
}
