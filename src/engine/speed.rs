//! Upper bound on the speed of a model on a GPU, by formula: memory bandwidth, tensor cores, the link for
//! offloaded layers, and CPU offload. Does not include launch overhead.

use std::ops::Range;

use sterna_backend::DeviceMemory;
pub use sterna_backend::rates::HostRates;
use sterna_backend::rates::{Matrices, Offload, Rates};
use sterna_program::{Cost, PageTable, Program, Row, Step};

/// Upper bound on the tokens per second of a model on one GPU that computes all of its layers: by memory
/// bandwidth, tensor cores and the link. Does not include launch overhead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Tokens per second of one sequence at the end of its context.
    pub decode: f64,
    /// Tokens per second of a prompt in steps of maximum size.
    pub prompt: f64,
}

/// Cost of a step whose rows are these positions of one sequence.
fn cost(p: &Program, positions: Range<usize>) -> Cost {
    let last = positions.end - 1;
    let row = |pos| Row { token: 0, pos: pos as u32, seq: 0, logits: pos == last };
    let rows: Vec<_> = positions.map(row).collect();
    p.cost(&Step { rows: &rows, pages: &PageTable::new(0, 0), sampling: &[], changes: &[] })
}

impl Bound {
    /// Bound for contexts of `n_ctx` positions. `None` if the rates of the device are unknown, or if it
    /// computes no steps without the CPU.
    pub fn of(p: &Program, n_ctx: usize, device: &DeviceMemory) -> Option<Self> {
        let rates = device.rates.filter(|_| device.shared_bytes == 0 || device.host_bytes > 0)?;
        let of = |first: usize, n: usize| {
            let step = cost(p, first..first + n);
            // The rows of a prompt may share their cache reads; the last row reads all positions.
            let bytes = step.weight_bytes + cost(p, first + n - 1..first + n).kv_bytes;
            // Kernels wait for data that they read over the link; copies overlap with them.
            let chosen = device.chosen_share.filter(|_| n <= device.in_place_rows);
            let chosen = chosen.map(|share| (share * n as f64).min(1.0));
            let host_bytes = device.host_bytes as f64;
            let (in_place, copied) = chosen.map_or((0.0, host_bytes), |share| (share * host_bytes, 0.0));
            let [waited, copied] = [in_place, copied].map(|bytes| bytes / rates.link_bytes as f64);
            let read = (bytes as f64 - in_place).max(0.0) / rates.memory_bytes as f64;
            // Attention and the head of the last row multiply in f16.
            let others = step.macs.saturating_sub(n as u64 * device.macs.sum());
            let others = 2.0 * others as f64 / rates.half_ops as f64;
            let computed = n as f64 * rates.seconds(&device.macs) + others;
            n as f64 / (waited + read).max(copied).max(computed)
        };
        Some(Self { decode: of(n_ctx.max(1) - 1, 1), prompt: of(0, p.limits.rows.min(n_ctx).max(1)) })
    }
}

/// Speed if the CPU computes the layers that are not on the GPU, in steps of few rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeedWithHost {
    /// Rates of the CPU.
    pub host: HostRates,
    /// Tokens per second of one sequence at the end of its context.
    pub decode: f64,
    /// Rows of the smallest step in which copying these layers to the GPU is no slower; `None` if there is
    /// none.
    pub min_batch: Option<usize>,
}

impl SpeedWithHost {
    /// Speed for contexts of `n_ctx` positions. `None` if the rates of the device are unknown, or if it has
    /// all layers.
    pub fn of(p: &Program, n_ctx: usize, device: &DeviceMemory, host: HostRates) -> Option<Self> {
        let rates = device.rates.filter(|_| device.shared_bytes > 0)?;
        let last = n_ctx.max(1) - 1;
        let step = cost(p, last..last + 1);
        let bytes = (step.weight_bytes + step.kv_bytes) as f64;
        let (shared, weights) = (device.shared_bytes as f64, step.macs as f64);
        let m = match device.chosen_share {
            Some(chosen) => {
                let bytes = (bytes - chosen * shared).max(0.0);
                Matrices { bytes, weights, resident: 1.0, experts: shared, chosen, waits: 0 }
            }
            None => {
                let resident = 1.0 - (shared / bytes).min(1.0);
                Matrices { bytes, weights, resident, experts: 0.0, chosen: 0.0, waits: 0 }
            }
        };
        let rates = Rates {
            link: rates.link_bytes as f64,
            card_memory: rates.memory_bytes as f64,
            host_memory: host.memory_bytes,
            card_ops: rates.ops(&device.macs),
            host_ops: host.ops,
            wait: 0.0,
        };
        let decode = 1.0 / rates.seconds(Offload::Cpu, &m, 1);
        Some(Self { host, decode, min_batch: rates.break_even(&m, p.limits.rows) })
    }
}
