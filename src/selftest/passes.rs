//! Devices that have passed their self-test, and the kernels that it has chosen: small files in the user's
//! cache folder. Files that cannot be read or written are treated as missing.

use std::fs;
use std::path::PathBuf;

use super::Choice;

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

    /// The choice of the kernels `name` after the test `what`, if there was one.
    pub fn choice(&self, what: &str, name: &str) -> Option<Choice> {
        let is_it = |(of, choice): &(String, Choice)| of == what && choice.name == name;
        self.choices().into_iter().find(is_it).map(|(_, choice)| choice)
    }

    /// Records the kernels that were chosen after the test `what`.
    pub fn keep_choice(&self, what: &str, choice: &Choice) {
        let Choice { name, taken, why } = choice;
        let (Some(dir), Some(path)) = (&self.dir, self.path(&format!("{what}\n{name}"))) else { return };
        let path = path.with_extension("kernels");
        let text = format!("{what}\n{name}\n{taken}\n{why}\n");
        let _ = fs::create_dir_all(dir).and_then(|()| fs::write(path, text));
    }

    /// All chosen kernels, each with its test, in the order of their files' names.
    pub fn choices(&self) -> Vec<(String, Choice)> {
        let files = self.dir.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
        let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "kernels"));
        paths.sort_unstable();
        let read = |path: &PathBuf| {
            let text = fs::read_to_string(path).ok()?;
            let [what, name, taken, why] = text.lines().collect::<Vec<_>>()[..] else { return None };
            let taken = taken.parse().ok()?;
            Some((what.to_owned(), Choice { name: name.to_owned(), taken, why: why.to_owned() }))
        };
        paths.iter().filter_map(read).collect()
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
        let choice = Choice { name: "octets".into(), taken: true, why: "8 rows 5 us, otherwise 9".into() };
        let other = Choice { name: "octets for prompts".into(), taken: false, ..choice.clone() };
        passes().keep_choice("a card", &choice);
        assert_eq!(passes().choices(), [("a card".to_owned(), choice.clone())]);
        passes().keep_choice("a card", &other);
        assert_eq!(passes().choice("a card", "octets"), Some(choice));
        assert_eq!(passes().choice("a card", "octets for prompts"), Some(other));
        assert_eq!(passes().choice("another card", "octets"), None);
        let nowhere = Passes::in_folder(None);
        nowhere.keep("a card");
        assert!(!nowhere.has("a card"));
    }
}
