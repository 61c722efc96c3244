//! The cache shared with huggingface_hub and llama.cpp.
//!
//! `models--USER--NAME/` has `blobs/ETAG`, the contents; `snapshots/COMMIT/PATH`, symlinks to them; and
//! `refs/REVISION`, the commit of a branch or tag. Lock files are next to the repositories,
//! `.locks/models--USER--NAME/ETAG.lock`, and are locked with `flock`. A partial download is
//! `blobs/ETAG.sterna-part`: its name identifies the content, and its length is the progress.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::api::RemoteFile;
use super::error::HubError;
use super::names::{Repo, check_path, is_commit, is_hex};
use sterna_host::files::{Links, open_regular};

/// Suffix of partial blobs.
const PART: &str = ".sterna-part";

/// One repository in the cache.
#[derive(Clone, Debug)]
pub struct Cached {
    /// The repository.
    pub repo: Repo,
    cache: PathBuf,
}

/// A file of a repository that is in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedFile {
    /// The commit of the file.
    pub commit: String,
    /// Path in the repository.
    pub path: String,
    /// Path in the cache.
    pub at: PathBuf,
    /// Path of the content, with links followed; the same as `at` if the cache has no symlinks.
    pub blob: PathBuf,
    /// Bytes.
    pub size: u64,
}

/// All model repositories in the cache, by name.
///
/// # Errors
/// [`HubError::Cache`] for a folder that cannot be read. A missing folder is an empty cache.
pub fn repositories(cache: &Path) -> Result<Vec<Cached>, HubError> {
    let repo = |name: &str| Some(Cached { repo: Repo::of_folder(name)?, cache: cache.to_owned() });
    let mut found: Vec<Cached> = entries(cache)?.iter().filter_map(|name| repo(name)).collect();
    found.sort_by(|a, b| a.repo.cmp(&b.repo));
    Ok(found)
}

