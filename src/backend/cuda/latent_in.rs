//! Multi-head latent attention: there are no kernels, and the plan rejects it by name.

use super::cx::Cx;
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use sterna_program::{HeadProj, LatentIn, Program};

const MISSING: &str = "latent_in: multi-head latent attention runs only on the CPU (backend cpu)";

impl Op for &LatentIn {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let LatentIn { x: _, norm: _, q_latent: _, wq: _, wk: _, wkv: _, kv_norm: _, rope: _, kv: _, q: _ } =
            *self;
        Err(MISSING.to_owned())
    }

    fn launches(&self, _: &Cx<'_>) -> Vec<Launch> {
        unreachable!("the plan rejects it")
    }
}

impl Op for &HeadProj {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let HeadProj { x: _, w: _, out: _ } = *self;
        Err(MISSING.to_owned())
    }

    fn launches(&self, _: &Cx<'_>) -> Vec<Launch> {
        unreachable!("the plan rejects it")
    }
}
