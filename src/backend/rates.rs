//! Estimates the speed of a model with some weights outside GPU memory: either these are streamed to the GPU
//! in every step, or the CPU computes their layers. Computed from a machine's rates; attention and the output
//! head are not included.
//!
//! A step of `n` rows reads each weight once, or of experts those that its rows have chosen. Copies overlap
//! with kernels, so the longer of the two is used. Chosen experts may instead be read from host memory by
//! their kernels, which does not overlap with other kernels.

use std::ops::Range;

use bytes::Bytes;
use ggml_types::HostTensor;

use super::{Backend, BackendError, Exec};
use sterna_host::clock::Instant;
use sterna_program::{Linear, PageTable, Program, ProjAdd, Row, RowsOf, Step, Weight};

/// Measured rates of a CPU that multiplies by weights in its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostRates {
    /// Bytes of weights per second, in steps of a single row.
    pub memory_bytes: f64,
    /// Multiplications and additions per second, in steps of [`ROWS`](Self::ROWS) rows.
    pub ops: f64,
}

impl HostRates {
    /// Rows of the larger of the two measured steps.
    pub const ROWS: usize = 8;
    /// Bytes of weights to measure with: more than the caches hold.
    const BYTES: usize = 64 << 20;

    /// Rates from the time of one step over the given bytes and weights, with a single row and with more
    /// rows.
    pub fn of(bytes: f64, weights: f64, one: f64, (rows, many): (usize, f64)) -> Self {
        Self { memory_bytes: bytes / one, ops: 2.0 * weights * rows as f64 / many }
    }

    /// Measures a backend with made-up matrices in the shapes of a program's first layers.
    ///
    /// # Errors
    /// Errors of the backend.
    pub fn measure(backend: &mut dyn Backend, p: &Program) -> Result<Self, BackendError> {
        let mut trial = Program::new("rates", p.limits);
        (trial.limits.rows, trial.limits.outputs) = (Self::ROWS, Self::ROWS);
        let (mut ids, mut bytes, mut weights) = (Vec::new(), 0, 0);
        let layers = p.layers();
        let matrices: Vec<Weight> = layers.iter().flat_map(|layer| layer.matrices.iter().copied()).collect();
        let stages = layers.iter().flat_map(|layer| &p.stages[layer.stages.clone()]);
        let linears = stages.flat_map(|(_, stage)| stage.linears().1);
        for linear in linears.filter(|linear| matrices.contains(&linear.w)) {
            let decl = p.weight_decl(linear.w);
            let of_matrix = decl.ty.byte_len(decl.rows, decl.cols).unwrap_or(usize::MAX);
            if !ids.is_empty() && bytes + of_matrix > Self::BYTES {
                break;
            }
            // Finite scales, and codes that are valid in every type.
            let (name, ty, values) = (decl.name.clone(), decl.ty, Bytes::from(vec![0x15; of_matrix]));
            let (rows, cols) = (decl.rows, decl.cols);
            let w = trial.weight(name.clone(), ty, rows, cols);
            ids.push(backend.upload(&HostTensor { name, ty, rows, cols, bytes: values })?);
            let (y, x) = (trial.buf("y", RowsOf::Step, cols), trial.buf("x", RowsOf::Step, rows));
            let w = Linear { w, norm: None, bias: None, clamp: None, ..linear.clone() };
            trial.push(ids.len().to_string(), ProjAdd::plain(y, w, x));
            bytes += of_matrix;
            weights += rows * cols;
        }
        let exec = backend.compile(&trial, &ids)?;
        let stages = 0..trial.stages.len();
        let rows = NoTokens::new(Self::ROWS);
        let mut seconds = |n| rows.seconds(backend, exec, stages.clone(), n);
        let (one, many) = (seconds(1)?, seconds(Self::ROWS)?);
        Ok(Self::of(bytes as f64, weights as f64, one, (Self::ROWS, many)))
    }
}

