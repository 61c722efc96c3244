//! Entries of backends: descriptions, options, and how chosen values are parsed.

use std::fmt::{Debug, Display};
use std::sync::Arc;

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
    /// Which devices this build has code for, where builds differ.
    pub code: Option<fn() -> String>,
    /// Parses its options. Other options than its own were refused before.
    pub parse: fn(chosen: &Chosen<'_>) -> Result<Arc<dyn Open>, BackendError>,
}

/// Something that can be chosen of a backend.
#[derive(Debug)]
pub struct DeviceOption {
    /// Its name, `device`.
    pub name: &'static str,
    /// Its meaning and its values.
    pub about: &'static str,
}

/// Timing of stages, for a backend that can.
pub const PROFILE: DeviceOption = DeviceOption {
    name: "profile",
    about: "true: stages are timed, and runs wait for their end; cuda: events, one by one",
};

/// When a backend is taken unasked.
#[derive(Debug)]
pub struct Auto {
    /// Those of a higher rank are tried first.
    pub rank: u32,
    /// True if its device is there.
    pub is_there: fn() -> bool,
}

/// Options of a backend, as a type of its own: what opens it.
pub trait Open: Debug + Send + Sync {
    /// Opens it. `threads` is for backends that run on the processor.
    ///
    /// # Errors
    /// [`BackendError::Device`] where it does not start; [`BackendError::Option`] for values that do not go
    /// together.
    fn open(&self, threads: usize) -> Opened;

    /// Opens it on a card that is not here: it plans by the code that plans on one, needs neither a driver
    /// nor compiled kernels, and runs nothing. `None` if it plans for no such card.
    fn on_paper(&self, _card: &CardOnPaper) -> Option<Opened> {
        None
    }
}

/// Chosen [`options`](Entry::options) of a backend, by name, as a command line or a file has them. The
/// backend decides those that are left out.
#[derive(Debug)]
pub struct Chosen<'a> {
    /// The backend.
    pub(super) backend: &'static str,
    /// Names and values; of two with one name the last counts.
    pub(super) values: Vec<(&'a str, &'a str)>,
}

impl Chosen<'_> {
    /// The value of an option as its type, if it was chosen.
    ///
    /// # Errors
    /// [`BackendError::Option`] with what `parse` says.
    pub fn parsed<T, E: Display>(
        &self,
        option: &DeviceOption,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, BackendError> {
        let found = self.values.iter().rev().find(|(name, _)| *name == option.name);
        let parsed = found.map(|(_, text)| parse(text)).transpose();
        parsed.map_err(|err| BackendError::option(self.backend, option.name, err.to_string()))
    }

    /// Whether stages are timed, for a backend that does it in one way.
    ///
    /// # Errors
    /// [`BackendError::Option`] for another word than `true` or `false`.
    pub fn profile(&self) -> Result<bool, BackendError> {
        let parse = |text: &str| text.parse().map_err(|_| format!("want true or false, got `{text}`"));
        Ok(self.parsed(&PROFILE, parse)?.unwrap_or(false))
    }
}

/// A card that is not here, and that programs are planned for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardOnPaper {
    /// Words of its name, such as `rtx 5080`; without them, the card with the memory that is closest.
    pub card: Option<String>,
    /// Its memory in bytes, if that is another than the card's own.
    pub memory_bytes: Option<u64>,
}
