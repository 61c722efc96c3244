//! Weight types on the device: the types with kernels, and their layout.

use std::borrow::Cow;
use std::ops::Range;

use ggml_types::codebooks::packed;
use ggml_types::{HostTensor, QuantType, types};

use sterna_program::ActQuant;

use super::text::wgsl;
use crate::layout::planes;

/// Types of the matrices of LoRA pairs with kernels.
pub const LORA_TYPES: [&dyn QuantType; 4] = [&types::F32, &types::F16, &types::Bf16, &types::Q8_0];

/// A type with kernels, in `shaders/types/KERNELS.wgsl`.
pub struct WeightFormat {
    pub ty: &'static dyn QuantType,
    /// Type whose kernels it uses: its own, unless it is unpacked during upload.
    pub kernels: &'static dyn QuantType,
    pub shader: &'static str,
    /// Elements of a chunk, the piece that one thread multiplies at a time.
    pub chunk_elems: usize,
    /// True if products with int8 activations are computed in integers.
    pub ints: bool,
    /// For products of few rows, how codes are multiplied before their scale; without it, values are decoded.
    pub runs: Option<Runs>,
    /// Packing of rows for the kernels.
    pack: Pack,
}

/// Runs of a chunk's elements that have one scale. The products of codes are summed, then scaled.
#[derive(Clone, Copy, Debug)]
pub struct Runs {
    pub elems: usize,
    /// Rows of weights per thread that multiplies one row of activations. More rows share the loads of these,
    /// but take registers: 128 is what most devices have without a loss.
    pub weight_rows: u32,
    /// True if its kernels look values up in a table in workgroup memory.
    pub has_table: bool,
}

