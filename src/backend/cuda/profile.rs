//! What stages take: by launches between the stages of a recording that write down the card's time, or by
//! events around stages that are launched one by one.

use super::alloc::Allocator;
use super::driver::{Address, Driver, Launch};
use super::params::{STAMP_THREADS, StampParams};
use super::words;
use crate::{BackendError, StageTime};

pub const KERNEL: &str = "stamp";

/// How stages are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profiling {
    /// In the recording that is replayed otherwise too.
    Stamps,
    /// One by one, each alone on the card: with what the host takes to queue it, where that is longer.
    Events,
}

impl Profiling {
    /// The way to time stages that a word names; `None` for no timing.
    ///
    /// # Errors
    /// The accepted values.
    pub fn parse(word: &str) -> Result<Option<Self>, String> {
        match word {
            "false" => Ok(None),
            "true" => Ok(Some(Self::Stamps)),
            "events" => Ok(Some(Self::Events)),
            other => Err(format!("want true, false or events, got `{other}`")),
        }
    }
}

/// Times of one program's stages, and what they added up to.
pub struct Profile {
    /// `[stages + 1]`, in nanoseconds; or none, where events take the time.
    stamps: Option<Address>,
    /// As they were read last.
    read: Vec<u64>,
    /// One a stage.
    pub times: Vec<StageTime>,
}

impl Profile {
    /// For a program of `n` stages.
    pub fn new<A: Allocator + ?Sized>(on: &mut A, how: Profiling, n: usize) -> Result<Self, BackendError> {
        let stamps = match how {
            Profiling::Stamps => Some(on.buffer("times of stages", 8 * (n as u64 + 1))?),
            Profiling::Events => None,
        };
        Ok(Self { stamps, read: vec![0; n + 1], times: vec![StageTime::default(); n] })
    }

    /// The launches of each stage as they are recorded: with those around them that write down the time, if
    /// these do it.
    pub fn around(&self, driver: &dyn Driver, stages: Vec<Vec<Launch>>) -> Vec<Vec<Launch>> {
        let Some(stamps) = self.stamps else { return stages };
        let kernel = driver.kernel(KERNEL).expect("a kernel that every build has");
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

    /// Whether stages are to be run one by one, by [`Driver::time`].
    pub fn is_by_events(&self) -> bool {
        self.stamps.is_none()
    }

    /// Waits for a replay of all stages, and adds what each has taken.
    pub fn read(&mut self, driver: &mut dyn Driver) -> Result<(), BackendError> {
        let Some(stamps) = self.stamps else { return Ok(()) };
        driver.read(stamps, bytemuck::cast_slice_mut(&mut self.read))?;
        self.add(self.read.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect());
        Ok(())
    }

    /// Adds what each stage has taken.
    pub fn add(&mut self, nanoseconds: Vec<u64>) {
        for (time, nanoseconds) in self.times.iter_mut().zip(nanoseconds) {
            time.calls += 1;
            time.nanoseconds += nanoseconds;
        }
    }
}
