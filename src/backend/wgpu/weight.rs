//! Weight types on the device: which have kernels, and how their bytes lie there.

use std::borrow::Cow;
use std::ops::Range;

use ggml_types::codebooks::packed;
use ggml_types::{HostTensor, QuantType, planes, types};

use sterna_program::ActQuant;

use super::text::wgsl;

/// A type with kernels: `shaders/types/KERNELS.wgsl`.
pub struct Format {
    pub ty: &'static dyn QuantType,
    /// The type whose kernels it has: its own, but for one that is unpacked when it goes up.
    pub kernels: &'static dyn QuantType,
    /// Shader that decodes it.
    pub shader: &'static str,
    /// Elements of a chunk, the piece that one thread multiplies at a time.
    pub chunk_elems: usize,
    /// True if its products with int8 activations are of integers.
    pub ints: bool,
    /// Packing of rows for kernels.
    pack: Pack,
}

/// Packing of rows for kernels.
enum Pack {
    /// They are that.
    AsTheyAre,
    /// Each filled up with zeros to a multiple of so many bytes.
    PadRows(usize),
    /// Each block likewise.
    PadBlocks(usize),
    /// As planes of the bytes of every block, each from a multiple of 16 bytes on.
    Split(&'static [Range<usize>]),
    /// A codebook, of a multiple of 16 bytes, and such planes behind it.
    Points(&'static [u8], &'static [Range<usize>]),
    /// As planes, one right behind the other, as many bytes as the rows of the kernels' type have: so many of
    /// each block, and last what rows have beside their blocks.
    Planes(fn(&HostTensor, Range<usize>) -> Vec<u8>, &'static [usize]),
    /// As planes of another type's blocks.
    PlanesOf(fn(&HostTensor, Range<usize>) -> Vec<u8>, &'static [Range<usize>]),
}

/// Every type with kernels.
pub static FORMATS: &[Format] = &[
    Format {
        ty: &types::I2S,
        kernels: &types::I2S,
        shader: wgsl!("shaders/types/i2_s.wgsl"),
        chunk_elems: 64,
        ints: true,
        pack: Pack::AsTheyAre,
    },
    Format {
        ty: &types::F16,
        kernels: &types::F16,
        shader: wgsl!("shaders/types/f16.wgsl"),
        chunk_elems: 8,
        ints: false,
        pack: Pack::PadRows(16),
    },
    Format {
        ty: &types::F32,
        kernels: &types::F32,
        shader: wgsl!("shaders/types/f32.wgsl"),
        chunk_elems: 8,
        ints: false,
        pack: Pack::PadRows(32),
    },
    Format {
        ty: &types::Q8_0,
        kernels: &types::Q8_0,
        shader: wgsl!("shaders/types/q8_0.wgsl"),
        chunk_elems: 16,
        ints: false,
        pack: Pack::Planes(|w, rows| planes::q8_0(bytes_of(w, rows)), &[32, 2]),
    },
    Format {
        ty: &types::Q6K,
        kernels: &types::Q6K,
        shader: wgsl!("shaders/types/q6_k.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Planes(|w, rows| planes::q6_k(bytes_of(w, rows)), &[128, 64, 16, 2]),
    },
    Format {
        ty: &types::Q4_0,
        kernels: &types::Q4_0,
        shader: wgsl!("shaders/types/q4_0.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Planes(|w, rows| planes::q4_0(bytes_of(w, rows)), &[16, 2]),
    },
    Format {
        ty: &types::Bf16,
        kernels: &types::Bf16,
        shader: wgsl!("shaders/types/bf16.wgsl"),
        chunk_elems: 8,
        ints: false,
        pack: Pack::PadRows(16),
    },
    Format {
        ty: &types::Tq2_0,
        kernels: &types::Tq2_0,
        shader: wgsl!("shaders/types/tq2_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Planes(|w, rows| planes::tq2_0(bytes_of(w, rows)), &[64, 2]),
    },
    Format {
        ty: &types::Tq1_0,
        kernels: &types::Tq2_0,
        shader: wgsl!("shaders/types/tq2_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Planes(|w, rows| planes::tq1_0(bytes_of(w, rows)), &[64, 2]),
    },
    Format {
        ty: &types::Q4K,
        kernels: &types::Q4K,
        shader: wgsl!("shaders/types/q4_k.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::AsTheyAre,
    },
    Format {
        ty: &types::Q5K,
        kernels: &types::Q5K,
        shader: wgsl!("shaders/types/q5_k.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::AsTheyAre,
    },
    Format {
        ty: &types::Q3K,
        kernels: &types::Q3K,
        shader: wgsl!("shaders/types/q3_k.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::PadBlocks(16),
    },
    Format {
        ty: &types::Q2K,
        kernels: &types::Q2K,
        shader: wgsl!("shaders/types/q2_k.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Split(&[0..80, 80..84]),
    },
    Format {
        ty: &types::Q4_1,
        kernels: &types::Q4_1,
        shader: wgsl!("shaders/types/q4_1.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Split(&[4..20, 0..4]),
    },
    Format {
        ty: &types::Q5_0,
        kernels: &types::Q5_0,
        shader: wgsl!("shaders/types/q5_0.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Split(&[6..22, 2..6, 0..2]),
    },
    Format {
        ty: &types::Q5_1,
        kernels: &types::Q5_1,
        shader: wgsl!("shaders/types/q5_1.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Split(&[8..24, 0..4, 4..8]),
    },
    Format {
        ty: &types::Iq4Nl,
        kernels: &types::Iq4Nl,
        shader: wgsl!("shaders/types/iq4_nl.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Split(&[2..18, 0..2]),
    },
    Format {
        ty: &types::Iq4Xs,
        kernels: &types::Iq4Xs,
        shader: wgsl!("shaders/types/iq4_xs.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Split(&[8..136, 0..8]),
    },
    Format {
        ty: &types::Mxfp4,
        kernels: &types::Mxfp4,
        shader: wgsl!("shaders/types/mxfp4.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Split(&[1..17, 0..1]),
    },
    Format {
        ty: &types::Nvfp4,
        kernels: &types::Nvfp4,
        shader: wgsl!("shaders/types/nvfp4.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Split(&[4..36, 0..4]),
    },
    Format {
        ty: &types::Iq2Bn,
        kernels: &types::Iq2Bn,
        shader: wgsl!("shaders/types/iq2_bn.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Planes(planes::iq2_bn, &[16]),
    },
    Format {
        ty: &types::Iq2BnR4,
        kernels: &types::Iq2Bn,
        shader: wgsl!("shaders/types/iq2_bn.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Planes(planes::iq2_bn_r4, &[16]),
    },
    Format {
        ty: &types::Iq1Bn,
        kernels: &types::Iq2Bn,
        shader: wgsl!("shaders/types/iq2_bn.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Planes(planes::iq1_bn, &[16]),
    },
    Format {
        ty: &types::Q1_0,
        kernels: &types::Q1_0,
        shader: wgsl!("shaders/types/q1_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Split(&[2..18, 0..2]),
    },
    Format {
        ty: &types::Q2_0,
        kernels: &types::Q2_0,
        shader: wgsl!("shaders/types/q2_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Split(&[2..18, 0..2]),
    },
    Format {
        ty: &types::Pq2_0,
        kernels: &types::Pq2_0,
        shader: wgsl!("shaders/types/pq2_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::Split(&[2..34, 0..2]),
    },
    Format {
        ty: &types::Ptq1_0,
        kernels: &types::Pq2_0,
        shader: wgsl!("shaders/types/pq2_0.wgsl"),
        chunk_elems: 64,
        ints: false,
        pack: Pack::PlanesOf(|w, rows| planes::ptq1_0(bytes_of(w, rows)), &[2..34, 0..2]),
    },
    Format {
        ty: &types::Iq2Xxs,
        kernels: &types::Iq2Xxs,
        shader: wgsl!("shaders/types/iq2_xxs.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Points(packed::IQ2_XXS, &[2..66, 0..2]),
    },
    Format {
        ty: &types::Iq2Xs,
        kernels: &types::Iq2Xs,
        shader: wgsl!("shaders/types/iq2_xs.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Points(packed::IQ2_XS, &[2..66, 66..74, 0..2]),
    },
    Format {
        ty: &types::Iq2S,
        kernels: &types::Iq2S,
        shader: wgsl!("shaders/types/iq2_s.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Points(packed::IQ2_S, &[2..66, 66..82, 0..2]),
    },
    Format {
        ty: &types::Iq3Xxs,
        kernels: &types::Iq3Xxs,
        shader: wgsl!("shaders/types/iq3_xxs.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Points(packed::IQ3_XXS, &[2..98, 0..2]),
    },
    Format {
        ty: &types::Iq3S,
        kernels: &types::Iq3S,
        shader: wgsl!("shaders/types/iq3_s.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Points(packed::IQ3_S, &[2..66, 74..106, 66..74, 106..110, 0..2]),
    },
    Format {
        ty: &types::Iq1S,
        kernels: &types::Iq1S,
        shader: wgsl!("shaders/types/iq1_s.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Points(packed::IQ1_S, &[2..34, 34..50, 0..2]),
    },
    Format {
        ty: &types::Iq1M,
        kernels: &types::Iq1M,
        shader: wgsl!("shaders/types/iq1_m.wgsl"),
        chunk_elems: 32,
        ints: false,
        pack: Pack::Points(packed::IQ1_S, &[0..32, 32..48, 48..56]),
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
        // Where a row shares something, that comes on top of its blocks.
        let shared = self.kernels.row_bytes(0).unwrap_or(0);
        let block_elems = self.kernels.block_elems();
        let block_bytes = self.kernels.row_bytes(block_elems).expect("one block") - shared;
        let align = if let Pack::PadBlocks(align) = self.pack { align } else { 1 };
        let bytes = self.chunks(cols) * self.chunk_elems * block_bytes.next_multiple_of(align);
        bytes.div_ceil(block_elems) + shared
    }

    /// Bytes before the planes of every part: the codebook of a type that has one.
    pub fn book(&self) -> &'static [u8] {
        if let Pack::Points(book, _) = self.pack { book } else { &[] }
    }

    /// Some rows as the kernels read them.
    pub fn packed<'a>(&self, w: &'a HostTensor, rows: Range<usize>) -> Cow<'a, [u8]> {
        match &self.pack {
            Pack::AsTheyAre => Cow::Borrowed(bytes_of(w, rows)),
            Pack::PadRows(align) => padded(bytes_of(w, rows), row_bytes(w), *align),
            Pack::PadBlocks(align) => {
                let block_bytes = w.ty.row_bytes(w.ty.block_elems()).expect("one block");
                padded(bytes_of(w, rows), block_bytes, *align)
            }
            Pack::Split(of_block) => Cow::Owned(planes::split(bytes_of(w, rows), of_block)),
            Pack::Points(book, of_block) => {
                Cow::Owned([book, &planes::split(bytes_of(w, rows), of_block)[..]].concat())
            }
            Pack::Planes(planes, _) | Pack::PlanesOf(planes, _) => Cow::Owned(planes(w, rows)),
        }
    }

    /// Bytes that [`packed`](Self::packed) makes of so many rows of a shape that the type can hold.
    pub fn packed_bytes(&self, rows: usize, cols: usize) -> u64 {
        self.planes(rows, cols).last().map_or(0, |plane| plane.end)
    }

    /// Where the planes of so many packed rows lie, behind the codebook if there is one. Each begins at a
    /// multiple of 4 bytes. What stretches of rows have of a plane lies one behind the other in the plane of
    /// all of them.
    pub fn planes(&self, rows: usize, cols: usize) -> Vec<Range<u64>> {
        let of = |ty: &dyn QuantType, cols| ty.row_bytes(cols).map_or(0, |bytes| bytes as u64);
        let (rows, row_bytes) = (rows as u64, of(self.kernels, cols));
        let head = of(self.kernels, 0);
        let blocks = |block_bytes: u64| rows * ((row_bytes - head) / block_bytes);
        let behind = |sizes: &mut dyn Iterator<Item = u64>, align: u64| {
            let place = |at: &mut u64, bytes: u64| {
                let start = at.next_multiple_of(align);
                *at = start + bytes;
                Some(start..*at)
            };
            sizes.scan(self.book().len() as u64, place).collect()
        };
        let one = |bytes: u64| behind(&mut std::iter::once(bytes), 1);
        match &self.pack {
            Pack::AsTheyAre => one(rows * row_bytes),
            Pack::PadRows(align) => one(rows * row_bytes.next_multiple_of(*align as u64)),
            Pack::PadBlocks(align) => {
                let block_bytes = of(self.kernels, self.kernels.block_elems());
                one(blocks(block_bytes) * block_bytes.next_multiple_of(*align as u64))
            }
            Pack::Split(of_block) | Pack::Points(_, of_block) | Pack::PlanesOf(_, of_block) => {
                let blocks = blocks(of_block.iter().map(|plane| plane.len() as u64).sum());
                behind(&mut of_block.iter().map(|plane| blocks * plane.len() as u64), 16)
            }
            Pack::Planes(_, of_block) => {
                let blocks = blocks(of_block.iter().map(|bytes| *bytes as u64).sum());
                let of_rows = (head > 0).then_some(rows * head);
                behind(&mut of_block.iter().map(|bytes| blocks * *bytes as u64).chain(of_rows), 1)
            }
        }
    }

    /// True if the products of a layer are of integers.
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

/// Pieces of `from` bytes padded with zeros to multiples of `align` bytes.
fn padded(bytes: &[u8], from: usize, align: usize) -> Cow<'_, [u8]> {
    let to = from.next_multiple_of(align);
    if from == to {
        return Cow::Borrowed(bytes);
    }
    let mut out = vec![0; bytes.len() / from * to];
    for (to, from) in out.chunks_exact_mut(to).zip(bytes.chunks_exact(from)) {
        to[..from.len()].copy_from_slice(from);
    }
    Cow::Owned(out)
}
