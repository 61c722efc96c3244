//! One file: header, metadata, tensor descriptions.

use std::collections::HashSet;
use std::path::PathBuf;

use bytes::Bytes;

use super::cursor::Cursor;
use super::source::Data;
use super::value::{Value, ValueType};
use super::{GgufError, Metadata};

/// Default of `general.alignment`.
const DEFAULT_ALIGNMENT: usize = 32;
/// Key of the alignment of tensor data.
const ALIGNMENT_KEY: &str = "general.alignment";
/// The first four bytes.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";

/// Maximum number of keys and of tensors. Real files have tens of keys and at most some thousand tensors; the
/// limit keeps the memory that a hostile file can make us allocate small compared with the file itself.
const MAX_ENTRIES: u64 = 1 << 16;
/// Maximum size of a key or a tensor name, the format's own limit for keys.
const MAX_NAME_BYTES: usize = u16::MAX as usize;
/// Maximum number of dimensions of a tensor.
const MAX_DIMS: u32 = 4;

/// One parsed file.
#[derive(Debug)]
pub(super) struct GgufPart {
    /// 2 or 3.
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<RawTensor>,
    /// Alignment of tensors, relative to the start of the data.
    pub alignment: usize,
    /// Bytes of the metadata and of the descriptions of tensors.
    pub header_bytes: usize,
    pub file_bytes: u64,
    pub data: Data,
    /// Path of the file, if there is one.
    pub path: Option<PathBuf>,
}

/// A tensor as described in the file: its type is not checked yet.
#[derive(Debug)]
pub(super) struct RawTensor {
    pub name: String,
    /// Outermost first, contiguous last.
    pub dims: Vec<usize>,
    pub type_id: u32,
    /// Offset from the start of the file, which may end before it.
    pub start: u64,
}

impl GgufPart {
    pub fn parse(bytes: Bytes) -> Result<Self, GgufError> {
        let part = Self::described(&bytes, bytes.len() as u64)?;
        Ok(Self { data: Data::Bytes(bytes), ..part })
    }

    /// Parses the header of a file of `file_bytes` bytes from its first bytes; without the data.
    pub fn described(first: &Bytes, file_bytes: u64) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(first);
        let version = header(first, &mut cursor)?;
        let n_tensors = count(&mut cursor, "tensor count")?;
        let n_keys = count(&mut cursor, "metadata count")?;
        let metadata = metadata(&mut cursor, n_keys)?;
        let alignment = alignment(&metadata)?;
        let mut tensors = tensor_infos(&mut cursor, n_tensors)?;
        // May be beyond the end of the file if a file without tensors is not padded.
        let header_bytes = cursor.pos();
        let data_start = (header_bytes as u64).checked_next_multiple_of(alignment as u64).unwrap_or(u64::MAX);
        for tensor in &mut tensors {
            let offset = tensor.start;
            let invalid = |detail| GgufError::Tensor { name: tensor.name.clone(), detail };
            if !offset.is_multiple_of(alignment as u64) {
                return Err(invalid(format!(
                    "want an offset that is a multiple of {alignment}, found {offset}"
                )));
            }
            tensor.start = data_start.checked_add(offset).ok_or_else(|| {
                invalid(format!("starts {offset} bytes into the data, beyond the largest possible file"))
            })?;
        }
        let data = Data::Header;
        Ok(Self { version, metadata, tensors, alignment, header_bytes, file_bytes, data, path: None })
    }
}

/// Reads magic and version.
fn header(file: &Bytes, cursor: &mut Cursor<'_>) -> Result<u32, GgufError> {
    let first = &file[..file.len().min(SHOWN_BYTES)];
    if first.len() < 8 || first[..4] != MAGIC {
        return Err(not_gguf(first));
    }
    let start = cursor.take(8, "header")?;
    let version = u32::from_le_bytes([start[4], start[5], start[6], start[7]]);
    let refuse = |found, way_out| Err(GgufError::NotGguf { found, way_out });
    match version {
        2 | 3 => Ok(version),
        1 => refuse(
            "GGUF version 1 (August 2023), want 2 or 3".into(),
            "convert the model again, or rewrite the file with a llama.cpp of that autumn",
        ),
        _ if (1..=3).contains(&version.swap_bytes()) => refuse(
            format!("big-endian GGUF version {}, want little-endian", version.swap_bytes()),
            "convert it with `gguf-convert-endian FILE little` from the gguf Python package",
        ),
        4..=99 => refuse(format!("GGUF version {version}, want 2 or 3"), "a newer sterna may read it"),
        _ => refuse(
            format!("GGUF version {version}, want 2 or 3"),
            "no such version exists: the file is damaged, download it again",
        ),
    }
}

/// Bytes of a file of another format that are looked at and shown.
const SHOWN_BYTES: usize = 16;

