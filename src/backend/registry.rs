//! The backends of this build, and functions that open them.

use std::str::FromStr;
use std::sync::Arc;

use super::{BackendError, CardOnPaper, Chosen, Entry, Open, Opened, cpu};

/// All backends of this build, in the order in which they are listed.
pub static REGISTRY: &[Entry] = &[
    cpu::ENTRY,
    #[cfg(feature = "cuda")]
    super::cuda::ENTRY,
    #[cfg(feature = "simt")]
    super::cuda::simt::ENTRY,
    #[cfg(feature = "wgpu")]
    super::wgpu::ENTRY,
];

/// Names of all backends of this build; [`open`] also takes `auto`.
pub const NAMES: &[&str] = &{
    let mut names = [""; REGISTRY.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = REGISTRY[i].name;
        i += 1;
    }
    names
};

/// Backends and devices of this machine: for each the name of the backend, and a device or the reason why
/// there is none. `threads` is for backends that run on the CPU.
pub fn devices(threads: usize) -> Vec<(&'static str, Result<String, BackendError>)> {
    let of = |entry: &'static Entry| (entry.devices)(threads).into_iter().map(|device| (entry.name, device));
    REGISTRY.iter().flat_map(of).collect()
}

/// A backend of this build with its options, or `auto`: the fastest that opens.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions(Option<Named>);

/// A backend with its options.
#[derive(Clone, Debug)]
struct Named {
    entry: &'static Entry,
    options: Arc<dyn Open>,
    /// True if no option was chosen.
    is_default: bool,
}

impl DeviceOptions {
    /// Parses the name of a backend, or `auto`, and [options](Entry::options) by name.
    ///
    /// # Errors
    /// [`BackendError::Unknown`]; [`BackendError::Option`] if the backend does not have the option or the
    /// value.
    pub fn parse(name: &str, chosen: &[(&str, impl AsRef<str>)]) -> Result<Self, BackendError> {
        let (name, known, entry) = match REGISTRY.iter().find(|entry| entry.name == name) {
            Some(entry) => (entry.name, entry.options, Some(entry)),
            None if name == "auto" => ("auto", &[][..], None),
            None => {
                let detail = format!("this build has auto, {}", NAMES.join(", "));
                return Err(BackendError::Unknown { name: name.to_owned(), detail });
            }
        };
        let is_known = |option: &str| known.iter().any(|known| known.name == option);
        if let Some((option, _)) = chosen.iter().find(|(option, _)| !is_known(option)) {
            return Err(BackendError::option(name, option, no_such_option(option)));
        }
        let Some(entry) = entry else { return Ok(Self(None)) };
        let values = chosen.iter().map(|(option, value)| (*option, value.as_ref())).collect();
        let options = (entry.parse)(&Chosen { backend: entry.name, values })?;
        Ok(Self(Some(Named { entry, options, is_default: chosen.is_empty() })))
    }

    /// Name of the backend, or `auto`.
    pub fn name(&self) -> &'static str {
        self.0.as_ref().map_or("auto", |named| named.entry.name)
    }

    /// True if no option was chosen.
    pub fn is_default(&self) -> bool {
        self.0.as_ref().is_none_or(|named| named.is_default)
    }

    /// Opens the candidates: the named backend, or those of [`auto`]. `threads` is for backends that run on
    /// the CPU.
    pub fn candidates(&self, threads: usize) -> Vec<Opened> {
        self.0.as_ref().map_or_else(|| auto(threads), |named| vec![named.options.open(threads)])
    }

    /// Opens the backend; `auto` opens the fastest that starts.
    ///
    /// # Errors
    /// [`BackendError::Device`] if it does not start.
    pub fn open(&self, threads: usize) -> Opened {
        let mut candidates = self.candidates(threads);
        let first = candidates.iter().position(Result::is_ok).unwrap_or(candidates.len() - 1);
        candidates.swap_remove(first)
    }

    /// Opens the backend for a card that is not present, to plan with the same code as for a real one: it
    /// needs no driver or compiled kernels, and runs nothing.
    ///
    /// # Errors
    /// [`BackendError::Option`] with all known cards, for an unknown one; [`BackendError::Unknown`] for a
    /// backend without cards.
    pub fn on_paper(&self, card: &CardOnPaper) -> Opened {
        self.0.as_ref().and_then(|named| named.options.on_paper(card)).unwrap_or_else(|| {
            let detail = "it cannot plan for a card that is not present".to_owned();
            Err(BackendError::Unknown { name: self.name().to_owned(), detail })
        })
    }
}

