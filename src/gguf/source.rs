//! Sources of a file's bytes: memory, a map, or a reader.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
#[cfg(not(unix))]
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::GgufError;
use super::map::{anonymous, is_file};

/// A file that is read in pieces, wherever it is stored: on a disk, on an HTTP server, in a browser's
/// storage.
///
/// While a model is loaded, there is one read at a time. After that reads are rare (a saved session reads a
/// few bytes of each tensor), unless the weights do not fit in memory: then some are read in every step.
/// Reading the same range twice must return the same bytes.
pub trait Source: Send + Sync {
    /// Size of the whole file in bytes.
    fn file_bytes(&self) -> u64;

    /// Fills `into` with the bytes starting at `at`. The range is within the file.
    ///
    /// # Errors
    /// Any I/O error; for a file that has been truncated, [`io::ErrorKind::UnexpectedEof`].
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
}

/// A local file that is read and never mapped: if another process changes it, reads return an error or the
/// changed bytes, but there is no signal.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    /// Guards the file's position.
    #[cfg(not(unix))]
    moves: Mutex<()>,
    file_bytes: u64,
}

impl FileSource {
    /// Opens a file.
    ///
    /// # Errors
    /// [`GgufError::Io`], and [`GgufError::NotAFile`] for a directory, a pipe, a device or an empty file.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        is_file(path)?;
        Self::of(File::open(path).map_err(|error| GgufError::Io { call: "open", error })?)
    }

    /// Source of an open file.
    pub(super) fn of(file: File) -> Result<Self, GgufError> {
        let metadata = file.metadata().map_err(|error| GgufError::Io { call: "open", error })?;
        Ok(Self {
            file,
            #[cfg(not(unix))]
            moves: Mutex::new(()),
            file_bytes: metadata.len(),
        })
    }
}

impl Source for FileSource {
    fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    #[cfg(unix)]
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, into, at)
    }

    #[cfg(not(unix))]
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let _alone = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(into)
    }
}

impl Source for Bytes {
    fn file_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..into.len()));
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Stretches of another source, concatenated.
pub(super) struct Gathered {
    source: Arc<dyn Source>,
    /// Offsets in the source, and lengths.
    stretches: Vec<(u64, usize)>,
}

impl Gathered {
    pub(super) fn new(source: Arc<dyn Source>, stretches: impl Iterator<Item = (u64, usize)>) -> Self {
        Self { source, stretches: stretches.collect() }
    }
}

impl Source for Gathered {
    fn file_bytes(&self) -> u64 {
        self.stretches.iter().map(|(_, len)| *len as u64).sum()
    }

    fn read_at(&self, at: u64, mut into: &mut [u8]) -> io::Result<()> {
        let mut skip = at;
        for (start, len) in &self.stretches {
            if skip >= *len as u64 {
                skip -= *len as u64;
                continue;
            }
            let n = (len - skip as usize).min(into.len());
            let (part, rest) = into.split_at_mut(n);
            self.source.read_at(start + skip, part)?;
            (into, skip) = (rest, 0);
            if into.is_empty() {
                return Ok(());
            }
        }
        if into.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

/// The bytes of one file of a model.
#[derive(Clone)]
pub(super) enum Data {
    /// All of them, in memory or locked there.
    Bytes(Bytes),
    /// All of them, mapped, and the file itself: large reads from it are faster than loading page by page.
    Mapped(Bytes, Arc<FileSource>),
    /// Read on demand.
    Source(Arc<dyn Source>),
    /// Only the descriptions were read; every other byte reads as zero.
    Header,
}

impl Data {
    /// `len` bytes starting at `at`. Shared if they are in memory, otherwise read to an address that is a
    /// multiple of 64.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn read(&self, at: u64, len: usize) -> Result<Bytes, GgufError> {
        match self {
            // The range was checked when the file was opened.
            Self::Bytes(bytes) | Self::Mapped(bytes, _) => Ok(bytes.slice(at as usize..at as usize + len)),
            Self::Source(source) => read_aligned(len, |into| source.read_at(at, into)),
            Self::Header => read_aligned(len, |_| Ok(())),
        }
    }

    /// Reader of the file, bypassing its map; `None` for a header.
    pub fn source(&self) -> Option<Arc<dyn Source>> {
        match self {
            Self::Bytes(bytes) => Some(Arc::new(bytes.clone())),
            Self::Mapped(_, file) => Some(Arc::clone(file) as Arc<dyn Source>),
            Self::Source(source) => Some(Arc::clone(source)),
            Self::Header => None,
        }
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes in memory", bytes.len()),
            Self::Mapped(bytes, _) => write!(f, "{} bytes that are mapped", bytes.len()),
            Self::Source(source) => write!(f, "{} bytes to be read", source.file_bytes()),
            Self::Header => f.write_str("descriptions"),
        }
    }
}

/// Minimum size for which memory is allocated directly from the system instead of `malloc`.
const LARGE: usize = 4 << 20;

/// Allocates bytes that begin at a cache line, and fills them with `fill`.
fn read_aligned(len: usize, fill: impl FnOnce(&mut [u8]) -> io::Result<()>) -> Result<Bytes, GgufError> {
    const LINE: usize = 64;
    let read = |error| GgufError::Io { call: "read", error };
    if cfg!(unix) && len >= LARGE {
        let mut map = anonymous(len).map_err(read)?;
        fill(&mut map).map_err(read)?;
        return Ok(Bytes::from_owner(map.make_read_only().map_err(read)?));
    }
    let mut bytes = Vec::new();
    let room = len.checked_add(LINE).ok_or(io::ErrorKind::OutOfMemory);
    let room = room.map_err(|kind| read(kind.into()))?;
    bytes.try_reserve_exact(room).map_err(|_| read(io::ErrorKind::OutOfMemory.into()))?;
    bytes.resize(room, 0);
    let start = bytes.as_ptr().align_offset(LINE).min(LINE);
    fill(&mut bytes[start..start + len]).map_err(read)?;
    Ok(Bytes::from(bytes).slice(start..start + len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_begins_at_a_cache_line() {
        let all = Bytes::from((0..=255).collect::<Vec<u8>>());
        let source: Arc<dyn Source> = Arc::new(all.clone());
        for (at, len) in [(0, 256), (3, 100), (255, 1), (256, 0)] {
            let read = Data::Source(Arc::clone(&source)).read(at, len).unwrap();
            assert_eq!(read, all.slice(at as usize..at as usize + len));
            assert!(len == 0 || (read.as_ptr() as usize).is_multiple_of(64));
        }
        assert!(Data::Source(source).read(250, 7).is_err());
    }

    #[test]
    fn large_ranges_are_read_like_small_ones() {
        let all = Bytes::from((0..LARGE + 300).map(|at| (at % 251) as u8).collect::<Vec<_>>());
        let data = Data::Source(Arc::new(all.clone()));
        for (at, len) in [(7, 100), (123, LARGE - 1), (200, LARGE), (1, LARGE + 299)] {
            let read = data.read(at as u64, len).unwrap();
            assert!(read == all[at..at + len], "{len} bytes from {at}");
            assert_eq!(read.as_ptr().align_offset(64), 0);
        }
        assert!(matches!(data.read(301, LARGE), Err(GgufError::Io { call: "read", .. })));
    }
}
