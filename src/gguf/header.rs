//! The first bytes of a file with its descriptions: enough to inspect a model and plan its memory, without
//! the weights.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::parse::GgufPart;
use super::source::Data;
use super::{FileSource, GgufError, Source};

/// The first bytes of a file, up to the end of the tensor descriptions, and the size of the file.
#[derive(Clone, Debug)]
pub struct Header {
    /// Bytes from the start of the file; those after the descriptions are ignored.
    pub first: Bytes,
    /// Size of the whole file in bytes.
    pub file_bytes: u64,
}

impl Header {
    /// Number of bytes requested first: a vocabulary of 128 thousand tokens takes about 7 MB, a file without
    /// one a few KB.
    const FIRST_BYTES: usize = 1 << 20;
    /// Maximum number of bytes requested at a time.
    const MORE_BYTES: usize = 4 << 20;

    /// Reads the header of a file of `file_bytes` bytes. `first` returns the first `n` bytes of the file,
    /// wherever it is stored; it is called for up to twice as many each time, until they contain all
    /// descriptions.
    ///
    /// # Errors
    /// [`GgufError::Io`] with the error of `first`, or if it returns fewer than `n` bytes; otherwise as
    /// [`Gguf::open`](super::Gguf::open).
    pub fn read(
        file_bytes: u64,
        mut first: impl FnMut(usize) -> io::Result<Bytes>,
    ) -> Result<Self, GgufError> {
        let all = usize::try_from(file_bytes).unwrap_or(usize::MAX);
        let mut n = Self::FIRST_BYTES.min(all);
        loop {
            let bytes = first(n).map_err(|error| GgufError::Io { call: "read", error })?;
            if bytes.len() < n {
                let got = format!("{} of the first {n} bytes of a file of {file_bytes}", bytes.len());
                let error = io::Error::new(io::ErrorKind::UnexpectedEof, got);
                return Err(GgufError::Io { call: "read", error });
            }
            let header = Self { first: bytes, file_bytes };
            match header.described() {
                Err(GgufError::MoreOfHeader { need, .. }) => {
                    let more = n.saturating_add(n.min(Self::MORE_BYTES));
                    n = more.max(usize::try_from(need).unwrap_or(usize::MAX)).min(all);
                }
                Err(error) => return Err(error),
                Ok(_) => return Ok(header),
            }
        }
    }

    /// Reads the header of a file piece by piece. Reads nothing twice, and keeps only the descriptions in
    /// memory.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn of_source(source: &dyn Source) -> Result<Self, GgufError> {
        let mut have = Bytes::new();
        let header = Self::read(source.file_bytes(), |n| {
            let mut bytes = Vec::from(std::mem::take(&mut have));
            let old = bytes.len();
            bytes.try_reserve_exact(n - old).map_err(|_| io::ErrorKind::OutOfMemory)?;
            bytes.resize(n, 0);
            source.read_at(old as u64, &mut bytes[old..])?;
            have = Bytes::from(bytes);
            Ok(have.clone())
        })?;
        let n = header.described()?.header_bytes;
        Ok(Self { first: Bytes::copy_from_slice(&header.first[..n]), ..header })
    }

    /// Parses the descriptions.
    pub(super) fn described(&self) -> Result<GgufPart, GgufError> {
        let have = self.first.len();
        let more = |need: u64| GgufError::MoreOfHeader { have, need };
        // The kind of a file is detected by its first 8 bytes.
        if have < 8 && self.file_bytes >= 8 {
            return Err(more(8));
        }
        GgufPart::described(&self.first, self.file_bytes).map_err(|error| match error {
            GgufError::Truncated { offset, want, .. } => match (offset as u64).checked_add(want) {
                Some(need) if need <= self.file_bytes => more(need),
                _ => error,
            },
            error => error,
        })
    }
}

/// Reads the descriptions of a file piece by piece.
pub(super) fn of_source(source: Arc<dyn Source>) -> Result<GgufPart, GgufError> {
    let part = Header::of_source(&*source)?.described()?;
    Ok(GgufPart { data: Data::Source(source), ..part })
}

/// Reads the descriptions of a file, and nothing after them.
pub(super) fn of_file(path: &Path) -> Result<GgufPart, GgufError> {
    Ok(GgufPart { data: Data::Header, ..of_source(Arc::new(FileSource::open(path)?))? })
}
