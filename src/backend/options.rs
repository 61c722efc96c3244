//! Options of backends as values, and entries of the registry of backends.

use std::fmt;
use std::str::FromStr;

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
    /// The options that it has, besides the number of threads.
    pub options: &'static [OptionId],
    /// Entry for [`auto`](crate::auto); `None` for a backend that emulates a GPU on the CPU.
    pub auto: Option<Auto>,
    /// Finds its devices, or the reason why there are none, given a number of threads.
    pub devices: fn(threads: usize) -> Vec<Result<String, BackendError>>,
    /// Describes the devices that this build has code for, if builds differ.
    pub code: Option<fn() -> String>,
    /// Opens it; called only with options that it has. `threads` is for backends that run on the CPU.
    pub open: fn(options: &DeviceOptions, threads: usize) -> Opened,
    /// Opens it for a card that is not present, if it can plan for one.
    pub on_paper: Option<fn(options: &DeviceOptions, card: &CardOnPaper) -> Opened>,
}

/// When `auto` tries a backend.
#[derive(Debug)]
pub struct Auto {
    /// Higher ranks are tried first.
    pub rank: u32,
    /// True if its device is present.
    pub is_there: fn() -> bool,
}

/// A card that is not present, to plan programs for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardOnPaper {
    /// Words of its name, such as `rtx 5080`; `None` for the card with the closest memory size.
    pub card: Option<String>,
    /// Its memory in bytes, if it differs from the card's own.
    pub memory_bytes: Option<u64>,
}

/// Declares the options of all backends, each once: its field, the type of its values, and its [`OptionId`].
macro_rules! options {
    (
        $(#[$about_all:meta])*
        pub struct $all:ident {
            $($(#[$about:meta])* $field:ident: $value:ty, $id:ident;)*
        }
        $(#[$about_ids:meta])*
        pub enum $ids:ident;
    ) => {
        $(#[$about_all])*
        #[derive(Clone, Debug, Default)]
        pub struct $all {
            /// The backend; `None` is `auto`, the fastest that opens.
            pub backend: Option<&'static Entry>,
            $($(#[$about])* pub $field: Option<$value>,)*
        }

        impl $all {
            /// The options that are chosen.
            pub fn chosen(&self) -> impl Iterator<Item = $ids> + use<> {
                [$(self.$field.is_some().then_some($ids::$id)),*].into_iter().flatten()
            }
        }

        $(#[$about_ids])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $ids {
            $($(#[$about])* $id,)*
            /// [`CardOnPaper::card`].
            Card,
        }

        impl $ids {
            /// Path of its field, such as `DeviceOptions::gpu_layers`.
            pub const fn path(self) -> &'static str {
                match self {
                    $(Self::$id => concat!(stringify!($all), "::", stringify!($field)),)*
                    Self::Card => "CardOnPaper::card",
                }
            }
        }
    };
}

options! {
    /// A backend of this build with its options. What is `None` is left to the backend.
    pub struct DeviceOptions {
        /// The device, for a backend that may find several: index in its list, or part of a name; for cuda
        /// also several indices, comma-separated.
        device: String, Device;
        /// The use of several GPUs.
        split_mode: SplitMode, SplitMode;
        /// The share of the model that each of several GPUs gets.
        tensor_split: Proportions, TensorSplit;
        /// The way in which products of int8 activations are computed.
        int8: Int8, Int8;
        /// Layers whose weights stay on the GPU; the others are streamed.
        gpu_layers: GpuLayers, GpuLayers;
        /// Matrices that stay in host memory and are streamed, as llama.cpp's
        /// `PATTERN=BUFFER,PATTERN=BUFFER`: a matrix whose name contains the pattern is in host memory
        /// (`CPU`, or `CUDA_Host`) or in GPU memory (`CUDA0`); the first match counts.
        override_tensor: String, OverrideTensor;
        /// On a GPU, streamed layers that it holds at a time, 1 to 8; on the CPU, pieces of 8 MiB that are
        /// read ahead, 1 to 64.
        stream_slots: usize, StreamSlots;
        /// Smallest batch for which streamed weights are copied to the GPU.
        op_offload_min_batch: MinBatch, MinBatch;
        /// On a GPU, the kernels for steps of several rows: those that stream weights through shared memory.
        octets: Octets, Octets;
        /// Layers whose weights stay in memory on the CPU; the others are read in every step.
        resident_layers: Resident, ResidentLayers;
        /// Placement of the threads of the CPU.
        numa: Numa, Numa;
        /// Timing of stages; the host waits for each run.
        profile: Profile, Profile;
    }

    /// An option, as errors name it.
    pub enum OptionId;
}

impl fmt::Display for OptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

/// The use of several GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitMode {
    /// One GPU.
    None,
    /// Layers divided among several GPUs.
    Layer,
}

impl FromStr for SplitMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "layer" => Ok(Self::Layer),
            "none" => Ok(Self::None),
            other => Err(format!("want none or layer, got `{other}`")),
        }
    }
}

/// Proportions of the model per GPU, such as 3,1: none is negative, and not all are 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Proportions(Vec<f64>);

impl Proportions {
    /// One number per GPU.
    pub fn as_slice(&self) -> &[f64] {
        &self.0
    }
}

impl FromStr for Proportions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.trim().parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
        let numbers: Option<Vec<f64>> = text.split(',').map(number).collect();
        let numbers = numbers.filter(|numbers| numbers.iter().sum::<f64>() > 0.0);
        let want = "comma-separated numbers, none negative and not all 0";
        numbers.map(Self).ok_or_else(|| format!("want {want}; got `{text}`"))
    }
}

/// The way in which products of int8 activations are computed. Both give exact sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8 {
    /// Floats on Metal, which has no instruction for four int8 products, packed elsewhere.
    Auto,
    /// Four at a time.
    Packed,
    /// As floats.
    Floats,
}

impl FromStr for Int8 {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "packed" => Ok(Self::Packed),
            "floats" => Ok(Self::Floats),
            _ => Err(format!("want auto, packed or floats, got `{word}`")),
        }
    }
}

