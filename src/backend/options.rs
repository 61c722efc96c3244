//! Registry entries of backends: descriptions, options, and how chosen values are parsed.

use std::fmt::{Debug, Display};
use std::sync::Arc;

use super::{Backend, BackendError};

/// An opened backend, or the reason why it does not start.
pub type Opened = Result<Box<dyn Backend>, BackendError>;

/// A backend in this build.
#[derive(Debug)]
pub struct Entry {
    /// Name of the backend, such as `cuda`.
    pub name: &'static str,
    /// Description of the devices that it runs on.
    pub about: &'static str,
    /// Its options, besides the number of threads.
    pub options: &'static [DeviceOption],
    /// Entry for [`auto`](crate::auto); `None` for a backend that emulates a GPU on the CPU.
    pub auto: Option<Auto>,
    /// Finds its devices, or the reason why there are none, given a number of threads.
    pub devices: fn(threads: usize) -> Vec<Result<String, BackendError>>,
    /// Describes the devices that this build has code for, if builds differ.
    pub code: Option<fn() -> String>,
    /// Parses its options. Options of other backends have been rejected before.
    pub parse: fn(chosen: &Chosen<'_>) -> Result<Arc<dyn Open>, BackendError>,
}

/// An option of a backend.
#[derive(Debug)]
pub struct DeviceOption {
    /// Name of the option, such as `device`.
    pub name: &'static str,
    /// Its meaning and its values.
    pub about: &'static str,
}

/// Timing of stages, for backends that support it.
pub const PROFILE: DeviceOption = DeviceOption {
    name: "profile",
    about: "true: time each stage and wait for each run; events (cuda): time stages one at a time",
};

/// When `auto` tries a backend.
#[derive(Debug)]
pub struct Auto {
    /// Higher ranks are tried first.
    pub rank: u32,
    /// True if its device is present.
    pub is_there: fn() -> bool,
}

/// Parsed options of a backend, which open it.
pub trait Open: Debug + Send + Sync {
    /// Opens it. `threads` is for backends that run on the CPU.
    ///
    /// # Errors
    /// [`BackendError::Device`] if it does not start; [`BackendError::Option`] for values that cannot be
    /// combined.
    fn open(&self, threads: usize) -> Opened;

    /// Opens it for a card that is not present, to plan with the same code as for a real one: it needs no
    /// driver or compiled kernels, and runs nothing. `None` if the backend cannot plan for such a card.
    fn on_paper(&self, _card: &CardOnPaper) -> Option<Opened> {
        None
    }
}

/// Chosen [`options`](Entry::options) of a backend, by name, as given on a command line or in a file. The
/// backend decides the others.
#[derive(Debug)]
pub struct Chosen<'a> {
    /// The backend.
    pub(super) backend: &'static str,
    /// Names and values; for duplicate names the last one is used.
    pub(super) values: Vec<(&'a str, &'a str)>,
}

impl Chosen<'_> {
    /// Parsed value of an option, if it was chosen.
    ///
    /// # Errors
    /// [`BackendError::Option`] with the error of `parse`.
    pub fn parsed<T, E: Display>(
        &self,
        option: &DeviceOption,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, BackendError> {
        let found = self.values.iter().rev().find(|(name, _)| *name == option.name);
        let parsed = found.map(|(_, text)| parse(text)).transpose();
        parsed.map_err(|err| BackendError::option(self.backend, option.name, err.to_string()))
    }

    /// True if stages are timed, for a backend with one way to do it.
    ///
    /// # Errors
    /// [`BackendError::Option`] for words other than `true` or `false`.
    pub fn profile(&self) -> Result<bool, BackendError> {
        let parse = |text: &str| text.parse().map_err(|_| format!("want true or false, got `{text}`"));
        Ok(self.parsed(&PROFILE, parse)?.unwrap_or(false))
    }
}

/// A card that is not present, to plan programs for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardOnPaper {
    /// Words of its name, such as `rtx 5080`; `None` for the card with the closest memory size.
    pub card: Option<String>,
    /// Its memory in bytes, if it differs from the card's own.
    pub memory_bytes: Option<u64>,
}
