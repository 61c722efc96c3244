//! The weight types with kernels of their own, one row each, from which every instruction set's table is
//! built.

use ggml_types::{QuantType, types};

use super::by_block::codes::{self, Coded};
use super::by_block::{few_bits, look_up, multiply};
use super::float::{self, blocks, k_blocks, points, trits};
use super::lanes::Lanes;
use super::q6_k::Q6K;
#[cfg(target_arch = "wasm32")]
use super::wasm::Simd128;
use super::{BLOCK_PRODUCTS, BlockFn, F32Rows, FloatFn, Product, Scratch, TernaryFn, Tile, ternary};

/// Calls a macro with all rows. A row is a type and its kernels for int8, per-block int8 and f32 activations.
/// Before the `=` is the function of `scalar.rs`, after it a kernel over [`Lanes`]: `T` for ternary weights,
/// `L` for floats. Kernels for per-block int8 are given as a [`Coded`] type, and are built over `L` and `B`.
macro_rules! rows {
    ($table:ident) => {
        $table! {
            F32 [] [] [float(f32_at) = float::<L, float::F32>];
            F16 [] [] [float(f16_at) = float::<L, float::F16>];
            Bf16 [] [] [float(bf16_at) = float::<L, float::Bf16>];
            Q8_0 [] [codes::Q8_0] [float(q8_0_at) = float::<L, float::Q8_0>];
            Q6K [] [codes::Q6K]
                [float(q6_k_at) =
                    |product, acts, scratch, tile| L::vectorize(Q6K::new(product, acts, scratch, tile))];
            I2S [i2_s = ternary::<T, ternary::I2S>] [] [];
            Q4_0 [] [codes::Q4_0] [decoded(&types::Q4_0) = float::<L, blocks::Q4_0>];
            Q5_0 [] [codes::Q5_0] [decoded(&types::Q5_0) = float::<L, blocks::Q5_0>];
            Q4K [] [codes::Q4K] [decoded(&types::Q4K) = float::<L, k_blocks::Q4K>];
            Q5K [] [codes::Q5K] [decoded(&types::Q5K) = float::<L, k_blocks::Q5K>];
            Q4_1 [] [codes::Q4_1] [decoded(&types::Q4_1) = float::<L, blocks::Q4_1>];
            Q5_1 [] [codes::Q5_1] [decoded(&types::Q5_1) = float::<L, blocks::Q5_1>];
            Iq4Nl [] [look_up::Iq4Nl] [decoded(&types::Iq4Nl) = float::<L, blocks::Iq4Nl>];
            Mxfp4 [] [look_up::Mxfp4] [decoded(&types::Mxfp4) = float::<L, blocks::Mxfp4>];
            Q1_0 [] [few_bits::Q1_0] [decoded(&types::Q1_0) = float::<L, blocks::Q1_0>];
            Q2_0 [] [few_bits::TwoBits<64>] [decoded(&types::Q2_0) = float::<L, blocks::TwoBits<64>>];
            Pq2_0 [] [few_bits::TwoBits<128>] [decoded(&types::Pq2_0) = float::<L, blocks::TwoBits<128>>];
            Ptq1_0 [] [few_bits::Ptq1_0] [decoded(&types::Ptq1_0) = float::<L, trits::Ptq1_0>];
            Q2K [] [codes::Q2K] [decoded(&types::Q2K) = float::<L, k_blocks::Q2K>];
            Q3K [] [codes::Q3K] [decoded(&types::Q3K) = float::<L, k_blocks::Q3K>];
            Iq4Xs [] [look_up::Iq4Xs] [decoded(&types::Iq4Xs) = float::<L, k_blocks::Iq4Xs>];
            Nvfp4 [] [] [decoded(&types::Nvfp4) = float::<L, blocks::Nvfp4>];
            Iq1M [] [] [decoded(&types::Iq1M) = float::<L, points::Points<types::Iq1M>>];
            Iq1S [] [] [decoded(&types::Iq1S) = float::<L, points::Points<types::Iq1S>>];
            Iq2Xxs [] [] [decoded(&types::Iq2Xxs) = float::<L, points::Points<types::Iq2Xxs>>];
            Iq2Xs [] [] [decoded(&types::Iq2Xs) = float::<L, points::Points<types::Iq2Xs>>];
            Iq2S [] [] [decoded(&types::Iq2S) = float::<L, points::Points<types::Iq2S>>];
            Iq3Xxs [] [] [decoded(&types::Iq3Xxs) = float::<L, points::Points<types::Iq3Xxs>>];
            Iq3S [] [] [decoded(&types::Iq3S) = float::<L, points::Points<types::Iq3S>>];
            Iq2Bn [iq2_bn = ternary::rows::multiply::<L, T, ternary::rows::Iq2Bn>] [] [];
            Iq2BnR4 [iq2_bn_r4 = ternary::rows::multiply::<L, T, ternary::rows::Iq2BnR4>] [] [];
            Iq1Bn [iq1_bn = ternary::rows::multiply::<L, T, ternary::rows::Iq1Bn>] [] [];
            Tq1_0 [tq1_0 = ternary::trits::tq1_0::<L, T>] [few_bits::Tq1_0]
                [decoded(&types::Tq1_0) = float::<L, trits::Tq1_0>];
            Tq2_0 [tq2_0 = ternary::<T, ternary::Tq2_0>] [few_bits::Tq2_0]
                [decoded(&types::Tq2_0) = float::<L, trits::Tq2_0>];
        }
    };
}
pub(crate) use rows;

