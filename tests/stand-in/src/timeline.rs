//! Simulates when work would run if every copy had the link's rate and every kernel took the same time: in
//! stream order, not before it was queued, and after the events that it waits for. The host takes no time
//! except when it waits.
//!
//! Each line of the file has the form `kernel 4096 120000 130000 0`: the kind (`copy`, or `pageable` for a
//! copy from memory that is not page-locked), the stream, start and end in nanoseconds, and bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;

use crate::settings::Settings;

/// Nanoseconds since the start of the process.
pub type Ns = u64;

/// Completion times of a stream's work.
#[derive(Default)]
pub struct Times {
    last: Ns,
    /// By the number of completed items.
    done: BTreeMap<u64, Ns>,
}

impl Times {
    /// Time at which its first `n` items were done.
    pub fn at(&self, n: u64) -> Ns {
        self.done.range(..=n).next_back().map_or(0, |(_, at)| *at)
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum What {
    Kernel,
    Copy,
    Pageable,
    Nothing,
}

/// The host's clock, and the output file.
pub struct Timeline {
    out: File,
    link: f64,
    kernel_ns: Ns,
    now: Ns,
}

impl Timeline {
    /// Creates the timeline if the settings request one.
    pub fn of(settings: &Settings) -> Option<Self> {
        let out = File::create(settings.timeline.as_ref()?).expect("a file for the timeline");
        Some(Self { out, link: settings.link, kernel_ns: settings.kernel_ns, now: 0 })
    }

    pub fn now(&self) -> Ns {
        self.now
    }

    /// Advances the host's clock to `until`.
    pub fn wait(&mut self, until: Ns) {
        self.now = self.now.max(until);
    }

    /// Runs the `n`-th item of a stream: it begins when the previous one has ended, but not before `from`.
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
