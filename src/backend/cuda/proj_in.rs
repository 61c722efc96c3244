//! Norm and the input projections of a recurrent layer: neighbours with the same kind of product share a
//! launch.

use super::adapters;
use super::cx::Place;
use super::linear::Input;
use super::linear::layers::Layers;
use super::op::Ops;
use sterna_program::{ProjIn, RowsOf};

pub fn lower(s: &ProjIn, adapted: bool) -> Ops<'_> {
    let ProjIn { x, ref norm, ref products } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    let layers: Vec<_> = products.iter().map(|(linear, buf)| (linear, Place::Buf(*buf))).collect();
    let of_adapters = if adapted { adapters::lower(layers.clone(), input) } else { Vec::new() };
    let products = Layers { stage: "proj_in", layers, input, from: None, soft_cap: None, fused: None };
    let mut ops: Ops<'_> = vec![Box::new(products)];
    ops.extend(of_adapters);
    ops
}
