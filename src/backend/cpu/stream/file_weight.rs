//! A weight that stays in its file.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ggml_types::HostTensor;

use crate::cpu::linear::CpuWeight;
use crate::cpu::system::NAME;
use crate::{BackendError, WeightBytes, WeightRows};
use sterna_program::WeightDecl;

/// Number of rows that pieces are a multiple of if they are large enough; the width of a product's tile.
const TILE: usize = 16;

/// A weight that is read in pieces of several rows, or row by row.
pub struct FileWeight {
    name: String,
    /// The weight's type and shape, with the bytes of its first rows only.
    pub shape: CpuWeight,
    row_bytes: usize,
    /// Bytes that the type stores after the rows.
    tail: Vec<u8>,
    file: Arc<dyn WeightBytes>,
    piece_rows: usize,
    slot_bytes: usize,
    /// Pieces whose codes were validated.
    checked: Vec<AtomicBool>,
}

/// Number of rows per piece.
fn piece_rows(decl: &WeightDecl, piece_bytes: usize) -> usize {
    let row_bytes = decl.ty.row_bytes(decl.cols).unwrap_or(usize::MAX).max(1);
    let (n, together) = (piece_bytes / row_bytes, decl.ty.rows_together());
    let unit = if n >= TILE { TILE.next_multiple_of(together) } else { together };
    (n / unit * unit).max(together).min(decl.rows)
}

/// Bytes of a slot for pieces of a weight.
pub fn slot_bytes(decl: &WeightDecl, piece_bytes: usize) -> usize {
    decl.ty.byte_len(piece_rows(decl, piece_bytes), decl.cols).unwrap_or(usize::MAX)
}

impl FileWeight {
    /// Wraps a weight that can be read repeatedly.
    ///
    /// # Errors
    /// The error of the read; [`BackendError::Weight`] for a weight that is converted while it is loaded.
    pub fn new(w: &dyn WeightRows, piece_bytes: usize) -> Result<Self, BackendError> {
        let decl = w.decl();
        let name = decl.name.clone();
        let Some(file) = w.reader() else {
            let detail = format!("{name} is converted while it is loaded, and does not fit in memory");
            return Err(BackendError::Weight(detail.into()));
        };
        let together = decl.ty.rows_together();
        let tensor = w.read(0..together)?;
        let row_bytes = decl.ty.row_bytes(decl.cols).expect("a shape that the type can hold");
        let tail = tensor.bytes[together * row_bytes..].to_vec();
        let (piece_rows, slot_bytes) = (piece_rows(decl, piece_bytes), slot_bytes(decl, piece_bytes));
        let checked = (0..decl.rows.div_ceil(piece_rows)).map(|_| AtomicBool::new(false)).collect();
        // Copies the bytes: sharing them would keep the file mapped.
        let bytes = tensor.bytes.to_vec().into();
        let mut shape = CpuWeight::new(&HostTensor { bytes, ..tensor });
        shape.rows = decl.rows;
        Ok(Self { name, shape, row_bytes, tail, file, piece_rows, slot_bytes, checked })
    }

    /// Number of pieces.
    pub fn n_pieces(&self) -> usize {
        self.checked.len()
    }

    /// Rows of a piece.
    pub fn rows_of(&self, piece: usize) -> Range<usize> {
        let start = piece * self.piece_rows;
        start..(start + self.piece_rows).min(self.shape.rows)
    }

    /// Bytes of a slot for its pieces.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Bytes of rows, including those that the type stores after the rows.
    fn bytes_of(&self, rows: &Range<usize>) -> usize {
        rows.len() * self.row_bytes + self.tail.len()
    }

    /// Reads a piece, and validates its codes the first time. Returns the number of bytes.
    ///
    /// # Errors
    /// If the read fails or a code is invalid.
    pub fn read_piece(&self, piece: usize, slot: &mut [u8]) -> Result<usize, BackendError> {
        let is_checked = &self.checked[piece];
        let n_bytes = self.read(self.rows_of(piece), slot, !is_checked.load(Ordering::Relaxed))?.len();
        is_checked.store(true, Ordering::Relaxed);
        Ok(n_bytes)
    }

    /// Decodes a row. `space` has room for [`row_space`](Self::row_space) bytes.
    ///
    /// # Errors
    /// As [`read_piece`](Self::read_piece).
    pub fn decode_row(&self, row: usize, space: &mut [u8], out: &mut [f32]) -> Result<(), BackendError> {
        let ty = self.shape.ty;
        let start = row / ty.rows_together() * ty.rows_together();
        let bytes = self.read(start..start + ty.rows_together(), space, true)?;
        let decoded = ty.decode_row(bytes, ty.rows_together(), row - start, out);
        decoded.expect("as many bytes as the rows take");
        Ok(())
    }

    /// Bytes that [`decode_row`](Self::decode_row) needs as workspace.
    pub fn row_space(&self) -> usize {
        self.bytes_of(&(0..self.shape.ty.rows_together()))
    }

    fn read<'a>(
        &self,
        rows: Range<usize>,
        space: &'a mut [u8],
        check: bool,
    ) -> Result<&'a [u8], BackendError> {
        let bytes = &mut space[..self.bytes_of(&rows)];
        let (codes, tail) = bytes.split_at_mut(rows.len() * self.row_bytes);
        let failed = |detail: String| {
            let detail = format!("{}, rows {} to {}: {detail}", self.name, rows.start, rows.end - 1);
            BackendError::Device { backend: NAME, call: "reading a weight again", detail }
        };
        self.file.read_at(rows.start * self.row_bytes, codes).map_err(|err| match err.kind() {
            io::ErrorKind::UnexpectedEof => failed(format!("the file has become shorter: {err}")),
            _ => failed(err.to_string()),
        })?;
        if check && !self.shape.ty.is_valid(codes) {
            return Err(failed(format!("an invalid {} code", self.shape.ty.name())));
        }
        tail.copy_from_slice(&self.tail);
        Ok(bytes)
    }
}
