//! Devices that have passed their self-test: a small file per device in the user's cache folder. Files that
//! cannot be read or written are treated as missing.

use std::fs;
use std::path::PathBuf;

/// The files of passed tests.
#[derive(Debug)]
pub struct Passes {
    dir: Option<PathBuf>,
}

impl Passes {
    /// The files in a folder; without one, nothing is stored.
    pub fn in_folder(dir: Option<PathBuf>) -> Self {
        Self { dir }
    }

    fn path(&self, what: &str) -> Option<PathBuf> {
        Some(self.dir.as_ref()?.join(format!("passed-{:08x}", crc32fast::hash(what.as_bytes()))))
    }

    /// True if the test `what` has passed.
    pub fn has(&self, what: &str) -> bool {
        self.path(what).and_then(|path| fs::read_to_string(path).ok()).is_some_and(|kept| kept == what)
    }

    /// Records that the test `what` has passed.
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