/// Number of layers whose weights stay on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLayers {
    /// All.
    All,
    /// As many as fit while keeping a 32nd of its free memory.
    Auto,
    /// This many, or all if there are fewer.
    Count(usize),
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" | "-1" => Ok(Self::All),
            "auto" => Ok(Self::Auto),
            n => n
                .parse()
                .map(Self::Count)
                .map_err(|_| format!("want all, auto or one number of layers, got `{n}`")),
        }
    }
}

/// The kernels of block types for steps of several rows on a GPU: those that stream weights, stored in octets
/// (8 rows by 256 columns), through shared memory, or those that load them to registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Octets {
    /// Streamed if the self-test has found that to be right and faster on this GPU: one choice for steps of 2
    /// to 64 rows, and one for larger ones.
    #[default]
    Auto,
    /// Streamed where a type has such kernels.
    On,
    /// To registers.
    Off,
}

impl FromStr for Octets {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(format!("want auto, on or off, got `{other}`")),
        }
    }
}

/// The smallest step for which weights that do not fit into GPU memory are copied to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinBatch {
    /// From the size at which copying is faster, as measured when a program is compiled.
    #[default]
    Auto,
    /// From this many rows.
    Rows(usize),
    /// Never: the CPU computes in every step.
    Never,
}

impl FromStr for MinBatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Never),
            _ => match text.parse() {
                Ok(n @ 1..) => Ok(Self::Rows(n)),
                _ => Err(format!("want auto, off or a number of rows from 1 on, got `{text}`")),
            },
        }
    }
}

