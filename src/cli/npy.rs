//! NumPy array files of float32, `[rows, cols]`, written row by row.

use std::fs::File;
use std::io::{self, BufWriter, Write};

/// Writer of one array (NumPy format 1.0, little-endian, C order).
#[derive(Debug)]
pub struct NpyWriter {
    out: BufWriter<File>,
    cols: usize,
    rows_left: usize,
}

impl NpyWriter {
    /// Writes the header for an array of `[rows, cols]`.
    ///
    /// # Errors
    /// Any I/O error.
    pub fn new(file: File, rows: usize, cols: usize) -> io::Result<Self> {
        let mut out = BufWriter::new(file);
        out.write_all(&header(rows, cols))?;
        Ok(Self { out, cols, rows_left: rows })
    }

    /// Appends one row of `cols` values.
    ///
    /// # Errors
    /// Any I/O error.
    ///
    /// # Panics
    /// If all rows have been written, or the row has a different length.
    pub fn row(&mut self, values: &[f32]) -> io::Result<()> {
        assert_eq!(values.len(), self.cols);
        self.rows_left = self.rows_left.checked_sub(1).expect("a row beyond the shape");
        for value in values {
            self.out.write_all(&value.to_le_bytes())?;
        }
        Ok(())
    }

    /// Writes the buffered rows.
    ///
    /// # Errors
    /// Any I/O error, such as a full disk.
    ///
    /// # Panics
    /// If rows are missing.
    pub fn finish(mut self) -> io::Result<()> {
        assert_eq!(self.rows_left, 0, "rows are missing");
        self.out.flush()
    }
}

/// Magic, version, length, and the dictionary padded with blanks to a multiple of 64 bytes.
fn header(rows: usize, cols: usize) -> Vec<u8> {
    const START: usize = 10;
    let mut dict = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    let padded = (START + dict.len() + 1).next_multiple_of(64);
    dict.push_str(&" ".repeat(padded - START - dict.len() - 1));
    dict.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((dict.len() as u16).to_le_bytes());
    bytes.extend(dict.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_numpys() {
        let bytes = header(180, 640);
        assert_eq!(bytes.len(), 128);
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        let text = std::str::from_utf8(&bytes[10..]).unwrap();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (180, 640), }"));
        assert!(text.ends_with(" \n"));
    }
}
