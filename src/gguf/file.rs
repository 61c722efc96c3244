//! A model file, opened: what the rest of the program sees of GGUF.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ggml_types::{Dialect, HostTensor, QuantType, byte_len_of, id_name};

use super::dialect::{self, Evidence};
use super::header::{self, Header};
use super::map::map;
use super::parse::{Part, RawTensor};
use super::types::by_id_and_size;
use super::{GgufError, Metadata, split};

/// What the user knows about a file that the file does not say.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Whose type ids the file uses, where that is not to be worked out.
    pub dialect: Option<Dialect>,
}

/// An open GGUF model, in one file or several. Every size in it has been checked against the bytes
/// there are; the tensors' bytes stay where they are and are shared.
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    parts: Vec<Bytes>,
    paths: Vec<PathBuf>,
    /// The words for it where it could not be told; then clashing types stay unresolved.
    dialect: Result<Dialect, String>,
    /// Whether the tensors' bytes are not there.
    is_header: bool,
}

/// What a file says about one tensor.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// GGUF name, `blk.3.attn_q.weight`.
    pub name: String,
    /// Outermost dimension first, contiguous last: `[rows, cols]` for a matrix. At most 4, none is 0.
    pub dims: Vec<usize>,
    /// The number of its type in the file.
    pub type_id: u32,
    /// Its type, where that is one of ours.
    pub ty: Option<&'static dyn QuantType>,
    /// Name of its type as far as it is known: `i2_s`, `iq2_xxs`, `type 77`.
    pub type_name: String,
    /// Which file of a split model holds it, from 0.
    pub part: usize,
    /// Where its bytes lie in that file. For a type of unknown size, everything up to the next tensor.
    pub bytes: Range<usize>,
}

impl TensorInfo {
    /// The contiguous dimension; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// All other dimensions multiplied; 1 for a vector.
    pub fn rows(&self) -> usize {
        self.dims.iter().rev().skip(1).product()
    }

    /// All dimensions multiplied.
    pub fn n_elems(&self) -> usize {
        self.dims.iter().product()
    }
}

