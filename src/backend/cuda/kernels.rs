//! The list of all kernels.

use super::weight::{self, Mma, WeightFormat};
use super::{attend, combine, delta, experts, heads, kv, linear, post_norm, profile, sample, turn};

/// Every kernel that this backend may ask a driver for; [`Kernel`](super::driver::Kernel) is an index into it.
pub fn kernel_names() -> impl Iterator<Item = String> {
    let linear = ["attn_in", "proj_add", "ffn_in", "logits"];
    let of_type = move |ty: &WeightFormat| {
        let (ty, mma, floats) = (ty.ty.name(), ty.mma, ty.ints);
        let rows = Some(linear::ROWS).filter(|_| mma != Some(Mma::Ints));
        let has_codes = mma == Some(Mma::Codes);
        let codes = [weight::DP4A, weight::FEW, weight::CODES].into_iter().filter(move |_| has_codes);
        let kinds = [""].into_iter().chain(rows).chain(mma.map(|_| weight::MMA)).chain(codes);
        let all = kinds.flat_map(move |kind| linear.map(|stage| format!("{stage}__{ty}{kind}")));
        let of_floats = ["", linear::ROWS].map(|kind| format!("logits__{ty}{}{kind}", weight::FLOATS));
        let experts = ["", experts::TILES].into_iter().chain(has_codes.then_some(weight::DP4A));
        let experts = experts.map(move |kind| format!("{}__{ty}{kind}", experts::STAGE));
        let of_floats = of_floats.into_iter().chain(
            ["", experts::TILES].map(|kind| format!("{}__{ty}{}{kind}", experts::STAGE, weight::FLOATS)),
        );
        let round = mma.filter(|mma| mma.rounds() && *mma != Mma::Codes);
        let round = round.map(|_| format!("{}__{ty}", weight::ROUND));
        let embed = format!("embed__{ty}");
        all.chain(experts).chain(of_floats.filter(move |_| floats)).chain(round).chain([embed])
    };
    let of_codec = kv::kernel_names().chain(attend::mma_kernels()).chain(delta::kernel_names());
    let with_kernels = weight::WEIGHT_FORMATS.iter().filter(|format| format.kernels.is(format.ty));
    let of_rows =
        [heads::KERNEL, combine::KERNEL, experts::ROUTE, experts::MIX, weight::ROUND_BLOCKS, turn::KERNEL];
    let single = of_rows.into_iter().chain(post_norm::KERNELS).chain([sample::KERNEL, profile::KERNEL]);
    with_kernels.flat_map(of_type).chain(of_codec).chain(single.map(str::to_owned))
}
