//! `sterna completions` and `sterna man`: what clap's own crates write about the command line.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, CliError};

/// Writes completions for a shell to stdout.
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
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Where stdout cannot be written.
    pub fn run(self) -> Result<(), CliError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "sterna", &mut script);
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
    /// Runs the subcommand.
    ///
    /// # Errors
    /// Where there is no such subcommand, and where stdout cannot be written.
    pub fn run(self) -> Result<(), CliError> {
        let command = Cli::command();
        let command = match &self.subcommand {
            None => command,
            Some(name) => command
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
