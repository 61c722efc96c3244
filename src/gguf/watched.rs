//! A writer that reports its progress.

use std::io::{self, Write};
use std::ops::ControlFlow;

/// Runs `write` with a writer that calls `progress` with the number of bytes written so far. Returns `None`
/// if `progress` stops it; errors that follow are ignored then.
///
/// # Errors
/// The errors of `write`.
pub fn watched<W: Write, F: FnMut(u64) -> ControlFlow<()>, T, E>(
    out: W,
    progress: F,
    write: impl FnOnce(&mut Watched<W, F>) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let mut out = Watched { out, written: 0, progress, stopped: false };
    let result = write(&mut out);
    if out.stopped { Ok(None) } else { result.map(Some) }
}

/// Counts the bytes written, and lets the caller stop.
#[derive(Debug)]
pub struct Watched<W, F> {
    out: W,
    written: u64,
    progress: F,
    stopped: bool,
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
