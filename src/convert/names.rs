//! Names for people, from the names of folders and repositories.

use std::path::Path;

/// A name for people: of the folder, or of the repository whose snapshot in the hub's cache it is.
pub fn of_folder(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let text = |path: Option<&Path>| path?.file_name()?.to_str().map(str::to_owned);
    let snapshots = folder.parent();
    let repository =
        snapshots.filter(|path| path.ends_with("snapshots")).and_then(|path| text(path.parent()));
    let repository = repository.as_deref().and_then(|name| name.strip_prefix("models--"));
    let of_repository = repository.map(|name| name.rsplit("--").next().unwrap_or(name).to_owned());
    title(&of_repository.or(text(Some(&folder))).unwrap_or_else(|| "model".to_owned()))
}

/// A name with spaces for hyphens and a capital at each word that is all small, as llama.cpp's converter has
/// it; versions and numbers stay.
pub fn title(name: &str) -> String {
    let word = |word: &str| {
        let is_small = word.chars().any(char::is_alphabetic) && !word.chars().any(char::is_uppercase);
        let is_version = word.strip_prefix('v').unwrap_or(word).starts_with(|c: char| c.is_ascii_digit());
        if !is_small || is_version {
            return word.to_owned();
        }
        // Python's title(): a capital wherever a letter follows none.
        let mut after_letter = false;
        let capital = |c: char| {
            let first = !std::mem::replace(&mut after_letter, c.is_alphabetic());
            if first { c.to_uppercase().collect::<String>() } else { c.to_string() }
        };
        word.chars().map(capital).collect()
    };
    name.replace('-', " ").split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_upstreams() {
        assert_eq!(title("llama-ternary"), "Llama Ternary");
        assert_eq!(title("bitnet-b1.58-2B-4T"), "Bitnet B1.58 2B 4T");
        assert_eq!(title("Falcon3-7B-Instruct-1.58bit"), "Falcon3 7B Instruct 1.58bit");
        assert_eq!(title("tiny-v0.3"), "Tiny v0.3");
    }

    #[test]
    fn a_snapshot_is_named_after_its_repository() {
        let dir = std::env::temp_dir().join(format!("sterna-name-{}", std::process::id()));
        let snapshot = dir.join("models--org--Some-model/snapshots/0123abcd");
        std::fs::create_dir_all(&snapshot).unwrap();
        assert_eq!(of_folder(&snapshot), "Some Model");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
