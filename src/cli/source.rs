//! Which model a subcommand works on: a file, or the one inside the program.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::hub_args::HubArgs;
use super::{CliError, names};
use crate::demo;
use crate::gguf::{Gguf, GgufError, OpenOptions};

/// Where a model comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A GGUF file, or one part of a split one.
    File(PathBuf),
    /// The demo model.
    Demo(Bytes),
}

impl Source {
    /// The file or the model of the hub that was named, which is got first, or else the demo model; then one
    /// line on stderr says so, and that `flag` is how to name one.
    ///
    /// # Errors
    /// Where nothing was named and this build has no demo model: what to give. Whatever is in the way of
    /// getting a model of the hub.
    pub fn choose(file: Option<&Path>, hub: &HubArgs, flag: &str) -> Result<Self, CliError> {
        Self::or_demo(hub.local(file)?, flag)
    }

    /// A file, or else the demo model, as [`Source::choose`].
    ///
    /// # Errors
    /// Where there is no file and this build has no demo model.
    pub fn or_demo(file: Option<PathBuf>, flag: &str) -> Result<Self, CliError> {
        if let Some(path) = file {
            return Ok(Self::File(path));
        }
        let demo = Self::demo(flag)?;
        eprintln!("note: this is {}, the demo model inside sterna; {flag} takes another one", demo::NAME);
        Ok(demo)
    }

    /// The demo model, without a word.
    ///
    /// # Errors
    /// This build has none: `flag` names a file.
    pub fn demo(flag: &str) -> Result<Self, CliError> {
        let none = || {
            format!(
                "no model was given. Name a GGUF file with {flag}, or a model of the Hugging Face hub with \
                 -hf, for example microsoft/bitnet-b1.58-2B-4T-gguf, or make one of random weights to try \
                 things out: sterna synth --preset tiny --type i2_s tiny.gguf"
            )
        };
        Ok(Self::Demo(demo::model().ok_or_else(none)?))
    }

    /// Whether this is the demo model.
    pub fn is_demo(&self) -> bool {
        matches!(self, Self::Demo(_))
    }

    /// Reads the descriptions.
    ///
    /// # Errors
    /// As [`Gguf::open_with`].
    pub fn open(&self, options: OpenOptions) -> Result<Gguf, GgufError> {
        match self {
            Self::File(path) => Gguf::open_with(path, options),
            Self::Demo(bytes) => Gguf::from_bytes_with(bytes.clone(), options),
        }
    }

    /// Reads the descriptions, of a file that ends early too: then a warning says so.
    ///
    /// # Errors
    /// As [`Gguf::open_header`].
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
