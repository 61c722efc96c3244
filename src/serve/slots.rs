//! Slots outside the process: what a slot last held is saved in a file of one folder, taken up again, or
//! forgotten.
//!
//! Pages belong to no slot once its sequence has ended: the prefix cache has them. A slot is the memory of
//! which text it was.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use sterna_engine::{Batch, Error, StateError};

/// Bytes of the buffer of a file.
const BUFFER: usize = 1 << 20;
/// Longest name of a file.
const NAME: usize = 64;

/// Action on a slot.
#[derive(Clone, Debug)]
pub enum Action {
    /// Its text is saved in a file of that name.
    Save(Box<Path>),
    /// The text of a file becomes its own.
    Restore(Box<Path>),
    /// Its text is forgotten.
    Erase,
}

/// An action, and where its end is told.
pub struct SlotOrder {
    /// The slot.
    pub slot: u32,
    /// The action.
    pub action: Action,
    /// Client that asks: it does not see another client's text.
    pub client: Arc<str>,
    /// Channel of the result.
    pub reply: oneshot::Sender<Result<Done, SlotError>>,
}

/// Result of an action.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Tokens that were saved, taken up or forgotten.
    pub tokens: usize,
    /// Bytes of the file.
    pub bytes: u64,
    /// Time that it took.
    pub time: Duration,
}

/// Error of an action.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// The slot has nothing to save.
    #[error("slot {0} holds no text of a full page of 64 tokens")]
    Empty(u32),
    /// The file is not there.
    #[error("there is no file of that name")]
    NoFile,
    /// The disk.
    #[error("the file could not be written: {0}")]
    Write(io::Error),
    /// The engine refuses it.
    #[error(transparent)]
    Engine(#[from] Error),
}

/// The salt of a client's prompts, `more` of its own included.
pub fn salt(client: &str, more: &str) -> Arc<str> {
    Arc::from(format!("{client}\n{more}"))
}

/// True for a name that leads out of no folder, and that is written alike everywhere.
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

/// The memory of all slots.
#[derive(Debug)]
pub struct Slots(Vec<Option<Text>>);

impl Slots {
    /// `n` slots that have held nothing.
    pub fn new(n: usize) -> Self {
        Self(vec![None; n])
    }

    /// A slot's sequence has ended.
    pub fn hold(&mut self, slot: u32, tokens: Vec<u32>, salt: &Arc<str>, client: &Arc<str>) {
        if let Some(place) = self.0.get_mut(slot as usize) {
            *place = Some(Text { tokens, salt: Arc::clone(salt), client: Arc::clone(client) });
        }
    }

    /// Does what is ordered, and tells its end.
    pub fn take(&mut self, order: SlotOrder, batch: &mut Batch) {
        let SlotOrder { slot, action, client, reply } = order;
        let begun = Instant::now();
        let done = match action {
            Action::Save(path) => self.save(slot, &path, &client, batch),
            Action::Restore(path) => self.restore(slot, &path, &client, batch),
            Action::Erase => Ok((self.erase(slot, &client, batch), 0)),
        };
        // Who asked may have left.
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
        // A name that no request can give: it begins with a dot.
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
            // What could not be written is of no use, and may not be there.
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

/// Writes a text. It is on the disk when this returns.
fn write(path: &Path, text: &Text, batch: &mut Batch) -> Result<(usize, u64), SlotError> {
    // That of a key is made when it saves for the first time.
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
