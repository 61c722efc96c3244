//! What stages take: by launches between the stages of a recording that write down the card's time, or by
//! events around stages that are launched one by one.

use super::driver::{Address, Driver, Launch};
use super::params::{STAMP_THREADS, StampParams};
use super::words;
use crate::backend::{BackendError, StageTime};

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
    /// What the value of an option asks of a backend.
    ///
    /// # Errors
    /// [`BackendError::Option`] for any other value.
    pub fn of(
        backend: &'static str,
        option: &str,
        value: Option<&str>,
    ) -> Result<Option<Self>, BackendError> {
        match value {
            None | Some("false") => Ok(None),
            Some("true") => Ok(Some(Self::Stamps)),
            Some("events") => Ok(Some(Self::Events)),
            Some(other) => {
                let want = format!("want true, false or events, got `{other}`");
                Err(BackendError::option(backend, option, want))
            }
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
    pub fn new(driver: &mut dyn Driver, how: Profiling, n: usize) -> Result<Self, BackendError> {
        let stamps = match how {
            Profiling::Stamps => Some(driver.alloc(8 * (n as u64 + 1))?),
            Profiling::Events => None,
        };
        Ok(Self { stamps, read: vec![0; n + 1], times: vec![StageTime::default(); n] })
    }

    /// The launches of all stages as they are recorded: with those between them that write down the time, if
    /// these do it.
    pub fn around(&self, driver: &dyn Driver, stages: &[Vec<Launch>]) -> Vec<Launch> {
        let Some(stamps) = self.stamps else { return stages.concat() };
        let kernel = driver.kernel(KERNEL).expect("a kernel that every build has");
        let stamp = |i: usize| Launch {
            kernel,
            grid: [1; 3],
            threads: STAMP_THREADS,
            shared_bytes: 0,
            cooperative: false,
            params: words(&StampParams { at: stamps + 8 * i as u64 }),
        };
        let of_stage = |(i, launches): (usize, &Vec<Launch>)| [vec![stamp(i)], launches.clone()].concat();
        let mut all: Vec<Launch> = stages.iter().enumerate().flat_map(of_stage).collect();
        all.push(stamp(stages.len()));
        all
    }

    /// Runs all stages between events, if these take the time, and adds what each has taken; says whether it
    /// did.
    pub fn runs(&mut self, driver: &mut dyn Driver, stages: &[Vec<Launch>]) -> Result<bool, BackendError> {
        if self.stamps.is_some() {
            return Ok(false);
        }
        self.add(driver.time(stages)?);
        Ok(true)
    }

    /// Waits for a replay of all stages, and adds what each has taken.
    pub fn read(&mut self, driver: &mut dyn Driver) -> Result<(), BackendError> {
        let Some(stamps) = self.stamps else { return Ok(()) };
        driver.read(stamps, bytemuck::cast_slice_mut(&mut self.read))?;
        self.add(self.read.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect());
        Ok(())
    }

    fn add(&mut self, nanoseconds: Vec<u64>) {
        for (time, nanoseconds) in self.times.iter_mut().zip(nanoseconds) {
            time.calls += 1;
            time.nanoseconds += nanoseconds;
        }
    }
}
