//! Combines the products of layers that no single kernel computes together: a thread takes some columns of a
//! row.

use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{
    ACT_CLAMPED_SWIGLU, ACT_GELU, ACT_GELU_TANH, ACT_RELU2, ACT_SILU, COMBINE_THREADS, CombineParams,
};
use sterna_program::{Act, Program};

pub const KERNEL: KernelName = KernelName::single("combine");

/// Rows of products, and how they are combined.
#[derive(Clone, Copy)]
pub struct Combine {
    /// The gate's products, if there is a gate.
    pub gate: Option<Place>,
    pub y: Place,
    pub out: Place,
    pub cols: usize,
    /// `ACT_NONE` and so on.
    pub act: u32,
    /// True if the result is added to `out`.
    pub add: bool,
    /// Rows of products per row of the step.
    pub each: usize,
}

impl Combine {
    /// Multiplies rows of `cols` elements by the sigmoid of a gate: element by element (`ACT_GATE`), or a
    /// whole row by its only gate (`ACT_SHARE`); or by the gate itself (`ACT_TIMES`).
    pub fn by_gate(gate: Place, out: Place, cols: usize, act: u32) -> Self {
        Self { gate: Some(gate), y: out, out, cols, act, add: false, each: 1 }
    }
}

/// The kernels' code for an activation function.
pub fn act(act: Act) -> u32 {
    match act {
        Act::Relu2 => ACT_RELU2,
        Act::Silu => ACT_SILU,
        Act::Gelu => ACT_GELU,
        Act::GeluTanh => ACT_GELU_TANH,
        Act::ClampedSwiglu => ACT_CLAMPED_SWIGLU,
        Act::Xielu(_) => unreachable!("the plan rejects it"),
    }
}

impl Op for Combine {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![KERNEL])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { gate, y, out, cols, act, add, each } = *self;
        let params = CombineParams {
            step: cx.tables(),
            gate: gate.map_or(0, |gate| cx.address(gate)),
            y: cx.address(y),
            out: cx.address(out),
            cols: cols as u32,
            act,
            add: u32::from(add),
            each: each as u32,
        };
        vec![Launch {
            kernel: cx.kernel(KERNEL),
            grid: [cols.div_ceil(COMBINE_THREADS as usize) as u32, 1, (cx.shape.rows * each) as u32],
            threads: COMBINE_THREADS,
            shared_bytes: 0,
            params: words(&params),
        }]
    }
}
