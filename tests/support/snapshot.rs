use std::fmt::Write as _;

use crate::root;

/// Compares a text with `tests/snapshots/NAME`, or writes that file if `STERNA_UPDATE_SNAPSHOTS` is set.
///
/// # Panics
/// If they differ: with the lines that differ, and the command that updates the file.
#[track_caller]
pub fn snapshot(name: &str, text: &str) {
    let file = root().join("tests/snapshots").join(name);
    if std::env::var_os("STERNA_UPDATE_SNAPSHOTS").is_some() {
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a writable folder");
        std::fs::write(&file, text).expect("a writable file");
    }
    let want = std::fs::read_to_string(&file).unwrap_or_default();
    let diff = difference(&want, text);
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    assert!(
        want == text,
        "{name} differs (- in the file, + now):\n{diff}\
         To accept the new text: STERNA_UPDATE_SNAPSHOTS=1 cargo test {test}"
    );
}

/// The lines between the first and the last one that differ.
fn difference(want: &str, got: &str) -> String {
    let (want, got): (Vec<_>, Vec<_>) = (want.lines().collect(), got.lines().collect());
    let first = want.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let rest = want[first..].iter().rev().zip(got[first..].iter().rev());
    let last = rest.take_while(|(a, b)| a == b).count();
    let mut diff = format!("@@ line {} @@\n", first + 1);
    for (sign, lines) in [('-', &want), ('+', &got)] {
        for line in &lines[first..lines.len() - last] {
            writeln!(diff, "{sign}{line}").expect("a string is writable");
        }
    }
    diff
}
