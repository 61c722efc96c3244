//! Tensors of a checkpoint: the safetensors files of a folder, with every name and size checked. Tensors are
//! read one at a time: a memory-mapped checkpoint would gradually fill the memory.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use ggml_types::{QuantType, types};
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::Value as Json;

use super::ConvertError;
use sterna_gguf::{FileSource, Source};

/// The file that maps tensors to shards.
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a folder by name. Their data stays in the files.
#[derive(Debug)]
pub struct Checkpoint {
    tensors: BTreeMap<String, Tensor>,
    files: Vec<(PathBuf, FileSource)>,
    /// Copies of tensors in files other than the index names, which are not read.
    others: Vec<String>,
}

/// One tensor as described by its file.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Type of its elements.
    pub elem: Elem,
    /// Contiguous dimension last.
    pub shape: Vec<usize>,
    file: usize,
    bytes: Range<u64>,
}

/// Element types that a checkpoint may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elem {
    /// 32 bits.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
    /// 64 bits; read as the nearest f32.
    F64,
    /// Packed ternary codes.
    U8,
    /// Any other type, which is allowed only for tensors that are left out.
    Other(Dtype),
}

impl Tensor {
    /// One row of a matrix.
    pub fn row(&self, at: usize) -> Option<Self> {
        let [rows, cols] = self.shape[..] else { return None };
        let row_bytes = (self.bytes.end - self.bytes.start).checked_div(rows as u64)?;
        let start = self.bytes.start + at as u64 * row_bytes;
        let row = Self { shape: vec![cols], bytes: start..start + row_bytes, ..self.clone() };
        (at < rows).then_some(row)
    }
}

impl Elem {
    /// The weight type with the same encoding.
    pub fn ty(self) -> Option<&'static dyn QuantType> {
        match self {
            Self::F32 => Some(&types::F32),
            Self::F16 => Some(&types::F16),
            Self::Bf16 => Some(&types::Bf16),
            Self::F64 | Self::U8 | Self::Other(_) => None,
        }
    }

    /// True if elements are real numbers of a supported type.
    pub fn is_real(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16 | Self::F64)
    }

    /// Name as the format spells it.
    pub fn name(self) -> String {
        match self {
            Self::F32 => "F32".to_owned(),
            Self::F16 => "F16".to_owned(),
            Self::Bf16 => "BF16".to_owned(),
            Self::F64 => "F64".to_owned(),
            Self::U8 => "U8".to_owned(),
            Self::Other(dtype) => format!("{dtype:?}"),
        }
    }

    fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
            Dtype::F64 => Self::F64,
            Dtype::U8 => Self::U8,
            other => Self::Other(other),
        }
    }
}

