//! Download of one file to its blob: by ranges, resuming where it stopped, under a lock. The file gets its
//! final name only if its size and hash match the repository's list.
//!
//! Each file has one connection and is downloaded in order: the length of the part is its whole state, and
//! the hash is computed during the download. Several files are downloaded concurrently.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::api::RemoteFile;
use super::cache::{Cached, Hasher, hash, is_whole};
use super::error::HubError;
use super::http::{About, Answer, Client, Fault, Tries, encoded};
use sterna_host::files::{Links, open_regular};

/// Progress of a transfer.
#[derive(Debug)]
pub enum Event<'a> {
    /// A file begins; `done` bytes were downloaded earlier.
    Started {
        /// The file.
        file: &'a RemoteFile,
        /// Bytes.
        done: u64,
    },
    /// Bytes of a file so far. The number may decrease if a server starts over.
    Bytes {
        /// The file.
        file: &'a RemoteFile,
        /// Bytes.
        done: u64,
    },
    /// Another process is downloading this file; waiting for it.
    Waiting {
        /// The file.
        file: &'a RemoteFile,
    },
    /// A temporary failure.
    Again {
        /// The file.
        file: &'a RemoteFile,
        /// The error.
        error: &'a HubError,
        /// Time until the next try.
        pause: Duration,
    },
    /// A file is complete.
    Finished {
        /// The file.
        file: &'a RemoteFile,
    },
}

/// Receiver of events.
pub type Listener<'a> = &'a (dyn Fn(Event<'_>) + Sync);

/// Downloads files of one commit.
pub(super) struct Transfer<'a> {
    pub(super) client: &'a Client,
    pub(super) cached: &'a Cached,
    pub(super) commit: &'a str,
    pub(super) tell: Listener<'a>,
    /// True if another file has failed: the rest is not needed.
    pub(super) failed: &'a AtomicBool,
}

/// A partially downloaded blob.
struct PartialBlob<'a> {
    file: &'a RemoteFile,
    path: PathBuf,
    out: File,
    /// Bytes so far, all of them hashed.
    done: u64,
    /// Highest value of `done` so far.
    furthest: u64,
    hasher: Hasher,
    /// True if some of the bytes are from an earlier run.
    resumed: bool,
}

/// URL of a file.
pub(super) fn address(client: &Client, repo: &str, commit: &str, path: &str) -> String {
    format!("{}/{repo}/resolve/{commit}/{}", client.endpoint, encoded(path, true))
}

impl Transfer<'_> {
    /// Downloads a file, unless it is cached.
    ///
    /// # Errors
    /// Any failure. The downloaded bytes are kept, unless they do not match the repository's list.
    pub(super) fn get(&self, file: &RemoteFile) -> Result<(), HubError> {
        let blobs = self.cached.blobs();
        fs::create_dir_all(&blobs).map_err(HubError::cache(&blobs))?;
        let lock = self.lock(file)?;
        // Another process may have downloaded it meanwhile.
        if !self.cached.has(self.commit, file) {
            if !is_whole(&self.cached.blob(file), file.size) {
                self.download(file)?;
            }
            self.cached.link(self.commit, file)?;
        }
        drop(lock);
        (self.tell)(Event::Finished { file });
        Ok(())
    }

    fn check_stopped(&self) -> Result<(), HubError> {
        if self.failed.load(Ordering::Relaxed) {
            return Err(HubError::Stopped);
        }
        self.client.check_stopped()
    }

    fn lock(&self, file: &RemoteFile) -> Result<File, HubError> {
        let begun = Instant::now();
        let mut is_told = false;
        loop {
            if let Some(lock) = self.cached.try_lock(&file.etag)? {
                return Ok(lock);
            }
            self.check_stopped()?;
            if !is_told && begun.elapsed() > Duration::from_millis(500) {
                (self.tell)(Event::Waiting { file });
                is_told = true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn download(&self, file: &RemoteFile) -> Result<(), HubError> {
        let mut part = self.open(file)?;
        (self.tell)(Event::Started { file, done: part.done });
        loop {
            let mut tries = self.client.tries();
            while part.done < file.size {
                let came = self.stream(&mut part, &mut tries);
                let tell = |error: &HubError, pause| (self.tell)(Event::Again { file, error, pause });
                came.or_else(|fault| tries.again(fault, tell))?;
            }
            let found = std::mem::replace(&mut part.hasher, Hasher::new(&file.etag, file.size)).finish();
            if found == file.etag {
                return part.finish(&self.cached.blob(file));
            }
            if !part.resumed {
                let why = format!("its hash is {found}, but the repository lists {}", file.etag);
                return Err(part.discard(why));
            }
            // The bytes of an earlier run may be corrupt, for example after a power cut.
            part.restart()?;
        }
    }

    /// Opens the part, with the bytes of an earlier run.
    fn open<'a>(&self, file: &'a RemoteFile) -> Result<PartialBlob<'a>, HubError> {
        let path = self.cached.part(file);
        let mut how = File::options();
        how.read(true).write(true).create(true).truncate(false);
        let out = open_regular(&path, &how, Links::Refuse);
        let mut out = out.map_err(HubError::cache(&path))?;
        let length = out.metadata().map_err(HubError::cache(&path))?.len();
        let mut hasher = Hasher::new(&file.etag, file.size);
        let done = if length > file.size { 0 } else { length };
        hash(&mut out, &path, &mut hasher, done, |_| self.check_stopped())?;
        let mut part = PartialBlob { file, path, out, done, furthest: done, hasher, resumed: done > 0 };
        if length > file.size {
            part.restart()?;
        }
        Ok(part)
    }

    /// Appends the bytes of one answer.
    fn stream(&self, part: &mut PartialBlob<'_>, tries: &mut Tries<'_>) -> Result<(), Fault> {
        let file = part.file;
        let repo = self.cached.repo.to_string();
        let url = address(self.client, &repo, self.commit, &file.path);
        let range = (part.done > 0).then(|| format!("bytes={}-", part.done));
        let answer = self.client.get(&url, range.as_deref())?;
        let about = About { repo: &repo, revision: self.commit, file: Some(&file.path) };
        if answer.status == 416 {
            part.restart()?;
            return Err(Fault::Passing(
                HubError::Status { host: answer.host, status: 416, said: String::new() },
                None,
            ));
        }
        let mut answer = self.client.check(answer, about)?;
        part.accept(&answer)?;
        let mut buffer = vec![0; 256 << 10];
        loop {
            self.check_stopped()?;
            let n = match answer.body.as_reader().read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
                // A premature end is reported below, with the number of bytes.
                Err(err) if err.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(err) => return Err(self.client.broken(&answer.host, &err)),
            };
            part.write(&buffer[..n])?;
            if part.done > part.furthest {
                part.furthest = part.done;
                tries.progress();
            }
            (self.tell)(Event::Bytes { file, done: part.done });
        }
        if part.done < file.size {
            let why = format!("the connection ended after {} of {} bytes", part.done, file.size);
            return Err(Fault::Passing(HubError::Network { host: answer.host, why }, None));
        }
        Ok(())
    }
}

