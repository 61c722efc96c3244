//! An opened model file: the interface of GGUF to the rest of the program.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ggml_types::{Dialect, HostTensor, QuantType, byte_len_of, id_name};

use super::dialect::{self, Evidence};
use super::header::{self, Header};
use super::map::{map, map_locked};
use super::parse::{GgufPart, RawTensor};
use super::source::Data;
use super::types::by_id_and_size;
use super::{FileSource, FileTensor, GgufError, Metadata, Source, split};

/// Options for opening a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Dialect of the file's type ids; `None` detects it.
    pub dialect: Option<Dialect>,
    /// Access mode for its bytes.
    pub access: Access,
}

/// Access to the bytes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Memory-mapped: pages are loaded on demand, and shared with the system's page cache.
    #[default]
    Map,
    /// Memory-mapped, and its pages are locked in memory.
    Lock,
    /// Each tensor is read on demand; on the CPU backend, weights are then in memory of the process.
    Read,
}

/// An open GGUF model, in one file or several. All sizes have been checked against the size of the file; the
/// bytes of tensors are shared and not copied.
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    parts: Vec<(Data, u64)>,
    paths: Vec<PathBuf>,
    /// The detail of the error if it cannot be determined; clashing types stay unresolved then.
    dialect: Result<Dialect, String>,
    /// True if the bytes of the tensors are not available.
    is_header: bool,
    /// Error of an incomplete file, if only its header is needed.
    incomplete: Option<GgufError>,
}