/// Packing of rows for the kernels.
enum Pack {
    /// The bytes of the file.
    AsTheyAre,
    /// Rows padded with zeros to a multiple of this many bytes.
    PadRows(usize),
    /// Blocks padded with zeros to a multiple of this many bytes.
    PadBlocks(usize),
    /// Planes, each a byte range of every block, aligned to 16 bytes.
    Split(&'static [Range<usize>]),
    /// A codebook whose size is a multiple of 16 bytes, followed by planes as in `Split`.
    Points(&'static [u8], &'static [Range<usize>]),
    /// Planes as in `Split`, of another type's blocks, to which the function converts these.
    PlanesOf(fn(&[u8]) -> Vec<u8>, &'static [Range<usize>]),
    /// Planes that the function builds from blocks, packed one after another, with this many bytes per block.
    Planes(fn(&[u8]) -> Vec<u8>, &'static [usize]),
    /// Planes as in `Planes`, built from whole rows, and last the bytes of rows that belong to no block.
    RowPlanes(fn(&HostTensor, Range<usize>) -> Vec<u8>, &'static [usize]),
}

macro_rules! kernels {
    ($name:literal) => {
        wgsl!(concat!("shaders/types/", $name, ".wgsl"))
    };
}

/// Every type with kernels.
pub static WEIGHT_FORMATS: &[WeightFormat] = &[
    WeightFormat { ints: true, ..own(&types::I2S, kernels!("i2_s"), 64, Pack::AsTheyAre) },
    own(&types::F16, kernels!("f16"), 8, Pack::PadRows(16)),
    own(&types::F32, kernels!("f32"), 8, Pack::PadRows(32)),
    own(&types::Q8_0, kernels!("q8_0"), 32, Pack::Planes(planes::q8_0, &[32, 2])).in_runs(32, 4),
    own(&types::Q6K, kernels!("q6_k"), 64, Pack::Planes(planes::q6_k, &[128, 64, 16, 2])).in_runs(16, 2),
    own(&types::Q4_0, kernels!("q4_0"), 32, Pack::Planes(planes::q4_0, &[16, 2])).in_runs(32, 4),
    own(&types::Bf16, kernels!("bf16"), 8, Pack::PadRows(16)),
    own(&types::Tq2_0, kernels!("tq2_0"), 64, Pack::Planes(planes::tq2_0, &[64, 2])).in_runs(64, 4),
    as_type(&types::Tq1_0, &types::Tq2_0, kernels!("tq2_0"), 64, Pack::Planes(planes::tq1_0, &[64, 2]))
        .in_runs(64, 4),
    own(&types::Q4K, kernels!("q4_k"), 64, Pack::AsTheyAre).in_runs(32, 2),
    own(&types::Q5K, kernels!("q5_k"), 64, Pack::AsTheyAre).in_runs(32, 2),
    own(&types::Q3K, kernels!("q3_k"), 64, Pack::PadBlocks(16)),
    own(&types::Q2K, kernels!("q2_k"), 64, Pack::Split(&[0..80, 80..84])),
    own(&types::Q4_1, kernels!("q4_1"), 32, Pack::Split(&[4..20, 0..4])),
    own(&types::Q5_0, kernels!("q5_0"), 32, Pack::Split(&[6..22, 2..6, 0..2])),
    own(&types::Q5_1, kernels!("q5_1"), 32, Pack::Split(&[8..24, 0..4, 4..8])),
    own(&types::Iq4Nl, kernels!("iq4_nl"), 32, Pack::Split(&[2..18, 0..2])).with_table(32, 4),
    own(&types::Iq4Xs, kernels!("iq4_xs"), 32, Pack::Split(&[8..136, 0..8])).with_table(32, 4),
    own(&types::Mxfp4, kernels!("mxfp4"), 32, Pack::Split(&[1..17, 0..1])).in_runs(32, 4),
    own(&types::Nvfp4, kernels!("nvfp4"), 32, Pack::Split(&[4..36, 0..4])),
    own(&types::Iq2Bn, kernels!("iq2_bn"), 64, Pack::RowPlanes(planes::iq2_bn, &[16])),
    as_type(
        &types::Iq2BnR4,
        &types::Iq2Bn,
        kernels!("iq2_bn"),
        64,
        Pack::RowPlanes(planes::iq2_bn_r4, &[16]),
    ),
    as_type(&types::Iq1Bn, &types::Iq2Bn, kernels!("iq2_bn"), 64, Pack::RowPlanes(planes::iq1_bn, &[16])),
    own(&types::Q1_0, kernels!("q1_0"), 64, Pack::Split(&[2..18, 0..2])),
    own(&types::Q2_0, kernels!("q2_0"), 64, Pack::Split(&[2..18, 0..2])),
    own(&types::Pq2_0, kernels!("pq2_0"), 64, Pack::Split(&[2..34, 0..2])),
    as_type(
        &types::Ptq1_0,
        &types::Pq2_0,
        kernels!("pq2_0"),
        64,
        Pack::PlanesOf(planes::ptq1_0, &[2..34, 0..2]),
    ),
    own(&types::Iq2Xxs, kernels!("iq2_xxs"), 32, Pack::Points(packed::IQ2_XXS, &[2..66, 0..2])),
    own(&types::Iq2Xs, kernels!("iq2_xs"), 32, Pack::Points(packed::IQ2_XS, &[2..66, 66..74, 0..2])),
    own(&types::Iq2S, kernels!("iq2_s"), 32, Pack::Points(packed::IQ2_S, &[2..66, 66..82, 0..2])),
    own(&types::Iq3Xxs, kernels!("iq3_xxs"), 32, Pack::Points(packed::IQ3_XXS, &[2..98, 0..2])),
    own(
        &types::Iq3S,
        kernels!("iq3_s"),
        32,
        Pack::Points(packed::IQ3_S, &[2..66, 74..106, 66..74, 106..110, 0..2]),
    ),
    own(&types::Iq1S, kernels!("iq1_s"), 32, Pack::Points(packed::IQ1_S, &[2..34, 34..50, 0..2])),
    own(&types::Iq1M, kernels!("iq1_m"), 32, Pack::Points(packed::IQ1_S, &[0..32, 32..48, 48..56])),
];

/// A type with kernels of its own and float products. A table entry may override `ints`.
const fn own(
    ty: &'static dyn QuantType,
    shader: &'static str,
    chunk_elems: usize,
    pack: Pack,
) -> WeightFormat {
    as_type(ty, ty, shader, chunk_elems, pack)
}

/// A type that is unpacked for another type's kernels.
const fn as_type(
    ty: &'static dyn QuantType,
    kernels: &'static dyn QuantType,
    shader: &'static str,
    chunk_elems: usize,
    pack: Pack,
) -> WeightFormat {
    WeightFormat { ty, kernels, shader, chunk_elems, ints: false, runs: None, pack }
}

impl WeightFormat {
    const fn in_runs(self, elems: usize, weight_rows: u32) -> Self {
        Self { runs: Some(Runs { elems, weight_rows, has_table: false }), ..self }
    }

    /// Runs of a type whose values are in a table.
    const fn with_table(self, elems: usize, weight_rows: u32) -> Self {
        Self { runs: Some(Runs { elems, weight_rows, has_table: true }), ..self }
    }

    pub fn of(ty: &dyn QuantType) -> Option<&'static Self> {
        WEIGHT_FORMATS.iter().find(|format| format.ty.is(ty))
    }

    /// The type with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        WEIGHT_FORMATS.iter().find(|format| format.ty.name() == name)
    }

    /// Rows of weights per thread in products of `rows` rows of the step, fewer than a tile.
    pub fn weight_rows(&self, ints: bool, rows: u32) -> u32 {
        match (rows, ints, self.runs) {
            (_, false, None) => 1,
            (1, true, _) => 4,
            (1, false, Some(runs)) => runs.weight_rows,
            // Sums of all rows are in registers.
            _ => 2,
        }
    }

    /// Chunks of a row.
    pub fn chunks(&self, cols: usize) -> usize {
        cols.div_ceil(self.chunk_elems)
    }

    /// Bytes of a row on the device, rounded up.
    pub fn row_bytes(&self, cols: usize) -> usize {
        // Bytes shared by a row come on top of its blocks.
        let shared = self.kernels.row_bytes(0).unwrap_or(0);
        let block_elems = self.kernels.block_elems();
        let block_bytes = self.kernels.row_bytes(block_elems).expect("one block") - shared;
        let align = if let Pack::PadBlocks(align) = self.pack { align } else { 1 };
        let bytes = self.chunks(cols) * self.chunk_elems * block_bytes.next_multiple_of(align);
        bytes.div_ceil(block_elems) + shared
    }

    /// Bytes before the planes of every part: the codebook, if the type has one.
    pub fn book(&self) -> &'static [u8] {
        if let Pack::Points(book, _) = self.pack { book } else { &[] }
    }

    /// Packs some rows for the kernels.
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
            Pack::Planes(planes, _) | Pack::PlanesOf(planes, _) => Cow::Owned(planes(bytes_of(w, rows))),
            Pack::RowPlanes(planes, _) => Cow::Owned(planes(w, rows)),
        }
    }

    /// Size of the output of [`packed`](Self::packed) for `rows` rows, in a shape that the type supports.
    pub fn packed_bytes(&self, rows: usize, cols: usize) -> u64 {
        self.planes(rows, cols).last().map_or(0, |plane| plane.end)
    }

    /// Byte ranges of the planes of `rows` packed rows, after the codebook if there is one. Each begins at a
    /// multiple of 4 bytes. If rows are packed in ranges, the plane of all rows is the concatenation of the
    /// planes of the ranges.
    pub fn planes(&self, rows: usize, cols: usize) -> Vec<Range<u64>> {
        let of = |ty: &dyn QuantType, cols| ty.row_bytes(cols).map_or(0, |bytes| bytes as u64);
        let (rows, row_bytes) = (rows as u64, of(self.kernels, cols));
        let head = of(self.kernels, 0);
        let blocks = |block_bytes: u64| rows * ((row_bytes - head) / block_bytes);
        let append = |sizes: &mut dyn Iterator<Item = u64>, align: u64| {
            let place = |at: &mut u64, bytes: u64| {
                let start = at.next_multiple_of(align);
                *at = start + bytes;
                Some(start..*at)
            };
            sizes.scan(self.book().len() as u64, place).collect()
        };
        let one = |bytes: u64| append(&mut std::iter::once(bytes), 1);
        match &self.pack {
            Pack::AsTheyAre => one(rows * row_bytes),
            Pack::PadRows(align) => one(rows * row_bytes.next_multiple_of(*align as u64)),
            Pack::PadBlocks(align) => {
                let block_bytes = of(self.kernels, self.kernels.block_elems());
                one(blocks(block_bytes) * block_bytes.next_multiple_of(*align as u64))
            }
            Pack::Split(of_block) | Pack::Points(_, of_block) | Pack::PlanesOf(_, of_block) => {
                let blocks = blocks(of_block.iter().map(|plane| plane.len() as u64).sum());
                append(&mut of_block.iter().map(|plane| blocks * plane.len() as u64), 16)
            }
            Pack::Planes(_, of_block) | Pack::RowPlanes(_, of_block) => {
                let blocks = blocks(of_block.iter().map(|bytes| *bytes as u64).sum());
                let of_rows = (head > 0).then_some(rows * head);
                append(&mut of_block.iter().map(|bytes| blocks * *bytes as u64).chain(of_rows), 1)
            }
        }
    }

    /// True if the products of a layer are computed in integers.
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

/// Pads pieces of `from` bytes with zeros to multiples of `align` bytes.
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
