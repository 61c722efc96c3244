//! Layers of one input, each multiplied on its own, as the `logits` stage does.

use super::geometry::Work;
use super::{Input, add_macs, kernels, launches_from, prepares, together};
use crate::Macs;
use crate::cuda::clamp;
use crate::cuda::cx::{Cx, Place};
use crate::cuda::driver::{Launch, Limits};
use crate::cuda::kernel_name::KernelName;
use crate::cuda::op::Op;
use crate::cuda::params::{LogitsParams, OCTET_ROWS};
use crate::cuda::weight::{NO_LINEAR, Products, QUANT_BLOCKS, QUANT_OCTETS, QUANT_OCTETS_MANY, layer_params};
use sterna_program::{Linear, Program, RowsOf};

/// Layers of one input, which is prepared once and quantised by block once. Neighbours with the same kind of
/// product share a launch.
pub struct Layers<'a> {
    /// The stage, for messages.
    pub stage: &'static str,
    /// Each with the location of its output.
    pub layers: Vec<(&'a Linear, Place)>,
    pub input: Input<'a>,
    /// Location of the rows, if they are not those of the input's buffer.
    pub from: Option<Place>,
    pub soft_cap: Option<f32>,
    /// Work of a kernel that computes the same products in other steps, if there is one.
    pub fused: Option<Work>,
}

impl Layers<'_> {
    fn linears(&self) -> Vec<&Linear> {
        self.layers.iter().map(|(linear, _)| *linear).collect()
    }

    /// The launches of one or two layers that share the products.
    fn alike(&self, cx: &Cx<'_>, layers: &[(&Linear, Place)]) -> Vec<Launch> {
        let of = |(linear, place): (&Linear, Place)| (layer_params(cx.weights, linear), cx.address(place));
        let (w, logits) = of(layers[0]);
        let (other, other_logits) = layers.get(1).map_or((NO_LINEAR, 0), |layer| of(*layer));
        let in_octets = other.rows == 0 || w.rows.is_multiple_of(2 * OCTET_ROWS);
        let work = Work::new((w.rows + other.rows) as usize, false).in_octets(in_octets);
        let work = self.fused.map_or(work, |fused| work.with_lanes_of(fused));
        let params = |in_| LogitsParams {
            step: cx.tables(),
            in_,
            w,
            other,
            logits,
            other_logits,
            soft_cap: self.soft_cap.unwrap_or(0.0),
            reserved: 0,
        };
        let x = cx.address(self.from.unwrap_or(Place::Buf(self.input.x)));
        launches_from(cx, "logits", layers[0].0, (&self.input, x), work, params)
    }
}

impl Op for Layers<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let mut names = Vec::new();
        for linear in self.linears() {
            let ty = p.weight_decl(linear.w).ty;
            let products = Products::of(ty, linear.act);
            names
                .extend(kernels("logits", products.ok_or_else(|| format!("{}__{}", self.stage, ty.name()))?));
        }
        names.extend(prepares(p, &self.linears(), &self.input)?);
        Ok(names)
    }

    fn kept(&self, p: &Program) -> usize {
        let end = |(linear, place): &(&Linear, Place)| match place {
            Place::Kept(floats) => floats + p.weight_decl(linear.w).rows,
            Place::Buf(_) | Place::At(_) => 0,
        };
        self.layers.iter().map(end).max().unwrap_or(0)
    }

    fn add_macs(&self, p: &Program, all: &mut Macs) {
        if self.input.rows == RowsOf::Step {
            add_macs(p, &self.linears(), all);
        }
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let by_block = [QUANT_BLOCKS, QUANT_OCTETS, QUANT_OCTETS_MANY];
        let by_block = by_block.map(|kernel| cx.driver.kernel(&kernel.to_string()));
        let (mut all, mut prepared, mut rounded) = (Vec::new(), None, None);
        let mut left = &self.layers[..];
        while let [(layer, _), ..] = left {
            let alike = |(other, _): &&(&Linear, Place)| together(cx.p, &[layer, other]).is_some();
            let (now, later) = left.split_at(1 + left[1..].iter().take(1).filter(alike).count());
            left = later;
            let mut of_layers = self.alike(cx, now);
            let products = of_layers.pop();
            let mut before = of_layers.into_iter();
            if layer.clamp.is_some() || layer.prepares_input(self.input.norm.is_some()) {
                let prepare = before.next();
                let by = (layer.basis, layer.clamp.map(|_| layer.prepared()));
                all.extend(prepare.filter(|_| prepared.replace(by) != Some(by)));
            }
            if let Some(round) = before.next() {
                let by = (round.kernel, layer.prepared());
                let is_there = rounded.replace(by) == Some(by) && by_block.contains(&Some(round.kernel));
                all.extend(Some(round).filter(|_| !is_there));
            }
            all.extend(products);
            all.extend(now.iter().filter_map(|(layer, place)| {
                let cols = cx.p.weight_decl(layer.w).rows;
                Some(clamp::of_output(cx, layer.clamp?.output, *place, cols))
            }));
        }
        all
    }
}
