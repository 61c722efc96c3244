//! How a backend says what it is and what can be chosen of it, and the choices.

use std::collections::BTreeMap;

use super::{Backend, BackendError};

/// A backend that was opened, or why it does not start.
pub type Opened = Result<Box<dyn Backend>, BackendError>;

/// A backend of this build.
#[derive(Debug)]
pub struct Entry {
    /// Its name, `cuda`.
    pub name: &'static str,
    /// What it runs programs on, for people.
    pub about: &'static str,
    /// What can be chosen of it, besides the number of threads.
    pub options: &'static [DeviceOption],
    /// Whether [`auto`](crate::auto) may take it; not what runs on the processor in a GPU's place.
    pub auto: Option<Auto>,
    /// Each device that it finds, or why it finds none, given a number of threads.
    pub devices: fn(threads: usize) -> Vec<Result<String, BackendError>>,
    /// Opens it. Other options than its own were refused before.
    pub open: fn(threads: usize, options: &DeviceOptions) -> Opened,
}

/// Something that can be chosen of a backend.
#[derive(Debug)]
pub struct DeviceOption {
    /// Its name, `device`.
    pub name: &'static str,
    /// What it means, and the values that it takes.
    pub about: &'static str,
}

/// When a backend is taken unasked.
#[derive(Debug)]
pub struct Auto {
    /// Those of a higher rank are tried first.
    pub rank: u32,
    /// Whether its device is there.
    pub is_there: fn() -> bool,
}

/// What was chosen of a backend, by the names of its [`options`](Entry::options). What is left out, it
/// decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions(BTreeMap<String, String>);

impl DeviceOptions {
    /// The same with one more choice.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl Into<String>) -> Self {
        self.0.insert(option.to_owned(), value.into());
        self
    }

    /// What was chosen, if anything.
    pub fn get(&self, option: &str) -> Option<&str> {
        self.0.get(option).map(String::as_str)
    }

    /// Whether everything is left to the backend.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of what was chosen.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// A card that is not here, and that programs are planned for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardOnPaper {
    /// Words of its name, such as `rtx 5080`; without them, the card with the memory that is closest.
    pub card: Option<String>,
    /// Its memory in bytes, if that is another than the card's own.
    pub memory_bytes: Option<u64>,
    /// Which layers are streamed to it; it has no other option.
    pub options: DeviceOptions,
}
