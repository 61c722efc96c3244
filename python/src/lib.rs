//! The module `sterna._sterna`: the engine's server inside the process, and the command line. Users import
//! the Python package around it, `python/sterna`.
//!
//! Only threads of Python run Python code here. What the engine's threads report (progress of an answer, log
//! messages) is put into a [`Mail`](mail::Mail), which a thread of the package reads: CPython ends threads
//! that ask for its lock at the end of the process by unwinding, which aborts in Rust's frames.

mod answer;
mod engine;
mod exit;
mod mail;

use std::ffi::OsString;

use pyo3::prelude::*;
use sterna::cli;

/// The native part of the package.
#[pymodule]
mod _sterna {
    #[pymodule_export]
    use super::answer::Answer;
    #[pymodule_export]
    use super::engine::{Engine, Listening, open};
    #[pymodule_export]
    use super::exit::{end, forked};
    #[pymodule_export]
    use super::mail::Mail;
    #[pymodule_export]
    use super::{flags, main};

    #[pymodule_export]
    #[allow(missing_docs)]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}

/// Runs the command line; returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| cli::main(args))
}

/// A flag: its names, its minimum and maximum number of values, and its help.
type Flag = (Vec<String>, usize, usize, Option<String>);

/// The flags that `open` accepts.
#[pyfunction]
fn flags() -> Vec<Flag> {
    let flags = cli::in_process_flags().into_iter();
    flags.map(|cli::Flag { names, values: (least, most), help }| (names, least, most, help)).collect()
}
