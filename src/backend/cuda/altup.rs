//! Alternating updates (AltUp): there are no kernels, and the plan rejects them by name.

use super::cx::Cx;
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use sterna_program::{AltUpCorrect, AltUpPredict, Program, Rescale};

const MISSING: &str = "altup: models with AltUp (Gemma 3n) run only on the CPU (backend cpu)";

impl Op for &AltUpPredict {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let AltUpPredict { c: _, w: _, x: _, active: _, out: _, y: _ } = self;
        Err(MISSING.to_owned())
    }

    fn launches(&self, _: &Cx<'_>) -> Vec<Launch> {
        unreachable!("the plan rejects it")
    }
}

impl Op for &AltUpCorrect {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let AltUpCorrect { c: _, w: _, y: _, predicted: _, active: _, x: _, factors: _, scaled: _ } = self;
        Err(MISSING.to_owned())
    }

    fn launches(&self, _: &Cx<'_>) -> Vec<Launch> {
        unreachable!("the plan rejects it")
    }
}

impl Op for &Rescale {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let Rescale { like: _, y: _, floor: _, mean: _ } = self;
        Err(MISSING.to_owned())
    }

    fn launches(&self, _: &Cx<'_>) -> Vec<Launch> {
        unreachable!("the plan rejects it")
    }
}
