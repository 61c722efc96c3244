//! Importance matrices: mean squares of the inputs of each product, per column, in llama-imatrix's formats.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use ggml_types::types;

use sterna_gguf::{Array, Gguf, GgufError, GgufWriter, Metadata, type_id};

/// Name suffixes of the two tensors of an entry.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const DATASETS: &str = "imatrix.datasets";
const CHUNK_COUNT: &str = "imatrix.chunk_count";
const CHUNK_SIZE: &str = "imatrix.chunk_size";

/// Errors of reading or writing an importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixError {
    /// The file cannot be opened, is corrupt GGUF, or cannot be written.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file cannot be read.
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
    /// The file is not an importance matrix.
    #[error("not an importance matrix: {0}")]
    Broken(String),
    /// An invalid entry.
    #[error("entry {}: {detail}", name.escape_debug())]
    Entry {
        /// GGUF name of the weight.
        name: String,
        /// Expected and found.
        detail: String,
    },
}

/// For each weight, the mean squares of its inputs over a text.
#[derive(Clone, Debug, Default)]
pub struct Imatrix {
    /// Path of the file that it was read from.
    file: String,
    datasets: Vec<String>,
    chunks: u32,
    chunk_size: u32,
    entries: BTreeMap<String, Entry>,
}

/// Entry of one weight.
#[derive(Clone, Debug)]
struct Entry {
    /// Mean squares: `[matrices, cols]`.
    means: Vec<f32>,
    /// Rows processed by each matrix; one number for all matrices in old files.
    counts: Vec<f32>,
}

impl Imatrix {
    /// Creates an empty one, for a text of `chunks` chunks of `chunk_size` tokens each.
    pub fn new(dataset: &str, chunks: u32, chunk_size: u32) -> Self {
        Self { datasets: vec![dataset.to_owned()], chunks, chunk_size, ..Self::default() }
    }

    /// Adds a weight: the sums of squares of its inputs, `[matrices, cols]`, and the number of rows processed
    /// by each matrix.
    ///
    /// # Errors
    /// [`ImatrixError::Entry`] for invalid sums or counts, or different numbers of columns.
    pub fn add(&mut self, name: &str, sums: &[f32], counts: &[f32]) -> Result<(), ImatrixError> {
        let broken = |detail: String| Err(ImatrixError::Entry { name: name.to_owned(), detail });
        if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            return broken(format!(
                "want the same number of sums per matrix, found {} for {}",
                sums.len(),
                counts.len()
            ));
        }
        if let Some(at) = sums.iter().position(|sum| !sum.is_finite() || *sum < 0.0) {
            return broken(format!("want sums of squares, found {} in column {at}", sums[at]));
        }
        if let Some(count) = counts.iter().find(|count| !count.is_finite() || **count < 0.0) {
            return broken(format!("want a number of rows, found {count}"));
        }
        let cols = sums.len() / counts.len();
        let mean = |(at, sum): (usize, &f32)| match counts[at / cols] {
            // Nothing is known about an expert that was never chosen: all columns have the same weight.
            0.0 => 1.0,
            count => sum / count,
        };
        let entry = Entry { means: sums.iter().enumerate().map(mean).collect(), counts: counts.to_vec() };
        match self.entries.insert(name.to_owned(), entry) {
            Some(_) => broken("duplicate".to_owned()),
            None => Ok(()),
        }
    }

    /// Reads a file of either format.
    ///
    /// # Errors
    /// [`ImatrixError`], by cause.
    pub fn open(path: &Path) -> Result<Self, ImatrixError> {
        let is_gguf = {
            let mut magic = [0; 4];
            let mut file = fs::File::open(path)?;
            std::io::Read::read_exact(&mut file, &mut magic).is_ok() && &magic == b"GGUF"
        };
        let mut found =
            if is_gguf { Self::from_gguf(&Gguf::open(path)?)? } else { Self::from_dat(&fs::read(path)?)? };
        found.file = path.display().to_string();
        if found.entries.is_empty() {
            return Err(ImatrixError::Broken("it has no entries".to_owned()));
        }
        Ok(found)
    }

    /// Reads the GGUF format of current llama-imatrix.
    ///
    /// # Errors
    /// [`ImatrixError`], by cause.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ImatrixError> {
        let metadata = gguf.metadata();
        let kind = metadata.str("general.type")?.unwrap_or_default();
        if kind != "imatrix" && metadata.get(CHUNK_COUNT).is_none() {
            return Err(ImatrixError::Broken(format!("want general.type imatrix, found {kind:?}")));
        }
        let datasets = metadata.get(DATASETS).map(|_| metadata.require_strs(DATASETS)).transpose()?;
        let mut found = Self {
            datasets: datasets.into_iter().flatten().map(str::to_owned).collect(),
            chunks: metadata.u32(CHUNK_COUNT)?.unwrap_or(0),
            chunk_size: metadata.u32(CHUNK_SIZE)?.unwrap_or(0),
            ..Self::default()
        };
        for info in gguf.tensors() {
            let Some(name) = info.name.strip_suffix(SUMS) else {
                let weight = info.name.strip_suffix(COUNTS);
                if weight.is_some_and(|name| gguf.find(&format!("{name}{SUMS}")).is_none()) {
                    let (name, detail) = (info.name.clone(), format!("its tensor {SUMS} is missing"));
                    return Err(ImatrixError::Entry { name, detail });
                }
                continue;
            };
            let sums = values(gguf, &info.name)?;
            let counts = values(gguf, &format!("{name}{COUNTS}"))?;
            found.add(name, &sums, &counts)?;
        }
        Ok(found)
    }

    /// Reads the format used until mid 2025, which has no magic number.
    ///
    /// # Errors
    /// [`ImatrixError::Broken`], [`ImatrixError::Entry`].
    pub fn from_dat(bytes: &[u8]) -> Result<Self, ImatrixError> {
        let mut rest = Dat { bytes, at: 0 };
        let n_entries = rest.count("entries")?;
        let mut found = Self::default();
        for _ in 0..n_entries {
            let len = rest.count("bytes of a name")?;
            let name = rest.text(len)?;
            // Number of calls, by which the means were multiplied. Some old files have 0, which means 1.
            let calls = rest.int()?.max(1) as f32;
            let n = rest.count("columns")?;
            let sums = rest.floats(n)?;
            found.add(&name, &sums, &[calls])?;
        }
        // Older files end here.
        if rest.at < bytes.len() {
            found.chunks = u32::try_from(rest.int()?).unwrap_or(0);
            let len = rest.count("bytes of a file's name")?;
            found.datasets.extend(Some(rest.text(len)?).filter(|name| !name.is_empty()));
        }
        Ok(found)
    }

    /// Writes the GGUF format of llama-imatrix.
    ///
    /// # Errors
    /// [`ImatrixError::Gguf`] if writing fails.
    pub fn write(&self, out: impl Write) -> Result<(), ImatrixError> {
        let mut data = self.writer()?.begin(out)?;
        for entry in self.entries.values() {
            let cols = entry.means.len() / entry.counts.len();
            let sum = |(at, mean): (usize, &f32)| mean * entry.counts[at / cols];
            let sums: Vec<f32> = entry.means.iter().enumerate().map(sum).collect();
            for values in [&sums, &entry.counts] {
                data.tensor([values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()])?;
            }
        }
        data.finish()?;
        Ok(())
    }

    /// Size in bytes of the file that [`write`](Self::write) writes.
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub fn file_bytes(&self) -> Result<u64, ImatrixError> {
        Ok(self.writer()?.file_bytes())
    }

    fn writer(&self) -> Result<GgufWriter, ImatrixError> {
        let mut metadata = Metadata::default();
        metadata.set("general.type", "imatrix");
        metadata.set(DATASETS, Array::from_strs(self.datasets.iter().map(String::as_str)));
        metadata.set(CHUNK_COUNT, self.chunks);
        metadata.set(CHUNK_SIZE, self.chunk_size);
        let mut writer = GgufWriter::new(metadata)?;
        let f32_id = type_id(&types::F32).expect("files carry f32");
        for (name, Entry { means, counts }) in &self.entries {
            let (n, cols) = (counts.len(), means.len() / counts.len());
            writer.tensor(&format!("{name}{SUMS}"), &[n, cols], f32_id, 4 * means.len() as u64)?;
            writer.tensor(&format!("{name}{COUNTS}"), &[n, 1], f32_id, 4 * n as u64)?;
        }
        Ok(writer)
    }

    /// Mean square of each input column of a weight, one matrix after the other.
    pub fn importance(&self, name: &str) -> Option<&[f32]> {
        self.entries.get(name).map(|entry| entry.means.as_slice())
    }

    /// Number of weights.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Writes the metadata keys of a file quantised with it.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        metadata.set("quantize.imatrix.file", self.file.as_str());
        if let Some(dataset) = self.datasets.first() {
            metadata.set("quantize.imatrix.dataset", dataset.as_str());
        }
        metadata.set("quantize.imatrix.entries_count", self.entries.len() as u32);
        if self.chunks > 0 {
            metadata.set("quantize.imatrix.chunks_count", self.chunks);
        }
    }
}

