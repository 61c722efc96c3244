//! Flags of LoRA adapters.

use std::path::{Path, PathBuf};

use clap::Args;

use super::CliError;
use crate::engine::Adapter;
use crate::gguf::Gguf;
use crate::serve::AdapterFolder;

/// LoRA adapters with their scales.
#[derive(Args, Clone, Debug, Default)]
pub struct AdapterFiles {
    /// LoRA adapter: a GGUF file or a folder of PEFT; repeatable, or a comma-separated list
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    lora: Vec<String>,
    /// The same with a scale, as in adapter.gguf:0.5
    #[arg(long, value_name = "FILE:SCALE", value_delimiter = ',')]
    lora_scaled: Vec<String>,
}

/// LoRA adapters that are loaded with the model.
#[derive(Args, Clone, Debug, Default)]
pub struct LoraArgs {
    #[command(flatten)]
    files: AdapterFiles,
    /// Load adapters without applying them: only requests that choose them use them
    #[arg(long)]
    lora_init_without_apply: bool,
}

/// Adapters that requests choose by name, as in vLLM.
#[derive(Args, Clone, Debug, Default)]
pub struct LoraModules {
    /// LoRA adapters that requests choose by name as their model: NAME=FILE, or JSON with name and path
    #[arg(long, value_name = "NAME=FILE", num_args = 1..)]
    lora_modules: Vec<String>,
    /// Folder of LoRA adapters that clients may load and unload while the server runs
    /// (/v1/load_lora_adapter)
    #[arg(long, value_name = "DIR")]
    lora_dir: Option<PathBuf>,
}

impl LoraModules {
    /// True if there are none, and clients may load none.
    pub fn is_empty(&self) -> bool {
        self.lora_modules.is_empty() && self.lora_dir.is_none()
    }

    /// The folder of adapters that clients may load, if there is one, with the adapters that requests may
    /// name from the start.
    ///
    /// # Errors
    /// As [`adapters`](Self::adapters); there is no such folder.
    pub fn folder(
        &self,
        base: impl Fn() -> Result<Gguf, CliError> + Send + Sync + 'static,
    ) -> Result<Option<AdapterFolder>, CliError> {
        let Some(folder) = self.lora_dir.as_deref() else { return Ok(None) };
        let named = self.adapters(&base)?;
        match folder.is_dir() {
            true => Ok(Some(AdapterFolder::new(folder, named, move |path| open(path, &base))?)),
            false => Err(format!("--lora-dir {}: there is no such folder", folder.display()).into()),
        }
    }

    /// Opens the adapters. Requests that do not name one do not use it.
    ///
    /// # Errors
    /// A value of another form; any error of [`open`].
    pub fn adapters(&self, base: impl Fn() -> Result<Gguf, CliError>) -> Result<Vec<Adapter>, CliError> {
        let of = |value: &String| {
            let text = |json: &serde_json::Value, key: &str| Some(json.get(key)?.as_str()?.to_owned());
            let given = match serde_json::from_str::<serde_json::Value>(value) {
                Ok(json) => text(&json, "name").zip(text(&json, "path")),
                Err(_) => value.split_once('=').map(|(name, path)| (name.to_owned(), path.to_owned())),
            };
            let given = given.filter(|(name, path)| !name.is_empty() && !path.is_empty());
            let (name, path) = given.ok_or_else(|| format!("--lora-modules {value}: want NAME=FILE"))?;
            Ok(open(Path::new(&path), &base)?.with_scale(0.0).with_alias(name))
        };
        self.lora_modules.iter().map(of).collect()
    }
}

impl AdapterFiles {
    /// True if an adapter was given.
    pub fn is_given(&self) -> bool {
        !self.lora.is_empty() || !self.lora_scaled.is_empty()
    }

    /// Opens the adapters: those of `--lora`, then those of `--lora-scaled`. `base` opens the model's header,
    /// which folders are converted with.
    ///
    /// # Errors
    /// A scale that is not a number; any error of [`open`].
    pub fn adapters(&self, base: impl Fn() -> Result<Gguf, CliError>) -> Result<Vec<Adapter>, CliError> {
        let plain = self.lora.iter().map(|path| Ok((path.as_str(), 1.0)));
        let scaled = self.lora_scaled.iter().map(|value| {
            let wrong = || format!("--lora-scaled {value}: want FILE:SCALE, as in adapter.gguf:0.5");
            let (path, scale) = value.rsplit_once(':').ok_or_else(wrong)?;
            let scale: f32 = scale.parse().map_err(|_| wrong())?;
            if scale.is_finite() { Ok((path, scale)) } else { Err(wrong()) }
        });
        let all = plain.chain(scaled).map(|given: Result<_, String>| {
            let (path, scale) = given?;
            Ok(open(Path::new(path), &base)?.with_scale(scale))
        });
        all.collect()
    }
}

impl LoraArgs {
    /// True if an adapter was given.
    pub fn is_given(&self) -> bool {
        self.files.is_given()
    }

    /// As [`AdapterFiles::adapters`].
    ///
    /// # Errors
    /// As [`AdapterFiles::adapters`].
    pub fn adapters(&self, base: impl Fn() -> Result<Gguf, CliError>) -> Result<Vec<Adapter>, CliError> {
        let mut adapters = self.files.adapters(base)?;
        if self.lora_init_without_apply {
            adapters.iter_mut().for_each(|adapter| adapter.scale = 0.0);
        }
        Ok(adapters)
    }
}

/// Opens an adapter: a GGUF file, or a folder of PEFT, which is converted in memory.
///
/// # Errors
/// A file that is no adapter, and a folder that cannot be converted.
pub fn open(path: &Path, base: impl Fn() -> Result<Gguf, CliError>) -> Result<Adapter, CliError> {
    let name = path.display().to_string();
    let gguf = if path.is_dir() { converted(path, base)? } else { Gguf::open(path)? };
    Ok(Adapter::new(name, gguf)?)
}

#[cfg(feature = "convert")]
fn converted(path: &Path, base: impl Fn() -> Result<Gguf, CliError>) -> Result<Gguf, CliError> {
    let file = crate::convert::peft::adapter(path, &base()?);
    let file = file.map_err(|err| format!("{}: {err}", path.display()))?;
    Ok(Gguf::from_bytes(file)?)
}

#[cfg(not(feature = "convert"))]
fn converted(path: &Path, _: impl Fn() -> Result<Gguf, CliError>) -> Result<Gguf, CliError> {
    let why = "a folder, which this build cannot convert (feature convert): want a GGUF file";
    Err(format!("{}: {why}", path.display()).into())
}