impl Checkpoint {
    /// Opens the safetensors files of a folder: those in the index, or without an index `model*.safetensors`,
    /// or else the only safetensors file. Files may be links, as in the hub's cache.
    ///
    /// # Errors
    /// [`ConvertError::File`] if the index names a file without the tensor, or does not list a tensor of a
    /// file; for a tensor in two files without an index; for a file that is missing, truncated or corrupt;
    /// and if no file is found.
    pub fn open(folder: &Path) -> Result<Self, ConvertError> {
        let index = folder.join(INDEX);
        let (names, map) = if index.is_file() {
            let map = read_index(&index)?;
            let mut names: Vec<String> = map.values().cloned().collect();
            names.sort();
            names.dedup();
            (names, Some(map))
        } else {
            (files_without_index(folder)?, None)
        };
        let missing: Vec<&str> =
            names.iter().filter(|name| !folder.join(name).is_file()).map(String::as_str).collect();
        if let Some(first) = missing.first() {
            let at = folder.join(first);
            if at.is_symlink() {
                return Err(ConvertError::file(&at, "a dangling link: download the file again"));
            }
            let (n, all) = (missing.len(), names.len());
            let detail = format!("{n} of the {all} files in it are missing, the first is {first}");
            return Err(ConvertError::file(&index, detail));
        }
        let mut out = Self { tensors: BTreeMap::new(), files: Vec::new(), others: Vec::new() };
        for name in &names {
            let home = |tensor: &str| map.as_ref().and_then(|map| map.get(tensor)).map(String::as_str);
            out.add(&folder.join(name), |tensor| home(tensor).is_none_or(|home| home == name))?;
        }
        if let Some(map) = &map {
            out.check_index(&index, map)?;
        }
        Ok(out)
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Reads a tensor's bytes from its file.
    ///
    /// # Errors
    /// A file that has become shorter, or not enough memory.
    pub fn bytes(&self, tensor: &Tensor) -> Result<Bytes, String> {
        let (path, source) = &self.files[tensor.file];
        let n_bytes = (tensor.bytes.end - tensor.bytes.start) as usize;
        let read = read(source, tensor.bytes.start, n_bytes);
        read.map(Bytes::from).map_err(|err| format!("{}: {err}", path.display()))
    }

    /// True if both tensors have the same shape, type and bytes.
    ///
    /// # Errors
    /// A file that has become shorter, or not enough memory.
    pub fn same(&self, a: &Tensor, b: &Tensor) -> Result<bool, String> {
        const STEP: u64 = 16 << 20;
        let len = |tensor: &Tensor| tensor.bytes.end - tensor.bytes.start;
        if (a.elem, &a.shape, len(a)) != (b.elem, &b.shape, len(b)) {
            return Ok(false);
        }
        for at in (0..len(a)).step_by(STEP as usize) {
            let part = |tensor: &Tensor| {
                let start = tensor.bytes.start + at;
                self.bytes(&Tensor { bytes: start..tensor.bytes.end.min(start + STEP), ..tensor.clone() })
            };
            if part(a)? != part(b)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A note on copies of tensors that are not read, if there are any.
    pub fn note(&self) -> Option<String> {
        let (first, n) = (self.others.iter().min()?, self.others.len());
        let name = first.escape_debug();
        Some(match n {
            1 => format!("another copy of {name}, in a file that {INDEX} does not name for it, is ignored"),
            _ => format!(
                "other copies of {n} tensors, the first of {name}, in files that {INDEX} does not name for \
                 them, are ignored"
            ),
        })
    }

    /// Adds the tensors of a file that are read from it.
    fn add(&mut self, path: &Path, is_home: impl Fn(&str) -> bool) -> Result<(), ConvertError> {
        const POINTER: &[u8] = b"version https://git-lfs";
        let source = FileSource::open(path).map_err(|err| ConvertError::file(path, err))?;
        let first = POINTER.len().min(source.file_bytes() as usize);
        let first = read(&source, 0, first).map_err(|err| ConvertError::file(path, err))?;
        if first == POINTER {
            let detail = "is a Git LFS pointer, not the file itself: get the file with `git lfs pull` or \
                          from the hub";
            return Err(ConvertError::file(path, detail));
        }
        let (start, metadata) = header(&source).map_err(|detail| {
            ConvertError::file(path, format!("is not a complete safetensors file: {detail}"))
        })?;
        let file = self.files.len();
        for (name, info) in metadata.tensors() {
            if !is_home(&name) {
                self.others.push(name);
                continue;
            }
            let (from, to) = info.data_offsets;
            let shape = info.shape.clone();
            let bytes = start + from as u64..start + to as u64;
            let tensor = Tensor { elem: Elem::of(info.dtype), shape, file, bytes };
            if let Some(other) = self.tensors.insert(name.clone(), tensor) {
                let other = self.files[other.file].0.display().to_string();
                let detail = format!("has tensor {}, which is also in {other}", name.escape_debug());
                return Err(ConvertError::file(path, detail));
            }
        }
        self.files.push((path.to_owned(), source));
        Ok(())
    }

    /// Checks that every tensor of the index is in its file, and that every tensor of a file is in the index.
    fn check_index(&self, index: &Path, map: &BTreeMap<String, String>) -> Result<(), ConvertError> {
        for (name, file) in map {
            if self.get(name).is_none() {
                let found = if self.others.contains(name) { "another file" } else { "no file" };
                let (name, file) = (name.escape_debug(), file.escape_debug());
                let detail = format!("lists tensor {name} in {file}, but it is in {found}");
                return Err(ConvertError::file(index, detail));
            }
        }
        match self.names().find(|name| !map.contains_key(*name)) {
            None => Ok(()),
            Some(name) => {
                let path = self.files[self.tensors[name].file].0.display().to_string();
                let detail = format!("does not list tensor {}, which is in {path}", name.escape_debug());
                Err(ConvertError::file(index, detail))
            }
        }
    }
}

/// Offset of the data, and the header: the tensors cover the data without gaps or overlaps.
fn header(source: &FileSource) -> Result<(u64, Metadata), String> {
    const MAX_HEADER: u64 = 100_000_000;
    let all = source.file_bytes();
    if all < 8 {
        return Err(format!("want 8 bytes at least, found {all}"));
    }
    let mut length = [0; 8];
    source.read_at(0, &mut length).map_err(|err| err.to_string())?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Err(format!("want a header of at most {MAX_HEADER} bytes, found {length}"));
    }
    let start = 8 + length;
    if start > all {
        return Err(format!("want {length} bytes of header, found {}: it is cut short", all - 8));
    }
    let header = read(source, 8, length as usize)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|err| format!("its header: {err}"))?;
    let end = metadata.tensors().values().map(|info| info.data_offsets.1).max().unwrap_or(0);
    match all - start {
        found if found == end as u64 => Ok((start, metadata)),
        found => Err(format!("want {end} bytes of tensors, found {found}")),
    }
}

/// Reads `n_bytes` bytes of a file at `at`.
fn read(source: &FileSource, at: u64, n_bytes: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(n_bytes).map_err(|_| format!("no memory for {n_bytes} bytes"))?;
    bytes.resize(n_bytes, 0);
    source.read_at(at, &mut bytes).map_err(|err| format!("{n_bytes} bytes at offset {at}: {err}"))?;
    Ok(bytes)
}

/// Reads the map from tensors to file names, all in the folder itself.
fn read_index(path: &Path) -> Result<BTreeMap<String, String>, ConvertError> {
    let json = super::read_json(path)?;
    let map = json.get("weight_map").and_then(Json::as_object);
    let map = map.ok_or_else(|| ConvertError::file(path, "want an object `weight_map`, found none"))?;
    let mut out = BTreeMap::new();
    for (name, file) in map {
        let file = file.as_str().filter(|file| is_plain_name(file)).ok_or_else(|| {
            let name = name.escape_debug();
            ConvertError::file(
                path,
                format!("tensor {name}: want the name of a file in the same folder, found {file}"),
            )
        })?;
        out.insert(name.clone(), file.to_owned());
    }
    match out.is_empty() {
        true => Err(ConvertError::file(path, "lists no tensor")),
        false => Ok(out),
    }
}

/// True for the name of a file in the folder itself, on any system.
fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_one = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    is_one && !name.contains(['/', '\\', ':', '\0']) && name.ends_with(".safetensors")
}

