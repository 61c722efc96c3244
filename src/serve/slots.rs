//! Saving slots to files: the last text of a slot is saved to a file in one folder, restored, or erased.
//!
//! After a sequence has ended, its pages belong to the prefix cache rather than to a slot. A slot only
//! remembers which text it was.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use sterna_engine::{Batch, Error, StateError};
use sterna_host::files::{Links, make_private, open_regular, private_folder};
use tempfile::NamedTempFile;

/// Bytes of the file buffer.
const BUFFER: usize = 1 << 20;
/// Maximum length of a file name.
const NAME: usize = 64;

/// Action on a slot.
#[derive(Clone, Debug)]
pub enum Action {
    /// Saves its text to a file.
    Save(SlotPath),
    /// Saves the beginning of a text in the prefix cache, which is in no slot.
    SavePrompt(SlotPath, Vec<u32>),
    /// Restores its text from a file.
    Restore(SlotPath),
    /// Erases its text.
    Erase,
}

/// A file of saved slots.
#[derive(Clone, Debug)]
pub struct SlotPath {
    /// Folder of all saved slots.
    pub folder: PathBuf,
    /// Folder of the client in it; empty if all clients share one.
    pub client: Arc<str>,
    /// Name of the file.
    pub name: String,
    /// Limits of the client's files.
    pub limits: SlotLimits,
}

/// Limits of the saved slots of one API key, or of all clients of a server without keys.
#[derive(Clone, Copy, Debug)]
pub struct SlotLimits {
    /// Maximum number of files.
    pub files: usize,
    /// Maximum bytes of all files.
    pub bytes: u64,
}

impl Default for SlotLimits {
    fn default() -> Self {
        Self { files: 128, bytes: 64 << 30 }
    }
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
    /// A saved slot could not tell images apart.
    #[error("slot {0} has a text with images, which cannot be saved")]
    Images(u32),
    /// The file does not exist.
    #[error("no such file")]
    NoFile,
    /// The path is a folder, a symlink, a pipe or a device.
    #[error("it is not a regular file")]
    NotAFile,
    /// The client has as many saved slots as it may have.
    #[error(
        "{found} slots are saved, and {most} is the limit: save under the name of one of them; the server's \
         slot-save-max sets the limit"
    )]
    TooMany {
        /// Number of files.
        found: usize,
        /// The limit.
        most: usize,
    },
    /// The saved slots of the client would be larger than they may be.
    #[error(
        "the saved slots would have {bytes} bytes, and {most} is the limit: save a shorter text, or under \
         the name of a large one; the server's slot-save-space sets the limit"
    )]
    TooLarge {
        /// Bytes of all files, with the new one.
        bytes: u64,
        /// The limit.
        most: u64,
    },
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

/// The salt of the pages of a client's prompts with the adapters that the server was started with.
fn page_salt(client: &str, batch: &Batch) -> Arc<str> {
    batch.engine().salt_with(&batch.engine().default_adapters(), &salt(client, ""))
}

/// True for a name that stays inside its folder, and is valid on every system.
pub fn is_plain_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=NAME).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_plain)
}

/// Last text of a slot.
#[derive(Clone, Debug)]
struct Text {
    /// Images are numbers that are no tokens.
    tokens: Vec<u32>,
    salt: Arc<str>,
    client: Arc<str>,
    has_images: bool,
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
    pub fn hold(
        &mut self,
        slot: u32,
        tokens: Vec<u32>,
        salt: &Arc<str>,
        client: &Arc<str>,
        has_images: bool,
    ) {
        if let Some(place) = self.0.get_mut(slot as usize) {
            let (salt, client) = (Arc::clone(salt), Arc::clone(client));
            *place = Some(Text { tokens, salt, client, has_images });
        }
    }

    /// Performs an action, and sends its result.
    pub fn take(&mut self, order: SlotOrder, batch: &mut Batch) {
        let SlotOrder { slot, action, client, reply } = order;
        let begun = Instant::now();
        let done = match action {
            Action::Save(path) => {
                let text = self.text(slot, &client).ok_or(SlotError::Empty(slot));
                text.and_then(|text| save(slot, text, &path, batch))
            }
            Action::SavePrompt(path, tokens) => {
                let salt = page_salt(&client, batch);
                save(slot, &Text { tokens, salt, client, has_images: false }, &path, batch)
            }
            Action::Restore(path) => self.restore(slot, &path, &client, batch),
            Action::Erase => Ok((self.erase(slot, &client, batch), 0)),
        };
        // The receiver may be gone.
        let _ = reply.send(done.map(|(tokens, bytes)| Done { tokens, bytes, time: begun.elapsed() }));
    }

