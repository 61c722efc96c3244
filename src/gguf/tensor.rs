//! A tensor of a file that has not been read yet.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType};

use super::source::{Data, Gathered};
use super::{GgufError, Source};

/// Description of a tensor and the location of its bytes. Cloning shares them.
#[derive(Clone, Debug)]
pub struct FileTensor {
    /// GGUF name, such as `blk.3.attn_q.weight`.
    pub name: String,
    /// Type of the bytes.
    pub ty: &'static dyn QuantType,
    /// All outer dimensions multiplied; 1 for a vector.
    pub rows: usize,
    /// The contiguous dimension.
    pub cols: usize,
    data: Data,
    /// Offset of its first byte in `data`.
    start: u64,
}

impl From<HostTensor> for FileTensor {
    fn from(tensor: HostTensor) -> Self {
        let HostTensor { name, ty, rows, cols, bytes } = tensor;
        Self { name, ty, rows, cols, data: Data::Bytes(bytes), start: 0 }
    }
}

impl FileTensor {
    /// The tensor of this shape whose bytes begin at `start`.
    ///
    /// # Errors
    /// [`GgufError::Quant`] for a shape that the type cannot hold.
    pub(super) fn new(
        name: String,
        ty: &'static dyn QuantType,
        [rows, cols]: [usize; 2],
        (data, start): (Data, u64),
    ) -> Result<Self, GgufError> {
        let tensor = Self { name, ty, rows, cols, data, start };
        tensor.sizes()?;
        Ok(tensor)
    }

    /// Reader of its file, bypassing a map, and the offset of its first byte; `None` if only the header was
    /// read.
    pub fn source(&self) -> Option<(Arc<dyn Source>, u64)> {
        Some((self.data.source()?, self.start))
    }

    /// Size of the tensor in bytes.
    pub fn n_bytes(&self) -> usize {
        self.sizes().map_or(0, |(_, all)| all)
    }

    /// The whole tensor: shared if the file is in memory or mapped, otherwise read.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn read(&self) -> Result<HostTensor, GgufError> {
        let (_, all) = self.sizes()?;
        Ok(self.host(self.rows, self.data.read(self.start, all)?))
    }

    /// A range of rows as a separate tensor, including data that the type stores after its rows.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    ///
    /// # Panics
    /// If the tensor does not have these rows, or the range splits rows that are [stored
    /// together](QuantType::rows_together).
    pub fn read_rows(&self, rows: Range<usize>) -> Result<HostTensor, GgufError> {
        if rows == (0..self.rows) {
            return self.read();
        }
        let (row_bytes, all) = self.sizes()?;
        let tail = all - self.rows * row_bytes;
        let (at, len) = self.stretch(&rows, row_bytes);
        if tail == 0 {
            return Ok(self.host(rows.len(), self.data.read(at, len)?));
        }
        let end = self.data.read(self.start + (self.rows * row_bytes) as u64, tail)?;
        let mut bytes = Vec::with_capacity(len + tail);
        bytes.extend_from_slice(&self.data.read(at, len)?);
        bytes.extend_from_slice(&end);
        Ok(self.host(rows.len(), Bytes::from(bytes)))
    }

    /// A range of rows as a separate tensor with its own name; only for types without data after the rows.
    ///
    /// # Panics
    /// As [`read_rows`](Self::read_rows).
    pub fn cut(&self, name: String, rows: Range<usize>) -> Self {
        let row_bytes = self.sizes().map_or(0, |(row_bytes, _)| row_bytes);
        let (start, _) = self.stretch(&rows, row_bytes);
        Self { name, rows: rows.len(), start, ..self.clone() }
    }

    /// Ranges of rows, concatenated as a separate tensor with its own name; only for types without data after
    /// the rows. Rows are copied when they are read.
    ///
    /// # Panics
    /// As [`read_rows`](Self::read_rows).
    pub fn gather(&self, name: String, ranges: &[Range<usize>]) -> Self {
        let row_bytes = self.sizes().map_or(0, |(row_bytes, _)| row_bytes);
        let stretches = ranges.iter().map(|rows| self.stretch(rows, row_bytes));
        let data = match self.data.source() {
            Some(source) => Data::Source(Arc::new(Gathered::new(source, stretches))),
            None => Data::Header,
        };
        let rows = ranges.iter().map(ExactSizeIterator::len).sum();
        Self { name, rows, data, start: 0, ..self.clone() }
    }

    /// The first or the second half of each row, as a separate tensor with its own name. Rows are copied when
    /// they are read. `None` for a type whose rows depend on each other or whose blocks cross the middle.
    pub fn half_rows(&self, name: String, second: bool) -> Option<Self> {
        let (row_bytes, all) = self.sizes().ok()?;
        let half_bytes = self.ty.row_bytes(self.cols / 2).ok()?;
        let divides = self.cols.is_multiple_of(2) && 2 * half_bytes == row_bytes;
        if !divides || self.ty.rows_together() != 1 || all != self.rows * row_bytes {
            return None;
        }
        let first = self.start + if second { half_bytes as u64 } else { 0 };
        let halves = (0..self.rows).map(|row| (first + (row * row_bytes) as u64, half_bytes));
        let data = match self.data.source() {
            Some(source) => Data::Source(Arc::new(Gathered::new(source, halves))),
            None => Data::Header,
        };
        Some(Self { name, cols: self.cols / 2, data, start: 0, ..self.clone() })
    }

    /// Offset of rows in the file, and their size in bytes.
    fn stretch(&self, rows: &Range<usize>, row_bytes: usize) -> (u64, usize) {
        let together = self.ty.rows_together();
        let whole = [rows.start, rows.end].iter().all(|row| row.is_multiple_of(together));
        assert!(rows.end <= self.rows && rows.start <= rows.end && whole, "rows {rows:?} of {}", self.name);
        (self.start + (rows.start * row_bytes) as u64, rows.len() * row_bytes)
    }

    /// Bytes of a row and of the whole tensor.
    fn sizes(&self) -> Result<(usize, usize), GgufError> {
        let quant = |error| GgufError::Quant { name: self.name.clone(), error };
        let row_bytes = self.ty.row_bytes(self.cols).map_err(quant)?;
        Ok((row_bytes, self.ty.byte_len(self.rows, self.cols).map_err(quant)?))
    }

    fn host(&self, rows: usize, bytes: Bytes) -> HostTensor {
        HostTensor { name: self.name.clone(), ty: self.ty, rows, cols: self.cols, bytes }
    }
}

