//! A vector that is added to the residual stream: a thread takes some columns of a row.

use super::cx::{Cx, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{ADD_VECTOR_THREADS, AddVectorParams};
use sterna_program::{AddVector, Program};

pub const KERNEL: KernelName = KernelName::single("add_vector");

impl Op for &AddVector {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![KERNEL])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let AddVector { x, v } = **self;
        let cols = cx.p.buf_decl(x).cols as u32;
        let v = cx.weights[v.0 as usize].data;
        let params = AddVectorParams { step: cx.tables(), v, x: cx.buf(x), cols, reserved: 0 };
        vec![Launch {
            kernel: cx.kernel(KERNEL),
            grid: [cols.div_ceil(ADD_VECTOR_THREADS), 1, cx.shape.rows as u32],
            threads: ADD_VECTOR_THREADS,
            shared_bytes: 0,
            params: words(&params),
        }]
    }
}
