//! Finds and reads golden data.

use std::path::{Path, PathBuf};

use crate::print_note;

/// Root of the repository, from any test package.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package.ancestors().find(|dir| dir.join("ggml-types").is_dir());
    root.expect("the tests are in the repository").to_path_buf()
}

/// A golden file, from `tests/data/golden` or else from `../shared/golden`. If neither has it, prints a line
/// and returns `None`, and the test is skipped.
pub fn golden(path: &str) -> Option<PathBuf> {
    let root = root();
    let found = ["tests/data/golden", "../shared/golden"]
        .iter()
        .map(|dir| root.join(dir).join(path))
        .find(|candidate| candidate.exists());
    if found.is_none() {
        print_note(format_args!("not run: ../shared/golden not found ({path})"));
    }
    found
}

/// A golden folder, in each of the two places that has it; `tests/data` contains excerpts.
pub fn golden_dirs(path: &str) -> Vec<PathBuf> {
    let dirs = ["tests/data/golden", "../shared/golden"].iter().map(|dir| root().join(dir).join(path));
    let (found, missing): (Vec<_>, Vec<_>) = dirs.partition(|dir| dir.is_dir());
    for dir in missing.iter().filter(|dir| !dir.starts_with(root().join("tests"))) {
        print_note(format_args!("not run in full: {} not found", dir.display()));
    }
    found
}

/// A NumPy array, in row-major order.
pub struct Npy {
    /// Dimensions, contiguous last.
    pub shape: Vec<usize>,
    /// The elements' bytes, little-endian.
    pub bytes: Vec<u8>,
    /// NumPy's name of the element type: `<f4`, `|u1`.
    pub dtype: String,
}

/// Reads a `.npy` file; two-dimensional arrays may be in Fortran order.
pub fn npy(path: &Path) -> Npy {
    let file = std::fs::read(path).unwrap_or_else(|err| panic!("{}: {err}", path.display()));
    assert_eq!(&file[..6], b"\x93NUMPY", "{}", path.display());
    let (start, header_len) = match file[6] {
        1 => (10, usize::from(u16::from_le_bytes([file[8], file[9]]))),
        _ => (12, u32::from_le_bytes([file[8], file[9], file[10], file[11]]) as usize),
    };
    let header = std::str::from_utf8(&file[start..start + header_len]).expect("an ASCII header");
    let between = |open: &str, close: &str| {
        let from = header.find(open).expect("a field") + open.len();
        let len = header[from..].find(close).expect("its end");
        &header[from..from + len]
    };
    let shape = between("'shape': (", ")").split(',').map(str::trim).filter(|dim| !dim.is_empty());
    let shape: Vec<usize> = shape.map(|dim| dim.parse().expect("a number")).collect();
    let mut bytes = file[start + header_len..].to_vec();
    if header.contains("'fortran_order': True") {
        let [rows, cols] = shape[..] else { panic!("{}: not of two dimensions", path.display()) };
        let elem_bytes = bytes.len() / (rows * cols);
        let elem = |row: usize, col: usize| bytes.chunks_exact(elem_bytes).nth(col * rows + row).unwrap();
        bytes = (0..rows * cols).flat_map(|at| elem(at / cols, at % cols)).copied().collect();
    }
    Npy { shape, dtype: between("'descr': '", "'").to_owned(), bytes }
}

impl Npy {
    pub fn f32s(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "<f4");
        self.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }

    pub fn i64s(&self) -> Vec<i64> {
        assert_eq!(self.dtype, "<i8");
        self.bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    }
}
