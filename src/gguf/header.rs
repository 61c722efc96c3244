//! The first bytes of a file, which hold its descriptions: enough for what a model is and takes, without its
//! weights.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::parse::GgufPart;
use super::source::Data;
use super::{FileSource, GgufError, Source};

/// The first bytes of a file, as many as hold its metadata and the descriptions of its tensors, and its size.
#[derive(Clone, Debug)]
pub struct Header {
    /// From the first byte of the file on; what comes behind the descriptions is not looked at.
    pub first: Bytes,
    /// Bytes of the whole file.
    pub file_bytes: u64,
}

impl Header {
    /// Bytes that are asked for first: a vocabulary of 128 thousand tokens takes some 7 MB, a file without
    /// one some KB.
    const FIRST_BYTES: usize = 1 << 20;
    /// Bytes that are asked for at a time at most.
    const MORE_BYTES: usize = 4 << 20;

    /// The header of a file of `file_bytes` bytes. `first` gets the first `n` bytes of the file, wherever it
    /// lies; it is asked for more, up to twice as many each time, until they hold all descriptions.
    ///
    /// # Errors
    /// [`GgufError::Io`] with what `first` returns, and if it returns fewer bytes than the file has; as
    /// [`Gguf::open`](super::Gguf::open) otherwise.
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

    /// The header of a file that is read in pieces. Nothing of it is read twice, and of what was read as much
    /// stays in memory as the descriptions take.
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

    /// Its contents.
    pub(super) fn described(&self) -> Result<GgufPart, GgufError> {
        let have = self.first.len();
        let more = |need: u64| GgufError::MoreOfHeader { have, need };
        // A file's kind stands in its first 8 bytes.
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

/// The descriptions of a file that is read in pieces.
pub(super) fn of_source(source: Arc<dyn Source>) -> Result<GgufPart, GgufError> {
    let part = Header::of_source(&*source)?.described()?;
    Ok(GgufPart { data: Data::Source(source), ..part })
}

/// Reads the header of a file, and nothing behind its descriptions.
pub(super) fn of_file(path: &Path) -> Result<GgufPart, GgufError> {
    Ok(GgufPart { data: Data::Header, ..of_source(Arc::new(FileSource::open(path)?))? })
}
