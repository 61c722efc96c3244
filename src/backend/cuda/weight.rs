//! Weights on the device: the types that have kernels, the layout of their bytes, and the upload.

use std::borrow::Cow;

use ggml_types::{HostTensor, QuantType, types};

use super::alloc::Allocator;
use super::driver::{Address, Driver};
use super::kernel_name::KernelName;
use super::octets::{self, OctetTiles};
use super::pack;
use super::params::{self, LINEAR_ROWS, LinearParams, MMA_CODES_COLS, OCTET_COLS};
use crate::layout::planes;
use crate::{BackendError, MemoryKind};
use sterna_program::{ActQuant, Linear, WeightDecl};

/// A type with kernels: `cuda/types/KERNELS.cu`.
pub struct WeightFormat {
    pub ty: &'static dyn QuantType,
    /// The type whose kernels it uses: its own, unless it is unpacked into another type at upload.
    pub kernels: &'static dyn QuantType,
    /// Elements of a chunk, the unit that one lane multiplies at a time.
    pub chunk_elems: usize,
    /// True if its products are of integers when the input is quantised per token. For other inputs only
    /// `logits` and the experts have kernels, which multiply floats.
    pub ints: bool,
    /// Its kernels on tensor cores, if any.
    pub mma: Option<Mma>,
    /// Its kind among the types that share its kernels (`T::Kind` in `cuda/types`). Layers of one launch have
    /// the same kind.
    pub kind: Option<u32>,
    /// 4 times the bytes of a chunk on the device, all planes together, if they are not those of the type's
    /// blocks.
    quarter_bytes: Option<usize>,
    /// Its octets, if it is stored in octets; then there are no planes.
    octets: Option<OctetFormat>,
    /// Bytes before the planes.
    head_bytes: usize,
    /// Bytes of a row's scale, after the planes.
    row_scale_bytes: usize,
    /// Packs the bytes into the kernels' format.
    pack: fn(&HostTensor) -> Cow<'_, [u8]>,
}

/// A type in octets.
#[derive(Clone, Copy)]
pub struct OctetFormat {
    /// Bytes of an octet.
    pub bytes: usize,
    /// Most tiles of rows of the step for which there is a kernel.
    pub most_tiles: OctetTiles,
    /// True if there is a kernel for more rows than these have.
    pub many: bool,
}

const fn in_octets(bytes: usize, most_tiles: OctetTiles) -> OctetFormat {
    OctetFormat { bytes, most_tiles, many: true }
}

/// Operands of a type's kernels on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mma {
    /// Integers with one scale per tensor or per row. Sums are the same in any order, so there are no other
    /// kernels for several rows.
    Ints,
    /// Integers with a scale per block.
    IntBlocks,
    /// Integers with a scale per block, if activations are quantised by block; such single rows have their
    /// own kernels. With other activations, [halves](Mma::Halves).
    Codes,
    /// Halves.
    Halves,
}

impl Mma {
    /// True if rows are normalised and quantised by a separate launch.
    pub fn rounds(self) -> bool {
        self != Mma::Halves
    }

    /// Number of rows from which these kernels pay off.
    pub fn least_rows(self) -> usize {
        match self {
            Mma::Ints | Mma::Codes => 2,
            Mma::IntBlocks | Mma::Halves => 2 * LINEAR_ROWS as usize,
        }
    }
}

