//! The model of a subcommand: a file, or the built-in demo model.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::hub_args::HubArgs;
use super::{CliError, names};
use crate::demo;
use crate::gguf::{Gguf, GgufError, OpenOptions};

/// Source of a model.
#[derive(Clone, Debug)]
pub enum Source {
    /// A GGUF file, or any part of a split one.
    File(PathBuf),
    /// The demo model.
    Demo(Bytes),
}

impl Source {
    /// The named file, or the named hub model, which is downloaded first, or else the demo model, with a note
    /// on stderr that `flag` selects another one.
    ///
    /// # Errors
    /// If no model was named and this build has no demo model; any error of a download.
    pub fn choose(file: Option<&Path>, hub: &HubArgs, flag: &str) -> Result<Self, CliError> {
        Self::or_demo(hub.local(file)?, flag)
    }

    /// A file, or else the demo model, as in [`Source::choose`].
    ///
    /// # Errors
    /// If no file was named and this build has no demo model.
    pub fn or_demo(file: Option<PathBuf>, flag: &str) -> Result<Self, CliError> {
        if let Some(path) = file {
            return Ok(Self::File(path));
        }
        let demo = Self::demo(flag)?;
        eprintln!("note: using {}, the built-in demo model; {flag} selects another one", demo::NAME);
        Ok(demo)
    }

    /// The demo model, without a note.
    ///
    /// # Errors
    /// If this build has none; the message says how to name a file with `flag`.
    pub fn demo(flag: &str) -> Result<Self, CliError> {
        let none = || {
            format!(
                "no model was given. Pass a GGUF file with {flag}, or a model of the Hugging Face hub with \
                 -hf, for example microsoft/bitnet-b1.58-2B-4T-gguf, or create one with random weights for \
                 a first try: sterna synth --preset tiny --type i2_s tiny.gguf"
            )
        };
        Ok(Self::Demo(demo::model().ok_or_else(none)?))
    }

    /// True if this is the demo model.
    pub fn is_demo(&self) -> bool {
        matches!(self, Self::Demo(_))
    }

    /// Opens the model with its weights.
    ///
    /// # Errors
    /// Same as [`Gguf::open_with`].
    pub fn open(&self, options: OpenOptions) -> Result<Gguf, GgufError> {
        match self {
            Self::File(path) => Gguf::open_with(path, options),
            Self::Demo(bytes) => Gguf::from_bytes_with(bytes.clone(), options),
        }
    }

    /// Opens the model's header. A truncated file is accepted with a warning.
    ///
    /// # Errors
    /// Same as [`Gguf::open_header`].
    pub fn open_header(&self, options: OpenOptions) -> Result<Gguf, GgufError> {
        let gguf = match self {
            Self::File(path) => Gguf::open_header(path, options)?,
            Self::Demo(_) => self.open(options)?,
        };
        gguf.incomplete().iter().for_each(|error| names::note("warning", error));
        Ok(gguf)
    }

    /// The file's path, or the demo model's name.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Demo(_) => demo::NAME.to_owned(),
        }
    }
}
