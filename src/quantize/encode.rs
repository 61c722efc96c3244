//! Encodes one tensor, in pieces and on several threads.

use std::ops::Range;
use std::vec::IntoIter;

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType};

use super::ternary::{Absmean, WeightStats};
use super::{Outcome, QuantizeError, Target};
use sterna_host::in_parallel;

/// Maximum number of elements of a task. Tasks do not depend on the number of threads, and so neither do sums
/// over their results.
const TASK_ELEMS: usize = 1 << 18;
/// Tasks per thread whose results are held at a time.
const TASKS_AHEAD: usize = 4;

/// Iterates over a tensor's encoded bytes; ends early if a weight cannot be stored.
pub(super) struct Encoder<'a> {
    target: &'a Target,
    source: HostTensor,
    absmean: Option<Absmean>,
    threads: usize,
    /// Rows that are not yet assigned to a task.
    tasks: IntoIter<Range<usize>>,
    /// Encoded bytes that are ready.
    pieces: IntoIter<Bytes>,
    /// Bytes that the type stores after the rows, until they are returned.
    tail: Option<Bytes>,
    squares: Squares,
    failed: Option<QuantizeError>,
}

/// Sums over elements.
#[derive(Clone, Copy, Debug, Default)]
struct Squares {
    weights: f64,
    errors: f64,
    n_changed: u64,
}

impl<'a> Encoder<'a> {
    /// Scans the whole tensor first if it is rounded to ternary or copied.
    ///
    /// # Errors
    /// [`QuantizeError::Value`].
    pub fn new(target: &'a Target, source: HostTensor, threads: usize) -> Result<Self, QuantizeError> {
        let (squares, failed) = (Squares::default(), None);
        let (rows, cols) = target.shape();
        let step = (TASK_ELEMS / cols.max(1)).max(1).next_multiple_of(target.ty.rows_together());
        let tasks: Vec<_> = (0..rows).step_by(step).map(|row| row..rows.min(row + step)).collect();
        if target.copied {
            if cols > 0 {
                target.check(&source, &tasks, threads)?;
            }
            let (tasks, pieces) = (Vec::new().into_iter(), vec![source.bytes.clone()].into_iter());
            let (absmean, tail) = (None, None);
            return Ok(Self { target, source, absmean, threads, tasks, pieces, tail, squares, failed });
        }
        let absmean = match target.absmean {
            true => Some(target.census(&source, &tasks, threads)?.absmean()),
            false => None,
        };
        let tail = absmean.map(|absmean| tail(target.ty, absmean));
        let (tasks, pieces) = (tasks.into_iter(), Vec::new().into_iter());
        Ok(Self { target, source, absmean, threads, tasks, pieces, tail, squares, failed })
    }

    /// The relative error and other results, after all pieces.
    ///
    /// # Errors
    /// [`QuantizeError::Value`] if that ended the iteration.
    pub fn finish(self) -> Result<Outcome, QuantizeError> {
        let Squares { weights, errors, n_changed } = self.squares;
        match self.failed {
            Some(error) => Err(error),
            None if weights == 0.0 => Ok(Outcome { n_changed, ..Outcome::default() }),
            None => Ok(Outcome { error: (errors / weights).sqrt(), n_changed, ..Outcome::default() }),
        }
    }

    /// Encodes the next rows on all threads.
    fn refill(&mut self) -> Result<(), QuantizeError> {
        let (target, source, absmean) = (self.target, &self.source, self.absmean);
        let tasks: Vec<_> = self.tasks.by_ref().take(self.threads.saturating_mul(TASKS_AHEAD)).collect();
        let results = in_parallel(tasks.len(), self.threads, |task| {
            target.encode(source, tasks[task].clone(), absmean)
        });
        let mut pieces = Vec::with_capacity(results.len());
        for result in results {
            let (bytes, squares) = result?;
            self.squares.weights += squares.weights;
            self.squares.errors += squares.errors;
            self.squares.n_changed += squares.n_changed;
            pieces.push(bytes);
        }
        self.pieces = pieces.into_iter();
        Ok(())
    }
}

impl Iterator for Encoder<'_> {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.pieces.len() == 0 && self.tasks.len() > 0 {
            self.failed = self.refill().err();
        }
        match self.failed {
            Some(_) => None,
            None => self.pieces.next().or_else(|| self.tail.take()),
        }
    }
}

impl Target {
    /// Rows and columns as seen by tasks: a row that is too long for a task is split into several, unless its
    /// blocks share data. Blocks follow each other without gaps, so the bytes are the same.
    fn shape(&self) -> (usize, usize) {
        let (rows, cols) = (self.rows, self.cols);
        let block = self.ty.block_elems();
        let has_head = self.ty.row_bytes(0).is_ok_and(|bytes| bytes > 0);
        let part = match cols <= TASK_ELEMS || has_head {
            true => cols,
            // Both are whole blocks, and so is their common divisor.
            false => common_divisor(cols, TASK_ELEMS / block * block),
        };
        (rows * (cols / part), part)
    }

