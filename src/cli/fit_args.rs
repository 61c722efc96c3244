//! Flags that fit a model to its device: they choose the context and the KV cache type if those are not
//! given.

use clap::{Args, ValueEnum};
use ggml_types::{KvCodec, kv, kv_by_name};

use super::{CliError, names};
use crate::backend::Backend;
use crate::engine::error::binary_units as binary;
use crate::engine::fit::{self, CODECS, Choice, Codecs, Fit, Room};
use crate::engine::{self, EngineOptions};
use crate::gguf::Gguf;
use crate::model;
use crate::program::PAGE;

/// Flags that choose what is not given, so that the model fits.
#[derive(Args, Clone, Debug)]
pub struct FitArgs {
    /// Choose context and KV cache type, where not given, so that the model fits. on: as close to the
    /// defaults as possible; max: the longest context that fits; off [default: on; off on the CPU]
    #[arg(long, value_name = "HOW", num_args = 0..=1, default_missing_value = "on", value_enum)]
    #[arg(aliases = ["-fit", "LLAMA_ARG_FIT"])]
    fit: Option<How>,
    /// MiB that --fit leaves free on each device [default: 3 % of the free memory, at least 512]
    #[arg(long, value_name = "MIB")]
    #[arg(aliases = ["-fitt", "LLAMA_ARG_FIT_TARGET"])]
    fit_target: Option<u32>,
    /// Minimum context that --fit may choose
    #[arg(long, value_name = "N", default_value_t = EngineOptions::DEFAULT_CTX, value_parser = positions)]
    #[arg(aliases = ["-fitc", "LLAMA_ARG_FIT_CTX"])]
    fit_ctx: usize,
    /// KV cache types that --fit may choose, in order of preference; a single type is always used
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = codec)]
    #[arg(default_values = CODECS.map(|codec| codec.name()))]
    fit_codecs: Vec<&'static dyn KvCodec>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    On,
    Max,
    Off,
}

/// Reads the name of a KV cache codec.
fn codec(name: &str) -> Result<&'static dyn KvCodec, String> {
    kv_by_name(name).ok_or_else(|| format!("want some of {}", kv::names_with_notes()))
}

fn positions(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "want a number above 0".to_owned())
}

/// The search for a GPU: contexts from the trained length `most_ctx` down to `least_ctx`.
pub(super) fn wish(options: &EngineOptions, most_ctx: usize, least_ctx: usize, codecs: Vec<Codecs>) -> Fit {
    let (most_ctx, least_ctx) = match options.n_ctx {
        Some(n_ctx) => (n_ctx, n_ctx),
        None => (most_ctx, least_ctx),
    };
    Fit { most_ctx, least_ctx, step: 4 * PAGE, codecs, margin_bytes: None }
}

impl FitArgs {
    /// Cache types to try, the same for keys and values.
    fn codecs(&self) -> Vec<Codecs> {
        self.fit_codecs.iter().map(|codec| [*codec; 2]).collect()
    }

    /// Bytes to leave free on each device.
    fn margin_bytes(&self) -> Option<u64> {
        self.fit_target.map(|mib| u64::from(mib) << 20)
    }

    /// Returns the options with the context and cache type chosen for a model on a backend, and prints a note
    /// on stderr if they changed. Options that fit, and options on devices whose free memory is unknown, are
    /// unchanged. `None` if nothing fits; [`streamed`](Self::streamed) may then help.
    ///
    /// # Errors
    /// Any error from reading the model.
    pub fn fitted(
        &self,
        gguf: &Gguf,
        backend: &dyn Backend,
        options: &EngineOptions,
        has_codecs: bool,
    ) -> Result<Option<EngineOptions>, CliError> {
        let how = self.fit.unwrap_or(if backend.name() == "cpu" { How::Off } else { How::On });
        let rooms = rooms(gguf, options, backend, self.margin_bytes());
        if how == How::Off || rooms.iter().all(|room| room.free_bytes.is_none()) {
            return Ok(Some(options.clone()));
        }
        let trained = model::hyper(gguf)?.n_ctx_train;
        let least = self.fit_ctx.min(trained);
        let most = if how == How::Max { trained } else { EngineOptions::DEFAULT_CTX.min(trained).max(least) };
        let own = [options.cache_type_k, options.cache_type_v];
        let codecs = if has_codecs { vec![own] } else { self.codecs() };
        let wish = Fit { margin_bytes: self.margin_bytes(), ..wish(options, most, least, codecs) };
        let Some(choice) = fit::fit(gguf, options, backend, &wish)? else { return Ok(None) };
        let usual = options.n_ctx.unwrap_or(EngineOptions::DEFAULT_CTX.min(trained));
        if (choice.n_ctx, choice.codecs) != (usual, own) {
            let short = rooms.iter().map(Room::short_bytes).max().unwrap_or(0);
            self.say(&choice, options, usual, short);
        }
        Ok(Some(options.with_choice(&choice)))
    }

