//! What becomes of the products of layers that no kernel has together: a thread some columns of a row.

use super::driver::{Address, Launch};
use super::params::{
    ACT_CLAMPED_SWIGLU, ACT_GATE, ACT_GELU, ACT_GELU_TANH, ACT_NONE, ACT_RELU2, ACT_SHARE, ACT_SILU,
    COMBINE_THREADS, CombineParams,
};
use super::{Cx, words};
use sterna_program::Act;

pub const KERNEL: &str = "combine";

/// Rows of products, and what they become.
pub struct Combine {
    /// The gate's, where there is one.
    pub gate: Option<Address>,
    pub y: Address,
    pub out: Address,
    pub cols: usize,
    pub act: Option<Act>,
    /// Whether it is added to what is there.
    pub add: bool,
    /// Rows of products for each row of the step.
    pub each: usize,
}

/// The number of an activation function.
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

/// Multiplies rows of `cols` elements with the logistic function of a gate, element by element.
pub fn gate(cx: &Cx<'_>, gate: Address, out: Address, cols: usize) -> Launch {
    gated(cx, gate, out, cols, ACT_GATE)
}

/// The same with a number for each row.
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
