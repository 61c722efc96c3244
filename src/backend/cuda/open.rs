//! The choice of the GPUs that a backend is opened on.

use super::backend::Cuda;
use super::driver::cards::{self, Spec};
use super::driver::real::{Card, cards};
use super::driver::{Driver, OnPaper};
use super::profile::Profiling;
use super::split::Split;
use super::stream::{Overrides, Streaming};
use crate::{
    BackendError, CardOnPaper, DeviceOptions, GpuLayers, Opened, OptionId, Proportions, SplitMode, processor,
};

/// Name of the backend.
pub const NAME: &str = "cuda";

/// The layers that are streamed to a GPU; `None` if all weights stay there.
pub fn streaming(options: &DeviceOptions) -> Result<Option<Streaming>, BackendError> {
    let slots = options.slots(Streaming::DEFAULT_SLOTS, 8)?;
    let overrides = options.override_tensor.as_deref().map(Overrides::parse).transpose();
    let overrides =
        overrides.map_err(|err| BackendError::option(options.name(), OptionId::OverrideTensor, err))?;
    let layers = options.gpu_layers.filter(|layers| *layers != GpuLayers::All);
    let layers = layers.or(overrides.is_some().then_some(GpuLayers::All));
    let overrides = overrides.unwrap_or_default();
    let min_batch = options.op_offload_min_batch.unwrap_or_default();
    Ok(layers.map(|gpu_layers| Streaming { gpu_layers, slots, overrides, min_batch }))
}

/// Opens the backend on the chosen GPUs of this machine: the first one by default, or all of them if layers
/// are divided. `threads` is for the CPU backend that is used if layers are streamed.
pub fn open(options: &DeviceOptions, threads: usize) -> Opened {
    let profiling = options.profile.map(Profiling::from);
    let streaming = streaming(options)?;
    let octets = options.octets.unwrap_or_default();
    let ordinals = |list: &str| list.split(',').map(ordinal).collect::<Result<Vec<i32>, _>>();
    let chosen = options.device.as_deref().map(ordinals).transpose()?;
    let proportions = options.tensor_split.as_ref().map(Proportions::as_slice);
    if options.split_mode == Some(SplitMode::None) && proportions.is_some() {
        return Err(refused(OptionId::TensorSplit, "needs a split mode of layer"));
    }
    let is_split = options.split_mode.map_or(proportions.is_some(), |mode| mode == SplitMode::Layer);
    if is_split && streaming.is_some() {
        let detail = "layers can be streamed to one GPU only (split mode none)";
        return Err(refused(OptionId::GpuLayers, detail));
    }
    let one = |ordinal| -> Opened {
        let card = Cuda::on(Box::new(Card::open(ordinal)?));
        let card = card.profiled(profiling).streamed(streaming.clone()).with_octets(octets)?;
        Ok(Box::new(card.with_cpu(move || processor(threads))))
    };
    if !is_split {
        return match chosen.as_deref() {
            None => one(0),
            Some([ordinal]) => one(*ordinal),
            Some(_) => Err(refused(OptionId::Device, "several GPUs need a split mode of layer")),
        };
    }
    let chosen = match chosen {
        Some(chosen) => chosen,
        None => (0..cards()?.len() as i32).collect(),
    };
    if let Some(twice) = chosen.iter().enumerate().find(|(i, card)| chosen[..*i].contains(card)) {
        return Err(refused(OptionId::Device, format!("GPU {} is listed twice", twice.1)));
    }
    if let Some(proportions) = proportions.filter(|list| list.len() != chosen.len()) {
        let want = format!("want {} numbers, one per GPU; got {}", chosen.len(), proportions.len());
        return Err(refused(OptionId::TensorSplit, want));
    }
    if let [ordinal] = *chosen {
        return one(ordinal);
    }
    let card = |ordinal: i32| Ok(Box::new(Card::open(ordinal)?) as Box<dyn Driver>);
    let drivers = chosen.into_iter().map(card).collect::<Result<_, BackendError>>()?;
    let split = Split::on(drivers, proportions.map(<[f64]>::to_vec))?.profiled(profiling);
    Ok(Box::new(split.with_octets(octets)?))
}

/// Opens the backend on a GPU that this machine does not have, for planning.
pub fn on_paper(options: &DeviceOptions, card: &CardOnPaper) -> Opened {
    let CardOnPaper { card, memory_bytes } = card;
    let card = match card {
        Some(name) => Spec::find(name).ok_or_else(|| {
            let known: Vec<_> = Spec::made().map(|card| card.name).collect();
            refused(OptionId::Card, format!("unknown GPU `{name}`; known GPUs: {}", known.join(", ")))
        })?,
        None => memory_bytes.map_or(cards::DEFAULT, Spec::with_memory),
    };
    let driver = OnPaper::new(card, memory_bytes.unwrap_or(card.memory_bytes));
    let card = Cuda::on(Box::new(driver)).streamed(streaming(options)?);
    let card = card.with_octets(options.octets.unwrap_or_default())?;
    // A plan compiles nothing, so the CPU backend is never opened.
    Ok(Box::new(card.with_cpu(|| processor(1))))
}

fn refused(option: OptionId, detail: impl Into<String>) -> BackendError {
    BackendError::option(NAME, option, detail)
}

/// Parses the number of a GPU.
fn ordinal(text: &str) -> Result<i32, BackendError> {
    let number = text.trim().parse();
    number.map_err(|_| refused(OptionId::Device, format!("want a GPU number, got `{text}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_that_mean_nothing_are_refused_by_name() {
        let none = DeviceOptions::default;
        let on = |list: &str| DeviceOptions { device: Some(list.into()), ..none() };
        let split = |list: &str| Some(list.parse::<Proportions>().unwrap());
        let (layer, four) = (Some(SplitMode::Layer), Some(GpuLayers::Count(4)));
        for (options, want) in [
            (on("0,1"), "DeviceOptions::device: several GPUs need a split mode of layer"),
            (on("x"), "DeviceOptions::device: want a GPU number, got `x`"),
            (DeviceOptions { split_mode: layer, ..on("1,2,1") }, "GPU 1 is listed twice"),
            (
                DeviceOptions { tensor_split: split("1,2,3"), ..on("0,1") },
                "want 2 numbers, one per GPU; got 3",
            ),
            (
                DeviceOptions { tensor_split: split("1,2"), split_mode: Some(SplitMode::None), ..none() },
                "needs a split mode of layer",
            ),
            (
                DeviceOptions { gpu_layers: four, stream_slots: Some(0), ..none() },
                "DeviceOptions::stream_slots: want 1 to 8",
            ),
            (
                DeviceOptions { gpu_layers: four, split_mode: layer, ..none() },
                "layers can be streamed to one GPU only",
            ),
        ] {
            // The error is reported before a driver is looked for.
            let said = open(&options, 1).map(drop).expect_err("no such choice").to_string();
            assert!(said.contains(want), "{options:?}: {said}");
        }
    }
}
