//! Weights on the device: the upload, in parts if a weight exceeds the largest buffer.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use ggml_types::{HostTensor, QuantType};
use wgpu::Buffer;

use super::alloc::{Allocator, STORAGE};
use super::device::{Gpu, error};
use super::shader::{LANES, THREADS};
use super::weight::WeightFormat;
use crate::{BackendError, MemoryKind, WeightRows};
use sterna_program::WeightDecl;

/// A weight on the device. Cloning shares it.
#[derive(Clone, Debug)]
pub struct DeviceWeight {
    /// Its type before packing.
    pub ty: &'static dyn QuantType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Its rows, in order.
    pub parts: Arc<[UploadedRows]>,
    tensor_scale: f32,
}

#[derive(Debug)]
pub struct UploadedRows {
    /// Their range in the weight.
    pub rows: Range<usize>,
    /// Buffer with their bytes, possibly shared with other weights.
    pub buffer: Buffer,
    /// Byte offset in the buffer, a multiple of 16.
    pub at: u64,
    /// Number of bytes, a multiple of 16.
    pub bytes: u64,
    /// True if the buffer may hold the weights of several experts, heads or adapters.
    is_joined: bool,
}

impl UploadedRows {
    /// The buffer of a part that shares it with no other part.
    ///
    /// # Panics
    /// Panics for a part of an expert, head or adapter: no other layer uses these weights.
    pub fn alone(&self) -> &Buffer {
        assert!(!self.is_joined, "no other layer uses the weights of an expert, head or adapter");
        &self.buffer
    }

    /// True if this part directly follows another one in the same buffer.
    pub fn follows(&self, before: &Self) -> bool {
        self.buffer == before.buffer && self.at == before.at + before.bytes
    }
}

/// Largest number of rows that fit in one buffer, and in one dispatch.
fn rows_of_part(max_part_bytes: u64, format: &WeightFormat, cols: usize) -> usize {
    /// Workgroups of a grid per dimension are limited to 65,535.
    const MAX_ROWS: u64 = 65_535 * (THREADS / LANES) as u64;
    // Planes begin at multiples of 16 bytes.
    let room = max_part_bytes.saturating_sub(64 + format.book().len() as u64);
    (room / format.row_bytes(cols).max(1) as u64).min(MAX_ROWS) as usize
}

/// Splits `rows` into ranges of at most `most` rows.
fn parts_of(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(most).map(move |first| first..rows.min(first + most))
}

/// Bytes of a weight that are read and packed at a time.
pub const CHUNK_BYTES: usize = 4 << 20;

/// Rows per chunk. Their share of each plane is a multiple of 4 bytes, as writes require.
fn rows_of_chunk(ty: &dyn QuantType, cols: usize) -> usize {
    let row_bytes = ty.row_bytes(cols).unwrap_or(0).max(1);
    let step = 4 * ty.rows_together();
    (CHUNK_BYTES / row_bytes / step).max(1) * step
}

/// Reason why a weight cannot be stored on the device, if there is one.
pub fn unsupported(gpu: &Gpu, name: &str, format: &WeightFormat, cols: usize) -> Option<String> {
    let bytes = format.row_bytes(cols);
    let most = gpu.max_part_bytes;
    (rows_of_part(most, format, cols) == 0)
        .then(|| format!("{name}: a row takes {bytes} bytes, more than the {most} of a buffer"))
}

/// Allocates the buffers of a weight, one per range of its rows, and attributes them to `part` of the
/// program's memory.
pub fn alloc<A: Allocator>(
    on: &mut A,
    part: &str,
    format: &WeightFormat,
    cols: usize,
    stretches: impl Iterator<Item = Range<usize>>,
) -> Result<Vec<A::Buffer>, BackendError> {
    let buffer = |rows: Range<usize>| {
        let bytes = format.packed_bytes(rows.len(), cols);
        on.storage(&part, &[(MemoryKind::Weights, part, bytes)])
    };
    stretches.map(buffer).collect()
}

/// Row ranges of a weight that have a buffer each.
pub fn stretches(
    gpu: &Gpu,
    format: &WeightFormat,
    rows: usize,
    cols: usize,
) -> impl Iterator<Item = Range<usize>> {
    parts_of(rows, rows_of_part(gpu.max_part_bytes, format, cols).max(1))
}

impl DeviceWeight {
    /// Packs and uploads a weight, a range of rows at a time.
    ///
    /// # Panics
    /// Panics if its type has no kernels; the plan reports that first.
    pub fn upload(gpu: &Gpu, w: &HostTensor) -> Result<Self, BackendError> {
        Self::of_rows(gpu, &w.name, w.ty, [w.rows, w.cols], |rows| Ok((Cow::Borrowed(w), rows)))
    }

