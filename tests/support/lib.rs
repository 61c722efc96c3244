//! What the test binaries share: the f64 oracle, synthetic programs, golden data.
//!
//! A crate, so that it is compiled once. Start reading at [`oracle`].

use std::io::Write as _;

pub mod case;
mod golden;
pub mod hub;
pub mod logits;
pub mod oracle;

pub use golden::{Npy, golden, golden_dirs, npy, root};

/// Writes a line that shows although the test passes: the test harness swallows what `eprintln` prints.
pub fn say(line: std::fmt::Arguments<'_>) {
    writeln!(std::io::stderr(), "{line}").expect("stderr takes a line");
}