/// Rows without a sequence, for programs without token embedding and caches. All of them ask for logits.
pub struct NoTokens {
    rows: Vec<Row>,
    pages: PageTable,
}

impl NoTokens {
    /// Steps of up to `most` rows.
    pub fn new(most: usize) -> Self {
        let mut pages = PageTable::new(1, 1);
        pages.seq_mut(0).push(0);
        Self { rows: vec![Row { token: 0, pos: 0, seq: 0, logits: true }; most], pages }
    }

    /// A step of `n` rows.
    pub fn step(&self, n: usize) -> Step<'_> {
        Step { rows: &self.rows[..n], pages: &self.pages, sampling: &[], changes: &[] }
    }

    /// Best time of some stages for `n` rows, after a warm-up run.
    pub fn seconds(
        &self,
        backend: &mut dyn Backend,
        exec: Exec,
        stages: Range<usize>,
        n: usize,
    ) -> Result<f64, BackendError> {
        let mut least = f64::INFINITY;
        for i in 0..3 {
            let start = Instant::now();
            backend.run_stages(exec, stages.clone(), &self.step(n))?;
            // The clock may have coarse ticks.
            let taken = start.elapsed().as_secs_f64().max(1e-9);
            least = if i > 0 { least.min(taken) } else { least };
        }
        Ok(least)
    }
}

/// Bytes and operations per second of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes from page-locked host memory to the GPU: 24.7e9 over PCIe 4.0 x16, 56.3e9 over 5.0.
    pub link: f64,
    /// Bytes that the GPU reads from its own memory.
    pub card_memory: f64,
    /// Bytes that the CPU reads from host memory.
    pub host_memory: f64,
    /// Multiplications and additions of the GPU, at the precision of the model's products.
    pub card_ops: f64,
    /// The same for the CPU.
    pub host_ops: f64,
    /// Seconds to pass a few bytes from the GPU to the CPU, or back.
    pub wait: f64,
}

/// The matrices that steps multiply by, except the head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matrices {
    /// Bytes that every step reads.
    pub bytes: f64,
    /// Number of weights per row; each is a multiplication and an addition.
    pub weights: f64,
    /// Share of `bytes` that is in GPU memory, 0 to 1.
    pub resident: f64,
    /// Bytes of experts outside GPU memory, if only experts are.
    pub experts: f64,
    /// Share of these experts that a row chooses.
    pub chosen: f64,
    /// Number of times that a step passes between the GPU and the CPU, if the CPU computes the other layers.
    pub waits: usize,
}

/// Device that computes layers with weights outside GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// The GPU, to which the weights are streamed.
    Stream,
    /// The CPU.
    Cpu,
}

impl Rates {
    /// Seconds of a step of `rows` rows.
    pub fn seconds(&self, offload: Offload, m: &Matrices, rows: usize) -> f64 {
        let ops = 2.0 * m.weights * rows as f64;
        let on_card = m.bytes / self.card_memory + ops / self.card_ops;
        let elsewhere = 1.0 - m.resident;
        // Steps that choose more experts than there are sort rows by expert, and read all experts.
        let chosen = (m.chosen * rows as f64).min(1.0) * m.experts;
        match offload {
            Offload::Stream if m.chosen * rows as f64 <= 1.0 => {
                (elsewhere * m.bytes / self.link).max(on_card) + chosen / self.link
            }
            Offload::Stream => ((elsewhere * m.bytes + m.experts) / self.link).max(on_card),
            Offload::Cpu => {
                let of_host = (m.bytes / self.host_memory).max(ops / self.host_ops);
                let of_experts = chosen / self.host_memory;
                m.resident * on_card + elsewhere * of_host + of_experts + m.waits as f64 * self.wait
            }
        }
    }

