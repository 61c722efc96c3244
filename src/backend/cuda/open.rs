//! Which cards a backend is opened on.

use super::driver::Driver;
use super::driver::real::{Card, cards};
use super::split::Split;
use super::{Cuda, NAME, Profiling, Streaming};
use crate::device::{DEVICE, PROFILE};
use crate::{BackendError, DeviceOption, DeviceOptions, Opened, processor};

/// Whether layers are divided among several cards.
pub const SPLIT_MODE: DeviceOption =
    DeviceOption { name: "split_mode", about: "none: one card; layer: layers over several cards" };

/// How much of a model each of several cards gets.
pub const TENSOR_SPLIT: DeviceOption =
    DeviceOption { name: "tensor_split", about: "proportions of a model that the cards get, such as 3,1" };

/// How many layers' weights stay on a card.
pub const GPU_LAYERS: DeviceOption = DeviceOption {
    name: "gpu_layers",
    about: "layers whose weights stay on the card: all, a number, or auto (what fits); others are streamed",
};

/// Which matrices lie in memory of the host.
pub const OVERRIDE_TENSOR: DeviceOption = DeviceOption {
    name: "override_tensor",
    about: "matrices that stay in memory of the host and are streamed, such as ffn_.*_exps=CPU",
};

/// How many streamed layers a card has room for at a time.
pub const STREAM_SLOTS: DeviceOption = DeviceOption {
    name: "stream_slots",
    about: "streamed layers that a card has room for at a time, 1 to 8",
};

/// From how many rows of a step on such weights are copied.
pub const MIN_BATCH: DeviceOption = DeviceOption {
    name: "op_offload_min_batch",
    about: "rows of a step from which on streamed weights are copied, not computed with: auto, off, N",
};

/// Which layers are streamed to a card, if any.
pub fn streaming(options: &DeviceOptions, backend: &'static str) -> Result<Option<Streaming>, BackendError> {
    let of = |option: &DeviceOption| (option.name, options.get(option.name));
    let [layers, slots, overrides, min_batch] =
        [&GPU_LAYERS, &STREAM_SLOTS, &OVERRIDE_TENSOR, &MIN_BATCH].map(of);
    Streaming::of(backend, layers, slots, overrides, min_batch)
}

/// A backend on the cards of this machine that are chosen: the first one, or all of them if layers are
/// divided. `threads` are of the processor beside it, where layers are streamed.
///
/// # Errors
/// [`BackendError::Option`] for choices that mean nothing; [`BackendError::Device`] where there are no
/// kernels in this build, no driver, no such card, or no code for it.
pub fn open(threads: usize, options: &DeviceOptions) -> Opened {
    let proportions = options.get(TENSOR_SPLIT.name).map(proportions).transpose()?;
    let is_split = match options.get(SPLIT_MODE.name) {
        Some("layer") => true,
        Some("none") if proportions.is_some() => {
            return Err(refused(&TENSOR_SPLIT, "there is nothing to divide with a split mode of none"));
        }
        Some("none") => false,
        None => proportions.is_some(),
        Some(other) => return Err(refused(&SPLIT_MODE, format!("want none or layer, got `{other}`"))),
    };
    let profiling = Profiling::of(NAME, PROFILE.name, options.get(PROFILE.name))?;
    let streaming = streaming(options, NAME)?;
    if is_split && streaming.is_some() {
        return Err(refused(
            &GPU_LAYERS,
            "layers are streamed to one card, not to several (split mode none)",
        ));
    }
    let one = |ordinal| -> Opened {
        let card = Cuda::on(Box::new(Card::open(ordinal)?));
        let card = card.profiled(profiling).streamed(streaming.clone());
        Ok(Box::new(card.beside(move || processor(threads))))
    };
    let chosen = options.get(DEVICE.name).map(|list| list.split(',').map(ordinal).collect());
    let chosen: Option<Vec<i32>> = chosen.transpose()?;
    if !is_split {
        return match chosen.as_deref() {
            None => one(0),
            Some([ordinal]) => one(*ordinal),
            Some(_) => Err(refused(&DEVICE, "several cards want a split mode of layer")),
        };
    }
    let chosen =
        chosen.map_or_else(|| Ok((0..cards()?.len() as i32).collect()), Ok::<Vec<_>, BackendError>)?;
    if let Some(twice) = chosen.iter().enumerate().find(|(i, card)| chosen[..*i].contains(card)) {
        return Err(refused(&DEVICE, format!("card {} is named twice", twice.1)));
    }
    if let Some(proportions) = proportions.as_ref().filter(|list| list.len() != chosen.len()) {
        let want = format!("want {} numbers, one for each card; got {}", chosen.len(), proportions.len());
        return Err(refused(&TENSOR_SPLIT, want));
    }
    if let [ordinal] = *chosen {
        return one(ordinal);
    }
    let card = |ordinal: i32| Ok(Box::new(Card::open(ordinal)?) as Box<dyn Driver>);
    let drivers = chosen.into_iter().map(card).collect::<Result<_, BackendError>>()?;
    Ok(Box::new(Split::on(drivers, proportions)?.profiled(profiling)))
}

fn refused(option: &DeviceOption, detail: impl Into<String>) -> BackendError {
    BackendError::option(NAME, option.name, detail.into())
}

/// Reads the number of a card.
fn ordinal(text: &str) -> Result<i32, BackendError> {
    let detail = || format!("want the number of a card, got `{text}`");
    text.trim().parse().map_err(|_| refused(&DEVICE, detail()))
}

/// Reads numbers with commas between them.
fn proportions(text: &str) -> Result<Vec<f64>, BackendError> {
    let number = |part: &str| part.trim().parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    let numbers: Option<Vec<f64>> = text.split(',').map(number).collect();
    numbers.filter(|numbers| numbers.iter().sum::<f64>() > 0.0).ok_or_else(|| {
        let want = "numbers with commas between them, none below 0 and not all 0";
        refused(&TENSOR_SPLIT, format!("want {want}; got `{text}`"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with choices, which is seen before a driver is looked for.
    fn said(choices: &[(&str, &str)]) -> String {
        let of = |options: DeviceOptions, (name, value): &(&str, &str)| options.with(name, *value);
        let options = choices.iter().fold(DeviceOptions::default(), of);
        open(1, &options).map(drop).expect_err("no such choice").to_string()
    }

    #[test]
    fn choices_that_mean_nothing_are_refused_by_name() {
        for (choices, want) in [
            (&[("split_mode", "row")][..], "DeviceOptions::split_mode: want none or layer, got `row`"),
            (&[("device", "0,1")], "DeviceOptions::device: several cards want a split mode of layer"),
            (&[("device", "x")], "DeviceOptions::device: want the number of a card, got `x`"),
            (&[("device", "1,2,1"), ("split_mode", "layer")], "card 1 is named twice"),
            (&[("device", "0,1"), ("tensor_split", "1,2,3")], "want 2 numbers, one for each card; got 3"),
            (&[("tensor_split", "1,2"), ("split_mode", "none")], "there is nothing to divide"),
            (&[("tensor_split", "0,0")], "DeviceOptions::tensor_split: want numbers"),
            (&[("gpu_layers", "some")], "DeviceOptions::gpu_layers: want all, auto or a number of layers"),
            (&[("gpu_layers", "4"), ("stream_slots", "0")], "DeviceOptions::stream_slots: want 1 to 8"),
            (&[("gpu_layers", "4"), ("split_mode", "layer")], "layers are streamed to one card"),
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
