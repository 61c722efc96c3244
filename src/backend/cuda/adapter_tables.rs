//! The memory of LoRA adapters: tables of pairs, which kernels look up by layer and adapter, and buffers
//! between the launches.

use ggml_types::{QuantType, types};

use super::alloc::Allocator;
use super::driver::{Address, Driver};
use super::params::{
    LORA_BF16, LORA_F16, LORA_F32, LORA_LAYERS, LORA_Q8_0, LORA_RANKS, LinearParams, LoraPair,
};
use super::weight::{DeviceWeight, NO_LINEAR};
use crate::BackendError;
use sterna_program::{Lora, Program, Stage, Weight};

const NO_PAIR: LoraPair = LoraPair { a: NO_LINEAR, b: NO_LINEAR, rank: 0, reserved: 0 };

/// The kernels' code for a type of matrices.
pub fn kind(ty: &dyn QuantType) -> Option<u32> {
    let all: [(&dyn QuantType, u32); 4] = [
        (&types::F32, LORA_F32),
        (&types::F16, LORA_F16),
        (&types::Bf16, LORA_BF16),
        (&types::Q8_0, LORA_Q8_0),
    ];
    all.into_iter().find(|(known, _)| known.is(ty)).map(|(_, kind)| kind)
}

/// The pairs of each layer of a stage, or of its token table: the order of its table.
fn lists(stage: &Stage) -> Vec<&[Lora]> {
    match stage {
        Stage::Embed(s) => vec![&s.lora[..]],
        _ => stage.linears().1.map(|linear| &linear.lora[..]).collect(),
    }
}

/// The largest rank of some pairs, in whole blocks of ranks.
pub fn rank<'l>(p: &Program, pairs: impl IntoIterator<Item = &'l Lora>) -> usize {
    let ranks = pairs.into_iter().map(|pair| p.weight_decl(pair.b).cols);
    ranks.max().unwrap_or(0).next_multiple_of(LORA_RANKS as usize)
}

/// Memory of adapters. Addresses are 0 in a program without any.
#[derive(Clone, Default)]
pub struct AdapterTables {
    /// Per stage: `LoraPair` of its layers, `[layers, n_adapters]`.
    pub tables: Vec<Address>,
    /// Products with first matrices.
    pub first: Address,
    /// Normalised inputs, after the first norm and after the second one.
    pub inputs: [Address; 2],
}

impl AdapterTables {
    pub fn new<A: Allocator + ?Sized>(on: &mut A, p: &Program) -> Result<Self, BackendError> {
        let (mut tables, mut first) = (Vec::with_capacity(p.stages.len()), 0);
        let mut inputs = [0; 2];
        for (_, stage) in &p.stages {
            if !stage.has_adapters() {
                tables.push(0);
                continue;
            }
            let lists = lists(stage);
            let bytes = lists.len() * p.adapters.len() * size_of::<LoraPair>();
            tables.push(on.buffer("tables of adapters", bytes as u64)?);
            let (rows, layers) = match stage {
                Stage::Embed(_) => continue,
                Stage::Experts(s) => (p.limits.rows.saturating_mul(s.n_used), 2),
                _ => (p.max_rows(stage.linears().0), stage.pair_lists().count()),
            };
            let layers = layers.min(LORA_LAYERS as usize);
            let floats = rows.saturating_mul(layers * p.adapters.len() * rank(p, stage.pairs()));
            first = first.max(floats);
            for linear in stage.linears().1.filter(|linear| !linear.lora.is_empty()) {
                let floats = p.limits.rows.saturating_mul(p.weight_decl(linear.w).cols);
                let norms = usize::from(has_norm(stage)) + usize::from(linear.norm.is_some());
                inputs[..norms].iter_mut().for_each(|most| *most = floats.max(*most));
            }
        }
        let mut inputs = inputs.iter().map(|floats| on.buffer("inputs of adapters", 4 * *floats as u64));
        Ok(Self {
            tables,
            inputs: [inputs.next().expect("two")?, inputs.next().expect("two")?],
            first: on.buffer("products of adapters", 4 * first as u64)?,
        })
    }

    /// Writes the tables.
    pub fn fill(
        &self,
        driver: &mut dyn Driver,
        p: &Program,
        weights: &[DeviceWeight],
    ) -> Result<(), BackendError> {
        let matrix = |w: Weight, factor: f32| {
            let w = &weights[w.0 as usize];
            let kind = kind(w.ty).expect("the plan rejects other types");
            LinearParams { kind, ..w.params(factor, None) }
        };
        for ((_, stage), at) in p.stages.iter().zip(&self.tables).filter(|(_, at)| **at != 0) {
            let mut table = Vec::new();
            for pairs in lists(stage) {
                let first = table.len();
                table.resize(first + p.adapters.len(), NO_PAIR);
                for &Lora { adapter, a, b, scale } in pairs {
                    let rank = weights[b.0 as usize].cols as u32;
                    let pair = LoraPair { a: matrix(a, scale), b: matrix(b, 1.0), rank, reserved: 0 };
                    table[first + adapter as usize] = pair;
                }
            }
            driver.write(*at, bytemuck::cast_slice(&table))?;
        }
        Ok(())
    }
}

/// True if a stage normalises the input of its layers.
fn has_norm(stage: &Stage) -> bool {
    match stage {
        Stage::AttnIn(s) => s.norm.is_some(),
        Stage::FfnIn(s) => s.norm.is_some(),
        Stage::ProjAdd(_) => false,
        _ => true,
    }
}
