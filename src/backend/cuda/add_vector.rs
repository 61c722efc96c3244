//! Control vectors: there are no kernels, and the plan rejects them by name.

use super::cx::Cx;
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use sterna_program::{AddVector, Program};

const MISSING: &str = "control vectors: they run on the CPU and wgpu";

impl Op for &AddVector {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let AddVector { x: _, v: _ } = self;
        Err(MISSING.to_owned())
    }

    fn launches(&self, _: &Cx<'_>) -> Vec<Launch> {
        unreachable!("the plan rejects it")
    }
}
