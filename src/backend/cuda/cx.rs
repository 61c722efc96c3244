//! Everything that the launches of a stage are made of. Stages import this file; it knows none of them.

use super::driver::{Driver, Kernel, Limits};
use super::memory::Memory;
use super::params::{NextWeights, StepTables};
use super::weight::DeviceWeight;
use sterna_program::{Kv, Program};

/// Inputs of the launches of a compiled program.
pub struct Cx<'a> {
    pub p: &'a Program,
    pub driver: &'a dyn Driver,
    pub limits: Limits,
    pub weights: &'a [DeviceWeight],
    pub memory: &'a Memory,
    pub shape: Shape,
    /// Index of the stage.
    pub stage: usize,
    /// Weights of the next stage.
    pub next: NextWeights,
    /// True if all stages run together, so that one stage may do the work of another.
    pub whole: bool,
    /// True if streamed experts are read directly from host memory.
    pub in_place: bool,
}

impl Cx<'_> {
    /// Addresses of the tables that change with every step, and the next stage's weights.
    pub fn tables(&self) -> StepTables {
        self.memory.step.tables(self.next)
    }

    /// The same for a stage that reads or writes a cache, with its pages.
    pub fn tables_for(&self, kv: Kv) -> StepTables {
        self.memory.step.tables_for(self.p.kv_decl(kv), self.next)
    }

    pub fn kernel(&self, name: &str) -> Kernel {
        self.driver.kernel(name).unwrap_or_else(|| panic!("the plan did not report {name} as missing"))
    }
}

/// Maximum size of the steps that a list of launches serves. Smaller steps run on it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rows: usize,
    /// Rows that request logits.
    pub outputs: usize,
    /// True if attention processes its rows in tiles.
    pub tiled: bool,
}

/// A kernel's parameters in the form that a driver expects.
pub fn words<T: bytemuck::Pod>(params: &T) -> Vec<u64> {
    bytemuck::cast_slice(std::slice::from_ref(params)).to_vec()
}
