//! Norm and the input projections of a recurrent layer: neighbours with the same kind of product share a
//! launch.

use super::cx::Place;
use super::linear::Input;
use super::linear::layers::Layers;
use super::op::Ops;
use sterna_program::{ProjIn, RowsOf};

pub fn lower(s: &ProjIn) -> Ops<'_> {
    let ProjIn { x, ref norm, ref products } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    let layers = products.iter().map(|(linear, buf)| (linear, Place::Buf(*buf))).collect();
    vec![Box::new(Layers { stage: "proj_in", layers, input, from: None, soft_cap: None })]
}
