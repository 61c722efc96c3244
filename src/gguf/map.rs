//! The mapped file: the one place in `gguf/` with `unsafe`.
//!
//! A mapping shows the file as it is *now*. Where another process overwrites the file in place, the
//! weights change under the running model; where it truncates the file, the next access beyond the
//! new end kills this process with SIGBUS, which no checked code can turn into an error. Replace a
//! model by renaming a new file over it: then the old one stays whole for those who have it mapped.
#![allow(unsafe_code)] // Mapping a file is unsafe for the reason above.

use std::path::Path;
use std::{fs, io};

use bytes::Bytes;
use memmap2::{Mmap, MmapMut};

use super::GgufError;

/// Maps a whole file for reading. The bytes are shared: clones and slices keep the mapping alive. The same
/// file comes with them.
///
/// # Errors
/// [`GgufError::Io`], and [`GgufError::NotAFile`] for a directory, a pipe, a device or an empty file.
pub(super) fn map(path: &Path) -> Result<(Bytes, fs::File), GgufError> {
    mapped(path).map(|(map, file)| (Bytes::from_owner(map), file))
}

fn mapped(path: &Path) -> Result<(Mmap, fs::File), GgufError> {
    is_file(path)?;
    let file = fs::File::open(path).map_err(|error| GgufError::Io { call: "open", error })?;
    // SAFETY: the map is private to this process, read-only and only ever seen as bytes, for which every
    // value is valid. That another process may change or truncate the file is said above and accepted.
    let map = unsafe { Mmap::map(&file) }.map_err(|error| GgufError::Io { call: "map", error })?;
    // Of file systems that cannot do so, no word is heard.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok((map, file))
}

/// `len` bytes, all 0, in pages as large as the system has them: weights in pages of 4 KiB are read at little
/// more than half the speed (docs/cpu.md).
///
/// # Errors
/// Too little memory; a `len` of 0.
pub(super) fn anonymous(len: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(len)?;
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// Maps a whole file, and keeps its pages in memory as long as it is mapped.
///
/// # Errors
/// As [`map`], and [`GgufError::Io`] where the system does not let this process keep so many.
pub(super) fn map_locked(path: &Path) -> Result<Bytes, GgufError> {
    let (map, _) = mapped(path)?;
    lock(&map).map_err(|error| {
        let text = format!(
            "{error}: the model needs {} bytes of locked memory, and RLIMIT_MEMLOCK (ulimit -l) limits how \
             much this process may lock; raise the limit, or leave out OpenOptions::access, which asks for \
             it",
            map.len()
        );
        GgufError::Io { call: "lock the map", error: io::Error::new(error.kind(), text) }
    })?;
    Ok(Bytes::from_owner(map))
}

#[cfg(unix)]
fn lock(map: &Mmap) -> io::Result<()> {
    map.lock()
}

#[cfg(not(unix))]
fn lock(_: &Mmap) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Checks that a path is a file that is not empty.
///
/// # Errors
/// [`GgufError::Io`] and [`GgufError::NotAFile`].
pub(super) fn is_file(path: &Path) -> Result<(), GgufError> {
    // Before it is opened: opening a pipe would wait for its other end.
    let kind = fs::metadata(path).map_err(|error| GgufError::Io { call: "open", error })?;
    let found = match (kind.is_dir(), kind.is_file(), kind.len()) {
        (true, ..) => "a directory",
        (_, false, _) => "a pipe or a device, which cannot be mapped",
        (.., 0) => "an empty file",
        _ => return Ok(()),
    };
    Err(GgufError::NotAFile { found })
}
