//! The `sterna` command: a thin user of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    sterna::cli::main()
}
