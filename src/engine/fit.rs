//! Chooses the context size and KV cache codecs so that a model fits: a search over plans that allocates
//! nothing.

use ggml_types::{KvCodec, kv};

use super::error::Error;
use super::load::{EngineOptions, memory};
use sterna_backend::{Backend, DeviceMemory};
use sterna_gguf::Gguf;

/// Codecs of keys and of values.
pub type Codecs = [&'static dyn KvCodec; 2];

/// Candidate contexts and codecs for the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Requested context in positions; upper bound of the search.
    pub most_ctx: usize,
    /// Lower bound of the context in positions, capped at `most_ctx`.
    pub least_ctx: usize,
    /// Distance between candidate contexts, in positions.
    pub step: usize,
    /// The first of these codecs that fits with the minimum context is chosen.
    pub codecs: Vec<Codecs>,
    /// Bytes to keep free on each device; `None` is the backend's default ([`DeviceMemory::margin_bytes`]).
    pub margin_bytes: Option<u64>,
}

/// Chosen context, codecs and layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Context in positions.
    pub n_ctx: usize,
    /// Codecs of the KV cache.
    pub codecs: Codecs,
    /// Number of layers whose weights are on the device; `None` is all of them.
    pub resident_layers: Option<usize>,
}

/// Available and required memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes of the program and, roughly, of the driver.
    pub need_bytes: u64,
    /// Bytes to keep free.
    pub margin_bytes: u64,
    /// Free bytes, if known.
    pub free_bytes: Option<u64>,
}

impl Room {
    /// Memory of a device, with the given margin or its backend's.
    pub fn on(device: &DeviceMemory, margin_bytes: Option<u64>) -> Self {
        Self {
            need_bytes: device.bytes().saturating_add(device.overhead_bytes()),
            margin_bytes: margin_bytes.unwrap_or(device.margin_bytes),
            free_bytes: device.free_bytes,
        }
    }

    /// Missing bytes; 0 if it fits, or if the free memory is unknown.
    pub fn short_bytes(&self) -> u64 {
        let want = self.need_bytes.saturating_add(self.margin_bytes);
        self.free_bytes.map_or(0, |free| want.saturating_sub(free))
    }

    /// Bytes left above the margin, if known.
    pub fn left_bytes(&self) -> Option<u64> {
        Some(self.free_bytes?.saturating_sub(self.need_bytes.saturating_add(self.margin_bytes)))
    }

    /// True if it fits; `None` if the free memory is unknown.
    pub fn fits(&self) -> Option<bool> {
        self.free_bytes.map(|_| self.short_bytes() == 0)
    }
}

/// Codecs to try by default, in this order: each needs less memory than the one before it, and changes the
/// output of a model more.
pub static CODECS: [&dyn KvCodec; 3] = [kv::F16, kv::Q8_0, kv::TURBOQUANT];