impl Gguf {
    /// Maps a file and reads its descriptions; of a split model, any part will do.
    ///
    /// While it is open, nobody may truncate the file: the next access beyond its new end would kill
    /// the process (SIGBUS). Renaming another file over it is harmless.
    ///
    /// # Errors
    /// [`GgufError`] with the file's path: what was expected, what was found, where.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_with(path, OpenOptions::default())
    }

    /// [`open`](Self::open), with what the user knows better.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: &Path, options: OpenOptions) -> Result<Self, GgufError> {
        let parts = split::open(path, |path| map(path).and_then(Part::parse))?;
        Self::build(parts, options).map_err(|error| error.in_file(path))
    }

    /// Reads the descriptions of a file, and nothing else of it: for what a model is and takes. The bytes of
    /// its tensors are zero. It need not have them all on a disk, as long as it has its size.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_header(path: &Path, options: OpenOptions) -> Result<Self, GgufError> {
        let gguf = Self::build(split::open(path, header::of_file)?, options);
        Ok(Self { is_header: true, ..gguf.map_err(|error| error.in_file(path))? })
    }

    /// The same of a model that lies elsewhere, from the header of each of its files in order.
    ///
    /// # Errors
    /// [`GgufError`]: [`MoreOfHeader`](GgufError::MoreOfHeader) where the descriptions go on behind the bytes
    /// that are there, and [`Split`](GgufError::Split) where the files are not those of one model.
    pub fn from_headers(headers: &[Header], options: OpenOptions) -> Result<Self, GgufError> {
        let parts = headers.iter().map(Header::part).collect::<Result<Vec<_>, _>>()?;
        split::check(&parts)?;
        Ok(Self { is_header: true, ..Self::build(parts, options)? })
    }

    /// Reads a model that is in memory: embedded in the program, or made by a test.
    ///
    /// # Errors
    /// [`GgufError`], and [`GgufError::Split`] for a part of a split model.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, GgufError> {
        Self::from_bytes_with(bytes, OpenOptions::default())
    }

    /// [`from_bytes`](Self::from_bytes), with what the user knows better.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes).
    pub fn from_bytes_with(bytes: Bytes, options: OpenOptions) -> Result<Self, GgufError> {
        let parts = vec![Part::parse(bytes)?];
        split::check(&parts)?;
        Self::build(parts, options)
    }

    /// Whether only the descriptions were read, and all bytes of tensors are zero.
    pub fn is_header(&self) -> bool {
        self.is_header
    }

    /// 2 or 3. The two differ in nothing that a little-endian reader sees.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Keys and values; of a split model, the first part's.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor in the order of the file, those of unknown type included.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The description of the tensor called `name`.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The tensor called `name`; its bytes are shared with the mapped file.
    ///
    /// # Errors
    /// [`GgufError::NoTensor`]; as [`host_tensor`](Self::host_tensor).
    pub fn tensor(&self, name: &str) -> Result<HostTensor, GgufError> {
        match self.find(name) {
            Some(info) => self.host_tensor(info),
            None => Err(GgufError::NoTensor { name: name.to_owned() }),
        }
    }

    /// The tensor that `info`, one of [`tensors`](Self::tensors), describes.
    ///
    /// # Errors
    /// [`GgufError::Unsupported`] where its type has no implementation here, [`GgufError::Dialect`] where
    /// it depends on what the file does not say.
    pub fn host_tensor(&self, info: &TensorInfo) -> Result<HostTensor, GgufError> {
        let Some(ty) = info.ty else {
            let dialect = match self.dialect() {
                Err(error) if dialect::clashes(info.type_id) => return Err(error),
                dialect => dialect.unwrap_or(Dialect::Ggml),
            };
            let name = info.name.clone();
            let way_out = way_out(dialect, &info.type_name);
            return Err(GgufError::Unsupported { name, ty: info.type_name.clone(), way_out });
        };
        Ok(HostTensor {
            name: info.name.clone(),
            ty,
            rows: info.rows(),
            cols: info.cols(),
            bytes: self.raw_bytes(info),
        })
    }

    /// The bytes of a tensor as they are, whatever its type.
    pub fn raw_bytes(&self, info: &TensorInfo) -> Bytes {
        self.parts[info.part].slice(info.bytes.clone())
    }

    /// Whose type ids the file uses. `Ggml` where it uses none on which the two differ.
    ///
    /// # Errors
    /// [`GgufError::Dialect`] where that cannot be decided; such a file can still be inspected.
    pub fn dialect(&self) -> Result<Dialect, GgufError> {
        self.dialect.clone().map_err(|detail| GgufError::Dialect { detail })
    }

    /// The files of the model in order; none of a model in memory.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Sizes of the files, in bytes.
    pub fn file_bytes(&self) -> impl ExactSizeIterator<Item = usize> {
        self.parts.iter().map(Bytes::len)
    }

    fn build(parts: Vec<Part>, options: OpenOptions) -> Result<Self, GgufError> {
        let ends: Vec<Vec<usize>> = parts.iter().map(span_ends).collect::<Result<_, _>>()?;
        let evidence: Vec<Evidence> = parts
            .iter()
            .zip(&ends)
            .flat_map(|(part, ends)| {
                part.tensors.iter().zip(ends).map(|(raw, end)| Evidence {
                    type_id: raw.type_id,
                    rows: raw.dims.iter().rev().skip(1).product(),
                    cols: raw.dims.last().copied().unwrap_or(1),
                    span_bytes: end - raw.start,
                    alignment: part.alignment,
                })
            })
            .collect();
        let dialect = match options.dialect {
            Some(dialect) => Ok(dialect),
            None => dialect::resolve(&parts[0].metadata, &evidence).map_err(|error| match error {
                GgufError::Dialect { detail } => detail,
                other => other.to_string(),
            }),
        };
        let (mut tensors, mut index) = (Vec::new(), HashMap::new());
        let (mut files, mut paths) = (Vec::new(), Vec::new());
        let (version, metadata) = (parts[0].version, parts[0].metadata.clone());
        for (number, (part, ends)) in parts.into_iter().zip(ends).enumerate() {
            for (raw, end) in part.tensors.into_iter().zip(ends) {
                let dialect = dialect.as_ref().ok().copied();
                let info = tensor_info(raw, number, end, dialect, part.alignment, part.bytes.len())?;
                if index.insert(info.name.clone(), tensors.len()).is_some() {
                    let (name, offset) = (info.name, info.bytes.start);
                    return Err(GgufError::Duplicate { what: "tensor", name, offset });
                }
                tensors.push(info);
            }
            files.push(part.bytes);
            paths.extend(part.path);
        }
        Ok(Self { version, metadata, tensors, index, parts: files, paths, dialect, is_header: false })
    }
}

