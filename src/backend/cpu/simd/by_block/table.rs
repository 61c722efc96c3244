//! The kernels of an instruction set, by the type of the weights.

use super::super::lanes::Lanes;
use super::super::{BlockRows, Product, Scratch, Tile};
use super::codes::{self, Coded};
use super::{Blocks, few_bits, look_up};

/// Multiplies weight rows with activation rows that are int8 by block, and finishes the tile.
pub type BlockFn = fn(&Product<'_>, BlockRows<'_>, &mut Scratch, &mut Tile<'_, f32>);

/// Products of weight rows with activations that are int8 by block.
pub struct BlockKernels {
    /// With Q4_0 rows.
    pub q4_0: BlockFn,
    /// With Q4_1 rows.
    pub q4_1: BlockFn,
    /// With Q5_0 rows.
    pub q5_0: BlockFn,
    /// With Q5_1 rows.
    pub q5_1: BlockFn,
    /// With Q8_0 rows.
    pub q8_0: BlockFn,
    /// With Q2_K rows.
    pub q2_k: BlockFn,
    /// With Q3_K rows.
    pub q3_k: BlockFn,
    /// With Q4_K rows.
    pub q4_k: BlockFn,
    /// With Q5_K rows.
    pub q5_k: BlockFn,
    /// With Q6_K rows.
    pub q6_k: BlockFn,
    /// With IQ4_NL rows.
    pub iq4_nl: BlockFn,
    /// With IQ4_XS rows.
    pub iq4_xs: BlockFn,
    /// With MXFP4 rows.
    pub mxfp4: BlockFn,
    /// With Q1_0 rows.
    pub q1_0: BlockFn,
    /// With Q2_0 rows.
    pub q2_0: BlockFn,
    /// With PQ2_0 rows.
    pub pq2_0: BlockFn,
    /// With PTQ1_0 rows.
    pub ptq1_0: BlockFn,
    /// With TQ2_0 rows.
    pub tq2_0: BlockFn,
    /// With TQ1_0 rows.
    pub tq1_0: BlockFn,
}

impl BlockKernels {
    /// Those of an instruction set.
    #[cfg_attr(target_arch = "wasm32", allow(dead_code))]
    pub const fn of<L: Lanes>() -> Self {
        Self {
            q4_0: multiply::<L, codes::Q4_0>,
            q4_1: multiply::<L, codes::Q4_1>,
            q5_0: multiply::<L, codes::Q5_0>,
            q5_1: multiply::<L, codes::Q5_1>,
            q8_0: multiply::<L, codes::Q8_0>,
            q2_k: multiply::<L, codes::Q2K>,
            q3_k: multiply::<L, codes::Q3K>,
            q4_k: multiply::<L, codes::Q4K>,
            q5_k: multiply::<L, codes::Q5K>,
            q6_k: multiply::<L, codes::Q6K>,
            iq4_nl: multiply::<L, look_up::Iq4Nl>,
            iq4_xs: multiply::<L, look_up::Iq4Xs>,
            mxfp4: multiply::<L, look_up::Mxfp4>,
            q1_0: multiply::<L, few_bits::Q1_0>,
            q2_0: multiply::<L, few_bits::TwoBits<64>>,
            pq2_0: multiply::<L, few_bits::TwoBits<128>>,
            ptq1_0: multiply::<L, few_bits::Ptq1_0>,
            tq2_0: multiply::<L, few_bits::Tq2_0>,
            tq1_0: multiply::<L, few_bits::Tq1_0>,
        }
    }
}

fn multiply<L: Lanes, F: Coded>(
    product: &Product<'_>,
    acts: BlockRows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    L::vectorize(Blocks::<F>::new(product, acts, scratch, tile));
}
