//! Uploads weights to a backend: each is read, checked, uploaded and dropped before the next one.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use ggml_types::HostTensor;

use super::error::Error;
use super::head;
use sterna_backend::{Backend, BackendError, WeightBytes, WeightId, WeightRows};
use sterna_gguf::{FileTensor, Source};
use sterna_host::in_parallel;
use sterna_model::ModelError;
use sterna_program::{Program, WeightDecl};

/// Progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of weights that are on the backend.
    pub done_bytes: u64,
    /// Bytes of all weights.
    pub total_bytes: u64,
}

/// Uploads the weights of a program to a backend: each is read, checked, uploaded and dropped before the next
/// one.
pub fn upload(
    backend: &mut dyn Backend,
    weights: Vec<FileTensor>,
    program: &Program,
    threads: usize,
    mut progress: impl FnMut(Progress),
) -> Result<Vec<WeightId>, Error> {
    backend.prepare(program)?;
    let total_bytes = weights.iter().map(|weight| weight.n_bytes() as u64).sum();
    let mut done_bytes = 0;
    progress(Progress { done_bytes, total_bytes });
    let mut ids = Vec::with_capacity(weights.len());
    for (tensor, decl) in weights.into_iter().zip(&program.weights) {
        let bytes = tensor.n_bytes() as u64;
        ids.push(backend.upload_rows(&Checked { tensor, decl, threads }).map_err(of_weight)?);
        done_bytes += bytes;
        progress(Progress { done_bytes, total_bytes });
    }
    Ok(ids)
}

/// A weight as a backend reads it: rows are checked and, for a re-encoded head, encoded as they are read.
pub struct Checked<'a> {
    pub tensor: FileTensor,
    pub decl: &'a WeightDecl,
    pub threads: usize,
}

impl WeightRows for Checked<'_> {
    fn decl(&self) -> &WeightDecl {
        self.decl
    }

    fn read(&self, rows: Range<usize>) -> Result<HostTensor, BackendError> {
        let weight = |error: ModelError| BackendError::Weight(error.into());
        // The file's type may store rows in groups, while the declared type does not.
        let together = self.tensor.ty.rows_together();
        let first = rows.start / together * together;
        let end = rows.end.next_multiple_of(together).min(self.tensor.rows);
        let tensor = self.tensor.read_rows(first..end).map_err(|error| weight(error.into()))?;
        check_codes(&tensor, first, self.threads).map_err(weight)?;
        if tensor.ty.is(self.decl.ty) {
            return Ok(tensor);
        }
        let encoded = head::encoded(&tensor, self.decl.ty, self.threads);
        let row_bytes = encoded.bytes.len() / encoded.rows;
        let bytes = encoded.bytes.slice((rows.start - first) * row_bytes..(rows.end - first) * row_bytes);
        Ok(HostTensor { rows: rows.len(), bytes, ..encoded })
    }

    fn reader(&self) -> Option<Arc<dyn WeightBytes>> {
        let is_as_declared = self.tensor.ty.is(self.decl.ty);
        let (source, start) = self.tensor.source().filter(|_| is_as_declared)?;
        Some(Arc::new(Again { source, start }))
    }
}

/// Reads a weight's bytes from its file again.
struct Again {
    source: Arc<dyn Source>,
    start: u64,
}

impl WeightBytes for Again {
    fn read_at(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        self.source.read_at(self.start + at as u64, into)
    }
}

/// Unwraps the model's error for an invalid weight.
pub(super) fn of_weight(error: BackendError) -> Error {
    match error {
        BackendError::Weight(error) => match error.downcast::<ModelError>() {
            Ok(error) => (*error).into(),
            Err(error) => BackendError::Weight(error).into(),
        },
        error => error.into(),
    }
}

/// Checks that the tensor, which begins with row `first`, contains no undefined codes: each kernel would
/// decode them differently.
fn check_codes(weight: &HostTensor, first: usize, threads: usize) -> Result<(), ModelError> {
    /// Large enough that starting a thread pays off, small enough that all threads finish together.
    const PIECE_BYTES: usize = 1 << 20;
    let fail = |got: String| {
        let want = format!("valid {} codes", weight.ty.name());
        ModelError::Tensor { tensor: weight.name.clone(), want, got }
    };
    let row_bytes = weight.ty.row_bytes(weight.cols).map_err(|err| fail(err.to_string()))?;
    let rows = &weight.bytes[..weight.rows * row_bytes];
    let pieces: Vec<&[u8]> = rows.chunks((PIECE_BYTES / row_bytes).max(1) * row_bytes).collect();
    if in_parallel(pieces.len(), threads, |at| weight.ty.is_valid(pieces[at])).into_iter().all(|valid| valid)
    {
        return Ok(());
    }
    let row = rows.chunks(row_bytes).position(|row| !weight.ty.is_valid(row));
    Err(fail(format!("an invalid code in row {}", first + row.unwrap_or(0))))
}