    /// Options for a model that does not fit on the GPU, with as many layers offloaded to host memory as
    /// necessary; prints a note on stderr. The context is the shortest that may be chosen, and the KV cache
    /// type is unchanged. `None` if that does not fit either.
    ///
    /// # Errors
    /// Any error from reading the model.
    pub fn streamed(
        &self,
        gguf: &Gguf,
        backend: &dyn Backend,
        options: &EngineOptions,
    ) -> Result<Option<EngineOptions>, CliError> {
        let least = self.fit_ctx.min(model::hyper(gguf)?.n_ctx_train);
        let n_ctx = options.n_ctx.unwrap_or(least);
        let options = EngineOptions { n_ctx: Some(n_ctx), ..options.clone() };
        if engine::plan(gguf, &options, backend).is_err() {
            return Ok(None);
        }
        let why = "the model does not fit on this device, so some layers stay in host memory";
        let chose = format!("--fit chose -ngl auto and a context of {n_ctx} positions");
        names::note("note", &format!("{chose}: {why}; --fit off keeps the defaults"));
        Ok(Some(options))
    }

    /// Prints the choice and its reason.
    fn say(&self, choice: &Choice, options: &EngineOptions, usual: usize, short: u64) {
        let mut changes = Vec::new();
        if choice.n_ctx != usual {
            changes.push(format!("a context of {} positions instead of {usual}", choice.n_ctx));
        }
        if choice.codecs != [options.cache_type_k, options.cache_type_v] {
            let [k, own] = [choice.codecs[0], options.cache_type_k].map(KvCodec::name);
            changes.push(format!("a KV cache of {k} instead of {own}, which changes the output slightly"));
        }
        let why = match short {
            0 => "that is what fits".to_owned(),
            short => format!("it would need {} more than is free, reserve included", binary(short)),
        };
        names::note(
            "note",
            &format!("--fit chose {}: {why}; --fit off keeps the defaults", changes.join(" and ")),
        );
    }

    /// Prints which smaller options would fit, if none of the allowed ones do.
    ///
    /// # Errors
    /// As [`fitted`](Self::fitted).
    pub fn say_what_would_fit(
        &self,
        gguf: &Gguf,
        options: &EngineOptions,
        backend: &dyn Backend,
    ) -> Result<(), CliError> {
        let wanted = self.fit_ctx.min(model::hyper(gguf)?.n_ctx_train);
        let least = wish(options, wanted, 1, self.codecs());
        let least = Fit { least_ctx: 1, step: PAGE, margin_bytes: self.margin_bytes(), ..least };
        let smaller = match fit::fit(gguf, options, backend, &least)? {
            Some(Choice { n_ctx, codecs: [codec, _], .. }) => {
                format!("-c {n_ctx} with --kv-cache-type {} would", codec.name())
            }
            None => "no context does: `sterna plan` shows what takes how much memory".to_owned(),
        };
        let wanted = options.n_ctx.unwrap_or(wanted);
        let leaves = "with its memory reserve";
        let no = format!("--fit: a KV cache of {wanted} positions does not fit on this device {leaves}");
        names::note("note", &format!("{no}; {smaller}"));
        Ok(())
    }
}

/// Memory of each device for a model; empty if the model cannot run there, which loading reports.
fn rooms(
    gguf: &Gguf,
    options: &EngineOptions,
    backend: &dyn Backend,
    margin_bytes: Option<u64>,
) -> Vec<Room> {
    let devices = engine::memory(gguf, options, backend).unwrap_or_default();
    devices.iter().map(|device| Room::on(device, margin_bytes)).collect()
}
