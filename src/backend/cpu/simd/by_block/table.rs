//! The kernels of an instruction set, by the type of the weights.

use super::super::lanes::Lanes;
use super::super::{BlockRows, Product, Scratch, Tile};
use super::codes::{self, Coded};
use super::{Blocks, few_bits, look_up};

/// Multiplies weight rows with activation rows that are int8 by block, and finishes the tile.
pub type BlockFn = fn(&Product<'_>, BlockRows<'_>, &mut Scratch, &mut Tile<'_, f32>);

macro_rules! kernels {
    ($($name:ident: $form:ty,)*) => {
        /// Products of weight rows with activations that are int8 by block.
        pub struct BlockKernels {
            $(#[doc = concat!("With rows of ", stringify!($name), ".")] pub $name: BlockFn,)*
        }

        impl BlockKernels {
            /// Those of an instruction set.
            #[cfg_attr(target_arch = "wasm32", allow(dead_code))]
            pub const fn of<L: Lanes>() -> Self {
                Self { $($name: multiply::<L, $form>,)* }
            }
        }
    };
}

kernels! {
    q4_0: codes::Q4_0,
    q4_1: codes::Q4_1,
    q5_0: codes::Q5_0,
    q5_1: codes::Q5_1,
    q8_0: codes::Q8_0,
    q2_k: codes::Q2K,
    q3_k: codes::Q3K,
    q4_k: codes::Q4K,
    q5_k: codes::Q5K,
    q6_k: codes::Q6K,
    iq4_nl: look_up::Iq4Nl,
    iq4_xs: look_up::Iq4Xs,
    mxfp4: look_up::Mxfp4,
    q1_0: few_bits::Q1_0,
    q2_0: few_bits::TwoBits<64>,
    pq2_0: few_bits::TwoBits<128>,
    ptq1_0: few_bits::Ptq1_0,
    tq2_0: few_bits::Tq2_0,
    tq1_0: few_bits::Tq1_0,
}

fn multiply<L: Lanes, F: Coded>(
    product: &Product<'_>,
    acts: BlockRows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    L::vectorize(Blocks::<F>::new(product, acts, scratch, tile));
}
