//! Models from the Hugging Face hub, in the cache shared with huggingface_hub and llama.cpp.
//!
//! [`Name`] is a model's name as a user writes it. [`Hub::find`] resolves it to a commit and files,
//! [`Hub::fetch`] downloads those that are not in the cache, [`Hub::cached`] uses no network, and
//! [`Hub::read_range`] reads a part of a file without storing it, as [`WebFile`] does for any URL. [`Cached`]
//! lists and removes cached files.
//!
//! A file gets its final name only if its size and hash match the repository's list. This crate knows nothing
//! about models, and prints nothing: it reports to a [`Listener`]. Start at [`Hub`]; `transfer.rs` has the
//! downloads, `http.rs` the handling of the token.
#![forbid(unsafe_code)]

mod api;
mod cache;
mod error;
mod http;
mod names;
mod options;
mod public_files;
mod transfer;
mod web_file;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use api::RemoteFile;
pub use cache::{Cached, CachedFile, repositories};
pub use error::HubError;
pub use http::Stopper;
pub use names::{Choice, DEFAULTS, Name, Repo, is_gguf, is_mmproj, is_prefixed};
pub use options::{HubOptions, Token};
pub use public_files::PublicFiles;
pub use transfer::{Event, Listener};
pub use web_file::WebFile;

use http::{About, Client, Fault};
use transfer::{Transfer, address};

/// Maximum number of concurrent downloads.
const AT_A_TIME: usize = 4;

/// A hub and its cache.
#[derive(Debug)]
pub struct Hub {
    client: Client,
    options: HubOptions,
}

/// Files of a name, as currently listed by the hub.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The requested name.
    pub name: Name,
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// The files; of a split model, all parts in order.
    pub files: Vec<RemoteFile>,
    /// The file with the model's vision tower, which is downloaded with it.
    pub mmproj: Option<RemoteFile>,
}

impl Listing {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.all().map(|file| file.size).sum()
    }

    /// All files that are downloaded.
    pub fn all(&self) -> impl Iterator<Item = &RemoteFile> {
        self.files.iter().chain(&self.mmproj)
    }
}

/// Files that are in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// The commit.
    pub commit: String,
    /// The folder of the commit, with the layout of the repository.
    pub folder: PathBuf,
    /// Paths of the files, in the order of [`Listing::files`]. There is at least one.
    pub files: Vec<PathBuf>,
}

impl Hub {
    /// Creates a hub from its options.
    ///
    /// # Errors
    /// [`HubError::Options`].
    pub fn new(options: HubOptions) -> Result<Self, HubError> {
        Ok(Self { client: Client::new(&options)?, options })
    }

    /// A handle that stops the hub from another thread.
    pub fn stopper(&self) -> Stopper {
        self.client.stopper()
    }

    /// The folder of the cache.
    pub fn cache(&self) -> &Path {
        &self.options.cache
    }

    /// True if it uses no network.
    pub fn is_offline(&self) -> bool {
        self.options.offline
    }

    /// The cached part of a repository.
    pub fn repository(&self, repo: &Repo) -> Cached {
        Cached::new(&self.options.cache, repo)
    }

    /// Asks the hub for the commit and files of a name.
    ///
    /// # Errors
    /// [`HubError::Offline`]; a repository, revision or file that is missing or not accessible; no network.
    pub fn find(&self, name: &Name) -> Result<Listing, HubError> {
        if self.options.offline {
            return Err(self.not_cached(name));
        }
        let commit = api::commit(&self.client, &name.repo, name.revision())?;
        let listed = api::files(&self.client, &name.repo, &commit)?;
        let paths: Vec<&str> = listed.iter().map(|file| file.path.as_str()).collect();
        let chosen = names::choose(name, &paths)?;
        let file = |path: &str| listed.iter().find(|file| file.path == path).cloned();
        let mmproj = match name.choice {
            Choice::Checkpoint => None,
            _ => chosen.first().and_then(|model| names::mmproj(model, &paths)).and_then(file),
        };
        let files = chosen.into_iter().filter_map(file).collect();
        Ok(Listing { name: name.clone(), commit, files, mmproj })
    }

    /// Files of a name from the cache only: the revision is resolved as in the last request, and the files
    /// are chosen from the cached ones.
    ///
    /// # Errors
    /// [`HubError::NotCached`], or [`HubError::Offline`] if the network may not be used;
    /// [`HubError::Shards`]; [`HubError::Cache`].
    pub fn cached(&self, name: &Name) -> Result<Local, HubError> {
        let cached = self.repository(&name.repo);
        let commit = cached.commit(name.revision()).ok_or_else(|| self.not_cached(name))?;
        let files = cached.files(&commit)?;
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let chosen = names::choose(name, &paths).map_err(|err| match err {
            HubError::NoFile { .. } | HubError::NoTag { .. } | HubError::NoGguf { .. } => {
                self.not_cached(name)
            }
            HubError::NoCheckpoint { .. } => self.not_cached(name),
            err => err,
        })?;
        let folder = cached.snapshot(&commit);
        let files = chosen.iter().map(|path| folder.join(path)).collect();
        Ok(Local { commit, folder, files })
    }

