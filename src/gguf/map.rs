//! The mapped file: the one place in `gguf/` with `unsafe`; and addresses in place of a file.
//!
//! A mapping shows the file as it is *now*. Where another process overwrites the file in place, the
//! weights change under the running model; where it truncates the file, the next access beyond the
//! new end kills this process with SIGBUS, which no checked code can turn into an error. Replace a
//! model by renaming a new file over it: then the old one stays whole for those who have it mapped.
#![allow(unsafe_code)] // Mapping a file is unsafe for the reason above.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use memmap2::{Mmap, MmapOptions};

use super::GgufError;

/// Maps a whole file for reading. The bytes are shared: clones and slices keep the mapping alive.
///
/// # Errors
/// [`GgufError::Io`], and [`GgufError::NotAFile`] for a directory, a pipe, a device or an empty file.
pub fn map(path: &Path) -> Result<Bytes, GgufError> {
    is_file(path)?;
    let file = fs::File::open(path).map_err(|error| GgufError::Io { call: "open", error })?;
    // SAFETY: the map is private to this process, read-only and only ever seen as bytes, for which every
    // value is valid. That another process may change or truncate the file is said above and accepted.
    let map = unsafe { Mmap::map(&file) }.map_err(|error| GgufError::Io { call: "map", error })?;
    Ok(Bytes::from_owner(map))
}

/// That a path is a file that is not empty.
///
/// # Errors
/// As [`map`].
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

/// As many bytes as a file has, of which the first are given and all others are zero. They are addresses, and
/// take memory only where somebody reads them.
///
/// # Errors
/// [`GgufError::Io`] where there are not as many addresses.
pub(super) fn reserve(first: &[u8], file_bytes: u64) -> Result<Bytes, GgufError> {
    let refused = |error| GgufError::Io { call: "reserve as many addresses as the file has bytes", error };
    let bytes = usize::try_from(file_bytes).ok().filter(|bytes| isize::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or_else(|| refused(std::io::ErrorKind::OutOfMemory.into()))?;
    let mut map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(refused)?;
    let n = first.len().min(bytes);
    map[..n].copy_from_slice(&first[..n]);
    Ok(Bytes::from_owner(map.make_read_only().map_err(refused)?))
}