    /// Uploads a weight that is read by rows. At most [`CHUNK_BYTES`] of a large one are in memory at a time,
    /// and as many packed.
    ///
    /// # Panics
    /// As for [`upload`](Self::upload).
    pub fn upload_rows(gpu: &Gpu, w: &dyn WeightRows) -> Result<Self, BackendError> {
        let WeightDecl { name, ty, rows: n_rows, cols, .. } = w.decl();
        Self::of_rows(gpu, name, *ty, [*n_rows, *cols], |rows| {
            let together = ty.rows_together();
            let first = rows.start / together * together;
            let end = rows.end.next_multiple_of(together).min(*n_rows);
            Ok((Cow::Owned(w.read(first..end)?), rows.start - first..rows.end - first))
        })
    }

    /// `read` returns a tensor that contains the requested rows, and their range in it.
    fn of_rows<'a>(
        gpu: &Gpu,
        name: &str,
        ty: &'static dyn QuantType,
        [rows, cols]: [usize; 2],
        read: impl Fn(Range<usize>) -> Result<(Cow<'a, HostTensor>, Range<usize>), BackendError>,
    ) -> Result<Self, BackendError> {
        let format = WeightFormat::of(ty).unwrap_or_else(|| panic!("{name}: {} has no kernels", ty.name()));
        if let Some(why) = unsupported(gpu, name, format, cols) {
            return Err(error("uploading a weight", why));
        }
        let mut tensor_scale = 1.0;
        let mut parts = Vec::new();
        let stretches = || stretches(gpu, format, rows, cols);
        let buffers = alloc(&mut { gpu }, name, format, cols, stretches())?;
        for (part, buffer) in stretches().zip(buffers) {
            let planes = format.planes(part.len(), cols);
            gpu.upload(&buffer, 0, format.book())?;
            for chunk in parts_of(part.len(), rows_of_chunk(ty, cols)) {
                let (tensor, of_tensor) = read(part.start + chunk.start..part.start + chunk.end)?;
                let scale = ty.tensor_scale(&tensor.bytes, tensor.rows, cols);
                tensor_scale = scale.expect("a whole tensor");
                let packed = format.packed(&tensor, of_tensor);
                let before = format.planes(chunk.start, cols);
                let of_chunk = format.planes(chunk.len(), cols);
                for ((plane, before), of_chunk) in planes.iter().zip(before).zip(of_chunk) {
                    let bytes = &packed[of_chunk.start as usize..of_chunk.end as usize];
                    gpu.upload(&buffer, plane.start + (before.end - before.start), bytes)?;
                }
            }
            let bytes = buffer.size();
            parts.push(UploadedRows { rows: part, buffer, at: 0, bytes, is_joined: false });
        }
        Ok(Self { ty, rows, cols, parts: parts.into(), tensor_scale })
    }

    /// True if its rows may be in one buffer with those of other weights.
    pub fn is_joined(&self) -> bool {
        self.parts.iter().any(|part| part.is_joined)
    }

    /// A weight in the same parts with small buffers, to count launches.
    pub fn hollow(gpu: &Gpu, decl: &WeightDecl) -> Result<Self, BackendError> {
        let WeightDecl { ty, rows, cols, .. } = *decl;
        let format = WeightFormat::of(ty).expect("the plan was made");
        let part = |rows: Range<usize>| {
            let buffer = gpu.buffer(0, STORAGE)?;
            let bytes = buffer.size();
            Ok(UploadedRows { rows, buffer, at: 0, bytes, is_joined: false })
        };
        let parts = stretches(gpu, format, rows, cols).map(part).collect::<Result<Vec<_>, BackendError>>()?;
        Ok(Self { ty, rows, cols, parts: parts.into(), tensor_scale: 1.0 })
    }

    /// `Matrix` of the kernels' parameters.
    pub fn params(&self, part: &UploadedRows) -> [u32; 4] {
        let chunks = WeightFormat::of(self.ty).expect("it was uploaded").chunks(self.cols);
        [part.rows.len() as u32, part.rows.start as u32, chunks as u32, self.tensor_scale.to_bits()]
    }
}