/// Every type with kernels.
pub static WEIGHT_FORMATS: &[WeightFormat] = &[
    WeightFormat {
        ints: true,
        mma: Some(Mma::Ints),
        ..floats(&types::I2S, &types::I2S, 64, rows_as_they_are)
    },
    WeightFormat {
        ints: true,
        mma: Some(Mma::IntBlocks),
        ..floats(&types::Tq2_0, &types::Tq2_0, 64, |w| Cow::Owned(planes::tq2_0(&rows_as_they_are(w))))
    },
    WeightFormat {
        ints: true,
        mma: Some(Mma::IntBlocks),
        quarter_bytes: Some(66),
        ..floats(&types::Tq1_0, &types::Tq2_0, 64, |w| Cow::Owned(planes::tq1_0(&rows_as_they_are(w))))
    },
    ternary_rows(&types::Iq2Bn, |w| Cow::Owned(planes::iq2_bn(w, 0..w.rows))),
    ternary_rows(&types::Iq1Bn, |w| Cow::Owned(planes::iq1_bn(w, 0..w.rows))),
    ternary_rows(&types::Iq2BnR4, |w| Cow::Owned(planes::iq2_bn_r4(w, 0..w.rows))),
    WeightFormat { mma: Some(Mma::Halves), ..floats(&types::F16, &types::F16, 8, padded_rows) },
    WeightFormat { mma: None, ..floats(&types::Bf16, &types::Bf16, 8, padded_rows) },
    WeightFormat { mma: None, ..floats(&types::F32, &types::F32, 4, padded_rows) },
    WeightFormat {
        octets: Some(in_octets(octets::Q8_0_BYTES, OctetTiles::Four)),
        ..floats(&types::Q8_0, &types::Q8_0, 16, octets::q8_0)
    },
    WeightFormat {
        octets: Some(in_octets(octets::Q4_0_BYTES, OctetTiles::Eight)),
        ..floats(&types::Q4_0, &types::Q4_0, 32, octets::q4_0)
    },
    WeightFormat {
        octets: Some(in_octets(octets::Q6_K_BYTES, OctetTiles::Four)),
        ..floats(&types::Q6K, &types::Q6K, 64, octets::q6_k)
    },
    WeightFormat {
        kind: Some(0),
        octets: Some(in_octets(octets::Q4_K_BYTES, OctetTiles::Eight)),
        ..floats(&types::Q4K, &types::Q4K, 32, octets::q4_k)
    },
    WeightFormat {
        kind: Some(1),
        octets: Some(OctetFormat { many: false, ..in_octets(octets::Q5_K_BYTES, OctetTiles::Eight) }),
        ..floats(&types::Q5K, &types::Q4K, 32, octets::q5_k)
    },
    WeightFormat {
        kind: Some(2),
        ..floats(&types::Q4_1, &types::Q5_1, 32, |w| pack::split(bytes_of(w), &[4..20, 0..4]))
    },
    WeightFormat {
        kind: Some(1),
        ..floats(&types::Q5_0, &types::Q5_1, 32, |w| Cow::Owned(pack::q5_0(bytes_of(w))))
    },
    WeightFormat {
        kind: Some(3),
        ..floats(&types::Q5_1, &types::Q5_1, 32, |w| Cow::Owned(pack::q5_1(bytes_of(w))))
    },
    WeightFormat {
        kind: Some(0),
        ..floats(&types::Q2K, &types::Q2K, 64, |w| Cow::Owned(pack::q2_k(bytes_of(w))))
    },
    WeightFormat {
        kind: Some(1),
        quarter_bytes: Some(116),
        ..floats(&types::Q3K, &types::Q2K, 64, |w| Cow::Owned(pack::q3_k(bytes_of(w))))
    },
    WeightFormat {
        kind: Some(0),
        ..floats(&types::Q2_0, &types::Q2_0, 64, |w| Cow::Owned(pack::q2_0(bytes_of(w))))
    },
    WeightFormat {
        kind: Some(1),
        ..floats(&types::Pq2_0, &types::Q2_0, 64, |w| Cow::Owned(pack::pq2_0(bytes_of(w))))
    },
    WeightFormat {
        kind: Some(1),
        quarter_bytes: Some(68),
        ..floats(&types::Ptq1_0, &types::Q2_0, 64, |w| Cow::Owned(pack::ptq1_0(bytes_of(w))))
    },
    floats(&types::Q1_0, &types::Q1_0, 128, |w| pack::split(bytes_of(w), &[2..18, 0..2])),
    WeightFormat {
        kind: Some(pack::HALF),
        head_bytes: pack::TABLE_BYTES,
        ..floats(&types::Iq4Nl, &types::Iq4Nl, 32, |w| Cow::Owned(pack::iq4_nl(bytes_of(w))))
    },
    WeightFormat {
        kind: Some(pack::BFLOAT),
        head_bytes: pack::TABLE_BYTES,
        quarter_bytes: Some(72),
        ..floats(&types::Mxfp4, &types::Iq4Nl, 32, |w| Cow::Owned(pack::mxfp4(bytes_of(w))))
    },
    WeightFormat {
        kind: Some(pack::FLOATS),
        head_bytes: pack::TABLE_BYTES,
        ..floats(&types::Nvfp4, &types::Iq4Nl, 32, |w| Cow::Owned(pack::nvfp4(bytes_of(w))))
    },
    table(0, &types::Iq4Xs, |w| Cow::Owned(pack::iq4_xs(bytes_of(w)))),
    table(1, &types::Iq2Xxs, |w| Cow::Owned(pack::iq2::<types::Iq2Xxs>(bytes_of(w)))),
    table(1, &types::Iq2Xs, |w| Cow::Owned(pack::iq2::<types::Iq2Xs>(bytes_of(w)))),
    table(1, &types::Iq2S, |w| Cow::Owned(pack::iq2::<types::Iq2S>(bytes_of(w)))),
    table(2, &types::Iq3Xxs, |w| Cow::Owned(pack::iq3_xxs(bytes_of(w)))),
    table(3, &types::Iq3S, |w| Cow::Owned(pack::iq3_s(bytes_of(w)))),
    table(4, &types::Iq1S, |w| Cow::Owned(pack::iq1::<types::Iq1S>(bytes_of(w)))),
    table(4, &types::Iq1M, |w| Cow::Owned(pack::iq1::<types::Iq1M>(bytes_of(w)))),
];

