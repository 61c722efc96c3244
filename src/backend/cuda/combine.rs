//! Combines the products of layers that no single kernel computes together: a thread takes some columns of a
//! row.

use super::cx::{Cx, words};
use super::driver::{Address, Launch};
use super::params::{
    ACT_CLAMPED_SWIGLU, ACT_GATE, ACT_GELU, ACT_GELU_TANH, ACT_NONE, ACT_RELU2, ACT_SHARE, ACT_SILU,
    COMBINE_THREADS, CombineParams,
};
use sterna_program::Act;

pub const KERNEL: &str = "combine";

/// Rows of products, and how they are combined.
pub struct Combine {
    /// The gate's products, if there is a gate.
    pub gate: Option<Address>,
    pub y: Address,
    pub out: Address,
    pub cols: usize,
    pub act: Option<Act>,
    /// True if the result is added to `out`.
    pub add: bool,
    /// Rows of products per row of the step.
    pub each: usize,
}

/// The kernels' code for an activation function.
pub fn act(act: Act) -> u32 {
    match act {
        Act::Relu2 => ACT_RELU2,
        Act::Silu => ACT_SILU,
        Act::Gelu => ACT_GELU,
        Act::GeluTanh => ACT_GELU_TANH,
        Act::ClampedSwiglu => ACT_CLAMPED_SWIGLU,
    }
}

pub fn launch(cx: &Cx<'_>, c: &Combine) -> Launch {
    launch_of(cx, c, c.act.map_or(ACT_NONE, act))
}

/// Multiplies rows of `cols` elements by the sigmoid of a gate, element by element.
pub fn gate(cx: &Cx<'_>, gate: Address, out: Address, cols: usize) -> Launch {
    gated(cx, gate, out, cols, ACT_GATE)
}

/// The same with one gate per row.
pub fn share(cx: &Cx<'_>, share: Address, out: Address, cols: usize) -> Launch {
    gated(cx, share, out, cols, ACT_SHARE)
}

fn gated(cx: &Cx<'_>, gate: Address, out: Address, cols: usize, how: u32) -> Launch {
    let combine = Combine { gate: Some(gate), y: out, out, cols, act: None, add: false, each: 1 };
    launch_of(cx, &combine, how)
}

fn launch_of(cx: &Cx<'_>, c: &Combine, act: u32) -> Launch {
    let params = CombineParams {
        step: cx.tables(),
        gate: c.gate.unwrap_or(0),
        y: c.y,
        out: c.out,
        cols: c.cols as u32,
        act,
        add: u32::from(c.add),
        each: c.each as u32,
    };
    Launch {
        kernel: cx.kernel(KERNEL),
        grid: [c.cols.div_ceil(COMBINE_THREADS as usize) as u32, 1, (cx.shape.rows * c.each) as u32],
        threads: COMBINE_THREADS,
        shared_bytes: 0,
        params: words(&params),
    }
}