/// Returns the longest context with the first codecs that fit with the minimum context. `fits` returns true
/// if a context with two codecs fits; it must be monotonic: nothing larger than a choice that does not fit
/// may fit.
///
/// # Errors
/// Any error of `fits`.
pub fn choose<E>(
    fit: &Fit,
    mut fits: impl FnMut(usize, Codecs) -> Result<bool, E>,
) -> Result<Option<Choice>, E> {
    let step = fit.step.max(1);
    let least = fit.least_ctx.min(fit.most_ctx);
    let n_steps = (fit.most_ctx - least).div_ceil(step);
    let context = |n: usize| (least + n * step).min(fit.most_ctx);
    for &codecs in &fit.codecs {
        if !fits(least, codecs)? {
            continue;
        }
        // All contexts up to `low` fit, and none above `high` does.
        let (mut low, mut high) = (0, n_steps);
        while low < high {
            let middle = high - (high - low) / 2;
            match fits(context(middle), codecs)? {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        return Ok(Some(Choice { n_ctx: context(low), codecs, resident_layers: None }));
    }
    Ok(None)
}

impl EngineOptions {
    /// These options with the context and codecs of a choice.
    pub fn with_choice(&self, choice: &Choice) -> Self {
        Self { n_ctx: Some(choice.n_ctx), ..self.with_cache(choice.codecs) }
    }
}

/// True if a model fits on a backend with these options and the given margin, or the backend's default one.
/// False if the backend lacks kernels for it, or if it fits only with weight streaming that the options do
/// not request.
///
/// # Errors
/// [`Error::Model`], [`Error::Option`]; [`Error::Backend`], except for missing kernels.
pub fn fits(
    gguf: &Gguf,
    options: &EngineOptions,
    backend: &dyn Backend,
    margin_bytes: Option<u64>,
) -> Result<bool, Error> {
    let is_whole = |device: &DeviceMemory| device.streamed_layers == 0 || !options.device.is_default();
    let fits = |device: &DeviceMemory| Room::on(device, margin_bytes).short_bytes() == 0 && is_whole(device);
    match memory(gguf, options, backend) {
        Ok(devices) => Ok(devices.iter().all(fits)),
        Err(err) if err.is_of_cache_type() => Ok(false),
        Err(err) => Err(err),
    }
}

/// Runs [`choose`] for a model on a backend; `None` if nothing fits.
///
/// # Errors
/// As [`fits`].
pub fn fit(
    gguf: &Gguf,
    options: &EngineOptions,
    backend: &dyn Backend,
    fit: &Fit,
) -> Result<Option<Choice>, Error> {
    choose(fit, |n_ctx, codecs| {
        let options = EngineOptions { n_ctx: Some(n_ctx), ..options.with_cache(codecs) };
        fits(gguf, &options, backend, fit.margin_bytes)
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use super::*;

    fn wish(most_ctx: usize, least_ctx: usize) -> Fit {
        let codecs = CODECS.map(|codec| [codec; 2]).into();
        Fit { most_ctx, least_ctx, step: 256, codecs, margin_bytes: None }
    }

    /// Bytes of a context: a fixed part, and bytes per position that depend on the codec.
    fn need(n_ctx: usize, codecs: Codecs) -> u64 {
        let of_position = match codecs[0].name() {
            "f16" => 100,
            "q8_0" => 50,
            _ => 20,
        };
        1_000_000 + n_ctx as u64 * of_position
    }

    fn chosen(fit: &Fit, free: u64) -> Option<(usize, &'static str)> {
        let asked = RefCell::new(0);
        let choice = choose::<Infallible>(fit, |n_ctx, codecs| {
            *asked.borrow_mut() += 1;
            assert!(n_ctx <= fit.most_ctx);
            Ok(need(n_ctx, codecs) <= free)
        });
        assert!(*asked.borrow() < 40, "{asked:?} plans");
        let choice = choice.unwrap()?;
        let [k, v] = choice.codecs;
        assert_eq!((k, choice.resident_layers), (v, None));
        Some((choice.n_ctx, k.name()))
    }

    #[test]
    fn the_first_codec_with_room_for_the_least_context_gets_as_much_as_fits() {
        let fit = wish(131_072, 4096);
        for (free, want) in [
            (20_000_000, Some((131_072, "f16"))),
            (1_000_000 + 100 * 131_072, Some((131_072, "f16"))),
            // One byte less is a step less.
            (1_000_000 + 100 * 131_072 - 1, Some((131_072 - 256, "f16"))),
            (1_000_000 + 100 * 4096, Some((4096, "f16"))),
            (1_000_000 + 100 * 4096 - 1, Some((7936, "q8_0"))),
            (1_000_000 + 50 * 4096, Some((4096, "q8_0"))),
            (1_000_000 + 50 * 4096 - 1, Some((9984, "turboquant"))),
            (1_000_000 + 20 * 4096, Some((4096, "turboquant"))),
            (1_000_000 + 20 * 4096 - 1, None),
            (0, None),
        ] {
            assert_eq!(chosen(&fit, free), want, "{free} bytes");
        }
    }

    /// The search finds the same as trying every context.
    #[test]
    fn nothing_better_is_passed_over() {
        for (most, least, step) in
            [(5000, 100, 64), (4096, 4096, 256), (100, 4096, 256), (1, 1, 1), (777, 1, 50)]
        {
            let fit = Fit { step, ..wish(most, least) };
            for free in (1_000_000..1_600_000).step_by(7919) {
                let least = least.min(most);
                let contexts: Vec<_> = (least..most).step_by(step).chain([most]).collect();
                let of_codec = |codec: &&'static dyn KvCodec| {
                    let fitting = contexts.iter().rev().find(|n| need(**n, [*codec; 2]) <= free);
                    fitting.map(|n| (*n, codec.name()))
                };
                assert_eq!(chosen(&fit, free), CODECS.iter().find_map(of_codec), "{fit:?}, {free} bytes");
            }
        }
    }

    #[test]
    fn an_error_ends_the_search() {
        let failed = choose(&wish(8192, 4096), |_, _| Err("a broken file"));
        assert_eq!(failed, Err("a broken file"));
    }

    #[test]
    fn room_counts_what_the_driver_takes_and_what_is_to_stay_free() {
        let of = |free_bytes| Room { need_bytes: 700, margin_bytes: 200, free_bytes };
        assert_eq!((of(Some(900)).short_bytes(), of(Some(900)).fits()), (0, Some(true)));
        assert_eq!((of(Some(899)).short_bytes(), of(Some(899)).fits()), (1, Some(false)));
        assert_eq!((of(Some(1000)).left_bytes(), of(Some(1)).left_bytes()), (Some(100), Some(0)));
        assert_eq!((of(None).short_bytes(), of(None).fits(), of(None).left_bytes()), (0, None, None));
    }
}
