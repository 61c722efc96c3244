//! Time per stage: by launches between the stages of a recording that store the GPU's clock, or by events
//! around stages that are launched one by one.

use super::alloc::Allocator;
use super::cx::words;
use super::driver::{Address, Driver, Launch};
use super::kernel_name::KernelName;
use super::params::{STAMP_THREADS, StampParams};
use crate::{BackendError, StageTime};

pub const KERNEL: KernelName = KernelName::single("stamp");

/// The way in which stages are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// Within the recordings, which are otherwise those used without profiling.
    Stamps,
    /// One by one, each alone on the GPU; includes the time the host needs to queue a stage, if that is
    /// longer.
    Events,
}

impl From<crate::Profile> for Profiling {
    fn from(profile: crate::Profile) -> Self {
        match profile {
            crate::Profile::Steps => Self::Stamps,
            crate::Profile::Events => Self::Events,
        }
    }
}

/// Times of one program's stages, and their sums.
pub struct Profile {
    /// `[stages + 1]`, in nanoseconds; `None` if events measure the time.
    stamps: Option<Address>,
    /// The stamps as last read.
    read: Vec<u64>,
    /// One per stage.
    pub times: Vec<StageTime>,
}

impl Profile {
    /// Allocates the stamps for a program of `n` stages.
    pub fn new<A: Allocator + ?Sized>(on: &mut A, how: Profiling, n: usize) -> Result<Self, BackendError> {
        let stamps = match how {
            Profiling::Stamps => Some(on.buffer("times of stages", 8 * (n as u64 + 1))?),
            Profiling::Events => None,
        };
        Ok(Self { stamps, read: vec![0; n + 1], times: vec![StageTime::default(); n] })
    }

    /// The launches of each stage to be recorded, with stamp launches around them if stamps are used.
    pub fn around(&self, driver: &dyn Driver, stages: Vec<Vec<Launch>>) -> Vec<Vec<Launch>> {
        let Some(stamps) = self.stamps else { return stages };
        let kernel = driver.kernel(&KERNEL.to_string()).expect("a kernel that every build has");
        let stamp = |i: usize| Launch {
            kernel,
            grid: [1; 3],
            threads: STAMP_THREADS,
            shared_bytes: 0,
            params: words(&StampParams { at: stamps + 8 * i as u64 }),
        };
        let (n, of_stage) = (stages.len(), |(i, launches)| [vec![stamp(i)], launches].concat());
        let mut all: Vec<Vec<Launch>> = stages.into_iter().enumerate().map(of_stage).collect();
        all.last_mut().into_iter().for_each(|last| last.push(stamp(n)));
        all
    }

    /// True if stages must be run one by one, by [`Driver::time`].
    pub fn is_by_events(&self) -> bool {
        self.stamps.is_none()
    }

    /// Waits for a replay of all stages, and adds the time of each.
    pub fn read(&mut self, driver: &mut dyn Driver) -> Result<(), BackendError> {
        let Some(stamps) = self.stamps else { return Ok(()) };
        driver.read(stamps, bytemuck::cast_slice_mut(&mut self.read))?;
        self.add(self.read.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect());
        Ok(())
    }

    /// Adds the time of each stage.
    pub fn add(&mut self, nanoseconds: Vec<u64>) {
        for (time, nanoseconds) in self.times.iter_mut().zip(nanoseconds) {
            time.calls += 1;
            time.nanoseconds += nanoseconds;
        }
    }
}
