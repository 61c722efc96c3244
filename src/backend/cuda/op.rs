//! Operations, which stages are lowered to.

use super::cx::Cx;
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use crate::Macs;
use sterna_program::Program;

/// One operation of a stage: its launches, and what the plan must know of them.
pub trait Op {
    /// The kernels of its launches in steps of any size.
    ///
    /// # Errors
    /// The missing kernel or feature, for a message.
    fn kernels(&self, p: &Program, limits: Limits) -> Result<Vec<KernelName>, String>;

    /// Floats per row that it uses of the buffer for [kept products](super::cx::Place::Kept).
    fn kept(&self, _: &Program) -> usize {
        0
    }

    /// Adds its multiply-adds per row of a large batch.
    fn add_macs(&self, _: &Program, _: &mut Macs) {}

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch>;
}

/// The operations of a stage, in order.
pub type Ops<'a> = Vec<Box<dyn Op + 'a>>;
