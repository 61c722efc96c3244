//! Rewrites files: splits a model into parts, merges parts into one file, or changes the metadata. The bytes
//! of tensors do not change.

use std::io::Write;
use std::ops::{ControlFlow, Range};

use super::split::{COUNT_KEY, NUMBER_KEY, TENSORS_KEY};
use super::{Gguf, GgufError, GgufWriter, Metadata, TensorInfo, watched};

/// Size limit for a part of a split model. A part has at least one tensor, however large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartLimit {
    /// Maximum bytes of tensors.
    Bytes(u64),
    /// Maximum number of tensors.
    Tensors(usize),
}

/// One file to be written from a model's tensors.
#[derive(Debug)]
pub struct Rewrite<'a> {
    gguf: &'a Gguf,
    tensors: Range<usize>,
    writer: GgufWriter,
}

impl<'a> Rewrite<'a> {
    /// The whole model in one file, with this metadata; the keys of a split file are removed.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] for an invalid alignment; [`GgufError::Tensor`].
    pub fn whole(gguf: &'a Gguf, metadata: &Metadata) -> Result<Self, GgufError> {
        Self::new(gguf, 0..gguf.tensors().len(), without_split(metadata))
    }

    /// The model in parts, in order. All metadata is in the first one, which may have no tensors
    /// (`metadata_only`); every part contains its number.
    ///
    /// # Errors
    /// [`GgufError::Split`] for a limit of 0, and for more than 65535 parts, the maximum of the format.
    pub fn parts(gguf: &'a Gguf, limit: PartLimit, metadata_only: bool) -> Result<Vec<Self>, GgufError> {
        if matches!(limit, PartLimit::Bytes(0) | PartLimit::Tensors(0)) {
            return Err(GgufError::Split { detail: "want a limit of at least 1, found 0".to_owned() });
        }
        let empty = metadata_only.then_some(0..0);
        let ranges: Vec<Range<usize>> = empty.into_iter().chain(cut(gguf.tensors(), limit)).collect();
        let n_parts = u16::try_from(ranges.len()).map_err(|_| {
            let detail = format!("want at most 65535 parts, found {}: use a larger limit", ranges.len());
            GgufError::Split { detail }
        })?;
        let all = gguf.tensors().len() as i32;
        let part = |(number, range): (usize, Range<usize>)| {
            let mut metadata = match number {
                0 => without_split(gguf.metadata()),
                _ => Metadata::default(),
            };
            if let Some(alignment) = gguf.metadata().get("general.alignment") {
                metadata.set("general.alignment", alignment.clone());
            }
            metadata.set(NUMBER_KEY, number as u16);
            metadata.set(COUNT_KEY, n_parts);
            metadata.set(TENSORS_KEY, all);
            Self::new(gguf, range, metadata)
        };
        ranges.into_iter().enumerate().map(part).collect()
    }

    fn new(gguf: &'a Gguf, tensors: Range<usize>, metadata: Metadata) -> Result<Self, GgufError> {
        let mut writer = GgufWriter::new(metadata)?;
        for info in &gguf.tensors()[tensors.clone()] {
            writer.tensor(&info.name, &info.dims, info.type_id, info.n_bytes)?;
        }
        Ok(Self { gguf, tensors, writer })
    }

    /// Tensors of the file, in order.
    pub fn tensors(&self) -> &'a [TensorInfo] {
        &self.gguf.tensors()[self.tensors.clone()]
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.writer.file_bytes()
    }

    /// Writes the file; `progress` gets the number of bytes written so far and may stop. Returns false if it
    /// did.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn write(
        self,
        out: impl Write,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<bool, GgufError> {
        /// Bytes between two calls of `progress`.
        const PIECE: usize = 1 << 22;
        let done = watched(out, progress, |out| {
            let mut data = self.writer.begin(out)?;
            for info in &self.gguf.tensors()[self.tensors] {
                let mut failed = None;
                let starts = (0..info.n_bytes).step_by(PIECE);
                let written = data.tensor(starts.map_while(|at| {
                    let piece = self.gguf.raw_piece(info, at..info.n_bytes.min(at + PIECE as u64));
                    piece.map_err(|error| failed = Some(error)).ok()
                }));
                failed.map_or(written, Err)?;
            }
            data.finish().map(drop)
        })?;
        Ok(done.is_some())
    }
}

/// Removes the keys of a split file.
fn without_split(metadata: &Metadata) -> Metadata {
    let mut out = metadata.clone();
    for key in [NUMBER_KEY, COUNT_KEY, TENSORS_KEY] {
        out.remove(key);
    }
    out
}

/// Ranges of tensors of the parts.
fn cut(tensors: &[TensorInfo], limit: PartLimit) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let (mut start, mut bytes) = (0, 0u64);
    for (at, info) in tensors.iter().enumerate() {
        let more = info.n_bytes;
        let is_full = match limit {
            PartLimit::Bytes(most) => bytes.saturating_add(more) > most,
            PartLimit::Tensors(most) => at - start >= most,
        };
        if is_full && at > start {
            ranges.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes = bytes.saturating_add(more);
    }
    ranges.push(start..tensors.len());
    ranges
}