/// Description of one tensor in a file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// GGUF name, such as `blk.3.attn_q.weight`.
    pub name: String,
    /// Outermost dimension first, contiguous last: `[rows, cols]` for a matrix. At most 4, all above 0.
    pub dims: Vec<usize>,
    /// Id of its type in the file.
    pub type_id: u32,
    /// Its type, if it is implemented.
    pub ty: Option<&'static dyn QuantType>,
    /// Name of its type if it is known, such as `i2_s` or `iq2_xxs`, or else `type 77`.
    pub type_name: String,
    /// Index of its file in a split model, from 0.
    pub part: usize,
    /// Offset of its first byte in that file.
    pub start: u64,
    /// Size in bytes. For a type of unknown size, everything up to the next tensor.
    pub n_bytes: u64,
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
    /// Maps a file and reads its descriptions; for a split model, any of its parts can be given.
    ///
    /// While it is mapped, the file must not be truncated: the next access beyond its new end would kill the
    /// process (SIGBUS). Replacing it by renaming another file is safe.
    ///
    /// # Errors
    /// [`GgufError`] with the file's path: what was expected, what was found, where.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::open_with(path, OpenOptions::default())
    }

    /// Like [`open`](Self::open), with options.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: &Path, options: OpenOptions) -> Result<Self, GgufError> {
        let parts = split::open(path, |path| match options.access {
            Access::Map => {
                let (map, file) = map(path)?;
                let data = Data::Mapped(map.clone(), Arc::new(FileSource::of(file)?));
                Ok(GgufPart { data, ..GgufPart::parse(map)? })
            }
            Access::Lock => map_locked(path).and_then(GgufPart::parse),
            Access::Read => header::of_source(Arc::new(FileSource::open(path)?)),
        })?;
        Self::build(parts, options).map_err(|error| error.in_file(path))
    }

    /// Reads only the descriptions of a file, to inspect a model or plan its memory. The bytes of its tensors
    /// read as zero. The file may be incomplete: [`incomplete`](Self::incomplete) returns the error, and the
    /// sizes are those of the whole model.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_header(path: &Path, options: OpenOptions) -> Result<Self, GgufError> {
        let built = Self::build(split::open(path, header::of_file)?, options);
        let (built, incomplete) = match built.map_err(|error| error.in_file(path)) {
            Err(error) if error.is_incomplete() => {
                let mut parts = split::open(path, header::of_file)?;
                parts.iter_mut().for_each(|part| part.file_bytes = whole_bytes(part));
                (Self::build(parts, options).map_err(|error| error.in_file(path)), Some(error))
            }
            built => (built, None),
        };
        Ok(Self { is_header: true, incomplete, ..built? })
    }

    /// Like [`open_header`](Self::open_header), from the headers of a model's files, in order.
    ///
    /// # Errors
    /// [`GgufError`]: [`MoreOfHeader`](GgufError::MoreOfHeader) if the descriptions continue after the given
    /// bytes, and [`Split`](GgufError::Split) if the files do not belong to one model.
    pub fn from_headers(headers: &[Header], options: OpenOptions) -> Result<Self, GgufError> {
        let parts = headers.iter().map(Header::described).collect::<Result<Vec<_>, _>>()?;
        split::check(&parts)?;
        Ok(Self { is_header: true, ..Self::build(parts, options)? })
    }

    /// Reads a model from memory, such as one embedded in the program or created by a test.
    ///
    /// # Errors
    /// [`GgufError`], and [`GgufError::Split`] for a part of a split model.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, GgufError> {
        Self::from_bytes_with(bytes, OpenOptions::default())
    }

    /// Like [`from_bytes`](Self::from_bytes), with options.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes).
    pub fn from_bytes_with(bytes: Bytes, options: OpenOptions) -> Result<Self, GgufError> {
        let parts = vec![GgufPart::parse(bytes)?];
        split::check(&parts)?;
        Self::build(parts, options)
    }

    /// Reads the descriptions of a model from readers, one per file, in order. Its tensors are read on
    /// demand.
    ///
    /// # Errors
    /// [`GgufError`]: [`Io`](GgufError::Io) with the error of a reader, and [`Split`](GgufError::Split) if
    /// the files do not belong to one model.
    pub fn from_sources(
        sources: impl IntoIterator<Item = Arc<dyn Source>>,
        options: OpenOptions,
    ) -> Result<Self, GgufError> {
        let parts = sources.into_iter().map(header::of_source).collect::<Result<Vec<_>, _>>()?;
        split::check(&parts)?;
        Self::build(parts, options)
    }

    /// Like [`from_sources`](Self::from_sources), for a model in one file.
    ///
    /// # Errors
    /// As [`from_sources`](Self::from_sources).
    pub fn from_source(source: Arc<dyn Source>, options: OpenOptions) -> Result<Self, GgufError> {
        Self::from_sources([source], options)
    }

    /// True if only the descriptions were read, and all bytes of tensors are zero.
    pub fn is_header(&self) -> bool {
        self.is_header
    }

    /// Error of an incomplete file, if only its header was opened.
    pub fn incomplete(&self) -> Option<&GgufError> {
        self.incomplete.as_ref()
    }

    /// 2 or 3. A little-endian reader sees no difference between the two.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Keys and values; of a split model, the first part's.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Every tensor in file order, including those of unknown type.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The description of the tensor called `name`.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The tensor called `name`; its bytes are shared with the mapped file, or read.
    ///
    /// # Errors
    /// [`GgufError::NoTensor`]; as [`host_tensor`](Self::host_tensor).
    pub fn tensor(&self, name: &str) -> Result<HostTensor, GgufError> {
        match self.find(name) {
            Some(info) => self.host_tensor(info),
            None => Err(GgufError::NoTensor { name: name.to_owned() }),
        }
    }

    /// The tensor for `info`, one of [`tensors`](Self::tensors).
    ///
    /// # Errors
    /// As [`file_tensor`](Self::file_tensor), and [`GgufError::Io`].
    pub fn host_tensor(&self, info: &TensorInfo) -> Result<HostTensor, GgufError> {
        self.file_tensor(info)?.read()
    }

    /// The tensor for `info`, to be read later.
    ///
    /// # Errors
    /// [`GgufError::Unsupported`] if its type has no implementation here, [`GgufError::Dialect`] if it
    /// depends on a dialect that could not be determined.
    pub fn file_tensor(&self, info: &TensorInfo) -> Result<FileTensor, GgufError> {
        let Some(ty) = info.ty else {
            let dialect = match self.dialect() {
                Err(error) if dialect::clashes(info.type_id) => return Err(error),
                dialect => dialect.unwrap_or(Dialect::Ggml),
            };
            let name = info.name.clone();
            let ty = info.type_name.strip_prefix("type ").unwrap_or(&info.type_name).to_owned();
            let way_out = way_out(dialect, info.type_id, &ty);
            return Err(GgufError::Unsupported { name, ty, way_out });
        };
        let data = self.parts[info.part].0.clone();
        FileTensor::new(info.name.clone(), ty, [info.rows(), info.cols()], (data, info.start))
    }

    /// The unchanged bytes of a tensor of any type.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn raw_bytes(&self, info: &TensorInfo) -> Result<Bytes, GgufError> {
        self.raw_piece(info, 0..info.n_bytes)
    }

    /// A range of the bytes of a tensor, relative to its first.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    ///
    /// # Panics
    /// If the range exceeds the tensor.
    pub fn raw_piece(&self, info: &TensorInfo, range: Range<u64>) -> Result<Bytes, GgufError> {
        assert!(range.start <= range.end && range.end <= info.n_bytes, "bytes {range:?} of {}", info.name);
        let len = usize::try_from(range.end - range.start);
        let none = |_| GgufError::Io { call: "read", error: std::io::ErrorKind::OutOfMemory.into() };
        self.parts[info.part].0.read(info.start + range.start, len.map_err(none)?)
    }

    /// Dialect of the file's type ids. `Ggml` if it uses none on which the dialects differ.
    ///
    /// # Errors
    /// [`GgufError::Dialect`] if it cannot be determined; such a file can still be inspected.
    pub fn dialect(&self) -> Result<Dialect, GgufError> {
        self.dialect.clone().map_err(|detail| GgufError::Dialect { detail })
    }

    /// The files of the model in order; empty for a model in memory.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Sizes of the files, in bytes.
    pub fn file_bytes(&self) -> impl ExactSizeIterator<Item = u64> {
        self.parts.iter().map(|(_, bytes)| *bytes)
    }

    fn build(parts: Vec<GgufPart>, options: OpenOptions) -> Result<Self, GgufError> {
        let is_cut = |part: &&GgufPart| part.tensors.iter().any(|raw| raw.start >= part.file_bytes);
        if let Some(part) = parts.iter().find(is_cut) {
            let error = GgufError::Incomplete { have: part.file_bytes, want: whole_bytes(part) };
            return Err(in_part(error, part.path.as_deref()));
        }
        let ends: Vec<Vec<u64>> = parts.iter().map(span_ends).collect::<Result<_, _>>()?;
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
            let whole = whole_bytes(&part);
            for (raw, end) in part.tensors.into_iter().zip(ends) {
                let dialect = dialect.as_ref().ok().copied();
                let info = tensor_info(raw, number, end, dialect, part.alignment, part.file_bytes);
                let info = info.map_err(|error| match error {
                    // Another tensor may end even later.
                    GgufError::Incomplete { have, want } => {
                        in_part(GgufError::Incomplete { have, want: want.max(whole) }, part.path.as_deref())
                    }
                    error => error,
                })?;
                if index.insert(info.name.clone(), tensors.len()).is_some() {
                    let (name, offset) = (info.name, info.start as usize);
                    return Err(GgufError::Duplicate { what: "tensor", name, offset });
                }
                tensors.push(info);
            }
            files.push((part.data, part.file_bytes));
            paths.extend(part.path);
        }
        let (is_header, incomplete) = (false, None);
        Ok(Self { version, metadata, tensors, index, parts: files, paths, dialect, is_header, incomplete })
    }
}

