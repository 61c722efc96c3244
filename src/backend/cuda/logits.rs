//! Final norm and output head, for the rows that request logits.

use super::cx::Place;
use super::linear::Input;
use super::linear::layers::Layers;
use super::op::Ops;
use sterna_program::{Logits, RowsOf};

pub fn lower(s: &Logits) -> Ops<'_> {
    let Logits { x, ref norm, ref w, soft_cap, logits } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Outputs };
    vec![Box::new(Layers {
        stage: "logits",
        layers: vec![(w, Place::Buf(logits))],
        input,
        from: None,
        soft_cap,
    })]
}
