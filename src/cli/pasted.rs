//! Paths of image files as terminals paste them: in quotes, with escaped spaces, or as `file://` URLs.

use std::path::{Path, PathBuf};

/// Extensions of image files.
const EXTENSIONS: [&str; 6] = ["png", "jpg", "jpeg", "webp", "gif", "bmp"];

/// The existing image file whose path a line begins with, and the text after it.
pub fn image(line: &str) -> Option<(PathBuf, &str)> {
    let is_image = |file: &Path| {
        let extension = file.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        extension.is_some_and(|extension| EXTENSIONS.contains(&&*extension)) && file.is_file()
    };
    let whole = path(line);
    if is_image(&whole) {
        return Some((whole, ""));
    }
    let (word, rest) = line.split_at(first_word(line)?);
    Some((path(word), rest.trim_start())).filter(|(file, _)| is_image(file))
}

/// A path without its quotes, escapes and scheme.
pub fn path(text: &str) -> PathBuf {
    let quoted = ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    if let Some(path) = quoted {
        return path.into();
    }
    let text = match text.strip_prefix("file://") {
        Some(url) => decoded(url),
        None => text.to_owned(),
    };
    // On Windows, a backslash is a separator.
    if cfg!(windows) || Path::new(&text).exists() {
        return text.into();
    }
    let mut path = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        path.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    path.into()
}

/// Length of the first word, which may be in quotes or contain escaped spaces, if there is another one.
fn first_word(line: &str) -> Option<usize> {
    if let Some(quote) = line.chars().next().filter(|c| ['"', '\''].contains(c)) {
        return Some(line[1..].find(quote)? + 2);
    }
    let mut is_escaped = false;
    line.char_indices().find_map(|(at, c)| {
        let ends = c.is_whitespace() && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

/// Text of a URL without its percent encoding.
fn decoded(url: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(url.len()), url.as_bytes());
    while let [first, after @ ..] = rest {
        let code = (*first == b'%').then(|| after.first_chunk::<2>()).flatten();
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        rest = if code.is_some() { &after[2..] } else { after };
        bytes.push(code.unwrap_or(*first));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pasted_paths_are_found_at_the_start_of_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a b.PNG");
        std::fs::write(&file, "").unwrap();
        let plain = file.display().to_string();
        let found = |line: &str| image(line).map(|(path, rest)| (path, rest.to_owned()));
        let want = |rest: &str| Some((file.clone(), rest.to_owned()));
        assert_eq!(found(&plain), want(""));
        assert_eq!(found(&format!("'{plain}' What?")), want("What?"));
        assert_eq!(found(&format!("\"{plain}\"")), want(""));
        assert_eq!(found(&format!("file://{} What is it?", plain.replace(' ', "%20"))), want("What is it?"));
        if !cfg!(windows) {
            assert_eq!(found(&format!("{} What?", plain.replace(' ', "\\ "))), want("What?"));
        }
        for other in ["What is a.png?", "/help", "", "'", "no.png", "\"a.png"] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
