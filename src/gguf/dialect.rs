//! Detects the dialect of type ids in a file: llama.cpp and the forks of microsoft/BitNet use the same ids
//! for different types.

use ggml_types::{Dialect, byte_len_of, id_name};

use super::types::by_id_and_size;
use super::{GgufError, Metadata};

/// I2_S in the forks, no longer used upstream.
const I2_S: u32 = 36;
/// Architecture names that only the forks write. (Upstream also writes `bitnet`.)
const FORK_ARCHITECTURES: [&str; 2] = ["bitnet-25", "bitnet-b1.58"];

/// True if the dialects use an id for different types.
pub(super) fn clashes(type_id: u32) -> bool {
    id_name(Dialect::Ggml, type_id) != id_name(Dialect::BitNet, type_id)
}

/// Properties of one tensor that the decision is based on.
pub(super) struct Evidence {
    pub type_id: u32,
    pub rows: usize,
    pub cols: usize,
    /// Bytes to the next tensor or the end of the file.
    pub span_bytes: u64,
    /// The padding within the span is smaller than this.
    pub alignment: usize,
}

impl Evidence {
    /// True if the tensor's size in `dialect` matches the span.
    fn fits(&self, dialect: Dialect) -> bool {
        let shape = (self.rows, self.cols);
        let ty = by_id_and_size((dialect, self.type_id), shape, self.span_bytes, self.alignment);
        // The size may be known even for a type without an implementation.
        ty.map_or_else(
            || byte_len_of(dialect, self.type_id, self.rows, self.cols),
            |ty| ty.byte_len(self.rows, self.cols).ok(),
        )
        .and_then(|want| self.span_bytes.checked_sub(want as u64))
        .is_some_and(|padding| padding < self.alignment as u64)
    }

    /// True if the span may contain a type of the forks. TL1 and TL2 have no exact size: they take up to 2
    /// bits per weight, a scale and padding.
    fn may_be_bitnet(&self) -> bool {
        let most = (self.rows.saturating_mul(self.cols) / 4).saturating_add(64 + self.alignment);
        id_name(Dialect::BitNet, self.type_id).is_some() && self.span_bytes < most as u64
    }
}

/// Decides by tensor sizes first, which are always correct, then by the architecture's name.
///
/// # Errors
/// [`GgufError::Dialect`] if the evidence is contradictory or missing.
pub(super) fn resolve(metadata: &Metadata, tensors: &[Evidence]) -> Result<Dialect, GgufError> {
    let clashing = || tensors.iter().filter(|tensor| clashes(tensor.type_id));
    if clashing().next().is_none() {
        return Ok(Dialect::Ggml);
    }
    let architecture = metadata.str("general.architecture").ok().flatten().unwrap_or("none");
    let n_bitnet = clashing().filter(|tensor| tensor.fits(Dialect::BitNet)).count();
    let n_ggml = clashing().filter(|tensor| tensor.fits(Dialect::Ggml)).count();
    let from_fork = FORK_ARCHITECTURES.contains(&architecture);
    match (n_bitnet > 0, n_ggml > 0) {
        (true, false) => Ok(Dialect::BitNet),
        // Models of the forks may also have llama.cpp's types, for example after `quantize`.
        (false, true) if !from_fork || !clashing().any(Evidence::may_be_bitnet) => Ok(Dialect::Ggml),
        (false, false) if from_fork || clashing().any(|tensor| tensor.type_id == I2_S) => Ok(Dialect::BitNet),
        _ => {
            let file_type = metadata.get("general.file_type").map_or("none".into(), |value| value.describe());
            Err(GgufError::Dialect {
                detail: format!(
                    "architecture {}, file type {file_type}; of {} tensors with a type id on \
                     which the two differ, {n_ggml} fit llama.cpp's sizes and {n_bitnet} microsoft/BitNet's",
                    architecture.escape_debug(),
                    clashing().count()
                ),
            })
        }
    }
}
