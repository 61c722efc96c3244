//! Everything that the launches of a stage are made of. Stages import this file; it knows none of them.

use super::driver::{Address, Driver, Kernel, Limits};
use super::kernel_name::KernelName;
use super::memory::Memory;
use super::params::{NextWeights, StepTables};
use super::weight::DeviceWeight;
use sterna_program::{Buf, Kv, PAGE, Program, RopeId};

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

    pub fn kernel(&self, name: KernelName) -> Kernel {
        let kernel = self.driver.kernel(&name.to_string());
        kernel.unwrap_or_else(|| panic!("the plan did not report {name} as missing"))
    }

    /// Address of the axes of a RoPE's pairs, which follow its cosines and sines.
    pub fn axes(&self, rope: RopeId) -> Address {
        let table = self.memory.ropes[rope.0 as usize].cos_sin;
        table + (8 * self.p.ropes[rope.0 as usize].inv_freq.len() * self.p.limits.pages * PAGE) as u64
    }

    pub fn buf(&self, buf: Buf) -> Address {
        self.memory.bufs[buf.0 as usize]
    }

    pub fn address(&self, place: Place) -> Address {
        match place {
            Place::Buf(buf) => self.buf(buf),
            Place::Kept(floats) => self.memory.products + (4 * self.p.limits.rows * floats) as u64,
            Place::At(address) => address,
        }
    }
}

/// Location of the rows that an operation reads or writes.
#[derive(Clone, Copy)]
pub enum Place {
    Buf(Buf),
    /// In the buffer of products that a stage keeps between its launches, after the rows of others with this
    /// many columns together.
    Kept(usize),
    At(Address),
}

/// Maximum size of the steps that a list of launches serves. Smaller steps run on it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub rows: usize,
    /// Rows that request logits.
    pub outputs: usize,
    /// True if attention processes its rows in tiles.
    pub tiled: bool,
    /// True if rows use adapters.
    pub adapted: bool,
}

/// A kernel's parameters in the form that a driver expects.
pub fn words<T: bytemuck::Pod>(params: &T) -> Vec<u64> {
    bytemuck::cast_slice(std::slice::from_ref(params)).to_vec()
}
