//! Text that a user gives in a file or on stdin.

use std::io::{self, IsTerminal, Read};
use std::path::Path;

use super::CliError;

/// The text of `file`, or of stdin if no file is given. Nothing is stripped.
///
/// # Errors
/// A file that cannot be read; text that is not UTF-8, with the place; `nothing_given` if there is no
/// file and stdin is a terminal.
pub fn text(file: Option<&Path>, nothing_given: &'static str) -> Result<String, CliError> {
    let (bytes, name) = match file {
        Some(path) => {
            let bytes = std::fs::read(path).map_err(|err| format!("{}: {err}", path.display()))?;
            (bytes, path.display().to_string())
        }
        None if io::stdin().is_terminal() => return Err(nothing_given.into()),
        None => {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).map_err(|err| format!("stdin: {err}"))?;
            (bytes, "stdin".to_owned())
        }
    };
    Ok(String::from_utf8(bytes).map_err(|err| format!("{name} is not UTF-8 text: {}", err.utf8_error()))?)
}