/// The error for a file that does not start like a GGUF, with the format that it may have.
fn not_gguf(start: &[u8]) -> GgufError {
    const UNPACK: &str = "unpack it first";
    let known: [(&[u8], &str, &'static str); 16] = [
        (b"FUGG", "a byte-swapped GGUF", "download the file again"),
        (b"tjgg", "a GGJT file (llama.cpp before August 2023)", "convert the model to GGUF"),
        (b"fmgg", "a GGMF file (llama.cpp before August 2023)", "convert the model to GGUF"),
        (b"lmgg", "a GGML file (llama.cpp before August 2023)", "convert the model to GGUF"),
        (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint", "convert the model to GGUF"),
        (b"version ", "perhaps a Git LFS pointer", "get the file itself with `git lfs pull`"),
        (b"<", "a web page", "download the file itself, not the page about it"),
        (b"GGUF", "a GGUF that ends in its first 8 bytes", "download the file again"),
        (b"\x1f\x8b", "a gzip archive", UNPACK),
        (b"\x28\xb5\x2f\xfd", "a zstd archive", UNPACK),
        (b"\xfd7zXZ\0", "an xz archive", UNPACK),
        (b"BZh", "a bzip2 archive", UNPACK),
        (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", UNPACK),
        (b"\x80\x02", "a PyTorch checkpoint", "convert the model to GGUF"),
        (b"\x89HDF", "an HDF5 file", "convert the model to GGUF"),
        (b"{", "JSON text", "read it: it may be a server's error message; download the file again"),
    ];
    // The length of the header as 8 bytes, then the header in JSON.
    let safetensors = start.len() > 8 && start[3..9] == *b"\0\0\0\0\0{";
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    let (found, way_out) = known
        .iter()
        .find(|(magic, ..)| start.starts_with(magic))
        .map(|(_, found, way_out)| ((*found).to_owned(), *way_out))
        .unwrap_or_else(|| match safetensors {
            true => ("perhaps a safetensors file".into(), "convert the model to GGUF"),
            false if !start.is_empty() && start.iter().all(is_text) => {
                let text = String::from_utf8_lossy(start);
                (format!("not a GGUF file: it starts with the text {text:?}"), "is this the right file?")
            }
            false => (format!("not a GGUF file: it starts with {start:02x?}"), "is this the right file?"),
        });
    GgufError::NotGguf { found, way_out }
}

fn count(cursor: &mut Cursor<'_>, what: &'static str) -> Result<u64, GgufError> {
    let offset = cursor.pos();
    let count = cursor.u64(what)?;
    if count > MAX_ENTRIES {
        let detail = format!("want at most {MAX_ENTRIES}, found {count}");
        return Err(GgufError::Malformed { what, offset, detail });
    }
    Ok(count)
}

fn metadata(cursor: &mut Cursor<'_>, n_keys: u64) -> Result<Metadata, GgufError> {
    let mut metadata = Metadata::default();
    for _ in 0..n_keys {
        let offset = cursor.pos();
        let key = name(cursor, "metadata key")?.to_owned();
        let ty = ValueType::read(cursor, "metadata value type")?;
        let value = Value::read(cursor, ty, 0)?;
        if !metadata.insert_new(key.clone(), value) {
            return Err(GgufError::Duplicate { what: "metadata key", name: key, offset });
        }
    }
    Ok(metadata)
}

/// The value of `general.alignment`, or the default.
pub(super) fn alignment(metadata: &Metadata) -> Result<usize, GgufError> {
    match metadata.u32(ALIGNMENT_KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment as usize),
        Some(alignment) => Err(GgufError::WrongType {
            key: ALIGNMENT_KEY.into(),
            want: "a power of two",
            found: alignment.to_string(),
        }),
    }
}

/// Reads the tensor descriptions; `start` is still relative to the start of the data.
fn tensor_infos(cursor: &mut Cursor<'_>, n_tensors: u64) -> Result<Vec<RawTensor>, GgufError> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for _ in 0..n_tensors {
        let offset = cursor.pos();
        let name = name(cursor, "tensor name")?;
        if !names.insert(name) {
            return Err(GgufError::Duplicate { what: "tensor", name: name.to_owned(), offset });
        }
        let invalid = |detail| GgufError::Tensor { name: name.to_owned(), detail };
        let n_dims = cursor.u32("tensor dimensions")?;
        if n_dims > MAX_DIMS {
            return Err(invalid(format!("want at most {MAX_DIMS} dimensions, found {n_dims}")));
        }
        let mut dims = Vec::new();
        let mut n_elems = 1_usize;
        for _ in 0..n_dims {
            let dim = cursor.u64("tensor dimensions")?;
            let product = usize::try_from(dim).ok().and_then(|dim| n_elems.checked_mul(dim));
            n_elems = match product {
                Some(0) => return Err(invalid("want dimensions of at least 1, found 0".into())),
                Some(product) if isize::try_from(product).is_ok() => product,
                _ => return Err(invalid(format!("{dims:?} x {dim} elements overflow the address space"))),
            };
            dims.push(dim as usize);
        }
        dims.reverse();
        let type_id = cursor.u32("tensor type")?;
        let start = cursor.u64("tensor offset")?;
        tensors.push(RawTensor { name: name.to_owned(), dims, type_id, start });
    }
    Ok(tensors)
}

fn name<'a>(cursor: &mut Cursor<'a>, what: &'static str) -> Result<&'a str, GgufError> {
    let offset = cursor.pos();
    let name = cursor.str(what)?;
    if name.len() > MAX_NAME_BYTES {
        let detail = format!("want at most {MAX_NAME_BYTES} bytes, found {}", name.len());
        return Err(GgufError::Malformed { what, offset, detail });
    }
    Ok(name)
}
