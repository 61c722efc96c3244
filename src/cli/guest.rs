//! This code inside another program: what the command line prints to stderr is logged there instead, and
//! progress of downloads is reported. Signals stay with the other program.

use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// True inside another program.
static IS_GUEST: AtomicBool = AtomicBool::new(false);

/// Leaves signals and stderr to the host program.
pub fn be_guest() {
    IS_GUEST.store(true, Ordering::Relaxed);
}

/// True if this code runs inside another program.
pub fn is_guest() -> bool {
    IS_GUEST.load(Ordering::Relaxed)
}

/// Prints a message to stderr: `kind` is `note`, `warning`, `error`, or empty. Inside another program it is
/// logged.
pub fn say(kind: &str, said: &impl Display) {
    #[cfg(feature = "serve")]
    if is_guest() {
        return match kind {
            "" | "note" => tracing::info!("{said}"),
            "error" => tracing::error!("{said}"),
            _ => tracing::warn!("{said}"),
        };
    }
    let line = if kind.is_empty() { said.to_string() } else { format!("{kind}: {said}") };
    // A server goes on if its log is full.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Reports to the host program that `done` bytes of the `total` of a file have been downloaded.
#[cfg(feature = "hub")]
pub fn progress(file: &str, done: u64, total: u64) {
    #[cfg(feature = "serve")]
    if is_guest() {
        tracing::info!(target: super::host_log::PROGRESS, file, done, total);
    }
    #[cfg(not(feature = "serve"))]
    let _ = (file, done, total);
}