/// The kernels of a weight type. Without one for its activations, rows are decoded first.
#[derive(Clone, Copy)]
pub struct TypeKernels {
    /// For int8 activations.
    pub int8: Option<TernaryFn>,
    /// For per-block int8 activations.
    pub blocks: Option<BlockFn>,
    /// For f32 activations.
    pub float: Option<FloatFn>,
}

impl TypeKernels {
    /// No kernels: for a type without a row.
    pub(crate) const NONE: Self = Self { int8: None, blocks: None, float: None };
}

/// Index of a weight type's row, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Format(pub(crate) Option<usize>);

impl Format {
    /// The format of a type.
    pub fn of(ty: &dyn QuantType) -> Self {
        Self(TYPES.iter().position(|known| known.is(ty)))
    }

    /// True if there are integer products with per-block int8 activations.
    pub fn has_blocks(self) -> bool {
        BLOCK_PRODUCTS && self.0.is_some_and(|row| HAVE_CODES[row])
    }
}

macro_rules! tables {
    ($($ty:ident
        [$($plain_int8:ident = $int8:expr)?]
        [$($codes:ty)?]
        [$($plain_float:ident($of:expr) = $float:expr)?];
    )*) => {
        const TYPES: &[&dyn QuantType] = &[$(&types::$ty),*];

        /// True for types that have products with per-block int8 activations.
        const HAVE_CODES: [bool; N_TYPES] = [$(!stringify!($($codes)?).is_empty()),*];

        /// The kernels for one instruction set, in the order of the rows.
        #[allow(clippy::needless_update)] // Types with all three kernels take nothing from it.
        pub const fn of<L: Lanes, T: Lanes, B: Lanes>() -> [TypeKernels; N_TYPES] {
            [$(TypeKernels {
                $(int8: Some($int8),)?
                $(blocks: by_block::<L, B, $codes>(),)?
                $(float: Some($float),)?
                ..TypeKernels::NONE
            }),*]
        }
    };
}
rows!(tables);

/// Number of types with kernels.
pub const N_TYPES: usize = TYPES.len();

const fn by_block<L: Lanes, B: Lanes, F: Coded>() -> Option<BlockFn> {
    if BLOCK_PRODUCTS { Some(multiply::<L, B, F>) } else { None }
}

fn float<L: Lanes, F: float::Form>(
    product: &Product<'_>,
    acts: F32Rows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    #[cfg(target_arch = "wasm32")]
    (const { &float::fetched::Type::of::<F>() }).multiply(Simd128::new(), product, acts, scratch, tile);
    #[cfg(not(target_arch = "wasm32"))]
    (const { &float::Type::of::<L, F>() }).multiply(product, acts, scratch, tile);
}