    fn text(&self, slot: u32, client: &Arc<str>) -> Option<&Text> {
        self.0.get(slot as usize)?.as_ref().filter(|text| text.client == *client)
    }

    fn restore(
        &mut self,
        slot: u32,
        path: &SlotPath,
        client: &Arc<str>,
        batch: &mut Batch,
    ) -> Result<(usize, u64), SlotError> {
        let path = path.folder.join(&*path.client).join(&path.name);
        let file = open_regular(&path, File::options().read(true), Links::Refuse);
        let file = file.map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => SlotError::NoFile,
            io::ErrorKind::InvalidInput => SlotError::NotAFile,
            _ => Error::from(StateError::Io(err)).into(),
        })?;
        let bytes = file.metadata().map_or(0, |file| file.len());
        let salt = page_salt(client, batch);
        let tokens = batch.restore(&mut BufReader::with_capacity(BUFFER, file), &salt)?;
        let n_tokens = tokens.len();
        self.hold(slot, tokens, &salt, client, false);
        Ok((n_tokens, bytes))
    }

    fn erase(&mut self, slot: u32, client: &Arc<str>, batch: &mut Batch) -> usize {
        let Some(text) = self.text(slot, client).cloned() else { return 0 };
        batch.forget(&text.tokens, &text.salt);
        self.0[slot as usize] = None;
        text.tokens.len()
    }
}

/// Saves a text to a file. Returns its tokens in whole pages, and the bytes of the file.
fn save(slot: u32, text: &Text, path: &SlotPath, batch: &mut Batch) -> Result<(usize, u64), SlotError> {
    if text.has_images {
        return Err(SlotError::Images(slot));
    }
    let folder = path.own_folder().map_err(SlotError::Write)?;
    let others = path.others(&folder)?;
    // Requests cannot name this file, because it starts with a dot. It is removed unless it is renamed.
    let prefix = format!(".{}.", path.name);
    let partial = tempfile::Builder::new().prefix(&prefix).suffix(".partial").tempfile_in(&folder);
    let partial = partial.map_err(SlotError::Write)?;
    let (tokens, bytes) = write(&partial, text, batch)?;
    if tokens == 0 {
        return Err(SlotError::Empty(slot));
    }
    if others + bytes > path.limits.bytes {
        return Err(SlotError::TooLarge { bytes: others + bytes, most: path.limits.bytes });
    }
    partial.persist(folder.join(&path.name)).map_err(|err| SlotError::Write(err.error))?;
    Ok((tokens, bytes))
}

impl SlotPath {
    /// The client's folder, which is created on its first save. A folder that all clients share is the
    /// operator's, and is left as it is.
    fn own_folder(&self) -> io::Result<PathBuf> {
        let folder = self.folder.join(&*self.client);
        if !self.client.is_empty() {
            private_folder(&folder, Links::Refuse)?;
        }
        Ok(folder)
    }

    /// Bytes of the other saved slots in the client's folder.
    fn others(&self, folder: &Path) -> Result<u64, SlotError> {
        let (mut found, mut bytes, mut is_new) = (0, 0, true);
        for entry in fs::read_dir(folder).map_err(SlotError::Write)? {
            let entry = entry.map_err(SlotError::Write)?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| is_plain_name(name)) else { continue };
            // A file may have been removed meanwhile.
            let Some(file) = entry.metadata().ok().filter(fs::Metadata::is_file) else { continue };
            found += 1;
            match name == self.name {
                true => is_new = false,
                false => bytes += file.len(),
            }
        }
        let most = self.limits.files;
        if is_new && found >= most { Err(SlotError::TooMany { found, most }) } else { Ok(bytes) }
    }
}

/// Writes a text. It has reached the disk when this returns.
fn write(file: &NamedTempFile, text: &Text, batch: &mut Batch) -> Result<(usize, u64), SlotError> {
    let file = file.as_file();
    make_private(file).map_err(SlotError::Write)?;
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let saved = batch.save(&text.tokens, &text.salt, &mut out).map_err(|err| match err {
        Error::State(StateError::Io(err)) => SlotError::Write(err),
        err => err.into(),
    })?;
    out.flush().map_err(SlotError::Write)?;
    file.sync_all().map_err(SlotError::Write)?;
    let bytes = file.metadata().map_or(0, |file| file.len());
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
