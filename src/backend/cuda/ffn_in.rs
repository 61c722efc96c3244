//! Norm and the first half of the feed-forward network: a row of the gate and the same row of up share a
//! warp. If no kernel computes both, or they have bounds, they are multiplied separately. The same goes for a
//! gate with a cutoff, which needs a whole row, and for GELU with erf and xIELU, which only `combine`
//! implements: in the kernels of the stage they would cost registers and time for all other activations.

use super::adapters;
use super::altup::Cut;
use super::combine::{self, Combine};
use super::cx::{Cx, Place};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::linear::geometry::Work;
use super::linear::layers::Layers;
use super::linear::{self, Input};
use super::op::{Op, Ops};
use super::params::{ACT_GATE, ACT_TIMES, FfnInParams};
use super::weight::{NO_LINEAR, layer_params};
use crate::Macs;
use sterna_program::{Act, FfnIn, Linear, Program, RowsOf};

/// Both products and the activation in one kernel.
struct Fused<'a>(&'a FfnIn);

pub fn lower<'a>(p: &Program, s: &'a FfnIn, adapted: bool) -> Ops<'a> {
    // The norm and its input are in `input`.
    let FfnIn { x: _, norm: _, ref gate, ref up, act, ref share, times, cutoff, h } = *s;
    let (h, cols) = (Place::Buf(h), p.buf_decl(h).cols);
    let products = |layers: Vec<(&'a Linear, Place)>, fused| {
        let of_adapters = if adapted { adapters::lower(layers.clone(), input(s)) } else { Vec::new() };
        let products = Layers { stage: "logits", layers, input: input(s), from: None, soft_cap: None, fused };
        let mut ops: Ops<'a> = vec![Box::new(products)];
        ops.extend(of_adapters);
        ops
    };
    let has_adapters = adapted && linears(s).iter().any(|linear| !linear.lora.is_empty());
    let mut ops: Ops<'a> = Vec::new();
    let by_combine = cutoff.is_some() || matches!(act, Act::Gelu | Act::Xielu(_));
    let has_bounds = linears(s).iter().any(|linear| linear.clamp.is_some());
    let is_fused = !by_combine && !has_bounds && linear::together(p, &linears(s)).is_some();
    if is_fused && !has_adapters {
        ops.push(Box::new(Fused(s)));
    } else {
        let gate = gate.as_ref().map(|gate| (gate, Place::Kept(0)));
        let layers = gate.into_iter().chain([(up, h)]).collect();
        ops.extend(products(layers, is_fused.then(|| work(p, s))));
        if let Some(((_, gate), cutoff)) = gate.zip(cutoff) {
            ops.push(Box::new(Cut { gate, cols, cutoff }));
        }
        ops.push(Box::new(Combine::by_act(act, gate.map(|(_, at)| at), h, cols)));
    }
    if let Some(share) = share {
        ops.extend(products(vec![(share, Place::Kept(0))], None));
        ops.push(Box::new(Combine::by_gate(Place::Kept(0), h, cols, ACT_GATE, cols)));
    }
    let times = times.map(|times| Combine::by_gate(Place::Buf(times), h, cols, ACT_TIMES, 1));
    ops.extend(times.map(|times| Box::new(times) as Box<dyn Op>));
    ops
}

/// Work of the kernel for both products.
fn work(p: &Program, s: &FfnIn) -> Work {
    let rows = linears(s).iter().map(|linear| p.weight_decl(linear.w).rows).sum();
    Work::new(rows, s.gate.is_some())
}

fn linears(s: &FfnIn) -> Vec<&Linear> {
    s.gate.iter().chain([&s.up]).collect()
}

fn input(s: &FfnIn) -> Input<'_> {
    Input { x: s.x, norm: s.norm.as_ref(), rows: RowsOf::Step }
}

impl Op for Fused<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        linear::fused_kernels(p, "ffn_in", &linears(self.0), &input(self.0))
    }

    fn add_macs(&self, p: &Program, all: &mut Macs) {
        linear::add_macs(p, &linears(self.0), all);
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let s = self.0;
        let gate = s.gate.as_ref().map_or(NO_LINEAR, |gate| layer_params(cx.weights, gate));
        let up = layer_params(cx.weights, &s.up);
        let (h, act) = (cx.buf(s.h), combine::act(s.act));
        let work = work(cx.p, s).in_octets(true);
        let params = |in_| FfnInParams { step: cx.tables(), in_, gate, up, h, act, reserved: 0 };
        linear::launches(cx, "ffn_in", &s.up, &input(s), work, params)
    }
}
