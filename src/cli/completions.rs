//! `sterna completions` and `sterna man`: what clap's own crates write about the command line.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::Shell;

use super::CliError;

/// Writes shell completions to stdout.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna completions bash > ~/.local/share/bash-completion/completions/sterna
  sterna completions zsh > ~/.zfunc/_sterna
  sterna completions fish > ~/.config/fish/completions/sterna.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

impl CompletionsArgs {
    /// Runs the subcommand for the whole command line.
    ///
    /// # Errors
    /// Where stdout cannot be written.
    pub fn run(self, mut sterna: Command) -> Result<(), CliError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut sterna, "sterna", &mut script);
        Ok(io::stdout().lock().write_all(&script)?)
    }
}

/// Writes the manual page to stdout.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sterna man > sterna.1
  sterna man run | man -l -")]
pub struct ManArgs {
    /// Subcommand whose page is wanted
    subcommand: Option<String>,
}

impl ManArgs {
    /// Runs the subcommand for the whole command line.
    ///
    /// # Errors
    /// If there is no such subcommand, and where stdout cannot be written.
    pub fn run(self, sterna: Command) -> Result<(), CliError> {
        let command = match &self.subcommand {
            None => sterna,
            Some(name) => sterna
                .find_subcommand(name)
                .ok_or_else(|| format!("no subcommand `{name}`"))?
                .clone()
                .display_name(format!("sterna-{name}")),
        };
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        Ok(io::stdout().lock().write_all(&page)?)
    }
}
