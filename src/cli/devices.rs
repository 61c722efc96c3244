//! `sterna devices`: what models can run on here.

use std::io::{self, Write};

use clap::Args;

use super::CliError;
use super::names::with_flags;
use crate::backend;

/// Lists the backends of this build and what each finds on this machine.
#[derive(Args, Debug)]
pub struct DevicesArgs {}

impl DevicesArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Where stdout cannot be written.
    pub fn run(self) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        for (name, device) in backend::devices(backend::physical_cores()) {
            match device {
                Ok(device) => writeln!(out, "{name}: {device}")?,
                Err(err) => writeln!(out, "{name}: {}", with_flags(&err))?,
            }
        }
        Ok(out.flush()?)
    }
}
