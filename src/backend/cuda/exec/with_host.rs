//! Steps in which the CPU computes the stages whose matrices are not on the GPU.

use std::ops::Range;

use super::{Compiled, Variant};
use crate::BackendError;
use crate::cuda::driver::Driver;
use crate::cuda::host::{OnCard, Piece};
use crate::cuda::memory::Memory;
use sterna_host::clock::Instant;
use sterna_program::Buf;

impl Compiled {
    /// True if a run of `rows` rows waits for the CPU.
    pub fn waits(&self, rows: usize) -> bool {
        self.host.as_ref().is_some_and(|host| host.takes(rows))
    }

    /// Copies the newest values of a buffer to the GPU if needed, so that it can be read or written there.
    pub fn show(&mut self, driver: &mut dyn Driver, b: Buf) -> Result<(), BackendError> {
        let Self { program: p, memory: Memory { bufs, .. }, host, .. } = self;
        let Some(host) = host else { return Ok(()) };
        host.show(driver, OnCard { p, bufs }, b)
    }

    /// Records that a buffer was written.
    pub fn overwritten(&mut self, b: Buf) {
        self.host.iter_mut().for_each(|host| host.overwritten(b));
    }

    /// Copies to the GPU what some stages read there.
    pub(super) fn before_card(
        &mut self,
        driver: &mut dyn Driver,
        stages: Range<usize>,
        n: usize,
    ) -> Result<(), BackendError> {
        let Self { program: p, memory: Memory { bufs, .. }, host, .. } = self;
        let Some(host) = host else { return Ok(()) };
        host.before_card(driver, OnCard { p, bufs }, stages, n)
    }

    /// Runs all stages for `n` rows, on the CPU where possible.
    pub(super) fn run_with_host(
        &mut self,
        driver: &mut dyn Driver,
        variant: usize,
        n: usize,
    ) -> Result<(), BackendError> {
        let Self { program: p, memory: Memory { bufs, .. }, host: Some(host), pieces, variants, .. } = self
        else {
            unreachable!("a step that the CPU computes")
        };
        let card = OnCard { p, bufs };
        for (piece, recording) in pieces.iter().zip(&variants[variant].pieces) {
            match (piece, recording) {
                (Piece::Card(_, stages), Some(recording)) => {
                    host.before_card(driver, card, stages.clone(), n)?;
                    driver.replay(*recording)?;
                }
                (Piece::Host(stage), _) => host.run(driver, card, *stage, n)?,
                (Piece::Card(..), None) => unreachable!("the GPU's pieces are recorded"),
            }
        }
        Ok(())
    }

    /// Runs one stage for `n` rows, on the CPU if possible.
    pub(super) fn run_stage_with_host(
        &mut self,
        driver: &mut dyn Driver,
        variant: usize,
        stage: usize,
        n: usize,
    ) -> Result<(), BackendError> {
        let Self { program: p, memory: Memory { bufs, .. }, host: Some(host), variants, .. } = self else {
            unreachable!("a step that the CPU computes")
        };
        let Variant { launches, tails, .. } = &variants[variant];
        let launches = if host.has(stage) {
            host.run(driver, OnCard { p, bufs }, stage, n)?;
            &tails[stage]
        } else {
            host.before_card(driver, OnCard { p, bufs }, stage..stage + 1, n)?;
            &launches[stage]
        };
        launches.iter().try_for_each(|launch| driver.launch(launch))
    }

    /// The same for all stages, one by one, timing each including the host's wait for it.
    pub(super) fn time_with_host(
        &mut self,
        driver: &mut dyn Driver,
        variant: usize,
        n: usize,
    ) -> Result<(), BackendError> {
        let mut nanoseconds = Vec::with_capacity(self.program.stages.len());
        for stage in 0..self.program.stages.len() {
            let start = Instant::now();
            self.run_stage_with_host(driver, variant, stage, n)?;
            driver.read(self.memory.clamped, &mut [0; 8])?;
            nanoseconds.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        self.profile.iter_mut().for_each(|profile| profile.add(std::mem::take(&mut nanoseconds)));
        Ok(())
    }
}