impl PartialBlob<'_> {
    /// Empties the part.
    fn restart(&mut self) -> Result<(), HubError> {
        let emptied = self.out.set_len(0).and_then(|()| self.out.seek(SeekFrom::Start(0)));
        emptied.map_err(HubError::cache(&self.path))?;
        self.hasher = Hasher::new(&self.file.etag, self.file.size);
        (self.done, self.resumed) = (0, false);
        Ok(())
    }

    /// Checks that an answer continues where the part ends. A whole file instead of a range means starting
    /// over.
    fn accept(&mut self, answer: &Answer) -> Result<(), Fault> {
        let size = self.file.size;
        if let Some(etag) = answer.linked_etag.as_ref().filter(|etag| **etag != self.file.etag) {
            let why =
                format!("the repository lists {}, but the hub sent {}", self.file.etag, etag.escape_debug());
            return Err(HubError::Corrupt { file: self.file.path.clone(), why }.into());
        }
        if answer.status == 206 {
            let fits = |range: &std::ops::Range<u64>, total: Option<u64>| {
                range.start == self.done && range.end <= size && total.is_none_or(|total| total == size)
            };
            if answer.content_range().is_some_and(|(range, total)| fits(&range, total)) {
                return Ok(());
            }
            let got = answer.header("content-range").unwrap_or("no Content-Range").escape_debug().to_string();
            let why = format!("requested bytes {} to {size}, received {got}", self.done);
            self.restart()?;
            return Err(Fault::Passing(HubError::Answer { host: answer.host.clone(), why }, None));
        }
        if let Some(length) = answer.content_length().filter(|length| *length != size) {
            let why = format!("the answer has {length} bytes, but the repository lists {size}");
            return Err(self.discard(why).into());
        }
        if self.done > 0 {
            self.restart()?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        if self.done + bytes.len() as u64 > self.file.size {
            let why = format!("more bytes arrived than the {} that the repository lists", self.file.size);
            return Err(self.discard(why));
        }
        self.out.write_all(bytes).map_err(|err| match err.kind() {
            io::ErrorKind::StorageFull => {
                let folder = self.path.parent().unwrap_or(&self.path).to_owned();
                let (file, needed) = (self.file.path.clone(), self.file.size - self.done);
                HubError::Full { file, folder, needed, free: 0 }
            }
            _ => HubError::cache(&self.path)(err),
        })?;
        self.hasher.update(bytes);
        self.done += bytes.len() as u64;
        Ok(())
    }

    /// Removes the part: it cannot become the listed file.
    fn discard(&self, why: String) -> HubError {
        // If that fails, the next run detects the error again.
        let _ = fs::remove_file(&self.path);
        HubError::Corrupt { file: self.file.path.clone(), why }
    }

    /// Renames the part to its final name, once all of it is on the disk.
    fn finish(self, blob: &Path) -> Result<(), HubError> {
        self.out.sync_all().map_err(HubError::cache(&self.path))?;
        drop(self.out);
        fs::rename(&self.path, blob).map_err(HubError::cache(blob))?;
        if let Some(folder) = blob.parent().and_then(|folder| File::open(folder).ok()) {
            // Not every system supports this; the rename is then as durable as the system makes it.
            let _ = folder.sync_all();
        }
        Ok(())
    }
}
