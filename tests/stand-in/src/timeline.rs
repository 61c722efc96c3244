//! When work would take place, if each copy took its bytes at the link's rate and each kernel the same time:
//! in a stream one after the other, not before it was queued, and behind the events that it waits for. The
//! host takes no time but where it waits.
//!
//! A line of the file is `kernel 4096 120000 130000 0`: what it is (`copy`, or `pageable` for one from memory
//! that is not page-locked), the stream, nanoseconds of its start and of its end, and bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use crate::settings::Settings;

/// Nanoseconds since the process began.
pub type Ns = u64;

/// When the work of a stream was done.
#[derive(Default)]
pub struct Times {
    last: Ns,
    /// By how many pieces of work there were before.
    done: BTreeMap<u64, Ns>,
}

impl Times {
    /// When its first `n` pieces of work were done.
    pub fn at(&self, n: u64) -> Ns {
        self.done.range(..=n).next_back().map_or(0, |(_, at)| *at)
    }
}

/// A piece of work.
#[derive(Clone, Copy, PartialEq)]
pub enum What {
    Kernel,
    Copy,
    Pageable,
    /// Of no length.
    Nothing,
}

/// The clock of the host, and where lines go.
pub struct Timeline {
    out: File,
    link: f64,
    kernel_ns: Ns,
    now: Ns,
}

impl Timeline {
    /// The one that was asked for.
    pub fn of(settings: &Settings) -> Option<Self> {
        let out = File::create(settings.timeline.as_ref()?).expect("a file for the timeline");
        Some(Self { out, link: settings.link, kernel_ns: settings.kernel_ns, now: 0 })
    }

    pub fn now(&self) -> Ns {
        self.now
    }

    /// The host has waited for that.
    pub fn wait(&mut self, until: Ns) {
        self.now = self.now.max(until);
    }

    /// The `n`-th piece of a stream's work begins when the one before it has ended, and not before `from`.
    pub fn pass(&mut self, stream: usize, times: &mut Times, n: u64, from: Ns, what: What, bytes: usize) {
        let (name, takes) = match what {
            What::Nothing => ("", 0),
            What::Kernel => ("kernel", self.kernel_ns),
            What::Copy => ("copy", (bytes as f64 / self.link) as Ns),
            What::Pageable => ("pageable", (bytes as f64 / self.link) as Ns),
        };
        let start = times.last.max(from);
        times.last = start + takes;
        times.done.insert(n, times.last);
        if what != What::Nothing {
            let line = format!("{name} {stream} {start} {} {bytes}\n", times.last);
            self.out.write_all(line.as_bytes()).expect("a line of the timeline");
        }
    }
}
