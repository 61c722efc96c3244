//! Weights on the device: the upload, in parts where a weight is larger than a buffer may be.

use std::ops::Range;
use std::sync::Arc;

use ggml_types::{HostTensor, QuantType};
use wgpu::Buffer;

use super::device::{Gpu, buffer_bytes, error};
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
    /// Their bytes, perhaps among those of others.
    pub buffer: Buffer,
    /// Where they begin in the buffer, and how many they are: multiples of 16.
    pub at: u64,
    /// See above.
    pub bytes: u64,
    /// Whether the buffer has the weights of several experts.
    is_joined: bool,
}

impl Part {
    /// The buffer of a part that has one of its own.
    ///
    /// # Panics
    /// For a part of an expert: its weights belong to no other layer.
    pub fn alone(&self) -> &Buffer {
        assert!(!self.is_joined, "the weights of an expert belong to no other layer");
        &self.buffer
    }

    /// Whether this one lies right behind another one.
    pub fn follows(&self, before: &Self) -> bool {
        self.buffer == before.buffer && self.at == before.at + before.bytes
    }
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

/// Bytes of the buffers of a weight.
pub fn device_bytes(gpu: &Gpu, format: &Format, rows: usize, cols: usize) -> u64 {
    let most = rows_of_part(gpu.max_part_bytes, format, cols).max(1);
    parts_of(rows, most).map(|part| buffer_bytes(format.packed_bytes(part.len(), cols))).sum()
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
            let bytes = format.packed(w, rows.clone());
            let buffer = gpu.storage(bytes.len() as u64)?;
            let whole = bytes.len() / 4 * 4;
            gpu.upload(&buffer, &bytes[..whole])?;
            if whole < bytes.len() {
                let mut last = [0; 4];
                last[..bytes.len() - whole].copy_from_slice(&bytes[whole..]);
                gpu.write(&buffer, whole as u64, &last);
            }
            let bytes = buffer.size();
            parts.push(Part { rows, buffer, at: 0, bytes, is_joined: false });
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

/// Brings weights of one type and shape into as few buffers as may be, one behind the other, so that one
/// dispatch can have many of them. What is there already stays.
pub fn join(gpu: &Gpu, all: &mut [DeviceWeight], ids: &[usize]) -> Result<(), BackendError> {
    if ids.iter().all(|id| all[*id].parts.iter().all(|part| part.is_joined)) {
        return Ok(());
    }
    let mut joined: Vec<Vec<Part>> = ids.iter().map(|_| Vec::new()).collect();
    for i in 0..all[ids[0]].parts.len() {
        let bytes = all[ids[0]].parts[i].bytes;
        let together = (gpu.max_part_bytes / bytes).max(1) as usize;
        for (ids, joined) in ids.chunks(together).zip(joined.chunks_mut(together)) {
            let buffer = gpu.storage(bytes * ids.len() as u64)?;
            let mut encoder = gpu.encoder();
            for ((id, parts), at) in ids.iter().zip(joined).zip((0..).step_by(bytes as usize)) {
                let from = &all[*id].parts[i];
                encoder.copy_buffer_to_buffer(&from.buffer, from.at, &buffer, at, bytes);
                let (rows, buffer) = (from.rows.clone(), buffer.clone());
                parts.push(Part { rows, buffer, at, bytes, is_joined: true });
            }
            gpu.submit(encoder)?;
        }
    }
    for (id, parts) in ids.iter().zip(joined) {
        all[*id].parts = parts.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ggml_types::types;

    use super::super::weight::FORMATS;
    use super::*;

    #[test]
    fn as_many_bytes_are_planned_as_packing_makes() {
        for format in FORMATS {
            let (rows, cols) = (8, 256 * 3);
            let Ok(bytes) = format.ty.encode(&vec![0.5; rows * cols], rows, cols) else { continue };
            let w = HostTensor { name: String::new(), ty: format.ty, rows, cols, bytes: bytes.into() };
            for part in [0..4, 4..8, 0..8] {
                let (name, planned) = (format.ty.name(), format.packed_bytes(part.len(), cols));
                assert_eq!(planned, format.packed(&w, part).len() as u64, "{name}");
            }
        }
    }

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
