//! Finds the origin of logits that are NaN or infinite: runs the step again, stage by stage.

use super::error::Error;
use super::fault::{BrokenLogits, BrokenStage};
use super::runner::Runner;
use super::sequence::Sequence;
use sterna_program::sampling::is_broken;
use sterna_program::{Program, Row, RowsOf, Step};

impl Runner {
    /// True if the logits of the row at `at` of `seq`, computed once more, contain NaN or infinity.
    /// Overwrites the logits of the last run.
    ///
    /// # Errors
    /// [`Error::Backend`].
    pub fn is_broken_again(&mut self, program: &Program, seq: &Sequence, at: usize) -> Result<bool, Error> {
        let Some(row) = self.rows_again(program, seq, at).pop() else { return Ok(false) };
        let step = Step { rows: &[row], pages: self.pages.table(), sampling: &[], changes: &[] };
        self.backend.run(self.exec, &step)?;
        let mut logits = vec![0.0; program.logits().map_or(0, |s| program.buf_decl(s.logits).cols)];
        self.logits(0, &mut logits)?;
        Ok(is_broken(&logits))
    }

    /// Origin of the broken logits after position `at` of `seq`. Overwrites all buffers.
    pub fn broken(&mut self, program: &Program, seq: &Sequence, at: usize) -> BrokenLogits {
        BrokenLogits {
            position: at,
            origin: self.first_broken(program, seq, at).ok().flatten().map(Box::new),
        }
    }

    /// The last rows up to `at` that one step can run again; it rewrites the cached keys and values
    /// unchanged.
    fn rows_again(&self, program: &Program, seq: &Sequence, at: usize) -> Vec<Row> {
        let Some(slot) = seq.slot.filter(|_| at < seq.cached.min(seq.tokens.len())) else {
            return Vec::new();
        };
        let positions = (0..=at).rev().take(program.limits.rows);
        let first = positions.take_while(|&pos| self.pages.runs_again(slot, pos)).last().unwrap_or(at + 1);
        let row = |pos: usize| Row { token: seq.tokens[pos], pos: pos as u32, seq: slot, logits: pos == at };
        (first..=at).map(row).collect()
    }

    fn first_broken(
        &mut self,
        program: &Program,
        seq: &Sequence,
        at: usize,
    ) -> Result<Option<BrokenStage>, Error> {
        let rows = self.rows_again(program, seq, at);
        if rows.is_empty() {
            return Ok(None);
        }
        for (i, (label, stage)) in program.stages.iter().enumerate() {
            let step = Step { rows: &rows, pages: self.pages.table(), sampling: &[], changes: &[] };
            self.backend.run_stages(self.exec, i..i + 1, &step)?;
            for buf in stage.bufs().1 {
                let decl = program.buf_decl(buf);
                let of_buf = match decl.rows {
                    RowsOf::Step => &rows[..],
                    RowsOf::Outputs => &rows[rows.len() - 1..],
                };
                let mut values = vec![0.0; of_buf.len() * decl.cols];
                self.backend.read(self.exec, buf, 0, &mut values)?;
                let results = of_buf.iter().zip(values.chunks_exact(decl.cols));
                let mut broken = results.filter(|(_, values)| !values.iter().all(|x| x.is_finite()));
                if let Some((row, _)) = broken.next() {
                    let weights = stage.weights().into_iter();
                    let weights = weights.map(|w| program.weight_decl(w).name.clone()).collect();
                    let position = row.pos as usize;
                    return Ok(Some(BrokenStage { label: label.clone(), position, weights }));
                }
            }
        }
        Ok(None)
    }
}
