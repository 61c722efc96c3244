//! `sterna devices`: what models can run on here. And the greeting of `sterna` alone.

use std::io::{self, Write};

use clap::Args;

use super::CliError;
use super::names::with_flags;
use crate::{backend, demo};

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
        for (name, code) in backend::REGISTRY.iter().filter_map(|entry| Some((entry.name, entry.code?))) {
            writeln!(out, "{name}: {}", code())?;
        }
        Ok(out.flush()?)
    }
}

/// What `sterna` says to a person who has typed nothing else: what to try, and what it would run on.
///
/// # Errors
/// Where stdout cannot be written.
pub fn greet(sterna: &clap::Command) -> Result<(), CliError> {
    let chat = match demo::model() {
        Some(_) => ("chat", "chats with the small model that is inside"),
        None => ("chat -m model.gguf", "chats with a model"),
    };
    let serve = ("serve -m model.gguf", "serves the APIs of OpenAI and others, and a page, on port 8080");
    let tries = [Some(chat), Some(("run -m model.gguf -p 'Once'", "goes on with a text"))];
    let serve = sterna.find_subcommand("serve").map(|_| serve);
    let tries = tries.into_iter().chain([serve]).flatten();
    let mut out = io::stdout().lock();
    writeln!(out, "sterna {} runs language models from GGUF files. Try:\n", env!("CARGO_PKG_VERSION"))?;
    tries.into_iter().try_for_each(|(args, what)| writeln!(out, "  sterna {args:<28}{what}"))?;
    writeln!(out, "\nModels run on the first of these that has room:\n")?;
    for opened in backend::auto(backend::physical_cores()) {
        match opened {
            Ok(backend) => writeln!(out, "  {}: {}", backend.name(), backend.device())?,
            Err(err) => writeln!(out, "  cannot be used: {}", with_flags(&err))?,
        }
    }
    writeln!(out, "\n`sterna help` lists all commands.")?;
    Ok(out.flush()?)
}
