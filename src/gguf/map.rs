//! The mapped file: the one place in `gguf/` with `unsafe`.
//!
//! A mapping shows the file as it is *now*. Where another process overwrites the file in place, the
//! weights change under the running model; where it truncates the file, the next access beyond the
//! new end kills this process with SIGBUS, which no checked code can turn into an error. Replace a
//! model by renaming a new file over it: then the old one stays whole for those who have it mapped.
#![allow(unsafe_code)] // Mapping a file is unsafe for the reason above.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use memmap2::Mmap;

use super::GgufError;

/// Maps a whole file for reading. The bytes are shared: clones and slices keep the mapping alive.
///
/// # Errors
/// [`GgufError::Io`], and [`GgufError::NotAFile`] for a directory, a pipe, a device or an empty file.
pub(super) fn map(path: &Path) -> Result<Bytes, GgufError> {
    // The kind is asked for first because opening a pipe would wait for its other end.
    let kind = fs::metadata(path).map_err(|error| GgufError::Io { call: "open", error })?;
    if kind.is_dir() {
        return Err(GgufError::NotAFile { found: "a directory" });
    }
    if !kind.is_file() {
        return Err(GgufError::NotAFile { found: "a pipe or a device, which cannot be mapped" });
    }
    let file = fs::File::open(path).map_err(|error| GgufError::Io { call: "open", error })?;
    let len = file.metadata().map_err(|error| GgufError::Io { call: "open", error })?.len();
    if len == 0 {
        return Err(GgufError::NotAFile { found: "an empty file" });
    }
    // SAFETY: the map is private to this process, read-only and only ever seen as bytes, for which every
    // value is valid. That another process may change or truncate the file is said above and accepted.
    let map = unsafe { Mmap::map(&file) }.map_err(|error| GgufError::Io { call: "map", error })?;
    Ok(Bytes::from_owner(map))
}
