//! Addresses of the memory of a compiled program. `exec/memory.rs` allocates it.

use super::adapter_tables::AdapterTables;
use super::bases::Bases;
use super::driver::Address;
use super::head_tables::HeadTables;
use super::kv::KvLayout;
use super::mixture::Mixture;
use super::params::{RopeParams, RoundedParams};
use super::picks::Picks;
use super::states::{Scratch, States};
use super::step::StepMemory;

/// Addresses of a program's memory.
pub struct Memory {
    /// One per buffer of the program.
    pub bufs: Vec<Address>,
    /// One per cache.
    pub kvs: Vec<KvLayout>,
    /// Tables of trellis codes, or 0.
    pub trellis: Address,
    /// One per recurrent state of the program.
    pub states: Vec<States>,
    pub delta: Scratch,
    /// Counter of the keys and values that had to be clamped.
    pub clamped: Address,
    /// Keys and values of a step before `append` transforms them.
    pub raw: Address,
    /// Products of a stage's layers until its last launch reads them.
    pub products: Address,
    /// Buffers of integer products on tensor cores.
    pub rounded: RoundedParams,
    /// Rotated bases, and rows in them.
    pub bases: Bases,
    pub mixture: Mixture,
    pub adapters: AdapterTables,
    pub heads: HeadTables,
    /// One per rotary embedding.
    pub ropes: Vec<RopeParams>,
    /// Tables that change with every step.
    pub step: StepMemory,
    /// Partial results of attention splits.
    pub partial: Address,
    /// Counters of finished attention splits.
    pub attend_arrived: Address,
    pub candidates: Address,
    /// Counters of finished sampling blocks.
    pub sample_arrived: Address,
    pub tokens: Address,
    /// The last picked token of each sequence slot.
    pub picks: Picks,
}

/// Parameters for no rotary embedding.
pub const NO_ROPE: RopeParams = RopeParams { cos_sin: 0, pairs: 0, adjacent: 0 };
