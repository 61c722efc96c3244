//! A writer that reports its progress.

use std::io::{self, Write};
use std::ops::ControlFlow;

/// Counts what goes through, and lets the caller stop it.
#[derive(Debug)]
pub struct Watched<W, F> {
    out: W,
    written: u64,
    progress: F,
    stopped: bool,
}

impl<W: Write, F: FnMut(u64) -> ControlFlow<()>> Watched<W, F> {
    /// `progress` gets the bytes written so far, and may say stop: then the next write is an error.
    pub fn new(out: W, progress: F) -> Self {
        Self { out, written: 0, progress, stopped: false }
    }

    /// True if `progress` said stop.
    pub fn stopped(&self) -> bool {
        self.stopped
    }
}

impl<W: Write, F: FnMut(u64) -> ControlFlow<()>> Write for Watched<W, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.progress)(self.written).is_break() {
            self.stopped = true;
            return Err(io::Error::other("interrupted"));
        }
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