    /// Checks that all weights are finite numbers.
    fn check(
        &self,
        source: &HostTensor,
        tasks: &[Range<usize>],
        threads: usize,
    ) -> Result<(), QuantizeError> {
        let check = |task: usize| {
            let mut weights = vec![0.0; self.shape().1];
            tasks[task].clone().try_for_each(|row| self.weights(source, row, &mut weights))
        };
        in_parallel(tasks.len(), threads, check).into_iter().collect()
    }

    /// Collects statistics over all weights, in an order that does not depend on the threads.
    fn census(
        &self,
        source: &HostTensor,
        tasks: &[Range<usize>],
        threads: usize,
    ) -> Result<WeightStats, QuantizeError> {
        let count = |task: usize| -> Result<WeightStats, QuantizeError> {
            let mut weights = vec![0.0; self.shape().1];
            let mut census = WeightStats::default();
            for row in tasks[task].clone() {
                self.weights(source, row, &mut weights)?;
                census = census.and(WeightStats::of(&weights));
            }
            Ok(census)
        };
        let mut counted = in_parallel(tasks.len(), threads, count).into_iter();
        counted.try_fold(WeightStats::default(), |all, census| Ok(all.and(census?)))
    }

    /// Decodes one row of the source.
    fn weights(&self, source: &HostTensor, row: usize, out: &mut [f32]) -> Result<(), QuantizeError> {
        source.ty.decode_row(&source.bytes, self.shape().0, row, out).expect("the tensor has this row");
        match out.iter().position(|weight| !weight.is_finite()) {
            Some(col) => Err(self.lost(row, col, out[col])),
            None => Ok(()),
        }
    }

    /// Encodes rows, without the bytes that the type stores after the last one.
    fn encode(
        &self,
        source: &HostTensor,
        rows: Range<usize>,
        absmean: Option<Absmean>,
    ) -> Result<(Bytes, Squares), QuantizeError> {
        let (cols, n_rows) = (self.shape().1, rows.len());
        let mut weights = vec![0.0; n_rows * cols];
        for (row, weights) in rows.clone().zip(weights.chunks_exact_mut(cols)) {
            self.weights(source, row, weights)?;
        }
        let ternary: Option<Vec<f32>> =
            absmean.map(|absmean| weights.iter().map(|weight| absmean.round(*weight)).collect());
        let rounded = ternary.as_deref().unwrap_or(&weights);
        let mut bytes = match &self.importance {
            None => self.ty.encode(rounded, n_rows, cols).expect("the shape was checked"),
            Some(importance) => self.encode_weighted(rounded, rows.clone(), importance),
        };
        let (mut squares, mut kept) = (Squares::default(), vec![0.0; cols]);
        for (at, weights) in weights.chunks_exact(cols).enumerate() {
            self.ty.decode_row(&bytes, n_rows, at, &mut kept).expect("the row was encoded");
            for (col, (weight, kept)) in weights.iter().zip(&kept).enumerate() {
                if !kept.is_finite() || self.exact && kept != weight {
                    return Err(self.lost(rows.start + at, col, *weight));
                }
                squares.n_changed += u64::from(kept != weight);
                squares.weights += f64::from(*weight).powi(2);
                squares.errors += (f64::from(*kept) - f64::from(*weight)).powi(2);
            }
        }
        bytes.truncate(n_rows * self.ty.row_bytes(cols).expect("the shape was checked"));
        Ok((bytes.into(), squares))
    }

    /// Encodes row by row, each with the importance of its matrix's columns.
    fn encode_weighted(&self, weights: &[f32], rows: Range<usize>, importance: &[f32]) -> Vec<u8> {
        let (all, cols) = self.shape();
        let parts = self.cols / cols;
        let rows_a_matrix = all / (importance.len() / self.cols);
        let mut bytes = Vec::new();
        for (row, weights) in rows.zip(weights.chunks_exact(cols)) {
            let start = row / rows_a_matrix * self.cols + row % parts * cols;
            let encoded = self.ty.encode_weighted(weights, &importance[start..start + cols]);
            bytes.extend(encoded.expect("the shape was checked"));
        }
        bytes
    }

    fn lost(&self, row: usize, col: usize, value: f32) -> QuantizeError {
        let elem = row * self.shape().1 + col;
        let (row, col) = (elem / self.cols, elem % self.cols);
        QuantizeError::Value { name: self.name.clone(), row, col, value, ty: self.ty.name() }
    }
}

/// Greatest common divisor, by Euclid's algorithm.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Bytes that the type stores after the rows of a tensor with this scale.
fn tail(ty: &dyn QuantType, absmean: Absmean) -> Bytes {
    let (rows, block) = (ty.rows_together(), ty.block_elems());
    let mut values = vec![0.0; rows * block];
    values[0] = absmean.scale;
    let mut bytes = ty.encode(&values, rows, block).expect("one block");
    bytes.split_off(rows * ty.row_bytes(block).expect("one block")).into()
}