/// `model*.safetensors`, sorted, or the only file of that kind.
fn files_without_index(folder: &Path) -> Result<Vec<String>, ConvertError> {
    let entries = fs::read_dir(folder).map_err(|err| ConvertError::file(folder, err))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for name in names {
        if name.ends_with(".safetensors") {
            found.push(name);
        } else if [".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf"].iter().any(|end| name.ends_with(end)) {
            others.push(name);
        }
    }
    found.sort();
    let of_model: Vec<String> = found.iter().filter(|name| name.starts_with("model")).cloned().collect();
    if !of_model.is_empty() {
        // Some repositories have a second copy of the model under another name; parts of one model contain
        // their number.
        let parts = of_model.iter().filter(|name| name.contains("-of-")).count();
        if parts != 0 && parts != of_model.len() {
            let detail = format!("want one model, found {}", of_model.join(", "));
            return Err(ConvertError::file(folder, detail));
        }
        return all_parts(folder, of_model);
    }
    match &found[..] {
        [only] => return Ok(vec![only.clone()]),
        [] => {}
        several => {
            let detail =
                format!("want model.safetensors or an index ({INDEX}), found {}", several.join(", "));
            return Err(ConvertError::file(folder, detail));
        }
    }
    others.sort();
    let detail = match others.first() {
        Some(name) if name.ends_with(".gguf") => format!("contains {name}, which is already GGUF"),
        Some(name) => format!(
            "contains {name} but no safetensors: pickles can run code when read, and are not supported; \
             save the model with transformers' save_pretrained, which writes safetensors"
        ),
        None => "has no safetensors file".to_owned(),
    };
    Err(ConvertError::file(folder, detail))
}

/// Checks that all parts of `model-00001-of-00003.safetensors` exist.
fn all_parts(folder: &Path, names: Vec<String>) -> Result<Vec<String>, ConvertError> {
    let count = |name: &str| -> Option<usize> {
        let (_, rest) = name.split_once("-of-")?;
        rest.strip_suffix(".safetensors")?.parse().ok()
    };
    match names.first().and_then(|name| count(name)) {
        Some(n) if n != names.len() => {
            let detail =
                format!("want {n} parts by their names, found {}: {}", names.len(), names.join(", "));
            Err(ConvertError::file(folder, detail))
        }
        _ => Ok(names),
    }
}