/// A type whose products are of floats, and of codes on tensor cores, unless its entry overrides this.
const fn floats(
    ty: &'static dyn QuantType,
    kernels: &'static dyn QuantType,
    chunk_elems: usize,
    pack: fn(&HostTensor) -> Cow<'_, [u8]>,
) -> WeightFormat {
    WeightFormat {
        ty,
        kernels,
        chunk_elems,
        ints: false,
        mma: Some(Mma::Codes),
        kind: None,
        quarter_bytes: None,
        octets: None,
        head_bytes: 0,
        row_scale_bytes: 0,
        pack,
    }
}

/// A ternary type with a scale per row.
const fn ternary_rows(ty: &'static dyn QuantType, pack: fn(&HostTensor) -> Cow<'_, [u8]>) -> WeightFormat {
    WeightFormat {
        ints: true,
        mma: Some(Mma::Ints),
        quarter_bytes: Some(64),
        row_scale_bytes: 4,
        ..floats(ty, &types::Iq2Bn, 64, pack)
    }
}

/// A type of 16 integers with two int8 scales per group of 32, by the number of its table.
const fn table(
    number: u32,
    ty: &'static dyn QuantType,
    pack: fn(&HostTensor) -> Cow<'_, [u8]>,
) -> WeightFormat {
    WeightFormat {
        kind: Some(pack::INTS | number << 2),
        head_bytes: pack::TABLE_BYTES,
        quarter_bytes: Some(73),
        ..floats(ty, &types::Iq4Nl, 32, pack)
    }
}

impl WeightFormat {
    /// The format of a type.
    pub fn of(ty: &dyn QuantType) -> Option<&'static Self> {
        WEIGHT_FORMATS.iter().find(|format| format.ty.is(ty))
    }

    /// Chunks of a row.
    pub fn chunks(&self, cols: usize) -> usize {
        cols.div_ceil(self.chunk_elems)
    }

    /// 4 times the bytes of a chunk on the device, all planes together.
    fn quarter_bytes(&self) -> usize {
        let of_blocks = || {
            let block_elems = self.ty.block_elems();
            4 * self.chunk_elems * self.ty.row_bytes(block_elems).expect("one block") / block_elems
        };
        self.quarter_bytes.unwrap_or_else(of_blocks)
    }

    /// Bytes of a chunk of integer activations in shared memory, including their sum if blocks of weights
    /// have scales.
    fn act_chunk_bytes(&self) -> usize {
        match self.mma {
            Some(Mma::IntBlocks) => self.chunk_elems + 4,
            _ => self.chunk_elems,
        }
    }

    /// Bytes of a tensor after packing.
    pub fn packed_bytes(&self, rows: usize, cols: usize) -> u64 {
        if let Some(octets) = self.octets {
            return octets::bytes(octets.bytes, rows, cols);
        }
        let chunks = (rows as u64).saturating_mul(self.chunks(cols) as u64);
        let of_chunks = chunks.saturating_mul(self.quarter_bytes() as u64) / 4;
        let of_rows = (rows as u64).saturating_mul(self.row_scale_bytes as u64);
        (self.head_bytes as u64).saturating_add(of_chunks).saturating_add(of_rows)
    }
}

/// The kind of product that a linear layer uses.
#[derive(Clone, Copy)]
pub struct Products {
    format: &'static WeightFormat,
    /// True for a type with integer products if the input is not quantised for them.
    pub floats: bool,
    /// Operands on tensor cores, if there are such kernels.
    pub mma: Option<Mma>,
}

/// True if both can share a launch.
impl PartialEq for Products {
    fn eq(&self, other: &Self) -> bool {
        let same_kernels = self.format.kernels.is(other.format.kernels) && self.floats == other.floats;
        same_kernels && self.format.kind == other.format.kind
    }
}