/// Copies weights of one type and as many parts next to each other, into as few buffers as possible, so that
/// one dispatch can process many of them. Does nothing if they are joined already.
pub fn join(gpu: &Gpu, all: &mut [DeviceWeight], ids: &[usize]) -> Result<(), BackendError> {
    if ids.iter().all(|id| all[*id].parts.iter().all(|part| part.is_joined)) {
        return Ok(());
    }
    let mut joined: Vec<Vec<UploadedRows>> = ids.iter().map(|_| Vec::new()).collect();
    for i in 0..all[ids[0]].parts.len() {
        let mut next = 0;
        while next < ids.len() {
            let ends = ids[next..].iter().scan(0, |end, id| {
                *end += all[*id].parts[i].bytes;
                Some(*end)
            });
            let ends: Vec<u64> = ends.take_while(|end| *end <= gpu.max_part_bytes).collect();
            let together = ends.len().max(1);
            let buffer =
                gpu.buffer(ends.last().copied().unwrap_or(all[ids[next]].parts[i].bytes), STORAGE)?;
            let mut encoder = gpu.encoder();
            let mut at = 0;
            for (id, parts) in ids[next..].iter().zip(&mut joined[next..]).take(together) {
                let from = &all[*id].parts[i];
                encoder.copy_buffer_to_buffer(&from.buffer, from.at, &buffer, at, from.bytes);
                let (rows, buffer, bytes) = (from.rows.clone(), buffer.clone(), from.bytes);
                parts.push(UploadedRows { rows, buffer, at, bytes, is_joined: true });
                at += from.bytes;
            }
            gpu.submit(encoder)?;
            next += together;
        }
    }
    for (id, parts) in ids.iter().zip(joined) {
        gpu.forget(all[*id].parts.iter().map(|part| part.bytes).sum());
        all[*id].parts = parts.into();
    }
    Ok(())
}

/// Ranges of weights whose parts of this number follow each other in one buffer.
pub fn runs(weights: &[&DeviceWeight], part: usize) -> Vec<Range<usize>> {
    let at = |i: usize| &weights[i].parts[part];
    let (mut runs, mut next) = (Vec::new(), 0);
    while next < weights.len() {
        let n = 1 + (next + 1..weights.len()).take_while(|i| at(*i).follows(at(i - 1))).count();
        runs.push(next..next + n);
        next += n;
    }
    runs
}

#[cfg(test)]
mod tests {
    use ggml_types::types;

    use super::super::weight::WEIGHT_FORMATS;
    use super::*;

    #[test]
    fn as_many_bytes_are_planned_as_packing_makes() {
        for format in WEIGHT_FORMATS {
            let (rows, cols) = (8, 256 * 3);
            let zeros = || vec![0; format.ty.byte_len(rows, cols).expect("whole blocks")];
            let bytes = format.ty.encode(&vec![0.5; rows * cols], rows, cols).unwrap_or_else(|_| zeros());
            let w = HostTensor { name: String::new(), ty: format.ty, rows, cols, bytes: bytes.into() };
            for part in [0..4, 4..8, 0..8] {
                let (name, planned) = (format.ty.name(), format.packed_bytes(part.len(), cols));
                assert_eq!(planned, format.packed(&w, part).len() as u64, "{name}");
            }
        }
    }

    /// Rows that are packed in ranges have the same layout as rows packed at once.
    #[test]
    fn the_planes_of_stretches_make_those_of_the_whole() {
        for format in WEIGHT_FORMATS {
            let (rows, cols) = (20, 256 * 3);
            let values: Vec<f32> = (0..rows * cols).map(|i| [-1.0, 0.0, 1.0][i * i % 11 % 3]).collect();
            let any = || {
                let n = format.ty.byte_len(rows, cols).expect("whole blocks");
                (0..n).map(|i| (i * i % 251) as u8).collect()
            };
            let bytes = format.ty.encode(&values, rows, cols).unwrap_or_else(|_| any());
            let w = HostTensor { name: String::new(), ty: format.ty, rows, cols, bytes: bytes.into() };
            let want = format.packed(&w, 0..rows);
            let planes = format.planes(rows, cols);
            let mut got = vec![0; want.len()];
            got[..format.book().len()].copy_from_slice(format.book());
            for chunk in [0..8, 8..16, 16..20] {
                let packed = format.packed(&w, chunk.clone());
                let (before, of_chunk) = (format.planes(chunk.start, cols), format.planes(chunk.len(), cols));
                for ((plane, before), of_chunk) in planes.iter().zip(before).zip(of_chunk) {
                    let at = plane.start + (before.end - before.start);
                    let bytes = &packed[of_chunk.start as usize..of_chunk.end as usize];
                    assert!(at.is_multiple_of(4) && bytes.len().is_multiple_of(4), "{}", format.ty.name());
                    got[at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            assert!(got == *want, "{}", format.ty.name());
        }
    }

    #[test]
    fn a_weight_has_as_many_parts_as_its_rows_need_of_the_limit() {
        let f32 = WeightFormat::of(&types::F32).expect("a format");
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
