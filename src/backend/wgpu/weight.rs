//! Weight types on the device: which have kernels, and how their bytes lie there.

use std::borrow::Cow;
use std::ops::Range;

use ggml_types::{HostTensor, QuantType, planes, types};

use crate::program::ActQuant;

/// A type with kernels: `shaders/types/KERNELS.wgsl`.
pub struct Format {
    pub ty: &'static dyn QuantType,
    /// The type whose kernels it has: its own, but for one that is unpacked when it goes up.
    pub kernels: &'static dyn QuantType,
    /// How a kernel decodes it.
    pub shader: &'static str,
    /// Elements of a chunk, the piece that one thread multiplies at a time.
    pub chunk_elems: usize,
    /// Whether its products with int8 activations are of integers.
    pub ints: bool,
    /// Bytes of a chunk on the device, all planes together, times 4.
    quarter_bytes: usize,
    /// Some rows as the kernels read them.
    pub pack: fn(&HostTensor, Range<usize>) -> Cow<'_, [u8]>,
}

/// Every type with kernels.
pub static FORMATS: &[Format] = &[
    Format {
        ty: &types::I2S,
        kernels: &types::I2S,
        shader: include_str!("shaders/types/i2_s.wgsl"),
        chunk_elems: 64,
        ints: true,
        quarter_bytes: 64,
        pack: rows_as_they_are,
    },
    Format {
        ty: &types::F16,
        kernels: &types::F16,
        shader: include_str!("shaders/types/f16.wgsl"),
        chunk_elems: 8,
        ints: false,
        quarter_bytes: 64,
        pack: padded_rows::<16>,
    },
    Format {
        ty: &types::F32,
        kernels: &types::F32,
        shader: include_str!("shaders/types/f32.wgsl"),
        chunk_elems: 8,
        ints: false,
        quarter_bytes: 128,
        pack: padded_rows::<32>,
    },
    Format {
        ty: &types::Q8_0,
        kernels: &types::Q8_0,
        shader: include_str!("shaders/types/q8_0.wgsl"),
        chunk_elems: 16,
        ints: false,
        quarter_bytes: 68,
        pack: |w, rows| Cow::Owned(planes::q8_0(bytes_of(w, rows))),
    },
    Format {
        ty: &types::Q6K,
        kernels: &types::Q6K,
        shader: include_str!("shaders/types/q6_k.wgsl"),
        chunk_elems: 64,
        ints: false,
        quarter_bytes: 210,
        pack: |w, rows| Cow::Owned(planes::q6_k(bytes_of(w, rows))),
    },
    Format {
        ty: &types::Q4_0,
        kernels: &types::Q4_0,
        shader: include_str!("shaders/types/q4_0.wgsl"),
        chunk_elems: 32,
        ints: false,
        quarter_bytes: 72,
        pack: |w, rows| Cow::Owned(planes::q4_0(bytes_of(w, rows))),
    },
    Format {
        ty: &types::Bf16,
        kernels: &types::Bf16,
        shader: include_str!("shaders/types/bf16.wgsl"),
        chunk_elems: 8,
        ints: false,
        quarter_bytes: 64,
        pack: padded_rows::<16>,
    },
    Format {
        ty: &types::Tq2_0,
        kernels: &types::Tq2_0,
        shader: include_str!("shaders/types/tq2_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        quarter_bytes: 66,
        pack: |w, rows| Cow::Owned(planes::tq2_0(bytes_of(w, rows))),
    },
    Format {
        ty: &types::Tq1_0,
        kernels: &types::Tq2_0,
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
        FORMATS.iter().find(|format| format.ty.is(ty))
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

/// Bytes of a row on the host.
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
