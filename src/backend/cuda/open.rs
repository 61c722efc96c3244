//! The choice of the GPUs that a backend is opened on.

use super::backend::Cuda;
use super::driver::cards::{self, Spec};
use super::driver::real::{Card, cards};
use super::driver::{Driver, OnPaper};
use super::profile::Profiling;
use super::split::Split;
use super::stream::{GpuLayers, Overrides, Streaming};
use crate::PROFILE;
use crate::device::DEVICE;
use crate::{Backend, BackendError, CardOnPaper, Chosen, DeviceOption, Open, Opened, processor};

/// Name of the backend.
pub const NAME: &str = "cuda";

/// The option to divide layers among several GPUs.
pub const SPLIT_MODE: DeviceOption =
    DeviceOption { name: "split_mode", about: "none: one GPU; layer: layers divided among several GPUs" };

/// The share of a model that each of several GPUs gets.
pub const TENSOR_SPLIT: DeviceOption =
    DeviceOption { name: "tensor_split", about: "proportions of the model per GPU, such as 3,1" };

/// The number of layers whose weights stay on the GPU.
pub const GPU_LAYERS: DeviceOption = DeviceOption {
    name: "gpu_layers",
    about: "layers whose weights stay on the GPU: all, a number, or auto (what fits); others are streamed",
};

/// The matrices that stay in host memory.
pub const OVERRIDE_TENSOR: DeviceOption = DeviceOption {
    name: "override_tensor",
    about: "matrices that stay in host memory and are streamed, such as ffn_.*_exps=CPU",
};

/// The number of streamed layers that the GPU holds at a time.
pub const STREAM_SLOTS: DeviceOption =
    DeviceOption { name: "stream_slots", about: "streamed layers that the GPU holds at a time, 1 to 8" };

/// The smallest step for which streamed weights are copied to the GPU.
pub const MIN_BATCH: DeviceOption = DeviceOption {
    name: "op_offload_min_batch",
    about: "smallest batch for which streamed weights are copied to the GPU: auto, off, N",
};

/// Options of the backend.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// GPU numbers; `None` is the first one, or all if layers are divided.
    pub cards: Option<Vec<i32>>,
    /// True if layers are divided among the GPUs.
    pub is_split: bool,
    /// Each GPU's share of the model; `None` is by free memory.
    pub proportions: Option<Vec<f64>>,
    /// The timing of stages, if enabled.
    pub profiling: Option<Profiling>,
    /// The layers that are streamed, if any.
    pub streaming: Option<Streaming>,
}

/// The layers that are streamed to a GPU; `None` if all weights stay there.
pub fn streaming(chosen: &Chosen<'_>) -> Result<Option<Streaming>, BackendError> {
    let layers = chosen.parsed(&GPU_LAYERS, Streaming::layers)?.flatten();
    let slots = chosen.parsed(&STREAM_SLOTS, Streaming::n_slots)?.unwrap_or(Streaming::DEFAULT_SLOTS);
    let overrides = chosen.parsed(&OVERRIDE_TENSOR, Overrides::parse)?;
    let min_batch = chosen.parsed(&MIN_BATCH, str::parse)?.unwrap_or_default();
    let all = overrides.is_some().then_some(GpuLayers::Count(usize::MAX));
    let overrides = overrides.unwrap_or_default();
    Ok(layers.or(all).map(|gpu_layers| Streaming { gpu_layers, slots, overrides, min_batch }))
}

impl Options {
    /// Parses options from named values.
    ///
    /// # Errors
    /// [`BackendError::Option`] for invalid values.
    pub fn parse(chosen: &Chosen<'_>) -> Result<Self, BackendError> {
        let cards = chosen.parsed(&DEVICE, |list| list.split(',').map(ordinal).collect())?;
        let proportions = chosen.parsed(&TENSOR_SPLIT, proportions)?;
        let is_split = chosen.parsed(&SPLIT_MODE, |mode| match mode {
            "layer" => Ok(true),
            "none" => Ok(false),
            other => Err(format!("want none or layer, got `{other}`")),
        })?;
        if is_split == Some(false) && proportions.is_some() {
            return Err(refused(&TENSOR_SPLIT, "needs a split mode of layer"));
        }
        Ok(Self {
            cards,
            is_split: is_split.unwrap_or(proportions.is_some()),
            proportions,
            profiling: chosen.parsed(&PROFILE, Profiling::parse)?.flatten(),
            streaming: streaming(chosen)?,
        })
    }
}

