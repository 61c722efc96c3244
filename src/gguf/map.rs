//! The mapped file: the only place in `gguf/` with `unsafe`.
//!
//! A mapping shows the file as it is *now*. If another process overwrites the file in place, the weights
//! change under the running model; if it truncates the file, the next access beyond the new end kills this
//! process with SIGBUS, which no checked code can turn into an error. Replace a model by renaming a new file
//! over it: processes that have the old one mapped keep it intact.
#![allow(unsafe_code)] // Mapping a file is unsafe for the reason above.

use std::path::Path;
use std::{fs, io};

use bytes::Bytes;
use memmap2::{Mmap, MmapMut};

use super::GgufError;

/// Maps a whole file for reading. The bytes are shared: clones and slices keep the mapping alive. Also
/// returns the open file.
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
    // value is valid. Another process may change or truncate the file; the module documentation explains why
    // that is accepted.
    let map = unsafe { Mmap::map(&file) }.map_err(|error| GgufError::Io { call: "map", error })?;
    // File systems without support for huge pages return an error, which is ignored.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok((map, file))
}

/// Allocates `len` zero bytes in pages as large as the system supports: weights in 4 KiB pages are read at
/// little more than half the speed (docs/cpu.md).
///
/// # Errors
/// If there is too little memory, or `len` is 0.
pub(super) fn anonymous(len: usize) -> io::Result<MmapMut> {
    let map = MmapMut::map_anon(len)?;
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// Maps a whole file, and locks its pages in memory while it is mapped.
///
/// # Errors
/// As [`map`], and [`GgufError::Lock`] if the system does not allow this process to lock that much.
pub(super) fn map_locked(path: &Path) -> Result<Bytes, GgufError> {
    let (map, _) = mapped(path)?;
    lock(&map).map_err(|error| GgufError::Lock { error, bytes: map.len() })?;
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

/// Checks that a path is a non-empty file.
///
/// # Errors
/// [`GgufError::Io`] and [`GgufError::NotAFile`].
pub(super) fn is_file(path: &Path) -> Result<(), GgufError> {
    // Checked before opening: opening a pipe would wait for its other end.
    let kind = fs::metadata(path).map_err(|error| GgufError::Io { call: "open", error })?;
    let found = match (kind.is_dir(), kind.is_file(), kind.len()) {
        (true, ..) => "a directory",
        (_, false, _) => "a pipe or a device, which cannot be mapped",
        (.., 0) => "an empty file",
        _ => return Ok(()),
    };
    Err(GgufError::NotAFile { found })
}
