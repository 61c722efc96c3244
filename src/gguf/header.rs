//! The first bytes of a file, which hold its descriptions: enough for what a model is and takes, without its
//! weights.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use bytes::Bytes;

use super::GgufError;
use super::map::{is_file, reserve};
use super::parse::Part;

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

    /// The header of a file of `file_bytes` bytes. `first` gets the first `n` bytes of the file, wherever it
    /// lies; it is asked for more, twice as many each time, until they hold all descriptions.
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
                    n = n.saturating_mul(2).max(usize::try_from(need).unwrap_or(usize::MAX)).min(all);
                }
                Err(error) => return Err(error),
                Ok(_) => return Ok(header),
            }
        }
    }

    /// What it says, over as many addresses as the file has bytes.
    pub(super) fn part(&self) -> Result<Part, GgufError> {
        let mut part = self.described()?;
        part.bytes = reserve(&self.first, self.file_bytes)?;
        Ok(part)
    }

    /// What it says, without any bytes of the file.
    fn described(&self) -> Result<Part, GgufError> {
        let have = self.first.len();
        let more = |need: u64| GgufError::MoreOfHeader { have, need };
        // A file's kind stands in its first 8 bytes.
        if have < 8 && self.file_bytes >= 8 {
            return Err(more(8));
        }
        Part::described(&self.first, self.file_bytes).map_err(|error| match error {
            GgufError::Truncated { offset, want, .. } => match (offset as u64).checked_add(want) {
                Some(need) if need <= self.file_bytes => more(need),
                _ => error,
            },
            error => error,
        })
    }
}

/// Reads the header of a file, and nothing behind its descriptions.
pub(super) fn of_file(path: &Path) -> Result<Part, GgufError> {
    let io = |call| move |error| GgufError::Io { call, error };
    is_file(path)?;
    let mut file = File::open(path).map_err(io("open"))?;
    let file_bytes = file.metadata().map_err(io("open"))?.len();
    let header = Header::read(file_bytes, |n| {
        let mut bytes = vec![0; n];
        file.rewind()?;
        file.read_exact(&mut bytes)?;
        Ok(bytes.into())
    })?;
    Ok(Part { path: Some(path.to_path_buf()), ..header.part()? })
}