impl Products {
    /// The products of a type, for inputs quantised in this way.
    pub fn of(ty: &dyn QuantType, act: ActQuant) -> Option<Self> {
        let format = WeightFormat::of(ty)?;
        let floats = format.ints && act != ActQuant::I8PerToken;
        let by_block = act == ActQuant::I8PerBlock;
        let of_codes = |mma| if mma == Mma::Codes && !by_block { Mma::Halves } else { mma };
        Some(Self { format, floats, mma: format.mma.filter(|_| !floats).map(of_codes) })
    }

    /// The kernel of a stage and kind. Only `logits` and the experts have kernels of floats.
    pub fn kernel(self, stage: &'static str, kind: &'static str) -> KernelName {
        KernelName { floats: self.floats, ..KernelName::of(stage, self.format.kernels.name()).of_kind(kind) }
    }

    /// True if codes are multiplied by inputs that are quantised by block.
    fn by_block(self) -> bool {
        self.mma == Some(Mma::Codes)
    }

    /// The octets, if kernels can stream them.
    pub fn octets(self) -> Option<OctetFormat> {
        self.format.octets.filter(|_| self.by_block())
    }

    /// The kernel that quantises rows for those on tensor cores, if any; for products of octets it is
    /// [`QUANT_OCTETS`] or [`QUANT_OCTETS_MANY`].
    pub fn quantize_kernel(self) -> Option<KernelName> {
        let mma = self.mma.filter(|mma| mma.rounds())?;
        Some(if mma == Mma::Codes { QUANT_BLOCKS } else { self.kernel(QUANTIZE, "") })
    }

    /// True if activations are floats.
    pub fn multiplies_floats(self) -> bool {
        self.floats || !self.format.ints && !self.by_block()
    }

    /// Chunks of a row.
    pub fn chunks(self, cols: usize) -> usize {
        self.format.chunks(cols)
    }

    /// Bytes of one row of activations in shared memory.
    pub fn act_bytes(self, cols: usize) -> usize {
        if self.by_block() {
            // Two of the kernels' `RowBlock` follow per block.
            return cols + 16 * cols.div_ceil(ActQuant::BLOCK);
        }
        let of_chunk = if self.multiplies_floats() {
            4 * self.format.chunk_elems
        } else {
            self.format.act_chunk_bytes()
        };
        self.chunks(cols) * of_chunk
    }

    /// Bytes of one row of activations as quantised by a separate launch.
    pub fn rounded_bytes(self, cols: usize) -> usize {
        match self.mma {
            // The same for types with octets and without, which may share the launch.
            Some(Mma::Codes) => cols.next_multiple_of(OCTET_COLS as usize),
            _ => self.act_bytes(cols),
        }
    }
}

/// Kernels that quantise rows for those on tensor cores: the stage name for types, and the kernels for codes,
/// and for a few and for many rows of codes in octets.
pub const QUANTIZE: &str = "quantize";
pub const QUANT_BLOCKS: KernelName = KernelName::of(QUANTIZE, "blocks");
pub const QUANT_OCTETS: KernelName = KernelName::of(QUANTIZE, "octets");
pub const QUANT_OCTETS_MANY: KernelName = KernelName::of(QUANTIZE, "octets_many");
const _: () = {
    assert!(params::QUANT_COLS as usize == ActQuant::BLOCK);
    assert!(OCTET_COLS.is_multiple_of(MMA_CODES_COLS));
    assert!(params::MMA_CODES_ROWS.is_multiple_of(params::MANY_ROWS), "buffers have whole tiles of rows");
    assert!(params::QUANT_ZERO_BITS == ActQuant::NOTHING.to_bits());
};

/// Bytes of a weight on the device, after packing.
pub fn device_bytes(decl: &WeightDecl) -> u64 {
    bytes_of_shape(decl.ty, decl.rows, decl.cols)
}

fn bytes_of_shape(ty: &dyn QuantType, rows: usize, cols: usize) -> u64 {
    let as_it_is = || {
        let row_bytes = ty.row_bytes(cols).map_or(u64::MAX, |bytes| bytes as u64);
        row_bytes.saturating_mul(rows as u64)
    };
    WeightFormat::of(ty).map_or_else(as_it_is, |format| format.packed_bytes(rows, cols))
}

/// The bytes of a weight as stored on the device.
///
/// # Panics
/// If its type has no kernels, which the plan rejects first.
pub fn packed(w: &HostTensor) -> Cow<'_, [u8]> {
    let format =
        WeightFormat::of(w.ty).unwrap_or_else(|| panic!("{}: {} has no kernels", w.name, w.ty.name()));
    (format.pack)(w)
}

/// Allocates a single weight, as part `part` of a program's memory.
pub fn alloc<A: Allocator + ?Sized>(
    on: &mut A,
    part: &str,
    ty: &dyn QuantType,
    [rows, cols]: [usize; 2],
) -> Result<Address, BackendError> {
    on.alloc_for(MemoryKind::Weights, part, bytes_of_shape(ty, rows, cols))
}

