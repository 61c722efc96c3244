//! Which model a subcommand works on: a file, or the one inside the program.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::CliError;
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
    /// The file that was named, or else the demo model; then one line on stderr says so, and that `flag` is
    /// how to name one.
    ///
    /// # Errors
    /// Where no file was named and this build has no demo model: what to give.
    pub fn choose(file: Option<&Path>, flag: &str) -> Result<Self, CliError> {
        if let Some(path) = file {
            return Ok(Self::File(path.to_path_buf()));
        }
        let Some(model) = demo::model() else {
            return Err(format!(
                "no model was given. Name a GGUF file with {flag}, for example BitNet b1.58 2B-4T's \
                 ggml-model-i2_s.gguf, or make one of random weights to try things out: \
                 sterna synth --preset tiny --type i2_s tiny.gguf"
            )
            .into());
        };
        eprintln!("note: this is {}, the demo model inside sterna; {flag} takes another one", demo::NAME);
        Ok(Self::Demo(model))
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

    /// The file's path, or the demo model's name.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Demo(_) => demo::NAME.to_owned(),
        }
    }
}
