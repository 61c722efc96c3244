//! A projection added to the residual stream. If the product or the residual is normalised first, or the sum
//! has a factor, the layer only writes the product, and a second launch, one block per row, does the rest.

use super::adapters;
use super::combine::Combine;
use super::cx::{Cx, Place};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::linear::geometry::Work;
use super::linear::layers::Layers;
use super::linear::{self, Input};
use super::op::{Op, Ops};
use super::params::ProjAddParams;
use super::post_norm::PostNorm;
use super::weight::layer_params;
use crate::Macs;
use sterna_program::{Program, ProjAdd, RowsOf};

/// The product and the addition in one kernel.
struct Fused<'a>(&'a ProjAdd);

pub fn lower<'a>(p: &Program, s: &'a ProjAdd, adapted: bool) -> Ops<'a> {
    let ProjAdd { y: _, ref w, ref post, ref residual, scale, x } = *s;
    let of_adapters = |out| if adapted { adapters::lower(vec![(w, out)], input(s)) } else { Vec::new() };
    let is_normed = post.is_some() || residual.is_some() || scale != 1.0;
    if !is_normed && linear::together(p, &[w]).is_some() {
        let mut ops: Ops<'a> = vec![Box::new(Fused(s))];
        ops.extend(of_adapters(Place::Buf(x)));
        return ops;
    }
    let (product, cols) = (Place::Kept(0), p.weight_decl(w.w).rows);
    let stage = if is_normed { "logits" } else { "proj_add" };
    let layers = vec![(w, product)];
    let products = Layers { stage, layers, input: input(s), from: None, soft_cap: None, fused: None };
    let mut ops: Ops<'a> = vec![Box::new(products)];
    ops.extend(of_adapters(product));
    if is_normed {
        let norms = [post.as_ref(), residual.as_ref()];
        ops.push(Box::new(PostNorm { norms, product, x, cols, scale }));
    } else {
        let out = Place::Buf(x);
        ops.push(Box::new(Combine::sum(product, out, cols)));
    }
    ops
}

/// A norm of the layer is its input's only one.
fn input(s: &ProjAdd) -> Input<'_> {
    Input { x: s.y, norm: None, rows: RowsOf::Step }
}

impl Op for Fused<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        linear::fused_kernels(p, "proj_add", &[&self.0.w], &input(self.0))
    }

    fn add_macs(&self, p: &Program, all: &mut Macs) {
        linear::add_macs(p, &[&self.0.w], all);
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let (w, x) = (layer_params(cx.weights, &self.0.w), cx.buf(self.0.x));
        let work = Work::new(w.rows as usize, false).in_octets(true);
        let params = |in_| ProjAddParams { step: cx.tables(), in_, w, x };
        linear::launches(cx, "proj_add", &self.0.w, &input(self.0), work, params)
    }
}