/// Names in a folder; empty if the folder does not exist.
fn entries(folder: &Path) -> Result<Vec<String>, HubError> {
    let entries = match fs::read_dir(folder) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(HubError::cache(folder))?,
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// Hash function of a content's name.
pub(super) enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    /// Hasher for a content of `size` bytes with the name `etag`.
    pub(super) fn new(etag: &str, size: u64) -> Self {
        match etag.len() {
            64 => Self::Sha256(Sha256::new()),
            _ => Self::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    pub(super) fn finish(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(hash) => hex(&hash.finalize()),
            Self::Git(hash) => hex(&hash.finalize()),
        }
    }
}

impl Cached {
    /// A repository, cached or not.
    pub fn new(cache: &Path, repo: &Repo) -> Self {
        Self { repo: repo.clone(), cache: cache.to_owned() }
    }

    /// Folder of the repository in the cache.
    pub fn folder(&self) -> PathBuf {
        self.cache.join(self.repo.folder())
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.folder().join("blobs")
    }

    /// Folder of one commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.blobs().join(&file.etag)
    }

    pub(super) fn part(&self, file: &RemoteFile) -> PathBuf {
        self.blobs().join(format!("{}{PART}", file.etag))
    }

    pub(super) fn pointer(&self, commit: &str, path: &str) -> PathBuf {
        self.snapshot(commit).join(path)
    }

    /// True if the file of this commit exists with all its bytes.
    pub(super) fn has(&self, commit: &str, file: &RemoteFile) -> bool {
        is_whole(&self.pointer(commit, &file.path), file.size)
    }

    /// The commit of a revision when the hub was last asked, or the revision itself if it is a commit.
    pub fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return self.snapshot(revision).is_dir().then(|| revision.to_owned());
        }
        let text = fs::read_to_string(self.folder().join("refs").join(check_path(revision).ok()?)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Branches and tags, each with its commit.
    ///
    /// # Errors
    /// [`HubError::Cache`].
    pub fn revisions(&self) -> Result<Vec<(String, String)>, HubError> {
        let root = self.folder().join("refs");
        let mut found = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for name in entries(&root.join(&folder))? {
                let revision = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                let is_folder = fs::symlink_metadata(root.join(&revision)).is_ok_and(|entry| entry.is_dir());
                match self.commit(&revision) {
                    _ if is_folder => folders.push(revision),
                    Some(commit) => found.push((revision, commit)),
                    None => {}
                }
            }
        }
        Ok(found)
    }

    /// Commits that have files.
    ///
    /// # Errors
    /// [`HubError::Cache`].
    pub fn commits(&self) -> Result<Vec<String>, HubError> {
        let mut commits = entries(&self.folder().join("snapshots"))?;
        commits.retain(|commit| is_commit(commit));
        Ok(commits)
    }

    /// Files of a commit that exist.
    ///
    /// # Errors
    /// [`HubError::Cache`].
    pub fn files(&self, commit: &str) -> Result<Vec<CachedFile>, HubError> {
        let mut files = Vec::new();
        for (path, at) in self.entries_of(commit)? {
            match fs::metadata(&at) {
                Ok(file) if file.is_file() && !path.ends_with(".sterna-link") => {
                    let blob = fs::canonicalize(&at).map_err(HubError::cache(&at))?;
                    let (commit, size) = (commit.to_owned(), file.len());
                    files.push(CachedFile { commit, path, blob, at, size });
                }
                // The link's target was removed, or is not a file.
                _ => {}
            }
        }
        Ok(files)
    }

    /// Dangling links of a commit, whose content was removed. Their size is 0.
    ///
    /// # Errors
    /// [`HubError::Cache`].
    pub fn dangling(&self, commit: &str) -> Result<Vec<CachedFile>, HubError> {
        let mut files = self.entries_of(commit)?;
        files.retain(|(_, at)| at.is_symlink() && !at.exists());
        let file = |(path, at): (String, PathBuf)| CachedFile {
            commit: commit.to_owned(),
            path,
            blob: at.clone(),
            at,
            size: 0,
        };
        Ok(files.into_iter().map(file).collect())
    }

    /// Everything in the folders of a commit, with its relative path, sorted by that path.
    fn entries_of(&self, commit: &str) -> Result<Vec<(String, PathBuf)>, HubError> {
        let root = self.snapshot(commit);
        let mut found = Vec::new();
        let mut folders = vec![String::new()];
        while let Some(folder) = folders.pop() {
            for name in entries(&root.join(&folder))? {
                let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                let at = root.join(&path);
                // Links to folders do not belong to the cache, and could form a cycle.
                match fs::symlink_metadata(&at).is_ok_and(|entry| entry.is_dir()) {
                    true => folders.push(path),
                    false => found.push((path, at)),
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Partial downloads, with their bytes so far.
    ///
    /// # Errors
    /// [`HubError::Cache`].
    pub fn parts(&self) -> Result<Vec<(PathBuf, u64)>, HubError> {
        let blobs = self.blobs();
        let parts = entries(&blobs)?.into_iter().filter(|name| name.ends_with(PART));
        let parts = parts.map(|name| blobs.join(name));
        Ok(parts
            .filter_map(|path| Some((fs::metadata(&path).ok()?.len(), path)))
            .map(|(n, path)| (path, n))
            .collect())
    }

    /// Creates the file of a commit from an existing blob: a relative symlink, created atomically. If links
    /// are not supported, the blob is moved.
    pub(super) fn link(&self, commit: &str, file: &RemoteFile) -> Result<(), HubError> {
        let (blob, pointer) = (self.blob(file), self.pointer(commit, &file.path));
        let folder = pointer.parent().unwrap_or(&pointer);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        let up = "../".repeat(2 + file.path.matches('/').count());
        let aside = folder.join(format!(".{}.{}.sterna-link", &file.etag[..16], std::process::id()));
        // Left by a killed process with the same process id.
        let _ = fs::remove_file(&aside);
        let linked = match symlink(&format!("{up}blobs/{}", file.etag), &aside) {
            Ok(()) => fs::rename(&aside, &pointer),
            Err(_) => fs::rename(&blob, &pointer),
        };
        linked.map_err(HubError::cache(&pointer))
    }

    /// Stores the commit of a branch or tag.
    pub(super) fn set_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder().join("refs").join(check_path(revision)?);
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        let mut aside = tempfile::Builder::new();
        #[cfg(unix)]
        aside.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let aside = aside.prefix(".").suffix(".sterna-ref").tempfile_in(folder);
        let mut aside = aside.map_err(HubError::cache(&path))?;
        aside.write_all(commit.as_bytes()).map_err(HubError::cache(&path))?;
        aside.persist(&path).map_err(|err| HubError::cache(&path)(err.error))?;
        Ok(())
    }

    /// Tries to lock a content. The lock is held until the file is closed.
    pub(super) fn try_lock(&self, etag: &str) -> Result<Option<File>, HubError> {
        let folder = self.cache.join(".locks").join(self.repo.folder());
        fs::create_dir_all(&folder).map_err(HubError::cache(&folder))?;
        let path = folder.join(format!("{etag}.lock"));
        let lock =
            open_regular(&path, File::options().create(true).truncate(false).write(true), Links::Refuse);
        let lock = lock.map_err(HubError::cache(&path))?;
        match lock.try_lock() {
            // Python's filelock may have removed the file after it was opened: then the lock is void.
            Ok(()) => Ok(is_same(&lock, &path).then_some(lock)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(err)) => Err(HubError::cache(&path)(err)),
        }
    }

    /// Removes files, and then every content that no file refers to any more. Returns the bytes that were
    /// freed. A content that is a link itself, as written by newer clients, is removed as a link.
    ///
    /// # Errors
    /// [`HubError::Cache`]; [`HubError::Busy`] for a part that another process is writing.
    pub fn remove(&self, files: &[CachedFile]) -> Result<u64, HubError> {
        let mut freed = 0;
        for file in files {
            let is_link = fs::symlink_metadata(&file.at).is_ok_and(|entry| entry.is_symlink());
            fs::remove_file(&file.at).map_err(HubError::cache(&file.at))?;
            freed += if is_link { 0 } else { file.size };
        }
        let mut led_to = Vec::new();
        for commit in self.commits()? {
            led_to.extend(self.files(&commit)?.into_iter().map(|file| file.blob));
        }
        let blobs = self.blobs();
        for name in entries(&blobs)?.iter().filter(|name| is_hex(name, 64) || is_hex(name, 40)) {
            let path = blobs.join(name);
            let content = fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
            if !led_to.contains(&content) {
                let entry = fs::symlink_metadata(&path).map_err(HubError::cache(&path))?;
                fs::remove_file(&path).map_err(HubError::cache(&path))?;
                freed += if entry.is_symlink() { 0 } else { entry.len() };
            }
        }
        self.remove_empty()?;
        Ok(freed)
    }

    /// Removes the repository's whole folder. Returns the bytes that were freed.
    ///
    /// # Errors
    /// [`HubError::Cache`]; [`HubError::Busy`] while another process writes into it: then nothing is removed.
    pub fn remove_all(&self) -> Result<u64, HubError> {
        let mut locks = Vec::new();
        let mut freed = 0;
        for (path, bytes) in self.parts()? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let etag = name.strip_suffix(PART).unwrap_or(name);
            locks.push(self.try_lock(etag)?.ok_or_else(|| HubError::Busy { path: path.clone() })?);
            freed += bytes;
        }
        for commit in self.commits()? {
            freed += self.remove(&self.files(&commit)?)?;
        }
        let folder = self.folder();
        // `remove_dir_all` removes links, not their targets.
        match fs::remove_dir_all(&folder) {
            Err(err) if err.kind() != io::ErrorKind::NotFound => Err(HubError::cache(&folder)(err)),
            _ => Ok(freed),
        }
    }

    /// Removes empty snapshot folders.
    fn remove_empty(&self) -> Result<(), HubError> {
        for commit in entries(&self.folder().join("snapshots"))? {
            if self.files(&commit)?.is_empty() && is_commit(&commit) {
                let folder = self.snapshot(&commit);
                fs::remove_dir_all(&folder).map_err(HubError::cache(&folder))?;
            }
        }
        Ok(())
    }
}

impl CachedFile {
    /// Reads the content and compares its hash with its name. `None` if the name is not a hash, as in a cache
    /// without symlinks; otherwise whether they match. `tell` receives the bytes read so far, and returns
    /// false to stop.
    ///
    /// # Errors
    /// [`HubError::Cache`]; [`HubError::Stopped`].
    pub fn verify(&self, mut tell: impl FnMut(u64) -> bool) -> Result<Option<bool>, HubError> {
        // A content that links to a shared one has its hash only in the name in `blobs`.
        let link = fs::read_link(&self.at).ok();
        let name =
            link.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
        if !is_hex(name, 64) && !is_hex(name, 40) {
            return Ok(None);
        }
        let mut file = File::open(&self.at).map_err(HubError::cache(&self.at))?;
        let mut hasher = Hasher::new(name, self.size);
        hash(&mut file, &self.at, &mut hasher, u64::MAX, |done| match tell(done) {
            true => Ok(()),
            false => Err(HubError::Stopped),
        })?;
        Ok(Some(hasher.finish() == name))
    }
}

/// Hashes up to `most` bytes of the file at `path`, from its start. `tell` receives the bytes so far, and may
/// return an error to stop. Returns the bytes hashed.
///
/// # Errors
/// [`HubError::Cache`], and any error of `tell`.
pub(super) fn hash(
    file: &mut File,
    path: &Path,
    hasher: &mut Hasher,
    most: u64,
    mut tell: impl FnMut(u64) -> Result<(), HubError>,
) -> Result<u64, HubError> {
    file.seek(SeekFrom::Start(0)).map_err(HubError::cache(path))?;
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    while done < most {
        let want = buffer.len().min(usize::try_from(most - done).unwrap_or(usize::MAX));
        let n = match file.read(&mut buffer[..want]) {
            Ok(0) => break,
            Ok(n) => n,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(HubError::cache(path)(err)),
        };
        hasher.update(&buffer[..n]);
        done += n as u64;
        tell(done)?;
    }
    Ok(done)
}

/// True if the path is a file of that many bytes, with links followed.
pub(super) fn is_whole(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() == size)
}

#[cfg(unix)]
fn is_same(open: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let id = |file: fs::Metadata| (file.dev(), file.ino());
    open.metadata().map(id).ok() == fs::metadata(path).map(id).ok()
}

#[cfg(not(unix))]
fn is_same(_: &File, _: &Path) -> bool {
    // An open file cannot be removed on this system.
    true
}

#[cfg(unix)]
fn symlink(to: &str, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(windows)]
fn symlink(to: &str, at: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(to.replace('/', "\\"), at)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &str, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