    /// The faster offload for `rows` rows per step, and its rows per second. Decoding has one row per
    /// sequence, prefill the rows of a chunk.
    pub fn best(&self, m: &Matrices, rows: usize) -> (Offload, f64) {
        let [stream, cpu] =
            [Offload::Stream, Offload::Cpu].map(|offload| rows as f64 / self.seconds(offload, m, rows));
        if stream >= cpu { (Offload::Stream, stream) } else { (Offload::Cpu, cpu) }
    }

    /// Smallest number of rows up to `most` for which streaming is at least as fast, if any.
    pub fn break_even(&self, m: &Matrices, most: usize) -> Option<usize> {
        let holds = |rows| self.seconds(Offload::Stream, m, rows) <= self.seconds(Offload::Cpu, m, rows);
        if holds(1) { Some(1) } else { first(most, holds) }
    }

    /// Smallest number of rows up to `most` whose products hide the copies, if any: longer prefill chunks
    /// gain nothing.
    pub fn hidden(&self, m: &Matrices, most: usize) -> Option<usize> {
        let resident = Matrices { resident: 1.0, ..*m };
        let whole = |rows| self.seconds(Offload::Stream, &resident, rows);
        first(most, |rows| self.seconds(Offload::Stream, m, rows) <= whole(rows))
    }
}