/// Parses a name of [`REGISTRY`], or `auto`.
impl FromStr for DeviceOptions {
    type Err = BackendError;

    fn from_str(name: &str) -> Result<Self, BackendError> {
        Self::parse(name, &[] as &[(&str, &str)])
    }
}

/// Opens the backends that `auto` tries, the fastest first: those whose device is present, and the CPU. An
/// error is a device that is present but cannot be used.
pub fn auto(threads: usize) -> Vec<Opened> {
    let rank = |entry: &&Entry| entry.auto.as_ref().map(|auto| auto.rank);
    let is_there = |entry: &&Entry| entry.auto.as_ref().is_some_and(|auto| (auto.is_there)());
    let mut entries: Vec<&Entry> = REGISTRY.iter().filter(is_there).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(rank(entry)));
    entries.into_iter().map(|entry| open(entry.name, threads)).collect()
}

/// Opens a backend by its name on its default device; `auto` opens the fastest that starts. `threads` is for
/// backends that run on the CPU.
///
/// # Errors
/// [`BackendError::Unknown`], and [`BackendError::Device`] if it does not start.
pub fn open(name: &str, threads: usize) -> Opened {
    name.parse::<DeviceOptions>()?.open(threads)
}

/// As [`open`], with options by name.
///
/// # Errors
/// As [`open`] and [`DeviceOptions::parse`].
pub fn open_on(name: &str, threads: usize, chosen: &[(&str, impl AsRef<str>)]) -> Opened {
    DeviceOptions::parse(name, chosen)?.open(threads)
}

/// Message for an option that a backend does not have: lists those that do.
fn no_such_option(option: &str) -> String {
    let has = |entry: &&Entry| entry.options.iter().any(|known| known.name == option);
    let those: Vec<_> = REGISTRY.iter().filter(has).map(|entry| entry.name).collect();
    match those.as_slice() {
        [] => "no backend in this build has this option".to_owned(),
        those => format!("supported only by {}", those.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_entry_is_what_it_says() {
        let names: BTreeSet<_> = NAMES.iter().collect();
        assert_eq!(names.len(), REGISTRY.len(), "duplicate name");
        assert!(!NAMES.contains(&"auto"));
        for entry in REGISTRY {
            let name = entry.name;
            assert!(!entry.about.is_empty(), "{name}");
            let options: BTreeSet<_> = entry.options.iter().map(|option| option.name).collect();
            assert_eq!(options.len(), entry.options.len(), "{name}: duplicate option");
            assert!(entry.options.iter().all(|option| !option.about.is_empty()), "{name}");
            assert!(!(entry.devices)(1).is_empty(), "{name}: no device and no error");
            let opened = open(name, 1);
            if (entry.devices)(1).iter().all(Result::is_err) {
                assert!(opened.is_err(), "{name} opens without a device");
            }
            if let Ok(backend) = opened {
                assert_eq!(backend.name(), name);
            }
        }
    }

    #[test]
    fn every_entry_refuses_options_that_it_does_not_have() {
        let all: BTreeSet<_> = REGISTRY.iter().flat_map(|entry| entry.options).map(|o| o.name).collect();
        for name in NAMES.iter().chain([&"auto"]) {
            let own =
                REGISTRY.iter().find(|entry| entry.name == *name).map_or(&[][..], |entry| entry.options);
            for option in all.iter().copied().chain(["no such option"]) {
                if own.iter().any(|own| own.name == option) {
                    continue;
                }
                let refused = open_on(name, 1, &[(option, "0")]).map(drop);
                match refused {
                    Err(BackendError::Option { backend, option: named, .. }) => {
                        assert_eq!((backend, named.as_str()), (*name, option));
                    }
                    other => panic!("{name} with {option}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn ranks_differ_and_the_cpu_is_the_last() {
        let mut ranks: Vec<_> =
            REGISTRY.iter().filter_map(|e| Some((e.auto.as_ref()?.rank, e.name))).collect();
        ranks.sort_unstable();
        assert!(ranks.windows(2).all(|two| two[0].0 < two[1].0), "{ranks:?}");
        assert_eq!(ranks[0].1, "cpu");
        let cpu = REGISTRY.iter().find(|entry| entry.name == "cpu").and_then(|entry| entry.auto.as_ref());
        assert!(cpu.is_some_and(|auto| (auto.is_there)()), "something must run");
    }

    #[test]
    fn a_name_that_no_backend_has_is_told_which_there_are() {
        let said = open("no such backend", 1).map(drop).unwrap_err().to_string();
        assert!(said.contains("auto, cpu"), "{said}");
    }
}