impl Open for Options {
    /// A backend on the chosen GPUs of this machine: the first one by default, or all of them if layers are
    /// divided. `threads` is for the CPU backend that is used if layers are streamed.
    fn open(&self, threads: usize) -> Opened {
        let Self { cards: chosen, is_split, proportions, profiling, streaming } = self;
        if *is_split && streaming.is_some() {
            return Err(refused(&GPU_LAYERS, "layers can be streamed to one GPU only (split mode none)"));
        }
        let one = |ordinal| -> Opened {
            let card = Cuda::on(Box::new(Card::open(ordinal)?));
            let card = card.profiled(*profiling).streamed(streaming.clone());
            Ok(Box::new(card.with_cpu(move || processor(threads))))
        };
        if !is_split {
            return match chosen.as_deref() {
                None => one(0),
                Some([ordinal]) => one(*ordinal),
                Some(_) => Err(refused(&DEVICE, "several GPUs need a split mode of layer")),
            };
        }
        let chosen = match chosen {
            Some(chosen) => chosen.clone(),
            None => (0..cards()?.len() as i32).collect(),
        };
        if let Some(twice) = chosen.iter().enumerate().find(|(i, card)| chosen[..*i].contains(card)) {
            return Err(refused(&DEVICE, format!("GPU {} is listed twice", twice.1)));
        }
        if let Some(proportions) = proportions.as_ref().filter(|list| list.len() != chosen.len()) {
            let want = format!("want {} numbers, one per GPU; got {}", chosen.len(), proportions.len());
            return Err(refused(&TENSOR_SPLIT, want));
        }
        if let [ordinal] = *chosen {
            return one(ordinal);
        }
        let card = |ordinal: i32| Ok(Box::new(Card::open(ordinal)?) as Box<dyn Driver>);
        let drivers = chosen.into_iter().map(card).collect::<Result<_, BackendError>>()?;
        Ok(Box::new(Split::on(drivers, proportions.clone())?.profiled(*profiling)))
    }

    fn on_paper(&self, card: &CardOnPaper) -> Option<Opened> {
        Some(on_paper(card, self.streaming.clone()).map(|cuda| Box::new(cuda) as Box<dyn Backend>))
    }
}

/// A backend on a GPU that this machine does not have, for planning.
fn on_paper(card: &CardOnPaper, streaming: Option<Streaming>) -> Result<Cuda, BackendError> {
    let CardOnPaper { card, memory_bytes } = card;
    let card = match card {
        Some(name) => Spec::find(name).ok_or_else(|| {
            let known: Vec<_> = Spec::made().map(|card| card.name).collect();
            let detail = format!("unknown GPU `{name}`; known GPUs: {}", known.join(", "));
            BackendError::option(NAME, "card", detail)
        })?,
        None => memory_bytes.map_or(cards::DEFAULT, Spec::with_memory),
    };
    let driver = OnPaper::new(card, memory_bytes.unwrap_or(card.memory_bytes));
    // A plan compiles nothing, so the CPU backend is never opened.
    Ok(Cuda::on(Box::new(driver)).streamed(streaming).with_cpu(|| processor(1)))
}

fn refused(option: &DeviceOption, detail: impl Into<String>) -> BackendError {
    BackendError::option(NAME, option.name, detail.into())
}

/// Parses the number of a GPU.
fn ordinal(text: &str) -> Result<i32, String> {
    text.trim().parse().map_err(|_| format!("want a GPU number, got `{text}`"))
}

/// Parses comma-separated numbers.
fn proportions(text: &str) -> Result<Vec<f64>, String> {
    let number = |part: &str| part.trim().parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    let numbers: Option<Vec<f64>> = text.split(',').map(number).collect();
    numbers.filter(|numbers| numbers.iter().sum::<f64>() > 0.0).ok_or_else(|| {
        let want = "comma-separated numbers, none negative and not all 0";
        format!("want {want}; got `{text}`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for invalid choices, which is reported before a driver is looked for.
    fn said(choices: &[(&str, &str)]) -> String {
        let chosen = Chosen { backend: NAME, values: choices.to_vec() };
        let opened = Options::parse(&chosen).and_then(|options| options.open(1));
        opened.map(drop).expect_err("no such choice").to_string()
    }

    #[test]
    fn choices_that_mean_nothing_are_refused_by_name() {
        for (choices, want) in [
            (&[("split_mode", "row")][..], "DeviceOptions::split_mode: want none or layer, got `row`"),
            (&[("device", "0,1")], "DeviceOptions::device: several GPUs need a split mode of layer"),
            (&[("device", "x")], "DeviceOptions::device: want a GPU number, got `x`"),
            (&[("device", "1,2,1"), ("split_mode", "layer")], "GPU 1 is listed twice"),
            (&[("device", "0,1"), ("tensor_split", "1,2,3")], "want 2 numbers, one per GPU; got 3"),
            (&[("tensor_split", "1,2"), ("split_mode", "none")], "needs a split mode of layer"),
            (&[("tensor_split", "0,0")], "DeviceOptions::tensor_split: want comma-separated numbers"),
            (&[("gpu_layers", "some")], "DeviceOptions::gpu_layers: want all, auto or a number of layers"),
            (&[("gpu_layers", "4"), ("stream_slots", "0")], "DeviceOptions::stream_slots: want 1 to 8"),
            (&[("gpu_layers", "4"), ("split_mode", "layer")], "layers can be streamed to one GPU only"),
            (&[("tensor_split", "1,-1")], "got `1,-1`"),
            (&[("tensor_split", "1,nan")], "got `1,nan`"),
            (&[("tensor_split", "")], "got ``"),
            (&[("profile", "yes")], "DeviceOptions::profile: want true, false or events, got `yes`"),
        ] {
            let said = said(choices);
            assert!(said.contains(want), "{choices:?}: {said}");
        }
    }
}
