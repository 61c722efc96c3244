//! The backends of this build, and how one is opened.

use std::collections::BTreeMap;

use super::{Backend, BackendError, cpu};

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
    /// Whether [`auto`] may take it; not what runs on the processor in a GPU's place.
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

/// Which device, for a backend that may find several.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub const DEVICE: DeviceOption = DeviceOption {
    name: "device",
    about: "a number of the backend's list, or a part of a name; cuda: several",
};

/// Whether stages are timed, for a backend that can.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub const PROFILE: DeviceOption = DeviceOption {
    name: "profile",
    about: "true: stages are timed, and runs wait for their end; cuda: events, one by one",
};

/// How many layers' weights stay on a card.
#[cfg(feature = "cuda")]
pub const GPU_LAYERS: DeviceOption = DeviceOption {
    name: "gpu_layers",
    about: "layers whose weights stay on the card: all, a number, or auto (what fits); others are streamed",
};

/// Which matrices lie in memory of the host.
#[cfg(feature = "cuda")]
pub const OVERRIDE_TENSOR: DeviceOption = DeviceOption {
    name: "override_tensor",
    about: "matrices that stay in memory of the host and are streamed, such as ffn_.*_exps=CPU",
};

/// How many streamed layers a card has room for at a time.
#[cfg(feature = "cuda")]
pub const STREAM_SLOTS: DeviceOption = DeviceOption {
    name: "stream_slots",
    about: "streamed layers that a card has room for at a time, 1 to 8",
};

/// From how many rows of a step on such weights are copied.
#[cfg(feature = "cuda")]
pub const MIN_BATCH: DeviceOption = DeviceOption {
    name: "op_offload_min_batch",
    about: "rows of a step from which on streamed weights are copied, not computed with: auto, off, N",
};

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

    /// Which layers are streamed to a card, if any.
    #[cfg(feature = "cuda")]
    pub(super) fn streaming(
        &self,
        backend: &'static str,
    ) -> Result<Option<super::cuda::Streaming>, BackendError> {
        let options = [GPU_LAYERS, STREAM_SLOTS, OVERRIDE_TENSOR, MIN_BATCH].map(|option| option.name);
        let [layers, slots, overrides, min_batch] = options.map(|name| (name, self.get(name)));
        super::cuda::Streaming::of(backend, layers, slots, overrides, min_batch)
    }

    /// As [`get`](Self::get), read as another type.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(super) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        backend: &'static str,
        option: &str,
    ) -> Result<Option<T>, BackendError> {
        let parsed = |value: &str| {
            value
                .parse()
                .map_err(|err| BackendError::option(backend, option, format!("{err}, got `{value}`")))
        };
        self.get(option).map(parsed).transpose()
    }
}

/// Every backend of this build, in the order in which they are listed.
pub static REGISTRY: &[Entry] = &[
    cpu::ENTRY,
    #[cfg(feature = "cuda")]
    super::cuda::ENTRY,
    #[cfg(feature = "simt")]
    Entry {
        name: "cuda-simt",
        about: "CUDA kernels on the processor, for tests",
        options: &[PROFILE, GPU_LAYERS, STREAM_SLOTS, OVERRIDE_TENSOR, MIN_BATCH],
        auto: None,
        devices: |threads| vec![Ok(simt(threads).device())],
        open: |threads, options| {
            let value = options.get(PROFILE.name);
            let profiling = super::cuda::Profiling::of("cuda-simt", PROFILE.name, value)?;
            let streaming = options.streaming("cuda-simt")?;
            let cuda = simt(threads).profiled(profiling).streamed(streaming);
            Ok(Box::new(cuda.beside(move || processor(threads))))
        },
    },
    #[cfg(feature = "wgpu")]
    super::wgpu::ENTRY,
];

#[cfg(feature = "simt")]
fn simt(threads: usize) -> super::cuda::Cuda {
    super::cuda::Cuda::on(Box::new(super::cuda::driver::simt::Simt::new(threads as u32, 0)))
}

/// The processor, for a backend that leaves some of its work to it.
#[cfg(feature = "cuda")]
pub(super) fn processor(threads: usize) -> Opened {
    Ok(Box::new(cpu::Cpu::new(threads)?))
}

/// The names of all backends of this build; [`open`] takes `auto` besides.
pub const NAMES: &[&str] = &{
    let mut names = [""; REGISTRY.len()];
    let mut i = 0;
    while i < names.len() {
        names[i] = REGISTRY[i].name;
        i += 1;
    }
    names
};

