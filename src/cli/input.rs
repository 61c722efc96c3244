//! Text input from a file or stdin.

use std::io::{self, IsTerminal, Read};
use std::path::Path;

use super::CliError;

/// The byte order mark that Windows editors put before UTF-8 text. It is not part of the text.
pub const BYTE_ORDER_MARK: char = '\u{feff}';

/// The text of `file`, or of stdin without a file: a byte order mark is removed, and lines end in `\n`.
///
/// # Errors
/// Same as [`verbatim`].
pub fn text(file: Option<&Path>, nothing_given: &'static str) -> Result<String, CliError> {
    let (bytes, name) = read(file, nothing_given)?;
    Ok(lines(&utf8(bytes, &name)?))
}

/// The text of `file`, or of stdin without a file, unchanged, for counting or scoring its tokens. Prints a
/// note if it has a byte order mark or CRLF.
///
/// # Errors
/// A file that cannot be read; text that is not UTF-8, with the position; `nothing_given` if there is no file
/// and stdin is a terminal.
pub fn verbatim(file: Option<&Path>, nothing_given: &'static str) -> Result<String, CliError> {
    let (bytes, name) = read(file, nothing_given)?;
    let text = utf8(bytes, &name)?;
    let found = match (text.starts_with(BYTE_ORDER_MARK), text.contains("\r\n")) {
        (true, true) => "begins with a byte order mark and has lines that end in CRLF",
        (true, false) => "begins with a byte order mark",
        (false, true) => "has lines that end in CRLF",
        (false, false) => return Ok(text),
    };
    eprintln!("note: {name} {found}: the text is used as it is; `sterna run` removes them");
    Ok(text)
}

/// Text of a file, read as by [`text`].
///
/// # Errors
/// A file that cannot be read or is not UTF-8.
pub fn file(path: &Path) -> Result<String, CliError> {
    text(Some(path), "")
}

/// Removes a byte order mark and converts CRLF to `\n`.
fn lines(text: &str) -> String {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text).replace("\r\n", "\n")
}

/// Content of a file or of stdin, and its name.
fn read(file: Option<&Path>, nothing_given: &'static str) -> Result<(Vec<u8>, String), CliError> {
    match file {
        Some(path) => {
            let bytes = std::fs::read(path).map_err(|err| format!("{}: {err}", path.display()))?;
            Ok((bytes, path.display().to_string()))
        }
        None if io::stdin().is_terminal() => Err(nothing_given.into()),
        None => {
            let mut bytes = Vec::new();
            io::stdin().lock().read_to_end(&mut bytes).map_err(|err| format!("stdin: {err}"))?;
            Ok((bytes, "stdin".to_owned()))
        }
    }
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String, CliError> {
    String::from_utf8(bytes).map_err(|err| {
        let is_utf16 = matches!(err.as_bytes(), [0xff, 0xfe, ..] | [0xfe, 0xff, ..]);
        let what =
            if is_utf16 { "it is UTF-16; save it as UTF-8".into() } else { err.utf8_error().to_string() };
        format!("{name} is not UTF-8 text: {what}").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_no_text_and_crlf_ends_a_line() {
        assert_eq!(lines("\u{feff}a\r\nb\r\n"), "a\nb\n");
        // Only at the beginning, and only together.
        assert_eq!(lines("a\u{feff}\rb\n\r"), "a\u{feff}\rb\n\r");
    }

    #[test]
    fn what_is_no_utf_8_is_said_to_be_so() {
        let said = |bytes: &[u8]| utf8(bytes.to_vec(), "x").unwrap_err().to_string();
        assert!(said(b"\xff\xfea\0").contains("UTF-16; save it as UTF-8"));
        assert!(said(b"a\xffb").contains("invalid utf-8 sequence of 1 bytes from index 1"));
    }
}
