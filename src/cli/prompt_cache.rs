//! `--prompt-cache`: a file that keeps what a prompt's computation left, so that the next run need not repeat
//! it.

use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::CliError;
use super::out_file::Partial;
use crate::engine::{Engine, Session};

/// Where a session is kept between runs, as in llama.cpp.
#[derive(Args, Clone, Debug, Default)]
pub struct PromptCacheArgs {
    /// File of a computed prompt; the prefix that this prompt shares with it is not computed again
    #[arg(long, value_name = "FILE")]
    pub prompt_cache: Option<PathBuf>,
    /// Save the generated tokens in it too
    #[arg(long, requires = "prompt_cache")]
    pub prompt_cache_all: bool,
    /// Use it without changing it
    #[arg(long, requires = "prompt_cache", conflicts_with = "prompt_cache_all")]
    pub prompt_cache_ro: bool,
}

impl PromptCacheArgs {
    /// A session that has seen the first tokens of `prompt` as far as the file agrees with it, the last
    /// token never. It says so on stderr.
    ///
    /// # Errors
    /// A file that cannot be read, or is of another model, backend or KV cache; with --prompt-cache-ro, one
    /// that is not there.
    pub fn session(&self, engine: &Engine, prompt: &[u32]) -> Result<Session, CliError> {
        let Some(path) = &self.prompt_cache else { return Ok(engine.session()?) };
        let file = match File::open(path) {
            Err(err) if err.kind() == ErrorKind::NotFound && !self.prompt_cache_ro => {
                return Ok(engine.session()?);
            }
            opened => opened.map_err(|err| format!("{}: {err}", path.display()))?,
        };
        let restored = engine.restore(&mut BufReader::with_capacity(1 << 20, file));
        let mut session = restored.map_err(|err| {
            format!(
                "{}: {err}; without the file, or with another name, the prompt is computed from the start",
                path.display()
            )
        })?;
        let same = session.tokens().iter().zip(prompt).take_while(|(a, b)| a == b).count();
        session.cut_back(same.min(prompt.len().saturating_sub(1)));
        eprintln!("prompt cache: {} of {} prompt tokens are reused", session.n_cached(), prompt.len());
        Ok(session)
    }

    /// The file, where a session that had `known` tokens of a prompt of `n` is to be kept when it has seen
    /// the prompt.
    pub fn after_prompt(&self, known: usize, n: usize) -> Option<&Path> {
        self.path().filter(|_| known + 1 < n)
    }

    /// The file, where a session is to be kept when everything was generated.
    pub fn at_end(&self) -> Option<&Path> {
        self.path().filter(|_| self.prompt_cache_all)
    }

    fn path(&self) -> Option<&Path> {
        self.prompt_cache.as_deref().filter(|_| !self.prompt_cache_ro)
    }
}

/// Keeps a session in a file, in place of what it had.
///
/// # Errors
/// Where the file cannot be written; what it had is still there then.
pub fn keep(session: &mut Session, path: &Path) -> Result<(), CliError> {
    let partial = Partial::create(path)?;
    let mut file = BufWriter::with_capacity(1 << 20, partial.file()?);
    let saved = session.save(&mut file).map_err(|err| err.to_string());
    saved
        .and_then(|()| file.flush().map_err(|err| err.to_string()))
        .map_err(|err| format!("{}: {err}", path.display()))?;
    drop(file);
    partial.rename(path, true)
}
