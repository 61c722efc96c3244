//! Norm and the first half of the feed-forward network: a row of the gate and the same row of up share a
//! warp. If no kernel computes both, they are multiplied separately. The same goes for GELU with erf, which
//! only `combine` implements: in the kernels of the stage it would cost registers and time for all other
//! activations.

use super::combine::{self, Combine};
use super::cx::Cx;
use super::driver::Launch;
use super::linear::geometry::Work;
use super::linear::{self, Input};
use super::params::FfnInParams;
use super::weight::NO_LINEAR;
use sterna_program::{Act, FfnIn, Linear, Program, RowsOf};

fn linears(s: &FfnIn) -> Vec<&Linear> {
    [s.gate.as_ref(), Some(&s.up)].into_iter().flatten().collect()
}

/// True if one kernel computes the whole stage.
fn is_whole(p: &Program, s: &FfnIn) -> bool {
    s.act != Act::Gelu && linear::together(p, &linears(s)).is_some()
}

pub fn kernels(p: &Program, s: &FfnIn) -> Result<Vec<String>, String> {
    let whole = is_whole(p, s);
    let mut names = linear::kernels(p, if whole { "ffn_in" } else { "logits" }, &linears(s))?;
    let combines = !whole || s.share.is_some();
    names.extend(combines.then(|| combine::KERNEL.to_owned()));
    if let Some(share) = &s.share {
        names.extend(linear::kernels(p, "logits", &[share])?);
    }
    Ok(names)
}

/// Floats per row that are kept for `combine`: the gate's products (those of up are in `h`), or the row's
/// share.
pub fn products(p: &Program, s: &FfnIn) -> usize {
    match &s.gate {
        Some(gate) if !is_whole(p, s) => p.weight_decl(gate.w).rows,
        _ => usize::from(s.share.is_some()),
    }
}

pub fn launches(cx: &Cx<'_>, s: &FfnIn) -> Vec<Launch> {
    let mut all = network(cx, s);
    if let Some(share) = &s.share {
        let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step };
        let (h, cols) = (cx.memory.bufs[s.h.0 as usize], cx.p.buf_decl(s.h).cols);
        all.extend(linear::product(cx, share, &input, cx.memory.products));
        all.push(combine::share(cx, cx.memory.products, h, cols));
    }
    all
}

fn network(cx: &Cx<'_>, s: &FfnIn) -> Vec<Launch> {
    // The share is handled by `launches`.
    let FfnIn { x, ref norm, ref gate, ref up, act, share: _, h: to } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    let h = cx.memory.bufs[to.0 as usize];
    if !is_whole(cx.p, s) {
        let gate = gate.as_ref().map(|gate| (gate, cx.memory.products));
        let layers: Vec<_> = gate.into_iter().chain([(up, h)]).collect();
        let products = linear::of_one_input(cx, &layers, &input);
        let (gate, cols) = (gate.map(|(_, at)| at), cx.p.buf_decl(to).cols);
        let combine = Combine { gate, y: h, out: h, cols, act: Some(act), add: false, each: 1 };
        return products.into_iter().chain([combine::launch(cx, &combine)]).collect();
    }
    let of_gate = gate.as_ref().map_or(NO_LINEAR, |gate| linear::linear(cx, gate));
    let of_up = linear::linear(cx, up);
    let work = Work { rows: (of_gate.rows + of_up.rows) as usize, paired: gate.is_some() };
    let act = combine::act(act);
    let params = |in_| FfnInParams { step: cx.tables(), in_, gate: of_gate, up: of_up, h, act, reserved: 0 };
    linear::launches(cx, "ffn_in", up, &input, work, params)
}