/// For each tensor, where the next one or the end of the file is.
fn span_ends(part: &Part) -> Result<Vec<usize>, GgufError> {
    let mut order: Vec<usize> = (0..part.tensors.len()).collect();
    order.sort_by_key(|&at| part.tensors[at].start);
    let mut ends = vec![part.bytes.len(); order.len()];
    for pair in order.windows(2) {
        let (first, second) = (&part.tensors[pair[0]], &part.tensors[pair[1]]);
        if first.start == second.start {
            let detail = format!("starts at {:#x}, where {} starts", second.start, first.name.escape_debug());
            return Err(GgufError::Tensor { name: second.name.clone(), detail });
        }
        ends[pair[0]] = second.start;
    }
    Ok(ends)
}

/// Resolves the type and checks the bytes. `end` is where the next tensor starts.
fn tensor_info(
    raw: RawTensor,
    part: usize,
    end: usize,
    dialect: Option<Dialect>,
    alignment: usize,
    file_bytes: usize,
) -> Result<TensorInfo, GgufError> {
    let cols = raw.dims.last().copied().unwrap_or(1);
    let shape = (raw.dims.iter().rev().skip(1).product(), cols);
    // Where the two agree on an id, either can stand for a doubtful file.
    let of = |dialect| {
        let ty = by_id_and_size((dialect, raw.type_id), shape, end - raw.start, alignment);
        (ty, ty.map(|ty| ty.name()).or_else(|| id_name(dialect, raw.type_id)))
    };
    let (ty, known_name) = match dialect {
        Some(dialect) => of(dialect),
        None if !dialect::clashes(raw.type_id) => of(Dialect::Ggml),
        None => (None, None),
    };
    let mut info = TensorInfo {
        bytes: raw.start..end,
        type_name: known_name.map_or_else(|| format!("type {}", raw.type_id), str::to_owned),
        name: raw.name,
        dims: raw.dims,
        type_id: raw.type_id,
        ty,
        part,
    };
    let want = match ty {
        Some(ty) => Some(
            ty.byte_len(info.rows(), info.cols())
                .map_err(|error| GgufError::Quant { name: info.name.clone(), error })?,
        ),
        None => known_name.and_then(|_| {
            byte_len_of(dialect.unwrap_or(Dialect::Ggml), raw.type_id, info.rows(), info.cols())
        }),
    };
    if let Some(want) = want {
        let got = end - raw.start;
        if want > got {
            let holder = if end == file_bytes { "file has" } else { "the next tensor leaves" };
            let detail = format!(
                "want {:?} {} ({want} bytes), {holder} {got} at {:#x}",
                info.dims, info.type_name, raw.start
            );
            return Err(GgufError::Tensor { name: info.name, detail });
        }
        info.bytes.end = raw.start + want;
    }
    Ok(info)
}

fn way_out(dialect: Dialect, type_name: &str) -> String {
    if dialect == Dialect::BitNet && matches!(type_name, "tl1" | "tl2") {
        return "its layout depends on a kernel configuration that is not in the file: use the model's i2_s \
                file"
            .into();
    }
    let names: Vec<_> = ggml_types::types::REGISTRY.iter().map(|ty| ty.name()).collect();
    format!("supported are {}", names.join(", "))
}
