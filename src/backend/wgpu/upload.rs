//! Weights on the device: the upload, in parts where a weight is larger than a buffer may be.

use std::ops::Range;
use std::sync::Arc;

use ggml_types::{HostTensor, QuantType};
use wgpu::Buffer;

use super::device::{Gpu, error};
use super::shader::{LANES, THREADS};
use super::weight::Format;
use crate::backend::BackendError;

/// A weight on the device. Cloning shares it.
#[derive(Clone, Debug)]
pub struct DeviceWeight {
    /// What it was.
    pub ty: &'static dyn QuantType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Its rows, in order.
    pub parts: Arc<[Part]>,
    tensor_scale: f32,
}

/// Rows of a weight.
#[derive(Debug)]
pub struct Part {
    /// Which.
    pub rows: Range<usize>,
    /// Their bytes.
    pub buffer: Buffer,
}

/// Rows of a weight that one buffer may hold, and one dispatch multiply.
fn rows_of_part(max_part_bytes: u64, format: &Format, cols: usize) -> usize {
    /// A grid has no more workgroups in one direction.
    const MOST: u64 = 65_535 * (THREADS / LANES) as u64;
    // Planes begin at multiples of 16 bytes.
    let room = max_part_bytes.saturating_sub(64);
    (room / format.row_bytes(cols).max(1) as u64).min(MOST) as usize
}

/// Stretches of at most `most` rows.
fn parts_of(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(most).map(move |first| first..rows.min(first + most))
}

/// Why a weight cannot lie on the device, if it cannot.
pub fn unsupported(gpu: &Gpu, name: &str, format: &Format, cols: usize) -> Option<String> {
    let bytes = format.row_bytes(cols);
    let most = gpu.max_part_bytes;
    (rows_of_part(most, format, cols) == 0)
        .then(|| format!("{name}, a row of which takes {bytes} bytes of the {most} that a buffer has"))
}

impl DeviceWeight {
    /// Packs and uploads a weight.
    ///
    /// # Panics
    /// Where its type has no kernels: the plan says so first.
    pub fn upload(gpu: &Gpu, w: &HostTensor) -> Result<Self, BackendError> {
        let format = Format::of(w.ty).unwrap_or_else(|| panic!("{}: {} has no kernels", w.name, w.ty.name()));
        if let Some(why) = unsupported(gpu, &w.name, format, w.cols) {
            return Err(error("uploading a weight", why));
        }
        let mut parts = Vec::new();
        for rows in parts_of(w.rows, rows_of_part(gpu.max_part_bytes, format, w.cols)) {
            let bytes = (format.pack)(w, rows.clone());
            let buffer = gpu.storage(bytes.len() as u64)?;
            let whole = bytes.len() / 4 * 4;
            gpu.upload(&buffer, &bytes[..whole])?;
            if whole < bytes.len() {
                let mut last = [0; 4];
                last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
                gpu.write(&buffer, whole as u64, &last);
            }
            parts.push(Part { rows, buffer });
        }
        let tensor_scale = w.ty.tensor_scale(&w.bytes, w.rows, w.cols).expect("a whole tensor");
        Ok(Self { ty: w.ty, rows: w.rows, cols: w.cols, parts: parts.into(), tensor_scale })
    }

    /// `Matrix` in the kernels' parameters.
    pub fn params(&self, part: &Part) -> [u32; 4] {
        let chunks = Format::of(self.ty).expect("it was uploaded").chunks(self.cols);
        [part.rows.len() as u32, part.rows.start as u32, chunks as u32, self.tensor_scale.to_bits()]
    }
}

#[cfg(test)]
mod tests {
    use ggml_types::types;

    use super::*;

    #[test]
    fn a_weight_has_as_many_parts_as_its_rows_need_of_the_limit() {
        let f32 = Format::of(&types::F32).expect("a format");
        assert_eq!(f32.row_bytes(64), 256);
        for (limit, want) in [(64 + 256, 7), (64 + 3 * 256, 3), (64 + 4 * 256 - 1, 3), (64 + 7 * 256, 1)] {
            let parts: Vec<_> = parts_of(7, rows_of_part(limit, f32, 64)).collect();
            assert_eq!(parts.len(), want, "{limit} bytes");
            assert!(parts.iter().all(|part| part.len() as u64 * 256 + 64 <= limit), "{limit} bytes");
            assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), (0..7).collect::<Vec<_>>());
        }
        assert_eq!(rows_of_part(64 + 255, f32, 64), 0);
    }
}
