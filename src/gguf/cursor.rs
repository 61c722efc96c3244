//! Reads little-endian values from a file's bytes; every step is checked.

use bytes::Bytes;

use super::GgufError;

/// A position in a file.
pub(super) struct Cursor<'a> {
    file: &'a Bytes,
    pos: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a Bytes) -> Self {
        Self { file, pos: 0 }
    }

    /// Offset of the next byte.
    pub fn pos(&self) -> usize {
        self.pos
    }

    /// Number of bytes after the position.
    pub fn left(&self) -> usize {
        self.file.len() - self.pos
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let left = self.left();
        match usize::try_from(n) {
            Ok(len) if len <= left => {
                let bytes = &self.file[self.pos..self.pos + len];
                self.pos += len;
                Ok(bytes)
            }
            _ => Err(GgufError::Truncated { what, offset: self.pos, want: n, got: left as u64 }),
        }
    }

    /// The bytes from `start` to the position, shared with the file.
    pub fn since(&self, start: usize) -> Bytes {
        self.file.slice(start..self.pos)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string: its length in bytes as u64, then UTF-8.
    pub fn str(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let len = self.u64(what)?;
        let offset = self.pos;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|err| GgufError::Malformed {
            what,
            offset,
            detail: format!("not UTF-8 from its byte {} on", err.valid_up_to()),
        })
    }
}