/// A weight on the device.
#[derive(Clone, Debug)]
pub struct DeviceWeight {
    /// Its type before packing.
    pub ty: &'static dyn QuantType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Its address.
    pub data: Address,
    /// The scale of types that have one per tensor; otherwise 1.
    pub tensor_scale: f32,
}

impl DeviceWeight {
    /// Packs and uploads a weight.
    ///
    /// # Panics
    /// If its type has no kernels, which the plan rejects first.
    pub fn upload(driver: &mut dyn Driver, w: &HostTensor) -> Result<Self, BackendError> {
        let (data, bytes) = (alloc(driver, &w.name, w.ty, [w.rows, w.cols])?, packed(w));
        assert_eq!(bytes.len() as u64, bytes_of_shape(w.ty, w.rows, w.cols), "{}", w.name);
        driver.write(data, &bytes)?;
        Ok(Self::at(data, w))
    }

    /// A weight whose [`packed`] bytes the caller copies to the address.
    pub fn at(data: Address, w: &HostTensor) -> Self {
        let tensor_scale = w.ty.tensor_scale(&w.bytes, w.rows, w.cols).expect("a whole tensor");
        Self { ty: w.ty, rows: w.rows, cols: w.cols, data, tensor_scale }
    }

    /// Its parameters as a linear layer.
    pub fn params(&self, factor: f32, bias: Option<Address>) -> LinearParams {
        let format = WeightFormat::of(self.ty).expect("it was uploaded");
        LinearParams {
            data: self.data,
            bias: bias.unwrap_or(0),
            tensor_scale: self.tensor_scale,
            factor,
            rows: self.rows as u32,
            chunks: format.chunks(self.cols) as u32,
            kind: format.kind.unwrap_or(0),
            reserved: 0,
        }
    }
}

/// The parameters of a layer with the given weights.
pub fn layer_params(weights: &[DeviceWeight], linear: &Linear) -> LinearParams {
    // The norm and the basis belong to the input: `linear::launches` handles them. Adapters are launches of
    // their own, and so are bounds.
    let Linear { w, norm: _, bias, act, scale, basis: _, lora: _, clamp: _ } = *linear;
    let bias = bias.map(|bias| weights[bias.0 as usize].data);
    let w = &weights[w.0 as usize];
    let floats = Products::of(w.ty, act).expect("it was uploaded").floats;
    // Products of floats apply the tensor's scale here.
    w.params(if floats { scale * w.tensor_scale } else { scale }, bias)
}

/// The parameters for no layer.
pub const NO_LINEAR: LinearParams = LinearParams {
    data: 0,
    bias: 0,
    tensor_scale: 0.0,
    factor: 0.0,
    rows: 0,
    chunks: 0,
    kind: 0,
    reserved: 0,
};

fn row_bytes(w: &HostTensor) -> usize {
    w.ty.row_bytes(w.cols).expect("a shape that the type can hold")
}

fn bytes_of(w: &HostTensor) -> &[u8] {
    &w.bytes[..w.rows * row_bytes(w)]
}

fn rows_as_they_are(w: &HostTensor) -> Cow<'_, [u8]> {
    Cow::Borrowed(bytes_of(w))
}

/// Rows padded with zeros to multiples of 16 bytes.
fn padded_rows(w: &HostTensor) -> Cow<'_, [u8]> {
    let from = row_bytes(w);
    let to = from.next_multiple_of(16);
    if from == to {
        return rows_as_they_are(w);
    }
    let mut out = vec![0; w.rows * to];
    for (to, from) in out.chunks_exact_mut(to).zip(w.bytes.chunks_exact(from)) {
        to[..from.len()].copy_from_slice(from);
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_a_weight_are_known_before_it_is_packed() {
        for format in WEIGHT_FORMATS {
            let ty = format.ty;
            for (rows, cols) in
                [(3_usize, 512), (64, 256), (5, 256 + if ty.block_elems() == 1 { 3 } else { 0 })]
            {
                let rows = rows.next_multiple_of(ty.rows_together());
                let bytes = vec![0; ty.byte_len(rows, cols).expect("a shape of the type")].into();
                let w = HostTensor { name: "w".into(), ty, rows, cols, bytes };
                let decl = WeightDecl { name: "w".into(), part_of: None, ty, rows, cols };
                assert_eq!(packed(&w).len() as u64, device_bytes(&decl), "{} {rows}x{cols}", ty.name());
            }
        }
    }
}
