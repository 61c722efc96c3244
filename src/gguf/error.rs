//! Why a GGUF file cannot be read or written.
//!
//! Names come from the file and may hold anything; messages escape what could steer a terminal.

use std::io;
use std::path::PathBuf;

use ggml_types::QuantError;

/// Error with what was expected, what was found, and where. Offsets count from the start of the file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// Any of the others, in this file.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The fault.
        error: Box<GgufError>,
    },
    /// The operating system refused.
    #[error("cannot {call}: {error}")]
    Io {
        /// The operation.
        call: &'static str,
        /// Its answer.
        error: io::Error,
    },
    /// Not a file that can hold a model at all: a directory, a pipe, an empty file.
    #[error("want a GGUF file, found {found}")]
    NotAFile {
        /// The thing that is there instead.
        found: &'static str,
    },
    /// Another format, or a GGUF that this reader does not take; with the way out.
    #[error("{found}; {way_out}")]
    NotGguf {
        /// Kind of file by its first bytes.
        found: String,
        /// Way out.
        way_out: &'static str,
    },
    /// The file is shorter than its descriptions say, as one whose transfer was cut.
    #[error("incomplete: {have} of {want} bytes; download it again")]
    Incomplete {
        /// Bytes of the file.
        have: u64,
        /// Bytes up to the end of its last tensor.
        want: u64,
    },
    /// The file ends inside something.
    #[error(
        "{what} at {offset:#x}: want {want} bytes, file has {got}; if it is truncated, download it again"
    )]
    Truncated {
        /// Part that was being read.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// Bytes it takes.
        want: u64,
        /// Bytes that are left.
        got: u64,
    },
    /// The descriptions go on behind the first bytes that were given of a file.
    #[error(
        "the header does not end in the first {have} bytes: at least {} more are needed",
        need - *have as u64
    )]
    MoreOfHeader {
        /// Bytes that were given.
        have: usize,
        /// Bytes from the start of the file that are needed to read on; it may be more then.
        need: u64,
    },
    /// A file of which only the descriptions were read, where its weights are wanted.
    #[error("only the header of this file was read, and its weights are needed")]
    HeaderOnly,
    /// The bytes are there and mean nothing.
    #[error("{what} at {offset:#x}: {detail}")]
    Malformed {
        /// Part that was being read.
        what: &'static str,
        /// Where it starts.
        offset: usize,
        /// Expected and found.
        detail: String,
    },
    /// A key or a tensor name that was there before.
    #[error("{what} `{}` at {offset:#x}: duplicate name", name.escape_debug())]
    Duplicate {
        /// `key` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
        /// Where the second one starts.
        offset: usize,
    },
    /// A tensor whose description does not fit the file.
    #[error("tensor {}: {detail}", name.escape_debug())]
    Tensor {
        /// GGUF name.
        name: String,
        /// Expected and found.
        detail: String,
    },
    /// A tensor whose shape its type cannot hold.
    #[error("tensor {}: {error}", name.escape_debug())]
    Quant {
        /// GGUF name.
        name: String,
        /// The type's own words.
        error: QuantError,
    },
    /// A tensor type without an implementation here.
    #[error("tensor {}: type {ty} is not supported; {way_out}", name.escape_debug())]
    Unsupported {
        /// GGUF name.
        name: String,
        /// Name of the type, or its number.
        ty: String,
        /// Way out.
        way_out: String,
    },
    /// A type's name that nothing here has, or that no file can carry.
    #[error("want one of {known}, found {}", name.escape_debug())]
    UnknownType {
        /// The name.
        name: String,
        /// The known ones.
        known: String,
    },
    /// Type ids that mean different things to llama.cpp and to microsoft/BitNet, and nothing that decides.
    #[error(
        "cannot tell whose type ids the file uses: {detail}; choose with OpenOptions::dialect: ggml or bitnet"
    )]
    Dialect {
        /// Properties that were examined.
        detail: String,
    },
    /// No such key.
    #[error("metadata key `{}` is missing (want {want})", key.escape_debug())]
    MissingKey {
        /// The key.
        key: String,
        /// Type it should have.
        want: &'static str,
    },
    /// A key with a value of another type or out of range.
    #[error("metadata key `{}`: want {want}, found {found}", key.escape_debug())]
    WrongType {
        /// The key.
        key: String,
        /// Type it should have.
        want: &'static str,
        /// Type or value it has.
        found: String,
    },
    /// No such tensor.
    #[error("tensor {} is missing", name.escape_debug())]
    NoTensor {
        /// GGUF name.
        name: String,
    },
    /// The parts of a split file do not fit each other.
    #[error("split file: {detail}")]
    Split {
        /// Expected and found.
        detail: String,
    },
}

impl GgufError {
    /// True if this is [`Incomplete`](Self::Incomplete): what the file describes can be read all the same.
    pub fn is_incomplete(&self) -> bool {
        match self {
            Self::File { error, .. } => error.is_incomplete(),
            error => matches!(error, Self::Incomplete { .. }),
        }
    }

    /// The same error, said of `path`.
    pub fn in_file(self, path: &std::path::Path) -> Self {
        match self {
            Self::File { .. } => self,
            error => Self::File { path: path.to_path_buf(), error: Box::new(error) },
        }
    }
}
