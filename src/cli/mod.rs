//! The command line: one file a subcommand, each a clap `Args` and a `run`.
//!
//! Text for people goes to stderr, results to stdout. Start at [`Command`].

pub mod args;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs ternary language models from GGUF files.
#[derive(Parser)]
#[command(name = "sterna", version, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {}

/// Why a subcommand failed, as the user reads it.
pub type CliError = Box<dyn std::error::Error + Send + Sync>;

/// Parses the command line, runs the subcommand, and turns an error into one message and exit code 1.
pub fn main() -> ExitCode {
    let args = args::normalise(std::env::args_os());
    match run(Cli::parse_from(args).command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("error: {err}");
            let mut source = err.source();
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), CliError> {
    match command {}
}
