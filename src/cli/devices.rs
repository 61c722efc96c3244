//! `sterna devices`: the devices of this machine. Also the text that `sterna` prints without arguments.

use std::io::{self, Write};

use clap::Args;

use super::CliError;
use super::names::with_flags;
use crate::selftest::Passes;
use crate::{backend, demo};

/// Lists the backends of this build and what each finds on this machine.
#[derive(Args, Debug)]
pub struct DevicesArgs {
    /// Also list the kernels that self-tests have chosen for models on this machine's GPUs, and why
    #[arg(short, long)]
    verbose: bool,
}

impl DevicesArgs {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// If stdout cannot be written.
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
        if self.verbose {
            for (tested, choice) in Passes::in_folder(backend::cache_dir()).choices() {
                writeln!(out, "{tested}: {choice}")?;
            }
        }
        Ok(out.flush()?)
    }
}

/// Prints the text of `sterna` without arguments: commands to try, and the available devices.
///
/// # Errors
/// If stdout cannot be written.
pub fn greet(sterna: &clap::Command) -> Result<(), CliError> {
    let chat = match demo::model() {
        Some(_) => ("chat", "chat with the small built-in model"),
        None => ("chat -m model.gguf", "chat with a model"),
    };
    let serve = ("serve -m model.gguf", "serve OpenAI's and other APIs, and a web page, on port 8080");
    let tries = [Some(chat), Some(("run -m model.gguf -p 'Once'", "continue a text"))];
    let serve = sterna.find_subcommand("serve").map(|_| serve);
    let tries = tries.into_iter().chain([serve]).flatten();
    let mut out = io::stdout().lock();
    writeln!(out, "sterna {} runs language models from GGUF files. Try:\n", env!("CARGO_PKG_VERSION"))?;
    tries.into_iter().try_for_each(|(args, what)| writeln!(out, "  sterna {args:<28}{what}"))?;
    writeln!(out, "\nModels run on the first of these with enough memory:\n")?;
    for opened in backend::auto(backend::physical_cores()) {
        match opened {
            Ok(backend) => writeln!(out, "  {}: {}", backend.name(), backend.device())?,
            Err(err) => writeln!(out, "  unavailable: {}", with_flags(&err))?,
        }
    }
    writeln!(out, "\n`sterna help` lists all commands.")?;
    Ok(out.flush()?)
}