/// Reads all values of an f32 tensor.
fn values(gguf: &Gguf, name: &str) -> Result<Vec<f32>, ImatrixError> {
    let tensor = gguf.tensor(name)?;
    if !tensor.ty.is(&types::F32) {
        let detail = format!("want f32, found {}", tensor.ty.name());
        return Err(ImatrixError::Entry { name: name.to_owned(), detail });
    }
    let (floats, _) = tensor.bytes.as_chunks::<4>();
    Ok(floats.iter().take(tensor.rows * tensor.cols).map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

/// Reader of an old file.
struct Dat<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Dat<'_> {
    fn take(&mut self, n: usize) -> Result<&[u8], ImatrixError> {
        let left = self.bytes.len() - self.at;
        if n > left {
            return Err(self.broken(format!("want {n} more bytes, found {left}")));
        }
        self.at += n;
        Ok(&self.bytes[self.at - n..self.at])
    }

    fn int(&mut self) -> Result<i32, ImatrixError> {
        let bytes = self.take(4)?;
        Ok(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn count(&mut self, of: &str) -> Result<usize, ImatrixError> {
        let number = self.int()?;
        usize::try_from(number).map_err(|_| self.broken(format!("want a number of {of}, found {number}")))
    }

    fn text(&mut self, len: usize) -> Result<String, ImatrixError> {
        let text = String::from_utf8(self.take(len)?.to_vec());
        text.map_err(|err| self.broken(format!("want text, found {:?}", err.into_bytes())))
    }

    fn floats(&mut self, n: usize) -> Result<Vec<f32>, ImatrixError> {
        // A number whose byte count overflows is also larger than the rest.
        let (floats, _) = self.take(n.saturating_mul(4))?.as_chunks::<4>();
        Ok(floats.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    fn broken(&self, detail: String) -> ImatrixError {
        ImatrixError::Broken(format!(
            "neither GGUF nor llama.cpp's older format: at byte {}, {detail}",
            self.at
        ))
    }
}
