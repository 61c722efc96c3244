//! Saved log-probabilities, as the base of a later comparison.
//!
//! All little-endian: the eight bytes `STERNAKL`; u32 version (1), n_ctx, n_vocab, n_chunks; the text as u32
//! ids `[n_chunks, n_ctx]`; then for each scored position f32 `top`, f32 `step`, and u16 codes `[n_vocab]`,
//! where a code is the log-probability `top - step * code`. `step` is the range of the row over
//! 65535, so nothing is clipped and the error is at most half a step.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use super::Chunks;

const MAGIC: &[u8; 8] = b"STERNAKL";
const VERSION: u32 = 1;
const MAX_CODE: f32 = 65535.0;

/// Reason why saved log-probabilities cannot be used for a comparison.
#[derive(Debug, thiserror::Error)]
pub enum LogProbsError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file has another format.
    #[error("not a file of saved log-probabilities; --save-logits writes one")]
    Unknown,
    /// The file is from another run.
    #[error("has {what} {got}, this run has {want}")]
    Other {
        /// The property that differs: `version`, `n_ctx`, `vocabulary` or `number of chunks`.
        what: &'static str,
        /// The value in the file.
        got: u32,
        /// The value of this run.
        want: u32,
    },
    /// The file is truncated, or something was appended to it.
    #[error("want {want} bytes, file has {got}")]
    Size {
        /// Size that its header implies, in bytes.
        want: u128,
        /// Actual size in bytes.
        got: u64,
    },
    /// The file is from another text.
    #[error("belongs to another text: token {position} is {got} in the file and {want} in this text")]
    Text {
        /// Index of the first token that differs, from 0.
        position: usize,
        /// The id in the file.
        got: u32,
        /// The id in this text.
        want: u32,
    },
}

/// Writes log-probabilities.
#[derive(Debug)]
pub struct LogProbsWriter(BufWriter<File>);

impl LogProbsWriter {
    /// Writes the header into an empty file.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new(file: File, text: &Chunks) -> io::Result<Self> {
        let mut out = BufWriter::new(file);
        out.write_all(MAGIC)?;
        let numbers = [VERSION, text.n_ctx as u32, text.n_vocab as u32, text.n_chunks() as u32];
        for number in numbers.iter().chain(&text.tokens) {
            out.write_all(&number.to_le_bytes())?;
        }
        Ok(Self(out))
    }

    /// Appends the log-probabilities of one position.
    ///
    /// # Errors
    /// I/O errors.
    pub fn row(&mut self, log_probs: &[f32]) -> io::Result<()> {
        let top = log_probs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let low = log_probs.iter().copied().fold(f32::INFINITY, f32::min);
        let step = (top - low) / MAX_CODE;
        self.0.write_all(&top.to_le_bytes())?;
        self.0.write_all(&step.to_le_bytes())?;
        for &log_prob in log_probs {
            let code = if step > 0.0 { ((top - log_prob) / step).round().min(MAX_CODE) } else { 0.0 };
            self.0.write_all(&(code as u16).to_le_bytes())?;
        }
        Ok(())
    }

    /// Flushes the buffer.
    ///
    /// # Errors
    /// I/O errors.
    pub fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Reads log-probabilities.
#[derive(Debug)]
pub struct LogProbsReader {
    input: BufReader<File>,
    row: Vec<u8>,
}

impl LogProbsReader {
    /// Opens a file that must be from `text`.
    ///
    /// # Errors
    /// [`LogProbsError`] for the first mismatch.
    pub fn open(path: &Path, text: &Chunks) -> Result<Self, LogProbsError> {
        let file = File::open(path)?;
        let got = file.metadata()?.len();
        let mut input = BufReader::new(file);
        let mut magic = [0; 8];
        let read = input.read_exact(&mut magic);
        if read.is_err() || magic != *MAGIC {
            return Err(LogProbsError::Unknown);
        }
        let mut numbers = [0u32; 4];
        for number in &mut numbers {
            *number = read_u32(&mut input)?;
        }
        let [_, n_ctx, n_vocab, n_chunks] = numbers;
        let want = [VERSION, text.n_ctx as u32, text.n_vocab as u32, text.n_chunks() as u32];
        let whats = ["version", "n_ctx", "vocabulary", "number of chunks"];
        for ((what, got), want) in whats.into_iter().zip(numbers).zip(want) {
            if got != want {
                return Err(LogProbsError::Other { what, got, want });
            }
        }
        let positions = u128::from(n_chunks) * text.scored() as u128;
        let want =
            24 + 4 * u128::from(n_chunks) * u128::from(n_ctx) + positions * (8 + 2 * u128::from(n_vocab));
        if u128::from(got) != want {
            return Err(LogProbsError::Size { want, got });
        }
        for (position, &want) in text.tokens.iter().enumerate() {
            let got = read_u32(&mut input)?;
            if got != want {
                return Err(LogProbsError::Text { position, got, want });
            }
        }
        Ok(Self { input, row: vec![0; 8 + 2 * text.n_vocab] })
    }

    /// Reads the log-probabilities of the next position into `out`, `[n_vocab]`.
    ///
    /// # Errors
    /// I/O errors.
    pub fn row(&mut self, out: &mut [f32]) -> io::Result<()> {
        self.input.read_exact(&mut self.row)?;
        let f32_at = |at: usize| f32::from_le_bytes(self.row[at..at + 4].try_into().expect("four bytes"));
        let (top, step) = (f32_at(0), f32_at(4));
        for (out, code) in out.iter_mut().zip(self.row[8..].chunks_exact(2)) {
            *out = top - step * f32::from(u16::from_le_bytes([code[0], code[1]]));
        }
        Ok(())
    }
}

fn read_u32(input: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    input.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_another_text_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("base");
        let text = Chunks { n_ctx: 4, n_vocab: 3, tokens: vec![1, 2, 0, 1] };
        let rows = [[-0.5, -3.25, -17.0]];
        let mut writer = LogProbsWriter::new(File::create(&path).unwrap(), &text).unwrap();
        rows.iter().for_each(|row| writer.row(row).unwrap());
        writer.finish().unwrap();

        let mut reader = LogProbsReader::open(&path, &text).unwrap();
        let mut row = [0.0; 3];
        for want in rows {
            reader.row(&mut row).unwrap();
            // Half a step of a range of 16.5 over 65535 codes.
            assert!(row.iter().zip(want).all(|(got, want)| (got - want).abs() <= 1.3e-4), "{row:?}");
        }
        let refused = |text: Chunks| LogProbsReader::open(&path, &text).unwrap_err().to_string();
        assert!(refused(Chunks { n_vocab: 4, ..text.clone() }).contains("vocabulary"));
        assert!(refused(Chunks { tokens: vec![1, 2, 1, 1], ..text.clone() }).contains("token 2 is 0"));
        let short = std::fs::read(&path).unwrap();
        std::fs::write(&path, &short[..short.len() - 1]).unwrap();
        assert!(refused(text).contains("want 54 bytes, file has 53"));
    }
}
