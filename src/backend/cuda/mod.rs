//! The CUDA backend: one file per stage, which defines how its kernels are launched, over a [`driver`].
//!
//! `lower.rs` turns a stage into operations (`op.rs`), which are asked for kernels, memory and launches;
//! `cx.rs` is what launches are made of. `linear/` has the code that linear layers share, `combine.rs`,
//! `heads.rs` and `post_norm.rs` the second kernel of stages whose layers are multiplied on their own,
//! `weight.rs` the layout of weights on the device, `kernels.rs` the list of kernels, `exec/` a compiled
//! program, `alloc.rs` its memory, allocated from a driver or counted for the plan, and `params.rs` the
//! parameter structs of `cuda/params.h`. The same code runs on a GPU and, in tests, on the CPU. Nothing here
//! knows a model, a file or another backend. Start at [`Cuda`], then `proj_add.rs`. `split.rs` divides the
//! layers among several GPUs, `open.rs` chooses the GPUs; `stream.rs` handles layers whose weights do not fit
//! into GPU memory.
//!
//! This file only exports: no file of the folder imports from it.

mod adapter_tables;
mod adapters;
mod add_vector;
mod alloc;
mod altup;
mod attend;
mod attn_in;
mod backend;
mod bases;
mod clamp;
mod combine;
mod conv;
mod cx;
mod delta;
pub mod driver;
mod embed;
mod exec;
mod experts;
mod ffn_in;
mod hadamard;
mod head_tables;
mod heads;
mod host;
mod input;
mod kernel_name;
mod kernels;
mod kv;
mod latent_in;
mod linear;
mod logits;
mod lower;
mod mamba;
mod memory;
mod mixture;
pub mod occupancy;
mod octets;
mod op;
mod open;
mod pack;
mod params;
mod picks;
mod post_norm;
mod profile;
mod proj_add;
mod proj_in;
mod sample;
#[cfg(feature = "simt")]
pub mod simt;
pub mod split;
mod states;
mod step;
mod stream;
mod tiled;
mod weight;

use crate::{Auto, Entry, OptionId};
pub use backend::Cuda;
use open::NAME;
pub use profile::Profiling;
pub use stream::{Overrides, Streaming};

/// The CUDA backend in the registry.
pub const ENTRY: Entry = Entry {
    name: NAME,
    about: "NVIDIA GPUs through CUDA",
    options: &[
        OptionId::Device,
        OptionId::Profile,
        OptionId::SplitMode,
        OptionId::TensorSplit,
        OptionId::GpuLayers,
        OptionId::StreamSlots,
        OptionId::OverrideTensor,
        OptionId::MinBatch,
        OptionId::Octets,
    ],
    auto: Some(Auto { rank: 2, is_there: || driver::real::cards().is_ok() }),
    devices: |_| match driver::real::cards_with_memory() {
        Ok(cards) => cards.into_iter().enumerate().map(|(i, card)| Ok(format!("{i}: {card}"))).collect(),
        Err(err) => vec![Err(err)],
    },
    code: Some(driver::real::kernels),
    open: open::open,
    on_paper: Some(open::on_paper),
};
