//! LoRA adapters that clients load and unload while the server runs: files of one folder.
//!
//! The model is loaded once more with the changed list of adapters (`engine_thread::reload`), and then takes
//! the place of the one before.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::model::LoadError;
use sterna_engine::Adapter;

/// Opens the file of an adapter, or its folder.
type Open = dyn Fn(&Path) -> Result<Adapter, LoadError> + Send + Sync;

/// The folder of adapters that clients may load, and the adapters that requests may name. Clones share both.
#[derive(Clone)]
pub struct AdapterFolder {
    folder: PathBuf,
    open: Arc<Open>,
    named: Arc<Mutex<Vec<Adapter>>>,
    /// Held by the request that changes the list.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl AdapterFolder {
    /// A folder, and the adapters that requests may name from the start, each with an alias. `open` opens a
    /// file or a folder in it.
    ///
    /// # Errors
    /// The folder does not exist.
    pub fn new(
        folder: &Path,
        named: Vec<Adapter>,
        open: impl Fn(&Path) -> Result<Adapter, LoadError> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let folder = folder.canonicalize()?;
        let named = Arc::new(Mutex::new(named));
        Ok(Self { folder, open: Arc::new(open), named, turn: Arc::default() })
    }

    /// The adapters that requests may name, which the model is loaded with.
    pub fn named(&self) -> Vec<Adapter> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the adapters that requests may name.
    pub(crate) fn set_named(&self, named: Vec<Adapter>) {
        *self.named.lock().unwrap_or_else(PoisonError::into_inner) = named;
    }

    /// Waits until no other request changes the list.
    pub(crate) async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Opens the adapter at a path in the folder, which may also be absolute; `None` if there is nothing in
    /// the folder at that path. Errors do not name the folder.
    pub(crate) fn open(&self, path: &str) -> Option<Result<Adapter, String>> {
        // Links are followed first, so that none leads out of the folder.
        let file = self.folder.join(path).canonicalize().ok()?;
        if file == self.folder || !file.starts_with(&self.folder) {
            return None;
        }
        let named = |mut adapter: Adapter| {
            path.clone_into(&mut adapter.name);
            adapter
        };
        let folder = format!("{}{}", self.folder.display(), std::path::MAIN_SEPARATOR);
        Some((self.open)(&file).map(named).map_err(|err| err.to_string().replace(&folder, "")))
    }
}

impl fmt::Debug for AdapterFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterFolder").field("folder", &self.folder).finish_non_exhaustive()
    }
}
