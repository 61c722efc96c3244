//! The backends of this build, and functions that open them.

use std::str::FromStr;

use super::{BackendError, CardOnPaper, DeviceOptions, Entry, Opened, OptionId, cpu};

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

impl DeviceOptions {
    /// True if no option was chosen.
    pub fn is_default(&self) -> bool {
        self.chosen().next().is_none()
    }

    /// True if the backend has the option; `auto` has none.
    pub fn has(&self, option: OptionId) -> bool {
        self.backend.is_some_and(|entry| entry.options.contains(&option))
    }

    /// Checks that the backend has the chosen options.
    ///
    /// # Errors
    /// [`BackendError::Option`] with the backends that have it.
    pub fn check(&self) -> Result<(), BackendError> {
        match self.chosen().find(|option| !self.has(*option)) {
            Some(option) => Err(BackendError::option(self.name(), option, no_such_option(option))),
            None => Ok(()),
        }
    }

    /// Opens the candidates: the named backend, or those of [`auto`]. `threads` is for backends that run on
    /// the CPU.
    pub fn candidates(&self, threads: usize) -> Vec<Opened> {
        match (self.check(), self.backend) {
            (Err(err), _) => vec![Err(err)],
            (Ok(()), Some(entry)) => vec![(entry.open)(self, threads)],
            (Ok(()), None) => auto(threads),
        }
    }

    /// Opens the backend; `auto` opens the fastest that starts.
    ///
    /// # Errors
    /// [`BackendError::Option`] for an option or a value that the backend does not have;
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
        self.check()?;
        match self.backend.and_then(|entry| entry.on_paper) {
            Some(on_paper) => on_paper(self, card),
            None => {
                let detail = "it cannot plan for a card that is not present".to_owned();
                Err(BackendError::Unknown { name: self.name().to_owned(), detail })
            }
        }
    }
}

/// Parses a name of [`REGISTRY`], or `auto`.
impl FromStr for DeviceOptions {
    type Err = BackendError;

    fn from_str(name: &str) -> Result<Self, BackendError> {
        let backend = REGISTRY.iter().find(|entry| entry.name == name);
        if backend.is_none() && name != "auto" {
            let detail = format!("this build has auto, {}", NAMES.join(", "));
            return Err(BackendError::Unknown { name: name.to_owned(), detail });
        }
        Ok(Self { backend, ..Self::default() })
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

/// Message for an option that a backend does not have: lists those that do.
fn no_such_option(option: OptionId) -> String {
    let has = |entry: &&Entry| entry.options.contains(&option);
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
    use crate::{GpuLayers, Int8, MinBatch, Numa, Profile, Resident, SplitMode};

    #[test]
    fn every_entry_is_what_it_says() {
        let names: BTreeSet<_> = NAMES.iter().collect();
        assert_eq!(names.len(), REGISTRY.len(), "duplicate name");
        assert!(!NAMES.contains(&"auto"));
        for entry in REGISTRY {
            let name = entry.name;
            assert!(!entry.about.is_empty(), "{name}");
            let options: BTreeSet<_> = entry.options.iter().collect();
            assert_eq!(options.len(), entry.options.len(), "{name}: duplicate option");
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
        let none = DeviceOptions::default;
        let all = [
            DeviceOptions { device: Some("0".into()), ..none() },
            DeviceOptions { split_mode: Some(SplitMode::None), ..none() },
            DeviceOptions { tensor_split: Some("1".parse().unwrap()), ..none() },
            DeviceOptions { int8: Some(Int8::Auto), ..none() },
            DeviceOptions { gpu_layers: Some(GpuLayers::All), ..none() },
            DeviceOptions { override_tensor: Some("a=CPU".into()), ..none() },
            DeviceOptions { stream_slots: Some(1), ..none() },
            DeviceOptions { op_offload_min_batch: Some(MinBatch::Auto), ..none() },
            DeviceOptions { resident_layers: Some(Resident::All), ..none() },
            DeviceOptions { numa: Some(Numa::Numactl), ..none() },
            DeviceOptions { profile: Some(Profile::Steps), ..none() },
        ];
        for name in NAMES.iter().chain([&"auto"]) {
            let backend = name.parse::<DeviceOptions>().unwrap().backend;
            for options in all.clone() {
                let options = DeviceOptions { backend, ..options };
                let [option] = options.chosen().collect::<Vec<_>>()[..] else { panic!("{options:?}") };
                match options.check() {
                    Ok(()) => assert!(options.has(option)),
                    Err(BackendError::Option { backend, option: named, .. }) => {
                        assert_eq!((backend, named), (*name, option));
                        assert!(!options.has(option));
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
