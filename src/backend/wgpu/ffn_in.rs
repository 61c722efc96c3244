//! Norm and the first half of the feed-forward network. Gate and `up` share a dispatch if their weights have
//! the same type; if not, the gate's dispatch writes its activation, and that of `up` multiplies it. A gate
//! with a cutoff is stored unchanged, and activated in place.

use super::adapters::{self, Finish};
use super::linear::{self, Input, Layer};
use super::{Cx, Dispatch, altup, gate};
use sterna_program::{Act, FfnIn, Linear, Program, RowsOf, Stage};

/// Epilogue of `up` after a gate, in its parameters.
pub fn times(act: Act) -> u32 {
    if act == Act::ClampedSwiglu { 5 } else { 3 }
}

/// Epilogue that applies an activation function, in a layer's parameters.
pub fn activation(act: Act) -> u32 {
    match act {
        Act::Relu2 => 0,
        Act::Silu => 1,
        Act::GeluTanh => 2,
        Act::ClampedSwiglu => 4,
        Act::Gelu => 6,
        Act::Xielu(_) => unreachable!("it has a dispatch of its own"),
    }
}

/// The activation function, if there is no kernel for it. xIELU has one without a gate.
pub fn missing(act: Act, has_gate: bool) -> Option<String> {
    (has_gate && matches!(act, Act::Xielu(_))).then(|| XIELU.to_owned())
}

const XIELU: &str =
    "xielu: in gates and experts, the activation function xIELU runs only on the CPU (backend cpu)";

/// Gate and `up` of each stage that may share a dispatch, whose weights no other stage uses.
pub fn units(p: &Program) -> Vec<[&Linear; 2]> {
    let mut uses = vec![0_u32; p.weights.len()];
    let all = p.stages.iter().flat_map(|(_, stage)| stage.linears().1);
    all.for_each(|linear| uses[linear.w.0 as usize] += 1);
    let units = p.stages.iter().filter_map(|(_, stage)| match stage {
        Stage::FfnIn(s) => unit(p, s),
        _ => None,
    });
    units.filter(|unit| unit.iter().all(|linear| uses[linear.w.0 as usize] == 1)).collect()
}

fn unit<'a>(p: &Program, s: &'a FfnIn) -> Option<[&'a Linear; 2]> {
    let unit = [s.gate.as_ref()?, &s.up];
    let [gate, up] = unit.map(|linear| p.weight_decl(linear.w).rows);
    let is_there = !matches!(s.act, Act::Xielu(_)) && s.cutoff.is_none();
    (is_there && gate == up && linear::share_dispatch(p, &unit)).then_some(unit)
}

/// Bytes of one share per row of a step.
pub fn fresh_bytes(p: &Program, s: &FfnIn) -> u64 {
    if s.share.is_some() { 4 * p.limits.rows as u64 } else { 0 }
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a FfnIn) -> Vec<Dispatch<'a>> {
    let FfnIn { x, ref norm, ref gate, ref up, act, ref share, times: factors, cutoff, h } = *s;
    let input = Input { x, norm: norm.as_ref(), rows: RowsOf::Step };
    let (out, out_cols) = (&cx.memory.bufs[h.0 as usize], cx.p.buf_decl(h).cols);
    let layer = |linear, what| Layer { linear, out, out_cols, out_at: 0, what };
    let adapted = cx.adapted && gate.iter().chain([up]).any(|linear| !linear.lora.is_empty());
    let unit = unit(cx.p, s).filter(|_| !adapted);
    let unit =
        unit.and_then(|[gate, up]| linear::glu(cx, input, [layer(gate, activation(act)), layer(up, 0)]));
    let mut all = if let Some(all) = unit {
        all
    } else if adapted {
        // The products are stored unchanged, so that adapters can be added before the activation function.
        let of_up = &cx.memory.adapters.up;
        let layers = match gate {
            Some(gate) => vec![layer(gate, 0), Layer { out: of_up, ..layer(up, 0) }],
            None => vec![layer(up, 0)],
        };
        let finish = || match gate {
            Some(_) => Finish::Gate { act: activation(act), up: of_up, times: times(act) },
            None => Finish::Act(activation(act)),
        };
        let mut all = linear::dispatches(cx, "logits", input, layers);
        all.extend(cutoff.map(|cutoff| altup::cut(cx, out, out_cols, cutoff, None)));
        match act {
            Act::Xielu(of) => all.push(gate::xielu(cx, out, out_cols, of)),
            _ => all.push(adapters::activate(cx, out, (out_cols, RowsOf::Step), finish())),
        }
        all
    } else if let Some((gate, cutoff)) = gate.as_ref().zip(cutoff) {
        let mut all = linear::dispatches(cx, "logits", input, vec![layer(gate, 0)]);
        all.push(altup::cut(cx, out, out_cols, cutoff, Some(activation(act))));
        all.extend(linear::dispatches(cx, "ffn_in", input, vec![layer(up, times(act))]));
        all
    } else {
        let (layers, stage) = match (gate, act) {
            // Stored unchanged, and activated in place.
            (None, Act::Xielu(_)) => (vec![layer(up, 0)], "logits"),
            (Some(gate), _) => (vec![layer(gate, activation(act)), layer(up, times(act))], "ffn_in"),
            (None, _) => (vec![layer(up, activation(act))], "ffn_in"),
        };
        let mut all = linear::dispatches(cx, stage, input, layers);
        if let Act::Xielu(of) = act {
            all.push(gate::xielu(cx, out, out_cols, of));
        }
        all
    };
    if let Some(linear) = share {
        let fresh = &cx.memory.fresh;
        let share = Layer { linear, out: fresh, out_cols: 1, out_at: 0, what: 0 };
        all.extend(linear::dispatches(cx, "logits", input, vec![share]));
        all.push(gate::dispatch(cx, fresh, out, out_cols, gate::By::Share));
    }
    let factors = factors.map(|factors| &cx.memory.bufs[factors.0 as usize]);
    all.extend(factors.map(|factors| gate::dispatch(cx, factors, out, out_cols, gate::By::Itself)));
    all
}
