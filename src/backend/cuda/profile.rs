//! What stages take: a launch before each, and one behind the last, that writes down the card's time.

use super::driver::{Address, Driver, Launch};
use super::params::{STAMP_THREADS, StampParams};
use super::words;
use crate::backend::{BackendError, StageTime};

pub const KERNEL: &str = "stamp";

/// Times of one program's stages, and what they added up to.
pub struct Profile {
    /// `[stages + 1]`, in nanoseconds.
    stamps: Address,
    /// As they were read last.
    read: Vec<u64>,
    /// One a stage.
    pub times: Vec<StageTime>,
}

impl Profile {
    /// For a program of `n` stages.
    pub fn new(driver: &mut dyn Driver, n: usize) -> Result<Self, BackendError> {
        let stamps = driver.alloc(8 * (n as u64 + 1))?;
        Ok(Self { stamps, read: vec![0; n + 1], times: vec![StageTime::default(); n] })
    }

    /// The launches of all stages with those between them that write down the time.
    pub fn around(&self, driver: &dyn Driver, stages: &[Vec<Launch>]) -> Vec<Launch> {
        let kernel = driver.kernel(KERNEL).expect("a kernel that every build has");
        let stamp = |i: usize| Launch {
            kernel,
            grid: [1; 3],
            threads: STAMP_THREADS,
            shared_bytes: 0,
            cooperative: false,
            params: words(&StampParams { at: self.stamps + 8 * i as u64 }),
        };
        let of_stage = |(i, launches): (usize, &Vec<Launch>)| [vec![stamp(i)], launches.clone()].concat();
        let mut all: Vec<Launch> = stages.iter().enumerate().flat_map(of_stage).collect();
        all.push(stamp(stages.len()));
        all
    }

    /// Waits for a run of all stages, and adds what each has taken.
    pub fn add(&mut self, driver: &mut dyn Driver) -> Result<(), BackendError> {
        driver.read(self.stamps, bytemuck::cast_slice_mut(&mut self.read))?;
        for (time, stamps) in self.times.iter_mut().zip(self.read.windows(2)) {
            time.calls += 1;
            time.nanoseconds += stamps[1].saturating_sub(stamps[0]);
        }
        Ok(())
    }
}
