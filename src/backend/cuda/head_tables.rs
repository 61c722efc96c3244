//! Tables of the matrices of heads, which the kernels of `head_proj` look up by head.

use super::alloc::Allocator;
use super::driver::{Address, Driver};
use super::params::LinearParams;
use super::weight::{DeviceWeight, layer_params};
use crate::BackendError;
use sterna_program::{Linear, Program, Stage};

/// Tables of the heads' matrices.
#[derive(Clone, Default)]
pub struct HeadTables {
    /// Per stage of the program: `LinearParams` of its heads.
    pub tables: Vec<Address>,
}

/// The heads of each stage that has matrices of heads, with the stage's number.
fn all_heads(p: &Program) -> impl Iterator<Item = (usize, &[Linear])> {
    p.stages.iter().enumerate().filter_map(|(i, (_, stage))| match stage {
        Stage::LatentIn(s) => Some((i, &s.wk[..])),
        Stage::HeadProj(s) => Some((i, &s.w[..])),
        _ => None,
    })
}

impl HeadTables {
    pub fn new<A: Allocator + ?Sized>(on: &mut A, p: &Program) -> Result<Self, BackendError> {
        let mut tables = vec![0; p.stages.len()];
        for (i, heads) in all_heads(p) {
            let bytes = heads.len() * size_of::<LinearParams>();
            tables[i] = on.buffer("matrices of heads", bytes as u64)?;
        }
        Ok(Self { tables })
    }

    pub fn fill(
        &self,
        driver: &mut dyn Driver,
        p: &Program,
        weights: &[DeviceWeight],
    ) -> Result<(), BackendError> {
        all_heads(p).try_for_each(|(i, heads)| {
            let table: Vec<LinearParams> = heads.iter().map(|head| layer_params(weights, head)).collect();
            driver.write(self.tables[i], bytemuck::cast_slice(&table))
        })
    }
}
