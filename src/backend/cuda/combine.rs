//! Combines the products of layers that no single kernel computes together: a thread takes some columns of a
//! row.

use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{
    ACT_CLAMPED_SWIGLU, ACT_GELU, ACT_GELU_TANH, ACT_NONE, ACT_RELU2, ACT_SILU, ACT_XIELU, COMBINE_THREADS,
    CombineParams,
};
use sterna_program::{Act, Program, Xielu};

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
    /// Neighbouring elements of a row that share an element of the gate.
    pub run: usize,
    /// Numbers of `ACT_XIELU`.
    pub xielu: Option<Xielu>,
}

impl Combine {
    /// The activation function of products `y`, or of their gate, by which they are multiplied.
    pub fn by_act(of: Act, gate: Option<Place>, y: Place, cols: usize) -> Self {
        let xielu = if let Act::Xielu(numbers) = of { Some(numbers) } else { None };
        Self { gate, y, out: y, cols, act: act(of), add: false, each: 1, run: 1, xielu }
    }

    /// Multiplies rows of `cols` elements by the sigmoid of a gate (`ACT_GATE`), by its softplus
    /// (`ACT_SOFTPLUS`) or by the gate itself (`ACT_TIMES`): runs of `run` elements by an element each.
    pub fn by_gate(gate: Place, out: Place, cols: usize, act: u32, run: usize) -> Self {
        Self { gate: Some(gate), y: out, out, cols, act, add: false, each: 1, run, xielu: None }
    }

    /// Adds products to `out`.
    pub fn sum(y: Place, out: Place, cols: usize) -> Self {
        Self { gate: None, y, out, cols, act: ACT_NONE, add: true, each: 1, run: 1, xielu: None }
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
        Act::Xielu(_) => ACT_XIELU,
    }
}

impl Op for Combine {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![KERNEL])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { gate, y, out, cols, act, add, each, run, xielu } = *self;
        let numbers = Xielu { positive: 0.0, negative: 0.0, beta: 0.0, eps: 0.0 };
        let Xielu { positive, negative, beta, eps } = xielu.unwrap_or(numbers);
        let params = CombineParams {
            step: cx.tables(),
            gate: gate.map_or(0, |gate| cx.address(gate)),
            y: cx.address(y),
            out: cx.address(out),
            cols: cols as u32,
            act,
            add: u32::from(add),
            each: each as u32,
            run: run as u32,
            positive,
            negative,
            beta,
            eps,
            reserved: 0,
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
