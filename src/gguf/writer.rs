//! Writes GGUF files: descriptions first, then the bytes of tensors in pieces.

use std::collections::HashSet;
use std::io::Write;

use super::parse::{MAGIC, alignment};
use super::value::encode_str;
use super::{GgufError, Metadata};

/// The descriptions of a new file. All tensors are declared before the first byte is written; then
/// [`begin`](Self::begin) takes their bytes in the same order, so no tensor has to be in memory as a whole.
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    metadata: Metadata,
    alignment: u64,
    names: HashSet<String>,
    /// The encoded descriptions.
    infos: Vec<u8>,
    /// Name and size in bytes of every tensor.
    tensors: Vec<(String, u64)>,
    /// Bytes of the data so far, including padding.
    data_bytes: u64,
}

impl GgufWriter {
    /// A file of version 3 with this metadata; uses its `general.alignment`.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] if the alignment is not a power of two.
    pub fn new(metadata: Metadata) -> Result<Self, GgufError> {
        let alignment = alignment(&metadata)? as u64;
        let (names, infos, tensors) = (HashSet::new(), Vec::new(), Vec::new());
        Ok(Self { version: 3, metadata, alignment, names, infos, tensors, data_bytes: 0 })
    }

    /// Writes version 2, which some old readers require.
    #[must_use]
    pub fn version_2(mut self) -> Self {
        self.version = 2;
        self
    }

    /// Declares the next tensor: its dimensions, outermost first, the id of its type, and its size in bytes.
    ///
    /// # Errors
    /// [`GgufError::Duplicate`]; [`GgufError::Tensor`] for more than 4 dimensions or too many bytes.
    pub fn tensor(&mut self, name: &str, dims: &[usize], type_id: u32, bytes: u64) -> Result<(), GgufError> {
        let invalid = |detail| GgufError::Tensor { name: name.to_owned(), detail };
        if dims.len() > 4 || dims.contains(&0) {
            return Err(invalid(format!("want at most 4 dimensions, none of them 0, found {dims:?}")));
        }
        let end = bytes
            .checked_next_multiple_of(self.alignment)
            .and_then(|padded| self.data_bytes.checked_add(padded));
        let end = end.ok_or_else(|| invalid(format!("{bytes} bytes overflow the file")))?;
        if !self.names.insert(name.to_owned()) {
            let offset = self.data_bytes as usize;
            return Err(GgufError::Duplicate { what: "tensor", name: name.to_owned(), offset });
        }
        encode_str(name, &mut self.infos);
        self.infos.extend((dims.len() as u32).to_le_bytes());
        // The format lists the contiguous dimension first.
        self.infos.extend(dims.iter().rev().flat_map(|&dim| (dim as u64).to_le_bytes()));
        self.infos.extend(type_id.to_le_bytes());
        self.infos.extend(self.data_bytes.to_le_bytes());
        self.tensors.push((name.to_owned(), bytes));
        self.data_bytes = end;
        Ok(())
    }

    /// Size of the whole file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.head().len() as u64 + self.data_bytes
    }

    /// Writes the descriptions; the result takes the data.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn begin<W: Write>(self, mut out: W) -> Result<GgufData<W>, GgufError> {
        out.write_all(&self.head()).map_err(|error| GgufError::Io { call: "write", error })?;
        Ok(GgufData { out, tensors: self.tensors.into_iter(), alignment: self.alignment })
    }

    /// Everything before the data. A file without tensors is not padded, as in llama.cpp.
    fn head(&self) -> Vec<u8> {
        let mut out = Vec::from(MAGIC);
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            encode_str(key, &mut out);
            out.extend((value.value_type() as u32).to_le_bytes());
            value.encode(&mut out);
        }
        out.extend(&self.infos);
        if !self.tensors.is_empty() {
            out.resize(out.len().next_multiple_of(self.alignment as usize), 0);
        }
        out
    }
}

/// A file whose descriptions have been written: takes the tensors in the order of their declaration.
#[derive(Debug)]
pub struct GgufData<W> {
    out: W,
    tensors: std::vec::IntoIter<(String, u64)>,
    alignment: u64,
}

impl<W: Write> GgufData<W> {
    /// Writes the next tensor from pieces whose total size is the declared one.
    ///
    /// # Errors
    /// [`GgufError::Io`]; [`GgufError::Tensor`] if the pieces are longer or shorter than declared, or all
    /// tensors have been written. The file is invalid then.
    pub fn tensor<B: AsRef<[u8]>>(&mut self, pieces: impl IntoIterator<Item = B>) -> Result<(), GgufError> {
        let Some((name, want)) = self.tensors.next() else {
            let (name, detail) = ("(none)".into(), "every declared tensor is written".into());
            return Err(GgufError::Tensor { name, detail });
        };
        let mut written = 0;
        for piece in pieces {
            written += piece.as_ref().len() as u64;
            if written > want {
                break;
            }
            self.write(piece.as_ref())?;
        }
        if written != want {
            return Err(GgufError::Tensor { name, detail: format!("want {want} bytes, found {written}") });
        }
        let padding = want.next_multiple_of(self.alignment) - want;
        self.write(&vec![0; padding as usize])
    }

    /// Ends the file.
    ///
    /// # Errors
    /// [`GgufError::Tensor`] if a tensor has not been written; [`GgufError::Io`].
    pub fn finish(mut self) -> Result<W, GgufError> {
        if let Some((name, want)) = self.tensors.next() {
            return Err(GgufError::Tensor { name, detail: format!("want {want} bytes, found none") });
        }
        self.out.flush().map_err(|error| GgufError::Io { call: "write", error })?;
        Ok(self.out)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), GgufError> {
        self.out.write_all(bytes).map_err(|error| GgufError::Io { call: "write", error })
    }
}
