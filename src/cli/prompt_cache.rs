//! `--prompt-cache`: saves the KV cache of a prompt to a file, so that the next run need not compute it
//! again.

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use sterna_host::files::{Links, open_regular};

use super::CliError;
use super::names::with_flags;
use super::out_file::Partial;
use crate::engine::{Engine, Session};

/// Prompt cache file, as in llama.cpp.
#[derive(Args, Clone, Debug, Default)]
pub struct PromptCacheArgs {
    /// File with the KV cache of a prompt; the prefix that this prompt shares with it is not computed again
    #[arg(long, value_name = "FILE")]
    pub prompt_cache: Option<PathBuf>,
    /// Also save the generated tokens in it
    #[arg(long, requires = "prompt_cache")]
    pub prompt_cache_all: bool,
    /// Use it without changing it
    #[arg(long, requires = "prompt_cache", conflicts_with = "prompt_cache_all")]
    pub prompt_cache_ro: bool,
}

impl PromptCacheArgs {
    /// A session that starts with the cached tokens that `prompt` begins with, but never its last token.
    /// Prints their number to stderr.
    ///
    /// # Errors
    /// A file that cannot be read, or is from another model, backend or KV cache type; with
    /// --prompt-cache-ro, a missing file.
    pub fn session(&self, engine: &Engine, prompt: &[u32]) -> Result<Session, CliError> {
        let Some(path) = &self.prompt_cache else { return Ok(engine.session()?) };
        let file = match open_regular(path, File::options().read(true), Links::Follow) {
            Err(err) if err.kind() == ErrorKind::NotFound && !self.prompt_cache_ro => {
                return Ok(engine.session()?);
            }
            opened => opened.map_err(|err| format!("{}: {err}", path.display()))?,
        };
        let restored = engine.restore(&mut BufReader::with_capacity(1 << 20, file));
        let mut session = restored.map_err(|err| {
            format!(
                "{}: {}; remove the file or use another name to compute the prompt from the start",
                path.display(),
                with_flags(&err)
            )
        })?;
        let same = session.tokens().iter().zip(prompt).take_while(|(a, b)| a == b).count();
        session.cut_back(same.min(prompt.len().saturating_sub(1)));
        eprintln!("prompt cache: reused {} of {} prompt tokens", session.n_cached(), prompt.len());
        Ok(session)
    }

    /// The file to save to after prefill, if a prompt of `n` tokens had more than one token besides the
    /// `known` ones.
    pub fn after_prompt(&self, known: usize, n: usize) -> Option<&Path> {
        self.path().filter(|_| known + 1 < n)
    }

    /// The file to save to after generation, if generated tokens are saved.
    pub fn at_end(&self) -> Option<&Path> {
        self.path().filter(|_| self.prompt_cache_all)
    }

    fn path(&self) -> Option<&Path> {
        self.prompt_cache.as_deref().filter(|_| !self.prompt_cache_ro)
    }
}

/// Saves a session to a file, replacing its content.
///
/// # Errors
/// If the file cannot be written; its old content is kept then.
pub fn keep(session: &mut Session, path: &Path) -> Result<(), CliError> {
    let partial = Partial::private(path)?;
    let mut file = BufWriter::with_capacity(1 << 20, partial.file()?);
    let saved = session.save(&mut file).map_err(|err| err.to_string());
    saved
        .and_then(|()| file.flush().map_err(|err| err.to_string()))
        .map_err(|err| format!("{}: {err}", path.display()))?;
    drop(file);
    partial.rename(path, true)
}