    fn not_cached(&self, name: &Name) -> HubError {
        let (name, cache) = (name.to_string(), self.options.cache.clone());
        if self.options.offline {
            HubError::Offline { name, cache }
        } else {
            HubError::NotCached { name, cache }
        }
    }

    /// Bytes still to download.
    pub fn missing(&self, found: &Listing) -> u64 {
        self.lacking(found).iter().map(|(_, bytes)| bytes).sum()
    }

    /// Missing files, each with the bytes still to download.
    fn lacking<'a>(&self, found: &'a Listing) -> Vec<(&'a RemoteFile, u64)> {
        let cached = self.repository(&found.name.repo);
        let lacking = found.all().filter(|file| !cached.has(&found.commit, file));
        let to_come = |file: &RemoteFile| match cache::is_whole(&cached.blob(file), file.size) {
            true => 0,
            // A part that is too long is downloaded from the start.
            false => match std::fs::metadata(cached.part(file)).map_or(0, |part| part.len()) {
                done if done <= file.size => file.size - done,
                _ => file.size,
            },
        };
        lacking.map(|file| (file, to_come(file))).collect()
    }

    /// Downloads the files that are not in the cache, four at a time, and then stores the commit of the
    /// revision.
    ///
    /// # Errors
    /// The first error of a file. The downloaded bytes are kept, and the next call resumes there.
    pub fn fetch(&self, found: &Listing, tell: Listener<'_>) -> Result<Local, HubError> {
        let cached = self.repository(&found.name.repo);
        let lacking = self.lacking(found);
        if !lacking.is_empty() {
            self.check_space(&cached, &lacking)?;
        }
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let first_error = Mutex::new(None);
        let transfer =
            Transfer { client: &self.client, cached: &cached, commit: &found.commit, tell, failed: &failed };
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME.min(lacking.len()) {
                scope.spawn(|| {
                    while let Some((file, _)) = lacking.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(err) = transfer.get(file) {
                            let mut first = first_error.lock().unwrap_or_else(PoisonError::into_inner);
                            first.get_or_insert(err);
                            failed.store(true, Ordering::Relaxed);
                            return;
                        }
                    }
                });
            }
        });
        if let Some(err) = first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(err);
        }
        let noted = cached.set_ref(found.name.revision(), &found.commit);
        // A read-only cache is fine if nothing was missing.
        noted.or_else(|err| if lacking.is_empty() { Ok(()) } else { Err(err) })?;
        let folder = cached.snapshot(&found.commit);
        let files = found.files.iter().map(|file| folder.join(&file.path)).collect();
        Ok(Local { commit: found.commit.clone(), folder, files })
    }

    /// Checks that the disk has space for the download.
    fn check_space(&self, cached: &Cached, lacking: &[(&RemoteFile, u64)]) -> Result<(), HubError> {
        let blobs = cached.blobs();
        std::fs::create_dir_all(&blobs).map_err(HubError::cache(&blobs))?;
        let needed = lacking.iter().map(|(_, bytes)| bytes).sum();
        let free = fs4::available_space(&blobs).map_err(HubError::cache(&blobs))?;
        let file = lacking.iter().max_by_key(|(_, bytes)| *bytes).map(|(file, _)| file.path.clone());
        match needed > free {
            true => Err(HubError::Full { file: file.unwrap_or_default(), folder: blobs, needed, free }),
            false => Ok(()),
        }
    }

    /// Reads bytes of a remote file without storing them: fewer than requested if the file ends earlier, see
    /// [`RemoteFile::size`].
    ///
    /// # Errors
    /// No access; no network; an answer with other bytes.
    pub fn read_range(
        &self,
        found: &Listing,
        file: &RemoteFile,
        range: Range<u64>,
    ) -> Result<Vec<u8>, HubError> {
        let range = range.start..range.end.min(file.size);
        let mut tries = self.client.tries();
        while !range.is_empty() {
            match self.read_once(found, file, &range) {
                Ok(bytes) => return Ok(bytes),
                Err(fault) => tries.again(fault, |_, _| {})?,
            }
        }
        Ok(Vec::new())
    }

    fn read_once(&self, found: &Listing, file: &RemoteFile, range: &Range<u64>) -> Result<Vec<u8>, Fault> {
        let repo = found.name.repo.to_string();
        let url = address(&self.client, &repo, &found.commit, &file.path);
        let asked = format!("bytes={}-{}", range.start, range.end - 1);
        let about = About { repo: &repo, revision: &found.commit, file: Some(&file.path) };
        self.client.check(self.client.get(&url, Some(&asked))?, about)?.bytes(&self.client, range)
    }
}