#[cfg(test)]
mod tests {
    use ggml_types::types::{self, REGISTRY};

    use super::*;

    /// In memory and from a source, read as a whole and in parts that cross the ranges.
    #[test]
    fn gathered_rows_are_in_the_order_of_their_ranges() {
        let file = Bytes::from((0..27_u8).collect::<Vec<u8>>());
        for data in [Data::Bytes(file.clone()), Data::Source(std::sync::Arc::new(file))] {
            let tensor = FileTensor::new("w".into(), &types::F32, [6, 1], (data, 3)).unwrap();
            let gathered = tensor.gather("v".into(), &[4..6, 0..1, 2..3]);
            assert_eq!((gathered.name.as_str(), gathered.rows), ("v", 4));
            let want: Vec<u8> = (19..27).chain(3..7).chain(11..15).collect();
            assert_eq!(gathered.read().unwrap().bytes, want);
            assert_eq!(gathered.read_rows(1..3).unwrap().bytes, want[4..12]);
            let (source, start) = gathered.cut("c".into(), 2..4).source().unwrap();
            let mut part = [0; 5];
            source.read_at(start + 1, &mut part).unwrap();
            assert_eq!((part.as_slice(), source.file_bytes()), (&want[9..14], 16));
            assert!(source.read_at(start + 4, &mut part).is_err());
        }
    }

    #[test]
    fn halves_of_rows_are_read_row_by_row() {
        let file = Bytes::from((0..32_u8).collect::<Vec<u8>>());
        let tensor = FileTensor::new("w".into(), &types::F16, [3, 4], (Data::Bytes(file), 2)).unwrap();
        let [first, second] = [false, true].map(|second| tensor.half_rows("h".into(), second).unwrap());
        assert_eq!((first.rows, first.cols), (3, 2));
        let want: Vec<u8> = [2..6, 10..14, 18..22].into_iter().flatten().collect();
        assert_eq!(first.read().unwrap().bytes, want);
        assert_eq!(second.read_rows(1..3).unwrap().bytes, [14, 15, 16, 17, 22, 23, 24, 25][..]);
        let blocks = FileTensor { ty: &types::Q8_0, cols: 32, rows: 1, ..tensor };
        assert!(blocks.half_rows("h".into(), false).is_none());
    }

    /// For every type, rows that are read separately decode as in the whole tensor.
    #[test]
    fn rows_are_those_of_the_whole() {
        const ROWS: usize = 12;
        for ty in REGISTRY {
            let cols = ty.block_elems().max(128) * 2;
            let values: Vec<f32> = (0..ROWS * cols).map(|i| [-0.5, 0.0, 0.5][i * i % 7 % 3]).collect();
            let Ok(bytes) = ty.encode(&values, ROWS, cols) else { continue };
            let bytes = Bytes::from([&[7; 5], bytes.as_slice(), &[9; 3]].concat());
            let data = Data::Source(std::sync::Arc::new(bytes));
            let tensor = FileTensor::new("w".into(), *ty, [ROWS, cols], (data, 5)).unwrap();
            let whole = tensor.read().unwrap();
            let decode = |tensor: &HostTensor, row: usize| {
                let mut out = vec![0.0; cols];
                tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, &mut out).unwrap();
                out
            };
            for rows in [0..ROWS, 0..4, 4..8, 8..12, 4..12] {
                let some = tensor.read_rows(rows.clone()).unwrap();
                assert_eq!(some.bytes.len(), ty.byte_len(rows.len(), cols).unwrap(), "{}", ty.name());
                for (i, row) in rows.enumerate() {
                    assert_eq!(decode(&some, i), decode(&whole, row), "{} row {row}", ty.name());
                }
            }
        }
    }
}