/// Adds the path of a model's file to an error.
fn in_part(error: GgufError, path: Option<&Path>) -> GgufError {
    match path {
        Some(path) => error.in_file(path),
        None => error,
    }
}

/// Bytes of a file up to the end of its last tensor, even if the file is shorter. For types on which the
/// dialects differ, uses the smaller size, so that a complete file is never reported as incomplete.
fn whole_bytes(part: &GgufPart) -> u64 {
    let end = |raw: &RawTensor| {
        let (rows, cols) = (raw.dims.iter().rev().skip(1).product(), raw.dims.last().copied().unwrap_or(1));
        let sizes =
            [Dialect::Ggml, Dialect::BitNet].map(|dialect| byte_len_of(dialect, raw.type_id, rows, cols));
        raw.start.saturating_add(sizes.into_iter().flatten().min().unwrap_or(1) as u64)
    };
    part.tensors.iter().map(end).fold(part.file_bytes, u64::max)
}

/// Per tensor, the offset of the next one or of the end of the file.
fn span_ends(part: &GgufPart) -> Result<Vec<u64>, GgufError> {
    let mut order: Vec<usize> = (0..part.tensors.len()).collect();
    order.sort_by_key(|&at| part.tensors[at].start);
    let mut ends = vec![part.file_bytes; order.len()];
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

/// Resolves the type and checks the size. `end` is the offset of the next tensor.
fn tensor_info(
    raw: RawTensor,
    part: usize,
    end: u64,
    dialect: Option<Dialect>,
    alignment: usize,
    file_bytes: u64,
) -> Result<TensorInfo, GgufError> {
    let cols = raw.dims.last().copied().unwrap_or(1);
    let shape = (raw.dims.iter().rev().skip(1).product(), cols);
    // If both dialects agree on an id, either can be used for a file whose dialect is unknown.
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
        start: raw.start,
        n_bytes: end - raw.start,
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
        let (got, want) = (end - raw.start, want as u64);
        if want > got && end == file_bytes {
            return Err(GgufError::Incomplete { have: file_bytes, want: raw.start.saturating_add(want) });
        }
        if want > got {
            let detail = format!(
                "want {:?} {} ({want} bytes), the next tensor leaves {got} at {:#x}",
                info.dims, info.type_name, raw.start
            );
            return Err(GgufError::Tensor { name: info.name, detail });
        }
        info.n_bytes = want;
    }
    Ok(info)
}

/// Types that llama.cpp dropped, with the type that files have instead.
const DROPPED: [(std::ops::RangeInclusive<u32>, &str); 3] = [
    (4..=5, "Q4_2 and Q4_3 were dropped by llama.cpp in 2023: convert the model again"),
    (31..=33, "Q4_0_4_4, Q4_0_4_8 and Q4_0_8_8 were repacked forms of Q4_0: use the model's Q4_0 file"),
    (36..=38, "IQ4_NL_4_4, IQ4_NL_4_8 and IQ4_NL_8_8 were repacked forms of IQ4_NL: use its IQ4_NL file"),
];

fn way_out(dialect: Dialect, type_id: u32, type_name: &str) -> String {
    let dropped = DROPPED.iter().find(|(ids, _)| dialect == Dialect::Ggml && ids.contains(&type_id));
    if let Some((_, way_out)) = dropped {
        return (*way_out).to_owned();
    }
    if dialect == Dialect::BitNet && matches!(type_name, "tl1" | "tl2") {
        return "its layout depends on a kernel configuration that is not in the file: use the model's i2_s \
                file"
            .into();
    }
    let names: Vec<_> = ggml_types::types::REGISTRY.iter().map(|ty| ty.name()).collect();
    format!("supported are {}", names.join(", "))
}
