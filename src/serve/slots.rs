//! Saving slots to files: the last text of a slot is saved to a file in one folder, restored, or erased.
//!
//! After a sequence has ended, its pages belong to the prefix cache rather than to a slot. A slot only
//! remembers which text it was.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use sterna_engine::{Batch, Error, StateError};

/// Bytes of the file buffer.
const BUFFER: usize = 1 << 20;
/// Maximum length of a file name.
const NAME: usize = 64;

/// Action on a slot.
#[derive(Clone, Debug)]
pub enum Action {
    /// Saves its text to a file of that name.
    Save(Box<Path>),
    /// Restores its text from a file.
    Restore(Box<Path>),
    /// Erases its text.
    Erase,
}

/// An action, and the channel for its result.
pub struct SlotOrder {
    /// The slot.
    pub slot: u32,
    /// The action.
    pub action: Action,
    /// Client that sent the request: it cannot access another client's text.
    pub client: Arc<str>,
    /// Channel of the result.
    pub reply: oneshot::Sender<Result<Done, SlotError>>,
}

/// Result of an action.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Tokens that were saved, restored or erased.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
    /// Time taken.
    pub time: Duration,
}

/// Error of an action.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// The slot has nothing to save.
    #[error("slot {0} has no text of at least one page (64 tokens)")]
    Empty(u32),
    /// The file does not exist.
    #[error("no such file")]
    NoFile,
    /// The file could not be written.
    #[error("the file could not be written: {0}")]
    Write(io::Error),
    /// The engine refused the action.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// The salt of a client's prompts; `more` is chosen by the client.
pub fn salt(client: &str, more: &str) -> Arc<str> {
    Arc::from(format!("{client}\n{more}"))
}

/// True for a name that stays inside its folder, and is valid on every system.
pub fn is_plain_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=NAME).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_plain)
}

/// Last text of a slot.
#[derive(Clone, Debug)]
struct Text {
    tokens: Vec<u32>,
    salt: Arc<str>,
    client: Arc<str>,
}

/// Texts of all slots.
#[derive(Debug)]
pub struct Slots(Vec<Option<Text>>);

impl Slots {
    /// `n` empty slots.
    pub fn new(n: usize) -> Self {
        Self(vec![None; n])
    }

    /// Stores the text of a slot whose sequence has ended.
    pub fn hold(&mut self, slot: u32, tokens: Vec<u32>, salt: &Arc<str>, client: &Arc<str>) {
        if let Some(place) = self.0.get_mut(slot as usize) {
            *place = Some(Text { tokens, salt: Arc::clone(salt), client: Arc::clone(client) });
        }
    }

    /// Performs an action, and sends its result.
    pub fn take(&mut self, order: SlotOrder, batch: &mut Batch) {
        let SlotOrder { slot, action, client, reply } = order;
        let begun = Instant::now();
        let done = match action {
            Action::Save(path) => self.save(slot, &path, &client, batch),
            Action::Restore(path) => self.restore(slot, &path, &client, batch),
            Action::Erase => Ok((self.erase(slot, &client, batch), 0)),
        };
        // The receiver may be gone.
        let _ = reply.send(done.map(|(tokens, bytes)| Done { tokens, bytes, time: begun.elapsed() }));
    }

    fn text(&self, slot: u32, client: &Arc<str>) -> Option<&Text> {
        self.0.get(slot as usize)?.as_ref().filter(|text| text.client == *client)
    }

    fn save(
        &self,
        slot: u32,
        path: &Path,
        client: &Arc<str>,
        batch: &mut Batch,
    ) -> Result<(usize, u64), SlotError> {
        let text = self.text(slot, client).ok_or(SlotError::Empty(slot))?;
        // Requests cannot name this file, because it starts with a dot.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let saved = write(&partial, text, batch).and_then(|saved| {
            if saved.0 == 0 {
                return Err(SlotError::Empty(slot));
            }
            fs::rename(&partial, path).map_err(SlotError::Write)?;
            Ok(saved)
        });
        if saved.is_err() {
            // The partial file is useless, and may not exist.
            let _ = fs::remove_file(&partial);
        }
        saved
    }

    fn restore(
        &mut self,
        slot: u32,
        path: &Path,
        client: &Arc<str>,
        batch: &mut Batch,
    ) -> Result<(usize, u64), SlotError> {
        let file = File::open(path).map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => SlotError::NoFile,
            _ => Error::from(StateError::Io(err)).into(),
        })?;
        let bytes = match file.metadata() {
            Ok(file) if file.is_dir() => return Err(SlotError::NoFile),
            file => file.map_or(0, |file| file.len()),
        };
        let salt = salt(client, "");
        let tokens = batch.restore(&mut BufReader::with_capacity(BUFFER, file), &salt)?;
        let n_tokens = tokens.len();
        self.hold(slot, tokens, &salt, client);
        Ok((n_tokens, bytes))
    }

    fn erase(&mut self, slot: u32, client: &Arc<str>, batch: &mut Batch) -> usize {
        let Some(text) = self.text(slot, client).cloned() else { return 0 };
        batch.forget(&text.tokens, &text.salt);
        self.0[slot as usize] = None;
        text.tokens.len()
    }
}

/// Writes a text. It has reached the disk when this returns.
fn write(path: &Path, text: &Text, batch: &mut Batch) -> Result<(usize, u64), SlotError> {
    // The folder of a key is created on its first save.
    fs::create_dir_all(path.parent().unwrap_or(Path::new(""))).map_err(SlotError::Write)?;
    let file = File::create(path).map_err(SlotError::Write)?;
    let mut file = BufWriter::with_capacity(BUFFER, file);
    let saved = batch.save(&text.tokens, &text.salt, &mut file).map_err(|err| match err {
        Error::State(StateError::Io(err)) => SlotError::Write(err),
        err => err.into(),
    })?;
    file.flush().map_err(SlotError::Write)?;
    file.get_ref().sync_all().map_err(SlotError::Write)?;
    let bytes = file.get_ref().metadata().map_or(0, |file| file.len());
    Ok((saved, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_nowhere_else() {
        assert!(["a", "slot-1.bin", "A_b.C"].iter().all(|name| is_plain_name(name)));
        let long = "a".repeat(NAME + 1);
        for bad in ["", ".", "..", ".a", "a/b", "../a", "a\\b", "a b", "é", "a\0", "C:a", &long] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
    }
}
