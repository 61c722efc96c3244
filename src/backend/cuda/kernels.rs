//! The list of all kernels.

use super::kernel_name::KernelName;
use super::linear::way::Way;
use super::weight::{self, Mma, WeightFormat};
use super::{attend, combine, delta, experts, heads, kv, post_norm, profile, sample, turn};

/// Every kernel that this backend may ask a driver for. A driver's `Kernel` is an index into it.
pub fn all() -> impl Iterator<Item = KernelName> {
    let with_kernels = weight::WEIGHT_FORMATS.iter().filter(|format| format.kernels.is(format.ty));
    let of_codec = kv::kernels().chain(attend::mma_kernels()).chain(delta::all_kernels());
    let of_rows =
        [heads::KERNEL, combine::KERNEL, experts::ROUTE, experts::MIX, weight::ROUND_BLOCKS, turn::KERNEL];
    let single = of_rows.into_iter().chain(post_norm::KERNELS).chain([sample::KERNEL, profile::KERNEL]);
    with_kernels.flat_map(of_type).chain(of_codec).chain(single)
}

/// The kernels of a weight type.
fn of_type(format: &WeightFormat) -> Vec<KernelName> {
    let of = |stage| KernelName::of(stage, format.ty.name());
    let floats = |stage| KernelName { floats: true, ..of(stage) };
    let by_block = if format.mma == Some(Mma::Codes) { Way::of(format.mma) } else { &[] };
    // Codes are multiplied as halves if activations are not quantised by block.
    let others = format.mma.map(|mma| if mma == Mma::Codes { Mma::Halves } else { mma });
    let ways = Way::of(others).iter().chain(by_block);
    let linear = ["attn_in", "proj_add", "ffn_in", "logits"];
    let mut all: Vec<_> = ways.flat_map(|way| linear.map(|stage| of(stage).of_kind(way.kind()))).collect();
    let single = by_block.iter().take(1).map(|way| way.kind());
    all.extend(["", experts::TILES].into_iter().chain(single).map(|kind| of(experts::STAGE).of_kind(kind)));
    if format.ints {
        all.extend(Way::of(None).iter().map(|way| floats("logits").of_kind(way.kind())));
        all.extend(["", experts::TILES].map(|kind| floats(experts::STAGE).of_kind(kind)));
    }
    all.extend(others.filter(|mma| mma.rounds()).map(|_| of(weight::ROUND)));
    all.push(of("embed"));
    all
}
