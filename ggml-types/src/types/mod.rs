//! The list of weight types. A new type is one file here and three lines below: the last `mod`, the first
//! `pub use`, the first entry.

use crate::QuantType;

pub(crate) mod bf16;
mod f16;
mod f32;
mod i2_s;
mod iq1_bn;
mod iq1_m;
mod iq1_s;
mod iq2_bn;
mod iq2_bn_r4;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
pub(crate) mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod pq2_0;
mod ptq1_0;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
pub(crate) mod q4_0;
pub(crate) mod q4_1;
mod q4_k;
pub(crate) mod q5_0;
pub(crate) mod q5_1;
mod q5_k;
mod q6_k;
pub(crate) mod q8_0;
mod tq1_0;
mod tq2_0;

#[rustfmt::skip] // One per line, so that a new type is one line.
pub use self::{
    nvfp4::Nvfp4,
    iq1_m::Iq1M,
    iq1_s::Iq1S,
    iq2_xxs::Iq2Xxs,
    iq2_xs::Iq2Xs,
    iq2_s::Iq2S,
    iq3_xxs::Iq3Xxs,
    iq3_s::Iq3S,
    iq2_bn_r4::Iq2BnR4,
    iq1_bn::Iq1Bn,
    iq2_bn::Iq2Bn,
    mxfp4::Mxfp4,
    iq4_xs::Iq4Xs,
    iq4_nl::Iq4Nl,
    q5_1::Q5_1,
    q4_1::Q4_1,
    q2_k::Q2K,
    q3_k::Q3K,
    ptq1_0::Ptq1_0,
    pq2_0::Pq2_0,
    q2_0::Q2_0,
    q1_0::Q1_0,
    q5_0::Q5_0,
    q5_k::Q5K,
    q4_k::Q4K,
    tq2_0::Tq2_0,
    tq1_0::Tq1_0,
    i2_s::I2S,
    q4_0::Q4_0,
    q6_k::Q6K,
    q8_0::Q8_0,
    bf16::Bf16,
    f16::F16,
    f32::F32,
};

/// Every weight type, the newest first.
#[rustfmt::skip] // One per line, so that a new type is one line.
pub static REGISTRY: &[&dyn QuantType] = &[
    &Nvfp4,
    &Iq1M,
    &Iq1S,
    &Iq2Xxs,
    &Iq2Xs,
    &Iq2S,
    &Iq3Xxs,
    &Iq3S,
    &Iq2BnR4,
    &Iq1Bn,
    &Iq2Bn,
    &Mxfp4,
    &Iq4Xs,
    &Iq4Nl,
    &Q5_1,
    &Q4_1,
    &Q2K,
    &Q3K,
    &Ptq1_0,
    &Pq2_0,
    &Q2_0,
    &Q1_0,
    &Q5_0,
    &Q5K,
    &Q4K,
    &Tq2_0,
    &Tq1_0,
    &I2S,
    &Q4_0,
    &Q6K,
    &Q8_0,
    &Bf16,
    &F16,
    &F32,
];
