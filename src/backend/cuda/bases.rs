//! Rotated bases on the device, and the inputs of linear layers in them.

use super::alloc::Allocator;
use super::driver::{Address, Driver};
use crate::BackendError;
use sterna_program::{Program, Stage};

/// Memory for inputs in rotated bases or within bounds, and for the bases.
#[derive(Default)]
pub struct Bases {
    /// The signs of each basis.
    pub signs: Vec<Address>,
    /// Inputs of linear layers after this pass, for the products that follow.
    pub prepared: Address,
}

impl Bases {
    pub fn new<A: Allocator + ?Sized>(on: &mut A, p: &Program) -> Result<Self, BackendError> {
        let mut room = |floats: usize| on.buffer("rotated bases", 4 * floats as u64);
        let signs = p.bases.iter().map(|basis| room(basis.signs.len())).collect::<Result<_, _>>()?;
        let of_stage = |(_, stage): &(String, Stage)| {
            stage
                .linears()
                .1
                .filter(|linear| stage.prepares_input(linear) || linear.clamp.is_some())
                .map(|linear| p.weight_decl(linear.w).cols)
                .max()
                .unwrap_or(0)
        };
        let cols = p.stages.iter().map(of_stage).max().unwrap_or(0);
        Ok(Self { signs, prepared: room(cols * p.limits.rows)? })
    }

    pub fn fill(&self, driver: &mut dyn Driver, p: &Program) -> Result<(), BackendError> {
        let mut all = p.bases.iter().zip(&self.signs);
        all.try_for_each(|(basis, at)| driver.write(*at, bytemuck::cast_slice(&basis.signs)))
    }
}