/// Number of layers whose weights stay in memory on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// All if they fit in memory; otherwise as many as fit and leave a margin.
    Auto,
    /// All; a model that does not fit is rejected.
    All,
    /// All, as bytes of a mapped file, which need no memory of their own: the system may evict their pages
    /// and reads them again.
    Mapped,
    /// This number of layers and the head; all if the model has no more layers.
    Count(usize),
    /// None, not even the head.
    Nothing,
}

impl FromStr for Resident {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            "mapped" => Ok(Self::Mapped),
            "none" => Ok(Self::Nothing),
            n => n
                .parse()
                .map(Self::Count)
                .map_err(|_| format!("want auto, all, none, mapped or a number of layers, got `{n}`")),
        }
    }
}

/// Placement of the threads of the CPU on NUMA nodes, with llama.cpp's values. Linux only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numa {
    /// Thread `i` on node `i` modulo the number of nodes.
    Distribute,
    /// All threads on one node, the one that opens the backend.
    Isolate,
    /// On the CPUs that the process may use, as numactl sets them.
    Numactl,
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "distribute" => Ok(Self::Distribute),
            "isolate" => Ok(Self::Isolate),
            "numactl" => Ok(Self::Numactl),
            _ => Err(format!("want distribute, isolate or numactl, got `{word}`")),
        }
    }
}

/// Timing of stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Within steps.
    Steps,
    /// One stage at a time, between events (cuda).
    Events,
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "true" => Ok(Self::Steps),
            "events" => Ok(Self::Events),
            other => Err(format!("want true or events, got `{other}`")),
        }
    }
}

impl DeviceOptions {
    /// Name of the backend, or `auto`.
    pub fn name(&self) -> &'static str {
        self.backend.map_or("auto", |entry| entry.name)
    }

    /// True if stages are timed, for a backend with one way to do it.
    ///
    /// # Errors
    /// [`BackendError::Option`] for another way.
    pub(super) fn is_profiled(&self) -> Result<bool, BackendError> {
        match self.profile {
            Some(Profile::Events) => {
                Err(BackendError::option(self.name(), OptionId::Profile, "want true, got `events`"))
            }
            timing => Ok(timing.is_some()),
        }
    }

    /// Number of slots for streamed weights.
    ///
    /// # Errors
    /// [`BackendError::Option`] for numbers beyond `most`.
    pub(super) fn slots(&self, default: usize, most: usize) -> Result<usize, BackendError> {
        let slots = self.stream_slots.unwrap_or(default);
        match (1..=most).contains(&slots) {
            true => Ok(slots),
            false => {
                let detail = format!("want 1 to {most}, got `{slots}`");
                Err(BackendError::option(self.name(), OptionId::StreamSlots, detail))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_mean_nothing_are_refused() {
        fn error_of<T: FromStr<Err = String>>(word: &str) -> String {
            word.parse::<T>().map(drop).unwrap_err()
        }
        assert_eq!(error_of::<SplitMode>("row"), "want none or layer, got `row`");
        for list in ["0,0", "1,-1", "1,nan", ""] {
            let said = error_of::<Proportions>(list);
            assert!(
                said.starts_with("want comma-separated numbers") && said.ends_with(&format!("got `{list}`"))
            );
        }
        assert_eq!(error_of::<Int8>("fast"), "want auto, packed or floats, got `fast`");
        assert_eq!(error_of::<GpuLayers>("some"), "want all, auto or one number of layers, got `some`");
        assert_eq!(error_of::<Octets>("yes"), "want auto, on or off, got `yes`");
        assert_eq!(error_of::<MinBatch>("0"), "want auto, off or a number of rows from 1 on, got `0`");
        assert!(
            error_of::<Resident>("many").starts_with("want auto, all, none, mapped or a number of layers")
        );
        assert_eq!(error_of::<Numa>("near"), "want distribute, isolate or numactl, got `near`");
        assert_eq!(error_of::<Profile>("yes"), "want true or events, got `yes`");
    }
}
