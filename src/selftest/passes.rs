//! Which devices have passed their self-test: a small file for each in the user's cache folder. What cannot
//! be read or written is as if the test had not been run.

use std::fs;
use std::path::PathBuf;

/// The files.
#[derive(Debug)]
pub struct Passes {
    dir: Option<PathBuf>,
}

impl Passes {
    /// Those in a folder; without one, nothing is remembered.
    pub fn in_folder(dir: Option<PathBuf>) -> Self {
        Self { dir }
    }

    fn path(&self, what: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(format!("passed-{:08x}", crc32fast::hash(what.as_bytes()))))
    }

    /// True if that has passed.
    pub fn has(&self, what: &str) -> bool {
        self.path(what).and_then(|path| fs::read_to_string(path).ok()).is_some_and(|kept| kept == what)
    }

    /// Remembers that it has.
    pub fn keep(&self, what: &str) {
        let (Some(dir), Some(path)) = (&self.dir, self.path(what)) else { return };
        let _ = fs::create_dir_all(dir).and_then(|()| fs::write(path, what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_passed_is_known_by_all_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let passes = || Passes::in_folder(Some(dir.path().join("sterna")));
        assert!(!passes().has("a card"));
        passes().keep("a card");
        assert!(passes().has("a card") && !passes().has("another card"));
        let nowhere = Passes::in_folder(None);
        nowhere.keep("a card");
        assert!(!nowhere.has("a card"));
    }
}
