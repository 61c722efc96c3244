//! Errors of reading or writing a GGUF file.
//!
//! Names come from the file and may contain anything; messages escape characters that could control a
//! terminal.

use std::io;
use std::path::PathBuf;

use ggml_types::QuantError;

/// Error with what was expected, what was found, and where. Offsets are from the start of the file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// Any of the other errors, with the file that it occurred in.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        error: Box<GgufError>,
    },
    /// An error of the operating system.
    #[error("cannot {call}: {error}")]
    Io {
        /// The operation.
        call: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The system does not lock the pages of the file's map.
    #[error(
        "cannot lock the map: {error}: the model needs {bytes} bytes of locked memory, and RLIMIT_MEMLOCK \
         (ulimit -l) limits how much this process may lock{}",
        DO_NOT_LOCK.concat()
    )]
    Lock {
        /// The system's error.
        error: io::Error,
        /// Bytes of the file.
        bytes: usize,
    },
    /// Not a file that can contain a model at all: a directory, a pipe, an empty file.
    #[error("want a GGUF file, found {found}")]
    NotAFile {
        /// The kind of thing found instead.
        found: &'static str,
    },
    /// Another format, or an unsupported kind of GGUF; with a suggestion.
    #[error("{found}; {way_out}")]
    NotGguf {
        /// Kind of file, from its first bytes.
        found: String,
        /// Suggestion for the user.
        way_out: &'static str,
    },
    /// A GGUF file with something else than a model; with a suggestion.
    #[error("the file contains {found}, not a model: {way_out}")]
    NotAModel {
        /// Its content.
        found: &'static str,
        /// Suggestion for the user.
        way_out: &'static str,
    },
    /// The file is shorter than its descriptions specify, for example after an interrupted download.
    #[error("incomplete: {have} of {want} bytes; download it again")]
    Incomplete {
        /// Bytes of the file.
        have: u64,
        /// Bytes up to the end of its last tensor.
        want: u64,
    },
    /// The file ends inside some part.
    #[error(
        "{what} at {offset:#x}: want {want} bytes, file has {got}; if it is truncated, download it again"
    )]
    Truncated {
        /// Part that was being read.
        what: &'static str,
        /// Offset of its start.
        offset: usize,
        /// Size of the part in bytes.
        want: u64,
        /// Number of bytes left.
        got: u64,
    },
    /// The descriptions continue after the given first bytes of a file.
    #[error(
        "the header does not end in the first {have} bytes: at least {} more are needed",
        need - *have as u64
    )]
    MoreOfHeader {
        /// Number of bytes given.
        have: usize,
        /// Number of bytes from the start of the file needed to read on; more may be needed then.
        need: u64,
    },
    /// The weights of a file are needed, but only its descriptions were read.
    #[error("only the header of this file was read, but its weights are needed")]
    HeaderOnly,
    /// The bytes are invalid.
    #[error("{what} at {offset:#x}: {detail}")]
    Malformed {
        /// Part that was being read.
        what: &'static str,
        /// Offset of its start.
        offset: usize,
        /// Expected and actual values.
        detail: String,
    },
    /// A key or tensor name that occurs twice.
    #[error("{what} `{}` at {offset:#x}: duplicate name", name.escape_debug())]
    Duplicate {
        /// `key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
        /// Offset of the second one.
        offset: usize,
    },
    /// A tensor whose description does not fit the file.
    #[error("tensor {}: {detail}", name.escape_debug())]
    Tensor {
        /// GGUF name.
        name: String,
        /// Expected and actual values.
        detail: String,
    },
    /// A tensor whose shape its type cannot hold.
    #[error("tensor {}: {error}", name.escape_debug())]
    Quant {
        /// GGUF name.
        name: String,
        /// The error of the type.
        error: QuantError,
    },
    /// A tensor type without an implementation here.
    #[error("tensor {}: type {ty} is not supported; {way_out}", name.escape_debug())]
    Unsupported {
        /// GGUF name.
        name: String,
        /// Name of the type, or its id.
        ty: String,
        /// Suggestion for the user.
        way_out: String,
    },
    /// A type name that is unknown, or that has no id in files.
    #[error("want one of {known}, found {}", name.escape_debug())]
    UnknownType {
        /// The name.
        name: String,
        /// The known names.
        known: String,
    },
    /// The type ids have different meanings in llama.cpp and in microsoft/BitNet, and the dialect cannot be
    /// determined.
    #[error("cannot tell which type ids the file uses: {detail}{}", CHOOSE_DIALECT.concat())]
    Dialect {
        /// Properties that were examined.
        detail: String,
    },
    /// The key is missing.
    #[error("metadata key `{}` is missing (want {want})", key.escape_debug())]
    MissingKey {
        /// The key.
        key: String,
        /// Expected type.
        want: &'static str,
    },
    /// A value of another type or out of range.
    #[error("metadata key `{}`: want {want}, found {found}", key.escape_debug())]
    WrongType {
        /// The key.
        key: String,
        /// Expected type.
        want: &'static str,
        /// Actual type or value.
        found: String,
    },
    /// The tensor is missing.
    #[error("tensor {} is missing", name.escape_debug())]
    NoTensor {
        /// GGUF name.
        name: String,
    },
    /// The parts of a split file do not match.
    #[error("split file: {detail}")]
    Split {
        /// Expected and actual values.
        detail: String,
    },
}

/// The end of [`GgufError::Dialect`].
const CHOOSE_DIALECT: [&str; 3] = ["; choose with ", "OpenOptions::dialect", ": ggml or bitnet"];

/// The end of [`GgufError::Lock`].
const DO_NOT_LOCK: [&str; 3] =
    ["; raise the limit, or leave out ", "OpenOptions::access", ", which requests it"];

impl GgufError {
    /// The end of the message that names an option which avoids the error: the text before the option, the
    /// option by its path, and the text after it.
    pub fn way_out(&self) -> Option<[&'static str; 3]> {
        match self {
            Self::Dialect { .. } => Some(CHOOSE_DIALECT),
            Self::Lock { .. } => Some(DO_NOT_LOCK),
            _ => None,
        }
    }

    /// True if this is [`Incomplete`](Self::Incomplete): the file's descriptions can still be read.
    pub fn is_incomplete(&self) -> bool {
        match self {
            Self::File { error, .. } => error.is_incomplete(),
            error => matches!(error, Self::Incomplete { .. }),
        }
    }

    /// Adds the path to the error.
    pub fn in_file(self, path: &std::path::Path) -> Self {
        match self {
            Self::File { .. } => self,
            error => Self::File { path: path.to_path_buf(), error: Box::new(error) },
        }
    }
}
