//! Entries of backends: descriptions, options, and chosen values.

use std::collections::BTreeMap;

use super::{Backend, BackendError};

/// A backend that was opened, or why it does not start.
pub type Opened = Result<Box<dyn Backend>, BackendError>;

/// A backend of this build.
#[derive(Debug)]
pub struct Entry {
    /// Its name, `cuda`.
    pub name: &'static str,
    /// Description of the devices that it runs programs on.
    pub about: &'static str,
    /// Its options, besides the number of threads.
    pub options: &'static [DeviceOption],
    /// Opener for [`auto`](crate::auto); `None` for what runs on the processor in a GPU's place.
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
    /// Its meaning and its values.
    pub about: &'static str,
}

/// When a backend is taken unasked.
#[derive(Debug)]
pub struct Auto {
    /// Those of a higher rank are tried first.
    pub rank: u32,
    /// True if its device is there.
    pub is_there: fn() -> bool,
}

/// Chosen [`options`](Entry::options) of a backend, by name. The backend decides those that are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceOptions(BTreeMap<String, String>);

impl DeviceOptions {
    /// The same with one more choice.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl Into<String>) -> Self {
        self.0.insert(option.to_owned(), value.into());
        self
    }

    /// The chosen value, if there is one.
    pub fn get(&self, option: &str) -> Option<&str> {
        self.0.get(option).map(String::as_str)
    }

    /// True if everything is left to the backend.
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