/// Smallest value of `1..=most` for which `holds` is true, if it is true for all larger ones.
fn first(most: usize, holds: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut high) = (1, most + 1);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    (low <= most).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PCIE_4: f64 = 24.7e9;
    const PCIE_5: f64 = 56.3e9;

    /// An RTX 5080 with 200 int8 TOPS, next to a CPU with 1 TOPS.
    fn rates(link: f64, host_memory: f64) -> Rates {
        Rates { link, card_memory: 960e9, host_memory, card_ops: 200e12, host_ops: 1e12, wait: 0.0 }
    }

    /// Four weights per byte.
    fn ternary(bytes: f64, resident: f64) -> Matrices {
        Matrices { bytes, weights: 4.0 * bytes, resident, experts: 0.0, chosen: 0.0, waits: 0 }
    }

    fn near(got: f64, want: f64) -> bool {
        // The table rounds to two figures, and its rates are rounded too.
        (got / want - 1.0).abs() < 0.04
    }

    /// Llama 3 70B of 17.1 GB on a 16 GB card, with 5.9 GB that do not fit.
    #[test]
    fn single_rows_are_bound_by_what_is_not_on_the_card() {
        let m = ternary(17.1e9, 1.0 - 5.9 / 17.1);
        for (offload, link, host_memory, want) in [
            (Offload::Stream, PCIE_4, 60e9, 4.3),
            (Offload::Stream, PCIE_5, 60e9, 9.6),
            (Offload::Cpu, PCIE_4, 60e9, 9.0),
            (Offload::Cpu, PCIE_4, 80e9, 11.5),
        ] {
            let got = 1.0 / rates(link, host_memory).seconds(offload, &m, 1);
            assert!(near(got, want), "{offload:?} {link:e} {host_memory:e}: {got}, want {want}");
        }
        assert_eq!(rates(PCIE_4, 60e9).best(&m, 1).0, Offload::Cpu);
        assert_eq!(rates(PCIE_5, 30e9).best(&m, 1).0, Offload::Stream);
        assert_eq!(rates(PCIE_4, 60e9).best(&m, 512).0, Offload::Stream);
    }

    #[test]
    fn all_layers_streamed_one_by_one() {
        for (bytes, want) in [(0.52e9, [48.0, 107.0]), (1.62e9, [15.0, 35.0])] {
            for (link, want) in [PCIE_4, PCIE_5].into_iter().zip(want) {
                let got = 1.0 / rates(link, 60e9).seconds(Offload::Stream, &ternary(bytes, 0.0), 1);
                assert!(near(got, want), "{bytes:e} {link:e}: {got}, want {want}");
            }
        }
    }

    /// From a few rows on at 2 bits per weight, and 8 times as many at 16.
    #[test]
    fn more_rows_than_a_few_are_streamed() {
        let m = ternary(17.1e9, 0.0);
        let of = |host_ops: f64, link: f64, m: &Matrices| {
            Rates { host_ops, ..rates(link, 60e9) }.break_even(m, 4096)
        };
        assert_eq!(of(1e12, PCIE_4, &m), Some(6));
        assert_eq!(of(1e12, PCIE_5, &m), Some(3));
        assert_eq!(of(0.2e12, PCIE_4, &m), Some(2));
        assert_eq!(of(1e9, PCIE_4, &m), Some(1));
        let halves = Matrices { weights: m.bytes / 2.0, ..m };
        assert_eq!(of(1e12, PCIE_4, &halves), Some(41));
        assert_eq!(of(1e18, PCIE_4, &m), None, "a processor that is faster than the link is never passed");
    }

    /// 80 layers that pass queries and sums between the two: at 20 microseconds each, 3 ms per token.
    #[test]
    fn what_passes_between_card_and_processor_takes_time() {
        let m = Matrices { waits: 160, ..ternary(17.1e9, 0.5) };
        let quick = rates(PCIE_4, 60e9);
        let slow = Rates { wait: 20e-6, ..quick };
        let seconds = |rates: &Rates, offload| rates.seconds(offload, &m, 1);
        assert!(near(seconds(&slow, Offload::Cpu) - seconds(&quick, Offload::Cpu), 3.2e-3));
        assert_eq!(seconds(&slow, Offload::Stream), seconds(&quick, Offload::Stream));
    }

    /// The shape of Qwen3-30B-A3B at 4.5 bits per weight: 48 layers with 128 experts of 3 x 768 x 2048, 8 per
    /// row, 16.3 GB; every row reads the other 0.5 GB.
    #[test]
    fn chosen_experts_are_read_where_they_lie() {
        let experts = 48.0 * 128.0 * 3.0 * 768.0 * 2048.0 * 4.5 / 8.0;
        let weights = 0.9e9 + 48.0 * 8.0 * 3.0 * 768.0 * 2048.0;
        let m = Matrices { bytes: 0.5e9, weights, resident: 1.0, experts, chosen: 8.0 / 128.0, waits: 96 };
        // 1.02 GB over the link, and 0.5 GB from the GPU's own memory.
        for (link, want) in
            [(PCIE_4, 1.0 / (1.019 / 24.7 + 0.5 / 960.0)), (PCIE_5, 1.0 / (1.019 / 56.3 + 0.5 / 960.0))]
        {
            let got = 1.0 / rates(link, 60e9).seconds(Offload::Stream, &m, 1);
            assert!(near(got, want), "{link:e}: {got}, want {want}");
        }
        // Prefill copies all of them.
        let prompt = rates(PCIE_4, 60e9).seconds(Offload::Stream, &m, 512);
        assert!(near(prompt, experts / PCIE_4), "{prompt}");
        // With a CPU that has half of the link's bandwidth, in all steps; with a faster CPU, only in steps
        // that copy.
        assert_eq!(rates(PCIE_5, 28e9).break_even(&m, 512), Some(1));
        assert!(rates(PCIE_4, 60e9).break_even(&m, 512).is_none_or(|rows| rows > 16));
    }

    #[test]
    fn long_chunks_of_prompts_hide_the_copies() {
        for (card_ops, link, want) in [
            (200e12, PCIE_4, 1000.0),
            (200e12, PCIE_5, 450.0),
            (60e12, PCIE_4, 300.0),
            (60e12, PCIE_5, 130.0),
        ] {
            let rates = Rates { card_ops, ..rates(link, 60e9) };
            let got = rates.hidden(&ternary(1.62e9, 0.0), 1 << 16).expect("some") as f64;
            // The GPU also reads its own memory, which the table does not include.
            assert!((0.92..1.03).contains(&(got / want)), "{card_ops:e} {link:e}: {got}, want {want}");
        }
    }
}
