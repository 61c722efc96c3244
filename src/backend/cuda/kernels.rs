//! The list of all kernels.

use super::kernel_name::KernelName;
use super::linear::matmul::Matmul;
use super::weight::{self, Mma, Products, WeightFormat};
use super::{
    adapters, add_vector, altup, attend, clamp, combine, conv, delta, experts, hadamard, heads, kv,
    latent_in, logits, mamba, post_norm, profile, sample,
};
use sterna_program::ActQuant;

/// Every kernel that this backend may ask a driver for. A driver's `Kernel` is an index into it.
pub fn all() -> impl Iterator<Item = KernelName> {
    let with_kernels = weight::WEIGHT_FORMATS.iter().filter(|format| format.kernels.is(format.ty));
    let of_codec = kv::kernels()
        .chain(attend::mma_kernels())
        .chain(delta::all_kernels())
        .chain(conv::KERNELS)
        .chain(mamba::KERNELS)
        .chain([latent_in::KERNEL]);
    let of_rows = [combine::KERNEL, experts::ROUTE, experts::MIX, hadamard::KERNEL];
    let single = of_rows
        .into_iter()
        .chain([weight::QUANT_BLOCKS, weight::QUANT_OCTETS, weight::QUANT_OCTETS_MANY])
        .chain(heads::KERNELS)
        .chain(post_norm::KERNELS)
        .chain(adapters::KERNELS)
        .chain(altup::KERNELS)
        .chain([add_vector::KERNEL, clamp::KERNEL, logits::SOFT_CAP, sample::KERNEL, profile::KERNEL]);
    with_kernels.flat_map(of_type).chain(of_codec).chain(single)
}

/// The kernels of a weight type.
fn of_type(format: &WeightFormat) -> Vec<KernelName> {
    let of = |stage| KernelName::of(stage, format.ty.name());
    let floats = |stage| KernelName { floats: true, ..of(stage) };
    let by_block = if format.mma == Some(Mma::Codes) { Matmul::variants(format.mma) } else { &[] };
    let octets = Products::of(format.ty, ActQuant::I8PerBlock).into_iter().flat_map(Matmul::of_octets);
    // Codes are multiplied as halves if activations are not quantised by block.
    let others = format.mma.map(|mma| if mma == Mma::Codes { Mma::Halves } else { mma });
    let matmuls = Matmul::variants(others).iter().chain(by_block).copied().chain(octets);
    let linear = ["attn_in", "proj_add", "ffn_in", "logits"];
    let mut all: Vec<_> =
        matmuls.flat_map(|matmul| linear.map(|stage| of(stage).of_kind(matmul.kind()))).collect();
    let single = by_block.iter().take(1).map(|matmul| matmul.kind());
    let single_of_heads = single.clone();
    all.extend(["", experts::TILES].into_iter().chain(single).map(|kind| of(experts::STAGE).of_kind(kind)));
    if format.ints {
        all.extend(Matmul::variants(None).iter().map(|matmul| floats("logits").of_kind(matmul.kind())));
        all.extend(["", experts::TILES].map(|kind| floats(experts::STAGE).of_kind(kind)));
    }
    all.extend(others.filter(|mma| mma.rounds()).map(|_| of(weight::QUANTIZE)));
    if !format.ints {
        all.extend([""].into_iter().chain(single_of_heads).map(|kind| of(latent_in::HEADS).of_kind(kind)));
    }
    all.push(of("embed"));
    all
}