/// What there is to run on: the name of a backend, and a device, or why it has no device. `threads` is for
/// backends that run on the processor.
pub fn devices(threads: usize) -> Vec<(&'static str, Result<String, BackendError>)> {
    let of = |entry: &'static Entry| (entry.devices)(threads).into_iter().map(|device| (entry.name, device));
    REGISTRY.iter().flat_map(of).collect()
}

/// The backends that `auto` stands for, the fastest first: those whose device is there, and the CPU. An error
/// is a device that is there and cannot be used.
pub fn auto(threads: usize) -> Vec<Opened> {
    let rank = |entry: &&Entry| entry.auto.as_ref().map(|auto| auto.rank);
    let is_there = |entry: &&Entry| entry.auto.as_ref().is_some_and(|auto| (auto.is_there)());
    let mut entries: Vec<&Entry> = REGISTRY.iter().filter(is_there).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(rank(entry)));
    entries.into_iter().map(|entry| (entry.open)(threads, &DeviceOptions::default())).collect()
}

/// Opens a backend by its name, on the device that it would choose; `auto` takes the fastest that opens.
/// `threads` is for backends that run on the processor.
///
/// # Errors
/// [`BackendError::Unknown`], and [`BackendError::Device`] where it does not start.
pub fn open(name: &str, threads: usize) -> Opened {
    open_on(name, threads, &DeviceOptions::default())
}

/// As [`open`], with choices.
///
/// # Errors
/// As [`open`]; [`BackendError::Option`] where the backend has no such option or no such choice.
pub fn open_on(name: &str, threads: usize, options: &DeviceOptions) -> Opened {
    let (name, known, entry) = match REGISTRY.iter().find(|entry| entry.name == name) {
        Some(entry) => (entry.name, entry.options, Some(entry)),
        None if name == "auto" => ("auto", &[][..], None),
        None => {
            let detail = format!("this build has auto, {}", NAMES.join(", "));
            return Err(BackendError::Unknown { name: name.to_owned(), detail });
        }
    };
    for option in options.0.keys() {
        if !known.iter().any(|known| known.name == option) {
            return Err(BackendError::option(name, option, no_such_option(option)));
        }
    }
    match entry {
        Some(entry) => (entry.open)(threads, options),
        None => auto(threads).into_iter().find(Result::is_ok).unwrap_or_else(|| open("cpu", threads)),
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

/// The CUDA backend on a card that is not here: it plans by the code that plans on one, needs neither a
/// driver nor compiled kernels, and runs nothing.
///
/// # Errors
/// [`BackendError::Option`] with all cards that are known, for another one; [`BackendError::Unknown`] in a
/// build without the backend.
pub fn on_paper(card: &CardOnPaper) -> Opened {
    #[cfg(feature = "cuda")]
    return Ok(Box::new(super::cuda::on_paper(card)?));
    #[cfg(not(feature = "cuda"))]
    {
        let CardOnPaper { .. } = card;
        let detail = format!("cards are planned for by it; this build has {}", NAMES.join(", "));
        Err(BackendError::Unknown { name: "cuda".to_owned(), detail })
    }
}

/// Who has an option that a backend has not.
fn no_such_option(option: &str) -> String {
    let has = |entry: &&Entry| entry.options.iter().any(|known| known.name == option);
    let those: Vec<_> = REGISTRY.iter().filter(has).map(|entry| entry.name).collect();
    match those.as_slice() {
        [] => "no backend of this build has such an option".to_owned(),
        those => format!("an option of {} alone", those.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_entry_is_what_it_says() {
        let names: BTreeSet<_> = NAMES.iter().collect();
        assert_eq!(names.len(), REGISTRY.len(), "a name is used twice");
        assert!(!NAMES.contains(&"auto"));
        for entry in REGISTRY {
            let name = entry.name;
            assert!(!entry.about.is_empty(), "{name}");
            let options: BTreeSet<_> = entry.options.iter().map(|option| option.name).collect();
            assert_eq!(options.len(), entry.options.len(), "{name}: an option is named twice");
            assert!(entry.options.iter().all(|option| !option.about.is_empty()), "{name}");
            assert!(!(entry.devices)(1).is_empty(), "{name}: neither a device nor a reason");
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
            for option in all.iter().chain([&"no such option"]) {
                if own.iter().any(|own| own.name == *option) {
                    continue;
                }
                let refused = open_on(name, 1, &DeviceOptions::default().with(option, "0")).map(drop);
                match refused {
                    Err(BackendError::Option { backend, option: named, .. }) => {
                        assert_eq!((backend, named.as_str()), (*name, *option));
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
