//! Weights on the device: which types have kernels, how their bytes lie there, and the upload, in parts where a weight is
//! larger than a buffer may be.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use ggml_types::{HostTensor, QuantType, planes};
use wgpu::Buffer;

use super::device::{Gpu, error};
use super::shader::{LANES, THREADS};
use crate::backend::BackendError;
use crate::program::ActQuant;

/// A type with kernels: `shaders/types/KERNELS.wgsl`.
pub struct Format {
    /// Name of the type.
    pub name: &'static str,
    /// The type whose kernels it has: its own, but for one that is unpacked when it goes up.
    pub kernels: &'static str,
    /// How a kernel decodes it.
    pub shader: &'static str,
    /// Elements of a chunk, the piece that one thread multiplies at a time.
    pub chunk_elems: usize,
    /// Whether its products with int8 activations are of integers.
    pub ints: bool,
    /// Bytes of a chunk on the device, all planes together, times 4.
    quarter_bytes: usize,
    /// Some rows as the kernels read them.
    pack: fn(&HostTensor, Range<usize>) -> Cow<'_, [u8]>,
}

/// Every type with kernels.
pub static FORMATS: &[Format] = &[
    Format {
        name: "i2_s",
        kernels: "i2_s",
        shader: include_str!("shaders/types/i2_s.wgsl"),
        chunk_elems: 64,
        ints: true,
        quarter_bytes: 64,
        pack: rows_as_they_are,
    },
    Format {
        name: "f16",
        kernels: "f16",
        shader: include_str!("shaders/types/f16.wgsl"),
        chunk_elems: 8,
        ints: false,
        quarter_bytes: 64,
        pack: padded_rows::<16>,
    },
    Format {
        name: "f32",
        kernels: "f32",
        shader: include_str!("shaders/types/f32.wgsl"),
        chunk_elems: 8,
        ints: false,
        quarter_bytes: 128,
        pack: padded_rows::<32>,
    },
    Format {
        name: "q8_0",
        kernels: "q8_0",
        shader: include_str!("shaders/types/q8_0.wgsl"),
        chunk_elems: 16,
        ints: false,
        quarter_bytes: 68,
        pack: |w, rows| Cow::Owned(planes::q8_0(bytes_of(w, rows))),
    },
    Format {
        name: "q6_k",
        kernels: "q6_k",
        shader: include_str!("shaders/types/q6_k.wgsl"),
        chunk_elems: 64,
        ints: false,
        quarter_bytes: 210,
        pack: |w, rows| Cow::Owned(planes::q6_k(bytes_of(w, rows))),
    },
    Format {
        name: "q4_0",
        kernels: "q4_0",
        shader: include_str!("shaders/types/q4_0.wgsl"),
        chunk_elems: 32,
        ints: false,
        quarter_bytes: 72,
        pack: |w, rows| Cow::Owned(planes::q4_0(bytes_of(w, rows))),
    },
    Format {
        name: "bf16",
        kernels: "bf16",
        shader: include_str!("shaders/types/bf16.wgsl"),
        chunk_elems: 8,
        ints: false,
        quarter_bytes: 64,
        pack: padded_rows::<16>,
    },
    Format {
        name: "tq2_0",
        kernels: "tq2_0",
        shader: include_str!("shaders/types/tq2_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        quarter_bytes: 66,
        pack: |w, rows| Cow::Owned(planes::tq2_0(bytes_of(w, rows))),
    },
    Format {
        name: "tq1_0",
        kernels: "tq2_0",
        shader: include_str!("shaders/types/tq2_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        quarter_bytes: 66,
        pack: |w, rows| Cow::Owned(planes::tq1_0(bytes_of(w, rows))),
    },
];

impl Format {
    /// The format of a type.
    pub fn of(ty: &dyn QuantType) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == ty.name())
    }

    /// Chunks of a row.
    pub fn chunks(&self, cols: usize) -> usize {
        cols.div_ceil(self.chunk_elems)
    }

    /// Bytes of a row on the device, rounded up.
    pub fn row_bytes(&self, cols: usize) -> usize {
        (self.chunks(cols) * self.quarter_bytes).div_ceil(4)
    }

    /// Whether the products of a layer are of integers.
    pub fn multiplies_ints(&self, act: ActQuant) -> bool {
        self.ints && act == ActQuant::I8PerToken
    }
}

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
pub fn obstacle(gpu: &Gpu, name: &str, format: &Format, cols: usize) -> Option<String> {
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
        if let Some(why) = obstacle(gpu, &w.name, format, w.cols) {
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

fn row_bytes(w: &HostTensor) -> usize {
    w.ty.row_bytes(w.cols).expect("a shape that the type can hold")
}

fn bytes_of(w: &HostTensor, rows: Range<usize>) -> &[u8] {
    let bytes = row_bytes(w);
    &w.bytes[rows.start * bytes..rows.end * bytes]
}

fn rows_as_they_are(w: &HostTensor, rows: Range<usize>) -> Cow<'_, [u8]> {
    Cow::Borrowed(bytes_of(w, rows))
}

/// Rows padded with zeros to multiples of `ALIGN` bytes.
fn padded_rows<const ALIGN: usize>(w: &HostTensor, rows: Range<usize>) -> Cow<'_, [u8]> {
    let from = row_bytes(w);
    let to = from.next_multiple_of(ALIGN);
    if from == to {
        return rows_as_they_are(w, rows);
    }
    let mut out = vec![0; rows.len() * to];
    for (to, from) in out.chunks_exact_mut(to).zip(bytes_of(w, rows).chunks_exact(from)) {
        to[..from.len()].copy_from_slice(from);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_has_as_many_parts_as_its_rows_need_of_the_limit() {
        let f32 = FORMATS.iter().find(|format| format.name == "f32").expect("a format");
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
